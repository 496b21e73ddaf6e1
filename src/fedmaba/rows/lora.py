"""LoRA adapters of linear layers: two small matrices beside a frozen one.

An adapter of a linear layer W is two matrices, A (rank, in) and B (out, rank): the layer computes
W x + alpha / rank * B A x. Only A and B are trained and sent, and modules that you name. Files of
adapters are the business of `adapters`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from fedmaba.errors import InputError


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter; the layer's own weights keep their names."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.rank, self.scale = rank, scale
        self.weight, self.bias = layer.weight, layer.bias
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        same: Any = {"device": layer.weight.device, "dtype": layer.weight.dtype, "bias": False}
        self.lora_A = nn.Linear(layer.in_features, rank, **same)  # drawn as torch draws a Linear
        self.lora_B = nn.Linear(rank, layer.out_features, **same)
        nn.init.zeros_(self.lora_B.weight)  # at first the adapter changes nothing

    def forward(self, x: Tensor) -> Tensor:
        added = self.lora_B(self.lora_A(self.dropout(x)))
        out: Tensor = nn.functional.linear(x, self.weight, self.bias) + self.scale * added
        return out


def add_lora(
    model: nn.Module,
    layers: Iterable[str],
    *,
    rank: int = 8,
    alpha: float = 8.0,
    dropout: float = 0.0,
    train: Iterable[str] = (),
) -> nn.Module:
    """Freeze a model and give linear layers an adapter each; returns the same model.

    `layers` are names or ends of names: "attention.q", or "q" for all layers of that name. `train`
    names modules that stay trainable as a whole, such as the last layer (`modules_to_save`).
    """
    if type(rank) is not int or rank < 1 or not math.isfinite(alpha):
        raise InputError(
            f"rank={rank!r}, alpha={alpha!r}: give a whole number from 1, and a number"
        )
    model.requires_grad_(False)
    for wanted in layers:
        found = [n for n, m in model.named_modules() if _is_called(n, wanted)]
        chosen = [n for n in found if type(model.get_submodule(n)) is nn.Linear]
        if not chosen:
            what = type(model.get_submodule(found[0])).__name__ if found else "nothing"
            raise InputError(
                f"layer {wanted!r} of the model is {what}: name linear layers, of "
                f"{_some(n for n, m in model.named_modules() if type(m) is nn.Linear)}"
            )
        for name in chosen:
            layer: Any = model.get_submodule(name)
            if rank > (most := max(layer.in_features, layer.out_features)):
                raise InputError(
                    f"rank={rank}: layer {name!r} has {layer.in_features} inputs and "
                    f"{layer.out_features} outputs: give a rank of at most {most}"
                )
            put_adapter(model, name, rank, alpha / rank, dropout)
    for wanted in train:
        chosen = [n for n, _ in model.named_modules() if _is_called(n, wanted)]
        if not chosen:
            raise InputError(f"train={wanted!r}: the model has no module of this name")
        for name in chosen:
            model.get_submodule(name).requires_grad_(True)
    if not any(isinstance(m, LoraLinear) for m in model.modules()):
        raise InputError("layers=[]: name the linear layers that get an adapter")
    return model


def _is_called(name: str, wanted: str) -> bool:
    """Whether a module has this name, or ends with it, as peft matches them."""
    return name == wanted or name.endswith(f".{wanted}")


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


def put_adapter(model: nn.Module, name: str, rank: int, scale: float, dropout: float) -> None:
    """Replace a linear layer by one with an adapter."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, LoraLinear(layer, rank, scale, dropout))
