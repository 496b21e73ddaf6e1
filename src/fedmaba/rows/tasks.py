"""The loss and the metric of each task: functions of (outputs, targets), a number per example.

Classification has none here: `Rows` computes its cross-entropy, and accuracy, by a faster way.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedmaba.data.targets import IGNORED
from fedmaba.rows.base import LossFn


class TaskFunctions(NamedTuple):
    """How a model is trained and judged where the user brings no functions."""

    loss: LossFn | None
    metric: LossFn | None


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over an example's numbers of the squared difference."""
    return (outputs - targets).square().reshape(len(outputs), -1).mean(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over an example's labels; outputs are logits."""
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def labels_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of an example's labels that are right; a label is given where its logit is > 0."""
    return ((outputs > 0) == (targets > 0.5)).to(outputs.dtype).mean(1)


def cross_entropy_over_positions(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over an example's positions that count."""
    wrong = F.cross_entropy(
        outputs.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED
    )
    return _over_positions(wrong, targets)


def positions_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of an example's positions that are right, of those that count."""
    right = (outputs.argmax(-1) == targets).to(outputs.dtype)
    return _over_positions(right.flatten(), targets)


def _over_positions(values: Tensor, targets: Tensor) -> Tensor:
    """(n,) The mean of values (n * positions,) over positions that count."""
    counts = (targets != IGNORED).flatten(1)
    return torch.where(counts, values.view(counts.shape), 0.0).sum(1) / counts.sum(1).clamp(min=1)


FUNCTIONS = {
    "classify": TaskFunctions(None, None),
    "regress": TaskFunctions(squared_error, squared_error),
    "multilabel": TaskFunctions(binary_cross_entropy, labels_right),
    "sequence": TaskFunctions(cross_entropy_over_positions, positions_right),
}
