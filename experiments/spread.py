"""How far real clients differ in how well one model serves them, beside what chance alone makes.

One linear model is fitted to half of each client's examples, all clients together, five times with
other halves. A client's score is the mean squared error of its other half; of two classes it is
that of the probability, the Brier score. Test errors are then dealt out to the clients anew, a
hundred times: the spread of scores that this makes is noise. It writes
experiments/results/real-spread.json, which `fedmaba list datasets` and docs/data.md show, in about
half a minute of a CPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from fedmaba.data import datasets, real
from fedmaba.data.federation import Division, divide

FILE = Path(__file__).parent / "results" / "real-spread.json"
NAMES = [*real.REAL, "mlmRev/Chem97,by=school", "nycflights13/flights,by=dest"]
SEEDS, DEALS, RIDGE, NEWTON = 5, 100, 1e-3, 8
HELD = 0.375  # of what is left after a fifth was taken for tests: three tenths, so half in all


def fit(x, y, classes):
    """Coefficients of least squares, or of logistic regression by Newton's method."""
    w, shrink = np.zeros(x.shape[1]), RIDGE * np.eye(x.shape[1])
    for _ in range(NEWTON if classes else 1):
        p = predict(x, w, classes)
        weight = p * (1 - p) if classes else np.ones(len(y))
        w += np.linalg.solve((x * weight[:, None]).T @ x / len(y) + shrink, x.T @ (y - p) / len(y))
    return w


def predict(x, w, classes):
    """The number that is predicted, or the probability of the second class."""
    return 1 / (1 + np.exp(-x @ w)) if classes else x @ w


def worst(scores):
    """The mean score of the worst tenth of clients."""
    return float(np.sort(scores)[-max(1, round(len(scores) / 10)) :].mean())


def of_seed(fed, seed):
    """Scores of clients under one split: their spread, what noise makes of it, and levels."""
    data, rng = fed.data, np.random.default_rng(seed)
    x, y = np.c_[np.ones(len(data.y)), data.x], data.y.astype(float)
    train, parts = fed.train.index, (fed.validation, fed.test)  # half of the examples each
    test = np.concatenate([part.index for part in parts])
    w = fit(x[train], y[train], data.task == "classify")
    error = (y[test] - predict(x[test], w, data.task == "classify")) ** 2
    owner = np.concatenate([np.repeat(np.arange(fed.n_clients), part.size) for part in parts])
    many = np.bincount(owner, minlength=fed.n_clients)
    kept = many > 0

    def scores(errors):
        return (np.bincount(owner, errors) / np.maximum(many, 1))[kept]

    dealt = [scores(rng.permutation(error)).std() for _ in range(DEALS)]
    found = scores(error)
    above = (1 + sum(sd >= found.std() for sd in dealt)) / (1 + DEALS)
    trivial = float(np.mean((y[test] - y[train].mean()) ** 2))
    return found.std(), np.mean(dealt), above, found.mean(), worst(found), trivial


def measure(name):
    data = datasets.load(real.PREFIX + name)
    rows = []
    for seed in range(SEEDS):
        fed = divide(data, [seed], Division("given", test="local", validation=HELD))[seed]
        rows.append(of_seed(fed, seed))
    spread, noise, p, mean, low, trivial = np.transpose(rows)
    size = np.bincount(data.client)
    return {
        "clients": len(data.client_names),
        "examples": len(data.y),
        "sizes": [int(size.min()), int(np.median(size)), int(size.max())],
        "ratio": round(float(np.mean(spread / noise)), 2),
        "p": round(float(p.max()), 3),
        "mean": round(float(mean.mean()), 4),
        "worst tenth": round(float(low.mean()), 4),
        "without a model": round(float(trivial.mean()), 4),
    }


if __name__ == "__main__":
    found = {name: measure(name) for name in sys.argv[1:] or NAMES}
    print(json.dumps(found, indent=1))
    if not sys.argv[1:]:
        FILE.write_text(json.dumps(found, indent=1) + "\n")
