"""A small causal transformer for characters, as GPT: a position sees itself and those before it.

Radford et al., 2019, in small: 4 blocks of width 128 with 4 heads. It predicts the character after
the last one, or the next one at each position.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention to earlier positions, then two layers for each, both beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(self.norm1(x)).unflatten(2, (3, self.heads, -1))  # (n, T, 3, heads, d)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
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
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(blocks)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embedding(tokens) + self.place))
        out: Tensor = self.last(x if self.each else x[:, -1])
        return out


def gpt(shape: Any, classes: int, target: Any = None) -> nn.Module:
    """small causal transformer for characters: 4 blocks of width 128 with 4 heads"""
    each = target is not None and target.task == "sequence"
    vocabulary = max(shape.vocabulary, classes)  # One site of many may lack the last characters.
    return GPT(vocabulary, shape[0], classes, each, width=128, blocks=4)
