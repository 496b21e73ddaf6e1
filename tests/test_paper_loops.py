"""Algorithms whose clients keep something, beside loops from their papers.

The loops know nothing of `Strategy`. Rules of the server alone are in test_server_rules and
test_layer_rules, and play in test_plain_loop.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import paper_loops
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.simulation.engine import Optimiser, Run, simulate, start
from plain_loop import MODELS, PLAN, apart, mlp, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
LOOPS = {
    "scaffold": (paper_loops.Scaffold, {}),
    "scaffold:eta_g=0.7": (paper_loops.Scaffold, {"eta_g": 0.7}),
    "scaffold:option=I": (paper_loops.Scaffold, {"option": "I"}),
    "feddyn": (paper_loops.FedDyn, {}),
    "feddyn:alpha=0.5": (paper_loops.FedDyn, {"alpha": 0.5}),
    "fednova": (paper_loops.FedNova, {}),
    "ditto:lam=0.5": (paper_loops.Ditto, {"lam": 0.5}),
    "ditto:lam=0": (paper_loops.Ditto, {"lam": 0.0}),
    "ditto:server=fedsgd": (paper_loops.Ditto, {"sgd": True}),
    "local": (paper_loops.Ditto, {"alone": True}),
    "eagle:lam=2": (paper_loops.Eagle, {"lam": 2.0}),
    "mifa": (paper_loops.MIFA, {"whole": True}),
    "moon": (paper_loops.Moon, {}),
    "moon:mu=0.3,tau=1": (paper_loops.Moon, {"mu": 0.3, "tau": 1.0}),
}
PLANS = {
    "all": PLAN,
    "some": replace(PLAN, rounds=4, participants=3),
    "epochs": replace(PLAN, epochs=2, participants=4),
}
KEPT = ("c", "h", "personal", "change", "previous")
CASES = [(m, p) for m in MODELS for p in PLANS]
QUICK = [("mlp", "some")]


@pytest.mark.parametrize(
    ("model", "participants"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_the_model_is_that_of_the_papers_loop(model, participants, fed):
    """Beside other strategies; of the MLP also in chunks of two and in float32."""
    plan, make = replace(PLANS[participants], eval_every=9), MODELS[model]
    specs = ["fedavg", *LOOPS, "fedprox", "fedfv"]
    more = [{}, {"chunk": 2}, {"dtype": "float32"}][: 3 if model == "mlp" else 1]
    played_so = [played(specs, fed, replace(plan, **how), make)[0] for how in more]
    for spec, (loop, options) in LOOPS.items():
        want, r = loop(3, fed, plan, make, **options).run(), specs.index(spec)
        for batch in played_so[2:]:
            assert apart(vector(batch, batch.progress.model[r]), want.model) < 1e-4, spec
        for batch in played_so[:2]:
            assert apart(vector(batch, batch.progress.model[r]), want.model) < 1e-9, spec
            for name, kept in batch.progress.memory.columns[r].items():
                assert name in KEPT
                for i in range(fed.n_clients):
                    assert float((vector(batch, kept[i]) - want.own[i]).abs().max()) < 1e-9
            for name, mean in batch.progress.memory.means[r].items():
                own = sum(want.own) / fed.n_clients if name == "change" else getattr(want, name)
                assert float((vector(batch, mean) - own).abs().max()) < 1e-9


def test_with_a_constant_step_size_mifa_remembers_what_its_paper_does(fed):
    """There a memory is the change over the step size."""
    plan = replace(PLANS["some"], lr_decay=1.0)
    batch, _ = played(["mifa"], fed, plan, mlp)
    want = paper_loops.MIFA(3, fed, plan, mlp).run()
    assert apart(vector(batch, batch.progress.model[0]), want.model) < 1e-9
    kept = batch.progress.memory.columns[0]["change"]
    for i in range(fed.n_clients):
        assert float((vector(batch, kept[i]) - plan.lr * want.own[i]).abs().max()) < 1e-9


@pytest.mark.parametrize("rho", [0.9])
def test_fednova_counts_steps_with_momentum_as_its_paper_does(rho, fed):
    plan = replace(PLAN, optimiser=Optimiser(rho), epochs=2, participants=4, lr=0.05)
    batch, _ = played(["fednova", "fedavg"], fed, plan, mlp)
    want = paper_loops.FedNova(3, fed, plan, mlp).run().model
    assert apart(vector(batch, batch.progress.model[0]), want) < 1e-9
    assert apart(batch.progress.model[1], batch.progress.model[0]) > 1e-4  # it makes a difference


def test_the_servers_mean_is_the_mean_of_what_clients_keep(fed):
    plan = replace(PLAN, rounds=6, participants=3)
    batch, _ = played(["scaffold", "scaffold:option=I", "feddyn"], fed, plan, mlp)
    at = batch.progress
    for r in range(3):
        ((name, mean),) = at.memory.means[r].items()
        assert float((at.memory.columns[r][name].mean(0) - mean).abs().max()) < 1e-12
        assert float(mean.abs().max()) > 1e-3


def equal_clients(fed):
    """A federation of three clients, each with a copy of the examples of the first."""
    x, y, mine = fed.data.x, fed.data.y, fed.split.train[0]
    rows = np.concatenate([mine, mine, mine, fed.split.test[0]])
    parts = np.split(np.arange(len(rows)), np.cumsum([len(mine)] * 3))
    data = replace(fed.data, x=x[rows], y=y[rows], n_train=len(rows))
    none = np.zeros(0, np.int64)
    return Federation(data, Split(tuple(parts[:3]), (none,) * 3, (parts[3], none, none)))


def test_clients_that_are_equal_make_scaffold_fedavg(fed):
    """Their control variates are equal, so that c - c_i is 0."""
    fed = equal_clients(fed)
    plan = replace(PLAN, minibatch=1000, rounds=5)
    specs = ["fedavg:weights=uniform", "scaffold", "scaffold:option=I"]
    batch, _ = played(specs, fed, plan, mlp)
    for r in (1, 2):
        assert apart(batch.progress.model[r], batch.progress.model[0]) < 1e-12


def test_in_its_first_round_scaffold_is_fedavg_and_then_no_longer(fed):
    specs = ["fedavg:weights=uniform", "scaffold"]
    for rounds, same in ((1, True), (2, False)):
        batch, _ = played(specs, fed, replace(PLAN, rounds=rounds), mlp)
        assert (apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12) == same


def test_equal_numbers_of_steps_make_fednova_fedavg(fed):
    batch, _ = played(["fedavg", "fednova"], fed, replace(PLAN, steps=4, rounds=5), mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12


@pytest.mark.slow
def test_feddyn_stops_where_the_gradients_of_all_clients_sum_to_zero(make_federation):
    """The claim of its paper: a fixed point is a stationary point of the mean loss, which is not so
    for FedAvg with several local steps."""
    fed = make_federation(sizes=(6, 6, 6), tested=(2, 2, 2))
    plan = replace(PLAN, minibatch=1000, steps=10, rounds=150, lr=0.2, lr_decay=1.0, eval_every=150)

    def softmax(shape, classes):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

    decay = replace(plan, optimiser=Optimiser(weight_decay=0.1))  # so that there is a minimum
    specs = ["fedavg:weights=uniform", "feddyn:alpha=0.5"]
    batch, _ = played(specs, fed, decay, softmax)
    loop = paper_loops.PaperLoop(3, fed, plan, softmax)
    size = []
    for r in range(2):
        w = vector(batch, batch.progress.model[r])
        parts = [loop.gradient(w, rows, None) + 0.1 * w for rows in fed.split.train]
        size.append(float(torch.stack(parts).mean(0).norm()))
    assert size[1] < 1e-4 < 1e-2 < size[0]


@pytest.mark.parametrize("spec", ["scaffold", "feddyn", "local"])
def test_a_run_that_diverges_keeps_the_means_of_its_last_good_round(spec, fed):
    batch = start([Run(one(spec), 3, fed)], replace(PLAN, lr=1e200, rounds=3), mlp)
    list(simulate(batch))
    assert "diverged in round" in batch.progress.diverged[0]
    assert "the model of client" in batch.progress.diverged[0]
    memory = batch.progress.memory
    for kept in (*memory.means[0].values(), *memory.columns[0].values()):
        assert torch.isfinite(kept).all()
