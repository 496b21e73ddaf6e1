"""A rule of the server's own on Flower: NumPy at the server, and the simulator's model."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from combine_rules import Combining
from fedmaba.deploy import reply_fetching
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, SecureSum, client_app
from fedmaba.simulation import engine
from fedmaba.strategies import Trimmed, combine
from flower_grid import LocalGrid
from flower_sites import CONFIG, assert_same, first, local_data

ROUNDS = 3


@pytest.mark.parametrize(
    "strategy", [Combining(), Combining(late=True), Combining("weighted"), Trimmed(0.3)]
)
def test_the_server_combines_as_the_simulator_does(strategy, fed, monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(combine, "PIECE", 300)
    kinds, true = set(), combine.Combine.of

    def seen(rule, changes, weights, xp):
        kinds.add((type(changes), type(weights), xp))
        return true(rule, changes, weights, xp)

    batch = engine.start([engine.Run(strategy, 0, fed)], engine.Plan(ROUNDS, minibatch=4), "mlp")
    list(engine.simulate(batch))
    monkeypatch.setattr(combine.Combine, "of", seen)
    apps = {c: client_app("mlp", local_data(fed, c), site=f"site-{c}") for c in range(5)}
    served = FlowerStrategy(strategy, min_available_nodes=5, evaluate=False)
    result = served.start(LocalGrid(apps), first(fed), ROUNDS, 5, train_config=ConfigRecord(CONFIG))
    named = batch.rows.layout.unpack(batch.progress.model[0])
    assert_same(result.arrays, {n: w.numpy() for n, w in named.items()})
    assert kinds == {(np.ndarray, np.ndarray, np)}
    assert not any(report["refused"] for report in served.reports if "refused" in report)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"secure": SecureSum()}, "secure: combining.* combines single changes by a rule"),
        ({"dp": "epsilon=8,delta=1e-5,clip=1.0"}, "dp: combining.* is refused: it combines"),
    ],
)
def test_what_hides_single_changes_is_refused(options, line):
    with pytest.raises(InputError, match=line):
        FlowerStrategy(Combining(), **options)
