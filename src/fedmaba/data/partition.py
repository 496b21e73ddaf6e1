"""Divide a data set over clients: which client trains, validates and tests on which example.

NumPy only; this module sees labels, not images, files or models. A scheme decides who owns each
example. The rest (test part, validation part, index lists) is the same for all schemes and
vectorised, so that a million clients take little time. All randomness comes from one generator made
from the seed.

The official test examples of `shards` and `dirichlet` follow the training ones: those of a class
are divided over its owners in proportion to what they hold of that class. Test examples of a class
that nobody trains on belong to nobody; apart from these every example is used exactly once.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.cells import number_of
from fedmaba.errors import InputError, unknown
from fedmaba.rng import generator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
FEW_EXAMPLES = (
    10  # Each client gets this many training examples in `dirichlet` and `sizes`, if it can.
)
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Per client, sorted indices into a data set's examples; the three parts are disjoint."""

    train: tuple[IntArray, ...]  # N arrays
    validation: tuple[IntArray, ...]
    test: tuple[IntArray, ...]

    def __repr__(self) -> str:
        sizes = [f"{sum(map(len, getattr(self, part))):,} {part}" for part in PARTS]
        return f"Split({len(self.train):,} clients; examples: {', '.join(sizes)})"

    def to_arrays(self) -> dict[str, IntArray]:
        """The split as six flat arrays, as an .npz or safetensors file can hold them."""
        out: dict[str, IntArray] = {}
        for part in PARTS:
            lists = getattr(self, part)
            out[part] = np.concatenate([np.zeros(0, np.int64), *lists])
            ends = np.cumsum([len(a) for a in lists], dtype=np.int64)
            out[f"{part}_offsets"] = np.concatenate([np.zeros(1, np.int64), ends])
        return out

    def shifted(self, by: int) -> Split:
        """The same split of a copy of the data that begins `by` examples later."""
        if not by:
            return self
        return Split(*(tuple(rows + by for rows in getattr(self, part)) for part in PARTS))

    def sha256(self) -> str:
        """The digest of all index lists."""
        digest = hashlib.sha256()
        for key, values in self.to_arrays().items():
            digest.update(f"{key} {len(values)} ".encode())
            digest.update(values.astype("<i8").tobytes())
        return digest.hexdigest()


class _Scheme(NamedTuple):
    """A way to divide data, with the default and range of its parameter."""

    spec: str
    about: str
    default: float = 0.0
    least: float = 0.0
    most: float = 0.0  # 0: the scheme has no parameter


_SCHEMES = {
    "shards": _Scheme(
        "shards:K", "sort by label, cut, K shards per client, of different labels (K=2)", 2, 1, 1e9
    ),
    "dirichlet": _Scheme(
        "dirichlet:A", "each class over the clients by Dirichlet(A) (A=0.5)", 0.5, 1e-3, 1e6
    ),
    "iid": _Scheme("iid", "equal shares, drawn at random"),
    "sizes": _Scheme("sizes:S", "labels as iid, sizes log-normal with sigma S (S=1)", 1, 0, 10),
    "given": _Scheme("given", "the data's own client column"),
}


def describe_partitions() -> list[tuple[str, str]]:
    """Specification and one-line description of every way to divide the data."""
    return [(scheme.spec, scheme.about) for scheme in _SCHEMES.values()]


def parse_share(value: str | float) -> float:
    """A share such as 0.1, "0.1" or "10%" as a number between 0 and 1."""
    text = str(value).strip()
    share = number_of(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= share <= 1:
        raise InputError(f"share {value!r}: write it as 0.1 or 10%, between 0 and 1")
    return share


def parse_partition(spec: str) -> tuple[str, float]:
    """Name and parameter of a specification."""
    name, colon, text = spec.partition(":")
    if name not in _SCHEMES:
        raise unknown("partition", name, _SCHEMES)
    scheme = _SCHEMES[name]
    if not colon:
        return name, scheme.default
    value = number_of(text, int if name == "shards" else float)
    if not scheme.most:
        raise InputError(f"partition {spec!r}: {name} has no parameter: write {name}")
    if not scheme.least <= value <= scheme.most:
        kind = "an integer" if name == "shards" else "a number"
        rule = f"give {kind} from {scheme.least:g} to {scheme.most:g}"
        raise InputError(f"partition {spec!r}: {text!r} is no {scheme.spec[-1]}: {rule}")
    return name, value


def refuse_by_label(spec: str, targets: str) -> None:
    """Refuse a scheme that divides by class label; `targets` says what there is instead."""
    name, _ = parse_partition(spec)
    if name in ("shards", "dirichlet"):
        raise InputError(
            f"partition {spec} divides by class label, but the targets are {targets}: say "
            "--partition iid or sizes, or name each example's client in the data"
        )


def _cut(flat: IntArray, offsets: IntArray) -> tuple[IntArray, ...]:
    """Views of a flat array, one per client."""
    return tuple(flat[a:b] for a, b in pairwise(offsets.tolist()))


def _group(owner: IntArray, rows: IntArray, n: int) -> tuple[IntArray, ...]:
    """The rows of each of n clients, in the order given; an owner of -1 is nobody."""
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))])
    return _cut(rows[np.argsort(owner, kind="stable")], offsets)


def _shares(total: int, weight: FloatArray, least: int = 0) -> IntArray:
    """Whole numbers near `weight`'s proportions, at least `least` each, that add up to `total`."""
    spare = total - least * len(weight)
    ends = np.floor(np.cumsum(weight / weight.sum()) * spare + 0.5).astype(np.int64)
    ends[-1] = spare
    return least + np.diff(np.minimum(ends, spare), prepend=0)


def _shards(y: IntArray, n: int, k: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Owner and shard of every training example.

    A shard has one label where there are at least as many shards as classes: each class is cut into
    equal shards, their number in proportion to its size. Otherwise the sorted list is cut evenly.
    Differs: the usual recipe cuts evenly in any case; with classes of equal size it is the same.
    """
    total = n * k
    if total > len(y):
        what = f"shards:{k} for {n} clients makes {total} shards of {len(y)} training examples"
        raise InputError(f"{what}: lower K or the number of clients")
    count = np.unique(y, return_counts=True)[1]  # (classes,)
    if total < len(count):
        sizes = _shares(len(y), np.ones(total))
        holder = rng.permutation(np.repeat(np.arange(n), k))  # (shards,)
    else:
        quota = total * count / len(y)
        pieces = np.maximum(1, np.floor(quota)).astype(np.int64)  # (classes,) shards of each class
        while gap := int(np.sign(total - pieces.sum())):  # at most one step per class
            free = pieces < count if gap > 0 else pieces > 1
            pieces[np.argmax(np.where(free, gap * (quota - pieces), -np.inf))] += gap
        cuts = [_shares(c, np.ones(p)) for c, p in zip(count, pieces, strict=True)]
        sizes = np.concatenate(cuts)
        holder = _different(np.repeat(np.arange(len(count)), pieces), n, k, rng)
    shard = np.empty(len(y), np.int64)
    shard[np.argsort(y, kind="stable")] = np.repeat(np.arange(total), sizes)
    return holder[shard], shard


def _different(label: IntArray, n: int, k: int, rng: np.random.Generator) -> IntArray:
    """Who holds each shard, drawn at random, then swapped until no client has a label twice.

    Each swap lowers the number of repeated labels, so this ends. As long as a label has no more
    shards than there are clients, such a swap exists: only other labels may stay repeated.
    """
    holder = rng.permutation(np.repeat(np.arange(n), k))  # (shards,)
    have = np.zeros((n, int(label[-1]) + 1), np.int32)  # shards of a label at a client
    np.add.at(have, (holder, label), 1)
    left = -1
    while left != (left := int(np.maximum(have - 1, 0).sum())):
        stuck = set()  # No swap was found for these labels in this pass.
        for s in np.flatnonzero(have[holder, label] > 1).tolist():
            i, a = holder[s], label[s]
            if have[i, a] < 2 or a in stuck:
                continue
            # A few random shards come first, and almost always one of them will do.
            for some in (rng.integers(len(label), size=32), np.arange(len(label))):
                j, b = holder[some], label[some]
                fewer = 1 - (have[i, b] > 0) + (have[j, b] > 1) - (have[j, a] > 0).astype(np.int64)
                good = some[fewer > 0]  # A shard of the same client or label will never do.
                if len(good):
                    t = good[0]
                    have[[i, holder[t]], [a, label[t]]] -= 1
                    have[[i, holder[t]], [label[t], a]] += 1
                    holder[[s, t]] = holder[[t, s]]
                    break
            else:
                stuck.add(a)
    return holder


def _dirichlet(y: IntArray, n: int, a: float, rng: np.random.Generator) -> IntArray:
    """The owner of every training example, by shares of classes from a Dirichlet distribution.

    A client with too few examples gets some from the largest client.
    """
    owner = np.empty(len(y), np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        # For a tiny A all draws may underflow to 0, and the floor keeps their sum positive.
        weight = rng.standard_gamma(a, n) + 1e-300
        owner[rows] = np.repeat(np.arange(n), _shares(len(rows), weight))
    least = min(FEW_EXAMPLES, len(y) // n)
    size = np.bincount(owner, minlength=n)
    # Each move takes a random example from the client that is largest at that moment.
    order = rng.permutation(len(y))
    pile = [rows.tolist() for rows in _group(owner[order], order, n)]
    heap = [(-len(rows), k) for k, rows in enumerate(pile)]
    heapq.heapify(heap)
    for k in np.repeat(np.arange(n), np.maximum(0, least - size)).tolist():
        large, donor = heap[0]
        owner[pile[donor].pop()] = k
        heapq.heapreplace(heap, (large + 1, donor))
    return owner


def _follow(y: IntArray, owner: IntArray, block: IntArray, y_test: IntArray, n: int) -> IntArray:
    """Give each client test examples in the class mix of its training set.

    A client that gets none then takes one, of a class that it trains on, from the client that has
    the most. The result is the owner of every test example.
    """
    test = np.full(len(y_test), -1, np.int64)
    for label in np.unique(y_test):
        train, rows = np.flatnonzero(y == label), np.flatnonzero(y_test == label)
        if len(train):
            train = train[np.argsort(block[train], kind="stable")]
            middle = (2 * np.arange(len(rows)) + 1) * len(train) // (2 * len(rows))
            test[rows] = owner[train[middle]]
    held = np.bincount(test[test >= 0], minlength=n)  # (N,)
    for k in np.flatnonzero(held == 0):
        rows = np.flatnonzero((test >= 0) & np.isin(y_test, y[owner == k]))
        rows = rows[held[test[rows]] > 1]
        if not len(rows):
            what = f"client {k} gets no test example, {len(y_test)} are too few"
            raise InputError(f"{what}: use fewer clients or --test local")
        row = rows[np.argmax(held[test[rows]])]
        held[[test[row], k]] += [-1, 1]
        test[row] = k
    return test


def _random_share(
    owner: IntArray,
    n: int,
    share: float,
    rng: np.random.Generator,
    spare: bool,
    unit: IntArray | None = None,
) -> NDArray[np.bool_]:
    """A random share of each client's examples, rounded, at least one of them.

    `spare` leaves each client at least one, so one that has a single example keeps it. With `unit`
    the share is of units, each with all its examples; the owner of its first one counts for it.
    """
    if unit is not None:
        _, first, place = np.unique(unit, return_index=True, return_inverse=True)
        return _random_share(owner[first], n, share, rng, spare)[place]
    size = np.bincount(owner, minlength=n)
    order = np.lexsort((rng.random(len(owner)), owner))  # by client, at random within
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    many = np.maximum(1, np.floor(share * size + 0.5))
    if spare:
        many = np.minimum(many, size - 1)
    chosen: NDArray[np.bool_] = rank < many[owner]
    return chosen


def _of(unit: IntArray | None, rows: IntArray) -> IntArray | None:
    return None if unit is None else unit[rows]


def split(
    y: IntArray,
    n_train: int,
    client: IntArray | None,
    spec: str,
    clients: int | None,
    seed: int,
    test: str = "official",
    validation: float = 0.0,
    names: Sequence[str] = (),  # of the data's own clients
    kept: NDArray[np.bool_] | None = None,  # The data keep these training rows for validation.
    unit: IntArray | None = None,  # The rows of one unit stay in one part.
) -> Split:
    """Divide a data set (its y, n_train and client) over clients by a specification."""
    name, value = parse_partition(spec)
    if test not in ("official", "local"):
        raise unknown("test part", test, ("official", "local"))
    if not 0 <= validation < 1:
        raise InputError(f"validation={validation}: give a share from 0 to below 1")
    if kept is not None and (validation or name != "given"):
        word = f"validation={validation:g}" if validation else f"partition {spec}"
        remedy = "leave it out" if validation else "use given, or leave that part out"
        raise InputError(f"{word}, but the data have a validation part of their own: {remedy}")
    official = test == "official"
    if official and n_train >= len(y):
        raise InputError("the data have no official test part: say --test local")
    y_train, y_test = y[:n_train], y[n_train:]
    rng = generator(seed, "partition")
    if name == "given":
        if client is None:
            raise InputError("partition given, but the data have no client column: add one")
        n = int(client.max()) + 1
        if clients not in (None, n):
            raise InputError(f"clients={clients}, but the data name {n} clients: leave it out")
        owner, owner_test = client[:n_train], client[n_train:]
        if (owner < 0).any() or (official and (owner_test < 0).any()):
            raise InputError("some examples have no client: give client_test or say --test local")
    else:
        n = clients or 0
        few = min(n_train, len(y_test)) if official else n_train // 2
        if not 1 <= n <= few:
            rule = f"from 1 to {few}, one example to train and one to test on for each"
            raise InputError(f"clients={clients}: partition {name} of these data takes {rule}")
        if name in ("iid", "sizes"):
            weight = np.exp((value if name == "sizes" else 0.0) * rng.standard_normal(n))
            sizes = _shares(n_train, weight, min(FEW_EXAMPLES, n_train // n))
            owner = rng.permutation(np.repeat(np.arange(n), sizes))
            if official:
                owner_test = rng.permutation(
                    np.repeat(np.arange(n), _shares(len(y_test), weight, 1))
                )
        else:
            if name == "shards":
                owner, block = _shards(y_train, n, int(value), rng)
            else:
                owner = block = _dirichlet(y_train, n, value, rng)
            if official:
                owner_test = _follow(y_train, owner, block, y_test, n)
    rows, rows_test, spare = np.arange(n_train), np.arange(n_train, len(y)), name == "given"
    own = np.zeros(n_train, np.bool_) if kept is None else kept[:n_train]
    rows_kept, owner_kept = rows[own], owner[own]
    rows, owner = rows[~own], owner[~own]
    if not official:
        local = _random_share(owner, n, 0.2, rng, spare, _of(unit, rows))
        rows_test, owner_test = rows[local], owner[local]
        rows, owner = rows[~local], owner[~local]
    if validation:
        held = _random_share(owner, n, validation, rng, spare, _of(unit, rows))
        rows_kept, owner_kept = rows[held], owner[held]
        rows, owner = rows[~held], owner[~held]
    result = Split(
        _group(owner, rows, n),
        _group(owner_kept, rows_kept, n),
        _group(owner_test, rows_test, n),
    )
    _complete(result, spec, test, validation, names if name == "given" else ())
    return result


def _complete(found: Split, spec: str, test: str, validation: float, names: Sequence[str]) -> None:
    """Refuse a split that leaves a client nothing to train or to test on.

    The data's own clients may be without test examples, if only some have any.
    """
    for part in ("train", "test"):
        empty = [k for k, mine in enumerate(getattr(found, part)) if not len(mine)]
        some = spec == "given" and part == "test" and len(empty) < len(found.test)
        if not empty or some:
            continue
        k = empty[0]
        held = len(found.validation[k])
        remedy = "leave it out" if spec == "given" else "use fewer clients"
        if part == "test":
            remedy = "say --test local"
        elif held:
            remedy = "lower --validation" if held > 1 else "leave out --validation"
        who = f"client {names[k]!r}" if names else f"client {k}"
        many = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        why = f"partition {spec}, test {test}, validation {validation:g}"
        what = f"{who}{many} has no {part} example left ({why})"
        raise InputError(f"{what}: give it more data, or {remedy}")
