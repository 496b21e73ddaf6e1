"""FedDyn, FedNova, FedLF and MIFA on Flower: the simulator's model; what is kept stays at sites."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from fedmaba.deploy import reply_fetching
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy
from fedmaba.simulation import engine
from flower_sites import CONFIG, assert_same, first
from plain_loop import one
from test_flower_kept_vectors import grid_of


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)


def run(spec, fed, grid, rounds=4, **options):
    options = {"min_available_nodes": 5, "evaluate": False, **options}
    strategy = FlowerStrategy(one(spec), **options)
    config = ConfigRecord(CONFIG)
    weights = first(fed, seed=options.get("seed", 0))
    return strategy, strategy.start(grid, weights, rounds, 5, train_config=config)


def simulated(spec, fed, participants=None, rounds=4, seed=0):
    plan = engine.Plan(rounds, participants, minibatch=4, eval_every=rounds)
    batch = engine.start([engine.Run(one(spec), seed, fed)], plan, "mlp")
    list(engine.simulate(batch))
    return {n: w.numpy() for n, w in batch.rows.layout.unpack(batch.progress.model[0]).items()}


@pytest.mark.parametrize("spec", ["feddyn", "fednova", "fedlf:tau=2", "mifa"])
def test_the_model_is_the_simulators(spec, fed, tmp_path):
    options = {"fraction_train": 0.6, "seed": 3}
    _, result = run(spec, fed, grid_of(fed, tmp_path), **options)
    assert_same(result.arrays, simulated(spec, fed, participants=3, seed=3))


def test_a_server_that_died_goes_on_with_the_same_mean(fed, tmp_path):
    _, whole = run("feddyn", fed, grid_of(fed, tmp_path / "whole"))
    asked = []

    def die(message, answer):
        asked.append(message.metadata.message_type == "train")
        if sum(asked) == 8:
            raise SystemExit  # as if the server's process were gone
        return answer

    state = {"state": tmp_path / "state"}
    with pytest.raises(SystemExit):
        run("feddyn", fed, grid_of(fed, tmp_path / "part", die), **state)
    _, result = run("feddyn", fed, grid_of(fed, tmp_path / "part"), **state)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())


def test_a_site_that_reports_no_steps_is_left_out(fed, tmp_path):
    def silent(message, answer):
        if message.metadata.dst_node_id == 1000 and "metrics" in answer.content:
            answer.content["metrics"].pop("steps", None)
        return answer

    strategy, _ = run("fednova", fed, grid_of(fed, tmp_path, silent), 1)
    (line,) = strategy.reports[-1]["refused"]
    assert "reports no number 'steps', which this strategy needs" in line


def test_sites_that_join_bring_the_mean_down():
    server = FederationServer(FederationSettings(one("feddyn")), {"w": np.ones(2, np.float32)})
    server.join(["a", "b"])
    server.means = {"h": np.array([3.0, 6.0], np.float32)}
    server.join(["a", "b", "c"])
    np.testing.assert_allclose(server.means["h"], [2, 4])


def test_a_state_without_its_mean_is_refused(fed, tmp_path):
    from fedmaba.results import run_folder
    from fedmaba.results.history import History

    run("feddyn", fed, grid_of(fed, tmp_path), 1, state=tmp_path / "state")
    arrays, meta, _ = run_folder.load_checkpoint(tmp_path / "state")
    folder = run_folder.Folder(tmp_path / "state")
    folder.lines = meta["lines"]
    folder.save(1, {n: a for n, a in arrays.items() if n != "mean/h"}, meta, History([]))
    folder.close()
    with pytest.raises(InputError, match="it lacks 'mean/h'"):
        run("feddyn", fed, grid_of(fed, tmp_path), 2, state=tmp_path / "state")
