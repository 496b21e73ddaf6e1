"""Layers that sites keep by the strategy's patterns: the simulator's numbers, and their file."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, initial_arrays
from fedmaba.simulation import engine
from fedmaba.simulation.parts.own_layers import OWN
from fedmaba.strategies import FedBABU, FedRep, LGFedAvg
from flower_sites import assert_same, grid_of, named
from plain_loop import mlp
from toys import Heads

SHAPE, CLASSES, ROUNDS, SEED = (1, 8, 8), 4, 4, 3


def federated(fed, folder, strategy, rounds=ROUNDS, own=None, **options):
    grid = grid_of(fed, folder, model=mlp)
    served = FlowerStrategy(strategy, min_available_nodes=5, seed=SEED, **options)
    own = strategy.local().own_layers if own is None else own
    first = initial_arrays(mlp, SHAPE, CLASSES, SEED, own_layers=own)
    task = ConfigRecord({"minibatch": 4})
    return grid, served, served.start(grid, first, rounds, 5, train_config=task)


@pytest.mark.parametrize(
    "strategy",
    [Heads("5.*"), Heads("1.*", late=True, lean=0.2), FedRep(epochs=1), LGFedAvg(), FedBABU()],
    ids=lambda strategy: strategy.label(),
)
def test_sites_train_what_the_simulator_trains_over_restarts(strategy, fed, tmp_path):
    plan = engine.Plan(ROUNDS, minibatch=4, eval_every=ROUNDS)
    batch = engine.start([engine.Run(strategy, SEED, fed)], plan, mlp)
    *_, last = engine.simulate(batch)
    layout, at = batch.rows.layout, batch.progress
    model = named(batch, at.model[0])
    federated(fed, tmp_path, strategy, 2, state=tmp_path / "state")
    grid, _, result = federated(fed, tmp_path, strategy, state=tmp_path / "state")
    assert_same(result.arrays, {n: model[n] for n in layout.sent_names()})
    for message in grid.sent:
        if "arrays" in message.content:
            assert not set(message.content["arrays"]) & set(layout.kept_names())
    scores = last.evaluations[0]["deployed"].accuracy
    (report,) = (m for m in result.evaluate_metrics_clientapp.values())
    np.testing.assert_allclose(report["accuracy"], 100 * scores.mean(), atol=1e-4)
    assert at.memory.columns[0][OWN].abs().sum() > 0


def test_a_first_model_with_what_sites_keep_is_one_line(fed, tmp_path):
    with pytest.raises(InputError, match=r"has 5\.bias, 5\.weight, which sites keep: make it by"):
        federated(fed, tmp_path, Heads(), own=())
