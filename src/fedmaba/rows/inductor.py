"""Compile recorded operations for a GPU by torch's own compiler, Inductor.

Compiled kernels are kept in a folder that outlives the process: FEDMABA_COMPILED, else
`fedmaba/compiled` in the user's cache folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Hashable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from fedmaba.errors import InputError

# Seconds that compiling took on the host of an H200, for all models of benchmarks/models.py.
SECONDS, SECONDS_PER_OPERATION = 10.0, 0.012


def available(device: torch.device) -> bool:
    """Whether work on this device can be compiled."""
    return device.type == "cuda" and find_spec("triton") is not None


def kernel_folder() -> Path:
    """Where compiled kernels are kept."""
    if given := os.environ.get("FEDMABA_COMPILED"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path here is to be ignored.
    home = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    return Path(home) / "fedmaba" / "compiled"


def keep_kernels() -> None:
    """Let Inductor keep what it compiles in our folder, unless the user told it another."""
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    there = next(
        path for path in (kernel_folder(), *kernel_folder().absolute().parents) if path.exists()
    )
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise InputError(
            f"compiled kernels cannot be kept in {str(kernel_folder())!r}: {there} is no folder "
            "that can be written: set FEDMABA_COMPILED to one"
        )
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kernel_folder())


def seconds(operations: int) -> float:
    """About how long compiling so many operations takes."""
    return SECONDS + SECONDS_PER_OPERATION * operations


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Tensor]
) -> Callable[..., Sequence[Tensor]]:
    """The same operations as a few kernels."""
    keep_kernels()
    from torch._inductor import compile as inductor

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Any = inductor(graph, list(inputs), options={"fx_graph_cache": True})
    return made  # type: ignore[no-any-return]


KERNELS: dict[Hashable, Callable[..., Any]] = {}


def as_kernel(function: Callable[..., Any], *args: Tensor) -> Callable[..., Any]:
    """A function of tensors as one kernel, where it can be compiled for these; else as it is."""
    first = args[0]
    key = function, first.device, *((a.shape, a.stride(), a.dtype) for a in args)
    if key not in KERNELS:
        if first.dtype == torch.float64 or not available(first.device):  # float64 is for checks
            return function
        KERNELS[key] = compile_graph(make_fx(function)(*args), args)
    return KERNELS[key]
