"""The state folder of a server, damaged or forged: one line and exit code 2, whoever reads it."""

import copy

import numpy as np
import pytest

from fedmaba import cli
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.validation import Reply
from fedmaba.errors import InputError
from fedmaba.results import run_folder
from fedmaba.results.history import History
from fedmaba.strategies import parse

MODEL = {"w": np.ones(4, np.float32), "b": np.zeros(2, np.float32)}


def server(folder) -> FederationServer:
    return FederationServer(FederationSettings(parse("fedfv:tau=2")[0]), MODEL, folder)


@pytest.fixture
def state(tmp_path):
    ran = server(tmp_path / "state")
    for t in range(2):
        ran.finish_round(
            [
                Reply(n, f"s{n}", {name: v + n + t for name, v in MODEL.items()}, 5, 1.0)
                for n in (1, 2)
            ]
        )
    ran.close()
    return tmp_path / "state"


def rewritten(folder, change) -> None:
    """A whole checkpoint, its checksum right, with other contents."""
    arrays, meta, _ = run_folder.load_checkpoint(folder)
    arrays, meta = dict(arrays), copy.deepcopy(meta)
    change(arrays, meta)
    held = run_folder.Folder(folder)
    held.lines = 0
    held.save(2, arrays, meta, History([]))
    held.close()


def test_an_unchanged_state_is_taken_up(state):
    rewritten(state, lambda arrays, meta: None)
    again = server(state)
    assert (again.round, again.sites, again.last_counted) == (2, ["s1", "s2"], {"s1": 2, "s2": 2})
    again.close()


META = ["terms", "sites", "owners", "changes", "counted", "refused"]
WRONG = {
    **{f"no {key}": lambda a, m, key=key: m.pop(key) for key in META},
    **{f"{key} is a number": lambda a, m, key=key: m.update({key: 3.5}) for key in META},
    **{f"{key} is a word": lambda a, m, key=key: m.update({key: "x"}) for key in META},
    "no model": lambda a, m: a.pop("model/w"),
    "no deployed model": lambda a, m: a.pop("deployed/b"),
    "one array more": lambda a, m: a.update({"model/x": np.ones(3)}),
    "another shape": lambda a, m: a.update({"model/w": np.ones(5, np.float32)}),
    "another type": lambda a, m: a.update({"deployed/w": np.ones(4)}),
    "no changes": lambda a, m: a.pop("kept"),
    "changes of another model": lambda a, m: a.update(kept=np.ones((2, 9), np.float32)),
    "changes that are one number": lambda a, m: a.update(kept=np.float32(1)),
    "changes of nobody": lambda a, m: a.update(kept_client=np.array([0, 7])),
    "changes of too many": lambda a, m: a.update(kept_client=np.arange(5)),
    "rounds of another length": lambda a, m: a.update(kept_round=np.arange(5)),
    "no such federation": lambda a, m: m.update(federation="../x"),
    "counted rounds in words": lambda a, m: m.update(last_counted={"s1": "x"}),
    "a round to come": lambda a, m: m.update(last_counted={"s1": 9}),
    "more counted than there were": lambda a, m: m.update(counted=9),
    "a site twice": lambda a, m: m.update(sites=["s1", "s1"]),
    "a site that is no name": lambda a, m: m.update(sites=["s1", "a\nb"]),
    "terms of another run": lambda a, m: m["terms"].update(strategy="x\x1b[2J"),
}


# arrays, which readers of a state folder do not look at, and a label, which they show
SHOWN = {
    *("no model", "no deployed model", "one array more", "another shape", "another type"),
    *("no changes", "changes of another model", "changes that are one number"),
    *("changes of nobody", "changes of too many", "rounds of another length"),
    "terms of another run",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_forged_state_is_one_line(kind, state, monkeypatch, capsys):
    rewritten(state, WRONG[kind])
    monkeypatch.chdir(state.parent)
    with pytest.raises(InputError) as error:
        server(state)
    assert str(state) in str(error.value)
    assert "\n" not in str(error.value)
    for command in ("table", "report", "export"):
        monkeypatch.setattr("sys.argv", ["fedmaba", command, str(state)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        if kind in SHOWN and command != "export":  # no round is counted here
            assert not end.value.code
            assert "\x1b" not in said.out + said.err
            continue
        assert (end.value.code, said.out) == (2, "")
        assert len(said.err.splitlines()) == 1


def test_weights_for_another_number_of_sites_are_one_line(tmp_path):
    def fair() -> FederationServer:
        return FederationServer(FederationSettings(parse("fedmaba")[0]), MODEL, tmp_path)

    ran = fair()
    ran.finish_round([Reply(1, "s1", MODEL, 5, 1.0), Reply(2, "s2", MODEL, 5, 1.0)])
    ran.close()

    def one_more(arrays, meta):
        arrays["state/p"] = np.ones(3) / 3

    rewritten(tmp_path, one_more)
    with pytest.raises(InputError, match="state 'p' cannot be of this run"):
        fair()
    rewritten(tmp_path, lambda arrays, meta: arrays.pop("state/p"))
    with pytest.raises(InputError, match="state 'p' cannot be of this run"):
        fair()


def test_a_state_that_is_refused_is_not_held_any_longer(state):
    arrays, meta, _ = run_folder.load_checkpoint(state)
    rewritten(state, lambda a, m: m.pop("terms"))
    for _ in range(2):
        with pytest.raises(InputError, match="lacks 'terms'"):
            server(state)
    held = run_folder.Folder(state)
    held.save(2, arrays, meta, History([]))
    held.close()
    server(state).close()
