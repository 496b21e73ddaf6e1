"""What only a GPU can show: kernels against float64 autograd, CUDA runs against CPU runs."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedmaba import strategies
from fedmaba.engine import Plan, Run, simulate, start
from fedmaba.models import cnn, mlp

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),  # a driver or compiler may have something to say
]
SPECS = [*strategies.REGISTRY, "propfair:below=scaled", "fedmaba:loss_at=end"]
ROWS, IMAGES = 3, 7


def off(got, want):
    return float((got.double() - want.detach()).norm() / want.detach().norm())


@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("shape", [(12, 12, 3, 5, 64), (11, 14, 1, 3, 16), (10, 10, 16, 5, 32)])
def test_convolutions_equal_autograd(shape, pair):
    from fedmaba.rows.kernels import Stage

    h, w, c, k, n = shape
    torch.manual_seed(0)
    stages = [Stage(h, w, c, k, n, pair)]
    if stages[0].ph > 3 and stages[0].pw > 3:
        stages.append(Stage(stages[0].ph, stages[0].pw, n, 3, 16, pair))
    x = torch.randn(ROWS, IMAGES, h, w, c, device="cuda")
    weights = [torch.randn(ROWS, s.k, s.k, s.c, s.n, device="cuda") * 0.1 for s in stages]
    biases = [torch.randn(ROWS, s.n, device="cuda") * 0.1 for s in stages]
    packed = [s.pack(v) for s, v in zip(stages, weights, strict=True)]
    y, kept = x, []
    for i, s in enumerate(stages):
        out, won = s.forward(y, packed[i], biases[i], i == len(stages) - 1)
        kept.append((y, won))
        y = out
    g = torch.randn_like(y)
    sinks = [torch.zeros_like(v) for v in weights]
    below = [torch.zeros_like(b) for b in biases]
    back = g
    for i in reversed(range(len(stages))):
        back = stages[i].backward(back, *kept[i], packed[i], sinks[i], below[i], i > 0)
    limit = 1e-4 if pair else 3e-2
    for r in range(ROWS):
        own = [v[r].double().permute(3, 2, 0, 1).requires_grad_() for v in weights]
        bias = [b[r].double().requires_grad_() for b in biases]
        z = x[r].double().permute(0, 3, 1, 2)
        for v, b in zip(own, bias, strict=True):
            z = F.max_pool2d(F.relu(F.conv2d(z, v, b)), 2)
        z.backward(g[r].double().permute(0, 3, 1, 2))
        assert off(y[r], z.permute(0, 2, 3, 1)) < limit
        for i in range(len(stages)):
            assert off(sinks[i][r], own[i].grad.permute(2, 3, 1, 0)) < 4 * limit
            assert off(below[i][r], bias[i].grad) < 4 * limit


def test_what_lies_between_the_products():
    from fedmaba.rows import kernels

    torch.manual_seed(0)
    z = torch.randn(4, 50, 10, device="cuda")
    y = torch.randint(0, 10, (4, 50), device="cuda")
    weight = torch.rand(4, 50, device="cuda")
    bent = torch.tensor([[5.0, 5.0, float("inf"), 9.0], [0.2] * 4, [5.0] * 4], device="cuda")
    want = z.double().requires_grad_()
    each = F.cross_entropy(want.flatten(0, 1), y.flatten(), reduction="none").view(4, 50)
    loss = (each * weight).sum(1)
    (grad,) = torch.autograd.grad(loss.sum(), want)
    room = bent[0] - loss
    factor = torch.where(room >= 0.2, 1 / room, 5.0)
    factor[2] = 1.0
    scale = torch.tensor(-0.3, device="cuda")
    got = z.clone()
    assert off(kernels.cross_entropy(got, y, weight, scale, bent), loss.detach()) < 1e-6
    assert off(got, grad * factor.detach()[:, None, None] * -0.3) < 1e-5
    flat = torch.randn(4, 33, device="cuda")  # weights of a row, of which the bias is a part
    bias, out = flat[:, 3:23], torch.randn(4, 50, 20, device="cuda")
    want = F.relu(out.double() + bias.double()[:, None])
    got = kernels.bias_act(out.clone(), bias, True)
    assert off(got, want) < 1e-6
    g, sink = torch.randn_like(out), torch.zeros(4, 33, device="cuda")
    masked = g.double() * (want > 0)
    assert off(kernels.act_grad(g.clone(), got, sink[:, 3:23], True), masked) < 1e-6
    assert off(sink[:, 3:23], masked.sum(1)) < 1e-5
    assert sink[:, :3].abs().max() == 0


def played(specs, fed, plan, make, stop=None):
    batch = start([Run(s, 3, fed) for spec in specs for s in strategies.parse(spec)], plan, make)
    for snapshot in simulate(batch):
        if stop == snapshot.round + 1:
            break
    return batch


def models(batch, name="model"):
    layout = batch.rows.layout
    rows = (layout.unpack(row).values() for row in getattr(batch.progress, name).double().cpu())
    return torch.stack([torch.cat([w.flatten() for w in row]) for row in rows])


@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_gpu_gives_the_numbers_of_a_cpu(make, make_federation):
    fed = make_federation(shape=(3, 16, 16))
    for participants in (None, 3):
        plan = Plan(rounds=4, participants=participants, minibatch=4, dtype="float64", eval_every=2)
        want = models(played(SPECS, fed, plan, make))
        cuda = Plan(**{**vars(plan), "device": "cuda"})
        batch = played(SPECS, fed, cuda, make)
        assert batch.tape.ready  # recorded and replayed
        got = models(batch)
        assert float(((got - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-9
        single = Plan(**{**vars(cuda), "dtype": "float32"})
        rough = models(played(SPECS, fed, single, make))
        # a value near zero may cross a ReLU or lose a pool: that moves a model more than rounding
        assert float(((rough - want).norm(dim=1) / want.norm(dim=1)).max()) < 1e-2


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bf16"])
def test_a_resumed_run_gives_the_same_bits(make, dtype, make_federation):
    fed = make_federation(sizes=(20,) * 5, shape=(3, 16, 16))
    plan = Plan(rounds=8, participants=3, minibatch=5, device="cuda", dtype=dtype, eval_every=4)
    whole = played(SPECS, fed, plan, make)
    half = played(SPECS, fed, plan, make, stop=5)
    saved, meta = half.progress.arrays(), {"round": 5, "chunk": half.progress.chunk}
    again = start(half.runs, plan, make)
    again.progress.restore(saved, {**meta, "diverged": half.progress.diverged})
    for _ in simulate(again):
        pass
    for name in ("model", "deployed", "best"):
        assert torch.equal(getattr(whole.progress, name), getattr(again.progress, name))
    for a, b in zip(whole.progress.states, again.progress.states, strict=True):
        assert all(np.array_equal(a[key], b[key]) for key in a)


def test_a_model_the_kernels_do_not_cover_still_runs(make_federation):
    def odd(shape, classes):
        return nn.Sequential(
            nn.Conv2d(shape[0], 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(classes)
        )

    fed = make_federation()
    plan = Plan(rounds=2, minibatch=4, dtype="float64")
    want = models(played(["fedavg", "fedmaba"], fed, plan, odd))
    got = models(played(["fedavg", "fedmaba"], fed, Plan(**{**vars(plan), "device": "cuda"}), odd))
    assert float((got - want).norm() / want.norm()) < 1e-9
