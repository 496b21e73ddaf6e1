"""The Flower examples of the page on Python do what they say, where flwr is installed."""

import re
import runpy

import pytest

from tools import reference

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedmaba import InputError, flower
from flower_grid import LocalGrid, light_model

BLOCKS = {  # by name: the code, and what it prints
    name: (code, printed)
    for name, code, printed in re.findall(
        r"^### (\w+)\n(?:(?!^### ).*\n)*?```python\n((?:(?!```).*\n)+)```$"
        r"(?:\n\n```text\n((?:(?!```).*\n)+)```$)?",
        reference.python(),
        re.MULTILINE,
    )
    if "flwr" in code
}


@pytest.fixture
def example(tmp_path, monkeypatch, capsys):
    """Runs an example; its names. What it prints is what the page shows."""

    def run(name):
        code, printed = BLOCKS[name]
        monkeypatch.chdir(tmp_path)
        script = tmp_path / "block.py"
        script.write_text(code, encoding="utf-8")
        names = runpy.run_path(str(script), run_name="__main__")
        assert capsys.readouterr().out == printed
        return names

    return run


def task() -> Message:
    content = RecordDict({"arrays": light_model(), "config": ConfigRecord({"lr": 0.1})})
    return Message(content, dst_node_id=1, message_type="train")


def context(**run) -> Context:
    return Context(1, 1, {}, RecordDict(), run)


@pytest.mark.parametrize("name", ["Limits", "SecureSum", "initial_arrays", "load_arrays"])
def test_an_example_prints_what_the_page_shows(name, example):
    assert BLOCKS[name][1]
    example(name)


def test_the_app_of_a_server_starts_the_strategy(example, monkeypatch):
    started = []
    monkeypatch.setattr(
        flower.FlowerStrategy,
        "start",
        lambda self, grid, arrays, num_rounds: started.append((self, len(arrays), num_rounds)),
    )
    example("FlowerStrategy")["app"](LocalGrid({}), context())
    ((strategy, arrays, rounds),) = started
    assert (strategy.settings.strategy.alpha, arrays, rounds) == (0.8, 6, 100)


def test_the_app_of_a_server_reads_the_runs_settings(example):
    app = example("strategy_of_run")["app"]
    with pytest.raises(InputError, match="unknown strategy 'best'"):
        app(LocalGrid({}), context(strategy="best"))


def test_the_app_of_a_site_trains(example):
    grid = LocalGrid({1: example("client_app")["app"]})
    grid.config = {1: {"site": "north"}}
    strategy = flower.FlowerStrategy("fedavg", min_available_nodes=1, min_train_nodes=1, lr=0.1)
    first = flower.initial_arrays("mlp", (28, 28), 10)
    trained = strategy.start(grid, first, num_rounds=1).arrays
    assert trained.keys() == first.keys()
    assert all((trained[key].numpy() != first[key].numpy()).any() for key in first)


def test_a_training_of_ones_own_answers(example):
    answer = example("reply")["train"](task(), context())
    (numbers,) = answer.content.metric_records.values()
    assert (numbers["num-examples"], numbers["loss"]) == (120, 0.7)
    (arrays,) = answer.content.array_records.values()
    assert (arrays["w"].numpy() == light_model()["w"].numpy()).all()


def test_an_app_with_the_mod_answers_nothing_in_plain(example):
    app: ClientApp = example("secure_mod")["app"]
    answer = LocalGrid({1: app}).answer(task())
    assert answer.has_error()


def test_every_name_has_an_example():
    assert set(BLOCKS) == set(flower.__all__)
