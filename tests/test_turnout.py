"""Who takes part, who answers in time and what is sent, against a program of its own."""

import csv
import json
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba import rng, selection
from fedmaba.data.federation import Federation
from fedmaba.errors import InputError
from fedmaba.report import data
from fedmaba.report.export import write_export
from fedmaba.report.html import page
from fedmaba.results.loading import load_history
from fedmaba.results.run_history import of_unseen
from fedmaba.rows.base import Layout
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.simulation.measurements import client_means, server_models
from fedmaba.simulation.part import Setting
from fedmaba.simulation.parts.turnout import HEARD, TurnoutPart
from fedmaba.simulation.scoring import evaluate_models
from fedmaba.turnout.plan import Turnout
from plain_loop import PLAN, Plain, apart, mlp, one, vector
from run_folders import asked, begun, files, play
from turnout_by_hand import ByHand

pytestmark = pytest.mark.usefixtures("few_threads")
WORDS = {0: "lost", 1: "late", 2: "heard"}
SPECS = ("fedavg", "fedmaba", "scaffold", "ditto", "feddyn", "fednova")


def federation(random, n: int) -> Federation:
    size = random.integers(2, 9, n)
    many = int(size.sum())
    x = random.normal(size=(many, 3)).astype(np.float32)
    client = np.repeat(np.arange(n), size)
    y = (client + random.integers(0, 2, many)) % 4
    return Federation.from_arrays(x, y, client, seed=int(random.integers(100)))


def words_of(random, n: int, folder) -> tuple[dict, dict]:
    """Options in words, and what they are for the other program."""
    told, hand = {}, {}
    kind = random.choice(["always", "p", "cyclic", "file"])
    by = str(random.choice(["", "size", "label"]))
    also = f",by={by}" if by else ""
    if kind == "p":
        low, high = (round(float(v), 2) for v in random.uniform(0.1, 1, 2))
        told["available"], hand["available"] = f"p={low}..{high}{also}", ("p", low, high, by)
    if kind == "cyclic":
        period, share = int(random.integers(2, 9)), round(float(random.uniform(0.2, 1)), 2)
        told["available"] = f"cyclic:{period},share={share}{also}"
        hand["available"] = ("cyclic", period, share, by)
    if kind == "file":
        first = random.integers(1, 4, 2 * n)
        spans = [(int(random.integers(n)), int(a), int(a + random.integers(3))) for a in first]
        path = folder / "there.csv"
        path.write_text("client,from,to\n" + "".join(f"{c},{a},{b}\n" for c, a, b in spans))
        told["available"], hand["available"] = str(path), ("file", spans)
    told["select"] = hand["select"] = str(random.choice(["uniform", "size", "fair"]))
    if random.random() < 0.5:
        told["dropout"], hand["dropout"] = "30%", 0.3
    if random.random() < 0.7:
        told["speed"], hand["speed"] = "lognormal:0.8,median=40", (0.8, 40.0)
    if random.random() < 0.3:
        speeds = [round(float(v), 3) for v in random.uniform(1, 50, n)]
        path = folder / "speed.csv"
        path.write_text("client,speed\n" + "".join(f"{c},{v}\n" for c, v in enumerate(speeds)))
        told["speed"], hand["speed"] = str(path), speeds
    if random.random() < 0.5:
        told["bandwidth"], hand["bandwidth"] = "0.02", 0.02
    if ("speed" in told or "bandwidth" in told) and random.random() < 0.8:
        hand["deadline"] = round(float(random.uniform(0.2, 2)), 3)
        told["deadline"] = f"{hand['deadline']}s"
    if random.random() < 0.3:
        hand["unseen"] = int(random.integers(1, n))
        told["unseen"] = str(hand["unseen"])
    if random.random() < 0.3:
        told["sums"] = hand["sums"] = "secure"
    return told, hand


def setting_of(fed, seed, spec, plan) -> Setting:
    """A run as a part meets it, without training."""
    layout, strategy = Layout(torch.nn.Linear(3, 4)), one(spec)
    first = torch.zeros(1, layout.size)
    runs = [Run(strategy, seed, fed)]
    return Setting([strategy.local()], [strategy.needs()], layout, first, runs, plan)


def test_a_thousand_set_ups_equal_the_other_program(tmp_path):
    random, met, refused = np.random.default_rng(7), set(), 0
    federations = [federation(random, int(random.integers(2, 9))) for _ in range(50)]
    for seed in range(1000):
        fed, spec = federations[seed % 50], SPECS[seed % 6]
        n = fed.n_clients
        told, hand = words_of(random, n, tmp_path)
        part = n - hand.get("unseen", 0)
        if part == 1:  # no choice
            told["select"] = hand["select"] = "uniform"
        many = int(random.integers(1, part + (hand["select"] == "uniform")))
        epochs = int(random.integers(1, 3))
        plan = Plan(9, participants=many, epochs=epochs, turnout=Turnout.parse(told))
        setting = setting_of(fed, seed, spec, plan)
        local, needs = setting.local[0], setting.needs[0]
        try:
            part = TurnoutPart(setting, frozenset([0]))
        except InputError:  # nobody can be as quick; those have a test of their own
            refused += 1
            continue
        labels = [fed.data.y[fed.train.of(c)].tolist() for c in range(n)]
        other = ByHand(seed, fed.train.size.tolist(), labels, many, epochs, **hand)
        other.weights = {"weight": 12, "bias": 4}
        other.task, other.means = json.dumps(local.of(0).to_json()), len(local.sent_means)
        other.keeps, other.tell = bool(local.keeps), " ".join(needs.of_clients)
        other.begins = bool(local.models_kept)
        other.numbers = (needs.loss != "none") + len(needs.of_clients)
        progress = SimpleNamespace(carried=[dict(part.carries(0))], diverged=[""])
        batch = SimpleNamespace(
            runs=setting.runs, plan=plan, local=setting.local, needs=[needs], progress=progress
        )
        for t in range(4):
            drawn = part.draw(batch, 0, t)
            rounds = {}
            part.recorded(batch, SimpleNamespace(cohorts=[], drawn={0: drawn}, round=t), rounds)
            told_now = rounds[0].columns
            want, clock = other.round(t)
            asked = told_now["turnout.answer"] >= 0
            assert rounds[0].client[asked].tolist() == list(want)
            columns = [told_now[f"turnout.{name}"][asked] for name in ("answer", "down", "up")]
            for (what, down, up, took), *found in zip(want.values(), *columns, strict=True):
                assert [WORDS[int(found[0])], *found[1:]] == [what, down, up]
                met.add((what, took > 0))
            if "turnout.clock" in told_now:
                seconds = told_now["turnout.seconds"][asked]
                np.testing.assert_allclose(seconds, [s for *_, s in want.values()], 1e-6)
                assert told_now["turnout.clock"] == pytest.approx(clock, rel=1e-6)
            assert drawn.client.tolist() == [c for c, (what, *_) in want.items() if what == "heard"]
    assert met == {(w, timed) for w in ("lost", "heard") for timed in (True, False)} | {
        ("late", True)
    }
    assert refused < 300


def played(fed, turnout, spec="fedavg", plan=PLAN, seed=3):
    """A run's last snapshot and its batch."""
    words = Turnout.parse(turnout) if isinstance(turnout, dict) else turnout
    batch = start([Run(one(spec), seed, fed)], replace(plan, turnout=words), mlp)
    return [shot.rounds[0] for shot in simulate(batch)], batch


def flat(batch) -> np.ndarray:
    return batch.progress.model[0].numpy()


SOME = replace(PLAN, rounds=6, participants=3)
ALL_KINDS = {"available": "p=0.5..0.9,by=size", "select": "fair", "dropout": "20%"}
ALL_KINDS |= {"speed": "lognormal:1", "bandwidth": "1", "deadline": "0.3s"}


@pytest.mark.parametrize("spec", ["fedavg", "fedmaba", "scaffold"])
def test_all_options_off_or_at_rest_give_the_same_bits(spec, fed):
    rounds, batch = played(fed, None, spec, SOME)
    rest = {"available": "always", "select": "uniform", "dropout": "0%", "speed": "100"}
    others, same = played(fed, rest | {"deadline": "1h"}, spec, SOME)
    assert flat(batch).tolist() == flat(same).tolist()
    for one_round, other in zip(rounds, others, strict=True):
        assert one_round.client.tolist() == other.client.tolist()
        assert one_round.weight.tolist() == other.weight.tolist()
        assert not one_round.columns


@pytest.mark.parametrize("spec", ["fedavg", "fedmaba:loss_at=end", "propfair"])
def test_who_is_not_heard_counts_as_one_who_did_not_take_part(spec, fed, monkeypatch):
    """The same model as a plain loop makes of those who were heard."""
    rounds, batch = played(fed, ALL_KINDS, spec, SOME)
    heard = [r.client[r.columns["turnout.answer"] == HEARD] for r in rounds]
    missing = [(r.columns["turnout.answer"] < HEARD).any() for r in rounds]
    assert any(missing)
    assert all(len(who) for who in heard)
    monkeypatch.setattr(rng, "sample_clients", lambda seed, t, *a: heard[t])
    plain = Plain(one(spec), 3, fed, SOME, mlp).run()
    assert apart(vector(batch, batch.progress.model[0]), plain.path[-1]) < 1e-9
    for r, told in zip(rounds, plain.told, strict=True):
        np.testing.assert_allclose(r.weight[~np.isnan(r.weight)], told.weight, rtol=1e-8)


@pytest.mark.parametrize("spec", ["scaffold", "fedavgm", "ditto"])
def test_a_round_without_an_answer_leaves_everything_as_it_was(spec, fed, tmp_path):
    path = tmp_path / "there.csv"
    path.write_text("client,from,to\n0,1,2\n1,2,2\n3,5,6\n")
    plan = replace(PLAN, rounds=6, turnout=Turnout.parse({"available": str(path)}))
    batch = start([Run(one(spec), 3, fed)], plan, mlp)
    before, many = {}, []
    for shot in simulate(batch):
        many.append(int(np.isfinite(shot.rounds[0].weight).sum()))
        now = {k: v.copy() for k, v in batch.progress.arrays().items() if "silent" not in k}
        if not many[-1]:
            assert now.keys() == before.keys()
            for name, value in now.items():
                np.testing.assert_array_equal(value, before[name], name)
        before = now
    assert many == [1, 2, 0, 0, 1, 1]
    assert batch.progress.carried[0]["heard"].tolist() == [2, 1, 0, 2, 0]


def test_power_of_choice_asks_those_with_the_highest_losses(fed):
    plan = replace(PLAN, rounds=5, participants=2)
    words = Turnout.parse({"select": "power-of-choice:d=4"})
    batch = start([Run(one("fedavg"), 3, fed)], replace(plan, turnout=words), mlp)
    before, last = batch.progress.model.clone(), 0
    for shot in simulate(batch):
        r = shot.rounds[0]
        polled = r.client[r.columns["turnout.down"] > 0]
        assert len(polled) == 4
        models = lambda client, m=before: server_models(batch.trainer, 0, m[0], client)  # noqa: E731
        loss, _ = client_means(batch, batch.train, 0, models, polled)
        best = sorted(polled[np.argsort(-loss.numpy())][:2].tolist())
        assert r.client[r.columns["turnout.answer"] == HEARD].tolist() == best
        before, last = batch.progress.model.clone(), last + 1
    assert last == 5


def test_the_bandit_follows_its_formula(fed):
    """Asked: new clients first, then by size times the upper bound of the discounted loss."""
    plan, gamma = replace(PLAN, rounds=8, participants=2), 0.6
    rounds, batch = played(fed, {"select": "ucb:gamma=0.6"}, "fedmaba:loss_at=mean", plan)
    n = fed.n_clients
    loss, count, total, sigma = np.zeros(n), np.zeros(n), 0.0, 0.0
    for r in rounds:
        asked = r.client[r.columns["turnout.answer"] == HEARD]
        new = np.flatnonzero(count == 0)
        if len(new) >= 2:
            assert set(asked) <= set(new)
        else:
            known = np.maximum(count, 1e-300)
            bound = loss / known + sigma * np.sqrt(2 * math.log(max(total, 1)) / known)
            score = np.where(count > 0, fed.train.size * bound, np.inf)
            assert asked.tolist() == sorted(np.argsort(-score)[:2].tolist())
        seen = r.loss[np.isfinite(r.loss)]  # FedMABA asks for the same mean losses
        loss, count, total = gamma * loss, gamma * count, gamma * total + 1
        loss[asked] += seen
        count[asked] += 1
        sigma = float(np.std(seen))
    np.testing.assert_allclose(batch.progress.carried[0]["select.loss"], loss, rtol=1e-9)


def test_quotas_are_met_over_time(fed):
    plan = replace(PLAN, rounds=10, participants=2)
    _, batch = played(fed, {"select": "fair:least=0.4"}, plan=plan)
    assert batch.progress.carried[0]["asked"].tolist() == [4] * 5


def test_every_strategy_meets_the_same_clients(fed):
    words = Turnout.parse(ALL_KINDS | {"bandwidth": None})
    specs = ("fedavg", "scaffold", "qffl:q=2")
    batch = start([Run(one(s), 3, fed) for s in specs], replace(SOME, turnout=words), mlp)
    for shot in simulate(batch):
        asked = [r.client[r.columns["turnout.answer"] >= 0].tolist() for r in shot.rounds]
        assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize(
    ("turnout", "plan", "words"),
    [
        ({"speed": "1", "deadline": "1s"}, SOME, "the fastest client of seed 3 needs"),
        ({"select": "fair:least=0.7"}, SOME, "more than 3 a round"),
        ({"select": "fair:least=0.5", "available": "p=0.3"}, SOME, "client 0 is there in 0.3"),
        ({"select": "power-of-choice:d=2"}, SOME, "give d from 3 to 5"),
        ({"select": "power-of-choice:d=9"}, SOME, "give d from 3 to 5"),
        ({"available": "p=0"}, SOME, "nobody is ever there"),
        ({"select": "size"}, PLAN, "all clients are asked in each round"),
        ({"available": "p=0.5..0.9,by=group"}, SOME, "has no group column"),
        ({"unseen": "5"}, SOME, "leave at least one that trains"),
        ({"unseen": "40%", "select": "fair"}, SOME, "all clients are asked in each round"),
        ({"unseen": "1", "select": "fair:least=0.8"}, SOME, "for 4 clients is more than 3"),
        ({"unseen": "1", "select": "power-of-choice:d=5"}, SOME, "give d from 3 to 4"),
    ],
)
def test_what_cannot_be_is_one_line(turnout, plan, words, fed):
    with pytest.raises(InputError, match=words) as error:
        played(fed, turnout, plan=plan)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("turnout", "words"),
    [
        ({"available": "sometimes"}, "write always"),
        ({"available": "p=0.5..2"}, "chances from 0 to 1"),
        ({"available": "p=0.5..0.9,by=colour"}, "choose one of size, label, group"),
        ({"available": "p=0.5,by=size"}, "write a range"),
        ({"deadline": "1ms", "speed": "9"}, "deadline='1ms'"),
        ({"available": "cyclic:1"}, "from 2 to 1,000,000"),
        ({"available": "cyclic:4,often=1"}, "write by=... or share=..."),
        ({"available": "gone.csv"}, "name a .csv file"),
        ({"select": "best"}, "selection 'best'"),
        ({"select": "ucb:gamma=2"}, "gamma=2"),
        ({"select": "ucb:beta=2"}, "write gamma=..."),
        ({"dropout": "100%"}, "nobody would ever answer"),
        ({"dropout": "some"}, "give a share"),
        ({"speed": "0"}, "a number above 0"),
        ({"speed": "normal:1"}, "write lognormal:0.5"),
        ({"speed": "lognormal:-1"}, "S from 0 to 10"),
        ({"deadline": "1d", "speed": "1"}, "as 60s, 2m or 1h"),
        ({"deadline": "1m"}, "nobody takes any time"),
        ({"sums": "safe"}, "say plain or secure"),
        ({"unseen": "100%"}, "a share of the clients below 1"),
        ({"unseen": "2.5"}, "a whole number of them"),
    ],
)
def test_words_that_are_wrong_are_one_line(turnout, words):
    with pytest.raises(InputError, match=words) as error:
        Turnout.parse(turnout)
    assert "\n" not in str(error.value)


def test_tables_that_are_wrong_are_one_line(tmp_path, fed):
    path = tmp_path / "t.csv"
    for content, option, words in [
        ("client,from\n0,1\n", "available", "no column 'to'"),
        ("client,from,to\n", "available", "no rows"),
        ("client,from,to\n0,3,1\n", "available", "the first one first"),
        ("client,from,to\n9,1,2\n", "available", "no client '9'"),
        ("client,speed\n0,1\n", "speed", "no row for client 1"),
        ("client,speed\n0,-1\n", "speed", "above 0"),
    ]:
        path.write_text(content)
        with pytest.raises(InputError, match=words):
            played(fed, {option: str(path)})


def test_a_run_that_nobody_answers_any_more_ends(tmp_path, fed):
    path = tmp_path / "early.csv"
    path.write_text("client,from,to\n0,1,2\n")
    rounds, batch = played(fed, {"available": str(path)}, plan=replace(PLAN, rounds=30))
    assert len(rounds) == 12
    assert "ended in round 12: nobody answered in 10 rounds" in batch.progress.diverged[0]


@dataclass(frozen=True)
class Newest(selection.Selection):
    """a selection of one's own: the last clients that are there, and what it remembers"""

    name: ClassVar[str] = "newest"
    learns: ClassVar[bool] = True
    wrong: str = ""

    def init(self, n_clients):
        return {"seen": np.zeros(n_clients)}

    def choose(self, state, seen):
        if self.wrong == "fails":
            raise RuntimeError("oh")
        rows = np.arange(len(seen.client))[-seen.many :]
        return {"twice": np.zeros(2, int), "far": rows + 100}.get(self.wrong, rows)

    def learn(self, state, client, loss):
        out = state["seen"].copy()
        out[client] = loss
        return {"seen": out[:-1] if self.wrong == "state" else out}


def test_a_selection_of_ones_own(fed):
    turnout = Turnout.parse({"select": "test_turnout.Newest"})
    rounds, batch = played(fed, turnout, "fedavg", replace(PLAN, participants=2))
    assert [r.client.tolist() for r in rounds] == [[3, 4]] * 3
    assert batch.progress.carried[0]["select.seen"][3:].all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("fails", "choose.*test_turnout.py.*RuntimeError: oh"),
        ("twice", "different rows"),
        ("far", "different rows"),
        ("state", "another state"),
    ],
)
def test_a_selection_of_ones_own_that_is_wrong_is_one_line(wrong, words, fed):
    turnout = Turnout(select=Newest(wrong=wrong))
    with pytest.raises(InputError, match=words):
        played(fed, turnout, "fedavg", replace(PLAN, participants=2))


def test_dp_is_refused(fed):
    (strategy,) = fedmaba.strategies.parse("fedavg:weights=uniform")
    from fedmaba.privacy.mechanism import Privacy

    plan = Plan(2, privacy=Privacy(epsilon=8.0), turnout=Turnout.parse({"dropout": "10%"}))
    with pytest.raises(InputError, match="dp counts on clients"):
        start([Run(strategy, 0, fed)], plan, mlp)


def asked_with(npz, tmp_path, more=None, **changes):
    path = tmp_path / "there.csv"
    if not path.exists():
        path.write_text("client,from,to\n0,1,9\n1,2,3\n2,1,4\n3,1,2\n4,3,6\n")
    turnout = {"available": str(path), "dropout": "20%", "speed": "lognormal:1", "deadline": "1s"}
    return asked(npz, turnout=turnout | {"select": "ucb"} | (more or {}), **changes)


def test_a_run_that_was_stopped_ends_with_the_same_files(tiny_npz, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    wanted = asked_with(tiny_npz, tmp_path, machine__threads=2)
    play(begun(wanted, whole))
    play(begun(wanted, stopped), stop_after=3)
    play(begun(wanted, stopped))
    assert files(stopped) == files(whole)
    again = load_history(whole)
    for mine, kept in zip(play(begun(wanted, whole)).history.runs, again.runs, strict=True):
        assert {"turnout.answer", "turnout.down", "turnout.clock"} <= kept.tables.keys()
        for name, table in kept.tables.items():
            np.testing.assert_array_equal(mine.column(name), table.array(), name)


def test_who_was_asked_is_exported(tiny_npz, tmp_path):
    out = tmp_path / "run"
    history = play(begun(asked_with(tiny_npz, tmp_path), out)).history
    write_export(out, tmp_path / "csv")
    with (tmp_path / "csv" / "turnout.csv").open() as file:
        rows = list(csv.DictReader(file))
    run = history.runs[0]
    mine = [r for r in rows if r["strategy"] == run.label and int(r["seed"]) == run.seed]
    down, answer = run.column("turnout.down"), run.column("turnout.answer")
    assert sum(int(r["down"]) for r in mine) == down.sum()
    assert sum(int(r["up"]) for r in mine) == run.column("turnout.up").sum()
    heard = [(int(r["round"]), int(r["client"])) for r in mine if r["answer"] == "heard"]
    places = zip(*np.nonzero(answer == 2), strict=True)
    assert heard == [(t + 1, run.column("client")[t, k]) for t, k in places]
    assert {r["answer"] for r in rows} <= {"heard", "late", "lost"}
    play(begun(asked(tiny_npz), tmp_path / "plain"))
    write_export(tmp_path / "plain", tmp_path / "none")
    assert not (tmp_path / "none" / "turnout.csv").exists()


def test_a_table_that_was_edited_is_noticed(tiny_npz, tmp_path):
    out, wanted = tmp_path / "run", asked_with(tiny_npz, tmp_path)
    play(begun(wanted, out), stop_after=3)
    table = tmp_path / "there.csv"
    was = table.read_text()
    table.write_text(was + "1,5,5\n")
    with pytest.raises(InputError, match="another table of available"):
        begun(wanted, out)
    table.write_text(was)
    play(begun(wanted, out))


def test_another_option_is_another_experiment(tiny_npz, tmp_path):
    out = tmp_path / "run"
    play(begun(asked(tiny_npz, turnout={"dropout": "20%"}), out), stop_after=3)
    for turnout in ({}, {"dropout": "30%"}, {"dropout": "20%", "select": "fair"}):
        with pytest.raises(InputError, match="holds another experiment, in turnout"):
            begun(asked(tiny_npz, turnout=turnout), out)


def test_a_folder_without_the_options_says_nothing_of_them(tiny_npz, tmp_path):
    out = tmp_path / "run"
    session = play(begun(asked(tiny_npz), out))
    assert "turnout" not in (out / "experiment.toml").read_text()
    assert "turnout" not in session.provenance()["asked"]
    assert not [name for run in session.history.runs for name in run.tables if "turnout" in name]


@pytest.mark.parametrize("spec", ["fedavg", "ditto"])
def test_unseen_clients_change_nothing_and_use_the_servers_model(spec, fed):
    """As if they were never there; their own model is the server's, or what they make of it."""
    rounds, batch = played(fed, {"unseen": "2"}, spec, replace(PLAN, finetune=2))
    (absent,) = (batch.parts_of(0)[i].absent(0) for i in _turnout_parts(batch))
    assert absent.sum() == 2
    assert not absent[np.concatenate([r.client[~np.isnan(r.weight)] for r in rounds])].any()
    (found,) = evaluate_models(batch)
    servers, own = found["deployed"].accuracy, found["personal"].accuracy
    assert np.isfinite(own).all()
    loss = found["personal"].loss - found["deployed"].loss
    if spec == "ditto":
        np.testing.assert_array_equal(own[absent], servers[absent])
        np.testing.assert_allclose(loss[absent], 0, atol=1e-6)
    else:  # fine-tuned
        assert (abs(loss[absent]) > 1e-4).all()
    assert (abs(loss[~absent]) > 1e-4).all()


def _turnout_parts(batch):
    return [i for i, part in enumerate(batch.parts_of(0)) if isinstance(part, TurnoutPart)]


def test_figures_are_of_those_who_take_part_and_the_unseen_have_their_own(tiny_npz, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    wanted = asked_with(
        tiny_npz, tmp_path, {"unseen": "2"}, eval__finetune=1, train__participants=2
    )
    history = play(begun(wanted, whole)).history
    play(begun(wanted, stopped), stop_after=3)
    play(begun(wanted, stopped))
    assert files(stopped) == files(whole)
    again = load_history(whole)
    apart = [tuple(np.flatnonzero(~run.takes_part)) for run in again.runs]
    assert {len(who) for who in apart} == {2}
    assert len(set(apart)) == len({run.seed for run in again.runs})  # the same for all strategies
    for run in (*again.runs, *history.runs):
        raw = {m: run.column(f"{m}.accuracy")[-1] for m in ("deployed", "personal")}
        for side, some in ((run, run.takes_part), (of_unseen(run), ~run.takes_part)):
            for model, accuracy in raw.items():
                (figures,) = side.fairness(model, at=[-1])
                assert figures.variance == pytest.approx(np.var(100 * accuracy[some]))
                assert figures.accuracy == pytest.approx(100 * accuracy[some].mean())
        assert run.judged() == run.takes_part.sum()
    rows = json.loads(again.table("json"))["unseen"]
    labels = list(dict.fromkeys(run.label for run in again.runs))
    sides = [(model, who) for model in ("deployed", "personal") for who in ("took part", "unseen")]
    assert [(r["strategy"], r["model"], r["clients"]) for r in rows] == [
        (label, *side) for label in labels for side in sides
    ]
    assert rows[0]["mean"] == json.loads(again.table("json"))["rows"][0]["mean"]
    assert "Clients that took no part in training (2 of" in again.table()
    assert "Clients that took no part in training (2 of" in page([data.source_of(again)])
    write_export(whole, tmp_path / "csv")
    with (tmp_path / "csv" / "clients.csv").open() as file:
        told = {(r["seed"], int(r["client"])) for r in csv.DictReader(file) if r["unseen"]}
    assert told == {(str(r.seed), c) for r, who in zip(again.runs, apart, strict=True) for c in who}


def test_rounds_without_an_answer_are_told_and_such_an_end_is_not_called_diverged(
    tiny_npz, tmp_path
):
    path = tmp_path / "there.csv"
    path.write_text("client,from,to\n0,1,2\n1,5,5\n")
    wanted = asked(tiny_npz, turnout={"available": str(path)}, train__rounds=6)
    history = play(begun(wanted, tmp_path / "some")).history
    words = "obody answered in rounds 3 to 4, 6 ("
    assert words in history.table()
    assert words in page([data.source_of(history)])
    assert words in json.loads(history.table("json"))["notes"][0]
    wanted = asked(tiny_npz, turnout={"available": str(path)}, train__rounds=30)
    ended = play(begun(wanted, tmp_path / "ended")).history
    assert {row.note.partition(":")[0] for row in ended.summary()} == {"nobody answered"}
    assert "diverged" not in ended.table()
