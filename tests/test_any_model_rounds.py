"""Three rounds of models of every layer kind are those of a plain loop, in both general forms."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedmaba.rows as package
from any_models import Attention, Branches, Cells, Positions, Recurrent, Sum
from fedmaba.rows import inductor
from fedmaba.rows.general import LoopRows
from fedmaba.rows.operations import RowMethod, RowOperations
from fedmaba.rows.traced import TracedRows
from plain_loop import PLAN, Plain, apart, one, played, vector


class Keyed(Plain):
    """The plain loop of a model as it stands; dropout follows the client's random stream."""

    def forward(self, model, x, key=None):
        if key is None:
            return model.eval()(x)
        with RowOperations(RowMethod(rows=False), key[0]):
            return model.train()(x)


class Lines(nn.Module):
    """Images (1, 8, 8) as eight lines, then some layers, then the classes."""

    def __init__(self, layers, width, classes):
        super().__init__()
        self.layers, self.out = nn.Sequential(*layers), nn.Linear(width, classes)

    def forward(self, x):
        return self.out(self.layers(x[:, 0]).mean(1))


def convolutions(shape, classes):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2, 1),
        Sum(nn.Sequential(nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2), nn.GroupNorm(2, 4))),
        Branches(nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 3, padding="same"), 1),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def attention(shape, classes):
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.1, batch_first=True)
    return Lines(
        [Positions(8, 8), layer, Sum(Attention(8, 2, need=True)), nn.RMSNorm(8)], 8, classes
    )


def recurrent(shape, classes):
    both = nn.LSTM(8, 3, 2, batch_first=True, dropout=0.3, bidirectional=True)
    layers = (Recurrent(both, True), Recurrent(nn.GRU(6, 5), False), Cells(nn.RNNCell(5, 4)))
    return Lines([*layers, nn.LayerNorm(4)], 4, classes)


class Tokens(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.embed, self.conv = nn.Embedding(5, 4), nn.Conv1d(4, 5, 3, padding=1)
        self.out = nn.Linear(5, classes)

    def forward(self, x):
        ids = (x.flatten(1)[:, :12] * 2).long().clamp(-2, 2) + 2
        return self.out(self.conv(self.embed(ids).transpose(1, 2)).relu().mean(2))


MAKERS = {f.__name__: f for f in (convolutions, attention, recurrent, Tokens)}


SLOW = [("attention", TracedRows), ("recurrent", TracedRows), ("convolutions", TracedRows)]
SLOW += [("recurrent", LoopRows), ("attention", LoopRows)]
PAIRS = [(name, form) for name in MAKERS for form in (TracedRows, LoopRows)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "form"),
    [pytest.param(*p, marks=[pytest.mark.slow] if p in SLOW else []) for p in PAIRS],
)
def test_three_rounds_are_those_of_a_plain_loop(name, form, fed, monkeypatch, few_threads):
    monkeypatch.setattr(package, "_is_small", lambda *args: form is TracedRows)
    plan, specs = replace(PLAN, participants=3), ["fedprox:mu=1", "propfair:M=3"]
    batch, _ = played(specs, fed, plan, MAKERS[name])
    assert type(batch.rows) is form, batch.rows.path
    single, _ = played(specs, fed, replace(plan, dtype="float32", chunk=2), MAKERS[name])
    for r, spec in enumerate(specs):
        want = Keyed(one(spec), 3, fed, plan, MAKERS[name]).run().path[-1]
        assert apart(vector(batch, batch.progress.model[r]), want) < 1e-9
        assert apart(vector(single, single.progress.model[r]), want) < 1e-4


def test_compiled_kernels_lie_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.delenv("FEDMABA_COMPILED", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert inductor.kernel_folder() == tmp_path / "fedmaba" / "compiled"
    monkeypatch.setenv("FEDMABA_COMPILED", str(tmp_path / "mine"))
    inductor.keep_kernels()
    assert inductor.os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDMABA_COMPILED", str(tmp_path / "file" / "below"))
    with pytest.raises(
        package.inductor.InputError,
        match="file is no folder that can be written: set FEDMABA_COMPILED",
    ):
        inductor.keep_kernels()


def test_what_is_compiled_is_told_with_its_time(fed, monkeypatch):
    """With a stand-in for the compiler."""
    seen = []
    monkeypatch.setattr(inductor, "compile_graph", lambda graph, args: seen.append(1) or graph)
    x = torch.randn(4, 1, 8, 8)
    rows = package.compile(attention((1, 8, 8), 4), x, compiled=True)
    assert type(rows) is TracedRows
    assert "; compiling takes about " in rows.path
    monkeypatch.setattr(rows, "cuda", True)
    lines = []
    rows.tell = lines.append
    flat = rows.layout.pack(rows.model).repeat(2, 1)
    rows.compile(flat, lambda: rows.outputs(flat, x[None]))
    assert len(lines) == len(seen) == 1
    assert lines[0].startswith("compiling the evaluation of 256 examples: about ")
