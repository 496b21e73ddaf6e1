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


def test_parity_looks_at_all_examples():
    counts = np.array([[[3, 1], [2, 4]], [[5, 0], [4, 1]]])  # selected 5 of 10, and 1 of 10
    assert float(FairFed(metric="spd").gap(counts)) == pytest.approx(0.4)
    assert float(FairFed(metric="eod").gap(counts)) == pytest.approx(4 / 6 - 1 / 5)
    assert float(FairFed(metric="spd", group=1).gap(counts)) == pytest.approx(-0.4)
    three = np.concatenate([counts, counts[:1]])  # the others together: 6 of 20
    assert float(FairFed(metric="spd").gap(three)) == pytest.approx(0.5 - 0.3)


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
