"""A small vision transformer: an image is cut into patches, and each patch looks at all others.

Dosovitskiy et al., 2021, with the sizes of our benchmark: 4 blocks of width 128 with 4 heads. The
side of a patch is the largest divisor of the image's sides that leaves at least 7 patches a side.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention between patches, then two layers for each patch, both beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.norm1(x)).unflatten(2, (3, self.heads, -1))  # (n, T, 3, heads, d)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value)  # (n, heads, T, d)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class ViT(nn.Module):
    """Patches with a learned place each, blocks, the mean over patches, a linear layer."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, patch: int, width: int, blocks: int, heads: int
    ) -> None:
        super().__init__()
        channels, height, across = shape
        self.cut = nn.Conv2d(channels, width, patch, patch)
        places = (height // patch) * (across // patch)
        self.place = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2) + self.place
        out: Tensor = self.last(self.norm(self.blocks(x)).mean(1))
        return out


def vit(shape: tuple[int, ...], classes: int) -> nn.Module:
    """small vision transformer: 4 blocks of width 128 with 4 heads"""
    common = math.gcd(*shape[1:])
    fits = [side for side in range(1, common + 1) if common % side == 0]
    patch = max(side for side in fits if side == 1 or min(shape[1:]) // side >= 7)
    return ViT(shape, classes, patch, width=128, blocks=4, heads=4)
