"""The largest weight that a client can get, as strategies state it, and who cannot state one."""

import math

import numpy as np
import pytest

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import largest_share, largest_weight, refusal
from fedmaba.strategies.base import Decision, Replies, Strategy
from fedmaba.strategies.simplex import kl_uniform, largest_entry

BOUNDED = [
    *("fedavg", "fedavg:weights=uniform", "fedsgd", "fedprox", "propfair", "fedavgm"),
    *("fedadam:weights=uniform", "fedyogi", "afl:lam=5", "afl:lam=5,weights=new", "term:T=3"),
    *("term:T=3,normalise=reference", "deltafl:theta=0.3", "deltafl:theta=0.4,weights=uniform"),
    *("fedgini", "fedgini:epsilon=0", "gifair:lam=1", "aaggff", "ditto:server=fedmaba"),
    *("pfedme:beta=0.7", "perfedavg", "apfl"),
    *("fedala", "fedntd", "fedper", "fedrep", "lgfedavg", "fedbabu"),
    *("fedmaba:eta_b=9", "fedmaba:eta_b=9,rho=0.1,alpha=1", "fedmaba:eta_b=9,rho=0"),
    *("fedmaba:eta_b=9,eta_s=2.5,rho=0.5", "fedmaba:eta_b=9,ball=global,alpha=1"),
    *("fedmaba:eta_b=9,rho=1e-9,alpha=1", "fedmaba:eta_b=2,trust=usual,sync=overwrite"),
]
SIZE = np.array([5, 9, 60, 3, 8, 1, 1])


def one(spec: str) -> Strategy:
    return strategies.parse(spec)[0]


def rounds(strategy: Strategy, many: int, participants: int, seed: int):
    """The coefficients of some rounds of very unequal losses."""
    rng, state = np.random.default_rng(seed), strategy.init(len(SIZE))
    loud = rng.integers(len(SIZE))
    for t in range(many):
        client = np.sort(rng.choice(len(SIZE), participants, replace=False))
        loss = rng.exponential(size=participants) ** 4 + 50.0 * (client == loud)
        replies = Replies(t, 0.1, len(SIZE), client, SIZE[client], loss)
        found = strategy.weigh(state, replies)
        state = found.state
        yield found.coef


@pytest.mark.parametrize("spec", BOUNDED)
@pytest.mark.parametrize("participants", [7, 4, 2, 1])
def test_no_weight_is_larger_than_a_strategy_says(spec, participants):
    strategy = one(spec)
    bound = largest_weight(strategy, participants, largest_share(SIZE, participants))
    most = max(
        np.abs(coef).max()
        for seed in range(12 if participants == 2 else 3)
        for coef in rounds(strategy, 12, participants, seed)
    )
    assert most <= bound * (1 + 1e-9)
    # A bound that is too large would mean too much noise; only AAggFF's is for any past.
    assert participants != 2 or spec == "aaggff" or most > bound * (1 - 1e-3)


@pytest.mark.parametrize("rho", [0.0, 1e-9, 0.05, 0.5, 1.0, 1.9])
def test_fedmaba_reaches_its_bound_so_a_smaller_ball_means_less_noise(rho):
    strategy = strategies.FedMABA(rho=rho, alpha=1.0, eta_b=50.0)
    coef = [c.max() for seed in range(3) for c in rounds(strategy, 12, 7, seed)]
    bound = strategy.max_weight(7)
    assert bound * (1 - 1e-3) <= max(coef) <= bound
    assert bound <= strategies.FedMABA(rho=rho + 0.1, alpha=1.0).max_weight(7)


def test_the_largest_entry_of_a_kl_ball():
    rng = np.random.default_rng(1)
    for n in (1, 2, 5, 100):
        assert largest_entry(n, 0.0) == pytest.approx(1 / n, rel=1e-5)
        assert largest_entry(n, math.log(n)) == 1.0
        for _ in range(50):
            p = rng.dirichlet(np.full(n, rng.uniform(0.05, 3)))
            assert p.max() <= largest_entry(n, kl_uniform(p)) * (1 + 1e-9)
    # the vertex of the ball: one entry, and all others equal
    x = largest_entry(10, 0.7)
    assert kl_uniform(np.array([x, *[(1 - x) / 9] * 9])) == pytest.approx(0.7, abs=1e-12)


def test_the_largest_share_of_examples_is_that_of_the_largest_among_the_smallest():
    assert largest_share(SIZE, 7) == 60 / SIZE.sum()
    assert largest_share(SIZE, 3) == 60 / 62
    assert largest_share(SIZE, 1) == 1.0
    assert largest_share(np.full(10, 4), 5) == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("qffl", "it weighs by norms of the clients' changes, which get no noise"),
        ("fedmgda", "it weighs by inner products of the clients' changes"),
        ("fedfv", "it weighs by inner products"),
        ("adafed", "it weighs by"),
        ("fairfed", "it weighs by counts of people by group"),
        ("scaffold", "its clients keep vectors whose means the server learns without noise"),
        ("feddyn", "its clients keep vectors"),
        ("local", "its clients send nothing"),
        ("fednova", r"it does not say how large a weight can get \(max_weight\)"),
        ("ditto:server=fednova", "it does not say how large"),
    ],
)
def test_who_cannot_be_private_is_refused_with_the_reason(spec, why):
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(refusal(one(spec)))


def test_every_strategy_of_the_package_is_bounded_or_refused():
    bounded = {spec.partition(":")[0] for spec in BOUNDED}
    for name, kind in strategies.REGISTRY.items():
        if "fedmaba." in kind.__module__:
            assert (refusal(kind()) == "") == (name in bounded), name


def test_a_bound_that_is_none_is_refused():
    class Wrong(strategies.FedAvg):
        name = "wrong"

        def max_weight(self, n, share=1.0):
            return np.inf

        def weigh(self, state, replies):
            return Decision(np.ones(1), state)

    with pytest.raises(InputError, match=r"wrong: max_weight\(3, 1\) gave inf: return a finite"):
        largest_weight(Wrong(), 3, 1.0)
