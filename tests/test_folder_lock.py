"""Only one process at a time works on a run folder."""

import os
import shutil
import subprocess
import sys

import pytest

from fedmaba.errors import Busy, InputError
from fedmaba.experiment import session as experiment
from fedmaba.experiment import starting
from fedmaba.results import run_folder
from fedmaba.results.run_folder import (
    Folder,
)
from run_folders import asked, begun, different_files, play


def test_a_folder_finished_by_another_process_meanwhile_is_left_alone(
    finished, tiny_npz, tmp_path, monkeypatch
):
    """Between the first look and the lock, another process ran and ended."""
    out = tmp_path / "run"
    real = run_folder.Folder

    def late(path):
        monkeypatch.setattr(run_folder, "Folder", real)
        play(begun(asked(tiny_npz), out))
        return real(path)

    for changes in ({}, {"train__lr": 0.3}):
        shutil.rmtree(out, ignore_errors=True)
        session = experiment.prepare(asked(tiny_npz, **changes))
        monkeypatch.setattr(run_folder, "Folder", late)
        if changes:
            with pytest.raises(InputError, match="another experiment"):
                starting.open_run_folder(session, out)
        else:
            starting.open_run_folder(session, out)
            assert session.done
        assert different_files(finished, out) == []


def test_a_folder_has_one_owner(tmp_path, tiny_npz):
    out = tmp_path / "run"
    code = (
        "import sys, pathlib; from fedmaba.results.run_folder import Folder;"
        "f = Folder(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout.readline() == b"held\n"
        assert run_folder.in_use(out)
        with pytest.raises(Busy, match=rf"is in use by process {other.pid}: wait, or choose"):
            Folder(out)
        (out / ".lock").unlink()
        with pytest.raises(Busy, match="is in use by another process: wait, or choose"):
            Folder(out)
        (out / ".lock").write_text("process 1")  # nor does another file of its name let in
        session = experiment.prepare(asked(tiny_npz, seeds=1))
        with pytest.raises(Busy):
            starting.open_run_folder(session, out)
        session.close()
        assert Busy.exit_code == 75
    finally:
        other.communicate()
    assert not run_folder.in_use(out)
    folder = Folder(out)  # the other is gone, and so is its hold
    with pytest.raises(Busy, match=str(os.getpid())):
        Folder(out)
    folder.close()
    Folder(out).close()


def test_a_folder_that_is_let_go_is_nobody_elses(tmp_path, monkeypatch):
    """Who takes it while its lock file is removed finds it held, or makes it anew."""
    first, close, seen = Folder(tmp_path / "run"), Folder.close, []

    def closing(self):
        close(self)
        if not seen:
            seen.append(Folder(tmp_path / "run"))  # as another process may, at this very moment

    monkeypatch.setattr(Folder, "close", closing)
    first.discard()
    with pytest.raises(Busy):
        Folder(tmp_path / "run")
    seen[0].write("runs.json", b"{}")
    seen[0].close()
