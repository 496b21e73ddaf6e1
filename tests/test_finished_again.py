"""A finished command that is run again shows its result; nothing is trained again."""

import json
from pathlib import Path

import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.results.run_folder import Folder
from fedmaba.simulation import engine
from run_folders import asked, begun, files, play, same_history


@pytest.fixture
def words(tiny_npz):
    return ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "mine"]


def no_training(monkeypatch):
    def refuse(batch):
        raise AssertionError("trained again")

    monkeypatch.setattr(engine, "simulate", refuse)


def test_the_same_command_shows_its_result(call, words, monkeypatch):
    first = call(*words)
    before = files(Path("mine"))
    no_training(monkeypatch)
    for again in (words, [w for w in words if w != "--quiet"], ["resume", "mine", "--quiet"]):
        shown = call(*again)
        assert shown.code == 0, shown.err
        table = first.out.partition("It took")[0]
        assert shown.out.startswith(table)
        assert "results: mine" in shown.out
        said = (
            "mine is finished: nothing is trained again; to extend it, repeat its command with "
            "--out mine and more rounds, more seeds or another strategy\n"
        )
        assert shown.err == ("" if "--quiet" in again else said)
    assert files(Path("mine")) == before


def test_a_run_counts_as_finished_only_once_nothing_is_left_to_do(call, words, monkeypatch):
    write, seen = Folder.write_json, []

    def noted(folder, name, *rest):
        if name == "runs.json":
            seen.append(sorted(p.name for p in Path("mine/checkpoint").iterdir()))
        write(folder, name, *rest)

    monkeypatch.setattr(Folder, "write_json", noted)
    call(*words, "--checkpoint-every", "1")
    assert [len(names) for names in seen] == [1]  # a kill from now on leaves no older one


def test_the_same_python_call_returns_its_history(tiny_npz, tmp_path, monkeypatch):
    how = {"data": tiny_npz, "model": "softmax", "rounds": 2, "seeds": 1, "out": tmp_path / "run"}
    first = fedmaba.compare("fedavg", **how)
    no_training(monkeypatch)
    same_history(fedmaba.compare("fedavg", **how), first)


def test_resume_of_a_finished_python_run_says_how_to_extend_it(fed, call):
    fedmaba.compare("fedavg", data=fed, model="softmax", rounds=1, seeds=1, out="run")
    assert call("resume", "run").err.endswith(
        "to extend it, repeat its call of compare() with out='run' and more rounds, more seeds or "
        "another strategy\n"
    )


def test_a_run_that_diverged_says_so_again(call, words, monkeypatch):
    wild = [*("mlp" if w == "softmax" else w for w in words), "--lr", "1e30"]
    assert call(*wild).code == 65
    no_training(monkeypatch)
    assert call(*wild).code == 65
    assert call("resume", "mine").code == 65


def test_an_edited_result_is_refused(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, seeds=1), out))
    runs = json.loads((out / "runs.json").read_text())
    runs["made"]["asked"]["train"]["lr"] = 0.7
    (out / "runs.json").write_text(json.dumps(runs))
    with pytest.raises(InputError, match=r"train\.lr was 0\.7, now 0\.1"):
        begun(asked(tiny_npz, seeds=1), out)
