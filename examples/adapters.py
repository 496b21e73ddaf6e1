"""A transformer with a frozen base: clients train and send an adapter (LoRA) and the last layer.

python examples/adapters.py
"""

import glob

import safetensors.torch
import torch
from torch import nn

import fedmaba
from fedmaba.adapters import add_lora, save_adapter
from fedmaba.data import datasets


class Block(nn.Module):
    """Attention over the lines of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.norm(x)
        weight = self.q(seen) @ self.k(seen).transpose(-1, -2) / x.shape[-1] ** 0.5
        return x + self.out(weight.softmax(-1) @ self.v(seen))


def transformer(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Each line of an image is a token."""
    lines, length = shape[-2:]
    model = nn.Sequential(nn.Flatten(1, 2), nn.Linear(length, 64), Block(64), Block(64))
    model.extend([nn.AvgPool2d((lines // 4, 1)), nn.Flatten()])  # the mean of seven lines each
    model.add_module("head", nn.Linear(4 * 64, classes))
    return model


def adapted(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The base from its file, frozen, with adapters at queries and values."""
    model = transformer(shape, classes)
    model.load_state_dict(safetensors.torch.load_file(glob.glob("base/models/*-deployed.*")[0]))
    return add_lora(model, ["q", "v"], rank=2, alpha=4, train=["head"])


if __name__ == "__main__":
    images = datasets.load("sample")
    public = fedmaba.Federation.from_arrays(images.x[1::8], images.y[1::8], 0 * images.y[1::8])
    fedmaba.compare("fedavg", model=transformer, data=public, rounds=2, seeds=1, out="base")
    x, y = images.x[::8], images.y[::8]
    clients = fedmaba.Federation.from_arrays(x, y, [f"{c % 5}" for c in y])  # of two classes each
    plan = {"data": clients, "rounds": 4, "eval_every": 2, "seeds": 2}
    print(fedmaba.compare(["fedavg", "fedmaba"], model=adapted, out="adapters", **plan))

    model = adapted((1, 28, 28), 10)
    save_adapter("adapter", model, glob.glob("adapters/models/*fedmaba*-deployed.*")[0])
    each = sum(p.numel() for p in model.parameters() if p.requires_grad)
    once = sum(p.numel() for p in model.parameters()) - each
    print(f"{once:,} numbers are held once, {each:,} in each row")
