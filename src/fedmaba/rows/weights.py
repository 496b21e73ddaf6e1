"""Weights that a model starts from instead of those that its seed draws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedmaba.errors import InputError


def can_train_from(value: NDArray[Any], dtype: torch.dtype) -> bool:
    """Whether weights are finite in the model's own type, and their squares as well."""
    most = np.sqrt(torch.finfo(dtype).max)
    return bool((np.abs(value) <= most).all())  # nan is not


@dataclass(frozen=True)
class GivenWeights:
    """Arrays by the names of a model's state dict."""

    named: Mapping[str, NDArray[Any]]
    source: str  # what a message calls them

    def sha256(self) -> str:
        """The digest of names, shapes, types and values, whatever file or object they come from."""
        digest = hashlib.sha256()
        for name in sorted(self.named):
            value = self.named[name]
            digest.update(f"{name}\0{value.dtype.str} {value.shape}\0".encode())
            digest.update(np.ascontiguousarray(value).data)
        return digest.hexdigest()

    def put_into(self, model: nn.Module) -> None:
        """Give a model these weights; the first that is missing, unknown or unlike is refused.

        All that is trained must be there. Buffers and frozen weights may be.
        """
        there = model.state_dict()
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        for name in trained:
            if name not in self.named:
                raise InputError(
                    f"{self.source} lacks {name!r} of the model: give weights of this model"
                )
        for name, value in self.named.items():
            if name not in there:
                raise InputError(
                    f"{self.source} has {name!r}, which the model lacks: give weights of this model"
                )
            own = there[name]
            if tuple(own.shape) != value.shape:
                raise InputError(
                    f"{self.source}: {name!r} has shape {value.shape}, but the model has "
                    f"{tuple(own.shape)}: give weights of this model"
                )
            if own.is_floating_point() and value.dtype.kind != "f":
                raise InputError(
                    f"{self.source}: {name!r} is of {value.dtype}, but weights are floats: give "
                    "weights of this model"
                )
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise InputError(
                    f"{self.source}: {name!r} has values that are not finite: no training could "
                    "go on from there"
                )
            if name in trained and not can_train_from(value, own.dtype):
                raise InputError(
                    f"{self.source}: {name!r} has values up to {np.abs(value).max():.0e}, whose "
                    f"squares are too large for {str(own.dtype).removeprefix('torch.')}: no "
                    "training could go on from there"
                )
        with torch.no_grad():
            for name, value in self.named.items():
                there[name].copy_(torch.from_numpy(np.array(value)))
