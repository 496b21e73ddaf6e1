"""What the server of a real federation keeps from round to round, saved and taken up. No torch."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedmaba.deploy import private
from fedmaba.deploy.changes import PAST, PastChanges
from fedmaba.deploy.settings import OTHER, FederationSettings, require_same_terms
from fedmaba.deploy.site_names import SiteNames
from fedmaba.deploy.validation import Arrays, forms, is_statistic
from fedmaba.errors import InputError
from fedmaba.results import run_folder
from fedmaba.results.history import History
from fedmaba.results.state_folder import META, misfit
from fedmaba.strategies.base import Local, State, optimiser_of_server

# what is shaped as the model, and how its names begin in a checkpoint
KEYS = {
    "model": "model/",
    "deployed": "deployed/",
    "moments": "moment/",
    "means": "mean/",
    "first": "first/",
}
HEADS, STATE = tuple(KEYS.values()), "state/"


class ServerState:
    """What the server of one run knows between two rounds."""

    def __init__(self, settings: FederationSettings, model: Arrays, site_names: SiteNames) -> None:
        self.settings, self.site_names = settings, site_names
        self.round = 0  # number of the next round
        self.counted = 0  # how many rounds moved the model
        self.refused: list[str] = []  # why replies of the last round did not count
        self.model = {name: np.array(value) for name, value in model.items()}
        self.deployed = {name: value.copy() for name, value in self.model.items()}
        self.sites: list[str] = []
        self.state: State = {}
        self.federation = secrets.token_hex(16)  # stays the same over restarts
        self.last_counted: dict[str, int] = {}  # site -> the last round its reply counted in
        self.weights = [n for n, a in self.model.items() if not is_statistic(n, a)]
        if not self.weights:
            raise InputError("the initial model has no weights: give float arrays by name")
        self.dtype = np.result_type(np.float32, *(self.model[n].dtype for n in self.weights))
        self.past = PastChanges.none(self.size, self.dtype)
        self.optimiser = optimiser_of_server(settings.strategy)
        flat = self.flat(self.model)
        self.moments = {} if self.optimiser is None else self.optimiser.start(flat)  # (P,) each
        # (P,) by name: the means over all sites of vectors that they keep
        self.means = {n: np.zeros_like(flat) for n in self.local.means}
        # the model that what sites keep begins as, for those whose first round comes later
        models = self.local.models_kept
        self.first = {n: a.copy() for n, a in self.model.items()} if models else {}
        self.private = private.private_rounds(settings)

    @property
    def local(self) -> Local:
        """What sites do besides plain SGD."""
        return self.settings.strategy.local()

    @property
    def size(self) -> int:
        """How many weights the model has."""
        return sum(self.model[name].size for name in self.weights)

    def flat(self, model: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """(P,) all weights of a model in one vector."""
        return np.concatenate([model[name].ravel().astype(self.dtype) for name in self.weights])

    def write(self, folder: run_folder.Folder) -> None:
        """Save all in one checksummed file; the one before stays until this one is complete."""
        arrays = self._arrays() | {STATE + name: value for name, value in self.state.items()}
        meta = {
            "terms": self.settings.to_json(),
            "sites": self.sites,
            "owners": self.site_names.owners,
            "changes": self.site_names.changes,
            "counted": self.counted,
            "refused": self.refused,
            "federation": self.federation,
            "last_counted": self.last_counted,
        }
        if self.private is not None:
            meta["taken"] = self.private.taken
        folder.save(self.round, arrays | self.past.arrays(), meta, History([]))

    def restore(self, folder: run_folder.Folder) -> Mapping[str, int]:
        """Go on from the newest undamaged checkpoint; return how often it counts each site."""
        path = folder.path
        arrays, meta, _ = run_folder.load_checkpoint(path)
        wanted = forms(self._arrays())
        lacks = [key for key in META if meta.get(key) is None]
        lacks += [key for key in (*PAST, *wanted) if key not in arrays]
        if lacks:
            raise InputError(f"{path} is no state of this version, it lacks {lacks[0]!r}: {OTHER}")
        require_same_terms(str(path), meta["terms"], self.settings)
        if {n: form for n, form in forms(arrays).items() if n.startswith(HEADS)} != wanted:
            raise InputError(f"{path} holds another model: {OTHER}")
        state = {n.removeprefix(STATE): a for n, a in arrays.items() if n.startswith(STATE)}
        if wrong := self._misfit(arrays, meta, state):
            raise InputError(f"{path} is damaged: {wrong} cannot be of this run: {OTHER}")
        for kind, head in KEYS.items():
            setattr(self, kind, {name: arrays[head + name].copy() for name in getattr(self, kind)})
        self.state = {name: value.copy() for name, value in state.items()}
        self.past = PastChanges.restored(arrays)
        self.round, self.sites = meta["round"], list(meta["sites"])
        self.site_names.restore(meta["owners"], meta["changes"])
        self.counted, self.refused = meta["counted"], meta["refused"]
        # a state folder of version 0.1.0 has neither
        self.federation = meta.get("federation") or self.federation
        self.last_counted = dict(meta.get("last_counted") or {})
        folder.lines = meta["lines"]
        return dict(meta.get("taken") or {})

    def _arrays(self) -> Arrays:
        """All that is shaped as the model, by its names in a checkpoint."""
        return {
            head + name: value
            for kind, head in KEYS.items()
            for name, value in getattr(self, kind).items()
        }

    def _misfit(self, arrays: Arrays, meta: Mapping[str, Any], state: State) -> str:
        """What in a checkpoint cannot belong to this run; empty if everything can."""
        if wrong := misfit(meta):
            return wrong
        n_sites = len(meta["sites"])
        if wrong := self.past.misfit(arrays, n_sites):
            return wrong
        first = self.settings.strategy.init(n_sites) if n_sites else {}
        for name, like in first.items():
            value, shape = state.get(name), np.shape(like)
            if value is None or (n_sites in shape and value.shape != shape):
                return f"state {name!r}"
        return ""


def safetensors_of(model: Arrays) -> bytes:
    """A model as a file holds it."""
    return safetensors.numpy.save({n: np.asarray(a, order="C") for n, a in model.items()})
