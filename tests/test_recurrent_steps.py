"""The steps of a recurrent layer: one operation to a compiler, however long the sequence is."""

import pytest
import torch
from torch import nn

from fedmaba.rows import inductor, traced
from test_any_model import Tried, same

LENGTH, WIDTH = 40, 4


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.steps = kind(3, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.out(self.steps(x)[0][:, -1])


def tried(kind, dtype=torch.float32):
    draw = torch.Generator().manual_seed(0)
    return Tried(Recurrent(kind), torch.randn(3, LENGTH, 3, generator=draw), dtype)


@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow), nn.RNN])
def test_a_long_sequence_gives_a_compiler_few_operations(kind, monkeypatch):
    seen = []

    def compile_graph(graph, inputs):
        seen.append(len(graph.graph.nodes))
        return graph

    monkeypatch.setattr(traced, "CALLS_BEFORE_RECORDING", 1)
    monkeypatch.setattr(inductor, "compile_graph", compile_graph)
    case = tried(kind)
    rows = case.rows("products", True, compiled=True)
    same(case.found(rows), case.plain(), 1e-4)
    assert len(seen) == 2  # of training and of evaluation
    assert max(seen) < 200  # a step alone has ten and more


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_step_is_compiled_once_for_all_steps(kind, monkeypatch):
    compiled = []

    def compile_graph(graph, inputs):
        compiled.append(tuple((v.shape, v.stride()) for v in inputs))
        return graph

    monkeypatch.setattr(inductor, "compile_graph", compile_graph)
    monkeypatch.setattr(inductor, "available", lambda device: True)
    monkeypatch.setattr(inductor, "KERNELS", {})
    case = tried(kind)
    same(case.found(case.rows("products", True)), case.plain(), 1e-4)
    assert len(compiled) == 3  # forward and backward of all rows, forward of one
    assert len(inductor.KERNELS) == 3
    case = tried(kind, torch.float64)
    same(case.found(case.rows("products", True)), case.plain(), 1e-9)
    assert len(compiled) == 3  # float64 is for checks, which need no kernels
