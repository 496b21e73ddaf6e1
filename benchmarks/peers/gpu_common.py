"""What the scripts of `benchmarks/gpu_peers.py` share: the jobs, their data, and turns on a GPU.

Each script runs in a process of its own: JOB HOW FOLDER DEVICE small|whole. It gets ready, plays a
round or more to warm up, says so, and waits. Then it plays rounds each time that it is told to.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

PARALLEL = 8  # processes or threads of BlazeFL: where its README's plot has processes fastest
SHARE = 5  # processes of pfl


@dataclass(frozen=True)
class Job:
    """What is trained: the sizes of a peer's own benchmark."""

    clients: int
    each: int  # training examples of a client
    participants: int
    minibatch: int
    epochs: int
    lr: float
    tested: int  # test examples, all together
    eval_every: int
    shape: tuple[int, ...]
    classes: int
    warm: int  # rounds before the clock starts


JOBS = {
    "blazefl": Job(100, 500, 100, 50, 5, 0.1, 10_000, 1, (3, 32, 32), 10, 10),
    "pfl": Job(1000, 50, 50, 10, 1, 0.1, 10_000, 10, (3, 32, 32), 10, 20),
    # A tenth of FEMNIST's clients: a round's work is the same, and the data take less time to make.
    "flute-cnn": Job(340, 198, 10, 20, 1, 0.1, 6_800, 50, (1, 28, 28), 62, 60),
    "flute-lstm": Job(715, 22, 10, 4, 1, 0.8, 2_145, 50, (80,), 90, 60),
    "flute-resnet18": Job(500, 100, 10, 20, 1, 0.1, 10_000, 50, (3, 24, 24), 100, 60),
}


def job(name, small):
    """A job; or the same job on very little data, to try the command without a GPU."""
    whole = JOBS[name]
    if not small:
        return whole
    few = min(whole.participants, 4)
    return Job(6, 20, few, 10, 2, whole.lr, 30, 2, whole.shape, whole.classes, 1)


def write(name, small, folder):
    """The examples of a job as .npy files that every script can map."""
    it, rng = job(name, small), np.random.default_rng(0)
    many = it.clients * it.each + it.tested
    if name == "flute-lstm":  # characters, and the one after each
        text = rng.integers(1, it.classes, size=(many, it.shape[0] + 1))
        x, y = text[:, :-1], text[:, 1:]
    else:
        x = rng.standard_normal((many, *it.shape), dtype=np.float32)
        y = rng.integers(it.classes, size=many)
    np.save(folder / f"{name}-x.npy", np.ascontiguousarray(x))
    np.save(folder / f"{name}-y.npy", np.ascontiguousarray(y))


def read(name, folder):
    """Inputs and targets, mapped: those of client c from c * each on, test examples at the end."""
    paths = (Path(folder) / f"{name}-{part}.npy" for part in "xy")
    return tuple(np.load(path, mmap_mode="r", allow_pickle=False) for path in paths)


class Characters(nn.Module):
    """The next of 90 kinds of characters after each of 80: two LSTM layers of 256."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(90, 8), nn.Linear(256, 90)
        self.steps = nn.LSTM(8, 256, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.out(self.steps(self.embed(x))[0])


class Block(nn.Module):
    """Two convolutions and what goes around them; 32 channels in a group."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.a = nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm_a, self.norm_b = (
            nn.GroupNorm(width // 32, width),
            nn.GroupNorm(width // 32, width),
        )
        around = (nn.Conv2d(inside, width, 1, stride, bias=False), nn.GroupNorm(width // 32, width))
        same = stride == 1 and inside == width
        self.short = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, x):
        y = self.norm_b(self.b(torch.relu(self.norm_a(self.a(x)))))
        return torch.relu(y + self.short(x))


def resnet18():
    """ResNet-18 as for ImageNet, with GroupNorm: images of 24 x 24 leave one value a channel."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(2, 64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for width in (64, 128, 256, 512):
        layers += [Block(inside, width, 1 if width == 64 else 2), Block(width, width, 1)]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def model(name):
    """The model of a job."""
    if name == "flute-lstm":
        return Characters()
    if name == "flute-resnet18":
        return resnet18()
    if name == "blazefl":  # the CNN of PyTorch's CIFAR-10 tutorial
        images = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU())
        dense = (nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
        return nn.Sequential(*images, nn.MaxPool2d(2), nn.Flatten(), *dense)
    it = JOBS[name]
    values = 64 * ((it.shape[1] - 4) // 2) ** 2
    images = (nn.Conv2d(it.shape[0], 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
    dense = (nn.Linear(values, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, it.classes))
    return nn.Sequential(*images, nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(), *dense)


def allow_tf32():
    """Products as in our tf32; a simulator's script asks for it in all its processes."""
    for products in (torch.backends.cuda.matmul, torch.backends.cudnn):
        products.allow_tf32 = True


def asked():
    """What the command line of a script says: job's name, how, folder, device, small."""
    name, how, folder, device, size = sys.argv[1:]
    return name, how, Path(folder), device, size == "small"


class Turns:
    """Plays rounds when it is told: `tick` is called after each round, and waits between turns."""

    def __init__(self, warm, each_round, device, form=""):
        self.warm, self.each_round, self.cuda = warm, each_round, device == "cuda"
        self.form = form  # of ours: which of its forms the model has
        self.rounds = self.begun = self.wanted = 0

    def tick(self):
        """A round has ended."""
        self.rounds += 1
        if self.warm:
            self.warm -= 1
            if not self.warm:
                self.wait({"ready": True, "form": self.form})
            return
        if time.perf_counter() - self.begun < self.wanted:
            return
        if self.cuda:
            torch.cuda.synchronize()
        took = time.perf_counter() - self.begun
        done = {"rounds": self.rounds, "seconds": took}
        self.wait({**done, "per_second": self.rounds * self.each_round / took})

    def wait(self, told):
        """Say something, then wait for the next turn, or for the end."""
        if self.cuda:
            torch.cuda.synchronize()
        print(json.dumps(told), flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            sys.stdout.flush()
            os._exit(0)  # not through a simulator's own clearing up
        self.rounds, self.wanted = 0, float(line)
        self.begun = time.perf_counter()
