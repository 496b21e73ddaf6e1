"""BatchNorm, frozen weights and features on Flower: the simulator's model; what sites send."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord
from torch import nn

from fedmaba.deploy import reply_fetching
from fedmaba.deploy.client import LocalClient
from fedmaba.deploy.kept_vectors import KeptVectors
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, initial_arrays
from fedmaba.simulation import engine
from fedmaba.simulation.parts.own_layers import OWN
from flower_grid import LocalGrid
from flower_sites import assert_same, local_data
from plain_loop import Drifting, one
from plain_norms import norm_net
from test_frozen_weights import body
from toys import Featured

ROUNDS = 3


def image_net(shape, classes):
    """BatchNorm over images alone: over vectors of two examples it makes much of small errors."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, classes)
    )


SHAPE, CLASSES = (1, 8, 8), 4


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)


def federated(fed, folder, strategy, choice, model=image_net, **options):
    """A federation of sites that keep what they keep in folders of their own."""
    apps, config = {}, {}
    for c in range(fed.n_clients):
        app = client_app(model, local_data(fed, c), site=f"site-{c}", batchnorm=choice)
        apps[1000 - 7 * c] = app
        config[1000 - 7 * c] = {"keep": str(folder / f"kept-{c}")}
    grid = LocalGrid(apps)
    grid.config = config
    served = FlowerStrategy(strategy, min_available_nodes=5, batchnorm=choice, **options)
    first = initial_arrays(model, SHAPE, CLASSES, batchnorm=choice)
    task = ConfigRecord({"minibatch": 3})
    return grid, served, served.start(grid, first, ROUNDS, 5, train_config=task)


def simulated(fed, strategy, choice, model=image_net):
    plan = engine.Plan(ROUNDS, minibatch=3, eval_every=ROUNDS, batchnorm=choice)
    batch = engine.start([engine.Run(strategy, 0, fed)], plan, model)
    *_, last = engine.simulate(batch)
    named = batch.rows.layout.unpack(batch.progress.model[0])
    sent = batch.rows.layout.sent_names()
    return batch, last, {name: named[name].numpy() for name in sent}


@pytest.mark.parametrize("choice", ["average", "local", "frozen", "group"])
def test_the_model_is_the_simulators(choice, fed, tmp_path):
    kept = [Drifting(late=True)] if choice == "local" else []
    for strategy in [one("fedavg"), one("fedmaba"), *kept]:
        _, _, model = simulated(fed, strategy, choice)
        _, _, result = federated(fed, tmp_path / strategy.name, strategy, choice, evaluate=False)
        assert_same(result.arrays, model)
        norms = [name for name in model if name.startswith("1.")]
        assert len(norms) == {"average": 4, "local": 0, "frozen": 0, "group": 2}[choice]


def test_what_a_site_keeps_stays_there_and_serves_it(fed, tmp_path):
    strategy = one("fedmaba")
    batch, last, _ = simulated(fed, strategy, "local")
    grid, served, _ = federated(fed, tmp_path, strategy, "local")
    for message in grid.sent:
        if "arrays" in message.content:
            assert not any(n.startswith("1.") for n in message.content["arrays"])
    scores = last.evaluations[0]["deployed"].accuracy
    told = served.server.kept_task("site-2")
    site = LocalClient(
        image_net, local_data(fed, 2), kept=KeptVectors(tmp_path / "kept-2", "site-2"),
        batchnorm="local",
    )  # fmt: skip
    mine = site.evaluate({n: a.numpy() for n, a in served.deployed.items()}, told)
    np.testing.assert_allclose(mine["accuracy"], scores[2], atol=1e-6)
    (file,) = (tmp_path / "kept-2").glob("*.vectors")
    assert file.stat().st_mode & 0o077 == 0
    assert batch.progress.memory.columns[0][OWN].abs().sum() > 0


def test_frozen_weights_are_not_sent(fed, tmp_path):
    _, _, model = simulated(fed, one("fedavg"), "refuse", body)
    grid, _, result = federated(fed, tmp_path, one("fedavg"), "refuse", body, evaluate=False)
    assert_same(result.arrays, model)
    trained = {"6.weight", "6.bias", "10.weight", "10.bias"}
    sent = [m.content["arrays"] for m in grid.sent if "arrays" in m.content]
    assert sent
    assert all(set(arrays) == trained for arrays in sent)


def test_features_are_contrasted_at_sites(fed, tmp_path):
    strategy = one("moon:on=features")
    _, _, model = simulated(fed, strategy, "refuse", Featured)
    _, _, result = federated(fed, tmp_path, strategy, "refuse", Featured, evaluate=False)
    assert_same(result.arrays, model)


def test_a_site_refuses_what_no_server_sends(fed):
    site = LocalClient(body, local_data(fed, 0))
    whole = {n: v.numpy() for n, v in body(SHAPE, CLASSES).state_dict().items()}
    with pytest.raises(InputError, match=r"has 0\.bias, 0\.weight.*which no server sends"):
        site.evaluate(whole)


def test_sites_that_keep_layers_need_a_folder_and_a_server_that_knows(fed):
    site = LocalClient(norm_net, local_data(fed, 0), batchnorm="local")
    first = {n: a.numpy() for n, a in
             initial_arrays(norm_net, SHAPE, CLASSES, batchnorm="local").items()}  # fmt: skip
    with pytest.raises(InputError, match=r"FlowerStrategy\(batchnorm='local'\)"):
        site.train(first, {"lr": 0.1, "minibatch": 3})
    told = {"federation": "0" * 32, "server-round": 1, "kept-round": 0}
    with pytest.raises(InputError, match="no folder for them"):
        site.train(first, {"lr": 0.1, "minibatch": 3, **told})
    with pytest.raises(InputError, match="a single one"):
        site.train(first, {"lr": 0.1, "minibatch": 4, **told})


def test_a_choice_that_is_none_is_one_line():
    for call in (
        lambda: client_app("mlp", None, batchnorm="mean"),
        lambda: FlowerStrategy("fedavg", batchnorm="mean"),
        lambda: initial_arrays("mlp", SHAPE, CLASSES, batchnorm="mean"),
    ):
        with pytest.raises(InputError, match="batchnorm='mean': say group, local, average"):
            call()
