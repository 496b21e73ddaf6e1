"""Secure sums between real Flower processes with TLS and keys; sites that drop out there."""

import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord, Error, Message

from fedmaba.data import datasets
from fedmaba.data.federation import Federation
from fedmaba.deploy import reply_fetching
from fedmaba.deploy.client import first_model
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.flower_app.net import LINK, Net
from fedmaba.deploy.flower_app.new import new
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.site_memory import ANSWERS
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, load_arrays
from fedmaba.results.state_folder import read_rounds
from fedmaba.strategies import REGISTRY
from flower_grid import LocalGrid

pytestmark = [
    pytest.mark.flower,
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts processes"),
]
SITES, ROUNDS = 5, 3
# Training without kinks: an MLP's ReLUs make of the rounding of one round, which is 3e-7, a
# difference of 1e-3 after two more.
MODEL = "softmax"


def summed(name: str) -> bool:
    """Whether a strategy takes secure sums, and its sites keep nothing between rounds."""
    strategy = REGISTRY[name]()
    try:
        FederationSettings(strategy, secure=SecureSum())
    except InputError:
        return False
    return not strategy.local().personal


SUMMED = [name for name in REGISTRY if summed(name)]

# Around the app of every site: sites that the run names fail in the stage that it names. If that is
# `mask`, they send no change, and the masks that others share with them are taken off by shares.
DROPPING = """

from fedmaba.deploy import site_app

send = site_app.secure_mod


def dropping(message, context, call_next, *rules):
    text = message.content["config"].get("secure")
    last = text is None or '"stage": "' + context.run_config["drop-at"] + '"' in text
    if last and context.node_config["site"] in context.run_config["drop"].split(","):
        raise RuntimeError("this site drops out")
    if text is None:
        return call_next(message, context)
    return send(message, context, call_next, *rules)


site_app.secure_mod = dropping
app = client_app(MODEL, load, classes=CLASSES, secure=True)
"""


def fingerprint(net: Net, c: int) -> str:
    """Of a site's key, as the page says to read it."""
    words = ["ssh-keygen", "-lf", str(net.keys / f"site-{c}.pub")]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return done.stdout.split()[1]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    """A SuperLink and five registered SuperNodes, with a secure app; sites sign their keys."""
    folder = tmp_path_factory.mktemp("secure")
    fed = Federation.make("sample", "shards:2", clients=SITES)
    new(folder / "app", secure=True)
    client, config = folder / "app/fairapp/client_app.py", folder / "app/pyproject.toml"
    task = folder / "app/fairapp/task.py"
    task.write_text(task.read_text().replace('MODEL = "mlp"', f'MODEL = "{MODEL}"'))
    client.write_text(client.read_text() + DROPPING)
    config.write_text(config.read_text() + 'drop = ""\ndrop-at = "mask"\n')
    weights = first_model(MODEL, fed.data.x.shape[1:], 10, 0)
    safetensors.numpy.save_file(weights, folder / "first.safetensors")
    with Net(folder) as net:
        for c in range(SITES):
            write_site(folder / f"site-{c}.npz", fed, c)
            net.register(f"site-{c}")
        peers = folder / "sites.toml"
        peers.write_text("".join(f'site-{c} = "{fingerprint(net, c)}"\n' for c in range(SITES)))
        for c in range(SITES):
            told = {"data": str(folder / f"site-{c}.npz"), "peers": str(peers)}
            told |= {"signing-key": str(net.keys / f"site-{c}"), "most-share": 0.99}
            net.supernode(f"site-{c}", keep=str(folder / "kept"), **told)
        yield net


def run(net: Net, spec: str, name: str, rounds=ROUNDS, drop="", **more):
    """The model after some rounds of secure sums, and what each round reported."""
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
    number = net.submit(net.folder / "app", settings)
    end = time.monotonic() + 900
    while not net.status(number).startswith("finished"):
        net.check()
        assert time.monotonic() < end, net.log(LINK)[-3000:]
        time.sleep(2)
    assert net.status(number) == "finished:completed", net.log(LINK)[-3000:]
    return safetensors.numpy.load_file(state / "models" / "last.safetensors"), [
        line for line in read_rounds(state, 0) if "sites" in line
    ]


def here(net: Net, spec: str, rounds=ROUNDS, drop=(), secure=None):
    """The model of the same federation in this process, plain unless `secure` says otherwise."""

    def spoil(message, answer):
        training = message.metadata.message_type.startswith("train")
        if training and secure:
            training = '"stage": "mask"' in str(message.content["config"]["secure"])
        if training and f"site-{message.metadata.dst_node_id - 1}" in drop:
            return Message(Error(2, "this site drops out"), reply_to=message)
        return answer

    classes = [str(k) for k in range(10)]
    files = [net.folder / f"site-{c}.npz" for c in range(SITES)]
    apps = {
        c + 1: client_app(
            *(MODEL, datasets.load(str(file))),
            site=f"site-{c}",
            classes=classes,
            secure=secure is not None,
        )
        for c, file in enumerate(files)
    }
    options = {"min_available_nodes": SITES, "evaluate": False, "grace": 0, "secure": secure}
    strategy = FlowerStrategy(spec, **options)
    config = ConfigRecord({"epochs": 1, "minibatch": 20})
    first = load_arrays(net.folder / "first.safetensors")
    found = strategy.start(LocalGrid(apps, spoil), first, rounds, train_config=config)
    assert secure or all(len(r["sites"]) == SITES - len(drop) for r in strategy.reports)
    return {name: array.numpy() for name, array in found.arrays.items()}


def without_largest(report):
    """What a round says of its sum, besides the largest share of the weight."""
    return {k: v for k, v in report["secure"].items() if k != "largest"}


@pytest.mark.parametrize("spec", SUMMED)
def test_five_supernodes_give_the_plain_runs_model(net, spec, monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)  # of the plain run
    expected = here(net, spec)
    found, reports = run(net, spec, f"{spec}-secure")
    assert [without_largest(r) for r in reports] == [
        {"summed": 5, "left": [], "clipped": 0}
    ] * ROUNDS
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=5e-6)


def test_a_supernode_that_drops_out_after_the_masks_does_not_lose_the_round(net):
    expected = here(net, "fedavg", 1, ["site-1"])
    found, reports = run(net, "fedavg", "drop-site-1", 1, "site-1", threshold=4)
    assert without_largest(reports[0]) == {"summed": 4, "left": ["site-1"], "clipped": 0}
    (line,) = reports[0]["refused"]
    assert "this site drops out" in line
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=5e-6)


def test_a_supernode_that_drops_out_of_each_round_of_fedmaba_does_not_lose_them(net, monkeypatch):
    """Its loss counts for the strategy, its change does not: as in the same run in this process."""
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)
    expected = here(net, "fedmaba", ROUNDS, ["site-2"], SecureSum(threshold=4))
    found, reports = run(net, "fedmaba", "drop-fedmaba", ROUNDS, "site-2", threshold=4)
    assert len(reports) == ROUNDS
    for report in reports:
        assert without_largest(report) == {"summed": 4, "left": ["site-2"], "clipped": 0}
        (line,) = report["refused"]
        assert line.startswith("site-2: left in stage mask of the secure sum")
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=5e-6)


def test_a_supernode_that_fails_when_masks_are_taken_off_is_in_the_sum(net):
    expected = here(net, "fedavg", 1)
    told = {"threshold": 4, "drop-at": "unmask"}
    found, (report,) = run(net, "fedavg", "drop-unmask", 1, "site-0", **told)
    assert without_largest(report) == {"summed": 5, "left": [], "clipped": 0}
    (line,) = report["refused"]
    assert line.startswith("site-0: left in stage unmask of the secure sum")
    assert len(list((net.folder / "kept" / ANSWERS).iterdir())) >= 3 * SITES - 1
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=5e-6)
