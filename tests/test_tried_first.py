"""Models, losses and metrics of a user's are tried before the first round: one line for each."""

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba
from fedmaba.data.dataset import Dataset
from fedmaba.deploy.client import LocalClient, first_model
from fedmaba.errors import InputError

pytestmark = pytest.mark.usefixtures("few_threads")


def run(fed, **options):
    given = {"model": "softmax", "rounds": 1, "seeds": 1, "progress": False, **options}
    return fedmaba.compare(["fedavg"], data=fed, **given)


class Net(nn.Module):
    """One linear layer, and what a mistake makes of its outputs."""

    def __init__(self, forward, width, outputs):
        super().__init__()
        self.linear, self.change = nn.Linear(width, outputs), forward

    def forward(self, x):
        return self.change(self.linear(x.flatten(1)))


def net(forward):
    return lambda shape, outputs: Net(forward, int(np.prod(shape)), outputs)


def spoilt(shape, outputs):
    made = Net(lambda out: out, int(np.prod(shape)), outputs)
    nn.init.constant_(made.linear.weight, torch.nan)
    return made


def halved(shape, outputs):
    return Net(lambda out: out.float(), int(np.prod(shape)), outputs).half()


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (net(torch.detach), "its outputs have no gradient, so nothing would be trained: leave out"),
        (net(lambda out: torch.tensor(out.detach().numpy())), "its outputs have no gradient"),
        (net(lambda out: out.argmax(1, keepdim=True).expand(-1, 4)), "its outputs are of int64"),
        (halved, "has the weights 'linear.weight' of float16: make them float32; --dtype says"),
        (
            spoilt,
            "its weights 'linear.weight' are not finite at the start: correct",
        ),
        (
            net(lambda out: out * np.random.random()),  # noqa: NPY002
            "its output changes from call to call .*: draw random numbers by torch, not by numpy",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_one_line(make, line, fed):
    with pytest.raises(InputError, match=f"model '.*:? {line}"):
        run(fed, model=make)


def entropy(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        ({"loss": lambda o, y: o.missing}, r"the loss: .*test_tried_first.py, line \d+: Attribute"),
        ({"loss": lambda o, y: entropy(o.detach(), y)}, "the loss has no gradient, so nothing"),
        ({"loss": lambda o, y: (o.argmax(1) != y).long()}, "the loss has no gradient"),
        ({"loss": lambda o, y: entropy(o, y) * torch.nan}, "the loss gave a value that is not fin"),
        ({"loss": lambda o, y: entropy(o, y) * np.random.random()}, "the loss gives other values"),  # noqa: NPY002
        ({"metric": lambda o, y: 1 / 0}, r"the metric: .*line \d+: ZeroDivisionError: .*: fix it"),
        ({"metric": lambda o, y: o.mul_(2).sum(1)}, "the metric changes what it is given: copy it"),
        ({"metric": lambda o, y: y.add_(1)}, "the metric changes what it is given"),
    ],
)
def test_a_function_that_no_training_can_use_is_one_line(functions, line, fed):
    with pytest.raises(InputError, match=line):
        run(fed, **functions)


def test_a_metric_may_leave_torch(fed):
    def right(outputs, targets):
        return torch.from_numpy((outputs.numpy().argmax(1) == targets.numpy()) * 1.0)

    assert run(fed, metric=right).runs[0].diverged == ""


class Padded(nn.Module):
    """Attention to what is no padding: an example of padding alone is none."""

    def __init__(self, outputs):
        super().__init__()
        self.embed, self.out = nn.Embedding(30, 8), nn.Linear(8, outputs)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 1)

    def forward(self, x):
        padding = x == 0
        if padding.all(1).any():
            raise ValueError("an example of padding alone")
        seen = self.encode(self.embed(x), src_key_padding_mask=padding)
        return self.out(seen.masked_fill(padding[..., None], 0).sum(1))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_model_is_tried_with_the_users_own_examples():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 30, (60, 6))
    x[:, 4:] = 0
    x[:20, 2:] = 0
    fed = fedmaba.Federation.from_arrays(x, x[:, 0] % 3, np.arange(60) % 4)
    history = run(fed, model=lambda shape, outputs: Padded(outputs))
    assert history.runs[0].diverged == ""
    weights = first_model(lambda shape, outputs: Padded(outputs), (6,), 3, 0)
    site = LocalClient(
        lambda shape, outputs: Padded(outputs), Dataset("site", x, x[:, 0] % 3, 40, ("0", "1", "2"))
    )
    assert site.evaluate(weights)
