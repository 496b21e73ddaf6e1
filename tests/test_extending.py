"""More rounds, seeds or strategies into the same folder: what is there is not trained again."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.experiment import parts, starting
from fedmaba.results import run_folder
from fedmaba.simulation import engine
from run_folders import asked, begun, files, play, same_history


def small(tiny_npz, **changes):
    return asked(tiny_npz, strategies=["fedavg", "fedmaba:loss_at=mean"], seeds=1, **changes)


@pytest.fixture
def trained(monkeypatch):
    """How many runs were trained in how many rounds."""
    seen = []
    real = engine.simulate

    def counted(batch):
        for snapshot in real(batch):
            seen.extend((run.strategy.label(), run.seed, snapshot.round) for run in batch.runs)
            yield snapshot

    monkeypatch.setattr(engine, "simulate", counted)
    return seen


def test_more_seeds_and_another_strategy_equal_one_run_of_it_all(call, tiny_npz, trained):
    how = ["--data", tiny_npz, *QUICK, "--validation", "20%", "--out"]
    three = ["--seeds", "3"]
    assert call("compare", "fedavg", *how, "mine").code == 0
    before = files(Path("mine"))
    trained.clear()
    answer = call("compare", "fedavg", "fedmaba", *how, "mine", *three)
    assert answer.code == 0, answer.err
    runs = {run[:2] for run in trained}
    assert runs == {("fedavg", 2), ("fedmaba", 0), ("fedmaba", 1), ("fedmaba", 2)}
    now = files(Path("mine"))
    assert {name: now[name] for name in before} == before
    assert call("compare", "fedavg", "fedmaba", *how, "whole", *three).code == 0
    mine, whole = parts.load_history("mine"), parts.load_history("whole")
    for one, other in zip(mine.runs, whole.runs, strict=True):
        assert (one.label, one.seed, one.of) == (other.label, other.seed, other.of)
        left, right = one.arrays(), other.arrays()
        assert left.keys() == right.keys()
        for name, value in left.items():  # sums over other numbers of rows round otherwise
            np.testing.assert_allclose(value, right[name], 1e-5, 1e-6, err_msg=name)
    trained.clear()
    again = call("compare", "fedavg", "fedmaba", *how, "mine", *three)
    assert (again.code, trained) == (0, [])
    assert again.out.splitlines()[:5] == answer.out.splitlines()[:5]


def test_more_rounds_end_in_the_bytes_of_one_run(tiny_npz, tmp_path, trained):
    short, long = tmp_path / "short", tmp_path / "long"
    play(begun(small(tiny_npz, train__rounds=4), short))
    trained.clear()
    grown = play(begun(small(tiny_npz), short))
    assert {run[2] for run in trained} == {4, 5}
    play(begun(small(tiny_npz), long))
    want, got = files(long), files(short)
    assert sorted(want) == sorted(got)
    assert [name for name in want if want[name] != got[name]] == []
    same_history(run_folder.load_history(short), grown.history)


@pytest.mark.parametrize("step", ["reopen", "experiment.toml", "about.json"])
def test_a_process_killed_while_it_adds_rounds_loses_nothing(step, tiny_npz, tmp_path, monkeypatch):
    out, long = tmp_path / "run", tmp_path / "long"
    play(begun(small(tiny_npz, train__rounds=4), out))
    real = run_folder.Folder.write

    def write(self, name, *content):
        if name == step:
            raise KeyboardInterrupt
        real(self, name, *content)

    def reopen(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder.Folder, "write", write)
        if step == "reopen":
            patch.setattr(run_folder.Folder, "reopen", reopen)
        with pytest.raises(KeyboardInterrupt):
            begun(small(tiny_npz), out)
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    assert len(run_folder.load_history(out).runs[0].tables["round"]) == 4
    play(begun(small(tiny_npz), out))  # the same command again
    play(begun(small(tiny_npz), long))
    assert [name for name, was in files(long).items() if files(out).get(name) != was] == []
    if not run_folder.is_finished(copy):
        file = copy / "experiment.toml"
        good = file.read_text()
        file.write_text(re.sub(r"rounds = \d+", "rounds = 12", good))
        with pytest.raises(InputError, match=r"experiment.toml was edited|not of this experiment"):
            starting.resume(copy)
        file.write_text(good)
        play(starting.resume(copy))  # or `fedmaba resume`: what was asked for in its file
        assert run_folder.is_finished(copy)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train__schedule": "cosine"}, "schedule=cosine plans the step size over all rounds"),
        ({"eval__every": 3}, "it was evaluated after round 4, where one longer run"),
    ],
)
def test_rounds_that_would_not_be_those_of_one_run_are_refused(changes, said, tiny_npz, tmp_path):
    play(begun(small(tiny_npz, train__rounds=4, **changes), tmp_path / "run"))
    before = files(tmp_path / "run")
    with pytest.raises(InputError) as found:
        begun(small(tiny_npz, **changes), tmp_path / "run")
    assert f"cannot grow from 4 to 6 rounds: {said}" in str(found.value)
    assert files(tmp_path / "run") == before


def test_fewer_rounds_and_other_settings_are_refused_by_name(tiny_npz, tmp_path):
    play(begun(small(tiny_npz), tmp_path / "run"))
    for changes, key in (({"train__rounds": 4}, "train.rounds"), ({"train__lr": 0.3}, "train.lr")):
        with pytest.raises(InputError, match=rf"holds another experiment, in {key}: choose"):
            begun(small(tiny_npz, **changes), tmp_path / "run")


def test_a_swapped_or_missing_state_is_refused(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(small(tiny_npz, train__rounds=4), out))
    state = run_folder.checkpoints(out)[0]
    good = state.read_bytes()
    state.write_bytes(good[:-1])
    with pytest.raises(InputError, match="its checksum is wrong"):
        begun(small(tiny_npz), out)
    state.write_bytes(good)
    arrays, meta = run_folder.read_checkpoint(state)
    name = next(n for n in arrays if n.endswith("deployed.accuracy"))
    arrays[name] = np.zeros_like(arrays[name])
    forged = tmp_path / "forged"
    shutil.copytree(out, forged)
    body = b"".join(run_folder.pack(arrays, meta))
    target = run_folder.checkpoints(forged)[0]
    digest = run_folder.hashlib.sha256(body).digest()
    target.write_bytes(run_folder.MAGIC + digest + body)
    with pytest.raises(InputError, match=r"is not the state that .* ended with"):
        begun(small(tiny_npz), forged)
    state.unlink()
    with pytest.raises(InputError, match="has no state to go on from"):
        begun(small(tiny_npz), out)
    assert json.loads((out / "runs.json").read_text())["made"]["asked"]["train"]["rounds"] == 4


def test_an_unfinished_run_is_finished_first(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(small(tiny_npz, train__rounds=4), out), stop_after=3)
    with pytest.raises(InputError, match="is not finished: first say fedmaba resume"):
        begun(small(tiny_npz), out)


def test_more_rounds_of_some_runs_only_are_refused(call, tiny_npz):
    how = ["--data", tiny_npz, *QUICK, "--out", "mine"]
    assert call("compare", "fedavg", "afl", *how).code == 0
    refused = call("compare", "fedavg", *how, "--rounds", "6")
    assert refused.code == 2
    assert "mine also holds afl, seed 0, with 4 rounds: ask for 6 rounds of all" in refused.err
    assert call("compare", "fedavg", "afl", *how, "--rounds", "6").code == 0


def test_more_rounds_and_more_seeds_in_one_command(call, tiny_npz):
    how = ["--data", tiny_npz, *QUICK, "--out"]
    assert call("compare", "fedavg", *how, "mine").code == 0
    more = ["--rounds", "6", "--seeds", "3"]
    answer = call("compare", "fedavg", *how, "mine", *more)
    assert answer.code == 0, answer.err
    mine = parts.load_history("mine")
    assert [(run.seed, int(run.evaluated[-1])) for run in mine.runs] == [(0, 6), (1, 6), (2, 6)]


def test_runs_are_not_added_to_those_of_other_data_or_code(tmp_path):
    rng = np.random.default_rng(0)
    x, y, client = rng.normal(size=(40, 3)), np.arange(40) % 2, np.arange(40) // 10
    one = fedmaba.Federation.from_arrays(x, y, client)
    other = fedmaba.Federation.from_arrays(x + 1, y, client)
    moved = fedmaba.Federation.from_arrays(x, y, client[::-1].copy())
    out, how = tmp_path / "run", {"rounds": 1, "seeds": 1, "eval_every": 1, "progress": False}
    fedmaba.compare("fedavg", data=one, model="softmax", out=out, **how)
    before = files(out)
    for data, more in ((other, {}), (moved, {}), (other, {"lr": [0.01, 0.02]})):
        with pytest.raises(InputError, match="the data differ from those"):
            fedmaba.compare("afl", data=data, model="softmax", out=out, **how, **more)
    assert files(out) == before

    def bigger(outputs, targets):
        return (outputs.argmax(1) == targets).double() * 2

    with pytest.raises(InputError, match="begun with another metric"):
        fedmaba.compare("afl", data=one, model="softmax", out=out, metric=bigger, **how)
    assert files(out) == before
    assert len(fedmaba.compare("afl", data=one, model="softmax", out=out, **how).runs) == 2


@pytest.mark.parametrize("more", [[], ["--attack", "labels=flip", "--hostile", "25%"]])
def test_seeds_join_a_table_whose_data_are_prepared_for_each_seed(more, call, tmp_path):
    """Gaps are filled and columns standardised by the training rows of each seed."""
    rng = np.random.default_rng(0)
    rows = [
        f"{'' if rng.random() < 0.2 else rng.normal():},{rng.choice(['a', 'b'])},{k % 4},{k % 2}"
        for k in range(120)
    ]
    Path("t.csv").write_text("\n".join(["age,kind,site,sick", *rows]))
    how = ["--data", "t.csv", "--label", "sick", "--client", "site", "--model", "softmax"]
    how += [*more, "--rounds", 2, "--eval-every", 2, "--out"]
    assert call("compare", "fedavg", *how, "mine", "--seeds", 2).code == 0
    answer = call("compare", "fedavg", "fedmaba", *how, "mine", "--seeds", 4)
    assert answer.code == 0, answer.err
    assert call("compare", "fedavg", "fedmaba", *how, "whole", "--seeds", 4).code == 0
    mine, whole = (parts.load_history(name) for name in ("mine", "whole"))
    assert len(mine.runs) == 8
    for one, other in zip(mine.runs, whole.runs, strict=True):
        assert (one.label, one.seed) == (other.label, other.seed)
        np.testing.assert_allclose(one.accuracy("deployed"), other.accuracy("deployed"))
    # other rows are refused, however often one tries
    Path("t.csv").write_text("\n".join(["age,kind,site,sick", *rows[1:], "9,a,1,0"]))
    for _ in range(2):
        refused = call("compare", "fedavg", "fedmaba", *how, "mine", "--seeds", 5)
        assert refused.code == 2
        assert "the data differ from those" in refused.err
