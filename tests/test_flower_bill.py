"""What a round costs on Flower's wire, and who is left out, as the simulator says both."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord
from flwr.common import serde
from torch import nn

from fedmaba.deploy import secure
from fedmaba.flower import FlowerStrategy, SecureSum
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.turnout.plan import Turnout
from flower_grid import stage_of
from flower_sites import assert_same, first, grid_of, model_of
from plain_loop import one

WITHIN = 0.02


def softmax(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


@pytest.mark.parametrize("model", ["mlp", softmax], ids=["large", "small"])
@pytest.mark.parametrize(
    "spec", ["fedavg", "fedmaba", "scaffold", "mifa", "feddyn", "fednova", "eagle", "ditto"]
)
def test_bytes_are_those_of_the_messages_and_lost_clients_those_of_the_simulator(
    spec, model, fed, tmp_path
):
    """Sites whose answers never come are those that the simulator loses, in each round."""
    strategy, rounds, seed = one(spec), 4, 3
    turnout = Turnout.parse({"dropout": "30%"})
    plan = Plan(rounds, minibatch=4, eval_every=rounds, turnout=turnout)
    batch = start([Run(strategy, seed, fed)], plan, model)
    shots = [shot.rounds[0] for shot in simulate(batch)]
    down, up = [], []

    def counted(message, answer):
        if message.metadata.message_type != "train":
            return answer
        t = int(message.content["config"]["server-round"]) - 1
        client = (1000 - message.metadata.dst_node_id) // 7
        sizes = (serde.message_to_proto(m).ByteSize() for m in (message, answer))
        down.append((t, client, next(sizes)))
        if shots[t].columns["turnout.answer"][client] == 0:
            return None  # lost on its way
        up.append((t, client, next(sizes)))
        return answer

    grid = grid_of(fed, tmp_path, counted, model)
    options = {"min_available_nodes": 5, "min_train_nodes": 1, "evaluate": False, "seed": seed}
    server = FlowerStrategy(strategy, min_replies=1, grace=0.05, **options)
    result = server.start(
        grid,
        first(fed, model, seed),
        rounds,
        timeout=0.3,
        train_config=ConfigRecord({"minibatch": 4}),
    )
    assert_same(result.arrays, model_of(batch), 1e-5)
    counts = {name: np.zeros((rounds, 5)) for name in ("down", "up")}
    for name, seen in (("down", down), ("up", up)):
        for t, client, size in seen:
            counts[name][t, client] = size
        told = np.array([r.columns[f"turnout.{name}"] for r in shots])
        assert (told > 0).tolist() == (counts[name] > 0).tolist()
        np.testing.assert_allclose(told, counts[name], rtol=WITHIN)
    assert (counts["up"] == 0).any()


@pytest.mark.parametrize("model", ["mlp", softmax], ids=["large", "small"])
@pytest.mark.parametrize("spec", ["fedavg", "fedmaba"])
def test_bytes_of_secure_sums_are_those_of_all_their_messages(spec, model, fed):
    """Sites that are lost get the first message of a round alone."""
    strategy, rounds, seed = one(spec), 4, 5
    turnout = Turnout.parse({"dropout": "20%", "sums": "secure"})
    plan = Plan(rounds, minibatch=4, eval_every=rounds, turnout=turnout)
    batch = start([Run(strategy, seed, fed)], plan, model)
    shots = [shot.rounds[0] for shot in simulate(batch)]
    answers = np.array([r.columns["turnout.answer"] for r in shots])
    assert ((answers == 2).sum(1) > 1).all()
    assert (answers == 0).any()
    seen = {"down": {}, "up": {}}

    def counted(message, answer):
        stage = stage_of(message)
        if not stage:
            return answer
        client = (1000 - message.metadata.dst_node_id) // 7
        attempt = secure.read_message(message.content["config"]["secure"], 10**7)["attempt"]
        t = int(attempt.split()[1]) - 1  # "round 3 ..."
        sizes = (serde.message_to_proto(m).ByteSize() for m in (message, answer))
        seen["down"][t, client, stage] = next(sizes)
        if answers[t, client] == 0:
            return None
        seen["up"][t, client, stage] = next(sizes)
        return answer

    grid = grid_of(fed, None, counted, model, secure=True)
    options = {"min_available_nodes": 5, "min_train_nodes": 1, "evaluate": False, "seed": seed}
    server = FlowerStrategy(strategy, secure=SecureSum(), grace=0.05, **options)
    train = ConfigRecord({"minibatch": 4})
    result = server.start(grid, first(fed, model, seed), rounds, timeout=0.5, train_config=train)
    assert_same(result.arrays, model_of(batch), 1e-4)
    for name, found in seen.items():
        counts = np.zeros((rounds, 5))
        for (t, client, _), size in found.items():
            counts[t, client] += size
        told = np.array([r.columns[f"turnout.{name}"] for r in shots])
        np.testing.assert_allclose(told, counts, rtol=WITHIN)
