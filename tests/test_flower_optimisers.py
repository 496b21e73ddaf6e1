"""The servers' optimisers beside Flower's own FedAvgM, FedAdam and FedYogi, on one small case."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedYogi

import flower_grid
from fedmaba.strategies.server_optimisers import ServerOptimiser

assert flower_grid.TaskIdentity.run_id == 1  # without which Flower makes no message

ROUNDS, SIZE = 5, 6


def path_of(strategy) -> list[np.ndarray]:
    """The models that a strategy of Flower makes of the same replies, one a round."""
    rng = np.random.default_rng(0)
    model, out = np.zeros(SIZE), []
    for number in range(1, ROUNDS + 1):
        sent = ArrayRecord({"w": Array(model)})  # kept as its configure_train does
        strategy.current_arrays = sent if isinstance(strategy, FedAvgM) else {"w": model}
        replies = []
        for examples in (30, 10):
            content = {"arrays": ArrayRecord({"w": Array(model + rng.normal(size=SIZE))})}
            content["metrics"] = MetricRecord({"num-examples": examples})
            asked = Message(RecordDict(), dst_node_id=1, message_type="train")
            replies.append(Message(RecordDict(content), reply_to=asked))
        arrays, _ = strategy.aggregate_train(number, replies)
        model = arrays["w"].numpy()
        out.append(model)
    return out


def path(how: ServerOptimiser, moments, factor=lambda number: 1.0) -> list[np.ndarray]:
    """The same by ours, from these moments on, with a factor on the step of each round."""
    rng = np.random.default_rng(0)
    model, out = np.zeros(SIZE), []
    for number in range(1, ROUNDS + 1):
        delta = 0.75 * rng.normal(size=SIZE) + 0.25 * rng.normal(size=SIZE)
        move, moments = how.step(moments, delta)
        model = model + factor(number) * move
        out.append(model)
    return out


ZEROS = {"first": np.zeros(SIZE), "second": np.zeros(SIZE)}  # Flower's second moment starts at 0


def test_fedavgm_is_flowers():
    how = ServerOptimiser("momentum", 0.5, 0.9)
    theirs = path_of(FedAvgM(server_learning_rate=0.5, server_momentum=0.9))
    np.testing.assert_allclose(path(how, how.start(np.zeros(SIZE))), theirs, rtol=1e-9)


def test_fedyogi_is_flowers_but_for_the_start_of_the_second_moment():
    how = ServerOptimiser("yogi", 0.1, 0.9, 0.99, 0.3)
    theirs = path_of(FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.3))
    np.testing.assert_allclose(path(how, ZEROS), theirs, rtol=1e-9)
    paper = path(how, how.start(np.zeros(SIZE)))
    assert np.abs(np.subtract(paper, theirs)).max() > 1e-2


def test_fedadam_is_flowers_but_for_that_start_and_a_correction():
    how = ServerOptimiser("adam", 0.1, 0.9, 0.99, 0.3)
    theirs = path_of(FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=0.3))

    def correction(number: int) -> float:  # Adam's, but of the round after
        return float(np.sqrt(1 - 0.99 ** (number + 1)) / (1 - 0.9 ** (number + 1)))

    np.testing.assert_allclose(path(how, ZEROS, correction), theirs, rtol=1e-9)
    assert np.abs(np.subtract(path(how, ZEROS), theirs)).max() > 1e-2
