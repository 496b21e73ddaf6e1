"""Any nn.Module as rows: every form gives what autograd gives the plain model, row by row."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from any_models import CLASSES, random_model
from fedmaba.errors import InputError
from fedmaba.rows import compile, inductor, traced
from fedmaba.rows.base import Layout, Step
from fedmaba.rows.general import LoopRows
from fedmaba.rows.operations import RowMethod, RowOperations
from fedmaba.rows.random import dropout_mask, fused_dropout_mask
from fedmaba.rows.traced import TracedRows

ROWS, SMALL = 2, 10
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
WAYS = [("each", False), ("products", False), ("products", True), ("groups", False)]


def of_type(x, dtype):
    return x.to(dtype) if x.is_floating_point() else x


class Tried:
    """Rows of a random model, and what the plain model gives for each."""

    def __init__(self, model, x, dtype=torch.float64, device="cpu"):
        self.model, self.dtype = model.to(device, dtype), dtype
        self.layout, many = Layout(model), len(x)
        draw = torch.Generator().manual_seed(1)
        start = self.layout.pack(model).to(device, dtype)
        self.flat = start + 0.1 * torch.randn(ROWS, len(start), generator=draw).to(start)
        self.x = of_type(torch.stack([x, x.flip(0)]), dtype).to(device)
        self.y = torch.randint(CLASSES, (ROWS, many), generator=draw).to(device)
        self.weight = torch.full((ROWS, many), 1 / many, dtype=dtype, device=device)
        self.weight[1] = torch.tensor([0.5, 0.5, 0.0])  # a partial minibatch
        self.keys = torch.tensor([2**62 + 5, -11], device=device)

    def step(self, scale=1.0):
        scale = torch.tensor(scale, dtype=self.dtype, device=self.flat.device)
        return Step(self.x, self.y, self.weight, scale, None, self.keys)

    def plain(self):
        """Losses and gradients of one model after another, and outputs in evaluation mode."""
        losses, grads, outs = [], torch.zeros_like(self.flat), []
        for r in range(ROWS):
            views = self.layout.views(self.flat)
            named = {n: v[r] for n, v in zip(self.layout.names, views, strict=True)}
            own = {n: v.detach().clone().requires_grad_() for n, v in named.items()}
            with RowOperations(RowMethod(rows=False), self.keys[r]):
                out = functional_call(self.model.train(), own, (self.x[r],))
            each = F.cross_entropy(out, self.y[r], reduction="none")
            loss = (each * self.weight[r]).sum()
            found = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
            for view, g in zip(self.layout.views(grads), found, strict=True):
                view[r] = g
            losses.append(loss.detach())
            with torch.no_grad():
                outs.append(functional_call(self.model.eval(), named, (self.x[r],)))
        return torch.stack(losses), grads, torch.stack(outs)

    def found(self, rows):
        sink = torch.zeros_like(self.flat)
        loss = rows.add_gradients(self.flat, sink, self.step())
        return loss, sink, rows.outputs(self.flat, self.x)

    def rows(self, way="each", fused=False, **how):
        out = TracedRows(self.model, self.layout, self.x[0], None, "", **how)
        out.many = replace(out.many, conv=way, fused=fused)
        out.alone = replace(out.alone, fused=fused)
        return out


def same(found, wanted, limit):
    for got, want in zip(found, wanted, strict=True):
        scale = max(float(want.abs().max()), 1e-3)
        assert float((got - want).abs().max()) < limit * scale


def agrees(seed, dtype=torch.float64, limit=1e-9, device="cpu", ways=WAYS):
    tried = Tried(*random_model(seed), dtype, device)
    wanted = tried.plain()
    assert float(wanted[1].abs().max()) > 0
    for way, fused in ways:
        same(tried.found(tried.rows(way, fused)), wanted, limit)
    loop = LoopRows(tried.model, tried.layout, tried.x[0], None, "")
    same(tried.found(loop), wanted, limit)
    return tried, wanted


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 30))]
)
def test_random_models_as_rows_are_the_plain_model(seed):
    agrees(seed, ways=WAYS[seed % 4 : seed % 4 + 1])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 330))
def test_many_random_models_as_rows_are_the_plain_model(seed, monkeypatch):
    tried, wanted = agrees(seed)
    agrees(seed, torch.float32, 1e-4)
    monkeypatch.setattr(traced, "CALLS_BEFORE_RECORDING", 1)
    same(tried.found(tried.rows()), wanted, 1e-9)


@pytest.mark.parametrize("seed", [1, 10])
def test_a_recorded_model_gives_the_bits_of_one_that_is_called(seed, monkeypatch):
    tried = Tried(*random_model(seed))
    before = tried.found(tried.rows())
    monkeypatch.setattr(traced, "CALLS_BEFORE_RECORDING", 1)
    rows = tried.rows()
    for _ in range(2):
        for got, want in zip(tried.found(rows), before, strict=True):
            assert torch.equal(got, want)
    assert len(rows.graphs) == 2
    calls = []
    rows.model.register_forward_hook(lambda *_: calls.append(1))
    tried.found(rows)
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", ["norm", "frozen"])
def test_a_norm_whose_inputs_have_no_gradient_does_not_end_the_process(start, dtype):
    """torch's GroupNorm does, for images with channels last, if only its weights are asked for."""
    torch.manual_seed(3)
    first = [nn.Conv2d(2, 2, 1).requires_grad_(False)] if start == "frozen" else []
    body = [*first, nn.GroupNorm(2, 2), nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(24, CLASSES)]
    tried = Tried(nn.Sequential(*body), torch.randn(3, 2, 6, 4), dtype)
    wanted = tried.plain()
    for rows in (tried.rows(), LoopRows(tried.model, tried.layout, tried.x[0], None, "")):
        same(tried.found(rows), wanted, 1e-9 if dtype == torch.float64 else 1e-4)


def test_masks_made_number_by_number_are_the_same():
    keys = torch.tensor([3, -(2**63), 2**63 - 1])
    for p in (0.0, 0.3, 0.5, 0.99999, 1.0):
        for shape in ((3, 7), (3, 4, 2), (3, 1)):
            size = torch.Size(shape)
            one = dropout_mask(keys, 4, size, p, torch.float64)
            other = fused_dropout_mask(keys, 4, size, p, torch.float64)
            torch.testing.assert_close(one, other, rtol=1e-15, atol=0)


class Wrong(nn.Module):
    """Rows of this cannot be computed at once or recorded."""

    def __init__(self, how):
        super().__init__()
        self.layer, self.how, self.calls = nn.Linear(6, CLASSES), how, 0

    def forward(self, x):
        self.calls += self.how == "counts"
        if self.how == "branches" and x.sum() > 0:
            return -self.layer(x)
        if self.how == "draws":
            return self.layer(x + torch.randn_like(x))
        if self.how == "drops":
            return self.layer(F.dropout(x.t(), 0.5, self.training).t())
        return self.layer(x)


REFUSED = {
    "branches": "depends on the values of its inputs",
    "draws": "random numbers of its own",
    "counts": "changes 'calls'",
    "drops": "batch_first=True",
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_has_no_rows_is_trained_row_by_row_and_says_why(how):
    rows = compile(Wrong(how), torch.randn(4, 6))
    assert type(rows) is LoopRows
    assert REFUSED[how] in rows.path
    assert rows.path.startswith("one client after another: Wrong has no row form; ")


def test_outputs_that_differ_from_the_model_are_refused(monkeypatch):
    model, x = random_model(SMALL)
    assert type(compile(model, x)) is TracedRows
    whole = TracedRows.outputs
    monkeypatch.setattr(TracedRows, "outputs", lambda self, *a: 1.001 * whole(self, *a))
    rows = compile(model, x)
    assert type(rows) is LoopRows
    assert "other outputs than the model itself" in rows.path


def test_gradients_that_differ_from_the_model_are_refused(monkeypatch):
    model, x = random_model(SMALL)
    whole = TracedRows.gradients
    monkeypatch.setattr(
        TracedRows, "gradients", lambda self, *a: tuple(g.flip(0) for g in whole(self, *a))
    )
    rows = compile(model, x)
    assert type(rows) is LoopRows
    assert "other gradients than the model itself" in rows.path


def test_the_form_on_a_cpu_depends_on_the_model_alone():
    small, image = random_model(SMALL), random_model(1)
    assert type(compile(*small)) is TracedRows
    assert type(compile(*image)) is LoopRows  # a convolution
    assert compile(*image).max_rows == 1
    wide = nn.Sequential(nn.Sequential(nn.Linear(6, 100_000), nn.LayerNorm(100_000)), nn.GELU())
    wide.append(nn.Linear(100_000, CLASSES))
    assert type(compile(wide, small[1])) is LoopRows


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Sizes are rounded up, and evaluations cut, as on CUDA."""
    made = TracedRows.__init__

    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.cuda = True

    monkeypatch.setattr(TracedRows, "__init__", init)
    monkeypatch.setattr(traced, "EVALUATED_AT_ONCE", (4, 2))


@pytest.mark.parametrize("seed", [0, 1])
def test_sizes_that_are_rounded_up_change_nothing(seed, as_on_a_gpu):
    tried = Tried(*random_model(seed))
    wanted = tried.plain()
    rows = tried.rows("products")
    rows.minibatch = 8
    whole = tried.step()._replace(of=9)
    sink = torch.zeros_like(tried.flat)
    loss = rows.add_gradients(tried.flat, sink, whole)
    same((loss, sink, rows.outputs(tried.flat, tried.x)), wanted, 1e-9)
    sizes = {shape[0] for key in rows.graphs if key[0].rows for shape, *_ in key[1:]}
    assert sizes == {3}  # 2 of 9 rows are computed as 3


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
        InputError,
        match="file is no folder that can be written: set FEDMABA_COMPILED",
    ):
        inductor.keep_kernels()


def test_what_is_compiled_is_told_with_its_time(monkeypatch):
    """With a stand-in for the compiler."""
    seen = []
    monkeypatch.setattr(inductor, "compile_graph", lambda graph, args: seen.append(1) or graph)
    model, x = random_model(SMALL)
    rows = compile(model, x, compiled=True)
    assert type(rows) is TracedRows
    assert "; compiling takes about " in rows.path
    monkeypatch.setattr(rows, "cuda", True)
    lines = []
    rows.tell = lines.append
    flat = rows.layout.pack(rows.model).repeat(2, 1)
    rows.compile(flat, lambda: rows.outputs(flat, x[None]))
    assert len(lines) == len(seen) == 1
    assert lines[0].startswith("compiling the evaluation of 256 examples: about ")
