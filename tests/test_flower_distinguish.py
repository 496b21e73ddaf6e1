"""Neighbouring real federations cannot be told apart better than the stated epsilon allows.

The strategy of a real federation runs a thousand times in one process, with the secret generator.
An attacker who knows everything but which of two data sets one site has sees every model that is
handed out, every loss and every weight that is recorded, and guesses by a linear score.
"""

import functools
import logging
import math
import os

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")
pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")

from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from scipy import stats

from fedmaba import flower
from fedmaba.deploy import private, records, reply_fetching, server
from fedmaba.flower import FlowerStrategy, SecureSum, secure_mod
from fedmaba.privacy import accounting, mechanism, secret_noise
from flower_grid import LocalGrid

pytestmark = pytest.mark.slow
RUNS, FEW = 1000, 300  # on both federations together
EPSILON, DELTA, CLIP, LOSS = 2.0, 0.01, 0.5, 2.0
FEDMABA = "fedmaba:rho=9,eta_b=9"
SECURE = SecureSum(threshold=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The same numbers, each computed once; no logs, cards and waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(logging.getLogger("flwr"), "disabled", True)
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 1e-4)
    for name in ("noise_multiplier", "spent_epsilon", "accountant_in_words"):
        monkeypatch.setattr(accounting, name, functools.cache(getattr(accounting, name)))
    monkeypatch.setattr(records, "write_about", lambda *args, **more: None)
    monkeypatch.setattr(server, "write_card", lambda folder: None)


def site(name: str, towards: float, loss: float, mods=()) -> ClientApp:
    """A site that always moves one way, further than the bound on changes, with the same loss."""
    app = ClientApp()

    def train(message, context):
        w = message.content["arrays"]["w"].numpy()
        moved = ArrayRecord({"w": Array((w + np.float32([towards, 0])).astype(np.float32))})
        return flower.reply(message, moved, {"num-examples": 10, "loss": loss}, name)

    app.train(mods=list(mods))(train)
    app.query()(lambda message, context: flower.reply(message, None, {}, name))
    return app


def released(spec: str, replaced: bool, folder, rounds: int, secure=None) -> np.ndarray:
    """(k,) What one run releases: the model after each round, and all losses where they are."""
    mods = [secure_mod] if secure else []
    other = site("other", -9.0 if replaced else 9.0, LOSS if replaced else 0.0, mods)
    grid = LocalGrid({1: site("known", 0.0, LOSS / 2, mods), 2: other})
    strategy = FlowerStrategy(
        spec,
        state=folder,
        evaluate=False,
        min_available_nodes=2,
        secure=secure,
        dp=f"epsilon={EPSILON},delta={DELTA},clip={CLIP},loss={LOSS},loss_share=0.3",
    )
    models = []

    def keep(t, arrays):
        models.append(arrays["w"].numpy())

    first = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    strategy.start(grid, first, rounds, timeout=30, evaluate_fn=keep)
    steps = np.diff(np.stack([np.zeros(2), *models]), axis=0)[:, 0]  # the way that sites move
    noise = [report["privacy"]["noise on the sum"] for report in strategy.reports]
    weight = [report["sites"]["other"]["weight"] for report in strategy.reports]
    seen = [steps / noise * weight]  # a step says the more, the more the site weighs
    if strategy.reports[0]["privacy"]["noise on losses"]:
        told = [[s["loss"] for s in report["sites"].values()] for report in strategy.reports]
        seen.append(np.ravel(told) / strategy.reports[0]["privacy"]["noise on losses"])
    return np.concatenate(seen)


def certain_epsilon(spec: str, tmp_path, runs: int, rounds: int = 1, secure=None) -> float:
    """The largest epsilon that the runs disprove at 95 %: all below it are impossible."""
    one, other = (
        np.stack(
            [
                released(spec, turn, tmp_path / f"{n}{turn}", rounds, secure)
                for n in range(runs // 2)
            ]
        )
        for turn in (False, True)
    )
    half = len(one) // 2
    direction = one[:half].mean(0) - other[:half].mean(0)  # learnt on the first half
    score, against = one @ direction, other @ direction

    def bound(cut: float, part: slice) -> float:
        hits, wrongs = (int((s[part] >= cut).sum()) for s in (score, against))
        least = stats.beta.ppf(0.025, hits, half - hits + 1) if hits else 0.0
        most = stats.beta.ppf(0.975, wrongs + 1, half - wrongs) if wrongs < half else 1.0
        return math.log(max(least - DELTA, 1e-9) / most)

    cuts = np.quantile(np.concatenate([score[:half], against[:half]]), np.linspace(0, 1, 201))
    best = max(cuts, key=lambda cut: bound(cut, slice(half)))
    return bound(best, slice(half, None))  # by runs that nothing was learnt from


@pytest.mark.parametrize(("spec", "rounds"), [("fedavg", 1), (FEDMABA, 2)])
def test_no_attack_beats_the_stated_epsilon(spec, rounds, tmp_path):
    assert certain_epsilon(spec, tmp_path, RUNS, rounds) <= EPSILON


def test_no_attack_beats_the_stated_epsilon_where_sites_clip_and_sums_are_secure(tmp_path):
    assert certain_epsilon(FEDMABA, tmp_path, RUNS, 1, SECURE) <= EPSILON


@pytest.mark.parametrize("secure", [None, SECURE])
def test_the_attack_finds_noise_that_is_a_tenth(tmp_path, monkeypatch, secure):
    usual = secret_noise.normals
    monkeypatch.setattr(secret_noise, "normals", lambda many: usual(many) / 10)
    assert certain_epsilon(FEDMABA, tmp_path, FEW, 1, secure) > EPSILON


def test_the_attack_finds_a_weight_that_is_not_counted(tmp_path, monkeypatch):
    """As if the largest weight were a tenth of what it is."""
    usual = private.largest_weight
    monkeypatch.setattr(private, "largest_weight", lambda *asked: usual(*asked) / 10)
    monkeypatch.setattr(mechanism.Mechanism, "check_weights", lambda *_: None)
    assert certain_epsilon("fedavg", tmp_path, FEW) > EPSILON
