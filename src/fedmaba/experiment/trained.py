"""The models that a session has trained, kept for `History.model` after the session has ended."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedmaba.experiment.session import Session
from fedmaba.results import run_folder
from fedmaba.results.history import TrainedModel
from fedmaba.results.run_history import RunHistory
from fedmaba.rows import base


class SessionModels:
    """The weights of every run of a session, on the CPU; its data are not kept."""

    def __init__(self, session: Session, template: nn.Module) -> None:
        at, self._template = session.batch.progress, template
        self._layout = session.batch.rows.layout
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

    def new_module(self, run: RunHistory) -> nn.Module:
        """A new module of the kind that was trained."""
        return new_module(self._template)


def keep_models(session: Session) -> None:
    """Let the history of a session that has ended give its models: from its folder, or from here.

    A rank that read nothing of a finished folder has none.
    """
    template = _off_the_device(session.batch.rows.model)
    if session.folder is not None:
        make = partial(new_module, template)
        session.history.trained = run_folder.SavedModels(session.folder.path, make)
    elif not session.done:
        session.history.trained = SessionModels(session, template)


def new_module(template: nn.Module) -> nn.Module:
    """A new module of the kind that was trained."""
    return copy.deepcopy(template).cpu()


def _off_the_device(model: nn.Module) -> nn.Module:
    """A model that takes no memory of a GPU, which the next computation needs."""
    held = [*model.parameters(), *model.buffers()]
    return model if all(tensor.device.type == "cpu" for tensor in held) else new_module(model)
