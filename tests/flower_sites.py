"""Sites of a real federation with the data of a simulated one, for the tests of Flower."""

import numpy as np
from flwr.app import ArrayRecord

from fedmaba.data.datasets import Dataset
from fedmaba.flower import initial_arrays


def local_data(fed, client: int) -> Dataset:
    """One client's own examples, training rows first."""
    train, test = fed.train.of(client), fed.test.of(client)
    rows = np.concatenate([train, test])
    data = fed.data
    return Dataset("own", data.x[rows], data.y[rows], len(train), data.classes)


def first(fed, model="mlp", seed=0) -> ArrayRecord:
    data = fed.data
    return initial_arrays(model, data.x.shape[1:], len(data.classes), seed)


def assert_same(arrays, expected, tol=1e-5):
    assert set(arrays) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(np.asarray(arrays[name].numpy()), value, rtol=0, atol=tol)


CONFIG = {"minibatch": 4}
