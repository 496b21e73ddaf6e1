"""A perceptron for tables: features of different scales, few examples.

Each hidden layer is normalised and has dropout, after Gorishniy et al., 2021, whose plain
perceptrons are hard to beat on tables.
"""

import math

from torch import nn


def hidden(inside: int, width: int) -> list[nn.Module]:
    """A linear layer, normalised, with ReLU and dropout."""
    return [nn.Linear(inside, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.1)]


def mlp_tabular(shape: tuple[int, ...], classes: int) -> nn.Module:
    """perceptron for tables: three hidden layers of 128 with LayerNorm and dropout 0.1"""
    first = hidden(math.prod(shape), 128)
    return nn.Sequential(
        nn.Flatten(), *first, *hidden(128, 128), *hidden(128, 128), nn.Linear(128, classes)
    )
