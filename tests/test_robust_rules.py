"""Robust rules beside loops written from their papers, and what a lie is worth to them."""

from dataclasses import replace

import numpy as np
import pytest

from fedmaba.data.attack import Attack
from fedmaba.data.federation import attacked
from fedmaba.errors import InputError
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies import NNM, RFA, CClip, Median, MultiKrum, Trimmed, parse
from fedmaba.strategies.base import votes_and_mix
from fedmaba.strategies.combine import combined
from plain_loop import PLAN, Plain, apart, mlp, played, vector
from plain_norms import norm_net
from test_paper import told

RNG = np.random.default_rng(0)
LOSS = np.array([0.3, 2.0, 1.0, 0.1, 4.0, 0.7, 1.5])
CHANGES = RNG.normal(size=(7, 30)) * np.geomspace(0.3, 9, 7)[:, None] + 1


def one(spec):
    (strategy,) = parse(spec)
    return strategy


def answer(strategy, changes=CHANGES, loss=LOSS, past=()):
    """The change that a server of this strategy makes of those of clients."""
    seen = told(range(len(changes)), loss=loss, changes=changes, n=len(changes))
    rows = np.array([*changes, *past])
    seen = replace(seen, gram=rows @ rows.T)
    coef = strategy.weigh(strategy.init(len(changes)), seen).coef
    votes, mix = votes_and_mix(coef[..., : len(rows) - len(past)])
    if len(past):  # a step before is no change that a rule gets
        return coef @ rows
    mixed = changes if mix is None else mix @ changes
    return combined(strategy.combine(), mixed, votes)


def fair(changes=CHANGES, loss=LOSS):
    m = len(changes)
    strategy = one("fedmaba")
    return strategy.weigh(strategy.init(m), told(range(m), loss=loss, n=m)).coef


@pytest.mark.parametrize("weights", ["fedavg:weights=uniform", "fedmaba"])
def test_rfa_takes_weiszfelds_steps_from_the_model_that_was_sent(weights):
    share = fair() if weights == "fedmaba" else np.full(7, 1 / 7)
    v = np.zeros(30)
    for _ in range(3):
        beta = [a / max(1e-6, np.linalg.norm(v - w)) for a, w in zip(share, CHANGES, strict=True)]
        v = sum(b * w for b, w in zip(beta, CHANGES, strict=True)) / sum(beta)
    np.testing.assert_allclose(answer(RFA(weights=weights)), v, rtol=1e-9)


def clipped(v, tau, steps, share):
    for _ in range(steps):
        away = [np.linalg.norm(x - v) for x in CHANGES]
        radius = tau * np.median(away) if tau < 2 else tau
        v = v + sum(
            a * min(1, radius / d) * (x - v) for a, d, x in zip(share, away, CHANGES, strict=True)
        )
    return v


@pytest.mark.parametrize("steps", [1, 4])
def test_centred_clipping_is_its_paper(steps):
    equal, last = np.full(7, 1 / 7), RNG.normal(size=30)
    found = answer(CClip(tau=1.5, steps=steps, weights="fedmaba"))
    np.testing.assert_allclose(found, clipped(np.zeros(30), 1.5, steps, fair()), rtol=1e-9)
    paper = CClip(around="last", tau=3.0, unit="one", steps=steps)
    np.testing.assert_allclose(answer(paper), clipped(np.zeros(30), 3.0, steps, equal), rtol=1e-9)
    found = answer(paper, past=[last])
    np.testing.assert_allclose(found, clipped(last, 3.0, steps, equal), rtol=1e-9)


@pytest.mark.parametrize(
    ("rule", "after"),
    [
        ("trimmed:share=0.3", lambda x: np.sort(x, 0)[2:-2].mean(0)),
        ("median", lambda x: np.median(x, 0)),
        ("fedavg:weights=uniform", lambda x: x.mean(0)),
        ("fedmaba", lambda x: fair() @ x),
        ("median:weights=fedmaba", lambda x: weighted_median(x, fair())),
    ],
)
def test_each_change_is_mixed_with_those_nearest_to_it_and_itself(rule, after):
    mixed = []
    for x in CHANGES:
        order = sorted(range(7), key=lambda j: np.linalg.norm(CHANGES[j] - x))
        assert np.array_equal(CHANGES[order[0]], x)
        mixed.append(CHANGES[order[:5]].mean(0))
    found = answer(NNM(share=0.3, rule=rule.replace(",", ";")))
    np.testing.assert_allclose(found, after(np.array(mixed)), rtol=1e-6)


def weighted_median(x, weights):
    """The point with the least weighted sum of distances, in each column."""
    return np.array([min(c, key=lambda at: weights @ abs(c - at)) for c in x.T])


def test_weighted_rules_by_hand():
    x = np.array([[1.0, 50], [2, 40], [3, 30], [4, 20], [100, 10]])
    for name, weights, wanted in [
        ("weighted_median", [0.2] * 5, [3, 30]),
        ("weighted_median", [0.1, 0.1, 0.1, 0.1, 0.6], [100, 10]),
        ("weighted_median", [0.3, 0.2, 0.1, 0.1, 0.3], [2.5, 35]),  # just between two
        ("weighted_trimmed", [0.2] * 5, [3, 30]),
        (
            "weighted_trimmed",
            [0.7, 0.1, 0.1, 0.05, 0.05],
            [2.8, 32],
        ),  # who is left counts by weight
    ]:
        rule = replace(Trimmed(0.2, weights="fedmaba").combine(), name=name)
        assert combined(rule, x, np.array(weights)) == pytest.approx(wanted)


def test_equal_weights_make_the_plain_rules():
    for k in (1, 2, 5, 8):
        x = RNG.normal(size=(k, 400)).astype(np.float32)
        for plain, weighed in (
            (Median(), Median(weights="term:T=0")),
            (Trimmed(0.3), Trimmed(0.3, weights="term:T=0")),
        ):
            even = np.full(k, 1 / k, np.float32)
            found = [combined(one.combine(), x, even) for one in (plain, weighed)]
            np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
            assert plain.combine().name != weighed.combine().name


def test_multikrum_weighs_what_it_has_chosen():
    plain = MultiKrum(0.3).weigh({}, told(range(7), changes=CHANGES, n=7)).coef
    strategy = MultiKrum(0.3, weights="fedmaba")
    seen = told(range(7), loss=LOSS, changes=CHANGES, n=7)
    found = strategy.weigh(strategy.init(7), seen)
    chosen = plain > 0
    np.testing.assert_allclose(found.coef, chosen * fair() / fair()[chosen].sum(), rtol=1e-6)
    assert found.info["assumed"] == 2
    assert {"lambda", "kl"} <= found.info.keys()
    assert strategy.shown()[-1].name == "assumed"


def test_clients_send_their_momentum_and_the_centre_is_the_last_step(fed):
    strategy = one("cclip:around=last,beta=0.6,unit=one,tau=0.3")
    plan = replace(PLAN, participants=3, rounds=6, server_momentum=0.3, chunk=2)
    batch, _ = played([Run(strategy, 3, fed)], fed, plan, mlp)
    plain = Plain(strategy, 3, fed, plan, mlp).run()
    assert apart(vector(batch, batch.progress.model[0]), plain.path[-1]) < 1e-9


def test_statistics_have_no_momentum(fed):
    plan = replace(PLAN, rounds=1, minibatch=3, batchnorm="average")
    runs = [Run(one(s), 3, fed) for s in ("cclip:tau=9", "cclip:tau=9,beta=0.5")]
    batch, _ = played(runs, fed, plan, norm_net)
    plain, slow = batch.progress.model - start(runs, plan, norm_net).progress.model
    compared = batch.rows.layout.compared
    assert apart(slow[:compared], plain[:compared] / 2) < 1e-9
    assert apart(slow[compared:], plain[compared:]) < 1e-9


@pytest.mark.parametrize("spec", ["krum", "multikrum", "rfa", "cclip", "nnm", "nnm:rule=fedmaba"])
def test_a_change_that_is_not_finite_is_left_out(spec, fed):
    hostile = attacked({3: fed}, Attack(update=np.inf), 0.2)[3]
    batch = start([Run(one(spec), 3, hostile)], PLAN, mlp)
    shots = list(simulate(batch))
    assert batch.progress.diverged == [""]
    assert [shot.rounds[0].info["left_out"] for shot in shots] == [1.0] * 3


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("rfa:weights=krum", "rfa: weights='krum': a robust rule takes weights that sum to 1"),
        ("cclip:weights=scaffold", "weights='scaffold': it also changes what clients do"),
        ("rfa:weights=local", "put the rule behind it, as ditto:server=rfa"),
        ("median:weights=fedmaba:eta_s=2", "weights that sum to 1"),
        ("trimmed:weights=fedeba", "need no changes of models: choose fedavg, fedmaba"),
        ("krum:weights=fedmaba", "unknown hyper-parameter of krum 'weights'"),
        ("nnm:rule=nnm", "rule='nnm' uses more than this round's changes as wholes: choose"),
        ("nnm:rule=fedlf", "rule='fedlf' uses more"),
        ("nnm:rule=cclip:around=last", "uses more"),
        ("nnm:rule=fedgan", "unknown strategy 'fedgan'"),
    ],
)
def test_what_goes_not_together_is_one_line(spec, line):
    with pytest.raises(InputError, match=line) as refused:
        parse(spec)
    assert "\n" not in str(refused.value)


def test_a_lie_about_a_loss_moves_the_weighted_rules_no_further_than_its_weight():
    """Where liars hold less than half of the weight, the median stays among the honest."""
    lies = np.where(np.arange(7) < 2, 1e6, LOSS)
    changes = np.where(np.arange(7)[:, None] < 2, 1e3, CHANGES)
    honest = changes[2:]
    weights = fair(loss=lies)
    assert weights[:2].sum() > 0.5  # FedMABA alone believes them
    assert answer(Median(weights="fedmaba"), changes, lies).max() == 1e3
    trusted = answer(Median(weights="fedmaba:trust=usual"), changes, lies)
    trimmed = answer(Trimmed(0.3, weights="fedmaba"), changes, lies)
    for found in (trusted, trimmed):
        assert (found <= honest.max(0) + 1e-9).all()
        assert (found >= honest.min(0) - 1e-9).all()
