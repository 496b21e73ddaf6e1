"""Run folders that versions 0.1.0 and 0.2.0 wrote are read, shown, resumed and extended.

`data/earlier-versions` has them as they were left, and the data that all of them used:

0.1.0/finished, stopped   one experiment twice: to its end, and stopped after round 4 of 6
0.2.0/kept                SCAFFOLD's kept vectors and Ditto's personal models; stopped at 3 of 4
0.2.0/private             FedMABA with dp, stopped after round 3 of 4
0.2.0/finished            MIFA, 2 rounds, to the end
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from fedmaba import load_history
from fedmaba.results import array_files

WRITTEN = Path(__file__).parent / "data" / "earlier-versions"
ROUNDS_ALIKE = (torch.__version__, torch.backends.cpu.get_cpu_capability()) == (
    "2.13.0+cpu",
    "AVX512",
)  # the torch and the processor that those folders come from
APART = {"about.json", "experiment.toml", "timing.jsonl", "runs.json", "rounds.jsonl"}
FINER = ("kl", "effective")  # FedMABA reports these to more digits than that version did


@pytest.fixture
def first_release(call):
    """Folders of version 0.1.0, copied to where commands run."""
    return copied(call, "0.1.0")


@pytest.fixture
def second_release(call):
    """Folders of version 0.2.0, copied to where commands run."""
    return copied(call, "0.2.0")


def copied(call, version):
    shutil.copytree(WRITTEN / version, ".", dirs_exist_ok=True)
    shutil.copy(WRITTEN / "tiny.npz", ".")
    return call


def shown(text: str) -> list[list[str]]:
    """The words of each row of a table, which is indented; a sentence below it is not."""
    return [line.split() for line in text.splitlines() if line.startswith("  fed")]


def test_a_finished_folder_is_shown(first_release):
    answer = first_release("table", "finished")
    assert (answer.code, answer.err) == (0, "")
    rows = shown(answer.out)
    assert [row[0] for row in rows] == ["fedavg", "fedmaba:loss_at=mean", "fedfv:tau=2"]
    assert rows[0][1:] == ["52.08", "95.83", "83.33", "100.00"]
    assert first_release("report", "finished", "-o", "page.html").code == 0
    assert "fedmaba:loss_at=mean" in Path("page.html").read_text()
    assert first_release("export", "finished").code == 0


def test_an_unfinished_folder_is_shown_and_named(first_release):
    answer = first_release("table", "stopped")
    assert answer.code == 0
    assert answer.err == "unfinished, saved up to round 4: fedmaba resume stopped\n"
    assert len(shown(answer.out)) == 3
    assert first_release("report", "stopped", "-o", "page.html").code == 0


def numbers(folder: Path) -> dict[str, np.ndarray]:
    """Every array of a finished folder, by file and name."""
    arrays = {}
    for file in sorted(folder.rglob("*.npz")):
        for name, value in array_files.read_npz(file).items():
            arrays[f"{file.relative_to(folder)}/{name}"] = value
    for file in sorted(folder.rglob("*.safetensors")):
        for name, value in safetensors.numpy.load_file(file).items():
            arrays[f"{file.relative_to(folder)}/{name}"] = value
    return arrays


def test_a_resumed_folder_ends_as_the_earlier_version_would_have_ended_it(first_release):
    answer = first_release("resume", "stopped", "--quiet")
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


def test_the_experiment_of_a_folder_can_be_run_again(first_release):
    """Its file names the share of hostile clients, as files of that version did."""
    assert "[attack]" in Path("finished/experiment.toml").read_text()
    answer = first_release("run", "finished/experiment.toml", "--out", "again", "--quiet")
    assert answer.code == 0, answer.err
    again = first_release("compare", "fedavg", "--data", "tiny.npz", "--out", "finished")
    assert again.code == 2
    assert "finished holds another experiment, in " in again.err


def begun_again(folder: str, out: str, *more: str) -> list[str]:
    """The words of the command that began a folder, with another --out."""
    words = json.loads((Path(folder) / "about.json").read_text())["command"][1:]
    return [*words, "--out", out, "--quiet", *more]


def require_same_end(whole: str, resumed: str) -> None:
    """Both folders ended with the same tables and models: every bit, where the machine is alike."""
    want, got = numbers(Path(whole)), numbers(Path(resumed))
    assert want.keys() == got.keys()
    for name, value in want.items():
        assert got[name].dtype == value.dtype, name
        if ROUNDS_ALIKE:
            np.testing.assert_array_equal(got[name], value, name)
        else:
            np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("folder", ["kept", "private", "finished"])
def test_a_folder_of_the_second_release_is_shown(folder, second_release):
    answer = second_release("table", folder)
    assert answer.code == 0
    left = f"unfinished, saved up to round 3: fedmaba resume {folder}\n"
    assert answer.err == ("" if folder == "finished" else left)
    for words in (["report", folder, "-o", "page.html"], ["export", folder]):
        assert second_release(*words).code == 0


@pytest.mark.parametrize("folder", ["kept", "private"])
def test_a_resumed_folder_of_the_second_release_ends_as_an_unbroken_run(folder, second_release):
    answer = second_release("resume", folder, "--quiet")
    assert answer.code == 0, answer.err
    assert "earlier version" not in answer.err
    assert second_release(*begun_again(folder, "whole")).code == 0
    require_same_end("whole", folder)


@pytest.mark.parametrize("folder", ["kept", "finished"])
def test_a_folder_of_the_second_release_grows_as_one_longer_run(folder, second_release):
    assert second_release("resume", folder, "--quiet").code == 0
    assert second_release(*begun_again(folder, folder, "--rounds", "6")).code == 0
    assert second_release(*begun_again(folder, "whole", "--rounds", "6")).code == 0
    require_same_end("whole", folder)


@pytest.mark.parametrize("folder", ["private", "finished"])
def test_a_folder_of_the_second_release_takes_more_seeds_and_strategies(folder, second_release):
    assert second_release("resume", folder, "--quiet").code == 0
    more = ["fedavg", "--seeds", "2"]
    assert second_release(*begun_again(folder, folder, *more)).code == 0
    assert second_release(*begun_again(folder, "whole", *more)).code == 0
    one, other = load_history(folder), load_history("whole")
    assert [(run.label, run.seed) for run in one.runs] == [
        (run.label, run.seed) for run in other.runs
    ]
    assert str(one) == str(other)
