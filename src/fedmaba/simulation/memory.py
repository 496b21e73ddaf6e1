"""What clients keep between rounds: named columns with one row for each client of a run.

It alone stores, saves and restores them. A round writes new rows, which are taken back if the run's
new model turns out not to be finite. Columns lie on the GPU where there is room, else on the host.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmaba.errors import InputError
from fedmaba.rows.cuda_graphs import send
from fedmaba.simulation.vectors import as_slice, put_rows, take_rows, weight_pieces

IntArray = NDArray[np.int64]
MAX_GPU_SHARE = 1 / 8  # of a GPU's memory that columns may take
VECTOR = "vector/{r}/{name}"  # what a checkpoint calls a column


@dataclass(frozen=True)
class Column:
    """A vector that each client of a run keeps."""

    first: Tensor | None = None  # (width,) before a client's first round; None: zeros of a model
    mean: bool = False  #           whether the server keeps the mean over all clients
    key: str = VECTOR


@dataclass(frozen=True)
class PastChanges:
    """The newest change of some clients, of rounds that a strategy still sees."""

    change: Tensor  # (h, P)
    client: IntArray  # (h,)
    round: IntArray  # (h,)


def host_memory() -> int:
    """The bytes of this machine's memory; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


class ClientMemory:
    """The columns of R runs, by name, with their means over all clients."""

    def __init__(
        self,
        given: Sequence[Mapping[str, Column]],
        clients: Sequence[int],
        models: Tensor,  # (R, P)
        labels: Sequence[str] = (),
    ) -> None:
        """Columns of each run with so many clients; `labels` name the runs in a refusal."""
        self.like = models
        width = [[models.shape[1] if c.first is None else len(c.first) for c in own.values()]
                 for own in given]  # fmt: skip
        size = sum(n * sum(own) for n, own in zip(clients, width, strict=True))
        where = self._place(size * models.element_size(), given, labels)
        self.keys = [{name: column.key for name, column in own.items()} for own in given]
        self.columns = [
            {name: _first_rows(column, n, models, where) for name, column in own.items()}
            for n, own in zip(clients, given, strict=True)
        ]
        self.means = [
            {name: torch.zeros_like(models[0]) for name, column in own.items() if column.mean}
            for own in given
        ]
        nobody = np.zeros(0, np.int64)
        self.changes = [PastChanges(models[:0], nobody, nobody) for _ in given]
        self._undo: dict[int, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}

    def _place(
        self, size: int, given: Sequence[Mapping[str, Column]], labels: Sequence[str]
    ) -> torch.device:
        """Where so many bytes lie; refused where the host's memory cannot hold them."""
        where = self.like.device
        if self.like.is_cuda:
            total = torch.cuda.get_device_properties(where).total_memory
            where = torch.device("cpu") if size > MAX_GPU_SHARE * total else where
        memory = host_memory()
        if where.type == "cpu" and memory and size > memory:
            keeping = dict.fromkeys(n for n, own in zip(labels, given, strict=True) if own)
            raise InputError(
                f"{', '.join(keeping)}: what clients keep takes {size / 1e9:.1f} GB, and this "
                f"machine has {memory / 1e9:.1f} GB of memory: run fewer seeds or strategies at "
                "once, or take fewer clients or a smaller model"
            )
        return where

    def take(self, r: int, name: str, client: IntArray) -> Tensor:  # (m, width)
        """What some clients keep, on the device of the models."""
        return take_rows(self.columns[r][name], client).to(self.like.device)

    def fresh(self, r: int, many: int, zeros: bool) -> dict[str, Tensor]:
        """Memory (m, width) for the new rows of each column; zeros where ranks fill a part each."""
        make = self.like.new_zeros if zeros else self.like.new_empty
        return {name: make(many, kept.shape[1]) for name, kept in self.columns[r].items()}

    def write(
        self,
        r: int,
        client: IntArray,
        rows: Mapping[str, Tensor],  # (m, width) each
        means: Mapping[str, Tensor],  # (P,) each
        finite: Tensor,  # ()        whether the run's new model is finite, maybe not known yet
    ) -> None:
        """Keep new rows and means, until `settle` says whether they stay."""
        before: dict[str, Tensor] = {}
        for name, new in rows.items():
            kept = self.columns[r][name]
            everyone = as_slice(client) == slice(0, len(kept))
            if everyone and kept.device == new.device:
                before[name] = kept
                self.columns[r][name] = new
            elif finite.is_cuda:  # which is not waited for
                old = take_rows(kept, client).to(new.device)
                put_rows(kept, client, torch.where(finite, new, old, out=new))
            elif finite:
                put_rows(kept, client, new)
        self._undo[r] = before, self.means[r]
        self.means[r] = {**self.means[r], **means}

    def settle(self, r: int, *, stays: bool) -> None:
        """What the last `write` of a run kept stays, or is taken back."""
        rows, means = self._undo.pop(r, ({}, self.means[r]))
        if not stays:
            self.columns[r].update(rows)
            self.means[r] = means

    def arrays(self, *, columns: bool = True) -> dict[str, NDArray[Any]]:
        """All of it by its names in a checkpoint, in copies, since the run goes on meanwhile."""
        out: dict[str, NDArray[Any]] = {}
        for r, past in enumerate(self.changes):
            out[f"kept/{r}/change"] = past.change.to("cpu", copy=True).numpy()
            out |= {f"kept/{r}/client": past.client, f"kept/{r}/round": past.round}
        for name, tensor in self._tensors() if columns else ():
            out[name] = tensor.to("cpu", copy=True).numpy()
        return out

    def forms(self, arrays: Mapping[str, NDArray[Any]], dtype: Any) -> dict[str, Any]:
        """Shape and type that each array of a checkpoint must have."""
        out: dict[str, Any] = {name: (tuple(t.shape), dtype) for name, t in self._tensors()}
        for r in range(len(self.changes)):
            clients = arrays.get(f"kept/{r}/client", np.zeros(0))
            many = len(clients) if clients.ndim else 0
            out |= {f"kept/{r}/{name}": ((many,), np.dtype(np.int64)) for name in PAST}
            out[f"kept/{r}/change"] = ((many, self.like.shape[1]), dtype)
        return out

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go back to what a checkpoint says."""
        for name, tensor in self._tensors():
            tensor.copy_(torch.from_numpy(arrays[name].copy()))  # wherever it is
        for r in range(len(self.changes)):
            change = torch.from_numpy(arrays[f"kept/{r}/change"].copy()).to(self.like)
            self.changes[r] = PastChanges(change, *(arrays[f"kept/{r}/{n}"].copy() for n in PAST))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for r, columns in enumerate(self.columns):
            for name, kept in columns.items():
                yield self.keys[r][name].format(r=r, name=name), kept
            for name, mean in self.means[r].items():
                yield f"mean/{r}/{name}", mean


PAST = ("client", "round")  # what is known of each past change


def _first_rows(column: Column, n: int, models: Tensor, where: torch.device) -> Tensor:
    """(N, width) a column before the first round."""
    if column.first is None:
        return torch.zeros(n, models.shape[1], dtype=models.dtype, device=where)
    return column.first.to(where).repeat(n, 1)


def mean_after(
    mean: Tensor,  # (P,)     over all n clients
    rows: Tensor,  # (m, P)   new ones of some of them
    kept: Tensor,  # (N, P)   all before
    client: IntArray,  # (m,)
) -> Tensor:  # (P,)
    """The mean of a column once the rows of some clients are new."""
    pieces = weight_pieces(rows)
    if len(client) == len(kept):
        parts = [rows[:, some].sum(0) for some in pieces]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).div_(len(kept))
    at = as_slice(client)
    who = None if at is not None else send(client, kept.device)
    parts = []
    for some in pieces:
        old = kept[at, some] if who is None else kept[:, some].index_select(0, who)
        parts.append((rows[:, some] - old.to(rows.device)).sum(0))
    return mean + (parts[0] if len(parts) == 1 else torch.cat(parts)) / len(kept)
