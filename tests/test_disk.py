"""Full disks, failed writes and systems without folder locks cost nothing that was saved."""

import errno
import os
import stat

import pytest

from fedmaba.errors import SaveFailed
from fedmaba.experiment import starting
from fedmaba.results import files as files_
from fedmaba.results import run_folder
from fedmaba.results.run_folder import (
    Folder,
    load_checkpoint,
)
from run_folders import Full, asked, begun, debris, different_files, files, play, refuse


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    (tmp_path / "a").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_folder.write_file(tmp_path / "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_full_disk_at_the_lock_is_one_line(tmp_path, monkeypatch):
    class FullLock(Full):
        def write(self, content):
            refuse()

    monkeypatch.setattr(files_, "open", FullLock, raising=False)
    with pytest.raises(SaveFailed, match="No space left"):
        Folder(tmp_path / "run")
    monkeypatch.undo()
    Folder(tmp_path / "run").close()  # nobody holds it


FAULTS = {
    "fsync": lambda patch: patch.setattr(os, "fsync", refuse),
    "replace": lambda patch: patch.setattr(os, "replace", refuse),
    "write": lambda patch: patch.setattr(files_, "open", Full, raising=False),
}


@pytest.mark.parametrize(
    ("fault", "when"),  # at a checkpoint; at the end
    [
        pytest.param(f, n, marks=() if (f, n) in (("write", 4), ("fsync", 6)) else pytest.mark.slow)
        for f in FAULTS
        for n in (4, 6)
    ],
)
def test_a_full_disk_costs_nothing_that_was_saved(fault, when, finished, tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = begun(asked(tiny_npz), out)
    at = session.batch.progress
    with pytest.MonkeyPatch.context() as patch:
        rounds = session.rounds(lambda: at.round == 4 == when)  # a stop asks for a checkpoint
        for _ in range(when - 1):
            next(rounds)
        FAULTS[fault](patch)
        with pytest.raises(SaveFailed, match=r"could not be written: No space left.*free some"):
            list(rounds)
    assert debris(out) == []
    assert not (out / "runs.json").exists()
    assert load_checkpoint(out)[1]["round"] == 3
    assert SaveFailed.exit_code == 74
    resumed = starting.resume(out)  # with space again, and nobody holds the folder
    assert resumed.batch.progress.round == 3
    play(resumed)
    assert different_files(finished, out) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_write_leaves_the_file_as_it_was(fault, tmp_path):
    folder = Folder(tmp_path / "run")
    folder.write("a.json", b"old")
    with pytest.MonkeyPatch.context() as patch:
        FAULTS[fault](patch)
        with pytest.raises(SaveFailed):
            folder.write("a.json", b"new and longer than ten bytes")
        with pytest.raises(SaveFailed):
            folder.write("sub/b.json", b"new and longer than ten bytes")
    assert (folder.path / "a.json").read_bytes() == b"old"
    assert not (folder.path / "sub" / "b.json").exists()
    assert debris(folder.path) == []
    folder.close()


def test_a_file_is_written_before_it_gets_its_name(tmp_path, monkeypatch):
    """Data first, then the name, then the folder."""
    order = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "data")
        real_fsync(handle)

    def replace(a, b):
        order.append("name")
        real_replace(a, b)

    folder = Folder(tmp_path / "run")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    folder.write("a", b"content")
    folder.close()
    assert order == ["data", "name", "folder"]


def test_a_run_ends_in_the_same_bytes_where_the_system_is_as_windows_is(
    finished, tiny_npz, tmp_path, monkeypatch
):
    """There no folder can be opened, only a file open for writing be synced, and none be locked."""
    held, real_open, real_fsync, real_close = {}, os.open, os.fsync, os.close

    def opened(path, flags, *rest, **more):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        handle = real_open(path, flags, *rest, **more)
        held[handle] = flags
        return handle

    def fsync(handle):
        if handle in held and not held[handle] & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real_fsync(handle)

    def closed(handle):
        held.pop(handle, None)
        real_close(handle)

    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.setattr(files_, "fcntl", None)
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "close", closed)
    out = tmp_path / "run"
    play(begun(asked(tiny_npz), out), stop_after=4)
    play(starting.resume(out))
    assert files(out) == files(finished[1])
