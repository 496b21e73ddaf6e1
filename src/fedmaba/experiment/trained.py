"""The models that a session has trained, kept for `History.model` after the session has ended."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedmaba.experiment.session import Session
from fedmaba.results.history import RunHistory, TrainedModel
from fedmaba.rows import base


class SessionModels:
    """The weights of every run of a session, on the CPU; its data are not kept."""

    def __init__(self, session: Session) -> None:
        at, rows = session.batch.progress, session.batch.rows
        self._layout, self._template = rows.layout, rows.model
        self._models, self._best = at.model.cpu(), at.best.cpu()
        self._deployed, self._owner = at.deployed.cpu(), at.owner
        keys = [(run.label, run.seed, run.deploy) for run in session.history.runs]
        self._place = {key: d for d, key in enumerate(keys)}

    def weights(self, run: RunHistory, which: TrainedModel) -> dict[str, NDArray[Any]]:
        """The named weights of one model of a run, frozen ones and buffers among them."""
        d = self._place[run.label, run.seed, run.deploy]
        r = int(self._owner[d])
        flat = {"deployed": self._deployed[d], "last": self._models[r], "best": self._best[r]}
        found = {n: w.cpu().numpy() for n, w in base.constants(self._template).items()}
        found |= {n: w.numpy() for n, w in self._layout.unpack(flat[which]).items()}
        return {name: np.array(value) for name, value in found.items()}


def new_module(template: nn.Module) -> nn.Module:
    """A new module of the kind that was trained."""
    return copy.deepcopy(template).cpu()
