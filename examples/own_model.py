"""One's own nn.Module, loss and metric.

python examples/own_model.py
"""

import torch
from torch import nn

import fedmaba


def small_cnn(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A factory takes the shape of an input and the number of classes."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 8, 5, stride=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(classes),
    )


def smoothed(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of each example."""
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def top3(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The score of each example, in place of accuracy."""
    return (outputs.topk(3).indices == targets[:, None]).any(1).float()


if __name__ == "__main__":
    print(
        fedmaba.compare(
            ["fedavg", "fedmaba"],
            model=small_cnn,
            loss=smoothed,
            metric=top3,
            clients=10,
            rounds=4,
            eval_every=2,
            seeds=1,
        )
    )
