"""A demo that is kept: what stays, what goes, and FedAvg beside the strategy. No processes here."""

import os
import signal
from pathlib import Path

import pytest

import federations
from fedmaba.deploy.flower_app import demo as module
from fedmaba.errors import InputError


class FakeNet:
    """In place of Flower's processes: a run ends at once, with a state folder."""

    port, nginx, sites_port = 1, None, 1

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []
        for name in ("keys", "home", "logs"):
            (folder / name).mkdir(parents=True)
        (folder / "keys" / "ca.key").write_text("secret")
        (folder / "logs" / "fair.log").write_text("said")

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def register(self, site):
        assert (self.folder / f"{site}.npz").exists()

    def supernode(self, site, **settings):
        assert Path(settings["data"]).is_absolute()

    def submit(self, app, settings):
        assert app.is_absolute()
        federations.finished(Path(settings["state"]), strategy=settings["strategy"])
        return settings["strategy"]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The folder and the lines of a demo, begun from a relative path."""
    monkeypatch.setattr(module, "Net", FakeNet)
    monkeypatch.setattr(module, "watch", lambda net, run, state, say: say(f"watched {run}"))
    monkeypatch.chdir(tmp_path)
    before, said = (os.umask(0o022), signal.getsignal(signal.SIGTERM)), []
    try:
        module.demo(said.append, sites=2, rounds=3, keep=Path("kept"))
    finally:
        os.umask(before[0])
        signal.signal(signal.SIGTERM, before[1])
    return tmp_path / "kept", said


def test_logs_and_states_stay_and_secrets_go(kept):
    folder, _ = kept
    assert {path.name for path in folder.iterdir()} == {
        *("app", "logs", "state-fedavg", "state-fedmaba"),
    }
    assert (folder / "logs" / "fair.log").read_text() == "said"


def test_fedavg_stands_beside_the_strategy(kept):
    folder, said = kept
    assert [line for line in said if line.startswith("watched")] == [
        *("watched fedavg", "watched fedmaba:alpha=0.8"),
    ]
    rows = [line.split() for line in said if line.startswith("fed")]
    assert [row[0] for row in rows] == ["fedavg", "fedmaba:alpha=0.8"]
    assert rows[1][1:3] == ["266.67", "70.00"]
    states = " ".join(str(folder / f"state-{name}") for name in ("fedavg", "fedmaba"))
    assert said[-1] == f"the report of both: fedmaba report {states}"


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(InputError, match="is not an empty folder: choose another one"):
        module.demo(print, keep=tmp_path)
