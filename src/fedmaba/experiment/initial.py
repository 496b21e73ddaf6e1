"""The weights that all runs start from, as a user names them: a file, a state dict or a module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from fedmaba.errors import InputError
from fedmaba.results import array_files
from fedmaba.rows.weights import GivenWeights

Init: TypeAlias = str | Path | Mapping[str, Any] | nn.Module
# A file of torch.save begins as a zip archive, or as a pickle before 1.6.
PICKLED = (b"PK", b"\x80")


def given_weights(init: Init) -> GivenWeights:
    """Weights to start from; only numbers are read, so nothing in a file can run as code."""
    if isinstance(init, str | Path):
        return GivenWeights(_read(Path(init)), str(init))
    if isinstance(init, nn.Module):
        init = init.state_dict()
    if not isinstance(init, Mapping):
        raise InputError(
            f"init of type {type(init).__name__}: give a .safetensors file, a state dict or a "
            "module"
        )
    return GivenWeights({name: _array(name, value) for name, value in init.items()}, "init")


def _read(path: Path) -> array_files.Arrays:
    name = str(path)
    try:
        if (kind := array_files.first_bytes(path, 2))[:2] in PICKLED or kind[:1] in PICKLED:
            raise InputError(
                f"{name} was written by torch.save, whose files can run code when they are read: "
                "convert it where you trust it, by safetensors.torch.save_file(torch.load("
                f"{name!r}, weights_only=True), 'weights.safetensors')"
            )
        return array_files.read_weights(path)
    except OSError as error:
        raise InputError(f"init={name}: {error.strerror}: name a .safetensors file") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"init={name}: {error}: give a .safetensors file of weights") from error


def _array(name: object, value: object) -> np.ndarray[Any, Any]:
    """One entry of a state dict as an array."""
    if not isinstance(name, str) or not isinstance(value, torch.Tensor | np.ndarray):
        raise InputError(
            f"init has {name!r} of type {type(value).__name__}: give tensors by the names of "
            "model.state_dict()"
        )
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if value.dtype.kind not in "fiub":
        raise InputError(f"init: {name!r} is of {value.dtype}: give numbers")
    return value
