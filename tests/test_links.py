"""Nothing in a run folder is written or read through a link, and one process works on it."""

import json
import os
import re
import shutil
import socket
import stat
import time

import pytest

from fedmaba.errors import Busy, InputError, SaveFailed
from fedmaba.experiment import starting
from fedmaba.report import export, trackers
from fedmaba.results import files, run_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")


def seen(folder):
    """Names, bytes and modes of everything in a folder."""
    return {
        str(p.relative_to(folder)): (p.lstat().st_mode, p.read_bytes() if p.is_file() else b"")
        for p in folder.rglob("*")
    }


def finish(out):
    list(starting.resume(out).rounds())


# --- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".lock", "rounds.jsonl", "timing.jsonl", "experiment.toml"])
@pytest.mark.parametrize("how", ["soft", "hard", "nowhere"])
def test_no_file_is_written_through_a_link(name, how, stopped, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_bytes((stopped / name).read_bytes() or b"my own text\n")
    before = seen(outside)
    (stopped / name).unlink()
    if how == "hard":
        os.link(outside / "mine", stopped / name)
    else:
        (stopped / name).symlink_to(outside / ("mine" if how == "soft" else "new"))
    if (name, how) == ("experiment.toml", "hard"):  # replaced, never written into
        finish(stopped)
    else:
        with pytest.raises(InputError, match=rf"{re.escape(name)}.*link|is no run folder"):
            finish(stopped)
    assert seen(outside) == before


@pytest.mark.parametrize("name", ["checkpoint", "clients", "models"])
def test_no_folder_is_a_link(name, stopped, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(stopped / "checkpoint", outside)
    (outside / ".mine.0123456789abcdef.tmp").write_text("kept")
    (outside / "00000001.ckpt").write_text("kept")
    before = seen(outside)
    shutil.rmtree(stopped / name, ignore_errors=True)
    (stopped / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"{name} is a link where a real folder should be"):
        finish(stopped)
    assert seen(outside) == before


def test_a_finished_folder_is_not_read_through_a_link(done, tmp_path):
    shutil.move(done / "clients", tmp_path / "elsewhere")
    (done / "clients").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="clients is a link where a real folder should be"):
        run_folder.load_history(done)


@pytest.mark.parametrize("given", [True, False])
def test_an_export_does_not_leave_its_folder(given, done, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "summary.csv").write_text("kept")
    (done / "csv").symlink_to(outside)
    before = seen(outside)
    with pytest.raises(InputError, match="csv is a link"):
        export.write_export(done, done / "csv")
    assert seen(outside) == before
    if given:  # a link that the user names is the user's own
        mine = tmp_path / "mine"
        mine.symlink_to(outside)
        export.write_export(done, mine)
        assert (outside / "summary.csv").read_text().startswith("strategy")


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard/00-fedavg-s0", "event"])
def test_events_do_not_leave_their_folder(name, stopped, tmp_path):
    pytest.importorskip("tensorboard")
    outside = tmp_path / "outside"
    outside.mkdir()
    if name == "event":
        (stopped / "tensorboard/00-fedavg-s0").mkdir(parents=True)
        (stopped / "tensorboard/00-fedavg-s0/events.out").symlink_to(outside / "file")
    else:
        (stopped / name).parent.mkdir(exist_ok=True)
        (stopped / name).symlink_to(outside)
    session = starting.resume(stopped)
    with (
        pytest.raises(InputError, match="is a link"),
        trackers.tracking(["tensorboard"], session, print),
    ):
        pass
    session.close()
    assert seen(outside) == {}


def test_a_folder_that_the_user_names_may_be_a_link(finished, stopped, tmp_path):
    (tmp_path / "name").symlink_to(stopped)
    finish(tmp_path / "name")
    assert (stopped / "runs.json").read_bytes() == (finished[1] / "runs.json").read_bytes()
    assert run_folder.load_history(tmp_path / "name").runs


@pytest.mark.parametrize(
    "words", ["table", "report", "resume", "export", "figure accuracy -o x.svg"]
)
def test_a_link_to_itself_is_one_line(words, tmp_path, call):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    answer = call(*words.split(), tmp_path / "loop")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "loop" in answer.err


def test_a_link_to_itself_is_no_folder_to_write_into(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises((InputError, SaveFailed), match="loop"):
        run_folder.Folder(tmp_path / "loop")


def test_temporary_files_have_names_that_nobody_knows_before(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("kept")
    (tmp_path / ".a.tmp").symlink_to(tmp_path / "mine")  # what the version before wrote into
    used, real = [], os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (used.append(a), real(a, b)))
    for _ in range(2):
        run_folder.write_file(tmp_path / "a", b"new")
    assert (tmp_path / "mine").read_text() == "kept"
    assert all(re.fullmatch(r"\.a\.[0-9a-f]{16}\.tmp", path.name) for path in used)
    assert used[0] != used[1]
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 16)
    (tmp_path / ".a.0000000000000000.tmp").symlink_to(tmp_path / "mine")
    with pytest.raises(SaveFailed, match="File exists"):
        run_folder.write_file(tmp_path / "a", b"newer")
    assert (tmp_path / "mine").read_text() == "kept"


def test_what_is_tidied_up_is_our_own(stopped, tmp_path):
    (tmp_path / "mine").write_text("kept")
    gone = [".about.json.0123456789abcdef.tmp", "checkpoint/.00000004.ckpt.00000000ffffffff.tmp"]
    gone += [".runs.json.tmp", "checkpoint/.00000009.ckpt.tmp"]
    stays = [".notes.tmp", "notes.0123456789abcdef.tmp"]
    for name in gone + stays:
        (stopped / name).write_text("half of it")
    (stopped / ".x.0123456789abcdef.tmp").symlink_to(tmp_path / "mine")
    run_folder.Folder(stopped).close()
    assert not any((stopped / name).exists() for name in gone)
    assert all((stopped / name).exists() for name in stays)
    assert not (stopped / ".x.0123456789abcdef.tmp").is_symlink()
    assert (tmp_path / "mine").read_text() == "kept"


# --- what is no file ---------------------------------------------------------------------------


def put(kind, path):
    """Something else where a file was."""
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
        os.chdir(here)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:  # larger than any memory, and nothing on the disk
        with open(path, "wb") as f:
            f.truncate(3 * 10**9)


KINDS = ["pipe", "directory", "socket", "device", "sparse"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["about.json", "runs.json", "partition.npz", "experiment.toml", "clients/00-fedavg-s0.npz"],
)
def test_what_is_no_file_of_a_finished_folder_is_one_line(kind, name, done):
    put(kind, done / name)
    begun = time.monotonic()
    with pytest.raises(InputError, match=re.escape(name)) as found:
        export.write_export(done, done / "csv")
    assert time.monotonic() - begun < 5
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["about.json", "rounds.jsonl", "timing.jsonl", ".lock", "experiment.toml", "checkpoint"]
)
def test_what_is_no_file_of_a_folder_half_done_is_one_line(kind, name, stopped):
    target = stopped / name
    if name == "checkpoint":
        target, older = run_folder.checkpoints(stopped)
        older.unlink()
    put(kind, target)
    begun = time.monotonic()
    if kind == "sparse" and name in ("rounds.jsonl", "timing.jsonl", ".lock"):
        finish(stopped)  # written again, longer, or cut
        target.unlink()
    else:
        with pytest.raises(InputError) as found:
            finish(stopped)
        assert "\n" not in str(found.value)
    assert time.monotonic() - begun < 5


def test_an_unreadable_checkpoint_is_not_called_damaged(stopped, monkeypatch):
    newest, older = run_folder.checkpoints(stopped)
    real = os.open

    def opened(path, *rest, **more):
        if str(path).endswith(newest.name):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(InputError, match="Permission denied") as found:
        run_folder.load_checkpoint(stopped)
    assert "delete" not in str(found.value)
    assert older.exists()


# --- one owner ---------------------------------------------------------------------------------


def test_a_system_that_locks_files_alone_is_held_by_its_file(tmp_path, monkeypatch):
    real = files.fcntl.flock

    def flock(handle, how):
        number = handle if isinstance(handle, int) else handle.fileno()
        if stat.S_ISDIR(os.fstat(number).st_mode):
            raise OSError(9, "Bad file descriptor")
        real(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    folder = run_folder.Folder(tmp_path / "run")
    assert run_folder.in_use(tmp_path / "run")
    with pytest.raises(Busy, match=str(os.getpid())):
        run_folder.Folder(tmp_path / "run")
    folder.close()
    run_folder.Folder(tmp_path / "run").close()


# --- who may read ------------------------------------------------------------------------------


def test_a_private_folder_is_not_for_everybody(tmp_path):
    out = tmp_path / "state"
    out.mkdir(mode=0o755)
    (out / "rounds.jsonl").write_text("")
    os.chmod(out / "rounds.jsonl", 0o666)
    before = os.umask(0)
    try:
        folder = run_folder.Folder(out, private=True, remedy="fix it, then start the server again")
        folder.write("models/a.safetensors", b"")
        folder.append_lines([{"round": 1}])
        folder.append_timing([{"round": 1}])
        plain = run_folder.Folder(tmp_path / "plain")
        plain.write("a.json", b"")
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [out, *out.rglob("*")]}
    assert (modes["state"], modes["models"]) == (0o755, 0o700)  # what was there keeps its mode
    assert {m for n, m in modes.items() if n not in ("state", "models")} == {0o600}
    assert stat.S_IMODE((tmp_path / "plain" / "a.json").stat().st_mode) == 0o666
    folder.close()
    plain.close()


@pytest.mark.parametrize(("code", "said"), [(5, "fix it, then start"), (28, "free some space, th")])
def test_a_folder_has_its_own_remedy(code, said, tmp_path, monkeypatch):
    folder = run_folder.Folder(tmp_path / "state", remedy="fix it, then start the server again")

    def fail(handle):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SaveFailed, match=f": {said}"):
        folder.write("a.json", json.dumps({}).encode())
    folder.close()
