"""On a GPU, every kind of target and of inputs gives the numbers of a CPU, recorded or not."""

from dataclasses import replace

import pytest
import torch

from fedmaba.rows.stack import LayerRows
from fedmaba.rows.traced import TracedRows
from fedmaba.simulation.engine import Run
from plain_loop import PLAN, Wrapped, apart, mlp, played, vector
from test_target_kinds import CASES, TASKS, data_of
from toys import Minimising

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.filterwarnings("default"),
]
SPECS = ["fedavg", "fedprox:mu=1", "propfair:M=1.5,epsilon=0.3", "fedmaba"]


@pytest.mark.parametrize("case", [name for name in CASES if name != "loop"])  # it draws by device
@pytest.mark.parametrize("task", TASKS)
def test_a_gpu_gives_the_numbers_of_a_cpu(task, case, fed):
    inputs, of = CASES[case]
    make = of(task)[0]
    mine = replace(fed, data=data_of(task, inputs, len(fed.data.y)))
    plan = replace(PLAN, rounds=8, lr=0.05, dtype="float32")  # all take part: rounds repeat
    gpu, shots = played(SPECS, mine, replace(plan, device="cuda"), make)
    cpu, expected = played(SPECS, mine, plan, make)
    for r, spec in enumerate(SPECS):
        own = [
            {n: w.cpu() for n, w in batch.rows.layout.unpack(batch.progress.model[r]).items()}
            for batch in (gpu, cpu)
        ]
        for name, weights in own[1].items():
            assert apart(own[0][name], weights) < 1e-3, (spec, name)
    for shot, want in zip(shots, expected, strict=True):
        loss, other = (s.evaluations[0]["last"].loss for s in (shot, want))
        assert loss == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("form", [LayerRows, TracedRows])
def test_objectives_give_the_numbers_of_a_cpu(form, fed):
    def make(shape, classes):
        return mlp(shape, classes) if form is LayerRows else Wrapped(mlp(shape, classes))

    plan = replace(PLAN, rounds=8, lr=0.05, dtype="float32")
    rules = Minimising(number=0.2), Minimising(), Minimising("confident"), Minimising("tilted", 0.1)
    runs = [Run(rule, 3, fed) for rule in rules]
    gpu, _ = played(runs, fed, replace(plan, device="cuda"), make)
    cpu, _ = played(runs, fed, plan, make)
    assert isinstance(gpu.rows, form), gpu.rows.path
    for got, want in zip(gpu.progress.model.cpu(), cpu.progress.model, strict=True):
        assert apart(vector(gpu, got), vector(cpu, want)) < 1e-3
