"""Objectives on Flower: a site minimises what its server names, and runs no code of its."""

import json

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from fedmaba.deploy import reply_fetching
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app
from fedmaba.rows import objectives
from fedmaba.simulation import engine
from fedmaba.strategies.base import Local, Objective
from flower_grid import LocalGrid
from flower_sites import CONFIG, assert_same, first, local_data
from toys import Minimising, distil


class Known(Minimising):
    """minimises what every site knows"""

    def local(self):
        return Local(objective=Objective("distil", {"lam": 0.7, "T": 2.0}, ("server",)))


def test_sites_that_see_the_servers_model_give_the_simulators(fed, monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)
    monkeypatch.setitem(objectives.OBJECTIVES, "distil", distil)
    apps = {
        9 - c: client_app("mlp", local_data(fed, c), site=f"site-{c}") for c in range(fed.n_clients)
    }
    strategy = FlowerStrategy(Known(), min_available_nodes=5, evaluate=False)
    result = strategy.start(LocalGrid(apps), first(fed), 3, 5, train_config=ConfigRecord(CONFIG))
    plan = engine.Plan(3, minibatch=4, eval_every=3)
    batch = engine.start([engine.Run(Known(), 0, fed)], plan, "mlp")
    list(engine.simulate(batch))
    named = batch.rows.layout.unpack(batch.progress.model[0])
    assert_same(result.arrays, {n: w.numpy() for n, w in named.items()})


def test_a_site_takes_no_code_from_a_server():
    with pytest.raises(InputError, match="sites take no code from a server: simulate it"):
        FederationSettings(Minimising())
    asked = json.dumps(Minimising().local().to_json())
    with pytest.raises(InputError, match="its objective is code of the server's own"):
        Local.from_task({"local": asked})
