"""A rule of the server's own in place of a weighted sum: by hand, and wherever runs are played."""

from dataclasses import replace

import numpy as np
import pytest

from combine_rules import Combining, PlainMedian
from fedmaba import rng
from fedmaba.data.attack import Attack
from fedmaba.data.federation import attacked
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.simulation import vectors
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies.base import Combine, Needs
from fedmaba.strategies.contract import check_strategy
from plain_loop import PLAN, apart, cnn, mlp, one, played, vector
from plain_norms import norm_net
from thread_ranks import on_two_ranks

pytestmark = pytest.mark.usefixtures("few_threads")
SOME = replace(PLAN, participants=4, rounds=6, server_momentum=0.3)
MEDIANS = [Combining(), Combining(late=True), Combining(late=True, keeps=True)]


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("plan", [PLAN, replace(SOME, chunk=2)], ids=["all", "cut"])
def test_the_median_of_changes_is_numpys(plan, make, fed, monkeypatch):
    monkeypatch.setattr(vectors, "PIECE", 200)
    runs = [Run(one("fedavg"), 3, fed), *(Run(s, 3, fed) for s in MEDIANS)]
    batch, shots = played(runs, fed, plan, make)
    for r, strategy in enumerate(MEDIANS, start=1):
        plain = PlainMedian(strategy, 3, fed, plan, make).run()
        assert apart(vector(batch, batch.progress.model[r]), plain.path[-1]) < 1e-9
        for shot, told in zip(shots, plain.told, strict=True):
            np.testing.assert_allclose(shot.rounds[r].weight, told.weight, rtol=1e-8)
            assert shot.rounds[r].info["left_out"] == 0


def test_a_rule_gets_the_weights_and_statistics_keep_theirs(fed):
    plan = replace(PLAN, batchnorm="average", minibatch=3)
    runs = [Run(one("fedavg"), 3, fed), Run(Combining("weighted"), 3, fed)]
    batch, _ = played([*runs, Run(Combining(), 3, fed)], fed, plan, norm_net)
    sums, same, median = batch.progress.model
    assert apart(same, sums) < 1e-12
    assert apart(median, sums) > 1e-3
    first = replace(plan, rounds=1)
    batch, _ = played([*runs[:1], Run(Combining(), 3, fed)], fed, first, norm_net)
    statistics = slice(batch.rows.layout.compared, None)
    sums, median = batch.progress.model[:, statistics]
    assert apart(median, sums) < 1e-12


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("strategy", MEDIANS)
def test_who_sends_no_finite_change_counts_as_one_who_did_not_answer(
    strategy, ranks, fed, monkeypatch
):
    hostile = attacked({3: fed}, Attack(update=np.inf), 0.4)[3]
    liars = np.flatnonzero(hostile.hostile.update_factors(np.arange(5)) != 1)
    assert len(liars) == 2
    plan = replace(PLAN, chunk=2)
    with monkeypatch.context() as patch:
        true = rng.sample_clients
        patch.setattr(rng, "sample_clients", lambda *a: np.setdiff1d(true(*a), liars))
        plain = PlainMedian(strategy, 3, fed, plan, mlp).run()

    def begin():
        return start([Run(strategy, 3, hostile)], plan, mlp)

    if ranks == 2:
        batches, shots = on_two_ranks(begin), []
    else:
        batches = [begin()]
        shots = list(simulate(batches[0]))
    for batch in batches:
        assert batch.progress.diverged == [""]
        assert apart(vector(batch, batch.progress.model[0]), plain.path[-1]) < 1e-9
        for name in strategy.local().keep:
            kept = batch.progress.memory.columns[0][name]
            assert not kept[liars].any()
            assert kept[np.setdiff1d(np.arange(5), liars)].any(1).all()
    for shot, told in zip(shots, plain.told, strict=bool(shots)):
        np.testing.assert_array_equal(shot.rounds[0].client, told.client)
        np.testing.assert_allclose(shot.rounds[0].weight, told.weight, rtol=1e-8)
        assert shot.rounds[0].info["left_out"] == 2


def test_a_round_without_any_finite_change_ends_the_run(fed):
    hostile = attacked({3: fed}, Attack(update=np.inf), 0.8)[3]
    plan = replace(PLAN, participants=2, rounds=30)
    batch = start([Run(Combining(), 3, hostile)], plan, mlp)
    list(simulate(batch))
    assert "the model change of client" in batch.progress.diverged[0]
    assert batch.progress.model.isfinite().all()


@pytest.mark.parametrize(
    ("strategy", "line"),
    [
        (Combining("whole"), r"gave shape \(\) for 3 changes of 5 numbers: return one number"),
        (Combining("broken"), r"combine 'combine_rules:broken': .*combine_rules\.py, line"),
        (Combining("none"), "has no 'none': write package.module:function"),
        (Combining(late=True, past=True), "asks for keep_rounds, which weighs more than"),
    ],
)
def test_a_rule_that_cannot_be_used_is_one_line(strategy, line):
    with pytest.raises(InputError, match=line):
        check_strategy(strategy)


def test_what_combine_says_is_checked():
    with pytest.raises(InputError, match=r"Combine\(numbers\['n'\]='1'\): give a finite number"):
        Combine("a:b", {"n": "1"})
    with pytest.raises(InputError, match="'middle'"):
        Combine("middle").check(np.ones((2, 2)), np.ones(2), np)
    assert "combines changes by a rule" in refusal(Combining())
    assert Needs() == Combining().needs()
