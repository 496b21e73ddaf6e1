"""The deployed model that is one round's: `best:accuracy` and `best:fair`, on validation data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.experiment import checks, starting
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies import deployed
from plain_loop import PLAN, mlp, one
from run_folders import asked, begun, files, play

RULES = ("best:accuracy", "best:fair")
pytestmark = pytest.mark.usefixtures("few_threads")


def by_hand(rule, accuracy, variance):
    """The rule as it is written, over all evaluations at once."""
    if rule == "best:accuracy":
        return max(range(len(accuracy)), key=lambda i: (accuracy[i], -i))
    near = [i for i, a in enumerate(accuracy) if a >= max(accuracy) - 0.01 - 1e-9]
    return min(near, key=lambda i: (variance[i], -accuracy[i], i))


@pytest.mark.parametrize("rule", RULES)
def test_what_is_kept_on_the_way_is_enough_to_pick_at_any_time(rule):
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(300):
        many = int(rng.integers(1, 12))
        accuracy = np.round(0.5 + rng.integers(0, 30, many) / 1000, 3)
        variance = rng.integers(0, 6, many) / 100
        kept = np.zeros(0, np.int64)
        for now in range(many):
            some = np.append(kept, now)
            picked = some[deployed.pick_round(rule, accuracy[some], variance[some])]
            assert picked == by_hand(rule, accuracy[: now + 1], variance[: now + 1])
            kept = some[deployed.can_still_win(rule, accuracy[some], variance[some])]
            assert picked in kept
            seen = max(seen, len(kept))
    assert seen == 1 if rule == "best:accuracy" else seen > 2


def test_fairness_counts_within_one_point_of_accuracy_alone():
    accuracy, variance = np.array([0.70, 0.795, 0.80]), np.array([0.001, 0.01, 0.02])
    assert [deployed.pick_round(rule, accuracy, variance) for rule in RULES] == [2, 1]
    assert deployed.pick_round("best:fair", accuracy + np.array([0.09, 0, 0]), variance) == 0


@pytest.mark.parametrize("rule", RULES)
def test_the_picked_round_is_handed_out(rule, held_fed):
    """Its model bit for bit, and its scores on test data."""
    plan = replace(PLAN, rounds=9, eval_every=2, lr=0.5)
    runs = [
        Run(one(s), seed, held_fed, rule) for s in ("fedavg", "afl", "fedfv") for seed in (1, 2)
    ]
    batch = start(runs, plan, mlp)
    path, shots, moved = [], [], False
    for shot in simulate(batch):
        if shot.evaluations is None:
            continue
        path.append(batch.progress.model.clone())
        shots.append(shot.evaluations)
        for r in range(len(runs)):
            held = [e[r]["last_validation"].accuracy for e in shots]
            k = by_hand(rule, [np.nanmean(a) for a in held], [np.nanvar(a) for a in held])
            assert torch.equal(batch.progress.deployed[r], path[k][r])
            for part in ("", "_validation"):
                now, then = shots[-1][r]["deployed" + part], shots[k][r]["last" + part]
                np.testing.assert_allclose(now.accuracy, then.accuracy, rtol=1e-12)
            moved |= k < len(shots) - 1
    assert moved  # else the last model would pass, too
    assert len(path) == 5


def test_batched_equals_alone_and_beside_other_rules(held_fed):
    plan = replace(PLAN, rounds=6, eval_every=1, participants=3, lr=0.5)
    rules = ("poly:8", *RULES)
    together = start([Run(one(s), 3, held_fed, rules) for s in ("fedavg", "fedmaba")], plan, mlp)
    list(simulate(together))
    for d, (run, rule) in enumerate(together.handed_out):
        alone = start([Run(run.strategy, 3, held_fed, rule)], plan, mlp)
        list(simulate(alone))
        assert torch.equal(alone.progress.deployed[0], together.progress.deployed[d])


@pytest.mark.parametrize("after", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))])
def test_a_stopped_run_goes_on_bit_for_bit(after, tiny_npz, tmp_path):
    wanted = asked(tiny_npz, server__deploy="best:fair", train__lr=0.5, eval__every=1)
    play(begun(wanted, tmp_path / "whole"))
    play(begun(wanted, tmp_path / "parts"), stop_after=after)
    play(starting.resume(tmp_path / "parts"))
    whole, parts = files(tmp_path / "whole"), files(tmp_path / "parts")
    assert whole == parts
    assert any("deployed" in name for name in whole)


def test_a_checkpoint_without_the_candidates_is_refused(tiny_npz, tmp_path):
    wanted = asked(tiny_npz, server__deploy="best:fair")
    at = play(begun(wanted, tmp_path / "a"), stop_after=4).batch.progress
    arrays, meta = at.arrays(), {"round": 4, "chunk": 1, "diverged": at.diverged}
    assert at.misfit(arrays, meta, 6) == ""
    lost = {k: v for k, v in arrays.items() if k != "pick/0/model"}
    assert at.misfit(lost, meta, 6) == "array pick/0/model"
    narrow = arrays | {"pick/1/accuracy": arrays["pick/1/accuracy"][:0]}
    assert at.misfit(narrow, meta, 6) == "array pick/1/accuracy"


def test_without_validation_data_the_rule_is_refused(fed, held_fed):
    for rule in RULES:
        with pytest.raises(InputError, match="none are held back: add --validation 10%"):
            start([Run(one("fedavg"), 1, fed, rule)], PLAN, mlp)
        with pytest.raises(InputError, match="none are held back"):
            checks.build_checked({"strategies": ["fedavg"], "server": {"deploy": rule}})
        tree = {"strategies": ["fedavg"], "server": {"deploy": rule}, "data": {"validation": "5%"}}
        assert checks.build_checked(tree).server.deploy == rule
        with pytest.raises(InputError, match="which a server on Flower does not have"):
            FederationSettings(one("fedavg"), deploy=rule)
    with pytest.raises(InputError, match="best:accuracy or best:fair"):
        start([Run(one("fedavg"), 1, held_fed, "best:worst")], PLAN, mlp)
