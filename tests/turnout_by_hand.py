"""Who takes part, who is late and what is sent, once more: plain Python, client by client.

It shares no code with the package. Random numbers are SplitMix64's finaliser over hashed words.
"""

import hashlib
import math
import struct
from dataclasses import dataclass, field

MASK = 2**64 - 1


def word(seed, purpose, *words):
    """One random word of 64 bits."""
    k = int.from_bytes(hashlib.sha256(f"{seed}/{purpose}".encode()).digest()[:8], "little")
    for one in words:
        z = (k + (one + 1) * 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        k = z ^ (z >> 31)
    return k


def unit(*key):
    return (word(*key) >> 11) / 2**53


@dataclass
class ByHand:
    """One run. `size` are training examples, `labels` those of each client, `task` what is sent."""

    seed: int
    size: list
    labels: list
    many: int
    epochs: int = 1
    available: tuple = ("always",)  # ("p", low, high, by), ("cyclic", K, share, by), ("file", rows)
    select: str = "uniform"
    dropout: float = 0.0
    speed: object = None  # a number, (sigma, median) or a list
    bandwidth: object = None
    deadline: float = math.inf
    unseen: int = 0  # how many clients take no part
    sums: str = "plain"
    weights: dict = field(default_factory=dict)  # numbers in each, by name
    task: str = "{}"  # what the server tells a client to do, as JSON
    tell: str = ""  # the numbers it asks for, by name
    means: int = 0  # mean vectors that travel
    keeps: bool = False
    begins: bool = False  # with the first model as its own
    numbers: int = 0  # that an answer tells, besides the model

    def __post_init__(self):
        n = len(self.size)
        self.asked, self.heard, self.clock = [0] * n, [0] * n, 0.0
        self.apart = sorted(range(n), key=lambda c: unit(self.seed, "unseen", c))[: self.unseen]

    def place(self, c, by):
        """Where a client stands among all, from 0 to 1."""
        n = len(self.size)
        if not by:
            return unit(self.seed, "chance", c)
        trait = self.size
        if by == "label":
            every = [y for own in self.labels for y in own]
            classes = sorted(range(max(every) + 1), key=lambda y: (-every.count(y), y))
            trait = [-sum(classes.index(y) for y in own) / len(own) for own in self.labels]
        order = sorted(range(n), key=lambda i: (trait[i], i))
        return (order.index(c) + 0.5) / n

    def there(self, t, c):
        kind, *rest = self.available
        if kind == "p":
            low, high, by = rest
            return unit(self.seed, "there", t, c) < low + (high - low) * self.place(c, by)
        if kind == "cyclic":
            period, share, by = rest
            phase = int(self.place(c, by) * period)
            return (t + phase) % period < math.ceil(share * period)
        if kind == "file":
            return any(who == c and first <= t + 1 <= last for who, first, last in rest[0])
        return True

    def choose(self, t):
        present = [c for c in range(len(self.size)) if c not in self.apart and self.there(t, c)]
        drawn = {c: unit(self.seed, "participants", t, c) for c in present}
        rank = {
            "uniform": lambda c: drawn[c],
            "size": lambda c: -math.log1p(-drawn[c]) / self.size[c],
            "fair": lambda c: (self.asked[c], drawn[c]),
        }[self.select]
        return sorted(sorted(present, key=rank)[: self.many])

    def number(self, told, purpose, c):
        """As a number of 32 bits, which is how they are kept."""
        if isinstance(told, tuple):
            sigma, median = told
            one, two = (unit(self.seed, purpose, c, i) for i in (0, 1))
            normal = math.sqrt(-2 * math.log1p(-one)) * math.cos(2 * math.pi * two)
            told = median * math.exp(sigma * normal)
        one = told[c] if isinstance(told, list) else told
        return struct.unpack("f", struct.pack("f", one))[0]

    def later(self, many):
        """More bytes to and from each of so many clients in a secure sum: three messages each."""
        if self.sums == "plain":
            return 0, 0
        down = (375 + 144 * many) + (119 + 246 * many) + (345 + 3 * many)
        masked = 397 + 4 * (1 + sum(self.weights.values()))
        return down, (325 + 322 * many) + masked + (227 + 37 * many)

    def bytes(self, c, t):
        names = [*self.weights.items()]
        names += [(f"mean/{i}/{n}", k) for i in range(self.means) for n, k in self.weights.items()]
        body = sum(128 + 38 + len(name) + 4 * count for name, count in names)
        down = 237 + len(self.task) + body + (67 if self.keeps else 0)
        down += 12 + len(self.tell) if self.tell else 0
        if self.begins and any(self.heard) and not self.heard[c]:  # the first model, too
            down += 20 + sum(60 + len(name) + 4 * k for name, k in self.weights.items())
        again = 32 if self.keeps and self.heard[c] else 0
        if self.sums == "secure":
            down, body = down + 281, 243
        return down, again + 196 + body + 20 * self.numbers

    def round(self, t):
        """{client: (what became of it, bytes down, bytes up, seconds)}, and the clock after it."""
        out, answers = {}, []
        chosen = self.choose(t)
        for c in chosen:
            down, up = self.bytes(c, t)
            took = 0.0
            if self.speed is not None:
                took += self.epochs * self.size[c] / self.number(self.speed, "speed", c)
            if self.bandwidth is not None:
                took += (down + up + sum(self.later(len(chosen)))) / (
                    1e6 * self.number(self.bandwidth, "bandwidth", c)
                )
            lost = unit(self.seed, "dropout", t, c) < self.dropout
            what = "lost" if lost else "late" if took > self.deadline else "heard"
            out[c] = (what, down, 0 if lost else up, took)
        more = self.later([what for what, *_ in out.values()].count("heard"))
        for c, (what, down, up, took) in out.items():
            if what == "heard":
                out[c] = (what, down + more[0], up + more[1], took)
            self.asked[c] += 1
            self.heard[c] += what == "heard"
        answers = [took for *_, took in out.values()]
        missing = any(what != "heard" for what, *_ in out.values())
        bounded = self.deadline < math.inf
        lasted = self.deadline if bounded and (missing or not out) else max(answers, default=0.0)
        self.clock += lasted
        return out, self.clock
