"""BatchNorm in a federation, by a declared choice, since its statistics mix a client's examples.

Each BatchNorm layer of a model is replaced before rows are made of it. The new layer has the same
names of weights and statistics, so that files of weights fit the model with and without it.

    refuse   say so, and name the choices
    group    GroupNorm, which normalises each example by itself
    frozen   constants: the layer is the same affine map in training and in evaluation
    average  as in torch; running statistics are sent and averaged with the weights of the model
    local    as in torch; each client keeps the whole layer (FedBN, Li et al. 2021)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedmaba.errors import InputError
from fedmaba.rows.base import RunningStatistics, layers_with_statistics

Choice = Literal["refuse", "group", "local", "average", "frozen"]
CHOICES_IN_WORDS = "group, local, average or frozen"
BATCHNORM_LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
MAX_NORM_GROUPS = 32
MIN_CHANNELS = 8  # of a group


class FrozenBatchNorm(nn.Module):
    """BatchNorm as a fixed affine map."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        _take_over(self, norm)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return _normalised(x, self.running_mean, self.running_var, self)


class RowBatchNorm(RunningStatistics):
    """BatchNorm that sees no padding and hands out its new statistics instead of storing them."""

    statistics = ("running_mean", "running_var")
    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, norm: nn.modules.batchnorm._BatchNorm, momentum: float, kept_by_client: bool
    ) -> None:
        super().__init__()
        self.eps, self.momentum, self.kept_by_client = norm.eps, momentum, kept_by_client
        self.values = 0  # A channel has this many values in one example; 0 means not known yet.
        _take_over(self, norm)

    def forward(self, x: Tensor) -> Tensor:
        self.values = x[0].numel() // x.shape[1]
        given, x = x.dtype, x.to(torch.promote_types(x.dtype, self.running_mean.dtype))
        return self._normalise(x).to(given)

    def _normalise(self, x: Tensor) -> Tensor:
        if not x.is_cuda and (self.valid is None or not self.training):
            return self._by_torch(x)
        if not self.training:
            return _normalised(x, self.running_mean, self.running_var.clamp(min=0), self)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        if self.valid is None:
            weight, count = x.new_ones(()), x.new_tensor(float(len(x) * self.values))
        else:
            weight = self.valid.to(x.dtype).view(-1, *[1] * (x.ndim - 1))
            count = weight.sum() * self.values
        mean = (x * weight).sum(axes) / count
        centred = (x - _beside(mean, x)) * weight
        squares = centred.square().sum(axes)
        unbiased = squares / (count - 1).clamp(min=1)
        self.after = tuple(
            old + self.momentum * (new - old)
            for old, new in ((self.running_mean, mean), (self.running_var, unbiased))
        )
        return _normalised(x, mean, squares / count, self)

    def _by_torch(self, x: Tensor) -> Tensor:
        """Without padding and on a CPU, torch's own layer takes half the time."""
        mean, variance = self.running_mean, self.running_var
        if self.training:
            self.after = mean, variance = mean.clone(), variance.clone()
        else:
            variance = variance.clamp(min=0)
        options = self.training, self.momentum, self.eps
        return F.batch_norm(x, mean, variance, self.weight, self.bias, *options)


def replace_batchnorm(model: nn.Module, choice: Choice, name: str) -> nn.Module:
    """The model with every BatchNorm layer replaced as chosen."""
    new: dict[int, nn.Module] = {}
    for label, module in list(model.named_modules()):
        statistics = getattr(module, "running_mean", None) is not None
        if isinstance(module, FrozenBatchNorm | RowBatchNorm):
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm) or statistics:
            new[id(module)] = _replacement(module, choice, f"model {name!r}: layer {label!r}")
    if id(model) in new:
        return new[id(model)]
    for module in model.modules():
        for label, child in module._modules.items():
            if id(child) in new:
                module._modules[label] = new[id(child)]
    return model


def _replacement(module: nn.Module, choice: Choice, what: str) -> nn.Module:
    what = f"{what} is a {type(module).__name__}"
    if type(module) not in BATCHNORM_LAYERS:
        raise InputError(
            f"{what} with statistics over examples, for which fedmaba has no rule: use "
            "BatchNorm1d, 2d or 3d, or GroupNorm"
        )
    assert isinstance(module, BATCHNORM_LAYERS)
    if choice == "refuse":
        raise InputError(
            f"{what}, whose statistics mix a client's examples: say what becomes of them, with "
            f"--batchnorm {CHOICES_IN_WORDS}"
        )
    if choice == "group":
        return _group_norm(module, what)
    if module.running_mean is None:
        raise InputError(f"{what} without running statistics: use them, or --batchnorm group")
    if choice == "frozen":
        return FrozenBatchNorm(module)
    if module.momentum is None:
        raise InputError(
            f"{what} that counts its steps (momentum=None), which no client sends: give it a "
            "momentum, as 0.1"
        )
    return RowBatchNorm(module, module.momentum, choice == "local")


def groups_of(channels: int) -> int:
    """How many groups replace BatchNorm: up to 32 of 8 channels or more; where none fit, one."""
    even = [g for g in range(1, MAX_NORM_GROUPS + 1) if channels % g == 0]
    return max((g for g in even if channels >= g * MIN_CHANNELS), default=1)


def unused_statistics(model: nn.Module, names: Iterable[str]) -> set[str]:
    """Which of these names are statistics of BatchNorm layers that became GroupNorm."""
    layers = {n for n, m in model.named_modules() if isinstance(m, nn.GroupNorm)}
    parts = {name: name.rpartition(".") for name in names}
    return {n for n, (at, _, last) in parts.items() if at in layers and last in STATISTICS}


def _group_norm(norm: nn.modules.batchnorm._BatchNorm, what: str) -> nn.GroupNorm:
    channels = norm.num_features
    if channels == 1 and isinstance(norm, nn.BatchNorm1d):
        raise InputError(f"{what} of one channel, which no GroupNorm can stand for: leave it out")
    out = nn.GroupNorm(groups_of(channels), channels, norm.eps, norm.affine)
    if norm.affine:
        out.weight, out.bias = norm.weight, norm.bias
    return out.train(norm.training)


def _take_over(new: nn.Module, norm: nn.modules.batchnorm._BatchNorm) -> None:
    """Move the weights and statistics of a layer into another under their names."""
    for name in ("weight", "bias"):
        new.register_parameter(name, norm._parameters.get(name))
    for name, value in norm._buffers.items():
        new.register_buffer(name, value)
    new.train(norm.training)


def _beside(channels: Tensor, x: Tensor) -> Tensor:
    """Numbers of channels (C,), to be used with inputs (B, C, ...)."""
    return channels.view(1, -1, *[1] * (x.ndim - 2))


def _normalised(
    x: Tensor, mean: Tensor, variance: Tensor, layer: FrozenBatchNorm | RowBatchNorm
) -> Tensor:
    out = (x - _beside(mean, x)) / _beside((variance + layer.eps).sqrt(), x)
    if layer.weight is not None and layer.bias is not None:
        out = out * _beside(layer.weight, x) + _beside(layer.bias, x)
    return out


def too_few(model: nn.Module, examples: int) -> str:
    """The first layer that cannot take a variance over so many examples; empty where all can."""
    for name, layer in layers_with_statistics(model).items():
        if isinstance(layer, RowBatchNorm) and layer.values * examples < 2:
            return name.rstrip(".") or "BatchNorm"
    return ""


def use_running_statistics(model: nn.Module) -> None:
    """Let layers with statistics use their running ones, also where the model is in training."""
    for layer in layers_with_statistics(model).values():
        layer.eval()
