"""The command line when its output cannot be written: closed pipes, full disks, old encodings."""

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from command_line import COMMAND, QUICK


@pytest.mark.slow
def test_a_reader_who_leaves_does_not_end_a_run(tmp_path, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK[:-1], "--eval-every", "1"]
    for gone in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, gone: writer}
        done = subprocess.run([*COMMAND, *words, "--out", gone], cwd=tmp_path, text=True, **how)
        os.close(writer)
        assert done.returncode == 0
        assert (tmp_path / gone / "runs.json").exists()
        assert ("results: stderr" in (done.stdout or "")) == (gone == "stderr")
        assert "Error" not in (done.stderr or "")
    reader, writer = os.pipe()
    os.close(reader)
    results = Path(__file__).parents[1] / "experiments" / "results"
    words = ["reproduce", "figure2-alpha", "--from", results, "--out", "drawn"]
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, stdout=writer)
    os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "drawn" / "figure2-alpha" / "table.csv").exists()


@pytest.mark.parametrize(("words", "unbuffered"), [(["--version"], ""), (["table", "mine"], "1")])
def test_output_that_finds_no_room_is_one_line(words, unbuffered, call, tiny_npz, monkeypatch):
    call("compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "mine")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74
    assert re.fullmatch(r"fedmaba: standard output .*: No space left .*\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(("encoding", "plus"), [("cp1252", "±"), ("ascii", "+-")])
def test_an_encoding_without_a_sign_spells_it(encoding, plus, call, tiny_npz):
    call("compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "mine")
    results = Path(__file__).parents[1] / "experiments" / "results"
    rows = {"FedMGDA+, eta=0.1, epsilon=0.1 ", "AFL, lambda=0.05 "}
    words = ["reproduce", "table2-fashion-mnist", "--from", results, "--only", "fedmgda,afl"]
    for command, found in ((["table", "mine"], {"fedavg "}), (words, rows)):
        done = subprocess.run(
            [*COMMAND, *map(str, command)],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )
        shown = done.stdout.decode(encoding).splitlines()
        assert done.returncode == 0, done.stderr
        for name in found:
            # the last one: of the model that is deployed; a table before it shows differences
            place = max(n for n, line in enumerate(shown) if line.startswith(f"| {name}"))
            assert f" {plus} " in shown[place]
            (frame, *_) = [line for line in reversed(shown[:place]) if line.startswith("+-")]
            assert len(shown[place]) == len(frame)
    assert Path("runs/reproduce/table2-fashion-mnist/table.md").exists()


@pytest.mark.parametrize("there", [True, False])
def test_an_app_that_does_not_fit_on_the_disk_leaves_nothing(there, call, refused, monkeypatch):
    folder, write = Path("app"), Path.write_text
    if there:
        folder.mkdir()

    def full(path, text, **how):
        write(path, "" if path.name == "server_app.py" else text, **how)
        if path.name == "server_app.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert "No space left" in refused("flower", "new", folder, code=74)
    assert call("flower", "new", folder).code == 0
