"""The server's side of a round for tests of strategies.

`Bench` makes changes of random clients, the inner products that `needs()` asks for and nothing
else, and keeps changes for `keep_rounds`, one per client.
"""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fedmaba import strategies
from fedmaba.strategies.base import Replies, Strategy

NAMES = [name for name, kind in strategies.REGISTRY.items() if "fedmaba." in kind.__module__]
SPECS = [
    *NAMES,
    "fedavg:weights=uniform",
    "qffl:q=5",
    "qffl:q=0.5,mode=sgd",
    "afl:lam=0.5",
    "term:T=0.5,normalise=reference",
    "fedmgda:epsilon=1,eta=0.5,decay=0.9",
    "propfair:M=0.2,below=scaled",
    "fedfv:alpha=0,tau=3",
    "fedmaba:alpha=0.8,eta_b=1,rho=0.3,eta_s=0.5,loss_at=mean",
    "fedmaba:ball=global,loss_at=end",
    "fedmaba:sync=overwrite",
    "fedmaba:trust=usual",
    "deltafl:theta=0.1,weights=uniform",
    "aaggff:cdf=frechet",
    "adafed:gamma=5",
    "fedeba:tau=0.01,a=1",
    "fedebaplus:tau=0.1,theta=60",
    "gifair:on=loss,lam=0.5",
    "scaffpd:rho=0,sigma=1,theta=0.5",
    "fedlf:tau=3,norms=reference,work=gradient",
    "fedmdfg:theta=1,s=0",
    "eagle:lam=20",
    "fedgini:epsilon=0.1",
    "multikrum:share=0.4",
    "fedexp:epsilon=0,weights=size",
    "feddgga:d=1,rounds=3",
    "rfa:weights=fedmaba",
    "cclip:around=last,steps=3",
    "nnm:rule=median:weights=fedmaba",
]
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
every = pytest.mark.parametrize("spec", SPECS)


def one(spec: str) -> Strategy:
    """The strategy a specification without lists stands for."""
    (strategy,) = strategies.parse(spec)
    return strategy


def counts_by_group(client, t):
    """Examples of three groups by label and prediction, some groups without any."""
    found = [np.random.default_rng([t, c]).integers(9, size=(3, 2, 2)) for c in client]
    for c, counts in zip(client, found, strict=True):
        counts[1] *= c % 2
    return np.array(found)


def layer_grams(rows):
    """The inner products of three layers of changes: the first four numbers, the next, the rest."""
    return np.array([part @ part.T for part in np.split(rows, [4, 12], axis=1)])


def replies(strategy: Strategy, client, loss, changes, *, n=100, t=0, past=(), size=None):
    """What the server tells the strategy: only what it needs, and read-only."""
    needs, client = strategy.needs(), np.asarray(client, dtype=np.int64)
    rows = np.array([*changes, *(change for _, _, change in past)], dtype=np.float64)
    gram = rows @ rows.T
    told = Replies(
        round=t,
        lr=0.1 * 0.999**t,
        n_clients=n,
        client=client,
        size=10 + client % 7 if size is None else np.asarray(size),
        loss=None if needs.loss == "none" else np.asarray(loss, dtype=np.float64).copy(),
        norms=gram.diagonal()[: len(client)].copy() if needs.changes != "none" else None,
        gram=gram if needs.changes == "gram" else None,
        layer_grams=layer_grams(rows) if needs.changes == "layers" else None,
        groups=counts_by_group(client, t) if needs.groups else None,
        past_client=np.array([c for c, _, _ in past], dtype=np.int64) if past else None,
        past_round=np.array([r for _, r, _ in past], dtype=np.int64) if past else None,
        steps=1.0 + client % 5 if needs.steps else None,
        alone=0.7 * np.asarray(loss, dtype=np.float64) if needs.alone else None,
        loss_after=0.5 * np.asarray(loss)[::-1].copy() if needs.loss_after else None,
    )
    for value in vars(told).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return told


class Bench:
    """A federation of n clients with random losses and changes, m of which answer each round."""

    def __init__(self, strategy: Strategy, n: int = 12, m: int = 5, seed: int = 0) -> None:
        self.strategy, self.n, self.m = strategy, n, m
        self.rng, self.t, self.kept = np.random.default_rng(seed), 0, {}

    def round(self) -> Replies:
        client = np.sort(self.rng.choice(self.n, self.m, replace=False))
        changes = self.rng.normal(size=(self.m, 20)) * self.rng.uniform(0.5, 2, (self.m, 1))
        loss = self.rng.gamma(2.0, 1.0, self.m)
        past = []
        if keep := self.strategy.needs().keep_rounds:
            past = [(c, r, v) for c, (r, v) in self.kept.items() if r >= self.t - keep]
            past = [entry for entry in past if entry[0] not in client]
        told = replies(self.strategy, client, loss, changes, n=self.n, t=self.t, past=past)
        self.kept |= {c: (self.t, v) for c, v in zip(client, changes, strict=True)}
        self.t += 1
        return told


def coefficients(strategy: Strategy, rounds: int = 5, n: int = 12, m: int = 5) -> list[np.ndarray]:
    """Coefficients of some random rounds on the participants."""
    bench, state, found = Bench(strategy, n, m), strategy.init(n), []
    for _ in range(rounds):
        coef, state, _ = strategy.weigh(state, bench.round())
        found.append(coef[:m])
    return found


def kkt_gap(gram, x, centre, radius) -> float:
    """How far x is from optimal for `min_norm`: 0 at the optimum."""
    low, high = np.maximum(centre - radius, 0.0), np.minimum(centre + radius, 1.0)
    g = gram @ x
    down, up = x > low + 1e-12, x < high - 1e-12
    if not down.any() or not up.any():
        return 0.0
    return max(0.0, float(g[down].max() - g[up].min()))
