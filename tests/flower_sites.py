"""Sites of a real federation with the data of a simulated one, for the tests of Flower."""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from fedmaba.data.datasets import Dataset
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask
from fedmaba.flower import FlowerStrategy, client_app, initial_arrays
from fedmaba.simulation import engine
from fedmaba.strategies import parse
from flower_grid import LocalGrid

CONFIG = {"minibatch": 4}


def local_data(fed, client: int) -> Dataset:
    """One client's own examples, training rows first."""
    train, test = fed.train.of(client), fed.test.of(client)
    rows = np.concatenate([train, test])
    data = fed.data
    return Dataset("own", data.x[rows], data.y[rows], len(train), data.classes)


def first(fed, model="mlp", seed=0) -> ArrayRecord:
    data = fed.data
    return initial_arrays(model, data.x.shape[1:], len(data.classes), seed)


def grid_of(fed, folder=None, spoil=None, model="mlp", **options) -> LocalGrid:
    """A site for each client; node ids say nothing about the order of sites.

    With a folder, each keeps what it keeps in one of its own in there.
    """
    nodes = {c: 1000 - 7 * c for c in range(fed.n_clients)}
    apps = {
        n: client_app(model, local_data(fed, c), site=f"site-{c}", **options)
        for c, n in nodes.items()
    }
    grid = LocalGrid(apps, spoil)
    if folder is not None:
        grid.config = {n: {"keep": str(folder / f"kept-{c}")} for c, n in nodes.items()}
    return grid


def served(strategy, fed, grid, rounds=3, config=CONFIG, **options):
    """A run of all sites through fedmaba's own loop: its strategy and result."""
    options = {"min_available_nodes": 5, "evaluate": False, **options}
    flower = FlowerStrategy(strategy, **options)
    weights, train = first(fed, seed=options.get("seed", 0)), ConfigRecord(config)
    return flower, flower.start(grid, weights, rounds, timeout=5, train_config=train)


def simulated(strategy, fed, rounds=3, seed=0, **plan):
    """The simulator's batch after some rounds, and its last snapshot."""
    if isinstance(strategy, str):
        (strategy,) = parse(strategy)
    asked = engine.Plan(rounds, minibatch=4, eval_every=rounds, **plan)
    batch = engine.start([engine.Run(strategy, seed, fed)], asked, "mlp")
    *_, last = engine.simulate(batch)
    assert not any(batch.progress.diverged)
    return batch, last


def named(batch, flat) -> dict[str, np.ndarray]:
    """A flat vector of a batch by names of weights."""
    return {name: w.numpy() for name, w in batch.rows.layout.unpack(flat).items()}


def model_of(batch) -> dict[str, np.ndarray]:
    return named(batch, batch.progress.model[0])


def assert_same(arrays, expected, tol=1e-5):
    assert set(arrays) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(arrays[name].numpy()), value, rtol=0, atol=tol)


def kept_by(flower, folder, c: int, weights) -> dict[str, dict[str, np.ndarray]]:
    """What a site keeps after its last reply that counted, from the first model's weights on."""
    server, local = flower.server, flower.settings.strategy.local()
    counted = server.last_counted.get(f"site-{c}", 0)
    told = KeptVectorsTask(server.federation, server.round + 1, counted)
    zeros = {name: np.zeros_like(w) for name, w in weights.items()}
    begin = dict.fromkeys(local.keep, zeros) | dict.fromkeys(local.models_kept, weights)
    if local.second is not None and local.second.kind == "between":
        begin["second"] = {name: np.ones_like(w) for name, w in weights.items()}
    return KeptVectors(folder / f"kept-{c}", f"site-{c}").load(told, begin)


def assert_kept(flower, folder, batch, weights, sites=range(5)):
    """Sites keep what the simulator's clients keep."""
    columns = batch.progress.memory.columns[0]
    for c in sites if columns else ():
        mine = kept_by(flower, folder, c, weights)
        assert set(mine) == set(columns)
        for name, vector in mine.items():
            for weight, value in named(batch, columns[name][c]).items():
                np.testing.assert_allclose(vector[weight], value, rtol=0, atol=1e-5)
