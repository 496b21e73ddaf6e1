"""Real Flower processes on loopback: TLS, registered keys, kills. Run with make test-flower."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.data.datasets import Dataset, load
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.deploy.client import first_model
from fedmaba.deploy.flower_app import commands
from fedmaba.deploy.flower_app import net as net_module
from fedmaba.deploy.flower_app.commands import OFFLINE
from fedmaba.deploy.flower_app.demo import watch, write_site
from fedmaba.deploy.flower_app.net import LINK, Net, NetError
from fedmaba.deploy.flower_app.new import new
from fedmaba.deploy.operate import control
from fedmaba.deploy.operate.processes import family_of
from fedmaba.results import run_folder
from fedmaba.results.state_folder import read_rounds
from fedmaba.simulation import engine
from fedmaba.strategies import parse

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]
SITES, ROUNDS, EACH = 2, 3, 60


@pytest.fixture(scope="module")
def small() -> Federation:
    """Two sites with a few images each."""
    sample = load("sample")
    order = np.argsort(sample.y[: sample.n_train], kind="stable")[:: sample.n_train // (80 * SITES)]
    parts = np.array_split(order[: 80 * SITES], SITES)
    data = Dataset("small", sample.x, sample.y, sample.n_train, sample.classes)
    train, test = (tuple(p[:EACH] for p in parts), tuple(p[EACH:] for p in parts))
    return Federation(data, Split(train, tuple(p[:0] for p in parts), test))


@pytest.fixture(scope="module")
def net(small, tmp_path_factory):
    """A SuperLink and two registered SuperNodes, stopped at the end whatever happens."""
    folder = tmp_path_factory.mktemp("net")
    new(folder / "app")
    weights = first_model("mlp", small.data.x.shape[1:], 10, 0)
    safetensors.numpy.save_file(weights, folder / "first.safetensors")
    with Net(folder) as net:
        for c in range(SITES):
            write_site(folder / f"site-{c}.npz", small, c)
            net.register(f"site-{c}")
            start_site(net, c)
        yield net
    assert not [p for p in everything() if str(folder) in p[1]], "a process was left behind"


def start_site(net: Net, c: int) -> None:
    net.supernode(f"site-{c}", data=str(net.folder / f"site-{c}.npz"))


def everything() -> list[tuple[int, str]]:
    """Process ids and command lines of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append((int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode()))
    return found


def submit(net: Net, strategy: str, state: Path, **more) -> str:
    settings = {"strategy": strategy, "rounds": ROUNDS, "sites": SITES, "state": str(state)}
    settings |= {"first-model": str(net.folder / "first.safetensors"), "evaluate": False}
    return net.submit(net.folder / "app", {**settings, **more})


def until(what, net: Net, seconds: float = 150.0, pause: float = 0.1):
    """Wait for something to come true, a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(pause)
    raise AssertionError(net.log(LINK)[-3000:])


def finished(net: Net, state: Path) -> dict:
    """The model a run ends with."""
    until(lambda: (state / "models" / "last.safetensors").exists(), net)
    arrays, _, _ = run_folder.load_checkpoint(state)
    return {n.removeprefix("model/"): a for n, a in arrays.items() if n.startswith("model/")}


def assert_simulated(model: dict, spec: str, fed: Federation) -> None:
    (strategy,) = parse(spec)
    plan = engine.Plan(ROUNDS, minibatch=20, eval_every=ROUNDS)
    batch = engine.start([engine.Run(strategy, 0, fed)], plan, "mlp")
    for _ in engine.simulate(batch):
        pass
    expected = batch.rows.layout.unpack(batch.progress.model[0])
    assert set(model) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(model[name], value.numpy(), rtol=0, atol=1e-5)


def kill_server_app(net: Net) -> None:
    """SIGKILL to the process of the ServerApp, and to nothing else."""
    family = set(family_of(net.programs[LINK].process.pid))
    (pid,) = [p for p, words in everything() if p in family and "flwr-serverapp" in words]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not (Path("/proc") / str(pid) / "cmdline").exists() or _gone(pid), net)


def _gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" in (Path("/proc") / str(pid) / "status").read_text()
    return True


def test_an_unregistered_key_is_refused(net):
    net.supernode("stranger", data="none.npz")
    code = net.programs["stranger"].process.wait(60)
    assert code != 0
    assert "Failed to activate SuperNode" in net.log("stranger")
    net.stop("stranger")


def test_fedmaba_killed_in_mid_round_ends_as_the_simulator(net, small, tmp_path):
    state, spec = tmp_path / "state", "fedmaba:alpha=0.8"
    submit(net, spec, state)
    until(lambda: read_rounds(state, 0), net)  # the first round is saved
    before = net.log("site-0").count("Received successfully")
    until(lambda: net.log("site-0").count("Received successfully") > before, net)
    kill_server_app(net)  # while the sites train
    assert len(read_rounds(state, 0)) < ROUNDS
    submit(net, spec, state)
    assert_simulated(finished(net, state), spec, small)
    lines = read_rounds(state, 0)
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert all(len(line["sites"]) == SITES and not line["refused"] for line in lines)


def test_fedprox_ends_as_the_simulator(net, small, tmp_path):
    submit(net, "fedprox:mu=1", tmp_path / "state")
    assert_simulated(finished(net, tmp_path / "state"), "fedprox:mu=1", small)


def kill_a_site_in_mid_round(net: Net, state: Path, rounds: int) -> str:
    """The run's id, once its first round has ended without site-1."""
    before = net.log("site-1").count("Received successfully")
    run = submit(net, "fedmaba", state, timeout=30.0, rounds=rounds)
    until(
        lambda: net.log("site-1").count("Received successfully") > before + 1, net
    )  # hello, train
    net.stop("site-1", signal.SIGKILL)
    (first,) = until(lambda: read_rounds(state, 0), net)
    assert set(first["sites"]) == {"site-0"}
    assert "no answer within 30 seconds" in first["refused"][0]
    return run


def test_a_supernode_killed_in_mid_round_is_done_without(net, tmp_path):
    kill_a_site_in_mid_round(net, tmp_path / "state", rounds=1)
    finished(net, tmp_path / "state")
    arrays, meta, _ = run_folder.load_checkpoint(tmp_path / "state")
    assert meta["sites"] == ["site-0", "site-1"]
    np.testing.assert_allclose(arrays["state/p"], [0.5, 0.5])  # kept for its return


def revive(net: Net, c: int) -> None:
    """Start a site again and again, as a supervisor would, until Flower lets it in."""
    name = f"site-{c}"
    before = net.log(name).count("SuperNode ID")

    def alive() -> bool:
        return name in net.programs and net.programs[name].ended is None

    def up() -> bool:
        if not alive():
            net.stop(name)
            start_site(net, c)
        return net.log(name).count("SuperNode ID") > before

    if not alive():
        until(up, net, pause=2.0)


@pytest.mark.slow
def test_a_killed_supernode_comes_back(net, tmp_path):
    """Flower refuses it for about a minute, until its heartbeat is missed."""
    state = tmp_path / "state"
    revive(net, 1)
    run = kill_a_site_in_mid_round(net, state, rounds=50)
    revive(net, 1)
    until(lambda: any("site-1" in line["sites"] for line in read_rounds(state, 1)), net)
    control.flwr(net.folder, "stop", run, LINK)


def test_a_superlink_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(Net, "_certificates", lambda net: None)  # so they are missing
    with pytest.raises(NetError, match=r"did not start: .*ssl"), Net(tmp_path):
        pass


def test_a_supernode_that_ends_is_told_with_its_last_words(tmp_path):
    net = Net(tmp_path)
    net._start("site-1", "sh", "-c", "echo my last words")
    net.programs["site-1"].process.wait()
    with pytest.raises(NetError, match="site-1 has ended: my last words"):
        watch(net, "1", tmp_path / "state", lambda text: None)
    net.close()


# what docs/deploy.md and docs/secure.md say

DOCS = Path(__file__).parents[1] / "docs"
DEPLOY = (DOCS / "deploy.md").read_text()


def shell(mark: str = "") -> list[str]:
    """Commands of the page, in order; with a mark, those of the blocks that carry it."""
    found = re.findall(rf"{re.escape(mark)}^```sh\n(.*?)^```$", DEPLOY, re.M | re.S)
    return "".join(found).replace("\\\n", " ").splitlines()


def test_the_commands_for_keys_and_proxy_work_as_written(tmp_path):
    script = "set -e\n" + "\n".join(shell("<!-- run -->\n"))
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, check=True, capture_output=True)
    names = {path.name for path in (tmp_path / "keys").iterdir()}
    assert {"ca.pem", "server.pem", "server.key", "north", "north.pub"} <= names
    assert (tmp_path / "proxy" / "nginx.conf").exists()
    assert not [path for path in tmp_path.rglob("*") if path.stat().st_mode & 0o077]
    check = ["openssl", "verify", "-CAfile", "keys/ca.pem", "keys/server.pem"]
    subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)


def test_no_folder_of_the_page_has_the_name_of_the_superlink(tmp_path):
    """Flower takes a word that is a folder for an app, and refuses it in place of a SuperLink."""
    (made,) = [line.split()[-1] for line in shell() if line.startswith("fedmaba flower new")]
    (run,) = [line.split()[2:4] for line in shell() if line.startswith("flwr run ")]
    assert run == [made, LINK]
    new(tmp_path / made)
    assert not (tmp_path / LINK).exists()


@pytest.mark.parametrize(
    "program", ["flower-superlink", "flower-supernode", "flwr supernode register", "flwr run"]
)
def test_flower_knows_every_option_of_the_page(program):
    command = " ".join(line for line in shell() if line.startswith(program + " "))
    words = [*program.split(), "--help"]
    path = Path(sys.executable).parent / words[0]
    env = {**os.environ, **OFFLINE, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    text = subprocess.run([path, *words[1:]], env=env, capture_output=True, text=True).stdout
    options = re.findall(r"(?<= )--[a-z-]+", command)
    assert options
    assert not [option for option in options if option not in text]
    used = "".join(Path(one.__file__).read_text() for one in (net_module, commands, control))
    assert not [o for o in options if o not in used and o not in ("--database", "--stream")]


def test_flowers_configuration_of_the_page_is_what_the_demo_writes(net):
    (page,) = re.findall(r"^```toml\n(.*?)^```$", DEPLOY, re.M | re.S)
    ours = tomllib.loads((net.folder / "home" / "config.toml").read_text())
    theirs = tomllib.loads(page)["superlink"]
    assert theirs["default"] == ours["superlink"]["default"] == LINK
    assert set(theirs[LINK]) == set(ours["superlink"][LINK])


def test_the_python_of_the_pages_is_an_app():
    pages = DEPLOY + (DOCS / "secure.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", pages, re.M | re.S)
    for block, kind in zip(blocks, ("ServerApp", "ClientApp", "ServerApp"), strict=True):
        names: dict = {}
        exec(compile(block, "deploy.md", "exec"), names)
        assert type(names["app"]).__name__ == kind
