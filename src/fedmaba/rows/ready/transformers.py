"""Two small transformers of 4 blocks of width 128 with 4 heads: for images, and for characters.

For images: Dosovitskiy et al., 2021, with the sizes of our benchmark. An image is cut into patches,
and each patch looks at all others. The side of a patch is the largest divisor of the image's sides
that leaves at least 7 patches a side.
For characters: Radford et al., 2019, in small. A position sees itself and those before it; it
predicts the character after the last one, or the next one at each position.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention between places, then two layers for each place, both beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal  # causal: a place sees only those before it
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.norm1(x)).unflatten(2, (3, self.heads, -1))  # (n, T, 3, heads, d)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
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
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(blocks)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2) + self.place
        out: Tensor = self.last(self.norm(self.blocks(x)).mean(1))
        return out


class GPT(nn.Module):
    """Tokens (n, T) -> outputs (n, classes) after the last one, or (n, T, classes) after each."""

    def __init__(
        self, vocabulary: int, length: int, classes: int, each: bool, width: int, blocks: int
    ) -> None:
        super().__init__()
        self.each = each
        self.embedding = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(blocks)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embedding(tokens) + self.place))
        out: Tensor = self.last(x if self.each else x[:, -1])
        return out


def vit(shape: tuple[int, ...], classes: int) -> nn.Module:
    """small vision transformer: 4 blocks of width 128 with 4 heads"""
    common = math.gcd(*shape[1:])
    fits = [side for side in range(1, common + 1) if common % side == 0]
    patch = max(side for side in fits if side == 1 or min(shape[1:]) // side >= 7)
    return ViT(shape, classes, patch, width=128, blocks=4, heads=4)


def gpt(shape: Any, classes: int, target: Any = None) -> nn.Module:
    """small causal transformer for characters: 4 blocks of width 128 with 4 heads"""
    each = target is not None and target.task == "sequence"
    vocabulary = max(shape.vocabulary, classes)  # One site of many may lack the last characters.
    return GPT(vocabulary, shape[0], classes, each, width=128, blocks=4)
