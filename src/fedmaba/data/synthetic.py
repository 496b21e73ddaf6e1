"""Synthetic federations: a softmax model for each client, after Li et al. 2020. No torch here."""

from __future__ import annotations

import math

import numpy as np

from fedmaba.data.cells import number_of
from fedmaba.data.dataset import Dataset
from fedmaba.errors import InputError, unknown
from fedmaba.rng import generator

DEFAULT = "clients=30,alpha=1,beta=1,features=60,classes=10,size=100,spread=1,seed=0"
_LEAST = {"clients": 1, "features": 1, "classes": 2, "size": 1, "seed": 0}  # the whole numbers


def check_options(name: str) -> dict[str, float]:
    """The options of a synthetic set, checked."""
    option = {part.partition("=")[0]: math.nan for part in DEFAULT.split(",")}
    for part in f"{DEFAULT},{name.partition(':')[2]}".rstrip(",").split(","):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in option:
            raise unknown("option of synthetic", key, option)
        option[key] = number_of(text, int if key in _LEAST else float)
        least, most = _LEAST.get(key, 0), 10**9 if key in _LEAST else 100
        if not least <= option[key] <= most:
            kind = "an integer" if key in _LEAST else "a number"
            raise InputError(f"synthetic: {key}={text}: give {kind} from {least} to {most}")
    size = max(10, option["size"] * min(20.0, math.exp(min(option["spread"], 3.0) ** 2 / 2)))
    needed = (option["clients"] * size + option["classes"]) * option["features"]
    if needed > 2e8:
        raise InputError(f"{name}: needs gigabytes: lower clients, size, features or classes")
    return option


def make(name: str) -> Dataset:
    """Synthetic(alpha, beta), after Li et al., Federated Optimization in Heterogeneous Networks.

    One softmax layer for all: weights and biases ~ N(0, 1). Client k adds its own ~ N(0, alpha).
    Its inputs: b ~ N(0, beta), centre v_j ~ N(b, 1), x_j ~ N(v_j, j^-1.2) for feature j = 1, 2, ...
    Its label: the class with the largest output. It has round(size * exp(spread * z)) examples,
    z ~ N(0, 1), kept in 10..20 * size; the last fifth of them is its part of the test set. The
    second number of N is a variance.
    Differs: the authors add one number, ~ N(0, alpha), to all weights of a client, which moves all
    outputs alike and so no label, for any alpha; here alpha = 0 is one model for all clients. Sizes
    there are 50 + a log-normal (4, 2) number.
    """
    option = check_options(name)
    clients, features, classes, size, seed = (
        int(option[key]) for key in ("clients", "features", "classes", "size", "seed")
    )
    rng = generator(seed, "synthetic")
    n = np.rint(size * np.exp(option["spread"] * rng.standard_normal(clients)))
    n = np.clip(n, 10, max(10, 20 * size)).astype(np.int64)  # (N,)
    x, y = np.empty((int(n.sum()), features), np.float32), np.empty(int(n.sum()), np.int64)
    deviation = np.arange(1.0, features + 1) ** -0.6  # (features,)
    shared = rng.standard_normal((features + 1, classes))  # the last row is the bias
    end = np.cumsum(n)
    for rows in map(slice, end - n, end):
        weight = shared + math.sqrt(option["alpha"]) * rng.standard_normal(shared.shape)
        centre = rng.normal(math.sqrt(option["beta"]) * rng.standard_normal(), 1.0, features)
        inputs = centre + deviation * rng.standard_normal((rows.stop - rows.start, features))
        x[rows] = inputs
        y[rows] = np.argmax(inputs @ weight[:-1] + weight[-1], axis=1)
    test = np.arange(len(y)) >= np.repeat(end - n // 5, n)
    order = np.argsort(test, kind="stable")  # training rows first
    names = tuple(map(str, range(classes))), tuple(map(str, range(clients)))
    owner = np.repeat(np.arange(clients, dtype=np.int64), n)[order]
    return Dataset(name, x[order], y[order], len(y) - int(test.sum()), names[0], owner, names[1])
