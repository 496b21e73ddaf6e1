"""Sites of a real federation make the simulator's model, and keep what its clients keep."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.clientapp import ClientApp

from combine_rules import Combining
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy
from fedmaba.results import run_folder
from fedmaba.results.history import History
from fedmaba.rows import objectives
from fedmaba.strategies import REGISTRY, Trimmed, combine
from fedmaba.strategies.base import Local, Objective
from flower_sites import (
    assert_kept,
    assert_same,
    first,
    grid_of,
    model_of,
    served,
    simulated,
)
from plain_loop import Drifting, one
from toys import MU, Minimising, Pulled, distil

NEEDS = {name: kind().needs() for name, kind in REGISTRY.items()}
SIMPLE = [
    name
    for name, kind in REGISTRY.items()
    if not any(getattr(NEEDS[name], more) for more in ("groups", "first_steps", "trials", "guided"))
    and not kind().local().keeps
]


class Known(Minimising):
    """minimises what every site knows"""

    def local(self):
        return Local(objective=Objective("distil", {"lam": 0.7, "T": 2.0}, ("server",)))


ALL_SITES = [
    *SIMPLE,
    *("fedmaba:alpha=0.8,loss_at=mean", "fedmaba:loss_at=end", "qffl:q=1,mode=sgd"),
    *("propfair:M=3,epsilon=0.5", "fedfv:tau=2", "term:normalise=reference"),
    *("multikrum:share=0.4", Known(), Trimmed(0.3), "rfa:weights=fedmaba"),
    *("nnm:rule=median:weights=afl", "cclip:around=last,beta=0.5", "cclip:weights=fedmaba"),
    *(Combining(), Combining(late=True), Combining("weighted")),
]
SOME_SITES = ["fedmaba:alpha=0.8", "afl", "fedfv:tau=2", "fedprox:mu=1", "fedlf:tau=2"]
BOTH = [
    *("scaffold", "scaffold:option=I", "feddyn", "fednova", "mifa", "local", "eagle:lam=3"),
    *("mifa:memory=gradient", "fedvarp", "maxfl", "feddgga:d=1"),
    *("pfedme:lam=3,steps=2", "perfedavg:alpha=0.1", "apfl:alpha=0.3"),
    "fedala:eta=9,steps=2",
    *("ditto:lam=0.1", "ditto:lam=0,server=fedmaba", "ditto:server=scaffold", "moon"),
    *(Pulled(), Pulled(keeps=True), Drifting()),
]
CASES = [(strategy, False) for strategy in (*ALL_SITES, *BOTH)]
CASES += [(strategy, True) for strategy in (*SOME_SITES, *BOTH)]


def label(value):
    """Of a case: its strategy, and which sites take part."""
    if isinstance(value, bool):
        return "some sites" if value else "all sites"
    return value if isinstance(value, str) else value.label()


@pytest.mark.parametrize(("strategy", "some"), CASES, ids=label)
def test_the_model_and_what_sites_keep_are_the_simulators(
    strategy, some, fed, tmp_path, monkeypatch
):
    monkeypatch.setitem(objectives.OBJECTIVES, "distil", distil)
    monkeypatch.setattr(combine, "PIECE", 300)
    rule = one(strategy) if isinstance(strategy, str) else strategy
    drawn = {"fraction_train": 0.6, "seed": 3} if some else {}
    flower, result = served(rule, fed, grid_of(fed, tmp_path), 4, **drawn)
    seed = drawn.get("seed", 0)
    batch, _ = simulated(rule, fed, 4, seed, participants=3 if some else None)
    assert_same(result.arrays, model_of(batch))
    assert all(len(report["sites"]) == (3 if some else 5) for report in flower.reports)
    for name, value in batch.progress.states[0].items():
        np.testing.assert_allclose(flower.server.state[name], value, atol=1e-6)
    begin = {n: a.numpy() for n, a in first(fed, seed=seed).items()}
    assert_kept(flower, tmp_path, batch, begin)


# a prox of each site's own


def server_of(strategy) -> FederationServer:
    return FederationServer(FederationSettings(strategy), {"w": np.ones(2, np.float32)})


def test_each_site_is_told_its_own_number_only():
    told = server_of(Pulled())
    told.join(["e", "b"])
    told.join(["a"])  # who comes later stands last

    def prox(task):
        return json.loads(task["local"])["prox"]

    assert [prox(told.task(site)) for site in ("b", "e", "a")] == list(MU[:3])
    assert prox(server_of(Pulled(keeps=True)).kept_task("unknown")) == 0  # which only evaluates


def test_more_sites_than_numbers_are_one_line():
    told = server_of(Pulled(mu=(0.1, 0.2)))
    told.join(["a", "b"])
    with pytest.raises(InputError, match=r"Local\(prox\) has 2 numbers, but there are 3 clients"):
        told.join(["c"])
    assert told.sites == ["a", "b"]


def test_a_node_without_a_name_has_no_number_and_is_not_let_in(fed, tmp_path):
    grid, app = grid_of(fed, tmp_path), ClientApp()
    app.train()(lambda message, context: None)
    grid.apps[7] = app
    flower, result = served(Pulled(), fed, grid)
    told = {line for report in flower.reports for line in report["refused"]}
    assert told == {"node 7 is not let in: its app gives no name, which says which prox is its own"}
    assert_same(result.arrays, model_of(simulated(Pulled(), fed)[0]))


# means and counts of steps


def test_a_site_that_reports_no_steps_is_left_out(fed, tmp_path):
    def silent(message, answer):
        if message.metadata.dst_node_id == 1000 and "metrics" in answer.content:
            answer.content["metrics"].pop("steps", None)
        return answer

    flower, _ = served(one("fednova"), fed, grid_of(fed, tmp_path, silent), 1)
    (line,) = flower.reports[-1]["refused"]
    assert "reports no number 'steps'" in line


def test_sites_that_join_bring_the_mean_down():
    server = server_of(one("feddyn"))
    server.join(["a", "b"])
    server.means = {"h": np.array([3.0, 6.0], np.float32)}
    server.join(["a", "b", "c"])
    np.testing.assert_allclose(server.means["h"], [2, 4])


def test_a_state_without_its_mean_is_refused(fed, tmp_path):
    state = tmp_path / "state"
    served(one("feddyn"), fed, grid_of(fed, tmp_path), 1, state=state)
    arrays, meta, _ = run_folder.load_checkpoint(state)
    folder = run_folder.Folder(state)
    folder.lines = meta["lines"]
    folder.save(1, {n: a for n, a in arrays.items() if n != "mean/h"}, meta, History([]))
    folder.close()
    with pytest.raises(InputError, match="it lacks 'mean/h'"):
        served(one("feddyn"), fed, grid_of(fed, tmp_path), 2, state=state)


# what sites cannot be asked for


@pytest.mark.parametrize(
    ("strategy", "options", "why"),
    [
        (Minimising(), {}, "sites take no code from a server: simulate it"),
        (Combining(), {"secure": SecureSum()}, "secure: combining.* combines single changes"),
        (Combining(), {"dp": "epsilon=8"}, "dp: combining.* is refused: it combines"),
        ("scaffold", {"batchnorm": "local"}, "a part of it never leaves them"),
        ("scaffold", {"secure": SecureSum()}, "asks sites for more than a loss and a change"),
        ("feddyn", {"secure": SecureSum()}, "asks sites for more than a loss and a change"),
    ],
)
def test_what_cannot_work_is_one_line(strategy, options, why, tmp_path):
    with pytest.raises(InputError, match=why):
        FlowerStrategy(strategy, state=tmp_path / "state", **options)
    if "dp" not in options:
        FlowerStrategy("ditto", **options)  # what stays at the site is no obstacle


def test_a_site_takes_no_code_from_a_server():
    asked = json.dumps(Minimising().local().to_json())
    with pytest.raises(InputError, match="its objective is code of the server's own"):
        Local.from_task({"local": asked})
