"""Clipping and noise of private runs, in the units of the weighted sum. Needs no accountant."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file, sweep
from fedmaba.privacy import accounting
from fedmaba.privacy.mechanism import Mechanism, Privacy, busiest, normals_of_sum
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.simulation.parts import privacy
from fedmaba.simulation.parts.privacy import mechanisms_of
from plain_loop import PLAN, apart, mlp, one, played

pytestmark = pytest.mark.usefixtures("few_threads", "counted")
ASKED = Privacy(epsilon=8.0, clip=0.05, loss=1.5)
SPECS = ["fedavg", "fedmaba", "fedmaba:loss_at=mean", "afl", "fedavgm"]


@pytest.fixture
def counted(monkeypatch):
    """In place of the accountant: a noise multiplier of 0.7, and epsilon is the rounds."""
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *_: 0.7)
    monkeypatch.setattr(accounting, "spent_epsilon", lambda _, rounds, delta: float(rounds))
    monkeypatch.setattr(accounting, "accountant_in_words", lambda: "by hand")


def made(noise=1.0, **more) -> Mechanism:
    told = {"asked": ASKED, "seed": 3, "weight": 0.25, "losses": True, "taken": np.arange(1, 4)}
    return Mechanism(noise=noise, **(told | more))


def noise_on_sum(mechanism, t, many):
    """(many,) The noise of round t, in the units of the weighted sum."""
    return mechanism.sum_noise * normals_of_sum(mechanism.seed, t, many)


# --- the numbers ---------------------------------------------------------------------------------


def test_the_noise_is_in_the_units_of_the_sum_and_of_the_losses():
    alone, both = made(losses=False), made(noise=2.0)
    assert alone.sensitivity == 2 * 0.05 * 0.25
    assert alone.sum_noise == alone.sensitivity
    assert alone.loss_noise == 0
    assert both.sum_noise == pytest.approx(2.0 / 0.9**0.5 * both.sensitivity)
    assert both.loss_noise == pytest.approx(2.0 / 0.1**0.5 * 1.5)
    # both releases together are as good as the one of multiplier 2
    assert sum(z**-2 for z in both.releases) == pytest.approx(2.0**-2)
    drawn = np.concatenate([noise_on_sum(both, t, 20_000) for t in range(3)])
    assert drawn.std() == pytest.approx(both.sum_noise, rel=0.02)
    assert abs(drawn.mean()) < 3 * both.sum_noise / len(drawn) ** 0.5


def test_noise_is_a_function_of_seed_and_round():
    once = noise_on_sum(made(), 2, 5)
    assert np.array_equal(once, noise_on_sum(made(), 2, 5))
    assert np.array_equal(once, noise_on_sum(made(), 2, 9)[:5])
    for other in (noise_on_sum(made(), 1, 5), noise_on_sum(made(seed=4), 2, 5)):
        assert not np.isin(once, other).any()


def test_losses_are_bounded_noised_and_bounded_again():
    told = np.array([0.3, np.nan, np.inf, -np.inf, 9.0, -1.0])
    calm = made(noise=1e-12).released_losses(0, told)
    assert np.allclose(calm, [0.3, 1.5, 1.5, 0.0, 1.5, 0.0])
    loud = made(noise=5.0).released_losses(0, np.full(1000, 0.7))
    assert 0 == loud.min() < loud.max() == 1.5
    inner = made(noise=0.02).released_losses(1, np.full(1000, 0.75)) - 0.75
    assert inner.std() == pytest.approx(made(noise=0.02).loss_noise, rel=0.1)


def test_a_change_is_shortened_to_the_bound_and_one_within_it_keeps_its_bits():
    model = torch.randn(2, 6)
    change = torch.tensor([[3.0, 4, 0, 0], [0.3, 0.4, 0, 0], [np.nan, 1, 1, 1], [1e30] * 4])
    run = np.array([0, 1, 0, 1])
    w = torch.cat([model[run, :4] + change, torch.full((4, 2), 7.0)], 1)
    before = w.clone()
    privacy.clip_changes(model, w, run, 2.0, 4)
    moved = w[:, :4] - model[run, :4]
    assert torch.equal(w[1], before[1])
    assert torch.allclose(moved[0], change[0] * 2 / 5, atol=1e-6)
    assert torch.equal(w[2, :4], model[0, :4])  # not finite: no change
    assert torch.allclose(moved[3], torch.ones(4), atol=1e-5)
    assert torch.equal(w[:, 4:], before[:, 4:])  # which is not sent


# --- rounds --------------------------------------------------------------------------------------


def test_the_servers_step_is_the_clipped_sum_and_the_noise(fed):
    """By hand: each client alone, clipped, weighed with what the strategy said, plus the noise."""
    plan = replace(PLAN, rounds=1, privacy=ASKED)
    for spec in ("fedavg", "fedmaba", "afl", "fedmaba:loss_at=end"):
        batch = start([Run(one(spec), 3, fed)], plan, mlp)
        begin = batch.progress.model[0].clone()
        (shot,) = simulate(batch)
        seen, found = shot.rounds[0], mechanisms_of(batch)[0]
        total = torch.zeros_like(begin)
        for client, weight in zip(seen.client, seen.weight, strict=True):
            total += weight * clipped_change(fed, client, begin)
        total += torch.from_numpy(noise_on_sum(found, 0, len(begin)))
        assert apart(batch.progress.model[0], begin + total) < 1e-9, spec
        if seen.loss is not None:
            assert seen.loss.min() >= 0
            assert seen.loss.max() <= ASKED.loss
        assert seen.info["dp_epsilon"] == 1.0
        assert seen.info["dp_delta"] == ASKED.delta


def clipped_change(fed, client, begin):
    """What one client would send: a run without privacy in which it has all the weight."""

    class Only(strategies.FedAvg):
        name = "only"

        def weigh(self, state, replies):
            return fedmaba.Decision((replies.client == client).astype(float), state)

    batch = start([Run(Only(), 3, fed)], replace(PLAN, rounds=1), mlp)
    list(simulate(batch))
    change = batch.progress.model[0] - begin
    assert change.norm() > ASKED.clip  # else nothing is tested
    return change * min(1.0, ASKED.clip / float(change.norm()))


def test_a_private_run_is_the_same_alone_in_a_batch_and_in_other_chunks(fed):
    plan = replace(PLAN, participants=3, privacy=ASKED)
    runs = [Run(one(spec), seed, fed) for spec in SPECS for seed in (3, 5)]
    batch, shots = played(runs, fed, plan, mlp)
    small, _ = played(runs, fed, replace(plan, chunk=2), mlp)
    for r in (0, 3, 5, 6, 9):
        alone, lone = played([runs[r]], fed, plan, mlp)
        for kind in ("model", "deployed"):
            mine = getattr(batch.progress, kind)[r]
            assert apart(getattr(alone.progress, kind)[0], mine) < 1e-9
            assert apart(getattr(small.progress, kind)[r], mine) < 1e-9
        for x, y in zip(lone, shots, strict=True):
            same = x.rounds[0].loss, y.rounds[r].loss
            assert same[0] is same[1] or np.allclose(*same, atol=1e-9)
            assert x.rounds[0].info == pytest.approx(y.rounds[r].info)


def test_a_strategy_is_told_how_much_noise_the_losses_have(fed):
    told = []

    class Told(strategies.FedMABA):
        name = "told"

        def weigh(self, state, replies):
            told.append(replies.loss_noise)
            return super().weigh(state, replies)

    last = []
    for plan in (PLAN, replace(PLAN, privacy=ASKED)):
        list(simulate(start([Run(Told(), 3, fed)], replace(plan, rounds=1), mlp)))
        last.append(told[-1])
    assert last == [0.0, pytest.approx(0.7 / 0.1**0.5 * ASKED.loss)]


def test_the_busiest_client_is_counted_from_the_draws_of_the_run(fed):
    plan = replace(PLAN, rounds=9, participants=2, privacy=ASKED)
    batch, shots = played([Run(one("fedmaba"), 3, fed)], fed, plan, mlp)
    count = np.zeros(5, int)
    for t, shot in enumerate(shots):
        count[shot.rounds[0].client] += 1
        assert shot.rounds[0].info["dp_epsilon"] == count.max() == mechanisms_of(batch)[0].taken[t]
    assert 9 * 2 / 5 <= count.max() < 9
    assert busiest(7, 4, 5, 5).tolist() == [1, 2, 3, 4]


def test_clients_that_lie_are_bounded_like_all_others(fed):
    from fedmaba.data.attack import parse_attack
    from fedmaba.data.federation import attacked

    hostile = attacked({3: fed}, parse_attack("loss=1e6+update=1e9"), 0.4)[3]
    plan = replace(PLAN, rounds=1, privacy=ASKED)
    batch = start([Run(one("fedavg"), 3, hostile), Run(one("fedmaba"), 3, hostile)], plan, mlp)
    begin = batch.progress.model.clone()
    (shot,) = simulate(batch)
    assert shot.rounds[1].loss.max() <= ASKED.loss
    for r in range(2):
        moved = batch.progress.model[r] - begin[r]
        moved -= torch.from_numpy(noise_on_sum(mechanisms_of(batch)[r], 0, moved.numel()))
        assert moved.norm() <= ASKED.clip + 1e-9


def test_a_client_whose_training_breaks_does_not_end_a_private_run(fed):
    """That a run ends would tell of that client."""
    plan = replace(PLAN, lr=1e200, privacy=ASKED)
    batch, shots = played([Run(one("fedmaba"), 3, fed)], fed, plan, mlp)
    assert len(shots) == plan.rounds
    assert not any(batch.progress.diverged)
    assert batch.progress.model.isfinite().all()
    plain = start([Run(one("fedmaba"), 3, fed)], replace(PLAN, lr=1e200), mlp)
    list(simulate(plain))
    assert plain.progress.diverged[0]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"strategies": ["fedavg", "qffl"]}, "dp: qffl is refused: it weighs by norms"),
        ({"deploy": "best:accuracy", "validation": "20%"}, "deploy='best:accuracy' picks a model"),
        ({"model": "resnet8", "batchnorm": "average"}, "batchnorm='average' sends statistics"),
    ],
)
def test_what_cannot_be_private_is_refused_before_anything_runs(change, why, tmp_path):
    asked = {"strategies": "fedavg", "clients": 4, "rounds": 1, "model": "softmax"} | change
    if asked["model"] == "resnet8":
        asked |= {"model": with_batchnorm}
    with pytest.raises(InputError, match=why):
        fedmaba.compare(dp="epsilon=8", out=tmp_path / "out", progress=False, **asked)
    assert not (tmp_path / "out").exists()


def with_batchnorm(shape, classes):
    size = int(np.prod(shape))
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, classes))


def test_several_promises_are_rows_of_one_table():
    swept = sweep.combinations(
        {"strategies": ["fedavg"], "dp": '["epsilon=1", "epsilon=8,clip=2"]'}
    )
    assert swept.keys == ("dp",)
    asked = [experiment_file.result_settings(config.build(tree)) for tree in swept.trees]
    named = [sweep.suffix(values) for values in sweep.differing(asked)]
    assert named == [", dp=epsilon=1", ", dp=epsilon=8+clip=2"]
    asked.append(experiment_file.result_settings(config.build({"strategies": ["fedavg"]})))
    assert len({sweep.suffix(values) for values in sweep.differing(asked)}) == 3


def test_a_finished_private_run_does_not_grow(tmp_path):
    """Its noise was made for its rounds."""
    asked = {"data": "heart", "model": "softmax", "seeds": 1, "eval_every": 1, "dp": "epsilon=8"}
    asked |= {"out": tmp_path / "out", "progress": False}
    fedmaba.compare("fedavg", rounds=1, **asked)
    with pytest.raises(InputError, match=r"the noise of dp was made for 1 rounds"):
        fedmaba.compare("fedavg", rounds=2, **asked)


def test_normals_drawn_ahead_are_those_of_their_seed_and_round():
    draws, device = privacy.NoiseDraws(), torch.device("cpu")
    for t in (0, 1, 2, 5, 1):  # as after a resume, rounds may jump
        for seed in (3, 4, 3):
            got = draws(seed, t, 6, t == 5, device)
            assert np.array_equal(got.numpy(), normals_of_sum(seed, t, 6))
        assert sorted(draws.ahead) == ([] if t == 5 else [3, 4])
