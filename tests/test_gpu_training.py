"""What only a GPU can show of local training: optimisers, step sizes, images in recorded work."""

from dataclasses import replace

import pytest
import torch

from fedmaba.rows import compile
from fedmaba.rows.cuda_graphs import GraphCache
from fedmaba.rows.images import take_augmented
from fedmaba.rows.models import cnn, mlp
from fedmaba.simulation.engine import Optimiser, Plan, Run, simulate, start
from fedmaba.strategies import parse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # a driver or compiler may have something to say
]
SPECS = ["fedavg", "fedprox:mu=0.5", "propfair", "fedsgd", "fedmaba:loss_at=mean"]
BASE = Plan(rounds=6, minibatch=4, lr=0.05, dtype="float64", device="cuda", eval_every=6)
STEPS = {"schedule": "warmup:2,cosine", "step_schedule": "warmup:2,cosine"}
# Adam divides by the size of a gradient: with a small epsilon it turns rounding into whole steps.
SMOOTH = replace(BASE, lr=0.01)
PLANS = {
    "nesterov": replace(BASE, optimiser=Optimiser(0.7, 0.01, "nesterov")),
    "adam": replace(SMOOTH, optimiser=Optimiser(optimiser="adam", clip=0.5, epsilon=0.1)),
    "adamw": replace(
        SMOOTH, optimiser=Optimiser(optimiser="adamw", weight_decay=0.1, epsilon=0.1), **STEPS
    ),
    "images": replace(BASE, augment="flip,crop:3"),
    "some images": replace(BASE, augment="flip,crop:3", participants=3),
}


def played(fed, plan, make):
    batch = start([Run(s, 3, fed) for spec in SPECS for s in parse(spec)], plan, make)
    for _ in simulate(batch):
        pass
    layout = batch.rows.layout
    rows = (layout.unpack(row).values() for row in batch.progress.model.double().cpu())
    return torch.stack([torch.cat([w.flatten() for w in row]) for row in rows])


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("name", PLANS)
def test_a_gpu_trains_as_a_cpu(name, make, make_federation, monkeypatch):
    recorded, record = [], GraphCache._record

    def noted(graphs, *args):
        recorded.append(args[0].__name__)
        return record(graphs, *args)

    monkeypatch.setattr(GraphCache, "_record", noted)
    fed, plan = make_federation(sizes=(8, 8, 8, 8, 8), shape=(3, 16, 16)), PLANS[name]
    want = played(fed, replace(plan, device="cpu"), make)
    got = played(fed, plan, make)
    assert "train_rows" in recorded
    assert float(((got - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-9
    rough = played(fed, replace(plan, dtype="float32"), make)  # with the kernels
    far = (rough - want).norm(dim=1) / want.norm(dim=1)
    assert float(far.median()) < 1e-4
    assert float(far.max()) < 1e-2


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_images_in_the_order_of_the_kernels_are_turned_and_cut_alike(dtype):
    x = torch.rand(12, 3, 16, 20, device="cuda")
    x[0, 0, 0, 0] = 1.0  # the largest stays, so that both are scaled alike
    rows = compile(cnn((3, 16, 20), 4).cuda(), x[:4], dtype=dtype)
    index = torch.arange(12, device="cuda").view(3, 4)
    keys, how = torch.tensor([5, -7, 2**60], device="cuda"), {"flip": True, "crop": 3}
    stored = rows.prepare(x)
    assert stored.shape != x.shape  # in the order of the kernels
    got = take_augmented(stored, index, keys, rows.image_axes, **how)
    plain = take_augmented(x, index, keys, (-2, -1), **how)
    again = rows.prepare(torch.cat([plain.flatten(0, 1), x[:1]]))[:12]
    assert torch.equal(got.flatten(0, 1), again)
