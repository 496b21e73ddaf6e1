"""Run folders that version 0.1.0 wrote are read, shown and resumed.

`data/version-0.1.0` holds one experiment twice, as that version left it: finished, and stopped
after round 4 of 6.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from fedmaba.results import array_files

WRITTEN = Path(__file__).parent / "data" / "version-0.1.0"
ROUNDS_ALIKE = (torch.__version__, torch.backends.cpu.get_cpu_capability()) == (
    "2.13.0+cpu",
    "AVX512",
)  # the torch and the processor that those folders come from
APART = {"about.json", "experiment.toml", "timing.jsonl", "runs.json", "rounds.jsonl"}
FINER = ("kl", "effective")  # FedMABA reports these to more digits than that version did


@pytest.fixture
def old(call):
    """The folders, copied to where commands run."""
    shutil.copytree(WRITTEN, ".", dirs_exist_ok=True)
    return call


def shown(text: str) -> list[list[str]]:
    """The words of each row of a table, which is indented; a sentence below it is not."""
    return [line.split() for line in text.splitlines() if line.startswith("  fed")]


def test_a_finished_folder_is_shown(old):
    answer = old("table", "finished")
    assert (answer.code, answer.err) == (0, "")
    rows = shown(answer.out)
    assert [row[0] for row in rows] == ["fedavg", "fedmaba:loss_at=mean", "fedfv:tau=2"]
    assert rows[0][1:] == ["52.08", "95.83", "83.33", "100.00"]
    assert old("report", "finished", "-o", "page.html").code == 0
    assert "fedmaba:loss_at=mean" in Path("page.html").read_text()
    assert old("export", "finished").code == 0


def test_an_unfinished_folder_is_shown_and_named(old):
    answer = old("table", "stopped")
    assert answer.code == 0
    assert answer.err == "unfinished, saved up to round 4: fedmaba resume stopped\n"
    assert len(shown(answer.out)) == 3
    assert old("report", "stopped", "-o", "page.html").code == 0


def numbers(folder: Path) -> dict[str, np.ndarray]:
    """Every array of a finished folder, by file and name."""
    found = {}
    for file in sorted(folder.rglob("*.npz")):
        for name, value in array_files.read_npz(file).items():
            found[f"{file.relative_to(folder)}/{name}"] = value
    for file in sorted(folder.rglob("*.safetensors")):
        for name, value in safetensors.numpy.load_file(file).items():
            found[f"{file.relative_to(folder)}/{name}"] = value
    return found


def test_a_resumed_folder_ends_as_the_earlier_version_would_have_ended_it(old):
    answer = old("resume", "stopped", "--quiet")
    assert answer.code == 0, answer.err
    assert "its checkpoint is of an earlier version" in answer.err
    whole, resumed = Path("finished"), Path("stopped")
    want, got = numbers(whole), numbers(resumed)
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    told, now = (json.loads((folder / "runs.json").read_text()) for folder in (whole, resumed))
    assert told["share"] == now["share"]
    assert told["runs"] == [
        {key: run[key] for key in told["runs"][0]} for run in now["runs"]
    ]  # newer versions add keys
    lines = [
        [json.loads(t) for t in (f / "rounds.jsonl").read_text().splitlines()]
        for f in (whole, resumed)
    ]
    assert [line.keys() for line in lines[0]] == [line.keys() for line in lines[1]]
    if not ROUNDS_ALIKE:
        return
    for file in (p.relative_to(whole) for p in whole.rglob("*.*") if p.is_file()):
        if file.name not in APART and "fedmaba" not in file.name:
            assert (whole / file).read_bytes() == (resumed / file).read_bytes(), file
    for name, value in want.items():
        if not name.endswith(tuple(f"info.{key}" for key in FINER)):
            np.testing.assert_array_equal(got[name], value, name)
    for line in (line for table in lines for line in table):
        for key in FINER:
            line.pop(key, None)
    assert lines[0] == lines[1]


def test_the_experiment_of_a_folder_can_be_run_again(old):
    """Its file names the share of hostile clients, as files of that version did."""
    assert "[attack]" in Path("finished/experiment.toml").read_text()
    answer = old("run", "finished/experiment.toml", "--out", "again", "--quiet")
    assert answer.code == 0, answer.err
    again = old("compare", "fedavg", "--data", "tiny.npz", "--out", "finished")
    assert again.code == 2
    assert "finished holds another experiment, in " in again.err
