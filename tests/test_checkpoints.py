"""Checkpoints: when they are due, what they hold, and which one is used if one is damaged."""

import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedmaba import cli
from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.results import run_folder
from fedmaba.results.run_folder import (
    Folder,
    load_checkpoint,
    load_history,
    read_checkpoint,
)
from run_folders import asked, begun, different_files, files, play, refuse


@pytest.mark.parametrize(
    ("every", "seconds", "want"),
    [(None, 60.0, [4]), (None, 1e-9, [2, 3, 4, 4]), (2, 60.0, [2, 4, 4])],
)
def test_checkpoints_are_due_by_the_clock_and_by_rounds_if_asked(
    every, seconds, want, tiny_npz, tmp_path, monkeypatch
):
    taken, save = [], Folder.save
    monkeypatch.setattr(Folder, "save", lambda *a: (taken.append(a[1]), save(*a)))
    changes = {"save__every": every, "save__seconds": seconds, "train__rounds": 4}
    play(begun(asked(tiny_npz, **changes), tmp_path / "run"))  # one more is of the end
    assert [done for done in taken if done > 1] == want


def test_a_checkpoint_is_safetensors_made_without_a_copy():
    model = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "odd": np.zeros(3, bool),  # sorted behind: every array begins where its numbers may
        "model": model,
        "turned": model.T,
        "foreign": np.arange(3, dtype=">i4"),
        "half": np.array([1.5], np.float16),
        "none": np.zeros((2, 0, 3), np.uint8),
        "single": np.array(7, np.int64),
        "state": np.float64(0.5),
    }
    pieces = run_folder.pack(arrays, {"word": "é", "number": 3})
    assert any(np.shares_memory(np.asarray(piece), model) for piece in pieces[2:])
    body = b"".join(pieces)
    own = safetensors.numpy.load(body)  # the library's own reader
    found, meta = run_folder.unpack_from_rank(body)
    assert meta == {"word": "é", "number": 3}
    assert list(found) == list(arrays)  # a strategy may take its state apart by place
    for name, value in arrays.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == own[name].dtype == value.dtype.newbyteorder("=")
        np.testing.assert_array_equal(own[name], value, name)
        np.testing.assert_array_equal(found[name], value, name)
    header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
    begins = {name: place["data_offsets"][0] for name, place in header.items() if "shape" in place}
    assert all(begins[name] % arrays[name].itemsize == 0 for name in arrays)
    assert len(b"".join(pieces[:2])) % 8 == 0
    for odd in (np.zeros(1, np.longdouble), np.zeros(1, complex), np.array(["a"]), np.array([{}])):
        with pytest.raises(InputError, match=r"odd: an array of .* cannot be saved"):
            run_folder.pack({"odd": odd}, {})


def test_a_damaged_checkpoint_is_always_refused(stopped):
    newest = run_folder.checkpoints(stopped)[0]
    good = newest.read_bytes()
    rng = np.random.default_rng(0)
    flips = {*range(60), *rng.integers(len(good), size=150).tolist(), len(good) - 1}
    for at in flips:
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        newest.write_bytes(bad)
        with pytest.raises(InputError, match="is damaged: its checksum is wrong"):
            read_checkpoint(newest)
    cuts = {0, 1, 8, 39, 40, 41, *rng.integers(len(good), size=60).tolist(), len(good) - 1}
    for length in cuts:
        newest.write_bytes(good[:length])
        with pytest.raises(InputError, match="is damaged"):
            read_checkpoint(newest)
    newest.write_bytes(good + b"\0")
    with pytest.raises(InputError, match="is damaged"):
        read_checkpoint(newest)
    newest.write_bytes(good)
    assert read_checkpoint(newest)[1]["round"] == 5


def test_a_checkpoint_without_a_state_or_runs_is_refused_or_shown(stopped, monkeypatch, capsys):
    newest, older = run_folder.checkpoints(stopped)
    older.unlink()
    arrays, meta = read_checkpoint(newest)

    def forge(arrays, meta):
        body = b"".join(run_folder.pack(arrays, meta))
        newest.write_bytes(run_folder.MAGIC + hashlib.sha256(body).digest() + body)

    name = next(name for name in arrays if name.startswith("state/") and name.endswith("/p"))
    forge({n: a for n, a in arrays.items() if n != name}, meta)
    with pytest.raises(InputError, match=rf"not of this experiment \(array {name}\)"):
        starting.resume(stopped)
    forge(arrays, {**meta, "runs": []})
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", str(stopped)])
    with pytest.raises(SystemExit):
        cli.main()
    assert "Traceback" not in capsys.readouterr().err


def test_the_older_checkpoint_takes_the_place_of_a_damaged_one(stopped, finished):
    newest = run_folder.checkpoints(stopped)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    _, meta, damaged = load_checkpoint(stopped)
    assert meta["round"] == 3
    assert len(damaged) == 1
    assert newest.name in damaged[0]
    session = starting.resume(stopped)
    assert session.batch.progress.round == 3
    assert any("damaged" in note for note in session.warnings)
    play(session)
    assert different_files(finished, stopped) == []


def test_without_a_whole_checkpoint_there_is_one_line_that_names_them(stopped):
    for file in run_folder.checkpoints(stopped):
        file.write_bytes(b"FEDMABA1" + bytes(100))
    before = files(stopped)
    for attempt in (starting.resume, load_history):
        with pytest.raises(InputError) as found:
            attempt(stopped)
        assert str(found.value).count("is damaged") == 2
        assert str(found.value).endswith("to start again, or choose another --out")
        assert "\n" not in str(found.value)
    assert files(stopped) == before
    Folder(stopped).close()  # nobody holds it


def test_what_was_made_good_is_said_even_to_the_quiet(stopped, monkeypatch, capsys):
    newest = run_folder.checkpoints(stopped)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    monkeypatch.setattr("sys.argv", ["fedmaba", "resume", str(stopped), "--quiet"])
    with pytest.raises(SystemExit):
        cli.main()
    assert re.fullmatch(rf".*{newest.name} is damaged: .*\n", capsys.readouterr().err)


def test_a_checkpoint_that_cannot_be_removed_ends_nothing(
    finished, tiny_npz, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        play(begun(asked(tiny_npz, save__every=1), out))
    assert (out / "runs.json").exists()
    assert len(run_folder.checkpoints(out)) == 6
    assert starting.resume(out).done
    assert [file.name for file in run_folder.checkpoints(out)] == ["00000006.ckpt"]


def test_a_damaged_checkpoint_takes_no_place_from_good_ones(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, save__every=1), out), stop_after=5)
    newest = run_folder.checkpoints(out)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    rounds = starting.resume(out).rounds()
    next(rounds)
    rounds.close()
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000005.ckpt", "00000004.ckpt"]
    assert load_checkpoint(out)[2] == []
    (out / "checkpoint" / "00000009.ckpt").write_bytes(b"from nowhere")
    rounds = starting.resume(out).rounds()
    next(rounds)
    rounds.close()
    assert [p.name for p in run_folder.checkpoints(out)] == ["00000006.ckpt", "00000005.ckpt"]
