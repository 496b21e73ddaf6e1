"""The synthetic federation does what its options say."""

from __future__ import annotations

import numpy as np
import pytest

from dataset_cases import says
from fedmaba.data import datasets
from fedmaba.data.datasets import load


def test_synthetic():
    data = load("synthetic:clients=12,features=7,classes=4,size=50")
    assert data.client is not None
    assert data.x.shape[1:] == (7,)
    assert data.client_names == tuple(map(str, range(12)))
    assert data.classes == ("0", "1", "2", "3")
    train, test = np.bincount(data.client[: data.n_train]), np.bincount(data.client[data.n_train :])
    np.testing.assert_array_equal(test, (train + test) // 5)
    assert (train + test).min() >= 10
    even = load("synthetic:clients=3,spread=0,size=50")
    assert np.bincount(even.client).tolist() == [50, 50, 50]
    assert load("synthetic").sha256() == load("synthetic:seed=0").sha256()
    assert load("synthetic").sha256() != load("synthetic:seed=1").sha256()


def test_alpha_sets_models_apart_and_beta_inputs():
    def make(options: str) -> datasets.Dataset:
        return load(f"synthetic:clients=60,features=30,spread=0,size=200,{options}")

    def centres(data: datasets.Dataset) -> float:
        return float(np.var([data.x[data.client == k].mean() for k in range(60)]))

    assert centres(make("beta=0")) < 0.2
    assert 4 < centres(make("beta=9")) < 16  # 60 draws of N(0, 9)
    one, near, far = (make(f"alpha={a}") for a in (0, 0.01, 25))
    np.testing.assert_array_equal(one.x, far.x)  # alpha is the model's alone
    assert np.mean(one.y == near.y) > 0.8
    assert np.mean(one.y == far.y) < 0.4
    two = make("alpha=0,classes=2,beta=0")  # one linear rule for all clients: a fit must find it
    inputs = np.c_[two.x, np.ones(len(two.x))]
    fit = inputs @ np.linalg.lstsq(inputs, 2.0 * two.y - 1, rcond=None)[0]
    assert np.mean((fit > 0) == two.y) > 0.9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:client=3", "did you mean 'clients'"),
        ("synthetic:clients=0", "an integer from 1"),
        ("synthetic:clients=x", "clients=x"),
        ("synthetic:classes=1", "from 2"),
        ("synthetic:alpha=-1", "a number from 0"),
        ("synthetic:alpha=nan", "a number from 0"),
        ("synthetic:clients", "clients="),
        ("synthetic:clients=1000000000", "needs gigabytes"),
        ("synthetic:clients=1000,size=3000,spread=100", "needs gigabytes"),
    ],
)
def test_synthetic_refuses(name, message):
    says(lambda: load(name), message)
