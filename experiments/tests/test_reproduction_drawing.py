"""Many targets drawn at once."""

import os
import signal
import subprocess
import sys
import time

import pytest
import reproduction_cases
from reproduction_cases import RESULTS, fill

from fedmaba.errors import NoRoom
from laboratory import targets, write_targets


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    return reproduction_cases.command(monkeypatch, capsys, tmp_path)


@pytest.mark.slow
def test_targets_drawn_at_once_are_those_drawn_one_after_another(tmp_path, monkeypatch):
    names, kept = ("figure2-alpha", "figure2-eta_b"), tmp_path / "kept"
    fill(kept, *names)
    asked = [targets.load_target(name) for name in (*names, "table3-cifar100")]
    written = []
    for cores in (1, 2):
        monkeypatch.setattr(write_targets, "_cores", lambda cores=cores: cores)
        out = tmp_path / str(cores)
        *drawn, nothing = write_targets.write_all(asked, kept, out)
        assert "none of its runs is there" in str(nothing)
        pages = [shown.page for shown in drawn]
        files = {p.relative_to(out): p.read_bytes() for p in out.rglob("*.*")}
        written.append((pages, files))
    forms = {path.suffix for path in written[0][1]}
    assert forms == {".md", ".tex", ".csv", ".svg", ".pdf", ".png"}
    assert written[0] == written[1]


def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_drawing_process_that_is_killed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(write_targets, "_cores", lambda: 2)
    monkeypatch.setattr(write_targets, "_work", dies)
    asked = [targets.load_target(name) for name in ("table2-fashion-mnist", "attacks")]
    with pytest.raises(NoRoom, match="one target at a time"):
        next(write_targets.write_all(asked, tmp_path, tmp_path))


@pytest.mark.slow
def test_ctrl_c_ends_all_that_draw(tmp_path):
    words = [sys.executable, "-m", "fedmaba", "reproduce", "all", "--from", RESULTS]
    going = subprocess.Popen(
        [*words, "--out", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `&` ignores it
        text=True,
    )
    for _ in range(300):
        if list(tmp_path.glob("*/table.md")):
            break
        time.sleep(0.1)
    os.killpg(going.pid, signal.SIGINT)
    assert going.communicate(timeout=20)[1] == ""  # waits for all who hold its end
    assert going.returncode == 130


def test_a_folder_that_is_none_is_said_before_anything_is_drawn(call, tmp_path):
    code, out, err = call("all", "--from", tmp_path / "no")
    assert (code, out) == (2, "")
    assert "is no folder" in err
