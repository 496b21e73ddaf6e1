"""On a GPU: BatchNorm by each choice and rows of adapters give what a CPU gives."""

import dataclasses

import pytest
import torch
from torch import nn

from fedmaba.adapters import add_lora
from fedmaba.rows.base import constants
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.simulation.parts.own_layers import OWN
from plain_loop import apart, one

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # a driver or compiler may have something to say
]
PLAN = Plan(rounds=4, minibatch=4, lr=0.1, device="cpu", dtype="float32")


def image_net(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, classes)
    )


class Attention(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        x = x.flatten(1, 2)
        mixed = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head((x + mixed).flatten(1))


def adapted(shape, classes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        base = Attention(classes)
    return add_lora(base, ["q", "v"], rank=2, train=["head"])


@pytest.mark.parametrize(
    ("make", "choice"),
    [(image_net, "average"), (image_net, "local"), (image_net, "frozen"), (adapted, "refuse")],
)
def test_a_gpu_gives_what_a_cpu_gives(make, choice, fed):
    runs = [Run(one(spec), 3, fed) for spec in ("fedavg", "fedmaba", "fedmaba:loss_at=end")]
    ends = []
    for device in ("cpu", "cuda"):
        plan = dataclasses.replace(PLAN, batchnorm=choice, device=device)
        batch = start(runs, plan, make)
        *_, last = simulate(batch)
        assert not any(batch.progress.diverged)
        ends.append((batch, last))
    (cpu, first), (gpu, second) = ends
    shared = cpu.rows.layout.shared
    assert constants(gpu.rows.model).keys() == constants(cpu.rows.model).keys()
    for r in range(len(runs)):
        mine, theirs = (b.rows.layout.unpack(b.progress.model[r].cpu()) for b in (gpu, cpu))
        flat = [torch.cat([w[n].flatten() for n in theirs]) for w in (mine, theirs)]
        assert apart(*flat) < 2e-3
        if choice == "local":
            assert shared < cpu.rows.layout.size
            kept = [batch.progress.memory.columns[r][OWN].cpu() for batch in (gpu, cpu)]
            assert apart(*kept) < 2e-3
        losses = [e.evaluations[r]["last"].loss for e in (second, first)]
        assert abs(losses[0] - losses[1]).max() < 2e-2
