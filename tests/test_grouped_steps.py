"""Several steps at once, as the GPU's kernels take them, equal single steps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedmaba.rows import compile
from fedmaba.rows.base import ProxPull, Rows, Step, StepsAhead
from fedmaba.rows.grouped import RowBlock, SharedInputs
from kernels import Kernels
from row_cases import FAST, GROUPED, B, C, R, close, image, objective, sequence


@pytest.mark.parametrize("name", GROUPED)
def test_steps_in_a_group_are_those_one_after_another(name, kernels):
    torch.manual_seed(1)
    shape, model = GROUPED[name]()
    rows = compile(model, torch.randn(B, *shape), dtype="tf32")
    w = rows.layout.pack(model).double().repeat(R, 1)
    x, y = torch.randn(R, 4, B, *shape).double(), torch.randint(C, (R, 4, B))
    weight = torch.rand(R, 4, B).double()
    weight[:, -1, 1:] = 0  # padding
    bent = objective("propfair", M=[9.0, 2.0, 0.1], epsilon=[0.5] * R, slope=[1.0] * R)
    down = torch.tensor(-0.3).double()
    keys = torch.arange(4 * R).view(4, R)
    steps = [Step(x[:, k], y[:, k], weight[:, k], down, bent, keys[k]) for k in range(4)]
    one, many = w.clone(), w.clone()
    with torch.no_grad():
        losses = [rows.add_gradients(one, one, step) for step in steps]
        inputs = SharedInputs(x, [RowBlock(0, R, 0)])
        close(torch.stack(rows.run_group(many, inputs, steps)), torch.stack(losses))
    close(many, one)
    assert (many - w).abs().amax(1).min() > 1e-3


@pytest.mark.parametrize("name", FAST)
def test_a_pull_layer_by_layer_gives_the_bits_of_one_of_all_weights(name):
    torch.manual_seed(1)
    shape, model = FAST[name]()
    rows = compile(model, torch.randn(B, *shape))
    w = rows.layout.pack(model) + 0.1 * torch.rand(R, rows.layout.size)
    x, y = torch.randn(R, B, *shape), torch.randint(C, (R, B))
    step = Step(x, y, torch.rand(R, B), torch.tensor(-0.3), None, torch.arange(R))
    for start in (torch.rand_like(w), torch.rand_like(w[:1])):  # its own, or one for all rows
        whole, apart = w.clone(), w.clone()
        pull = ProxPull(start, torch.tensor([[0.02], [0.6], [0.0]]))
        with torch.no_grad():
            losses = Rows.add_pulled_gradients(rows, whole, pull, step)
            assert torch.equal(rows.add_pulled_gradients(apart, pull, step), losses)
        assert torch.equal(apart, whole)
        assert not torch.equal(whole, w)


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("together", [1, 2])
def test_rows_that_share_inputs_are_those_with_copies_of_them(name, together, kernels):
    torch.manual_seed(1)
    shape, model = GROUPED[name]()
    rows = compile(model, torch.randn(B, *shape), dtype="tf32")
    owner = torch.tensor([0, 1, 2, 1, 2, 0])
    w = rows.layout.pack(model).double() + 0.1 * torch.rand(6, rows.layout.size).double()
    x, y = torch.randn(3, 2, B, *shape).double(), torch.randint(C, (6, 2, B))
    weight, keys = torch.rand(6, 2, B).double(), torch.arange(12).view(2, 6)
    down, blocks = (
        torch.tensor(-0.3).double(),
        [RowBlock(0, 3, 0), RowBlock(3, 5, 1), RowBlock(5, 6, 0)],
    )
    steps = [Step(x[owner, k], y[:, k], weight[:, k], down, None, keys[k]) for k in range(2)]
    one, many, got = w.clone(), w.clone(), []
    with torch.no_grad():
        want = [rows.add_gradients(one, one, step) for step in steps]
        for k in range(0, 2, together):
            blind = [step._replace(x=None) for step in steps[k : k + together]]
            got += rows.run_group(many, SharedInputs(x[:, k : k + together], blocks, owner), blind)
    close(torch.stack(got), torch.stack(want))
    close(many, one)


def test_only_plain_vectors_whose_weights_outgrow_the_cache_go_in_groups(kernels, monkeypatch):
    def asked(name, dtype="tf32", minibatch=5):
        shape, model = {**FAST, "image": image, "sequence": sequence}[name]()
        rows = compile(model, torch.randn(B, *shape), dtype=dtype)
        extra = rows.room(minibatch) - Rows.room(rows, minibatch)
        key, steps = np.arange(R), np.full(R, 3)
        plan = rows.plan(
            torch.empty(1, rows.layout.size), StepsAhead(key, key, steps, minibatch, None, False)
        )
        return plan.most if plan else 1, extra

    cache = SimpleNamespace(L2_cache_size=R * 6 * 7 * 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: cache)
    assert asked("dropout") == (1, 40 * (6 + 2 * 7 + 40))  # room for more rows than these
    cache.L2_cache_size -= 1
    assert asked("dropout") == (8, 40 * (6 + 2 * 7 + 40))  # sqrt(250 * 7) examples
    assert asked("image")[0] == 9
    assert asked("dropout", minibatch=Kernels.MAX_MINIBATCH + 1) == (1, 0)
    assert asked("dropout", "float32") == (1, 0)
    for name in ("no bias first", "sequence", "vectors of vectors", "conv", "relu first"):
        assert asked(name) == (1, 0)
