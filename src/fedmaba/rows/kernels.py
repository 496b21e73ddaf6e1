"""The Triton kernels where Triton is installed; without it the plain torch operations are used."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

try:
    from fedmaba.rows import conv, dense, vectors
    from fedmaba.rows.launch import compile_only
except ImportError:  # no Triton
    conv = dense = vectors = None  # type: ignore[assignment]

    def compile_only(work: Callable[[], object]) -> None:
        """Do nothing: without Triton there is nothing to compile."""


__all__ = ["can_run", "compile_only", "conv", "dense", "vectors"]


def can_run(x: Tensor) -> bool:
    """Whether the kernels take this tensor: float32 on a GPU that has tf32."""
    if dense is None or not x.is_cuda or x.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)
