"""What hostile sites do to the others when the server sees sums alone, against a plain server.

    python benchmarks/secure_attacks.py        every row of benchmarks/results/secure-attacks.md
    python benchmarks/secure_attacks.py --rounds 2 --only update=-1

It needs flwr. Eight sites of the sample, two shards each, train a softmax regression in this
process; real secure sums, no network. One site is hostile. Each cell is of the honest sites and the
last model: mean accuracy / that of the worst, %, and in brackets the weight of the hostile site in
the last round. `own app`: the hostile site runs an app that breaks the clip.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import contextmanager

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp

from fedmaba import flower
from fedmaba.data.attack import Attack, parse_attack
from fedmaba.data.federation import Federation
from fedmaba.deploy import reply_fetching, secure
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, Limits, SecureSum, secure_mod
from secure import Counted, one_at_a_time

STRATEGIES = ["fedavg", "fedmaba", "fedmaba:trust=usual"]
SITES, HOSTILE, CLIP, CLASSES = 8, 3, 1.0, 10
MOST_LOSS = 20.0  # that the server accepts
ATTACKS = ["", "loss=1e6", "loss=20", "labels=flip", "update=-1", "update=-20", "update=-1e9"]
SERVERS = ["plain", "secure", "secure, own app"]


class Site:
    """The data of one site, and a softmax regression on them."""

    def __init__(self, fed: Federation, c: int) -> None:
        train, test = fed.train.of(c), fed.test.of(c)
        pixels = fed.data.x.reshape(len(fed.data.x), -1).astype(np.float32)
        self.x, self.y = pixels[train], fed.data.y[train].astype(int)
        self.x_test, self.y_test = pixels[test], fed.data.y[test].astype(int)

    def loss(self, w: np.ndarray) -> float:
        return float(-np.log(_softmax(self.x @ w)[np.arange(len(self.y)), self.y] + 1e-30).mean())

    def trained(self, w: np.ndarray, seed: int) -> np.ndarray:
        w = w.copy()
        for rows in np.array_split(np.random.default_rng(seed).permutation(len(self.y)), 10):
            x, right = self.x[rows], np.eye(CLASSES, dtype=np.float32)[self.y[rows]]
            w -= 0.05 * x.T @ (_softmax(x @ w) - right) / len(rows)
        return w

    def accuracy(self, w: np.ndarray) -> float:
        return float((np.argmax(self.x_test @ w, 1) == self.y_test).mean())


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@contextmanager
def without_clip():
    """Inside, a site scales no change down."""
    usual = secure.quantise

    def quantise(change, share, rule):
        return np.rint(np.asarray(change, float) * (share / rule.step)).astype(np.int64), False

    secure.quantise = quantise
    try:
        yield
    finally:
        secure.quantise = usual


def breaking(message: Message, context: Context, call_next) -> Message:
    with without_clip():
        return secure_mod(message, context, call_next)


def app_of(c: int, site: Site, attack: Attack | None, server: str) -> ClientApp:
    """The app of a site; with an attack, what it sends is not what it should be."""
    app = ClientApp()
    told = attack or Attack()
    if told.flip:
        site.y = CLASSES - 1 - site.y

    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        change = site.trained(w, c) - w
        loss = site.loss(w) if told.loss is None else told.loss
        new = ArrayRecord({"w": Array((w + told.update * change).astype(np.float32))})
        return flower.reply(message, new, {"num-examples": len(site.y), "loss": loss}, f"site-{c}")

    own = attack is not None and server == SERVERS[2]
    mods = [] if server == "plain" else [breaking if own else secure_mod]
    app.train(mods=mods)(train)
    app.query()(lambda message, context: flower.reply(message, None, {}, f"site-{c}"))
    return app


def measure(spec: str, does: str, server: str, rounds: int) -> str:
    """One cell."""
    fed = Federation.make("sample", "shards:2", clients=SITES)
    sites = [Site(fed, c) for c in range(SITES)]
    attack = parse_attack(does) if does else None
    apps = {
        c + 1: app_of(c, site, attack if c == HOSTILE else None, server)
        for c, site in enumerate(sites)
    }
    rule = None if server == "plain" else SecureSum(clip=CLIP)
    strategy = FlowerStrategy(
        spec,
        min_available_nodes=SITES,
        evaluate=False,
        secure=rule,
        limits=Limits(loss=(0.0, MOST_LOSS)),
    )
    first = ArrayRecord({"w": Array(np.zeros((sites[0].x.shape[1], CLASSES), np.float32))})
    try:
        strategy.start(Counted(apps), first, rounds)
    except InputError as error:
        return "the run ends" if "failed 5 times" in str(error) else str(error)
    w = strategy.server.model["w"]
    score = [100 * site.accuracy(w) for c, site in enumerate(sites) if c != HOSTILE]
    weight = strategy.reports[-1]["sites"].get(f"site-{HOSTILE}", {}).get("weight")
    shown = "left out" if weight is None else f"{weight:.2f}"
    return f"{np.mean(score):.1f} / {min(score):.1f} ({shown})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", default=ATTACKS)
    given = parser.parse_args()
    reply_fetching.collect_replies = one_at_a_time
    print("| the hostile site | sums | " + " | ".join(f"`{s}`" for s in STRATEGIES) + " |")
    print("|---" * (2 + len(STRATEGIES)) + "|")
    for does in given.only:
        for server in SERVERS:
            if server == SERVERS[2] and not does.startswith("update"):
                continue  # which sends honest changes, so it has no clip to break
            cells = [measure(spec, does, server, given.rounds) for spec in STRATEGIES]
            what = f"`{does}`" if does else "nobody"
            print(f"| {what} | {server} | " + " | ".join(cells) + " |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
