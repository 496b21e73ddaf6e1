"""Without a model each embedded data set gets one that fits it."""

import pytest

from fedmaba import Federation
from fedmaba.data import datasets
from fedmaba.data.natural import NATURAL
from fedmaba.experiment import config, starting

EMBEDDED = {"sample": "mlp", "synthetic": "mlp", **dict.fromkeys(NATURAL, "mlp")}
EMBEDDED["shakespeare"] = "lstm"


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_command_without_a_model_runs(name, call):
    asked = config.build({"strategies": ["fedavg"], "data": {"name": name}})
    assert asked.model == EMBEDDED[name]
    own = {"shakespeare": "shakespeare:length=20", "synthetic": "synthetic:clients=4"}.get(
        name, name
    )
    few = ["--min-examples", 800] if name == "shakespeare" else []
    words = ["--rounds", 1, "--seeds", 1, "--steps", 1, "--participants", 2, "--minibatch", 4]
    answer = call("compare", "fedavg", "--data", own, *words, *few, "--quiet", "--out", "a")
    assert answer.code == 0, answer.err


def test_a_data_set_in_python_gets_its_model_too():
    data = datasets.load("shakespeare:length=20")
    for given in (data, Federation.make(data, validation=0.0, test="local"), "shakespeare"):
        tree = starting.python_call(["fedavg"], {"data": given}).tree
        assert config.build(tree).model == "lstm"
    assert starting.python_call(["fedavg"], {"data": data, "model": "gpt"}).tree["model"] == "gpt"
