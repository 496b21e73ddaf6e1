"""Which form of rows a model gets, and the reason that is given for it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from fedmaba.rows import compile, models
from fedmaba.rows.stack import plan_layers
from row_cases import FLAT, REASONS, VMAP, B, C, Case


@pytest.mark.parametrize("name", VMAP)
def test_a_model_without_a_row_form_is_vectorised_and_the_reason_named(name):
    case = Case(name)
    path = compile(case.template, case.x[0]).path
    assert path.startswith(("all rows at once by torch.func: ", "one client after another, "))
    assert REASONS.get(name, "no row form") in path


def test_the_fast_form_names_its_layers():
    case = Case("two convs")
    path = compile(case.template, case.x[0]).path
    assert path == "fast rows (Conv2d, ReLU, MaxPool2d, Flatten, Dropout, Linear)"


def tripled(shape, classes):
    first = nn.Linear(6, 6)
    first.register_forward_hook(lambda module, args, out: 3 * out)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, classes))


def pruned(shape, classes):
    first = prune.random_unstructured(nn.Linear(6, 6, bias=False), "weight", 0.5)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(6, classes))


@pytest.mark.parametrize("make", [tripled, pruned])
def test_hooks_of_a_model_are_heeded(make):
    model = models.build_model(make, FLAT, C, 0)
    rows, x = compile(model, torch.zeros(2, 6)), torch.randn(B, 6)
    assert "a model with hooks has no row form" in rows.path
    out = rows.outputs(rows.layout.pack(model)[None], x[None])[0]
    torch.testing.assert_close(out, model(x))


def test_relu_goes_behind_the_pool_it_stands_before():
    """Where a convolution is pooled at once; elsewhere it stays where it is."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(18, 3)),
    )
    made = plan_layers(model, torch.zeros(1, 1, 24, 24), "float32")
    kinds = [(type(layer).__name__, getattr(layer, "relu", None)) for layer in made.layers]
    front = [("Conv2d", False), ("MaxPoolTwo", True), ("Conv2d", True), ("Conv2d", False)]
    assert kinds == [*front, ("MaxPoolTwo", False), ("Flatten", None), ("Linear", False)]
