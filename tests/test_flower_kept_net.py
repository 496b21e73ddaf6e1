"""Vectors that sites keep, with real Flower processes: over a site's restart, and never sent."""

import signal
import sys

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.deploy.client import first_model
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.flower_app.net import Net, read_rounds
from fedmaba.deploy.flower_app.new import new
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask
from fedmaba.simulation import engine
from fedmaba.strategies import parse
from test_flower_net import SITES, finished, kill_server_app, small, submit, until

__all__ = ["small"]  # a fixture
pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]
ROUNDS = 4

# In the app of every site: all arrays that leave the site are written down before they do.
NOTING = """

import pathlib

import numpy as np


def noting(message, context, call_next):
    answer = call_next(message, context)
    folder = pathlib.Path(context.node_config["noted"])
    folder.mkdir(exist_ok=True)
    arrays = {n: a.numpy() for n, a in answer.content.get("arrays", {}).items()}
    np.savez(folder / str(len(list(folder.iterdir()))), **arrays)
    return answer


app = client_app(MODEL, load, classes=CLASSES, mods=[noting])
"""


@pytest.fixture
def net(small, tmp_path):
    """A SuperLink and two registered SuperNodes, each with a folder for what it keeps."""
    new(tmp_path / "app")
    client = tmp_path / "app" / "fairapp" / "client_app.py"
    client.write_text(client.read_text() + NOTING)
    weights = first_model("mlp", small.data.x.shape[1:], 10, 0)
    safetensors.numpy.save_file(weights, tmp_path / "first.safetensors")
    with Net(tmp_path) as net:
        for c in range(SITES):
            write_site(tmp_path / f"site-{c}.npz", small, c)
            net.register(f"site-{c}")
            start_site(net, c)
        yield net


def start_site(net: Net, c: int) -> None:
    folders = {"keep": str(net.folder / f"kept-{c}"), "noted": str(net.folder / f"noted-{c}")}
    net.supernode(f"site-{c}", data=str(net.folder / f"site-{c}.npz"), **folders)


def restart(net: Net, c: int) -> None:
    """Kill a site with all its processes, and start it until Flower lets it in again."""
    name = f"site-{c}"
    net.stop(name, signal.SIGKILL)
    before = net.log(name).count("SuperNode ID")

    def up() -> bool:
        if name not in net.processes or net.processes[name].poll() is not None:
            net.stop(name)
            start_site(net, c)
        return net.log(name).count("SuperNode ID") > before

    until(up, net, pause=2.0)


def simulated(spec: str, fed) -> tuple[dict, list[dict[str, dict]]]:
    """The simulator's model, and what each client keeps: by vector, by weight."""
    (strategy,) = parse(spec)
    plan = engine.Plan(ROUNDS, minibatch=20, eval_every=ROUNDS)
    batch = engine.start([engine.Run(strategy, 0, fed)], plan, "mlp")
    list(engine.simulate(batch))
    at, unpack = batch.progress, batch.rows.layout.unpack
    kept = [
        {name: named(unpack(vectors[c])) for name, vectors in at.memory.columns[0].items()}
        for c in range(SITES)
    ]
    return named(unpack(at.model[0])), kept


def named(weights: dict) -> dict:
    return {name: value.numpy() for name, value in weights.items()}


@pytest.mark.parametrize("spec", ["ditto", "scaffold"])
def test_what_a_site_keeps_survives_its_restart_and_stays_there(net, small, spec):
    state = net.folder / "state"
    submit(net, spec, state, rounds=ROUNDS)
    until(lambda: read_rounds(state, 0), net)  # the first round is saved
    kill_server_app(net)
    played = len(read_rounds(state, 0))
    assert played < ROUNDS
    restart(net, 1)
    submit(net, spec, state, rounds=ROUNDS)
    model, want = finished(net, state), simulated(spec, small)
    assert [line["round"] for line in read_rounds(state, 0)] == list(range(1, ROUNDS + 1))
    for name, value in want[0].items():
        np.testing.assert_allclose(model[name], value, rtol=0, atol=1e-5)
    for c, vectors in enumerate(want[1]):
        folder = net.folder / f"kept-{c}"
        (file,) = folder.glob("*.vectors")
        told = KeptVectorsTask(file.stem.removeprefix(f"site-{c}-"), ROUNDS + 1, ROUNDS)
        mine = KeptVectors(folder, f"site-{c}").load(told, vectors)
        for name, vector in vectors.items():
            for weight, value in vector.items():
                np.testing.assert_allclose(mine[name][weight], value, rtol=0, atol=1e-5)
        left = [dict(np.load(p)) for p in (net.folder / f"noted-{c}").iterdir()]
        trained = [sent for sent in left if sent]
        assert len(trained) >= ROUNDS  # a round that was cut off is trained again
        means = {f"mean/0/{n}" for n in model} if spec == "scaffold" else set()
        assert all(set(sent) == set(model) | means for sent in trained)
        body = file.read_bytes()
        large = [a for sent in trained for a in sent.values() if a.size >= 20]
        assert not any(a.astype("<f4").tobytes() in body for a in large)
