"""Hostile clients: what they say, learn and send, and that figures are of the others."""

import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedmaba
from fedmaba import cli, strategies
from fedmaba.data import attack
from fedmaba.data.attack import Attack, Hostile
from fedmaba.data.federation import attacked
from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file, starting
from fedmaba.experiment import session as experiment
from fedmaba.results.metrics import fairness
from fedmaba.simulation.engine import Plan, Run, simulate, start


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("loss=1e6", Attack(loss=1e6)),
        ("loss=0", Attack(loss=0.0)),
        ("loss=x0.5", Attack(times=0.5)),
        ("loss=worst", Attack(worst=True)),
        ("labels=flip", Attack(flip=True)),
        ("update=-1", Attack(update=-1.0)),
        ("labels=flip + loss=x3+update=5", Attack(times=3.0, flip=True, update=5.0)),
    ],
)
def test_attacks_are_read(text, meant):
    assert attack.parse_attack(text) == meant


@pytest.mark.parametrize(
    "text", ["", "loss", "loss=", "loss=x", "loss=nan", "loss=xinf", "labels=1"]
)
def test_what_is_no_attack_is_one_line(text):
    with pytest.raises(InputError, match=r"is unknown: write loss=L, .*, or some joined by \+"):
        attack.parse_attack(text)


@pytest.mark.parametrize("text", ["loss=-1", "loss=x-3"])
def test_a_loss_below_zero_is_told_so(text):
    with pytest.raises(InputError, match=f"attack '{text}': a reported loss is 0 or more"):
        attack.parse_attack(text)


def test_a_part_stands_once():
    with pytest.raises(InputError, match="loss stands in it twice"):
        attack.parse_attack("loss=1+update=2+loss=x3")


def test_what_is_reported_by_hand():
    client, loss = np.array([4, 1, 2, 0]), np.array([1.0, 2.0, 4.0, 3.0])
    who = np.array([True, False, True, False, False])  # 2 and 0 of the round

    def said(text):
        return Hostile(attack.parse_attack(text), who).reported_losses(client, loss).tolist()

    assert said("loss=9") == [1, 2, 9, 9]
    assert said("loss=x3") == [1, 2, 12, 9]
    assert said("loss=x1e308") == [1, 2, np.finfo(float).max, np.finfo(float).max]
    assert said("loss=worst") == [1, 2, 2, 2]
    assert said("labels=flip") == [1, 2, 4, 3]
    alone = Hostile(Attack(worst=True), np.ones(5, bool))
    assert (
        alone.reported_losses(client, loss).tolist() == loss.tolist()
    )  # nobody is honest in this round


def test_who_is_hostile_depends_on_the_seed_alone(fed, held_fed):
    def who(seed, federation=fed, does="loss=x3", share=0.4):
        return attacked({seed: federation}, attack.parse_attack(does), share)[seed].hostile.who

    assert who(0).sum() == 2
    assert who(0, share=0.01).sum() == 1
    assert (who(0) == who(0, held_fed, "update=2")).all()
    assert len({who(seed).tobytes() for seed in range(20)}) > 5


@pytest.mark.parametrize("share", [0.0, 0.95, 1.0])
def test_some_are_hostile_and_some_are_not(fed, share):
    with pytest.raises(InputError, match="leave at least one on either side"):
        attacked({0: fed}, Attack(update=2.0), share)


def test_hostile_clients_are_not_tested_and_learn_wrong_labels(held_fed):
    turned = attacked(dict.fromkeys((0, 1), held_fed), Attack(flip=True), 0.4)
    assert turned[0].data is turned[1].data  # one batch holds runs of all seeds
    last = len(held_fed.data.classes) - 1
    for fed in turned.values():
        for c, lies in enumerate(fed.hostile.who):
            rows, was = fed.split.train[c], held_fed.split.train[c]
            assert (fed.data.x[rows] == held_fed.data.x[was]).all()
            right = held_fed.data.y[was]
            assert (fed.data.y[rows] == (last - right if lies else right)).all()
            for part in ("validation", "test"):
                now, then = getattr(fed.split, part)[c], getattr(held_fed.split, part)[c]
                assert len(now) == 0 if lies else (now == then).all()


def model(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


def played(fed, does, spec="fedavg", **more):
    plan = Plan(1, minibatch=4, dtype="float64", **more)
    fed = attacked({0: fed}, attack.parse_attack(does), 0.4)[0]
    batch = start([Run(strategies.parse(spec)[0], 0, fed)], plan, model)
    before = batch.progress.model.clone()
    (shot,) = simulate(batch)
    batch.workers.close()
    return (batch.progress.model - before)[0], shot, fed.hostile.who


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize("spec", ["fedavg", "fedmaba:loss_at=mean,eta_b=0"])
def test_a_change_is_sent_so_many_times(fed, chunk, spec):
    moved = {f: played(fed, f"update={f}", spec, chunk=chunk)[0] for f in (0, 1, -2)}
    theirs = moved[1] - moved[0]
    assert theirs.norm() > 0.1 * moved[1].norm()
    assert (moved[-2] - (moved[0] - 2 * theirs)).norm() < 1e-12 * moved[-2].norm()


def test_the_server_sees_what_is_said(fed):
    _, honest, _ = played(fed, "update=2", "fedmaba")
    _, shot, who = played(fed, "loss=1e6", "fedmaba")
    assert (shot.rounds[0].loss[who] == 1e6).all()
    assert (shot.rounds[0].loss[~who] == honest.rounds[0].loss[~who]).all()
    assert shot.rounds[0].weight[who].min() > 1.5 * shot.rounds[0].weight[~who].max()


def test_figures_are_of_clients_that_are_tested():
    accuracy, loss = np.array([0.5, np.nan, 0.7, 0.9]), np.array([1.0, np.nan, 2.0, 3.0])
    some = fairness(accuracy, loss, np.array([10, 0, 20, 10]), 0.3)
    known = np.array([0, 2, 3])
    assert some == fairness(accuracy[known], loss[known], np.array([10, 20, 10]), 0.3)
    assert np.isfinite(some).all()


@pytest.fixture
def run_cli(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["fedmaba", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code
        return "".join(capsys.readouterr())

    return run


@pytest.mark.slow
def test_a_run_with_hostile_clients_is_told_and_drawn(small_sample, tmp_path, run_cli):
    out = tmp_path / "lies"
    told = run_cli(
        *("compare", "fedavg", "fedmaba", "--rounds", "2", "--eval-every", "1", "--seeds", "2"),
        *("--model", "softmax"),
        *("--attack", "labels=flip+loss=x3", "--hostile", "20%", "--out", str(out)),
    )
    assert "hostile: 4 of 20 clients (labels=flip+loss=x3); figures are of the others" in told
    assert "over seeds; 16 of 20 clients" in " ".join(run_cli("table", str(out)).split())
    about = json.loads((out / "about.json").read_text())
    assert len(about["hostile"]["1"]) == 4
    for figure in ("weights", "heterogeneity"):
        run_cli("figure", figure, str(out), "-o", str(tmp_path / f"{figure}.svg"))
    run_cli("report", str(out), "-o", str(tmp_path / "page.html"))
    assert "as hostile ones, are not in the figures" in (tmp_path / "page.html").read_text()
    again = run_cli("run", str(out / "experiment.toml"), "--out", str(tmp_path / "again"))
    assert "hostile: 4 of 20" in again
    for name in ("rounds.jsonl", "partition.npz"):
        assert (out / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.parametrize("share", ["20%", "10%", 0.1])
def test_a_share_that_does_nothing_is_refused(share):
    line = f"attack.share='?{share}'?: hostile clients do nothing: say what with --attack"
    with pytest.raises(InputError, match=line):
        fedmaba.compare(["fedavg"], rounds=1, hostile=share)


def test_older_files_that_name_a_share_of_nobody_are_read_and_resumed(tmp_path, tiny_npz):
    asked = config.build(
        {"strategies": ["fedavg"], "seeds": 1, "data": {"name": str(tiny_npz)}}
        | {"train": {"rounds": 3, "minibatch": 5}, "save": {"every": 1}}
    )
    text = experiment_file.dump(asked)
    assert "attack" not in text
    assert config.build(tomllib.loads(text)) == asked
    older = text + '\n[attack]\nshare = "10%"\n'
    assert config.build(tomllib.loads(older)) == asked
    session = experiment.prepare(asked)
    starting.open_run_folder(session, tmp_path / "run")
    for _ in session.rounds(lambda: True):
        pass
    (tmp_path / "run" / "experiment.toml").write_text(older)
    again = starting.resume(tmp_path / "run")
    for _ in again.rounds():
        pass
    assert (tmp_path / "run" / "runs.json").exists()


def test_python_takes_the_same_words(fed):
    history = fedmaba.compare(
        ["fedavg"],
        data=replace(fed),
        model=model,
        rounds=1,
        seeds=1,
        attack="update=0",
        hostile=0.4,
    )
    assert (history.runs[0].test_size == 0).sum() == 2
    assert np.isnan(history.runs[0].accuracy()[-1]).sum() == 2
