"""The app that `fedmaba flower new` writes, and the ClientApp of the docs, run as they are."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from fedmaba import flower
from fedmaba.deploy.flower_app.new import new
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, reply
from flower_grid import LocalGrid

ROOT = Path(__file__).parents[1]
PAGES = {p.name: p.read_text() for p in (ROOT / "docs").glob("*.md")}
BLOCKS = [
    block
    for page in PAGES.values()
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    if "ClientApp()" in block
]


@pytest.mark.parametrize(("spec", "mu"), [("fedmaba", 0.0), ("fedprox:mu=0.7", 0.7)])
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_client_app_of_the_docs_is_let_in(number, spec, mu):
    asked = []

    def my_training(weights, lr, prox):
        """What the reader of the page has: a loss, new weights, a count."""
        asked.append((lr > 0, prox))
        loss = float(sum((w**2).sum() for w in weights))
        return loss, [w - lr * (w - 1) for w in weights], 10

    names: dict = {"my_training": my_training}
    exec(compile(BLOCKS[number], "docs", "exec"), names)
    model = ArrayRecord(
        {"0.weight": Array(np.zeros((2, 3), "f4")), "0.bias": Array(np.zeros(2, "f4"))}
    )
    strategy = FlowerStrategy(spec, min_available_nodes=3, evaluate=False)
    grid = LocalGrid(dict.fromkeys((1, 2, 3), names["app"]))
    grid.config = {node: {"site": f"site-{node}"} for node in grid.apps}
    result = strategy.start(grid, model, 3)
    assert [report["refused"] for report in strategy.reports] == [[], [], []]
    assert all(list(r["sites"]) == ["site-1", "site-2", "site-3"] for r in strategy.reports)
    assert result.arrays["0.weight"].numpy().min() > 0.1
    assert asked == [(True, mu)] * 9


def test_there_is_a_client_app_in_the_docs():
    assert BLOCKS


def message(**arrays) -> Message:
    record = ArrayRecord({n.replace("_", "."): Array(a) for n, a in arrays.items()})
    return Message(RecordDict({"arrays": record}), 1, "train")


def test_arrays_without_names_are_those_of_the_message_in_order():
    asked = message(b_x=np.zeros(2), a_x=np.ones(3))
    answer = reply(asked, ArrayRecord([np.full(2, 5.0), np.full(3, 6.0)]), {}, "s")
    found = answer.content["arrays"]
    assert {n: a.numpy().tolist() for n, a in found.items()} == {"b.x": [5, 5], "a.x": [6, 6, 6]}
    named = ArrayRecord({"a.x": Array(np.ones(3)), "b.x": Array(np.ones(2))})
    assert reply(asked, named, {}, "s").content["arrays"] == named


@pytest.mark.parametrize(
    "wrong",
    [
        ArrayRecord([np.zeros(2)]),
        ArrayRecord([np.zeros(2)] * 3),
        ArrayRecord({"b.x": Array(np.zeros(2)), "w": Array(np.zeros(3))}),
    ],
)
def test_other_arrays_are_refused_at_the_site_itself(wrong):
    with pytest.raises(InputError, match=r"not of this model: .*by name or as a list"):
        reply(message(b_x=np.zeros(2), a_x=np.ones(3)), wrong, {}, "s")


# the template

SERVER = """
import sys; sys.modules["torch"] = None
import numpy as np
from flwr.app import Context, RecordDict
from fairapp import server_app
from fedmaba import flower
from fedmaba.deploy import reply_fetching
from flower_grid import LocalGrid, light_app
reply_fetching.POLL_SECONDS = 0.001
assert "fairapp.task" not in sys.modules
grid = LocalGrid({c + 1: light_app(c) for c in range(2)})
server_app.app(grid, Context(1, 1, {}, RecordDict(), RUN))
assert sys.modules["torch"] is None and "fairapp.task" not in sys.modules
"""


def test_a_server_that_starts_from_a_file_needs_no_torch(tmp_path):
    """Although its task.py, with a model of your own, may import it."""
    new(tmp_path / "app")
    task = tmp_path / "app" / "fairapp" / "task.py"
    task.write_text("import torch\n" + task.read_text())
    safetensors.numpy.save_file({"w": np.zeros(50, np.float32)}, tmp_path / "first.safetensors")
    run = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    run = run["tool"]["flwr"]["app"]["config"]
    run |= {"first-model": str(tmp_path / "first.safetensors"), "rounds": 2}
    run["state"] = str(tmp_path / "state")
    code = SERVER.replace("RUN", repr(run))
    tests = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{code}"],
        cwd=tmp_path / "app",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "state" / "models" / "last.safetensors").exists()


@pytest.mark.parametrize("version", ["this", "0.1.0"])
def test_the_app_trains_a_csv_file_with_some_of_its_classes(version, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    new(tmp_path / "app")
    if version == "0.1.0":
        written = tmp_path / "app" / "fairapp" / "task.py"
        text = written.read_text()
        assert "from fedmaba.data import datasets" in text
        written.write_text(
            text.replace("from fedmaba.data import datasets", "from fedmaba import datasets")
        )
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    from fairapp import client_app, task

    rng = np.random.default_rng(0)
    header = ",".join(["label", *(f"p{i}" for i in range(784))])
    rows = [",".join(map(str, [1 + i % 2, *rng.random(784).round(2)])) for i in range(12)]
    (tmp_path / "own.csv").write_text("\n".join([header, *rows]) + "\n")
    context = Context(1, 1, {"site": "north", "data": str(tmp_path / "own.csv")}, RecordDict(), {})
    monkeypatch.setattr(task, "SHAPE", (784,))
    first = flower.initial_arrays(task.MODEL, (784,), len(task.CLASSES))
    content = RecordDict({"arrays": first, "config": flower.ConfigRecord({"lr": 0.5})})
    answer = client_app.app(Message(content, 1, "train"), context)
    before, after = (list(a.values())[-1].numpy() for a in (first, answer.content["arrays"]))
    moved = after - before  # the biases of the classes: only those that are there may grow
    assert len(moved) == 10
    assert set(np.flatnonzero(moved > 0)) == {1, 2}
    for module in [m for m in sys.modules if m.startswith("fairapp")]:
        del sys.modules[module]
