"""FedEBA, FedLF and MIFA: by hand, beside the papers' formulas, at their limits.

Numbers by hand are of the clients of test_paper: losses w^2/2 and 3/2 (w - 2)^2, from w = 1, step
0.1: losses (1/2, 3/2), changes (-0.1, +0.3).
"""

import itertools
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedmaba.data.attack import Attack, Hostile
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import refusal
from fedmaba.simulation.engine import Run
from fedmaba.strategies import FedEBA, FedLF
from fedmaba.strategies.answers import call_weigh
from fedmaba.strategies.base import Decision, Needs, Replies, Strategy, layers_of
from fedmaba.strategies.descent import fair_combination
from plain_loop import PLAN, apart, mlp, one, played

pytestmark = pytest.mark.usefixtures("few_threads")
SOME = replace(PLAN, rounds=4, participants=3)


def seen(loss, changes, cuts=(), *, t=0, past=(), n=10, client=None):
    """One round in numbers, the changes cut into layers."""
    rows = np.array([*changes, *(v for _, _, v in past)], dtype=np.float64)
    m = len(changes)
    return Replies(
        round=t,
        lr=0.1,
        n_clients=n,
        client=np.arange(m) if client is None else np.array(client),
        size=np.full(m, 5),
        loss=np.array(loss, dtype=np.float64),
        layer_grams=np.array([part @ part.T for part in np.split(rows, cuts, axis=1)]),
        past_client=np.array([i for i, _, _ in past], dtype=np.int64),
        past_round=np.array([r for _, r, _ in past], dtype=np.int64),
    )


# three rounds by hand


def by_rounds(strategy, steps=1):
    """The server's parameter after three rounds of the usual two clients."""
    w, path, state = 1.0, [], strategy.init(2)
    for t in range(3):
        loss = [w * w / 2, 1.5 * (w - 2) ** 2]
        first = [-0.1 * w, -0.3 * (w - 2)]
        change = [w * (0.9**steps - 1), (w - 2) * (0.7**steps - 1)]
        told = seen(loss, [[v] for v in change], t=t, n=2)
        coef, state, _ = call_weigh(strategy, state, told)
        w += coef @ np.array([*change, *first])
        path.append(w)
    return path


def test_fedeba_by_hand():
    # tau = 1/log 3: odds 3^(F2 - F1) = 3, p = (1/4, 3/4). Two local steps: changes (-0.19, 0.51),
    # first steps (-0.1, 0.3). a = 1/2: (-0.0475 + 0.3825)/2 + (-0.05 + 0.15)/2 = 0.2175.
    # At 1.2175: F = (0.741153, 0.918459), odds 3^0.177306 = 1.215059, p = (0.451455, 0.548545),
    # changes (-0.231325, 0.399075): 0.114477/2 = 0.057238; first (-0.12175, 0.23475): 0.0565/2.
    # At 1.302988: F = (0.848889, 0.728738), odds 3^-0.120151 = 0.876324, p = (0.532957, 0.467043),
    # changes (-0.247568, 0.355476): 0.0340797/2; first (-0.130299, 0.209104): 0.0394024/2
    strategy = FedEBA(tau=1 / math.log(3), a=0.5)
    assert by_rounds(strategy, steps=2) == pytest.approx([1.2175, 1.302988, 1.339729], abs=2e-6)


def test_one_weight_on_which_clients_disagree_does_not_move():
    decision = call_weigh(FedLF(), FedLF().init(10), seen([0.5, 1.5], [[-0.1], [0.3]]))
    assert decision.coef.tolist() == [[0.0, 0.0]]


# beside the papers' own formulas


def shortest(vectors):
    """The shortest convex combination, by a solver that knows nothing of Gram matrices."""
    scaled, k = vectors / np.linalg.norm(vectors, axis=1).max(), len(vectors)
    found = minimize(
        lambda x: ((x @ scaled) ** 2).sum(),
        np.full(k, 1 / k),
        jac=lambda x: 2 * scaled @ (x @ scaled),
        bounds=[(0, 1)] * k,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(k)},
        method="SLSQP",
        options={"ftol": 1e-16, "maxiter": 500},
    )
    return found.x @ vectors


def fair_gradient(loss, g):
    """Equation (5) of FedLF."""
    size, one_size = np.linalg.norm(loss), math.sqrt(len(loss))
    ones = np.ones(len(loss))
    return (loss @ ones * loss / (one_size * size) - ones * size / one_size) / size**2 @ g


def paper_direction(loss, g, layers, absent=()):
    """The direction of lines 5 to 15 in Algorithm 1 of FedLF."""
    every = np.vstack([g, *absent, fair_gradient(loss, g)])
    parts = [list(layer) for layer in layers]
    d = {}
    k = 0
    while k < len(parts):
        at = np.array(parts[k])
        d[k] = -shortest(every[:, at])
        if np.linalg.norm(d[k]) < 1e-4 * np.linalg.norm(every[:, at], axis=1).max():
            if len(parts) == 1:
                d[k] = 0 * d[k]
                break
            k = min(k, len(parts) - 2)  # with the next, or the last with the one before
            parts[k : k + 2] = [parts[k] + parts[k + 1]]
            continue
        k += 1
    out = np.zeros(g.shape[1])
    for k, at in enumerate(parts):
        out[at] = d[k]
    return out / np.linalg.norm(out) * np.linalg.norm(g.mean(0))


@pytest.mark.parametrize("absent", [0, 2])
@pytest.mark.parametrize("seed", range(3))
def test_fedlf_is_the_papers_algorithm(seed, absent):
    rng = np.random.default_rng(seed)
    cuts = [3, 5, 20]  # layers of 3, 2, 15 and 20 weights for 4 clients: the first two are joined
    g, old, loss = rng.normal(size=(4, 40)), rng.normal(size=(absent, 40)), rng.gamma(2, 1, 4)
    layers = [range(a, b) for a, b in itertools.pairwise([0, *cuts, 40])]
    want = 0.1 * paper_direction(loss, g, layers, old)
    past = [(5 + i, 1, -0.1 * v) for i, v in enumerate(old)]
    state = {"joined": np.ones(10)}
    decision = call_weigh(FedLF(), state, seen(loss, -0.1 * g, cuts, t=2, past=past))
    rows = -0.1 * np.vstack([g, old])
    step = np.concatenate(
        [c @ part for c, part in zip(decision.coef, np.split(rows, cuts, axis=1), strict=True)]
    )
    np.testing.assert_allclose(step, want, atol=1e-7)
    at = layers[-1]  # in the last layer, and in the whole, nobody's gradient conflicts
    assert (np.vstack([g, old])[:, at] @ step[at] < 0).all()
    assert (g @ step < 0).all()
    assert fair_gradient(loss, g) @ step < 0


def test_fedlf_in_the_reference_scaling_has_the_numbers_of_the_authors_code():
    """Of zibinpan/FedLF, get_FedLF_d_layers, run by hand in float64 with another QP solver."""
    g = np.array([[1.0, 2, -1, 0.5, 3], [-1, 1, 2, 2, 1], [0.5, -1, 1, 3, 0.2]])
    old = np.array([-1.3, 1.5, 1.3, 0.8, 0.3])
    for past, want in (((), ALONE), ([(7, 1, -0.1 * old)], WITH_ABSENT)):
        strategy = FedLF(norms="reference")
        told = seen([0.5, 1.0, 2.0], -0.1 * g, [3], t=2, past=past)
        coef = call_weigh(strategy, {"joined": np.ones(10)}, told).coef
        rows = -0.1 * np.vstack([g, *(10 * -v for _, _, v in past)])
        step = [c @ p for c, p in zip(coef, np.split(rows, [3], axis=1), strict=True)]
        np.testing.assert_allclose(-10 * np.concatenate(step), want, atol=1e-5)


ALONE = [1.92840847, -0.00444737, 1.28412319, 0.92484221, -0.12121583]
WITH_ABSENT = [1.43133510, 0.18263380, 1.46654299, 1.40395651, -0.18401166]


def test_fedlf_counts_absent_clients_for_as_long_as_clients_are_absent_on_average():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(2, 9))
    past = [(5, 7, rng.normal(size=9)), (6, 3, rng.normal(size=9)), (0, 7, rng.normal(size=9))]
    told = seen([1, 2], g, t=8, past=past)  # client 0 is here again
    for joined, tau, counted in ((10, 10, [2, 3]), (4, 10, [2]), (10, 0, []), (1, 10, [])):
        state = {"joined": np.repeat([1.0, 0.0], [joined, 10 - joined])}
        coef = FedLF(tau=tau).weigh(state, told).coef[0]
        assert set(np.flatnonzero(coef[2:]) + 2) <= set(counted)
        absent = FedLF(tau=tau)._absent(state, told)
        assert (absent + 2).tolist() == counted
    new = FedLF().weigh({"joined": np.zeros(10)}, told).state
    assert np.flatnonzero(new["joined"]).tolist() == [0, 1]


def test_equal_losses_leave_the_fair_objective_out():
    assert fair_combination(np.full(4, 2.0)) is None
    assert fair_combination(np.zeros(3)) is None
    decision = FedLF().weigh(FedLF().init(10), seen([2, 2], [[1.0, 0.0], [0.0, 1.0]]))
    assert decision.coef == pytest.approx(np.array([[0.5, 0.5]]))


# limits


def test_no_alignment_is_term_and_only_alignment_is_fedsgd(fed):
    specs = ["term:T=4", "fedeba:tau=0.25,a=0", "fedsgd", "fedeba:a=1", "fedavg:weights=uniform"]
    batch, shots = played([*specs, "mifa"], equal_sizes(fed), PLAN, mlp)
    model = batch.progress.model
    assert apart(model[1], model[0]) < 1e-12
    assert apart(model[3], model[2]) < 1e-9
    assert apart(model[5], model[4]) < 1e-12  # all take part
    assert apart(model[1], model[4]) > 1e-4
    n = fed.n_clients
    assert shots[0].rounds[3].weight == pytest.approx([1 / n] * n)


def equal_sizes(fed):
    """The federation with clients of one size."""
    least = min(len(part) for part in fed.split.train)
    split = replace(fed.split, train=[part[:least] for part in fed.split.train])
    return replace(fed, split=split)


def test_a_client_that_multiplies_its_change_multiplies_its_first_step(fed):
    alike = equal_sizes(fed)
    who = np.arange(fed.n_clients) == 1
    bad = replace(alike, hostile=Hostile(Attack(update=5.0), who))
    runs = [Run(one(spec), 3, where) for spec in ("fedeba:a=1", "fedsgd") for where in (alike, bad)]
    model = played(runs, fed, PLAN, mlp)[0].progress.model
    assert apart(model[1], model[3]) < 1e-9
    assert apart(model[1], model[0]) > 1e-3


# what a strategy of your own may ask for


class Layered(Strategy):
    """Weighs layers differently."""

    name: ClassVar[str] = "layered"

    def needs(self):
        return Needs(changes="layers")

    def weigh(self, state, replies):
        layers, m = len(replies.layer_grams), len(replies.client)
        return Decision(np.full((layers, m), 1 / m), state)


def test_layers_are_modules_with_weights():
    names = ["0.weight", "0.bias", "2.inner.weight", "2.inner.bias", "2.out.weight", "scale"]
    assert layers_of(names) == [[0, 1], [2, 3], [4], [5]]


def test_the_same_weights_in_all_layers_are_those_of_the_whole(fed):
    batch, shots = played([Run(Layered(), 3, fed), "fedavg:weights=uniform"], fed, SOME, mlp)
    assert apart(batch.progress.model[0], batch.progress.model[1]) < 1e-12
    assert shots[0].rounds[0].weight == pytest.approx([1 / 3] * 3)


def test_weights_of_layers_are_checked():
    told = seen([1, 2], [[1.0, 2.0], [3.0, 4.0]], [1])
    for coef, line in (
        (np.full((3, 2), 0.5), r"coefficients of shape \(3, 2\) for 2 clients"),
        (np.array([[0.5, 0.5], [0.5, 0.7]]), "coefficients that sum to 1.2, but total"),
    ):
        kind = type("Odd", (Layered,), {"weigh": lambda _, s, __, c=coef: Decision(c, s)})
        with pytest.raises(InputError, match=line):
            call_weigh(kind(), {}, told)
    with pytest.raises(InputError, match=r"Needs\(first_steps=True\): their weights must be known"):
        Needs(first_steps=True, changes="gram")
    half = type("Half", (FedEBA,), {"weigh": lambda _, s, __: Decision(np.full(2, 0.5), s)})
    with pytest.raises(InputError, match=r"coefficients of shape \(2,\) for 2 clients"):
        call_weigh(half(), {}, told)


def test_nothing_to_move_along_is_no_step():
    decision = FedLF().weigh(FedLF().init(10), seen([1, 2], np.zeros((2, 3)), [1]))
    assert decision.coef.tolist() == [[0, 0], [0, 0]]
    assert torch.tensor(decision.coef).isfinite().all()


def test_flower_refuses_what_sites_do_not_send():
    why = "fedeba weighs the first step of each site, which sites do not send: simulate it, or"
    with pytest.raises(InputError, match=why):
        FederationSettings(one("fedeba"))
    FederationSettings(one("fedlf"))
    FederationSettings(one("mifa"))


def test_first_steps_are_refused_where_changes_are_clipped():
    assert "first steps, which are not clipped: run it without dp" in refusal(one("fedeba"))
