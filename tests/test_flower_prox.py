"""A prox of each site's own on Flower: a site is sent its number, by its place among the sites."""

import json

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

import numpy as np
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp

from fedmaba.deploy import reply_fetching
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app
from fedmaba.simulation import engine
from flower_grid import LocalGrid
from flower_sites import CONFIG, assert_same, first, local_data
from toys import MU, Pulled


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)


def grid_of(fed, folder):
    """Sites whose nodes have numbers in another order than their names."""
    nodes = {c: 1000 - 7 * c for c in range(fed.n_clients)}
    grid = LocalGrid(
        {n: client_app("mlp", local_data(fed, c), site=f"site-{c}") for c, n in nodes.items()}
    )
    grid.config = {n: {"keep": str(folder / f"kept-{c}")} for c, n in nodes.items()}
    return grid


def run(fed, grid, strategy, rounds=3, **options):
    options = {"min_available_nodes": 5, "evaluate": False, **options}
    flower = FlowerStrategy(strategy, **options)
    config = ConfigRecord(CONFIG)
    return flower, flower.start(grid, first(fed), rounds, 5, train_config=config)


def simulated(fed, strategy, participants=None, rounds=3):
    plan = engine.Plan(rounds, participants, minibatch=4, eval_every=rounds)
    batch = engine.start([engine.Run(strategy, 0, fed)], plan, "mlp")
    list(engine.simulate(batch))
    return {n: w.numpy() for n, w in batch.rows.layout.unpack(batch.progress.model[0]).items()}


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_sites_give_the_simulators_model(some, keeps, fed, tmp_path):
    strategy, part = Pulled(keeps=keeps), {"fraction_train": 0.6} if some else {}
    _, result = run(fed, grid_of(fed, tmp_path), strategy, **part)
    assert_same(result.arrays, simulated(fed, strategy, 3 if some else None))


def test_a_server_that_starts_again_sends_the_same_numbers(fed, tmp_path):
    state = {"state": tmp_path / "state"}
    run(fed, grid_of(fed, tmp_path), Pulled(), rounds=2, **state)
    _, result = run(fed, grid_of(fed, tmp_path), Pulled(), rounds=3, **state)
    assert_same(result.arrays, simulated(fed, Pulled()))


def server(mu=MU, keeps=False):
    strategy = Pulled(mu=mu, keeps=keeps)
    return FederationServer(FederationSettings(strategy), {"w": np.zeros(3, np.float32)})


def test_each_site_is_told_its_own_number_only():
    told = server()
    told.join(["e", "b"])
    told.join(["a"])  # who comes later stands last

    def prox(task):
        return json.loads(task["local"])["prox"]

    assert [prox(told.task(site)) for site in ("b", "e", "a")] == list(MU[:3])
    assert prox(server(keeps=True).kept_task("unknown")) == 0  # which only evaluates


def test_more_sites_than_numbers_are_one_line():
    told = server(mu=(0.1, 0.2))
    told.join(["a", "b"])
    with pytest.raises(InputError, match=r"Local\(prox\) has 2 numbers, but there are 3 clients"):
        told.join(["c"])
    assert told.sites == ["a", "b"]


def test_a_node_without_a_name_has_no_number_and_is_not_let_in(fed, tmp_path):
    grid, app = grid_of(fed, tmp_path), ClientApp()
    app.train()(lambda message, context: None)
    grid.apps[7] = app
    flower, result = run(fed, grid, Pulled())
    told = [line for report in flower.reports for line in report["refused"]]
    line = "node 7 is not let in: its app gives no name, which says which prox is its own"
    assert set(told) == {line}
    assert_same(result.arrays, simulated(fed, Pulled()))
