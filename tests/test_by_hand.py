"""Three rounds by hand of the algorithms whose clients keep something, played by the simulator.

The model is one number w. Client A has the loss w^2 / 2, client B the loss 4 (w - 2)^2 / 2. Each
takes two steps of size 0.1 from w = 1. So a plain local training takes A to 0.81 w, and B to
2 + 0.36 (w - 2). Every number below was computed on paper.
"""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedmaba.data import attack
from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.simulation.engine import Plan, Run, simulate, start
from plain_loop import one

PLAN = Plan(rounds=3, minibatch=1, epochs=2, lr=0.1, lr_decay=1.0, dtype="float64")


def number(shape, classes):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return nn.Sequential(layer)


def half_square(out, y):
    return (out.flatten(1) - y.flatten(1)).square().sum(1) / 2


def two_clients(copies=1):
    """Client B holds `copies` copies of its example, so that it takes more steps."""
    x = np.array([[1.0], *[[2.0]] * copies, [1.0], [2.0]], np.float32)
    y = np.array([[0.0], *[[4.0]] * copies, [0.0], [4.0]], np.float32)
    data = Dataset("two", x, y, len(x), (), task="regress")
    rows = np.arange(len(x))
    parts = (rows[:1], rows[1 : 1 + copies]), (rows[:0], rows[:0]), (rows[-2:-1], rows[-1:])
    return Federation(data, Split(*parts))


def play(spec, fed=None, **plan):
    """The server's number after each round, and what the clients keep at the end, by name."""
    run = Run(one(spec), 0, fed or two_clients())
    batch = start([run], replace(PLAN, **plan), number, half_square)
    path = [
        float(batch.rows.layout.unpack(s.progress.model[0])["0.weight"]) for s in simulate(batch)
    ]
    at = batch.progress
    assert at.diverged == [""]
    kept = {name: v[:, 0].tolist() for name, v in at.memory.columns[0].items()}
    return path, kept | {f"mean {name}": float(v[0]) for name, v in at.memory.means[0].items()}


def test_scaffold_option_ii():
    """Round 1 is FedAvg's: A ends at 0.81, B at 1.64. c_A = 0.19 / 0.2, c_B = -0.64 / 0.2."""
    path, kept = play("scaffold")
    np.testing.assert_allclose(path, [1.225, 1.38775, 1.4830525], rtol=1e-12)
    _, early = play("scaffold", rounds=2)
    np.testing.assert_allclose(early["c"], [1.2675, -2.895], rtol=1e-12)
    assert early["mean c"] == pytest.approx(-0.81375, rel=1e-12)
    assert kept["mean c"] == pytest.approx(sum(kept["c"]) / 2, rel=1e-12)


def test_scaffold_option_i():
    """c_A and c_B are the gradients at the server's model: w and 4 (w - 2), first 1 and -4.

    In round 2, from 1.225, A adds c - c_A = -2.5 and goes to 1.3525 and 1.46725; B adds +2.5 and
    goes to 1.285 and 1.321. In round 3, from 1.394125, with c_A = 1.225, c_B = -3.1, c = -0.9375,
    A adds -2.1625 and goes to 1.4709625 and 1.54011625; B adds +2.1625 and goes to 1.420225 and
    1.435885.
    """
    path, kept = play("scaffold:option=I")
    last = (1.54011625 + 1.435885) / 2
    np.testing.assert_allclose(path, [1.225, (1.46725 + 1.321) / 2, last], rtol=1e-12)
    np.testing.assert_allclose(kept["c"], [1.394125, 4 * (1.394125 - 2)], rtol=1e-9)
    assert kept["mean c"] == pytest.approx((1.394125 - 2.4235) / 2, rel=1e-9)
    early = play("scaffold:option=I", rounds=2)[1]
    np.testing.assert_allclose(early["c"], [1.225, -3.1], rtol=1e-9)
    assert play("scaffold:option=I", rounds=1)[1]["c"] == pytest.approx([1, -4], rel=1e-9)


def test_feddyn():
    """Round 1: A ends at 0.815, B at 1.62; h_A = 0.0925, h_B = -0.31, h = -0.10875."""
    path, kept = play("feddyn:alpha=0.5")
    np.testing.assert_allclose(path, [1.435, 1.7063875, 1.78580096875], rtol=1e-12)
    np.testing.assert_allclose(kept["h"], [0.354479078125, -0.5164076875], rtol=1e-12)
    assert kept["mean h"] == pytest.approx(-0.0809643046875, rel=1e-12)


def test_fednova():
    """B has two examples, so it takes four steps to A's two: tau_eff = 10/3, both weigh 5/9."""
    path, _ = play("fednova", two_clients(copies=2))
    np.testing.assert_allclose(path, [1.378, 1.533316, 1.5971336186666667], rtol=1e-12)


def test_ditto():
    """The server's number is FedAvg's; each client's own is pulled towards it."""
    path, kept = play("ditto:lam=0.5")
    np.testing.assert_allclose(path, [1.225, 1.356625, 1.433625625], rtol=1e-12)
    np.testing.assert_allclose(kept["personal"], [0.6327911875, 1.89719715625], rtol=1e-12)


@pytest.mark.parametrize("spec", ["local", "ditto:lam=0"])
def test_a_client_alone(spec):
    path, kept = play(spec)
    np.testing.assert_allclose(kept["personal"], [0.81**3, 2 - 0.36**3], rtol=1e-12)
    if spec == "local":
        assert path == [1, 1, 1]  # nobody sends a change


def test_a_client_that_lies_about_its_change_moves_the_mean_by_the_lie():
    """B sends minus its change: then the server sees a step of -0.64 from it in round 1."""
    fed = two_clients()
    liar = attack.Hostile(attack.parse_attack("update=-1"), np.array([False, True]))
    path, kept = play("scaffold", replace(fed, hostile=liar), rounds=1)
    assert path == pytest.approx([1 + (-0.19 - 0.64) / 2])
    assert kept["mean c"] == pytest.approx((0.95 + 3.2) / 2)
