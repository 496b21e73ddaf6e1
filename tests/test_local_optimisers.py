"""The optimisers and step sizes of clients are those of torch.optim, for every kind of client."""

from dataclasses import replace

import pytest
import torch

from fedmaba.errors import InputError
from fedmaba.rows.base import Rows
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.engine import Optimiser, Run, start
from fedmaba.simulation.local_training import train_chunk
from fedmaba.simulation.optimiser import Schedule, parse_schedule
from fedmaba.simulation.work import chunk_of, draw
from plain_loop import FEW, PLAN, Drifting, Plain, apart, mlp, one, played, vector
from recordings import Replays

pytestmark = pytest.mark.usefixtures("few_threads")
OPTIMISERS = {
    "nesterov": Optimiser(0.7, 0.05, "nesterov"),
    "adam": Optimiser(optimiser="adam", weight_decay=0.03, beta1=0.8, beta2=0.97, epsilon=1e-3),
    "adamw": Optimiser(optimiser="adamw", weight_decay=0.1),
    "clip": Optimiser(clip=0.4),
    "clip and momentum": Optimiser(0.5, 0.05, clip=0.3),
    "clip and adam": Optimiser(optimiser="adam", weight_decay=0.1, clip=0.5),
}
SCHEDULES = {
    "cosine": {"schedule": "cosine", "step_schedule": "cosine"},
    "exponential": {"schedule": "exponential:0.5", "step_schedule": "exponential:0.7"},
    "warm-up": {"schedule": "warmup:3", "step_schedule": "warmup:2,cosine"},
    "both": {"step_schedule": "warmup:2,exponential:0.8"},
}
CASES = {name: {"optimiser": how, "lr": 0.05} for name, how in OPTIMISERS.items()}
CASES |= SCHEDULES
CASES["all"] = {"optimiser": OPTIMISERS["clip and adam"], **SCHEDULES["warm-up"], "lr": 0.05}
MIX = ["fedavg", "fedprox:mu=1", "propfair:M=1.5,epsilon=0.3", "fedsgd", Drifting(late=True)]


def each(*quick):
    """All cases; those that are not named are slow ones."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in CASES]


def runs(fed, listed=MIX):
    return [Run(one(s) if isinstance(s, str) else s, 3, fed) for s in listed]


def plan_of(name, **more):
    usual = {"lr_decay": 0.999} if "schedule" in CASES[name] else {}
    return replace(PLAN, **{"rounds": 2, "epochs": 2, **usual, **CASES[name], **more})


@pytest.mark.parametrize("name", each("nesterov", "clip and momentum", "all", "exponential"))
def test_clients_of_unequal_size_move_as_by_torch_optim(name, fed):
    """With FedProx's pull, PropFair's loss, kept vectors and full batches, side by side."""
    plan = plan_of(name)
    mixed = runs(fed)
    batch, _ = played(mixed, fed, plan, mlp)
    usual, _ = played(mixed[:1], fed, replace(PLAN, rounds=2, epochs=2, lr=plan.lr), mlp)
    assert apart(batch.progress.model[0], usual.progress.model[0]) > 1e-3  # the option does matter
    for r, run in enumerate(mixed):
        want = Plain(run.strategy, 3, fed, plan, mlp).run()
        assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9, run.strategy


def test_work_with_another_optimiser_is_another_recording(fed):
    """What an optimiser, a schedule of steps and an augmentation are made of is in the key."""
    batch = start(runs(fed, FEW[:1]), PLAN, mlp)
    job = chunk_of(
        batch.trainer, work := draw(batch, [0], 0), work.chunks[0], batch.progress.model
    ).job
    graphs, plain = Replays(), GraphCache(torch.device("cpu"), recordable=False)
    others = [{"optimiser": OPTIMISERS[name]} for name in ("nesterov", "adam", "clip and adam")]
    others += [{"schedule": parse_schedule(w)} for w in ("constant", "cosine", "warmup:2")]
    others += [{"augment": parse_augment(w)} for w in ("flip", "flip,crop:2")]
    seen = []
    with torch.no_grad():
        for change in (*others, *others):
            given = (batch.rows, batch.pool, batch.progress.model, replace(job, **change))
            got, want = (train_chunk(*given, cache)[0].clone() for cache in (graphs, plain))
            assert torch.equal(got, want), change
            seen.append(want)
    assert graphs.count > len(others)  # schedules are numbers: they share one
    assert len({tuple(w[0].tolist()) for w in seen}) == len(others)


def test_plain_sgd_still_adds_its_gradient_at_once(fed, monkeypatch):
    """The way that costs least stays the usual one, also under a schedule over rounds."""
    seen = []
    run_steps = Rows.run_steps
    monkeypatch.setattr(Rows, "run_steps", lambda *args: (seen.append(1), run_steps(*args))[1])
    played(["fedavg"], fed, replace(PLAN, lr_decay=0.999, schedule="warmup:2,cosine"), mlp)
    assert seen
    seen.clear()
    played(["fedavg"], fed, replace(PLAN, optimiser=Optimiser(clip=1.0)), mlp)
    assert not seen


@pytest.mark.parametrize(
    ("words", "factors"),
    [
        ("constant", [1, 1, 1, 1]),
        ("exponential:0.5", [1, 0.5, 0.25, 0.125]),
        ("cosine", [1, (1 + 2**-0.5) / 2, 0.5, (1 - 2**-0.5) / 2]),
        ("warmup:2", [0.5, 1, 1, 1]),
        ("warmup:4", [0.25, 0.5, 0.75, 1]),
        ("warmup:8", [1 / 8, 2 / 8, 3 / 8, 4 / 8]),  # a client with few steps never gets there
        ("warmup:2,cosine", [0.5, 1, 1, 0.5]),
    ],
)
def test_a_schedule_by_its_factors(words, factors):
    assert [parse_schedule(words).factor(k, 4) for k in range(4)] == pytest.approx(factors)


@pytest.mark.parametrize(
    "words",
    ["", "linear", "cosine:3", "exponential", "exponential:0", "exponential:1.1", "exponential:x",
     "exponential:nan", "warmup", "warmup:0", "warmup:-1", "warmup:1.5", "cosine,warmup:3",
     "warmup:3,", "warmup:3,cosine,cosine", "constant:1", "warmup:99999999999999", "warmup:²"],
)  # fmt: skip
def test_words_that_are_no_schedule_are_one_line(words):
    with pytest.raises(InputError, match="say constant, exponential") as error:
        parse_schedule(words)
    assert "\n" not in str(error.value)
    assert Schedule().factor(3, 9) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimiser": "adagrad"}, "unknown optimiser 'adagrad'"),
        ({"optimiser": "nesterov"}, "optimiser=nesterov: its momentum is 0: set one"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum=0.9: adam has none"),
        ({"beta1": 0.8}, "beta1=0.8: sgd has none: leave it out, or use adam"),
        ({"clip": 0.0}, "clip=0.0: it must be above 0"),
        ({"clip": float("nan")}, "clip=nan"),
        ({"clip": "much"}, "clip='much'"),
        ({"optimiser": "adam", "beta2": 1.0}, "beta2=1.0: it must be at least 0 and below 1"),
        ({"optimiser": "adam", "epsilon": 0.0}, "epsilon=0.0: it must be above 0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(settings, said):
    with pytest.raises(InputError) as error:
        Optimiser(**settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_schedule_and_a_decay_are_one_too_many(fed):
    with pytest.raises(InputError, match=r"lr_decay=0.9, but schedule=cosine .* leave one out"):
        start(runs(fed, FEW[:1]), replace(PLAN, schedule="cosine"), mlp)
