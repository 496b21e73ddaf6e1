"""Clients with adapters of different ranks: products averaged, beside factors averaged.

A perceptron learns five of the sample's ten classes, and is frozen. Then 20 clients train adapters
and the last layer on all ten. Ranks 2, 4 and 8 are dealt out; beside it all have rank 8, and its
columns are of the same clients, because who gets a low rank by chance also has data by chance.

    python benchmarks/adapter_ranks.py --out benchmarks/results/adapter-ranks.json

Prints a table of mean accuracies, in percent: of all clients, of the worst one, and by rank.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedmaba
from fedmaba.adapters import add_lora
from fedmaba.data import datasets
from fedmaba.rows.lora import Ranks

RANKS = [2, 4, 8]
SETTINGS: dict[str, dict[str, Any]] = {
    "2|4|8, products": {"rank": RANKS},
    "2|4|8, factors": {"rank": RANKS, "average": "factors"},
    "8, products": {"rank": 8, "average": "products"},
    "8, factors": {"rank": 8},
}
STRATEGIES = ["fedavg", "fedmaba"]


def perceptron(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three layers, the last with ten outputs whatever there are."""
    layers = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def base() -> dict[str, Any]:
    """The weights of a model that has seen the first five classes."""
    images = datasets.load("sample")
    seen = images.y[: images.n_train] < 5
    x, y = images.x[: images.n_train][seen], images.y[: images.n_train][seen]
    public = fedmaba.Federation.from_arrays(x, y, 0 * y)
    plan = {"rounds": 3, "epochs": 3, "seeds": 1, "deploy": "last"}
    return dict(fedmaba.compare("fedavg", model=perceptron, data=public, **plan).model("fedavg", 0))


def adapted(weights: dict[str, Any], how: dict[str, Any]) -> Callable[..., nn.Module]:
    """A factory of the frozen model with adapters."""

    def make(shape: tuple[int, ...], classes: int) -> nn.Module:
        model = perceptron(shape, classes)
        model.load_state_dict({name: torch.as_tensor(v) for name, v in weights.items()})
        return add_lora(model, ["1", "3"], alpha=8, train=["5"], **how)

    return make


def measured(history: fedmaba.History, label: str) -> dict[str, list[float]]:
    """Accuracies of each seed, in percent; nothing where a seed diverged."""
    out: dict[str, list[float]] = {"all": [], "worst": []}
    for run in history.runs:
        if run.label != label:
            continue
        if run.diverged:
            return {}
        found = 100 * run.tables["deployed.accuracy"][-1]
        rank = np.array(RANKS)[Ranks(tuple(RANKS), "products").deal(run.seed, len(found))]
        told = {"all": found.mean(), "worst": found.min()}
        told |= {f"rank {one}": found[rank == one].mean() for one in RANKS}
        for name, value in told.items():
            out.setdefault(name, []).append(float(value))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    weights, rows = base(), []
    plan = {"data": "sample", "partition": "dirichlet:0.3", "clients": 20, "seeds": asked.seeds}
    plan |= {"rounds": asked.rounds, "steps": 10, "minibatch": 20, "deploy": "last"}
    for lr in asked.lr:
        for name, how in SETTINGS.items():
            model = adapted(weights, how)
            history = fedmaba.compare(STRATEGIES, model=model, lr=lr, **plan)
            for label in STRATEGIES:
                found = measured(history, label)
                rows.append({"lr": lr, "ranks": name, "strategy": label, **found})
                shown = [
                    f"{k} {np.mean(v):.2f} ± {np.std(v, ddof=1):.2f}" for k, v in found.items()
                ]
                print(f"lr {lr}; {name}; {label}: {'; '.join(shown) or 'diverged'}", flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps({"plan": plan, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
