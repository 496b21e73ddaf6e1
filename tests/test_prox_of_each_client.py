"""A pull towards the server's model that is a number of each client's own."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.rows.grouped import GroupedRows
from fedmaba.simulation import vectors
from fedmaba.simulation.engine import Optimiser, Run
from fedmaba.strategies import FedProx
from fedmaba.strategies.base import Local
from plain_loop import MODELS, PLAN, Plain, apart, mlp, one, played, vector
from toys import MU, Pulled

pytestmark = pytest.mark.usefixtures("few_threads")


PLANS = {
    "all": PLAN,
    "some": replace(PLAN, participants=3, rounds=5),
    "momentum": replace(PLAN, participants=4, optimiser=Optimiser(0.6), epochs=2),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("keeps", [False, True])
def test_each_client_is_pulled_as_in_a_plain_loop(keeps, plan, model, fed):
    plan, make = PLANS[plan], MODELS[model]
    mine = [Pulled(late=late, keeps=keeps) for late in (False, True)]
    want = Plain(mine[0], 3, fed, plan, make).run()
    for chunk in (None, 2, 1):
        runs = [Run(strategy, 3, fed) for strategy in (one("fedavg"), *mine, one("fedprox:mu=1"))]
        batch, _ = played(runs, fed, replace(plan, chunk=chunk), make)
        for r in (1, 2):
            assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9
    single, _ = played([Run(mine[0], 3, fed)], fed, replace(plan, dtype="float32"), make)
    assert apart(vector(single, single.progress.model[0]), want.path[-1]) < 1e-4


@pytest.mark.parametrize("size", [1, 2])
def test_steps_taken_in_groups_are_those_of_the_plain_loop(size, fed, kernels, monkeypatch):
    monkeypatch.setattr(vectors, "kernels", SimpleNamespace(can_run=lambda _: False))
    monkeypatch.setattr(GroupedRows, "group", lambda *_: size)
    for keeps in (False, True):
        strategy, plan = Pulled(keeps=keeps), replace(PLANS["some"], epochs=2)
        runs = [Run(strategy, 3, fed), Run(one("fedprox:mu=1"), 3, fed)]
        batch, _ = played(runs, fed, plan, mlp)
        want = Plain(strategy, 3, fed, plan, mlp).run()
        assert apart(vector(batch, batch.progress.model[0]), want.path[-1]) < 1e-9


def test_other_numbers_are_another_run(tmp_path, fed):
    how = {"data": fed, "model": mlp, "seeds": 1, "progress": False, "out": tmp_path / "run"}
    fedmaba.compare(Pulled(), rounds=2, **how)
    (run,) = fedmaba.compare(Pulled(), rounds=2, **how).runs
    assert run.label == "pulled"
    other = Pulled(mu=(0.0, 0.4, 1.0, 0.0, 2.0))
    assert other.label() == "pulled:mu=(0, 0.4, 1, 0, 2)"
    assert len(fedmaba.compare([Pulled(), other], rounds=2, **how).runs) == 2


@pytest.mark.parametrize("many", [4, 6])
def test_another_number_of_numbers_is_refused_before_the_run(many, fed, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(InputError) as told:
        fedmaba.compare(Pulled(mu=(0.1,) * many), data=fed, model=mlp, rounds=1, out=out)
    assert str(told.value) == (
        f"pulled: local(): Local(prox) has {many} numbers, but there are 5 clients: give one for "
        "each client of the whole federation, or one number for all"
    )
    assert not list(tmp_path.rglob("rounds.jsonl"))


def test_what_each_client_does_is_told_apart():
    local = Pulled(keeps=True).local()
    assert local.prox == MU
    assert local.of(1) == replace(local, prox=0.4)
    assert local.of(None).prox == 0
    assert FedProx(mu=0.3).local().of(7) == Local(prox=0.3)
    with pytest.raises(TypeError, match="each client has a prox of its own"):
        _ = local.pull


def test_a_list_comes_back_from_json_and_a_site_takes_one_number():
    local = Pulled().local()
    text = json.dumps(local.to_json())
    assert Local.from_json(json.loads(text)) == local
    with pytest.raises(InputError, match=r"prox for each of several clients.*on all hosts"):
        Local.from_task({"local": text})
    assert Local.from_task({"local": json.dumps(local.of(4).to_json())}).prox == 2.5


@pytest.mark.parametrize("form", [list, tuple, np.array, lambda v: np.array(v, np.float32)])
def test_numbers_come_in_any_form(form):
    found = Local(prox=form([0.5, 0, 2])).prox
    assert found == (0.5, 0.0, 2.0)
    assert {type(number) for number in found} == {float}
