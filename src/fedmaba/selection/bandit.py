"""UCB-CS: Cho, Gupta, Joshi & Yagan, "Bandit-based Communication-Efficient Client Selection
Strategies for Federated Learning", Asilomar 2020. A client's arm pays its training loss.

Differs: sites send no spread of the losses of their minibatches, so sigma is the standard deviation
over the clients of the losses of the newest round.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedmaba.selection.base import FloatArray, IntArray, Present, Selection
from fedmaba.strategies.base import State, param


@dataclass(frozen=True)
class Bandit(Selection):
    """a bandit: high losses of late, and who was not asked for long; new clients first"""

    name: ClassVar[str] = "ucb"
    learns: ClassVar[bool] = True
    gamma: float = param(0.7, low=0, high=1)

    def init(self, n_clients: int) -> State:
        return {
            "loss": np.zeros(n_clients),  # discounted sums over the rounds of each client
            "count": np.zeros(n_clients),
            "rounds": np.zeros(1),
            "sigma": np.zeros(1),
        }

    def choose(self, state: State, seen: Present) -> IntArray:
        loss, count = (state[name][seen.client] for name in ("loss", "count"))
        known = count > 0
        times = np.where(known, count, 1.0)
        log = np.log(max(float(state["rounds"][0]), 1.0))
        index = loss / times + np.sqrt(2 * state["sigma"][0] ** 2 * log / times)
        score = np.where(known, seen.size * index, np.inf)
        order = np.lexsort((seen.random, -score))
        return np.sort(order[: seen.many])

    def learn(self, state: State, client: IntArray, loss: FloatArray) -> State:
        out = {name: self.gamma * state[name] for name in ("loss", "count", "rounds")}
        out["loss"][client] += loss
        out["count"][client] += 1
        out["rounds"] += 1
        return {**out, "sigma": np.array([loss.std()])}
