"""What the server of a real federation saves, and how it takes that up again. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedmaba.deploy.changes import PAST, PastChanges
from fedmaba.deploy.settings import OTHER, require_same_terms
from fedmaba.errors import InputError
from fedmaba.results import run_folder
from fedmaba.results.history import History
from fedmaba.results.state_folder import META, misfit
from fedmaba.strategies.base import State

if TYPE_CHECKING:
    from fedmaba.deploy.server import FederationServer

Arrays = dict[str, NDArray[Any]]
BY_NAME = ("model", "deployed", "state", "moments", "means", "first")  # of a server
KEYS = dict(zip(BY_NAME, ("model", "deployed", "state", "moment", "mean", "first"), strict=True))


def save(server: FederationServer, folder: run_folder.Folder) -> None:
    """Save all in one checksummed file; the one before stays until this one is complete."""
    arrays = {
        f"{KEYS[kind]}/{name}": value
        for kind in BY_NAME
        for name, value in getattr(server, kind).items()
    }
    meta = {
        "terms": server.settings.to_json(),
        "sites": server.sites,
        "owners": server.site_names.owners,
        "changes": server.site_names.changes,
        "counted": server.counted,
        "refused": server.refused,
        "federation": server.federation,
        "last_counted": server.last_counted,
    }
    if server.private is not None:
        meta["taken"] = server.private.taken
    folder.save(server.round, arrays | server.past.arrays(), meta, History([]))


def restore(server: FederationServer, folder: run_folder.Folder) -> Mapping[str, int]:
    """Go on from the newest undamaged checkpoint; return how often it counts each site."""
    path = folder.path
    arrays, meta, _ = run_folder.load_checkpoint(path)
    lacks = [key for key in META if meta.get(key) is None]
    wanted = [
        f"{KEYS[kind]}/{name}"
        for kind in ("moments", "means", "first")
        for name in getattr(server, kind)
    ]
    lacks += [key for key in (*PAST, *wanted) if key not in arrays]
    if lacks:
        raise InputError(f"{path} is no state of this version, it lacks {lacks[0]!r}: {OTHER}")
    require_same_terms(str(path), meta["terms"], server.settings)
    saved = {kind: _under(f"{KEYS[kind]}/", arrays) for kind in BY_NAME}
    for kind in ("model", "deployed", *(["first"] if server.first else [])):
        if _forms(saved[kind]) != _forms(server.model):
            raise InputError(f"{path} holds another model: {OTHER}")
    if wrong := _misfit(server, arrays, meta, saved["state"]):
        raise InputError(f"{path} is damaged: {wrong} cannot be of this run: {OTHER}")
    for kind in ("moments", "means"):  # and nothing that another version kept besides
        saved[kind] = {name: saved[kind][name] for name in getattr(server, kind)}
    for kind in BY_NAME:
        setattr(server, kind, saved[kind])
    server.past = PastChanges.restored(arrays)
    server.round, server.sites = meta["round"], list(meta["sites"])
    server.site_names.restore(meta["owners"], meta["changes"])
    server.counted, server.refused = meta["counted"], meta["refused"]
    # a state folder of version 0.1.0 has neither
    server.federation = meta.get("federation") or server.federation
    server.last_counted = dict(meta.get("last_counted") or {})
    folder.lines = meta["lines"]
    return dict(meta.get("taken") or {})


def _under(head: str, arrays: Arrays) -> Arrays:
    """Copies of the arrays whose names begin so, without that beginning."""
    return {n.removeprefix(head): a.copy() for n, a in arrays.items() if n.startswith(head)}


def _misfit(server: FederationServer, arrays: Arrays, meta: Mapping[str, Any], state: State) -> str:
    """What in a checkpoint cannot belong to this run; empty if everything can."""
    if wrong := misfit(meta):
        return wrong
    n_sites = len(meta["sites"])
    if wrong := server.past.misfit(arrays, n_sites):
        return wrong
    wanted = {f"moment/{name}": ((server.size,), server.dtype) for name in server.moments}
    wanted |= {f"mean/{name}": (mean.shape, mean.dtype) for name, mean in server.means.items()}
    for name, form in wanted.items():
        if (arrays[name].shape, arrays[name].dtype) != form:
            return f"array {name}"
    first = server.settings.strategy.init(n_sites) if n_sites else {}
    for name, like in first.items():
        value, shape = state.get(name), np.shape(like)
        if value is None or (n_sites in shape and value.shape != shape):
            return f"state {name!r}"
    return ""


def safetensors_of(model: Arrays) -> bytes:
    """A model as a file holds it."""
    return safetensors.numpy.save({n: np.asarray(a, order="C") for n, a in model.items()})


def _forms(model: Arrays) -> dict[str, tuple[Any, ...]]:
    """The shape and type of each array of a model."""
    return {name: (value.shape, value.dtype) for name, value in model.items()}
