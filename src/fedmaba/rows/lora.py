"""LoRA adapters of linear layers: two small matrices beside a frozen one.

An adapter of a linear layer W is two matrices, A (rank, in) and B (out, rank): the layer computes
W x + alpha / rank * B A x. Only A and B are trained and sent, and modules that you name. Files of
adapters are the business of `adapters`.

Clients may have different ranks. The server's adapter has the largest; a client of rank r holds the
first r rows of A and columns of B, and 0 in place of the others, which training leaves at 0. The
server averages the products B A of its clients (FlexLoRA, Bai et al. 2024): it stacks their factors
(FLoRA, Wang et al. 2024), whose product is that average, and keeps its leading directions, the
strongest first. Or it averages the factors, filled up with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedmaba import rng
from fedmaba.errors import InputError
from fedmaba.rows.by_client import BY_CLIENT

Average = Literal["products", "factors"]
A, B = ".lora_A.weight", ".lora_B.weight"  # ends of names
ROW = 3**-0.5  # the length of a row of A, as torch draws a Linear


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


@dataclass(frozen=True)
class Ranks:
    """Which ranks clients have, and what of their adapters is averaged. As `ByClient` says."""

    each: tuple[int, ...]  # as many as clients: one for each; fewer are dealt out, as often each
    average: Average

    @property
    def different(self) -> tuple[int, ...]:
        """Each rank once, the lowest first."""
        return tuple(sorted(set(self.each)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The ranks in words."""
        return tuple(f"rank {rank}" for rank in self.different)

    @property
    def joins(self) -> bool:
        """Whether products are averaged."""
        return self.average == "products"

    def misfit(self, sent: Sequence[str]) -> str:
        """Why products cannot be averaged if these weights are sent; empty where they can."""
        factors = [name for name in sent if name.endswith((A, B))]
        other = [n.removesuffix(A) + B if n.endswith(A) else n.removesuffix(B) + A for n in factors]
        lonely = [n for n, pair in zip(factors, other, strict=True) if pair not in factors]
        if not lonely:
            return ""
        return f"{lonely[0]} is sent without its other factor: say average=factors"

    def deal(self, seed: int, n: int) -> NDArray[np.int64]:
        """(n,) which of the different ranks each client has."""
        many = len(self.each)
        if many > n:
            raise InputError(f"{many} ranks for {n} clients: give one for each client, or fewer")
        kind = np.searchsorted(self.different, self.each)
        if many == n:
            return kind
        out = np.empty(n, np.int64)
        out[np.argsort(rng.key(seed, "ranks", np.arange(n)), kind="stable")] = np.resize(kind, n)
        return out

    def cut(self, weights: Mapping[str, Tensor], kind: NDArray[Any]) -> None:
        """Set to 0, in place, the rows of A and columns of B beyond the rank of each client."""
        rank = np.array(self.different)[kind]
        held = torch.from_numpy(np.arange(max(self.each)) < rank[:, None])  # (n, rank)
        factors = {name: weight for name, weight in weights.items() if name.endswith((A, B))}
        mask = held.to(next(iter(factors.values())))
        for name, weight in factors.items():
            weight.mul_(mask[:, :, None] if name.endswith(A) else mask[:, None])

    def join(
        self, server: Mapping[str, Tensor], sent: Mapping[str, Tensor], share: NDArray[Any]
    ) -> dict[str, Tensor]:
        """The adapters whose products are nearest to the averages of the clients' products."""
        weights, out = np.append(share, 1 - share.sum()), dict[str, Tensor]()
        for a in (name for name in sent if name.endswith(A)):
            b = a.removesuffix(A) + B
            every_a, every_b = (torch.cat([sent[n], server[n][None]]) for n in (a, b))
            left, right = stacked(every_a, every_b, weights)
            for name, value in zip((a, b), leading(left, right, max(self.each)), strict=True):
                out[name] = value.to(server[name])
        return out


def stacked(a: Tensor, b: Tensor, weights: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Factors (out, k * rank) and (k * rank, in) whose product is the sum of weights * B A.

    a is (k, rank, in), b (k, out, rank). They are float64 and on the CPU, for equal bits.
    """
    a, b = a.double().cpu(), b.double().cpu() * torch.from_numpy(weights)[:, None, None]
    return b.transpose(0, 1).flatten(1), a.flatten(0, 1)


def leading(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A (rank, in) and B (out, rank) of the strongest directions of left @ right, in order.

    Rows of A have one length, so that a direction without strength can still be learnt.
    """
    (q, r), (p, s) = torch.linalg.qr(left), torch.linalg.qr(right.T)
    u, strength, v = torch.linalg.svd(r @ s.T, full_matrices=False)
    return ROW * v[:rank] @ p.T, q @ u[:, :rank] * (strength[:rank] / ROW)


def add_lora(
    model: nn.Module,
    layers: Iterable[str],
    *,
    rank: int | Sequence[int] = 8,
    alpha: float = 8.0,
    dropout: float = 0.0,
    train: Iterable[str] = (),
    average: Average | None = None,
) -> nn.Module:
    """Freeze a model and give linear layers an adapter each; returns the same model.

    `layers` are names or ends of names: "attention.q", or "q" for all layers of that name. `train`
    names modules that stay trainable as a whole, such as the last layer (`modules_to_save`).
    Several ranks are dealt out to the clients of a simulation, and alpha is divided by the largest.
    `average` says what a server averages: "products", as it does with several ranks, or "factors".
    """
    ranks = _ranks(rank, average)
    rank = max(ranks.each)
    if not math.isfinite(alpha):
        raise InputError(f"alpha={alpha!r}: give a number")
    if ranks.joins or len(ranks.different) > 1:
        setattr(model, BY_CLIENT, ranks)
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
            sizes = layer.in_features, layer.out_features
            if rank > (most := min(sizes) if hasattr(model, BY_CLIENT) else max(sizes)):
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


def _ranks(rank: int | Sequence[int], average: Average | None) -> Ranks:
    """The ranks that clients have, and what is averaged."""
    each = tuple(rank) if isinstance(rank, Sequence) and not isinstance(rank, str) else (rank,)
    if not each or any(type(one) is not int or one < 1 for one in each):
        raise InputError(f"rank={rank!r}: give a whole number from 1, or several")
    usual: Average = "products" if len(set(each)) > 1 else "factors"
    if average not in (None, *get_args(Average)):
        raise InputError(f"average={average!r}: say {' or '.join(get_args(Average))}")
    return Ranks(each, average or usual)


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
