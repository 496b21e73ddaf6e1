"""Several values in one Python call: progress, trained models, pandas, exports and JSON."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.report import call_progress, data, export

HOW = {"model": "softmax", "rounds": 2, "seeds": 1, "eval_every": 2, "lr": [0.01, 0.1]}


@pytest.fixture(scope="module")
def swept(tiny_npz, tmp_path_factory):
    """The same sweep in memory and in a folder."""
    out = tmp_path_factory.mktemp("swept") / "run"
    how = {**HOW, "data": str(tiny_npz), "progress": False}
    return fedmaba.compare("fedavg", **how), fedmaba.compare("fedavg", **how, out=out), out


def test_every_computation_says_how_far_it_is(tiny_npz, capsys, monkeypatch):
    import logging

    monkeypatch.setattr(call_progress, "LOG", logging.Logger("fedmaba"))
    fedmaba.compare("fedavg", data=str(tiny_npz), **HOW)
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("computation ")]
    assert told == ["computation 1 of 2: fedavg", "computation 2 of 2: fedavg"]
    assert sum(line.startswith("round 2/2, ") for line in lines) == 2


def test_models_are_those_of_the_part_that_trained_them(swept, tiny_npz):
    here, there, out = swept
    loaded = fedmaba.load_history(out)
    for lr in (0.01, 0.1):
        label = f"fedavg, lr={lr}"
        alone = fedmaba.compare(
            "fedavg", data=str(tiny_npz), **{**HOW, "lr": lr}, progress=False
        ).model("fedavg")
        for history in (here, there, loaded):
            found = history.model(label)
            assert found.keys() == alone.keys()
            assert all(torch.equal(found[name], alone[name]) for name in alone), label
        for history in (here, there):
            module = history.model(label, module=True)
            assert all(torch.equal(module.state_dict()[name], alone[name]) for name in alone)
    with pytest.raises(InputError, match="not the code of the model"):
        loaded.model("fedavg, lr=0.1", module=True)


def test_models_of_runs_that_were_there_before_have_no_module(tiny_npz, tmp_path):
    how = {**HOW, "lr": 0.1, "data": str(tiny_npz), "progress": False, "out": tmp_path / "run"}
    fedmaba.compare("fedavg", **how)
    both = fedmaba.compare("afl", **how)  # a part beside the first run
    assert {run.label for run in both.runs} == {"fedavg", "afl"}
    assert isinstance(both.model("afl", module=True), torch.nn.Module)
    assert both.model("fedavg").keys() == both.model("afl").keys()
    with pytest.raises(InputError, match="not the code of the model"):
        both.model("fedavg", module=True)


def test_the_models_of_an_unfinished_part_are_refused(swept, tmp_path):
    shutil.copytree(swept[2], tmp_path / "run")
    part = tmp_path / "run" / "parts" / "002"
    (part / "runs.json").unlink()  # its checkpoint is there
    history = fedmaba.load_history(tmp_path / "run")
    assert history.model("fedavg, lr=0.01")
    with pytest.raises(InputError, match=r"fedavg, lr=0\.1, seed 0, is not finished") as error:
        history.model("fedavg, lr=0.1")
    assert "\n" not in str(error.value)


@pytest.fixture
def personal(call, tiny_npz):
    """A run folder of `fedavg`, to which `ditto` was added as a part."""
    for strategy in ("fedavg", "ditto"):
        words = ["compare", strategy, "--data", tiny_npz, *QUICK, "--validation", "40%"]
        assert call(*words, "--out", "held").code == 0
    return fedmaba.load_history("held")


def test_personal_models_of_one_part_are_columns_for_all(personal, call):
    for on in ("test", "validation"):
        answer = call("export", "held", "--on", on)
        assert answer.code == 0, answer.err
        place = Path("held/csv" if on == "test" else "held/csv-validation")
        with (place / "clients.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {row["strategy"] for row in rows} == {"fedavg", "ditto"}
        history = personal.judged_on(on)
        for label in ("fedavg", "ditto"):
            run = next(r for r in history.runs if (r.label, r.seed) == (label, 0))
            mine = [r for r in rows if (r["strategy"], r["seed"], r["round"]) == (label, "0", "4")]
            found = [float(row["personal_accuracy"]) for row in mine]
            np.testing.assert_allclose(found, run.accuracy("personal")[-1], rtol=1e-6)
            assert {row.get("on") for row in mine} == {"validation" if on == "validation" else None}
    shown = call("resume", "held", "--quiet").out
    assert "each client under its own model" in " ".join(shown.split()).lower()


def test_parquet_has_all_parts_and_which_examples_were_scored(personal, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "out"
    export.write_export(Path("held"), out, "parquet", data.load_parts, "validation")
    table = parquet.read_table(out / "clients.parquet").to_pydict()
    assert set(table["strategy"]) == {"fedavg", "ditto"}
    assert set(table["on"]) == {"validation"}


def test_pandas_has_personal_scores_on_validation_data(personal):
    pytest.importorskip("pandas")
    table = personal.to_pandas()
    mine = table[(table.strategy == "ditto") & (table.seed == 0) & (table["round"] == 4)]
    run = next(r for r in personal.runs if (r.label, r.seed) == ("ditto", 0))
    want = run.column("personal_validation.accuracy")[-1].astype(float)
    np.testing.assert_array_equal(mine.personal_validation_accuracy.to_numpy(), want)
    assert table[table.strategy == "fedavg"].personal_accuracy.isna().all()
