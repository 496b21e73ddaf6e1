"""However a run is played, its numbers are the same: resumed, replayed, on two ranks.

One case for each feature of a round that keeps something from round to round.
"""

from dataclasses import replace

import numpy as np
import pytest

from combine_rules import Combining
from fedmaba.simulation.engine import Optimiser, Run, simulate, start
from fedmaba.turnout.plan import Turnout
from plain_loop import FEW, PLAN, SPECS, Drifting, mlp, one
from plain_norms import norm_net
from recordings import Parts, Replays
from thread_ranks import on_two_ranks
from toys import Featured, Heads, Minimising, Pulled, norm_free

pytestmark = pytest.mark.usefixtures("few_threads")
SOME = replace(PLAN, participants=3, rounds=6)
ADAM = Optimiser(optimiser="adam", weight_decay=0.1, clip=0.5)
SCHEDULES = {"schedule": "warmup:3", "step_schedule": "warmup:2,cosine", "lr_decay": 0.999}
KEEPING = ("scaffold", "scaffold:option=I", "feddyn", "fednova", "ditto:server=fedmaba", "local")
NORMS = replace(SOME, minibatch=3)
# strategies, a plan and a model
CASES = {
    "momentum": (FEW, replace(SOME, server_momentum=0.5, chunk=3), mlp),
    "adam": (
        ["fedprox:mu=1", Drifting(late=True)],
        replace(SOME, optimiser=ADAM, **SCHEDULES),
        mlp,
    ),
    "server": (["fedadam", "fedyogi:tau=0.1", "fedavgm"], SOME, mlp),
    "augmented": (["fedavg", "fedprox"], replace(SOME, augment="flip,crop:3"), mlp),
    "objectives": ([Minimising(), Minimising("tilted", 0.1)], SOME, mlp),
    "trials": (["fedmdfg", "fedavg", "fedmdfg:theta=3,s=1", "ditto:server=fedmdfg"], SOME, mlp),
    "pulls": ([Pulled(late=late, keeps=late) for late in (False, True)], SOME, mlp),
    "vectors": ([Drifting(), Drifting(late=True)], SOME, mlp),
    "papers": ([*KEEPING, "eagle", "mifa", "fedlf:tau=2"], SOME, mlp),
    "memories": (
        ["mifa:memory=gradient", "fedvarp", "fedexp", "maxfl", "feddgga"],
        replace(SOME, chunk=2),
        mlp,
    ),
    "second": (
        [
            *("pfedme:lam=3,steps=2", "perfedavg:alpha=0.1", "apfl", "apfl:alpha=0.8"),
            *("fedala:eta=9", "fedavg"),
        ],
        replace(SOME, chunk=2),
        mlp,
    ),
    "guided": (
        ["fedebaplus:a=0.4,theta=5", "gifair:on=loss", "scaffpd:sigma=0.3", "fedavg", "fedfv"],
        replace(SOME, chunk=2),
        mlp,
    ),
    "guided norms": (
        ["scaffpd", "fedebaplus:theta=0"],
        replace(NORMS, batchnorm="local"),
        norm_net,
    ),
    "heads": ([Heads(), Heads(late=True, mu=0.7, lean=-0.3)], replace(SOME, chunk=2), mlp),
    "first layers": ([Heads("0.*"), Heads("0.*", late=True)], replace(SOME, chunk=2), norm_free),
    "combined": (
        [Combining(), Combining(late=True), Combining(late=True, keeps=True)],
        replace(SOME, chunk=2, server_momentum=0.3),
        mlp,
    ),
    "in turn": (["fedper", "fedrep:epochs=1", "fedrep:epochs=2", "fedbabu"], SOME, mlp),
    "seen": (["fedavg", "fedntd", "moon", "moon:mu=0.3"], replace(SOME, chunk=2), mlp),
    "features": (["fedavg", "moon:on=features", Minimising("near")], SOME, Featured),
    "robust": (["median", "trimmed:share=0.3", "krum", "multikrum", "fedavg"], SOME, mlp),
    "fair behind robust": (
        [
            *("median:weights=fedmaba", "rfa:weights=afl", "nnm:rule=trimmed:weights=fedmaba"),
            *("cclip:around=last,beta=0.5", "ditto:server=rfa:weights=fedmaba"),
        ],
        SOME,
        mlp,
    ),
    "local norms": (["fedavg", "fedmaba"], replace(NORMS, batchnorm="local"), norm_net),
    "mean norms": (["fedavg", "fedmaba"], replace(NORMS, batchnorm="average"), norm_net),
}
TURNOUT = {"available": "p=0.6..0.9", "dropout": "20%", "speed": "lognormal:1", "deadline": "0.3s"}
for words in ("uniform", "power-of-choice:d=4", "ucb", "fair"):
    unseen = {"unseen": "1"} if words == "uniform" else {}
    turnout = Turnout.parse({**TURNOUT, **unseen, "select": words})
    CASES[f"turnout {words}"] = (["fedavg", "scaffold"], replace(SOME, turnout=turnout), mlp)
CASES["all"] = (  # a step that is tried goes with no momentum
    [spec for spec in SPECS[::3] if not one(spec).needs().trials],
    replace(SOME, server_momentum=0.5, chunk=3),
    mlp,
)
SLOW = ("all", "mean norms", "first layers")
# no step of theirs is plain, or each client's loss is told: such parts are not recorded
NO_PARTS = ("adam", "vectors", "guided norms", "turnout power-of-choice:d=4", "turnout ucb")


def each(*left_out):
    slow = pytest.mark.slow
    names = [name for name in CASES if name not in left_out]
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=slow) if name in SLOW else name for name in names]
    )


def begun(name, fed, dtype="float64"):
    """A batch of a case before its first round."""
    strategies, plan, make = CASES[name]
    runs = [Run(one(s) if isinstance(s, str) else s, 3, fed) for s in strategies]
    return start(runs, replace(plan, dtype=dtype), make)


def ended(batch):
    """What there is to save of a batch at its end."""
    list(simulate(batch))
    assert not any(batch.progress.diverged)
    return {key: value.copy() for key, value in batch.progress.arrays().items()}


def assert_close(found, wanted):
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-12, err_msg=key)


@each()
def test_a_run_that_goes_on_after_a_checkpoint_ends_with_the_same_bits(name, held_fed):
    whole, half, again = (begun(name, held_fed, "float32") for _ in range(3))
    wanted = ended(whole)
    for shot in simulate(half):
        if shot.round == 2:
            break
    at = half.progress
    saved = {key: value.copy() for key, value in at.arrays().items()}
    meta = {"round": at.round, "chunk": at.chunk, "diverged": at.diverged}
    for key in (key for key in saved if key.startswith(("vector/", "mean/"))):
        lacking = {other: value for other, value in saved.items() if other != key}
        assert again.progress.misfit(lacking, meta, SOME.rounds) == f"array {key}"
    assert again.progress.misfit(saved, meta, SOME.rounds) == ""
    again.progress.restore(saved, meta)
    for key, value in ended(again).items():
        np.testing.assert_array_equal(value, wanted[key], key)


@each("local norms", "mean norms", "first layers", "features")  # their rows go one after another
@pytest.mark.parametrize("kind", [Replays, pytest.param(Parts, marks=pytest.mark.slow)])
def test_rounds_that_are_replayed_give_the_same(name, kind, fed):
    """A number that changes from round to round must not stay in a recording."""
    batch = begun(name, fed)
    batch.graphs = kind()
    found = ended(batch)
    assert (batch.graphs.count > 0) == (kind is Replays or name not in NO_PARTS)
    assert_close(found, ended(begun(name, fed)))


TWO_RANKS = [
    "guided",
    "vectors",
    "memories",
    "second",
    "heads",
    "combined",
    "in turn",
    "seen",
    "robust",
]
TWO_RANKS += [name for name in CASES if name.startswith("turnout")]


@pytest.mark.parametrize("name", [*TWO_RANKS, pytest.param("first layers", marks=pytest.mark.slow)])
def test_two_ranks_give_the_same(name, fed):
    wanted = ended(begun(name, fed))
    for batch in on_two_ranks(lambda: begun(name, fed)):
        assert_close(batch.progress.arrays(), wanted)
