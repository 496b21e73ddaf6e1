"""FairFed: three rounds by hand, a plain loop, and what it is refused for."""

import dataclasses

import numpy as np
import pytest

import fedmaba
import plain_loop
from fedmaba import strategies
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.rows import models
from fedmaba.simulation.engine import Plan
from fedmaba.strategies.answers import call_weigh
from fedmaba.strategies.base import Replies
from fedmaba.strategies.fairfed import FairFed
from group_cases import compare, people
from paper_loops import FairFed as FairFedLoop
from plain_loop import apart, played, vector


def told(counts, size, t=0, client=None, n=3):
    client = np.arange(len(counts)) if client is None else np.array(client)
    return Replies(t, 0.1, n, client, np.array(size), groups=np.array(counts))


def client(*rates):
    """Ten positives of each group, of which so many are found; no negatives."""
    return [[[0, 0], [10 - found, found]] for found in rates]


def test_three_rounds_by_hand():
    rule, state = FairFed(beta=0.5), FairFed().init(3)
    # Rates of group 0 minus group 1: 0.4, 0.0 and -0.1; over all, (8+5+5)/30 - (4+5+6)/30 = 0.1.
    first = told([client(8, 4), client(5, 5), client(5, 6)], [50, 30, 20])
    # Away from it: 0.3, 0.1, 0.2; mean 0.2. Shares 0.5, 0.3, 0.2 move by -0.05, +0.05, 0.
    coef, state, info = call_weigh(rule, state, first)
    np.testing.assert_allclose(coef, [0.45, 0.35, 0.2], atol=1e-15)
    assert info["gap"] == pytest.approx(0.1)
    # Now gaps of 0.2, -0.4 and 0.5; over all 0.1; away 0.1, 0.5, 0.4; mean 1/3.
    second = told([client(7, 5), client(3, 7), client(8, 3)], [50, 30, 20], 1)
    coef, state, info = call_weigh(rule, state, second)
    np.testing.assert_allclose(coef, [0.45 + 7 / 60, 0.35 - 1 / 12, 0.2 - 1 / 30], atol=1e-15)
    # The third client has no positives of group 1, so its accuracy counts instead: the gaps are
    # 0.1, 0.1 and none; over all (6+7+8)/30 - (5+6)/20 = 0.15. Accuracy: right are 11, 13 and 8 of
    # 20, 20 and 10, over all 32 of 50 = 0.64. Away 0.05, 0.05, 0.16; mean 26/300.
    third = told([client(6, 5), client(7, 6), [client(8)[0], [[0, 0], [0, 0]]]], [50, 30, 20], 2)
    coef, state, info = call_weigh(rule, state, third)
    up, down = 0.5 * (0.26 / 3 - 0.05), 0.5 * (0.16 - 0.26 / 3)
    want = [0.45 + 7 / 60 + up, 0.35 - 1 / 12 + up, 0.2 - 1 / 30 - down]
    np.testing.assert_allclose(coef, want, atol=1e-15)
    np.testing.assert_allclose(state["weight"], want, atol=1e-15)
    assert coef.sum() == pytest.approx(1)


def test_parity_looks_at_all_examples():
    counts = np.array([[[3, 1], [2, 4]], [[5, 0], [4, 1]]])  # selected 5 of 10, and 1 of 10
    assert float(FairFed(metric="spd").gap(counts)) == pytest.approx(0.4)
    assert float(FairFed(metric="eod").gap(counts)) == pytest.approx(4 / 6 - 1 / 5)
    assert float(FairFed(metric="spd", group=1).gap(counts)) == pytest.approx(-0.4)
    three = np.concatenate([counts, counts[:1]])  # the others together: 6 of 20
    assert float(FairFed(metric="spd").gap(three)) == pytest.approx(0.5 - 0.3)


def test_beta_0_is_fedavg_and_no_weight_falls_below_0():
    away = told([client(10, 0), client(5, 5), client(5, 5)], [10, 10, 10])
    assert call_weigh(FairFed(beta=0), FairFed().init(3), away).coef.tolist() == [1 / 3] * 3
    coef, state, _ = call_weigh(FairFed(beta=9), FairFed().init(3), away)
    assert coef.tolist() == [0, 0.5, 0.5]
    assert (state["weight"] >= 0).all()


def test_clients_that_come_later_begin_with_their_share():
    rule, state = FairFed(beta=0.5), FairFed().init(3)
    _, state, _ = call_weigh(rule, state, told([client(8, 4), client(5, 5)], [60, 40], 0, [0, 1]))
    np.testing.assert_array_equal(state["known"], [1, 1, 0])
    kept = state["weight"][0]
    coef, state, _ = call_weigh(rule, state, told([client(5, 5)] * 2, [60, 20], 1, [0, 2]))
    np.testing.assert_allclose(coef, np.array([kept, 0.25]) / (kept + 0.25))
    assert rule.join(state, 5)["known"].tolist() == [1, 1, 1, 0, 0]


def images(fed):
    """Small images of two classes, and two groups of people at all clients but the last."""
    rng, y = np.random.default_rng(5), fed.data.y % 2
    group = rng.integers(2, size=len(y))
    group[fed.split.train[-1]] = 0
    data = dataclasses.replace(fed.data, y=y, classes=("0", "1"), group=group)
    return dataclasses.replace(fed, data=dataclasses.replace(data, group_names=("a", "b")))


SOFTMAX = models.find_factory("softmax")


@pytest.mark.parametrize("participants", [None, 3])
@pytest.mark.parametrize(
    "make",
    [SOFTMAX, plain_loop.mlp, pytest.param(plain_loop.cnn, marks=pytest.mark.slow)],
    ids=["softmax", "mlp", "cnn"],
)
def test_the_model_is_that_of_the_papers_loop(make, participants, make_federation):
    """At one client the gap is undefined, since all are of one group."""
    if make is plain_loop.cnn:
        sizes = (15, 19, 16, 13, 18)
        fed = images(make_federation(sizes=sizes, tested=(2,) * 5))
    else:
        fed = people(lonely=(4,))
    plan = Plan(rounds=4, minibatch=5, lr=0.2, dtype="float64", participants=participants)
    batch, _ = played(["fairfed:beta=0.1", "fedavg"], fed, plan, make)
    loop = FairFedLoop(3, fed, plan, make, beta=0.1).run()
    assert 0 < loop.undefined < 4 * (participants or 5)
    assert apart(vector(batch, batch.progress.model[0]), loop.model) < 1e-9
    assert apart(batch.progress.model[1], batch.progress.model[0]) > 1e-4


def test_a_strategy_may_ask_for_counts_and_inner_products():
    seen = []

    class Both(strategies.FedAvg):
        name = "both"

        def needs(self):
            return dataclasses.replace(super().needs(), changes="gram", groups=True)

        def weigh(self, state, replies):
            seen.append((replies.gram.shape, replies.groups.shape, replies.groups.sum()))
            return super().weigh(state, replies)

    fed = people()
    fedmaba.compare([Both()], data=fed, model="softmax", rounds=1, seeds=1)
    assert seen[2:] == [((5, 5), (5, 2, 2, 2), fed.train.size.sum())]  # after made-up replies


@pytest.mark.parametrize(
    ("fed", "why"),
    [
        (lambda: "sample", "fairfed weighs clients by groups of people, but sample has no group"),
        (lambda: people(classes=3), "there must be two classes"),
        (lambda: people(groups=1), "the training examples are of one group"),
    ],
)
def test_it_is_refused_without_groups(fed, why, tmp_path):
    with pytest.raises(InputError, match=why):
        compare(["fedavg", "fairfed"], fed(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_group_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="group=2, but the data have 2 groups: give a number from"):
        compare(["fairfed:group=2"], people())
    with pytest.raises(InputError, match="counts sites do not send: simulate it"):
        FederationSettings(FairFed())
