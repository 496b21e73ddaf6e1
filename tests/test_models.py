"""Models by name or from your own code: which are built, which are refused and why."""

import pytest
import torch
from torch import nn

from fedmaba.errors import InputError
from fedmaba.rows import compile, models
from row_cases import FLAT, C


class Counting(nn.Module):
    """Weighs by how often it was called."""

    def __init__(self, classes):
        super().__init__()
        self.a = nn.Linear(6, classes)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("constant", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.a(x) * self.constant / (1 + self.calls)


@pytest.mark.parametrize(
    ("make", "buffer"),
    [
        (lambda shape, classes: Counting(classes), "calls"),
        (lambda shape, classes: nn.utils.spectral_norm(nn.Linear(6, classes)), "weight_u"),
        (
            lambda shape, classes: nn.utils.parametrizations.spectral_norm(nn.Linear(6, classes)),
            r"parametrizations\.weight\.0\._u",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_a_buffer_that_training_changes_is_refused(make, buffer):
    with pytest.raises(InputError, match=f"training changes the buffer '{buffer}', .* leave out"):
        models.build_model(make, FLAT, C, 0)


class Mixing(nn.Module):
    """Normalises over a minibatch by hand."""

    def __init__(self, classes, training):
        super().__init__()
        self.a, self.mixes = nn.Linear(6, classes), training

    def forward(self, x):
        y = nn.functional.dropout(self.a(x), 0.3, self.training)
        return y - y.mean(0) if self.training == self.mixes else y


@pytest.mark.parametrize("training", [True, False])
def test_a_model_that_mixes_examples_is_refused(training):
    with pytest.raises(InputError, match="depends on the others of the minibatch, which is padded"):
        models.build_model(lambda shape, classes: Mixing(classes, training), FLAT, C, 0)


def test_constant_buffers_are_accepted_and_the_model_is_left_as_it_is():
    def make(shape, classes):
        model = nn.Sequential(nn.Linear(6, classes), nn.Dropout(0.5))
        model.register_buffer("constant", torch.full((2,), -torch.inf))
        return model

    model = models.build_model(make, FLAT, C, 0)
    assert not model.training
    assert model.constant.isinf().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s, c: nn.Linear(7, c), r"does not accept inputs of shape \(6,\)"),
        (lambda s, c: nn.Conv2d(3, c, 3), r"does not accept inputs of shape \(6,\)"),
        (lambda s, c: nn.Linear(6, c - 1), r"shape \(4,\) per example, but the data have 5"),
        (
            lambda s, c: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))),
            r"gives outputs of shape \(2, 3\)",
        ),
        (lambda s, c: "mlp", "gave a str: return an nn.Module"),
        (lambda s, c: Three(), "outputs as tuple"),
        (lambda s, c: nn.Identity(), "weights|parameters"),
    ],
    ids=["size", "kind", "classes", "shape", "no module", "tuple", "nothing to train"],
)
def test_a_model_that_does_not_fit_the_data_is_refused(make, message):
    with pytest.raises(InputError, match=message) as caught:
        models.build_model(make, FLAT, C, 0)
    assert "\n" not in str(caught.value)


class Three(nn.Module):
    """Gives three tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, C)

    def forward(self, x):
        return self.layer(x), x, x


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mpl", "did you mean 'mlp'"),
        ("no.such.module:make", "No module named 'no'"),
        ("math:no_such", "no_such"),
        ("math:pi", "is no factory"),
    ],
)
def test_a_model_name_that_leads_nowhere_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        models.find_factory(name)


@pytest.mark.parametrize("name", ["mlp", "cnn", "softmax"])
def test_the_papers_models_take_the_fast_form(name):
    shape = (3, 16, 16)
    model = models.build_model(models.find_factory(name), shape, 10, 0)
    assert compile(model, torch.zeros(2, *shape)).path.startswith("fast rows")
    assert model(torch.zeros(2, *shape)).shape == (2, 10)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a, b, other = (
        models.build_model(models.softmax, FLAT, C, seed)[1].weight for seed in (4, 4, 5)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a, b)
    assert not torch.equal(a, other)
