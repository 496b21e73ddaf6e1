"""The random streams of fedmaba.rng as tensors: shuffles and dropout masks of many rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedmaba import rng


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


GOLDEN, FIRST, SECOND = (_signed(w) for w in (rng.GOLDEN, rng.FIRST, rng.SECOND))


def stream(keys: Tensor, count: int) -> Tensor:
    """The first `count` 64-bit words (R, count) of each key's stream; int64 wraps around."""
    z = keys[:, None] + torch.arange(1, count + 1, device=keys.device) * GOLDEN
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    return z ^ ((z >> 31) & (2**33 - 1))


def shuffles(keys: Tensor, sizes: Tensor, width: int) -> Tensor:
    """A random order of 0..size-1 for each row, (R, width), padded; sizes are (R, 1)."""
    words = stream(keys, width)
    beyond = torch.arange(width, device=keys.device) >= sizes
    return words.masked_fill_(beyond, 2**63 - 1).argsort(dim=1, stable=True)


def dropout_mask(
    keys: Tensor, layer: int, shape: torch.Size, p: float, dtype: torch.dtype
) -> Tensor:
    """0 with probability p, else 1/(1-p); four 16-bit draws from each word."""
    if p >= 1.0:
        return torch.zeros(shape, device=keys.device, dtype=dtype)
    count = math.prod(shape[1:])
    words = stream(keys ^ ((layer + 1) * GOLDEN & (2**63 - 1)), -(-count // 4))
    draws = words.view(torch.int16)[:, :count].view(shape)
    return (draws >= min(round(p * 65536), 65535) - 32768).to(dtype).mul_(1.0 / (1.0 - p))


def fused_dropout_mask(
    keys: Tensor, layer: int, shape: torch.Size, p: float, dtype: torch.dtype
) -> Tensor:
    """The same mask, number by number: a compiler makes each where it is used."""
    if p >= 1.0:
        return torch.zeros(shape, device=keys.device, dtype=dtype)
    place = torch.arange(math.prod(shape[1:]), device=keys.device)
    z = (keys ^ ((layer + 1) * GOLDEN & (2**63 - 1)))[:, None] + ((place >> 2) + 1) * GOLDEN
    z = (z ^ ((z >> 30) & (2**34 - 1))) * FIRST
    z = (z ^ ((z >> 27) & (2**37 - 1))) * SECOND
    z = z ^ ((z >> 31) & (2**33 - 1))
    draws = ((z >> ((place & 3) << 4)) & 65535) ^ 32768
    kept = (draws >= min(round(p * 65536), 65535)).view(shape)
    return kept.to(dtype) * (1.0 / (1.0 - p))
