"""`fedmaba flower init`, `join`, `admit` and the site's guard, with Flower's own records."""

import json
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from typer.testing import CliRunner

from fedmaba.cli.commands import app as cli
from fedmaba.deploy.operate import check, keys, server_folder, site_folder
from fedmaba.deploy.operate.guard import WRAPPED, Guard
from fedmaba.deploy.operate.policy import Forbidden
from fedmaba.deploy.operate.server_folder import ServerFolder, applicant
from fedmaba.deploy.operate.site_folder import SiteFolder
from fedmaba.errors import InputError

pytestmark = pytest.mark.flower
FAB = b"the app"
ROUND = {"loss-at": "start", "server-round": 1}


def done(*words):
    """What a command says."""
    found = CliRunner().invoke(cli, ["flower", *map(str, words)], catch_exceptions=True)
    if isinstance(found.exception, Exception) and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


@pytest.fixture(autouse=True)
def task(monkeypatch):
    """Flower's processes know which run they are for."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


@pytest.fixture
def place(tmp_path):
    """A server's folder for two sites, the data of one, and its folder."""
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(8, 1, 28, 28)), "x_test": rng.normal(size=(2, 1, 28, 28))}
    np.savez(tmp_path / "north.npz", y=np.arange(8) % 3, y_test=np.arange(2), **arrays)
    made = done("init", tmp_path / "server", "--sites", "north,south", "--rounds", 3)
    assert made.exit_code == 0, made.output
    return tmp_path


@pytest.fixture
def site(place):
    done("join", place / "server/join/north.json", "--data", place / "north.npz",
         "--folder", place / "north")  # fmt: skip
    return SiteFolder.read(place / "north")


def line_of(site):
    return (site.path / "keys" / "north.pub").read_text().strip()


# --- folders -----------------------------------------------------------------------------------


def test_a_federation_begins_with_three_commands(place, site):
    """And no secret is in what is sent from one host to the other."""
    sent = (place / "server/join/north.json").read_text()
    assert "PRIVATE" not in sent
    assert "PRIVATE" not in line_of(site)
    asked = applicant(line_of(site))
    assert (asked.site, asked.examples) == ("north", 8)
    said = done("admit", place / "server", line_of(site), "--fingerprint", asked.fingerprint)
    assert said.exit_code == 0, said.output
    found = ServerFolder.read(place / "server")
    assert found.admitted == {"north": asked.fingerprint}
    entry = tomllib.loads((place / "server/sites.toml").read_text())["north"]
    assert entry["examples"] == 8
    for secret in (place / "server/keys/server.key", place / "server/keys/ca.key", site.key):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "is admitted already" in done(
        "admit", place / "server", line_of(site), "--fingerprint", asked.fingerprint
    ).output  # fmt: skip


def test_a_site_is_admitted_by_what_was_read_out(place, site):
    other = keys.new_site_key(place / "other", "fedmaba north 8")
    with pytest.raises(InputError, match="was not read out"):
        done(
            "admit", place / "server", other, "--fingerprint", applicant(line_of(site)).fingerprint
        )
    with pytest.raises(InputError, match="nobody can be asked here"):
        done("admit", place / "server", other)
    with pytest.raises(InputError, match="folder of a site"):
        done("renew", site.path)
    with pytest.raises(InputError, match="not what `fedmaba flower join` prints"):
        done("admit", place / "server", "ecdsa-sha2 x", "--fingerprint", "SHA256:x")
    stranger = keys.new_site_key(place / "west", "fedmaba west 8")
    with pytest.raises(InputError, match="no site of this federation"):
        server_folder.admit(ServerFolder.read(place / "server"), applicant(stranger))
    found = ServerFolder.read(place / "server")
    server_folder.admit(found, applicant(line_of(site)))
    same = line_of(site).replace("fedmaba north", "fedmaba south")
    with pytest.raises(InputError, match="north's key: each site has its own"):
        server_folder.admit(found, applicant(same))
    server_folder.remove(found, "north")
    assert found.admitted == {}
    assert [json.loads(x)["what"] for x in _audit(found)] == ["init", "admit", "remove"]


def _audit(found):
    (path,) = (found.path / "audit").glob("*.jsonl")
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--sites", "north,north"], "stands twice"),
        (["--sites", "a b"], "give a name"),
        (["--sites", "north", "--secure"], "secure"),
        (["--sites", "north", "--host", "no host"], "HOST:PORT"),
        (["--sites", "north", "--strategy", "fedmab"], "fedmab"),
        (["--sites", "north", "--port", "8000"], "cannot be both"),
        (["--sites", "north", "--form", "none.csv"], r"none\.csv"),
        (["--sites", "north", "--dp", "epsilon=no"], "epsilon"),
    ],
)
def test_what_init_cannot_make_is_one_line(tmp_path, words, why):
    with pytest.raises(InputError, match=why):
        done("init", tmp_path / "server", *words)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("rounds = 3", "round = 3", "did you mean 'rounds'"),
        ("rounds = 3", "lr = 0.0", "lr=0.0"),
        ("rounds = 3", 'strategy = "nothing"', "nothing"),
        ("port = 8443", 'port = "x"', "port is missing"),
        ("port = 8443", "ports = 8443", "did you mean 'port'"),
        ("[run]", "[run", "federation.toml"),
    ],
)
def test_a_mistake_in_federation_toml_is_found_before_anything_runs(place, before, after, why):
    path = place / "server" / "federation.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(InputError, match=why):
        done("start", place / "server")


def test_a_dry_run_says_of_each_thing_whether_it_is_good(place, site):
    said = done("check", site.path)
    assert said.exit_code == 2  # no server is up
    assert [x for x in said.output.splitlines() if x.startswith("WRONG")] == [
        "WRONG  localhost:8443: connection refused: nothing listens there: is the server up?"
    ]
    assert "8 examples to train, 2 to test" in said.output
    lines = list(check.of_server(ServerFolder.read(place / "server")))
    assert [line.text for line in lines if line.good is False] == ["not admitted yet: north, south"]
    task = place / "server/app/fairapp/task.py"
    task.write_text(task.read_text() + "# another app\n")
    lines = list(check.of_server(ServerFolder.read(place / "server")))
    assert any("send their new join files" in line.text for line in lines if line.good is False)
    done("invite", place / "server")
    lines = list(check.of_server(ServerFolder.read(place / "server")))
    assert not any("join files" in line.text for line in lines)


def test_status_reads_as_words_and_as_json(place, site):
    assert (
        "sites: north not admitted, south not admitted" in done("status", place / "server").output
    )
    told = json.loads(done("status", site.path, "--format", "json").output)
    assert told["rounds, of at most"] == [0, 8]
    assert "whole: 1 lines" in done("audit", "verify", site.path).output


def test_a_damaged_join_file_is_refused(place):
    path = place / "server/join/north.json"
    told = json.loads(path.read_text())
    for change in ({"app": "x"}, {"server": "x"}, {"site": "../x"}, {"more": 1}):
        path.write_text(json.dumps(told | change))
        with pytest.raises(InputError):
            done("join", path, "--data", place / "north.npz", "--folder", place / "n")
        assert not (place / "n").exists()


# --- the guard ---------------------------------------------------------------------------------


class Flower:
    """What stands in for Flower's three functions."""

    def __init__(self, message):
        self.message, self.installed, self.sent = message, [], []

    def pull(self, client):
        return self.message, Context(1, 1, {}, RecordDict(), {}), None, None

    def install(self, content, skip_prompt=False):
        self.installed.append(content)

    def push(self, client, reply, context):
        self.sent.append(reply)


def message(kind="train", **config):
    return Message(RecordDict({"config": ConfigRecord(config)}), 7, kind, group_id="round 1")


def guarded(site, told):
    flower = Flower(told)
    guard = Guard(site, flower.pull, flower.install, flower.push)
    guard.pull_task_input(None)
    return flower, guard


def with_policy(site, text):
    path = site.path / site_folder.FILE
    head = path.read_text().split("[policy]")[0]
    path.write_text(f"{head}[policy]\n{text}\n")
    return SiteFolder.read(site.path)


def test_flower_still_has_the_functions_that_the_guard_wraps(site):
    from flwr.supernode.runtime import run_clientapp

    for name in WRAPPED:
        assert callable(getattr(run_clientapp, name))
    program = site.path / "bin" / site_folder.CLIENT_PROGRAM
    words = [program, "--help"]
    env = site.environment() | {"PYTHONPATH": str(Path(check.__file__).parents[3])}
    text = subprocess.run(words, capture_output=True, text=True, env=env).stdout
    assert "Run a Flower ClientApp" in text
    assert sys.executable in program.read_text()


def test_an_app_that_the_site_does_not_allow_is_not_installed(site):
    flower, guard = guarded(site, message(**ROUND))
    with pytest.raises(Forbidden, match=r"policy\.app"):
        guard.install_from_fab(FAB, skip_prompt=True)
    assert flower.installed == []
    assert site.audit.newest("refused")["why"].startswith("policy: app")


def test_what_leaves_is_recorded_by_kind_and_size_and_scores_stay_where_the_site_says_so(site):
    site = with_policy(site, 'scores = ["loss"]\nrounds = 2')
    flower, guard = guarded(site, message(**ROUND))
    guard.install_from_fab(FAB, skip_prompt=True)
    assert flower.installed == [FAB]
    content = RecordDict(
        {
            "metrics": MetricRecord({"loss": 0.123456, "accuracy": 0.987654, "num-examples": 8}),
            "config": ConfigRecord({"site": "north"}),
            "arrays": ArrayRecord([np.zeros(100, np.float32)]),
        }
    )
    guard.push_message(None, Message(content, reply_to=flower.message), None)
    (sent,) = flower.sent
    assert set(sent.content["metrics"]) == {"loss", "num-examples"}
    told = site.audit.newest("left")
    assert told["bytes"]["arrays"] > 400
    assert set(told["bytes"]) == {"arrays", "config.site", "metrics.loss", "metrics.num-examples"}
    assert "123456" not in (site.path / "audit/audit-000001.jsonl").read_text()
    for expected in (True, False):
        _, guard = guarded(site, message(**ROUND))
        if expected:
            guard.install_from_fab(FAB)
        else:
            with pytest.raises(Forbidden, match="in 2 rounds, and may in 2"):
                guard.install_from_fab(FAB)


NOISE = {"terms": json.dumps({"noise": [1.0], "delta": 1e-5})}


@pytest.mark.parametrize(
    ("policy", "told", "why"),
    [
        ("secure = true", {}, "secure sums alone"),
        ("epsilon = 1.0", {}, "states no noise"),
        ("scores = []", {}, "'loss'"),
        ("least-noise = 3.0", NOISE, "least-noise"),
        ("epsilon = 1.0", NOISE, "may spend 1"),
    ],
)
def test_what_breaks_the_policy_is_refused_and_nothing_is_counted(site, policy, told, why):
    flower, guard = guarded(with_policy(site, policy), message(**ROUND, **told))
    with pytest.raises(Forbidden, match=why):
        guard.install_from_fab(FAB)
    assert flower.installed == []
    assert site.ledger.now().rounds == 0


def test_nothing_leaves_that_cannot_be_recorded(site):
    site = with_policy(site, "rounds = 2")
    flower, guard = guarded(site, message(**ROUND))
    guard.install_from_fab(FAB)
    for path in (site.path / "audit").iterdir():
        path.unlink()
    (site.path / "audit").rmdir()
    (site.path / "audit").write_text("a full disk, say")
    content = RecordDict({"metrics": MetricRecord({"loss": 1.0})})
    with pytest.raises(Exception, match="audit"):
        guard.push_message(None, Message(content, reply_to=flower.message), None)
    assert flower.sent == []


def test_a_question_for_the_name_counts_nothing(site):
    site = with_policy(site, "rounds = 1\nepsilon = 1.0")
    flower, guard = guarded(site, message("query"))
    guard.install_from_fab(FAB)
    assert flower.installed == [FAB]
    assert site.ledger.now().rounds == 0
