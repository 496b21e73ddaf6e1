"""What the folders of a federation promise: audit, policy, ledger, keys, copies, units."""

import errno
import io
import json
import re
import shutil
import stat
import subprocess
import tarfile
import tomllib
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedmaba.deploy.flower_app import private
from fedmaba.deploy.operate import backup, check, keys, processes, services
from fedmaba.deploy.operate.audit import START, Audit
from fedmaba.deploy.operate.forms import Form
from fedmaba.deploy.operate.ledger import Ledger
from fedmaba.deploy.operate.policy import Forbidden, Policy
from fedmaba.deploy.operate.processes import Program, run_all
from fedmaba.errors import FedmabaError, InputError, SaveFailed

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")
pytestmark = pytest.mark.flower

# --- audit -------------------------------------------------------------------------------------


def written(folder, lines):
    audit = Audit(folder / "audit")
    for number in range(lines):
        audit.add("round", round=number)
    return audit, folder / "audit" / "audit-000001.jsonl"


def test_an_audit_log_is_a_chain_that_begins_at_zero(tmp_path):
    audit, path = written(tmp_path, 3)
    assert json.loads(path.read_text().splitlines()[0])["before"] == START
    assert audit.verify().lines == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("how", ["edit", "remove", "swap", "insert", "head"])
def test_who_touches_a_line_of_the_audit_log_is_found(tmp_path, how):
    audit, path = written(tmp_path, 5)
    lines = path.read_text().splitlines()
    made = {
        "edit": [*lines[:1], lines[1].replace('"round": 1', '"round": 7'), *lines[2:]],
        "remove": [*lines[:2], *lines[3:]],
        "swap": [lines[0], lines[2], lines[1], *lines[3:]],
        "insert": [*lines[:2], lines[1], *lines[2:]],
        "head": lines[1:],
    }[how]
    assert made != lines
    path.write_text("\n".join(made) + "\n")
    with pytest.raises(InputError, match=r"line [1-4]: .*does not follow"):
        audit.verify()


def test_an_audit_log_goes_on_in_the_next_file_and_after_a_power_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("fedmaba.deploy.operate.audit.MOST_BYTES", 400)
    audit, path = written(tmp_path, 9)
    assert len(list(path.parent.glob("*.jsonl"))) > 1
    newest = sorted(path.parent.glob("*.jsonl"))[-1]
    with newest.open("a") as file:
        file.write('{"torn')
    audit.add("round", round=9)
    assert audit.verify().lines == 10


def test_what_cannot_be_recorded_is_refused(tmp_path):
    (tmp_path / "audit").write_text("no folder")
    with pytest.raises(FedmabaError, match="audit"):
        Audit(tmp_path / "audit").add("left")


# --- the site's policy -------------------------------------------------------------------------

APP = "a" * 64
DP = {"federation": "f", "noise": [2.0, 2.0], "delta": 1e-5, "taken": 0}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"rounds": True}, "rounds = True"),
        ({"epsilon": -1}, "epsilon = -1"),
        ({"epsilon": "8"}, "epsilon = '8'"),
        ({"app": "abc"}, "app = 'abc'"),
        ({"hours": "25:00-06:00"}, "hours"),
        ({"memory": "4 GB"}, "memory"),
        ({"scores": ["acuracy"]}, "scores"),
        ({"most-share": 1.5}, "most-share"),
        ({"secure": "yes"}, "secure"),
        ({"round": 3}, "policy.round: known are"),
        ([1], "no table"),
    ],
)
def test_a_policy_that_is_not_understood_is_refused(told, why):
    with pytest.raises(InputError, match=why):
        Policy.read(told, "site.toml")


def test_a_policy_allows_what_it_says_and_nothing_else():
    policy = Policy.read(
        {
            "app": APP,
            "least-noise": 1.2,
            "secure": True,
            "scores": ["loss"],
            "hours": "20:00-06:00",
        },
        "site.toml",
    )
    policy.check_app(APP)
    with pytest.raises(Forbidden, match=r"policy\.app"):
        policy.check_app("b" * 64)
    for hour, good in ((19, False), (20, True), (23, True), (0, True), (5, True), (6, False)):
        when = datetime(2026, 1, 1, hour, 30 if hour == 5 else 0)
        if good:
            policy.check_time(when)
        else:
            with pytest.raises(Forbidden, match="trains 20:00-06:00"):
                policy.check_time(when)
    policy.check_task(True, DP)  # 2 / sqrt(2) = 1.41
    with pytest.raises(Forbidden, match="secure sums alone"):
        policy.check_task(False, DP)
    with pytest.raises(Forbidden, match=r"least-noise is 1\.2"):
        policy.check_task(True, DP | {"noise": [1.6, 1.6]})
    for nothing in (None, [], [0], ["2"], [float("nan")]):
        with pytest.raises(Forbidden, match="states no noise"):
            policy.check_task(True, DP | {"noise": nothing})
    policy.check_asked(["loss", "steps"])
    with pytest.raises(Forbidden, match="'loss_after'"):
        policy.check_asked(["loss", "loss_after"])
    numbers = {"loss": 1.0, "accuracy": 0.5, "num-examples": 3, "anything": 4.0}
    assert policy.leaves(numbers) == {"loss": 1.0, "num-examples": 3}


def test_a_ledger_counts_rounds_and_epsilon_and_a_restored_one_gives_nothing_back(tmp_path):
    pytest.importorskip("dp_accounting", reason="an extra")
    ledger = Ledger(tmp_path / "ledger")
    policy = Policy(rounds=6, epsilon=100.0)
    assert ledger.take(DP, policy).rounds == 1
    old = ledger.file.read_bytes()
    assert ledger.take(DP | {"taken": 1}, policy).rounds == 2
    ledger.file.write_bytes(old)  # a copy of before
    found = ledger.take(DP | {"taken": 2}, policy)
    assert (found.rounds, found.behind) == (3, 1)
    assert ledger.take(DP | {"taken": 0}, policy).rounds == 4  # a server that forgets
    other = ledger.take(DP | {"federation": "g"}, policy)
    one, two = Ledger(tmp_path / "one"), Ledger(tmp_path / "two")
    for _ in range(4):
        one.take(DP, policy)
    two.take(DP, policy)
    assert other.epsilon() == pytest.approx(one.now().epsilon() + two.now().epsilon())
    before = ledger.file.read_bytes()
    with pytest.raises(Forbidden, match="epsilon"):
        ledger.take(DP, Policy(epsilon=other.epsilon()))
    ledger.take(DP, policy)
    with pytest.raises(Forbidden, match="trained in 6 rounds, and may in 6"):
        ledger.take(DP, policy)
    assert ledger.file.read_bytes() != before
    ledger.file.write_text("{")
    with pytest.raises(InputError, match="restore it"):
        ledger.take(DP, policy)


# --- keys, forms, copies -----------------------------------------------------------------------


def test_certificates_are_of_one_authority_and_say_how_long_they_last(tmp_path):
    keys.new_authority(tmp_path)
    keys.new_certificate(tmp_path, "server.example.org", days=3)
    assert keys.days_left(tmp_path / "server.pem") == pytest.approx(3, abs=0.01)
    assert "PRIVATE KEY" in (tmp_path / "server.key").read_text()
    if shutil.which("openssl"):
        words = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", "server.pem"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == "server.pem: OK\n", done.stderr
    (tmp_path / "ca.key").unlink()
    with pytest.raises(InputError, match="bring the key of the authority back"):
        keys.new_certificate(tmp_path, "server.example.org")


def test_a_site_s_key_is_what_ssh_keygen_reads(tmp_path):
    line = keys.new_site_key(tmp_path / "north", "fedmaba north 80")
    assert (tmp_path / "north.pub").read_text() == f"{line}\n"
    assert stat.S_IMODE((tmp_path / "north").stat().st_mode) == 0o600
    if shutil.which("ssh-keygen"):
        done = subprocess.run(
            ["ssh-keygen", "-lf", tmp_path / "north.pub"], capture_output=True, text=True
        )
        assert done.stdout.split()[1] == keys.fingerprint(line)
    with pytest.raises(InputError, match="no public key"):
        keys.fingerprint("ecdsa-sha2-nistp384 AAAA")


TABLE = "age,pressure,label\n60,120,flu\n50,130,cold\n40,110,flu\n30,125,cold\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("age,label\n60,flu\n50,cold\n", "lacks 'pressure'"),
        ("age,pressure,weight,label\n60,120,80,flu\n50,130,70,cold\n", "has 'weight'"),
        ("pressure,age,label\n120,60,flu\n130,50,cold\n", "another order"),
        ("age,pressure,label\n60,120,gout\n50,130,cold\n", "label gout"),
        ("age,pressure,label\n60,high,flu\n50,low,cold\n", "has words"),
    ],
)
def test_examples_of_another_form_are_refused(tmp_path, text, why):
    (tmp_path / "agreed.csv").write_text(TABLE)
    (tmp_path / "mine.csv").write_text(text)
    form = Form.of(tmp_path / "agreed.csv")
    assert Form.read(json.loads(json.dumps(form.to_json()))) == form
    assert form.check(tmp_path / "agreed.csv").doubts == ()
    with pytest.raises(InputError, match=why):
        form.check(tmp_path / "mine.csv")


def test_another_unit_is_noticed(tmp_path):
    (tmp_path / "agreed.csv").write_text(TABLE)
    (tmp_path / "mine.csv").write_text("age,pressure,label\n60,12,flu\n50,13,cold\n40,11,flu\n")
    (doubt,) = Form.of(tmp_path / "agreed.csv").check(tmp_path / "mine.csv").doubts
    assert doubt.startswith("column pressure: half of the values lie above 12")


def test_the_task_of_a_table_scales_its_columns_alike_at_all_sites(tmp_path):
    (tmp_path / "agreed.csv").write_text(TABLE)
    names: dict = {}
    exec(compile(Form.of(tmp_path / "agreed.csv").task(), "task.py", "exec"), names)

    class Context:
        node_config = {"data": str(tmp_path / "agreed.csv")}  # noqa: RUF012

    found = names["load"](Context)
    assert names["COLUMNS"] == ("age", "pressure")
    assert names["SHAPE"] == (2,)
    raw = np.array([[60, 120], [50, 130], [40, 110], [30, 125]])
    low, high = np.quantile(raw, [0.05, 0.95], axis=0)
    np.testing.assert_allclose(found.x, (raw - (low + high) / 2) / ((high - low) / 2), rtol=1e-6)


def test_a_copy_brought_back_keeps_what_counts(tmp_path):
    place, copy = tmp_path / "north", tmp_path / "copy.tar.gz"
    texts = {"site.toml": "old", "ledger/ledger.json": '{"a": 1}', "keys/ca.pem": "ca"}
    for name, text in texts.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    assert backup.backup(place, copy) == 3
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    (place / "site.toml").write_text("new")
    (place / "ledger/ledger.json").write_text('{"a": 5}')
    with pytest.raises(InputError, match="--over"):
        backup.restore(copy, place)
    assert backup.restore(copy, place, over=True) == (2, ["ledger"])
    assert (place / "site.toml").read_text() == "old"
    assert (place / "ledger/ledger.json").read_text() == '{"a": 5}'
    shutil.rmtree(place)  # the disk was lost
    assert backup.restore(copy, place) == (3, [])
    assert (place / "ledger/ledger.json").read_text() == '{"a": 1}'
    with pytest.raises(InputError, match="exists"):
        backup.backup(place, copy)
    (place / "keys/ca.pem").write_text("another federation's")
    with pytest.raises(InputError, match="is not where this copy comes from"):
        backup.restore(copy, place, over=True)


@pytest.mark.parametrize("how", ["text", "cut", "outside", "nothing"])
def test_what_is_no_whole_copy_writes_nothing(tmp_path, how):
    (tmp_path / "north").mkdir()
    (tmp_path / "north" / "site.toml").write_text("x" * 9000)
    (tmp_path / "north" / "more").write_bytes(np.random.default_rng(0).bytes(9000))
    path = tmp_path / "copy.tar.gz"
    if how in ("text", "cut"):
        backup.backup(tmp_path / "north", path)
        path.write_bytes(b"no" if how == "text" else path.read_bytes()[:4000])
    else:
        with tarfile.open(path, "w:gz") as archive:
            name = "../outside" if how == "outside" else "notes.txt"
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    why = {"outside": "would lie outside", "nothing": "is no copy"}.get(how, "damaged, or no copy")
    with pytest.raises(InputError, match=why):
        backup.restore(path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- programs ----------------------------------------------------------------------------------


def runs(pid):
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_programs_are_started_again_and_the_last_one_s_end_is_the_end_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(processes, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(processes, "MOST_PAUSE", 0.05)
    private.new_folder(tmp_path / "logs")
    other = Program("other", ["sh", "-c", "echo again; sleep 600 & echo $! >> children; exit 7"])
    final = Program("run", ["sh", "-c", "echo x >> tries; test $(wc -l < tries) = 3"], final=True)
    said: list[str] = []
    assert run_all(tmp_path, [other, final], said.append) == 0
    assert (tmp_path / "tries").read_text() == "x\n" * 3
    assert any("other ended with 7" in line and "again" in line for line in said)
    children = [int(pid) for pid in (tmp_path / "children").read_text().split()]
    assert len(children) > 1
    assert not any(map(runs, children))
    assert not processes.is_running(tmp_path)


def test_a_mistake_that_a_person_must_correct_ends_everything_with_2(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.02)
    private.new_folder(tmp_path / "logs")
    final = Program("run", ["sh", "-c", "exit 2"], final=True)
    assert run_all(tmp_path, [final], lambda text: None) == 2
    with pytest.raises(InputError, match="nothing that"):
        processes.stop(tmp_path)


# --- units, compose files, monitoring ----------------------------------------------------------


@pytest.fixture
def installed(tmp_path):
    """The files that `init` and `join` write, of a server and of a site."""
    server, site = tmp_path / "server", tmp_path / "north"
    services.write_server(server, 8443)
    services.write_site(site, "north", tmp_path / "north.npz", "4G")
    return server, site


def test_units_may_write_what_their_program_writes_and_no_key(installed):
    server, site = installed
    for path in (*server.glob("units/*"), *site.glob("units/*")):
        text = path.read_text()
        (writes,) = [x for x in text.splitlines() if x.startswith("ReadWritePaths=")]
        (reads,) = [x for x in text.splitlines() if x.startswith("ReadOnlyPaths=")]
        assert "/keys" not in writes, path
        assert "/keys" in reads, path
    assert f"-{site.parent / 'north.npz'}" in reads
    assert "site.toml" in reads


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_units_are_valid_and_little_exposed(installed):
    for folder in installed:
        for path in folder.glob("units/*"):
            words = ["systemd-analyze", "security", "--offline=yes", "--threshold=30", path]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout[-200:]


def test_compose_files_give_each_program_what_it_needs_and_no_secret_of_another(installed):
    server, site = (
        yaml.safe_load((folder / "container" / "compose.yaml").read_text()) for folder in installed
    )
    assert set(server["services"]) == {"superlink", "proxy", "run"}
    keys_of_proxy = [v for v in server["services"]["proxy"]["volumes"] if "/keys" in v]
    assert {Path(v.split(":")[0]).name for v in keys_of_proxy} == {
        "ca.pem",
        "server.pem",
        "server.key",
    }
    for one in (*server["services"].values(), *site["services"].values()):
        assert one["read_only"]
        assert one["cap_drop"] == ["ALL"]
        assert all(v.endswith(":ro") for v in one["volumes"] if "/keys" in v)
        assert one["command"][:3] == ["fedmaba", "flower", "start"]
    assert server["services"]["proxy"]["network_mode"] == "service:superlink"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_alerts_are_rules_that_prometheus_takes(installed):
    done = subprocess.run(
        ["promtool", "check", "rules", installed[0] / "monitoring" / "alerts.yml"],
        capture_output=True,
        text=True,
    )
    assert "3 rules found" in done.stdout, done.stderr


def test_dashboard_and_alerts_name_metrics_that_there_are(installed):
    from fedmaba.deploy import records

    source = Path(records.__file__).read_text()
    text = (installed[0] / "monitoring" / "dashboard.json").read_text()
    exprs = [t["expr"] for panel in json.loads(text)["panels"] for t in panel["targets"]]
    rules = yaml.safe_load((installed[0] / "monitoring" / "alerts.yml").read_text())
    exprs += [rule["expr"] for rule in rules["groups"][0]["rules"]]
    for name in {name for expr in exprs for name in re.findall(r"fedmaba_(\w+)", expr)}:
        known = name.removeprefix("site_") if name in ("site_weight", "site_loss") else name
        assert f'"{known}"' in source or f'"{known.removesuffix("_variance")}"' in source, name


def test_a_folder_that_units_cannot_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot name it"):
        services.write_server(tmp_path / "my server", 8443)


@pytest.mark.parametrize(
    ("mine", "theirs", "near"),
    [("0.2.0", "0.2.5", True), ("0.2.0", "0.3.0", True), ("0.2.0", "0.4.0", False),
     ("1.0.0", "0.9.0", False), ("0.2.0", "new", False)],
)  # fmt: skip
def test_versions_may_differ_by_one_minor_number(mine, theirs, near):
    assert check._near(mine, theirs) is near


def test_a_file_others_can_read_is_named(tmp_path):
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "north").write_text("secret")
    (tmp_path / "keys" / "north").chmod(0o640)
    (line,) = check._rights(tmp_path, ("keys/north",))
    assert not line.good
    assert "chmod -R go=" in line.text


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("fedmaba.results.files.sync", full)
    with pytest.raises(SaveFailed, match="free some space"):
        Audit(tmp_path / "audit").add("left")


def test_site_toml_is_what_a_policy_reads(tmp_path):
    from fedmaba.deploy.operate.site_folder import _site_toml

    asks = {"strategy": "fedavg", "rounds": 20, "dp": "epsilon=8,clip=1", "losses": "seen"}
    told = {"app": APP, "asks": asks, "secure": True}
    found = tomllib.loads(_site_toml(told, tmp_path / "x.npz", 9094))
    policy = Policy.read(found["policy"], "site.toml")
    assert (policy.rounds, policy.epsilon, policy.app, policy.secure) == (27, 8, (APP,), True)
