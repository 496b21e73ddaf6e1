"""fedmaba's strategies inside Flower, in one process; the real processes are in test_flower_net."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from fedmaba.deploy import messages
from fedmaba.deploy.flower_app.new import new
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, load_arrays
from flower_grid import LocalGrid, light_app, light_model
from flower_sites import (
    CONFIG,
    assert_same,
    first,
    grid_of,
    model_of,
    named,
    served,
    simulated,
)


def apps(fed):
    return grid_of(fed).apps


def test_what_a_run_returns_hands_out_and_reports(fed):
    flower, result = served("fedmaba", fed, grid_of(fed), evaluate=True)
    batch, _ = simulated("fedmaba", fed)
    assert_same(result.arrays, model_of(batch))
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    told = result.train_metrics_clientapp[1]
    assert {"variance", "accuracy", "lambda", "kl", "replies"} <= set(told)
    assert result.evaluate_metrics_clientapp[3]["accuracy"] > 0
    assert_same(flower.deployed, named(batch, batch.progress.deployed[0]))
    assert [report["round"] for report in flower.reports] == [1, 2, 3]
    sites = flower.reports[0]["sites"]
    assert list(sites) == [f"site-{c}" for c in range(5)]
    assert sum(row["weight"] for row in sites.values()) == pytest.approx(1.0)
    assert [row["examples"] for row in sites.values()] == fed.train.size.tolist()


# restarts


SCRIPT = """
import os, signal, sys
from fedmaba import flower
from fedmaba.results import files
from flower_grid import LocalGrid, light_app, light_model
moment = int(sys.argv[1])  # before which write or reply this process ends

def dying(work):
    def counted(*args, **kwargs):
        global moment
        moment -= 1
        if moment == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*args, **kwargs)
    return counted

files.os.replace, files.os.fsync = dying(os.replace), dying(os.fsync)
flower.reply = dying(flower.reply)
grid = LocalGrid({c + 1: light_app(c) for c in range(3)})
strategy = flower.FlowerStrategy("fedmaba", min_available_nodes=3, state="state", evaluate=False)
result = strategy.start(grid, light_model(), 4, timeout=5)
print(result.arrays["w"].numpy().tobytes().hex(), strategy.server.state["p"].tobytes().hex())
"""


def test_sigkill_at_any_moment_changes_no_number(tmp_path):
    """The server's process kills itself before its n-th write or reply, and is started again."""
    (tmp_path / "script.py").write_text(SCRIPT)
    tests = str(Path(__file__).parent)

    def run(folder, moment):
        (tmp_path / folder).mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, str(tmp_path / "script.py"), str(moment)],
            cwd=tmp_path / folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([tests, *filter(None, sys.path)])},
            capture_output=True,
            text=True,
        )

    whole = run("whole", 0)
    assert whole.returncode == 0, whole.stderr
    # inside round 1; before, in and after its save; between rounds; inside round 2
    for moment in (5, 7, 8, 9, 10, 12):
        assert run(f"part{moment}", moment).returncode == -signal.SIGKILL
        done = run(f"part{moment}", 0)
        assert done.returncode == 0, done.stderr
        assert done.stdout == whole.stdout, moment


# sites that come and go


def test_a_site_that_falls_silent_keeps_its_weight_and_returns(fed):
    grid = grid_of(fed)

    def lose(message, answer):
        lost = message.metadata.dst_node_id == 1000 and "round 2 " in message.metadata.group_id
        return None if lost else answer

    grid.spoil = lose
    strategy, _ = served("fedmaba", fed, grid)
    first_, second, third = strategy.reports
    assert set(first_["sites"]) == set(third["sites"]) == {f"site-{c}" for c in range(5)}
    assert "site-0" not in second["sites"]
    assert second["refused"] == ["node 1000 (site-0): it failed: no answer within 5 seconds"]


def test_a_site_that_cannot_be_reached_is_named(fed):
    class Cut(LocalGrid):
        def push_messages(self, messages):
            about = [m.metadata for m in messages]
            lost = [a.dst_node_id == 1000 and a.message_type == "train" for a in about]
            ids = super().push_messages(messages)
            return [None if gone else i for i, gone in zip(ids, lost, strict=True)]

    strategy, _ = served("fedmaba", fed, Cut(apps(fed)), 1)
    assert "site-0" not in strategy.reports[0]["sites"]
    assert strategy.reports[0]["refused"] == [
        "node 1000 (site-0): it failed: nothing could be sent"
    ]


def test_sites_join_and_leave(fed):
    everyone = apps(fed)
    nodes = list(everyone)
    grid = LocalGrid({n: everyone[n] for n in nodes[1:4]})
    strategy = FlowerStrategy("fedmaba", min_available_nodes=3, evaluate=False)
    arrays, config = first(fed), ConfigRecord(CONFIG)

    def round_(t):
        strategy.start(grid, arrays, t, train_config=config)
        return strategy.server.state["p"]

    p = round_(1)
    assert strategy.server.sites == ["site-1", "site-2", "site-3"]
    grid.apps[nodes[0]] = everyone[nodes[0]]  # a site joins
    grid.apps[nodes[4]] = everyone[nodes[4]]
    q = round_(2)
    assert strategy.server.sites == ["site-1", "site-2", "site-3", "site-0", "site-4"]
    assert q.sum() == pytest.approx(1.0)
    assert len(strategy.reports[1]["sites"]) == 5
    del grid.apps[nodes[1]]  # a site leaves, and two more
    del grid.apps[nodes[0]], grid.apps[nodes[4]]
    r = round_(3)
    assert list(strategy.reports[2]["sites"]) == ["site-2", "site-3"]
    np.testing.assert_array_equal(r[[0, 3, 4]], q[[0, 3, 4]])
    grid.apps[nodes[1]] = everyone[nodes[1]]  # it returns
    round_(4)
    assert "site-1" in strategy.reports[3]["sites"]
    assert len(strategy.server.sites) == 5
    assert len(p) == 3


def test_too_few_sites_is_said_in_time(fed, monkeypatch):
    said = []
    monkeypatch.setattr(messages, "log", lambda level, text, *rest: said.append(text % rest))
    some = dict(list(apps(fed).items())[:2])
    strategy = FlowerStrategy("fedavg", min_available_nodes=3, wait=0.05)
    with pytest.raises(InputError, match=r"2 sites after 0\.05 seconds, but 3 are needed"):
        strategy.start(LocalGrid(some), first(fed), 1)
    assert said[-1] == "waiting for sites: 2 of 3 are here"
    assert len(said) == len(set(said))


# hostile replies, as Flower delivers them


def content(answer) -> RecordDict:
    return RecordDict(dict(answer.content))


def rebuilt(message, answer, **records):
    """The honest answer with records replaced or added."""
    whole = content(answer)
    for key, record in records.items():
        whole[key] = record
    return Message(whole, reply_to=message)


def _array(name, array):
    def spoil(message, answer):
        arrays = ArrayRecord(dict(answer.content["arrays"]))
        arrays[name] = array(arrays[name]) if callable(array) else array
        return rebuilt(message, answer, arrays=arrays)

    return spoil


def _metric(**new):
    def spoil(message, answer):
        old = {**answer.content["metrics"], **{k.replace("_", "-"): v for k, v in new.items()}}
        return rebuilt(message, answer, metrics=MetricRecord(old))

    return spoil


def _meta(key, value):
    def spoil(message, answer):
        answer.metadata.__dict__[key] = value
        return answer

    return spoil


def _raise(error):
    def spoil(message, answer):
        raise error

    return spoil


HOSTILE = {
    "complex": _array("w", lambda a: Array(a.numpy().astype(np.complex64))),
    "bytes": _array("w", lambda a: Array(a.dtype, a.shape, a.stype, b"junk")),
    "pickle": _array("w", lambda a: Array(a.dtype, a.shape, "pickle", b"cos\nsystem\n.")),
    "object": _array("w", lambda a: Array("object", a.shape, a.stype, a.data)),
    "loss list": _metric(loss=[1.0, 2.0]),
    "two models": lambda m, a: rebuilt(m, a, second=ArrayRecord()),
    "two names": lambda m, a: rebuilt(m, a, second=ConfigRecord({"site": "x"})),
    "name as bytes": lambda m, a: rebuilt(m, a, config=ConfigRecord({"site": b"site-0"})),
    "name list": lambda m, a: rebuilt(m, a, config=ConfigRecord({"site": ["site-0"]})),
    "nothing": lambda m, a: Message(RecordDict(), reply_to=m),
    "error": lambda m, a: Message(Error(1, "out\nof memory"), reply_to=m),
    "other round": _meta("_group_id", "round 9 ffff"),
    "unreadable": _raise(ValueError("cannot inflate")),
    "runaway": _raise(RecursionError("too deep")),
}  # fmt: skip


@pytest.mark.parametrize("spec", ["fedavg", "fedmaba"])
def test_hostile_messages_are_left_out_and_the_run_goes_on(spec):
    """Node 100 (site-0) does one thing after another, a round each."""
    kinds = list(HOSTILE)

    def run(kind_of):
        def spoil(message, answer):
            if message.metadata.dst_node_id != 100 or message.metadata.message_type != "train":
                return answer
            turn = int(message.metadata.group_id.split()[1])
            return HOSTILE[kind_of(turn)](message, answer)

        grid = LocalGrid({100 - c: light_app(c) for c in range(5)}, spoil)
        strategy = FlowerStrategy(spec, min_available_nodes=5, evaluate=False)
        return strategy, strategy.start(grid, light_model(), len(kinds), timeout=1).arrays

    strategy, attacked = run(lambda turn: kinds[turn - 1])
    assert len(strategy.reports) == len(kinds)
    for kind, report in zip(kinds, strategy.reports, strict=True):
        assert len(report["refused"]) == 1, (kind, report)
        assert report["refused"][0].startswith("node 100 (site-0): "), kind
        assert report["refused"][0].isprintable()
        assert list(report["sites"]) == ["site-1", "site-2", "site-3", "site-4"]
    _, clean = run(lambda turn: "error")
    assert np.isfinite(clean["w"].numpy()).all()
    np.testing.assert_array_equal(attacked["w"].numpy(), clean["w"].numpy())


def test_who_answered_is_not_what_the_reply_says(fed):
    """A node that claims another's id in its metadata is still known by the message it answers."""
    grid = grid_of(fed)

    def spoil(message, answer):
        if message.metadata.dst_node_id == 1000 and message.metadata.message_type == "train":
            answer.metadata.__dict__["_src_node_id"] = 993
        return answer

    grid.spoil = spoil
    strategy, _ = served("fedavg", fed, grid, 1)
    assert list(strategy.reports[0]["sites"]) == [f"site-{c}" for c in range(5)]


# the rest


def test_bad_options_are_refused():
    for bad in ({"fraction_train": 0}, {"fraction_train": 2}, {"min_train_nodes": 0}, {"lr": -1}):
        with pytest.raises(InputError):
            FlowerStrategy("fedavg", **bad)
    for word in ({"lr": "0.1"}, {"fraction_train": "1"}, {"seed": 0.5}, {"min_train_nodes": True}):
        with pytest.raises(InputError, match=f"{next(iter(word))}=.*: it must be a"):
            FlowerStrategy("fedavg", **word)
    for bad in (0, -1, 0.0, 1.5, True, "2"):
        with pytest.raises(InputError, match="min_replies="):
            FlowerStrategy("fedavg", min_replies=bad)
    with pytest.raises(InputError, match="is a grid of 2"):
        FlowerStrategy("fedmaba:alpha=[0.1,0.2]")
    with pytest.raises(InputError, match="unknown strategy"):
        FlowerStrategy("fedavgg")
    with pytest.raises(InputError, match="safetensors"):
        load_arrays("nowhere.safetensors")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"num_rounds": "9"}, "num_rounds='9'"),
        ({"num_rounds": 0}, "num_rounds=0"),
        ({"timeout": "9"}, "timeout='9'"),
        ({"train_config": ConfigRecord({"minibatch": 0})}, "minibatch=0"),
        ({"train_config": ConfigRecord({"epochs": "x"})}, "epochs='x'"),
    ],
)
def test_a_bad_start_is_refused_before_any_site_is_asked(bad, said, fed, tmp_path):
    strategy = FlowerStrategy("fedavg", state=tmp_path / "state")
    with pytest.raises(InputError, match=f"{said}: it must be a"):
        strategy.start(grid_of(fed), first(fed), **bad)
    assert not (tmp_path / "state").exists()


def test_the_new_app_is_whole(tmp_path):
    written = new(tmp_path / "app")
    assert {p.name for p in written} >= {"pyproject.toml", "server_app.py", "client_app.py"}
    code = (
        "from fairapp import client_app, server_app; from flwr.serverapp import ServerApp;"
        "assert isinstance(server_app.app, ServerApp)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "app", check=True)
    with pytest.raises(InputError, match="not an empty folder"):
        new(tmp_path / "app")
