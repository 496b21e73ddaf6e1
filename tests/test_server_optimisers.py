"""Momentum, Adam and Yogi on the server: by hand, beside other runs, stopped, and refused."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from torch import nn

import fedmaba
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.simulation.engine import Run
from fedmaba.strategies import FedAdam, FedAvg
from plain_loop import PLAN, apart, mlp, played

pytestmark = pytest.mark.usefixtures("few_threads")


def test_without_momentum_it_is_fedavg(fed):
    plan = replace(PLAN, participants=3)
    batch, _ = played(["fedavgm:beta=0", "fedavg"], fed, plan, mlp)
    assert batch.progress.model[0].equal(batch.progress.model[1])
    pushed, _ = played(["fedavg"], fed, replace(plan, server_momentum=0.5), mlp)
    own, _ = played(["fedavgm:beta=0.5"], fed, plan, mlp)
    assert pushed.progress.model.equal(own.progress.model)


def test_a_large_tau_approaches_momentum(fed):
    """With lr in proportion to tau. v falls from tau^2 to 0, so the step grows up to twofold."""
    plan, tau = replace(PLAN, participants=3), 1e6
    last, _ = played([f"fedadam:lr={tau},beta1=0.9,beta2=0,tau={tau}"], fed, plan, mlp)
    want, _ = played(["fedavgm:beta=0.9,lr=0.1"], fed, plan, mlp)
    assert apart(last.progress.model[0], want.progress.model[0]) < 1e-6
    how = FedAdam(lr=tau, beta1=0.9, beta2=0.99, tau=tau).server_optimiser()
    velocity, moments = np.zeros(2), how.start(np.zeros(2))
    for t in range(1, 200):
        change = np.array([math.sin(t), 0.1 * t])
        velocity = 0.9 * velocity + 0.1 * change
        step, moments = how.step(moments, change)
        np.testing.assert_allclose(step, velocity / (1 + 0.99 ** (t / 2)), rtol=1e-6)


def test_statistics_of_batchnorm_are_averaged_whatever_the_optimiser(fed):
    def make(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))

    plan = replace(PLAN, rounds=1, minibatch=50, batchnorm="average")
    batch, _ = played(["fedavg", "fedadam:lr=1", "fedavgm:lr=0.5"], fed, plan, make)
    layout, model = batch.rows.layout, batch.progress.model
    assert layout.compared < layout.shared
    statistics = model[:, layout.compared : layout.shared]
    assert statistics[0].equal(statistics[1])
    assert statistics[0].equal(statistics[2])
    assert not model[0].equal(model[1])


def test_a_server_without_its_moments_is_refused(tmp_path):
    model = {"0.weight": np.zeros((2, 2), np.float32)}
    settings = FederationSettings(fedmaba.parse("fedadam")[0])
    server = FederationServer(settings, model, tmp_path)
    del server.moments["second"]
    server.save()
    server.close()
    with pytest.raises(InputError, match="it lacks 'moment/second': choose another state folder"):
        FederationServer(settings, model, tmp_path)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"kind": "adagrad"}, r"kind='adagrad'\): choose one of momentum, adam, yogi"),
        ({"kind": "adam", "lr": 0}, r"lr=0\): give a number above 0"),
        ({"kind": "adam", "tau": "small"}, r"tau='small'\): give a number above 0"),
        ({"kind": "yogi", "beta2": 1.0}, r"beta2=1.0\): give a number from 0 to below 1"),
        ({"kind": "momentum", "beta1": True}, r"beta1=True\): give a number from 0 to below 1"),
    ],
)
def test_numbers_out_of_range_are_refused(numbers, told):
    with pytest.raises(InputError, match=told):
        fedmaba.ServerOptimiser(**numbers)


@dataclass(frozen=True)
class Wrong(FedAvg):
    """says its momentum as a number"""

    name: ClassVar[str] = "wrong"

    def server_optimiser(self):
        return 0.9


def test_anything_but_an_optimiser_is_refused(fed):
    with pytest.raises(
        InputError, match=r"wrong: server_optimiser\(\) gave 0.9: return fedmaba.Server"
    ):
        played([Run(Wrong(), 0, fed)], fed, PLAN, mlp)
