"""Damaged files of a run folder are written again from the checkpoint, or named in one line."""

import json

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.results import round_lines, run_folder, table_checks
from fedmaba.results.run_folder import load_history
from run_folders import different_files, play


@pytest.mark.parametrize("name", ["about.json", "runs.json", "clients"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_any_other_damaged_file_is_an_error_of_one_line(name, damage, finished, stopped, done):
    if name == "about.json":
        target, attempt = stopped / name, lambda: starting.resume(stopped)
    else:
        target = done / name if name == "runs.json" else next((done / "clients").iterdir())
        attempt = lambda: load_history(done)  # noqa: E731
    if damage == "missing":
        target.unlink()
    else:
        target.write_bytes(b"" if damage == "empty" else b"\xff{[garbage")
    if (name, damage) == ("runs.json", "missing"):  # then it is unfinished, at its last checkpoint
        play(starting.resume(done))
        assert different_files(finished, done) == []
        return
    remedy = "restore it" if name == "about.json" else None
    with pytest.raises(InputError, match=remedy) as found:
        attempt()
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "longer"])
def test_damaged_lines_are_written_anew_from_the_checkpoint(damage, finished, stopped):
    file = stopped / "rounds.jsonl"
    good = file.read_bytes()
    bad = {"short": good[:50], "flipped": b"x" + good[1:], "longer": good + b'{"round": 6'}
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(bad[damage])
    session = starting.resume(stopped)
    assert any("written again" in note for note in session.warnings) == (damage != "longer")
    play(session)
    assert different_files(finished, stopped) == []


@pytest.mark.parametrize("content", [None, b"junk"])
def test_a_damaged_partition_is_written_anew(content, finished, stopped):
    file = stopped / "partition.npz"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    session = starting.resume(stopped)
    assert session.warnings == [f"{file} was damaged: written again"]
    play(session)
    assert different_files(finished, stopped) == []


def test_a_table_of_another_kind_is_named(done):
    file = next((done / "clients").iterdir())
    file.write_bytes(run_folder.npz({"x": np.arange(3)}))
    with pytest.raises(InputError, match=rf"{file.name} cannot be read \(it lacks 'test_size'\)"):
        load_history(done)


@pytest.mark.parametrize("sizes", [[0, 0], [], [3, -1]])
def test_a_run_that_nobody_could_judge_is_named(sizes):
    """No run writes it: without a client to judge, its figures would divide by zero."""
    table_checks.check_values({"test_size": np.array([0, 3])})
    with pytest.raises(ValueError, match="test_size holds no client with an example"):
        table_checks.check_values({"test_size": np.array(sizes, int)})


def test_a_file_that_is_no_npz_is_called_that(tmp_path):
    (tmp_path / "partition.npz").write_bytes(b"garbage")
    said = r"partition\.npz cannot be read \(no NPZ file\): restore it"
    with pytest.raises(InputError, match=said):
        run_folder.load_labels(tmp_path)


def test_label_counts_that_are_none_are_named(tmp_path):
    good = np.ones((2, 3), int)
    np.savez(tmp_path / "partition.npz", **{"seed1.labels": good})
    assert run_folder.load_labels(tmp_path)[1].tolist() == good.tolist()
    for odd in (np.array(["a"]), good[0], good - 2, good.astype(float)):
        np.savez(tmp_path / "partition.npz", **{"seed0.labels": odd, "seed1.labels": good})
        with pytest.raises(InputError, match=r"partition\.npz cannot be read \(seed0\.labels"):
            run_folder.load_labels(tmp_path)


def test_lines_of_odd_content_are_named(tmp_path):
    good = '{"strategy": "fedavg", "seed": 0, "round": 2}'
    file = tmp_path / "rounds.jsonl"
    file.write_text(f'{good}\n{good}\n{{"round": 3')
    assert round_lines.read_round_lines(tmp_path) == [json.loads(good)] * 2
    assert len(round_lines.read_round_lines(tmp_path, len(good) + 1)) == 1
    for odd in (good.replace("2", '"3"'), "[3]", good.replace("2", "null"), "{", "\0"):
        file.write_text(f"{good}\n{odd}\n")
        with pytest.raises(InputError, match=r"rounds\.jsonl cannot be read \(line 2: .*resume"):
            round_lines.read_round_lines(tmp_path)
    file.unlink()
    assert round_lines.read_round_lines(tmp_path) == []
