"""`fedmaba.compare` in Python: progress, the logger, trained models, typed keywords, repr."""

import io
import logging
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedmaba
from fedmaba import cli
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment.session import UserObjects, prepare
from fedmaba.report import call_progress
from run_folders import SMALL, softmax

ROOT = Path(__file__).parents[1]


@pytest.fixture
def unconfigured(monkeypatch):
    """Logging as a script finds it; pytest adds handlers of its own."""
    monkeypatch.setattr(call_progress, "LOG", logging.Logger("fedmaba"))


def compare(data, **options):
    return fedmaba.compare(["fedavg", "fedmaba"], data=data, **{**SMALL, "seeds": 2, **options})


def test_a_notebook_gets_no_cursor_codes(tiny_npz, monkeypatch, unconfigured, call):
    """ipykernel sets FORCE_COLOR, and so do some CI servers."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", seen := io.StringIO())
    compare(str(tiny_npz))
    words = f"compare fedavg --data {tiny_npz} --model softmax --rounds 2 --seeds 1 --out mine"
    monkeypatch.setattr(sys, "argv", ["fedmaba", *words.split()])
    with pytest.raises(SystemExit):
        cli.main()
    assert "round 2/2, " in seen.getvalue()
    assert "round 3/3, " in seen.getvalue()
    codes = set(re.findall(r"\x1b\[[0-9;?]*([A-Za-z])", seen.getvalue()))
    assert codes <= {"m"}  # colours


def test_progress_is_a_live_display_in_a_terminal(tiny_npz, monkeypatch, unconfigured):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setattr(sys, "stderr", seen := Terminal())
    compare(str(tiny_npz))
    text = seen.getvalue()
    assert "model: fast rows" in text
    assert "variance over rounds" in text  # a column of the display
    assert "\x1b[" in text


def test_without_progress_the_logger_alone_is_told(tiny_npz, capsys, caplog):
    with caplog.at_level(logging.INFO, "fedmaba"):
        compare(str(tiny_npz), progress=False)
    assert capsys.readouterr() == ("", "")
    told = [(record.name, record.levelname) for record in caplog.records]
    assert set(told) == {("fedmaba", "INFO")}
    assert any(record.message.startswith("model: fast rows") for record in caplog.records)
    assert any(record.message.startswith("round 3/3") for record in caplog.records)
    caplog.clear()
    compare(str(tiny_npz), progress=False)  # nobody asked for INFO
    assert capsys.readouterr() == ("", "")
    assert not caplog.records


def test_a_warning_is_said_once(capsys, unconfigured):
    from rich.console import Console

    call_progress.Speaker(Console(stderr=True)).warn("look at this\x1b[31m")
    assert capsys.readouterr().err.count("look at this") == 1
    call_progress.Speaker(None).warn("look at that")  # by logging's last resort
    assert capsys.readouterr().err == "look at that\n"


def test_the_logger_is_told_beside_the_display(capsys, caplog):
    from rich.console import Console

    with caplog.at_level(logging.INFO, "fedmaba"):
        call_progress.Speaker(Console(stderr=True)).note("model: small")
    assert [record.message for record in caplog.records] == ["model: small"]
    assert capsys.readouterr().err == "model: small\n"


def test_trained_models_come_back_in_memory_and_from_the_folder(tiny_npz, tmp_path):
    here = compare(str(tiny_npz), progress=False, server_momentum=0.5)
    there = compare(str(tiny_npz), progress=False, server_momentum=0.5, out=str(tmp_path / "run"))
    loaded = fedmaba.load_history(tmp_path / "run")
    kinds = {}
    for model in ("deployed", "last", "best"):
        first = here.model("fedmaba", seed=1, model=model)
        assert all(isinstance(value, torch.Tensor) for value in first.values())
        for other in (there, loaded):
            found = other.model("fedmaba", seed=1, model=model)
            assert found.keys() == first.keys()
            assert all(torch.equal(found[name], first[name]) for name in first)
        kinds[model] = first
    name = next(iter(kinds["last"]))
    assert not torch.equal(kinds["last"][name], kinds["deployed"][name])
    other = here.model("fedmaba", seed=0)
    assert not torch.equal(other[name], kinds["deployed"][name])


def test_a_trained_module_predicts_what_the_history_says(tiny_npz, tmp_path):
    with np.load(tiny_npz) as arrays:
        x, y, client = arrays["x"], arrays["y"], arrays["client"]
    fed = fedmaba.Federation.from_arrays(x, y, client, x_test=x, y_test=y, client_test=client)
    history = fedmaba.compare(
        "fedavg", data=fed, model=softmax, seeds=1, rounds=2, progress=False, out=tmp_path / "run"
    )
    accuracy = history.runs[0].accuracy()[-1]
    for net in (
        history.model("fedavg", module=True),
        fedmaba.load_history(tmp_path / "run").model("fedavg", module=softmax((6,), 3)),
    ):
        assert isinstance(net, nn.Module)
        with torch.no_grad():
            right = net(torch.as_tensor(x, dtype=torch.float32)).argmax(1).numpy() == y
        found = [right[client == c].mean() for c in np.unique(client)]
        assert found == pytest.approx(accuracy.tolist(), abs=1e-6)


@pytest.mark.slow  # a model of your own is made ready for many rows at once
def test_frozen_weights_are_in_every_model(tiny_npz, tmp_path):
    def frozen(shape, classes):
        net = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, classes))
        net[1].weight.requires_grad_(False)
        return net

    options = {**SMALL, "model": frozen, "seeds": 1, "progress": False}
    here = fedmaba.compare("fedavg", data=str(tiny_npz), **options)
    fedmaba.compare("fedavg", data=str(tiny_npz), **options, out=str(tmp_path / "run"))
    there = fedmaba.load_history(tmp_path / "run")
    for history in (here, there):
        for model in ("deployed", "last", "best"):
            assert set(history.model("fedavg", model=model)) == {
                "1.weight", "1.bias", "3.weight", "3.bias",
            }  # fmt: skip


def test_models_that_are_not_there_are_one_line(tiny_npz, tmp_path):
    history = compare(str(tiny_npz), progress=False, out=str(tmp_path / "run"))
    loaded = fedmaba.load_history(tmp_path / "run")
    for ask, said in (
        (lambda: history.model("fedmabaa", 0), "did you mean 'fedmaba'"),
        (lambda: history.model("fedmaba"), "choose one of its seeds: 0, 1"),
        (lambda: history.model("fedmaba", 7), "choose one of its seeds: 0, 1"),
        (lambda: history.model("fedmaba", 0, "first"), "choose one of deployed, last, best"),
        (lambda: history.model("fedmaba", 0, module="mlp"), "module='mlp': give a module"),
        (lambda: history.model("fedmaba", 0, module=nn.Linear(9, 9)), "do not fit the module"),
        (lambda: loaded.model("fedmaba", 0, module=True), "not the code of the model"),
        (lambda: fedmaba.History(history.runs).model("fedmaba", 0), "came without models"),
    ):
        with pytest.raises(InputError, match=said) as error:
            ask()
        assert "\n" not in str(error.value)
    (file,) = (tmp_path / "run" / "models").glob("*fedmaba-s0-last.safetensors")
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"last\.safetensors cannot be read"):
        loaded.model("fedmaba", 0, "last")


def test_repr_names_strategies_seeds_rounds_and_the_best_numbers(tiny_npz):
    history = compare(str(tiny_npz), progress=False)
    rows = {row.label: row.mean for row in history.summary()}
    fair = min(rows, key=lambda label: rows[label].variance)
    text = repr(history)
    assert text.startswith("<History: fedavg, fedmaba; seeds 0, 1; 3 rounds, 5 clients; ")
    assert f"least variance {rows[fair].variance:.2f} %² ({fair})" in text
    assert "best mean accuracy " in text
    assert "\n" not in text
    assert repr(history.runs[0]) == "<RunHistory: fedavg, seed 0; 3 rounds, 5 clients>"
    many = [fedmaba.RunHistory(f"a{i}", 0, "last", np.ones(3, int)) for i in range(9)]
    assert repr(fedmaba.History(many)).startswith("<History: a0, a1, a2, a3, a4, a5 and 3 more; ")
    assert repr(fedmaba.History([])) == "<History: no runs>"


WRONG = """
import fedmaba

history = fedmaba.compare("fedavg", rounds=2, lr=0.1, seeds=[0, 1], participants="all")
weights: int = history.model("fedavg")  # wrong, to see that the method is typed
fedmaba.compare("fedavg", roundz=2)
fedmaba.compare("fedavg", rounds="two")
fedmaba.compare("fedavg", optimiser="adm")
"""


@pytest.mark.slow
def test_mypy_finds_wrong_keywords_and_wrong_types(tmp_path):
    (tmp_path / "wrong.py").write_text(textwrap.dedent(WRONG))
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "wrong.py"]
    env = {"MYPYPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    found = [line for line in done.stdout.splitlines() if line.startswith("wrong.py")]
    errors = {int(line.split(":")[1]): line for line in found if ": error:" in line}
    assert set(errors) == {5, 6, 7, 8}, done.stdout
    assert 'Unexpected keyword argument "roundz"' in errors[6]
    assert 'Argument "rounds" to "compare" has incompatible type "str"' in errors[7]
    assert 'Argument "optimiser" to "compare" has incompatible type' in errors[8]


def test_help_lists_every_option():
    text = fedmaba.compare.__doc__
    for key in config.options():
        parameter = key.argument in fedmaba.compare.__kwdefaults__
        assert (f"    {key.argument}: {key.text} [{key.default}]" in text) != parameter


def test_a_model_without_a_row_form_says_what_that_costs(fed):
    def make(shape, outputs):
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(64, outputs)

            def forward(self, x):
                return self.inner(x.flatten(1))

        return Whole()

    for model, told in ((make, True), ("softmax", False)):
        experiment = config.build({"strategies": ["fedavg"], "data": {"name": "own"}, "seeds": 1})
        given = UserObjects(data=fed, model=make if told else None)
        if not told:
            experiment = experiment.model_copy(update={"model": model})
        notes = prepare(experiment, given).notes
        assert any("steps take longer than with a row form" in note for note in notes) == told
