"""Secure sums between real Flower processes with TLS and keys; sites that drop out there."""

import sys
import time

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.data.federation import Federation
from fedmaba.deploy.client import first_model
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.flower_app.net import LINK, Net, read_rounds
from fedmaba.deploy.flower_app.new import new
from fedmaba.strategies import REGISTRY

pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts processes"),
]
SITES, ROUNDS = 5, 3
SUMMED = [name for name, kind in REGISTRY.items() if kind().needs().changes == "none"]

# Around the app of every site: sites that the run names fail when they are to send their change.
# In a secure round the masks that others share with them must then be taken off by shares.
DROPPING = """

from fedmaba import flower

send = flower.secure_mod


def dropping(message, context, call_next):
    text = message.content["config"].get("secure")
    last = text is None or '"stage": "mask"' in text
    if last and context.node_config["site"] in context.run_config["drop"].split(","):
        raise RuntimeError("this site drops out")
    return call_next(message, context) if text is None else send(message, context, call_next)


flower.secure_mod = dropping
app = client_app(MODEL, load, classes=CLASSES, secure=True)
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A SuperLink and five registered SuperNodes, with a plain and a secure app."""
    folder = tmp_path_factory.mktemp("secure")
    fed = Federation.make("sample", "shards:2", clients=SITES)
    for secure in (False, True):
        base = folder / f"app-{secure}"
        new(base, secure)
        client, config = base / "fairapp" / "client_app.py", base / "pyproject.toml"
        client.write_text(client.read_text() + DROPPING)
        config.write_text(config.read_text() + 'drop = ""\n')
    weights = first_model("mlp", fed.data.x.shape[1:], 10, 0)
    safetensors.numpy.save_file(weights, folder / "first.safetensors")
    with Net(folder) as net:
        for c in range(SITES):
            write_site(folder / f"site-{c}.npz", fed, c)
            net.register(f"site-{c}")
            net.supernode(f"site-{c}", data=str(folder / f"site-{c}.npz"))
        yield net


def run(net: Net, spec: str, secure: bool, name: str, rounds=ROUNDS, drop="", **more):
    """The model after some rounds, and what each round reported."""
    state = net.folder / name
    settings = {
        "strategy": spec,
        "rounds": rounds,
        "sites": SITES,
        "evaluate": False,
        "grace": 30.0,
    }
    settings |= {"first-model": str(net.folder / "first.safetensors"), "state": str(state)}
    settings |= {"drop": drop, "min-replies": 1.0 if not drop else 3, **more}
    number = net.submit(net.folder / f"app-{secure}", settings)
    end = time.monotonic() + 900
    while not net.status(number).startswith("finished"):
        net.check()
        assert time.monotonic() < end, net.log(LINK)[-3000:]
        time.sleep(2)
    assert net.status(number) == "finished:completed", net.log(LINK)[-3000:]
    return safetensors.numpy.load_file(state / "models" / "last.safetensors"), [
        line for line in read_rounds(state, 0) if "sites" in line
    ]


@pytest.mark.parametrize("spec", SUMMED)
def test_five_supernodes_give_the_plain_runs_model(net, spec):
    expected, _ = run(net, spec, False, f"{spec}-plain")
    found, reports = run(net, spec, True, f"{spec}-secure")
    assert [r["secure"] for r in reports] == [{"summed": 5, "left": [], "clipped": 0}] * ROUNDS
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5)


@pytest.mark.parametrize("gone", [["site-1"], ["site-1", "site-4"]])
def test_supernodes_that_drop_out_after_the_masks_do_not_lose_the_round(net, gone):
    drop = ",".join(gone)
    expected, _ = run(net, "fedavg", False, f"drop-{drop}-plain", 1, drop)
    found, reports = run(net, "fedavg", True, f"drop-{drop}", 1, drop, threshold=3)
    assert reports[0]["secure"] == {"summed": 5 - len(gone), "left": gone, "clipped": 0}
    assert len(reports[0]["refused"]) == len(gone)
    assert all("this site drops out" in line for line in reports[0]["refused"])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)
