"""A real federation handles every kind of target as the simulator does; without Flower."""

import numpy as np
import pytest
from torch import nn

from fedmaba import Federation
from fedmaba.data import datasets, trees
from fedmaba.data.datasets import from_arrays
from fedmaba.deploy import round_log
from fedmaba.deploy.client import LocalClient, first_model
from fedmaba.deploy.flower_app.demo import write_site
from fedmaba.deploy.scores import score_spread
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.validation import Refused, Reply, read_score
from fedmaba.errors import InputError
from fedmaba.simulation.engine import Plan
from fedmaba.strategies import parse
from plain_loop import played

pytestmark = pytest.mark.usefixtures("few_threads")
RNG = np.random.default_rng(0)
N, TOKENS = 60, 6
OWNER = np.repeat(np.arange(3), (15, 20, 25))
TEXT = RNG.integers(0, TOKENS, (N, 4))
X = RNG.normal(size=(N, 3)).astype(np.float32)


class Reader(nn.Module):
    def __init__(self, shape, outputs):
        super().__init__()
        self.embed, self.out = nn.Embedding(TOKENS, 3), nn.Linear(3, outputs)

    def forward(self, ids, mask):
        return self.out(self.embed(ids) * mask[..., None])


CASES = {
    "regress": (X, X @ np.array([1.0, -2.0, 0.5], np.float32) + 0.1 * OWNER, "softmax", None),
    "multilabel": (X, X > 0.3, "mlp", None),
    "sequence": (
        {"ids": TEXT, "mask": TEXT != 5},
        np.where(TEXT == 0, -100, (TEXT + 1) % TOKENS),
        Reader,
        TOKENS,
    ),
}


@pytest.mark.parametrize("task", CASES)
def test_sites_and_a_server_train_the_model_of_the_simulator(task, tmp_path):
    x, y, model, classes = CASES[task]
    y = np.where(np.arange(4) == 1, 1, y) if task == "sequence" else y  # one position counts
    fed = Federation.from_arrays(x, y, OWNER)
    plan = Plan(rounds=2, minibatch=8, lr=0.05, lr_decay=0.999)
    batch, shots = played(["fedmaba"], fed, plan, model, seed=0)
    settings = FederationSettings(parse("fedmaba")[0], 0, 0.05, 0.999, None)
    data = fed.data
    first = first_model(model, data.shape, data.target.outputs, 0, task=task)
    server, names = FederationServer(settings, first, None), [f"site-{c}" for c in range(3)]
    server.join(names)
    for t in range(2):
        replies = []
        for c, name in enumerate(names):
            write_site(tmp_path / f"{name}.npz", fed, c)
            own = datasets.load(str(tmp_path / f"{name}.npz"), task=task)
            site = LocalClient(model, own, classes)
            trained, told = site.train(server.model, {**server.task(name), "minibatch": 8})
            right, wrong = read_score(told)
            assert (wrong is None) == (task != "regress")
            replies.append(
                Reply(c, name, trained, told["num-examples"], told["loss"], right, wrong)
            )
        report = server.finish_round(replies)
        told_losses = [report["sites"][name]["loss"] for name in names]
        np.testing.assert_allclose(told_losses, shots[t].rounds[0].loss, rtol=1e-4)
    for name, weights in batch.rows.layout.unpack(batch.progress.model[0]).items():
        np.testing.assert_allclose(server.model[name], weights.numpy(), atol=1e-5)
    final = [site.evaluate(server.model) for site in [LocalClient(model, own, classes)]]
    key = "error" if task == "regress" else "accuracy"
    assert final[0][key] == pytest.approx(shots[-1].evaluations[0]["last"].accuracy[2], rel=1e-4)


def test_a_site_writes_all_its_inputs(tmp_path):
    fed = Federation.from_arrays({"ids": TEXT, "mask": TEXT != 5}, TEXT, OWNER)
    write_site(tmp_path / "site.npz", fed, 1)
    own = datasets.load(str(tmp_path / "site.npz"))
    assert (own.task, trees.leaf_names(own.x, "x")) == ("sequence", ["x.ids", "x.mask"])
    np.testing.assert_array_equal(own.x["ids"][: own.n_train], TEXT[fed.train.of(1)])


def test_a_sequence_needs_the_number_of_classes_of_all_sites():
    data = from_arrays(TEXT, TEXT)
    with pytest.raises(InputError, match=r"give client_app\(classes=\.\.\.\), the number of"):
        _ = LocalClient(Reader, data).targets.target
    with pytest.raises(InputError, match="target 5 of this site, but the federation has 4 classes"):
        _ = LocalClient(Reader, data, 4).targets.target
    assert LocalClient(Reader, data, 9).targets.target.outputs == 9
    assert LocalClient("mlp", from_arrays(X, X)).targets.target == from_arrays(X, X).target


def test_the_worst_sites_are_those_with_the_highest_error():
    spread = score_spread([None, None], [0.5, 2.0])
    assert spread == {"variance": 0.5625, "error": 1.25, "worst": 2.0, "best": 0.5}
    share = score_spread([0.5, 1.0], [None, None])
    assert (share["accuracy"], share["worst"], share["best"]) == (75.0, 50.0, 100.0)
    assert score_spread([], []) == {}
    row = {"accuracy": None, "error": 0.5, "loss": None, "weight": 1.0}
    report = {"round": 1, "info": {}, "sites": {"north": row}, **spread}
    lines = round_log.round_lines(report)
    assert lines[0] == "round 1: 1 sites, error 1.25, worst 2, variance 0.5625"
    assert "error 0.5" in lines[1]
    assert "%" not in "".join(lines)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf"), "much", True])
def test_an_error_is_a_finite_number_from_0(wrong):
    with pytest.raises(Refused, match="error is"):
        read_score({"error": wrong})


def test_a_site_reports_one_score():
    with pytest.raises(Refused, match="it sent accuracy and error: send one of them"):
        read_score({"error": 1.0, "accuracy": 0.5})
    assert read_score({"error": 3.5}) == (None, 3.5)
    assert read_score({}) == (None, None)
