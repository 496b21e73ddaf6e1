"""The state folder of a server: private, and honest about what to do when it cannot be written."""

import errno
import os
import stat

import numpy as np
import pytest

from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.validation import Reply
from fedmaba.errors import InputError, SaveFailed
from fedmaba.results import files, run_folder
from fedmaba.results.history import History
from fedmaba.results.state_folder import read_rounds
from fedmaba.strategies import parse

MODEL = {"w": np.ones(4, np.float32)}


def server(folder) -> FederationServer:
    return FederationServer(FederationSettings(parse("fedmaba")[0]), MODEL, folder)


def take(server: FederationServer) -> None:
    server.finish_round([Reply(n, f"s{n}", {"w": np.full(4, n, "f4")}, 5, 1.0) for n in (1, 2)])


def test_a_full_disk_is_told_with_a_remedy_that_works(tmp_path, monkeypatch):
    ran = server(tmp_path / "state")
    take(ran)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", full)
        with pytest.raises(SaveFailed, match="free some space, then run again with the same") as e:
            take(ran)
    assert "fedmaba resume" not in str(e.value)
    ran.close()
    again = server(tmp_path / "state")  # which is what the line says
    assert again.round == 1
    take(again)
    again.write_models()
    again.close()
    assert len(read_rounds(tmp_path / "state", 0)) == 2


def test_nobody_else_can_read_it(tmp_path):
    before = os.umask(0o022)
    try:
        ran = server(tmp_path / "state")
        take(ran)
        ran.write_models()
        ran.close()
    finally:
        os.umask(before)
    for path in (tmp_path / "state", *(tmp_path / "state").rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o027, path
    names = {path.name for path in (tmp_path / "state").rglob("*")}
    assert {"rounds.jsonl", "last.safetensors", "00000001.ckpt"} <= names


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    folder = run_folder.Folder(tmp_path)
    folder.save(3, {"model/w": MODEL["w"]}, {"sites": ["a"]}, History([]))
    folder.close()
    with pytest.raises(InputError, match="lacks 'terms': choose another state folder"):
        server(tmp_path)
    ran = server(tmp_path / "own")
    take(ran)
    ran.site_names.owners = {"a": 3}
    ran.save()
    ran.close()
    with pytest.raises(InputError, match=r"owners\.a=3"):
        server(tmp_path / "own")


def test_a_folder_that_is_there_keeps_its_mode(tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    ran = server(tmp_path / "state")
    take(ran)
    ran.close()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "state" / "rounds.jsonl").stat().st_mode) == 0o600
