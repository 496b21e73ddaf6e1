"""The ready models: what they take, that they train as a plain loop does, and that they copy."""

import ast
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba
from fedmaba.data.datasets import from_arrays
from fedmaba.data.federation import Federation
from fedmaba.data.trees import Shape
from fedmaba.errors import InputError
from fedmaba.rows import models, ready
from fedmaba.rows.ready.lstm import CharacterLSTM
from fedmaba.rows.ready.transformers import GPT
from plain_loop import PLAN, Plain, apart, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
FILES = sorted(Path(ready.__file__).parent.glob("[a-z]*.py"))
DOCS = Path(__file__).parents[1] / "docs" / "models.md"


class Whole(Plain):
    """The plain loop for a model that is no sequence of layers."""

    def forward(self, model, x, key=None):
        return model(x)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of attention by vmap on a CPU
@pytest.mark.parametrize("name", ["resnet8", pytest.param("vit", marks=pytest.mark.slow)])
def test_a_ready_model_of_images_trains_as_a_plain_loop(name, fed):
    plan = replace(PLAN, rounds=2, participants=2, steps=2, lr=0.05)
    make = models.find_factory(name)
    batch, _ = played(["fedavg"], fed, plan, make)
    want = Whole(batch.runs[0].strategy, 3, fed, plan, make).run().path[-1]
    assert apart(vector(batch, batch.progress.model[0]), want) < 1e-9


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("resnet8", (1, 28, 28), 10),
        ("resnet18", (3, 8, 8), 7),
        ("vit", (3, 32, 32), 10),
        ("vit", (1, 17, 11), 2),
        ("mlp-tabular", (5,), 2),
    ],
)
def test_sizes_come_from_the_data(name, shape, classes):
    model = models.build_model(models.find_factory(name), shape, classes, 0)
    assert model(torch.rand(2, *shape)).shape == (2, classes)


def texts(each: bool) -> Federation:
    """Three clients that write periodic texts; the next character is the target."""
    letters = (np.arange(60)[:, None] + np.arange(8)) % 3
    y = letters[:, 1:] if each else letters[:, -1]
    return Federation.make(
        from_arrays(letters[:, :-1], y, np.repeat([0, 1, 2], 20)), "given", None, 0, test="local"
    )


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("lstm", True),
        pytest.param("gpt", False, marks=pytest.mark.slow),
        pytest.param("lstm", False, marks=pytest.mark.slow),
        pytest.param("gpt", True, marks=pytest.mark.slow),
    ],
)
def test_a_model_of_characters_learns_to_go_on(name, each):
    """By its last character, or at each position: as the targets ask."""
    options = {"optimiser": "adam", "lr": 0.003, "steps": 6, "minibatch": 8}
    history = fedmaba.compare(
        "fedavg", data=texts(each), model=name, rounds=3, eval_every=3, seeds=1, **options
    )
    assert history.runs[0].accuracy("last")[-1].mean() > 0.8


@pytest.mark.parametrize("make", [CharacterLSTM, lambda v, c, e: GPT(v, 9, c, e, 32, 2)])
def test_a_model_of_characters_sees_those_before_and_none_after(make):
    torch.manual_seed(0)
    each, last = make(11, 7, True), make(11, 7, False)
    last.load_state_dict(each.state_dict())
    tokens = torch.randint(11, (2, 9))
    out = each(tokens)
    assert out.shape == (2, 9, 7)
    torch.testing.assert_close(last(tokens), out[:, -1])
    later = tokens.clone()
    later[:, 6:] = (tokens[:, 6:] + 1) % 11
    torch.testing.assert_close(each(later)[:, :6], out[:, :6])
    earlier = tokens.clone()
    earlier[:, 0] = (tokens[:, 0] + 1) % 11
    assert not torch.allclose(last(earlier), last(tokens))


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("resnet8", (6,), "model resnet8 wants images"),
        ("resnet18", (1, 4, 9), "sides of at least 8, but the data have shape (1, 4, 9)"),
        ("vit", (3, 3), "model vit wants images"),
        (
            "lstm",
            (1, 8, 8),
            "model lstm wants tokens, whole numbers from 0 of shape (length,), but",
        ),
        ("lstm", Shape((6,), "i"), "the data have whole numbers of shape (6,)"),  # some below 0
        ("gpt", Shape((6,)), "the data have numbers of shape (6,): use --model mlp"),
        ("mlp-tabular", (1, 8, 8), "model mlp-tabular wants the features of a table"),
    ],
)
def test_data_that_do_not_fit_are_one_line(name, shape, said):
    with pytest.raises(InputError) as error:
        models.build_model(models.find_factory(name), shape, 4, 0)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_file_needs_torch_alone_and_can_be_copied(file, tmp_path, monkeypatch):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [node.module] if isinstance(node, ast.ImportFrom) else [
                alias.name for alias in node.names
            ]  # fmt: skip
            assert {name.split(".")[0] for name in named} <= {"torch", "math", "typing"}
    shutil.copy(file, tmp_path / f"copied_{file.stem}.py")
    monkeypatch.syspath_prepend(tmp_path)
    own = [n for n in models.REGISTRY.values() if n.__module__.endswith(f"ready.{file.stem}")]
    assert own
    for make in own:
        assert callable(models.find_factory(f"copied_{file.stem}:{make.__name__}"))


def test_the_page_of_models_tells_the_number_of_weights():
    told = re.findall(r"^\| `([a-z0-9-]+)` \|.*\| ([0-9,]+) \|$", DOCS.read_text(), re.MULTILINE)
    assert {name for name, _ in told} == set(models.REGISTRY)
    for name, count in told:
        assert int(count.replace(",", "")) == parameters(name), name


def parameters(name: str) -> int:
    """Of CIFAR-10's images, of 80 characters out of 80, or of a table with 20 columns."""
    shape: tuple[int, ...] = (3, 32, 32)
    classes = 10
    if name in ("lstm", "lstm-small", "gpt"):
        shape, classes = Shape((80,), "i", 80), 80
    if name == "mlp-tabular":
        shape, classes = (20,), 2
    return weights(models.find_factory(name)(shape, classes))


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
