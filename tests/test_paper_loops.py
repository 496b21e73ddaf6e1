"""Algorithms whose clients keep something, beside loops from their papers.

The loops know nothing of `Strategy`. Rules of the server alone are in test_server_rules and
test_layer_rules, and play in test_plain_loop.
"""

from dataclasses import replace

import pytest
import torch

import paper_loops
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
    "mifa:memory=gradient": (paper_loops.MIFA, {}),
    "fedvarp": (paper_loops.FedVARP, {}),
    "fedexp": (paper_loops.FedExP, {}),
    "fedexp:epsilon=0": (paper_loops.FedExP, {"epsilon": 0.0}),
    "maxfl:eta=0.7": (paper_loops.MaxFL, {"eta": 0.7}),
    "feddgga": (paper_loops.FedDGGA, {}),
    "feddgga:d=0.9,rounds=5": (paper_loops.FedDGGA, {"d": 0.9, "rounds": 5}),
    "pfedme": (paper_loops.PFedMe, {}),
    "pfedme:lam=2,steps=1,lr=0.05,beta=0.5": (
        paper_loops.PFedMe,
        {"lam": 2.0, "steps": 1, "lr": 0.05, "beta": 0.5},
    ),
    "perfedavg:alpha=0.1": (paper_loops.PerFedAvg, {"alpha": 0.1}),
    "apfl:alpha=0.3": (paper_loops.APFL, {"alpha": 0.3}),
    "fedala": (paper_loops.FedALA, {}),
    "fedala:eta=40,steps=3": (paper_loops.FedALA, {"eta": 40.0, "steps": 3}),
    "fedeba:a=0.4": (paper_loops.FedEBAPlus, {"a": 0.4}),
    "fedebaplus:a=0.4,theta=0": (paper_loops.FedEBAPlus, {"a": 0.4, "theta": 0.0}),
    "fedebaplus:a=0.4,theta=5": (paper_loops.FedEBAPlus, {"a": 0.4, "theta": 5.0}),
    "gifair:on=loss": (paper_loops.GIFAIR, {}),
    "scaffpd": (paper_loops.ScaffPD, {}),
    "scaffpd:rho=0.5,sigma=0.3,theta=0.5": (
        paper_loops.ScaffPD,
        {"rho": 0.5, "sigma": 0.3, "theta": 0.5},
    ),
    "moon": (paper_loops.Moon, {}),
    "moon:mu=0.3,tau=1": (paper_loops.Moon, {"mu": 0.3, "tau": 1.0}),
}
PLANS = {
    "all": PLAN,
    "some": replace(PLAN, rounds=4, participants=3),
    "epochs": replace(PLAN, epochs=2, participants=4),
}
KEPT = ("c", "h", "personal", "change", "previous", "y", "second")
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
                    own = want.v if name == "second" else want.own
                    assert float((vector(batch, kept[i]) - own[i]).abs().max()) < 1e-9
            for name, mean in batch.progress.memory.means[r].items():
                own = (
                    sum(want.own) / fed.n_clients
                    if name in ("change", "y")
                    else getattr(want, name)
                )
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


@pytest.mark.parametrize("spec", ["scaffold", "feddyn", "local"])
def test_a_run_that_diverges_keeps_the_means_of_its_last_good_round(spec, fed):
    batch = start([Run(one(spec), 3, fed)], replace(PLAN, lr=1e200, rounds=3), mlp)
    list(simulate(batch))
    assert "diverged in round" in batch.progress.diverged[0]
    assert "the model of client" in batch.progress.diverged[0]
    memory = batch.progress.memory
    for kept in (*memory.means[0].values(), *memory.columns[0].values()):
        assert torch.isfinite(kept).all()
