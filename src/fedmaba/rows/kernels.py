"""The Triton kernels, where there are any; without them the plain operations serve."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

try:
    from fedmaba.rows import conv, dense
    from fedmaba.rows.launch import compiled
except ImportError:  # no Triton
    conv = dense = None  # type: ignore[assignment]

    def compiled(work: Callable[[], object]) -> None:
        """Nothing to compile."""


__all__ = ["compiled", "conv", "dense", "fast"]


def fast(x: Tensor) -> bool:
    """Whether they serve this tensor: float32 on a GPU that has tf32."""
    if dense is None or not x.is_cuda or x.dtype != torch.float32:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)
