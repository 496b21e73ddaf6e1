"""The first rounds of every strategy by hand, and the traps of public code we are not in.

Clients have one parameter and the loss a/2 (w - c)^2. The usual pair is a = (1, 3), c = (0, 2),
started at w = 1 with step 0.1: losses (1/2, 3/2), gradients (1, -3), changes (-0.1, +0.3).
No number below was taken from the code under test.
"""

import math

import numpy as np
import pytest

from fedmaba.strategies import (
    AFL,
    QFFL,
    TERM,
    FedAvg,
    FedFV,
    FedMABA,
    FedMGDA,
    FedProx,
    FedSGD,
    PropFair,
)
from fedmaba.strategies.base import Replies, Strategy


def descend(strategy, w, a, c, lr, steps):
    """Local training of one client from w: the change of its model."""
    y, local = w, strategy.local()
    for _ in range(1 if local.full_batch else steps):
        loss, factor = a / 2 * (y - c) ** 2, 1.0
        if bent := local.objective:
            left, slope = bent.numbers["M"] - loss, bent.numbers["slope"]
            factor = 1 / left if left >= bent.numbers["epsilon"] else slope
        y -= lr * (factor * a * (y - c) + local.prox * (y - w))
    return y - w


def play(strategy: Strategy, a=(1, 3), c=(0, 2), w=1.0, size=(1, 1), steps=1, cohorts=None):
    """The server's parameter after each of three rounds."""
    lr, path, state, past = 0.1, [], strategy.init(len(a)), {}
    for t in range(3):
        who = list(range(len(a))) if cohorts is None else cohorts[t]
        v = [descend(strategy, w, a[i], c[i], lr, steps) for i in who]
        old = {i: rv for i, rv in past.items() if i not in who}
        every = np.array(v + [change for _, change in old.values()])
        told = Replies(
            round=t,
            lr=lr,
            n_clients=len(a),
            client=np.array(who),
            size=np.array(size)[who],
            loss=np.array([a[i] / 2 * (w - c[i]) ** 2 for i in who]),
            norms=np.square(v),
            gram=np.outer(every, every),
            past_client=np.array(list(old), dtype=np.int64),
            past_round=np.array([r for r, _ in old.values()], dtype=np.int64),
        )
        coef, state, _ = strategy.weigh(state, told)
        w += coef @ every[: len(coef)]
        past |= {i: (t, change) for i, change in zip(who, v, strict=True)}
        path.append(w)
    return path


def told(client, *, loss=None, changes=None, size=None, n=10, t=0, lr=0.1, past=()):
    """One round in numbers."""
    gram = None
    if changes is not None:
        rows = np.array([*changes, *(v for _, _, v in past)], dtype=np.float64)
        gram = rows @ rows.T
    m = len(client)
    return Replies(
        round=t,
        lr=lr,
        n_clients=n,
        client=np.array(client),
        size=np.full(m, 5) if size is None else np.array(size),
        loss=None if loss is None else np.array(loss, dtype=np.float64),
        norms=None if gram is None else gram.diagonal()[:m],
        gram=gram,
        past_client=np.array([i for i, _, _ in past], dtype=np.int64),
        past_round=np.array([r for _, r, _ in past], dtype=np.int64),
    )


# three rounds by hand


def test_fedavg():
    # +(-0.1 + 0.3)/2 = 0.1; at 1.1 (-0.11 + 0.27)/2 = 0.08; at 1.18 (-0.118 + 0.246)/2 = 0.064
    assert play(FedAvg()) == pytest.approx([1.1, 1.18, 1.244])
    # sizes 1 and 3: (-0.1 + 0.9)/4 = 0.2; (-0.12 + 0.72)/4 = 0.15; (-0.135 + 0.585)/4 = 0.1125
    assert play(FedAvg(), size=(1, 3)) == pytest.approx([1.2, 1.35, 1.4625])
    assert play(FedAvg(weights="uniform"), size=(1, 3)) == pytest.approx([1.1, 1.18, 1.244])


def test_fedsgd_takes_one_step_whatever_the_plan():
    assert play(FedSGD(), size=(1, 3), steps=7) == pytest.approx([1.2, 1.35, 1.4625])


def test_fedprox():
    # two local steps: change_i = -0.1 a (w - c) (2 - 0.1 a - 0.1 mu), mu = 1/2,
    # = -0.185 w and -0.495 (w - 2), so w <- 0.66 w + 0.495
    assert play(FedProx(mu=0.5), steps=2) == pytest.approx([1.155, 1.2573, 1.324818])
    # mu = 0: -0.19 w and -0.51 (w - 2), so w <- 0.65 w + 0.51
    assert play(FedProx(mu=0), steps=2) == pytest.approx([1.16, 1.264, 1.3316])


def test_qffl():
    # q = 1, L = 10: sum F d = 1/2 - 9/2 = -4; h = (1 + 5) + (9 + 15) = 30; w = 1 + 4/30
    # at 17/15: F = 289/450, 507/450; d = 17/15, -39/15; sum F d = -2.201481; h = 25.733333
    # at 1.218883: F = 0.742838, 0.915215; d = 1.218883, -2.343351; -1.239238 / 23.557502
    assert play(QFFL(q=1)) == pytest.approx([17 / 15, 1.218883131836, 1.271487931076])
    # q = 2: sum F^2 d = 1/4 - 27/4 = -6.5; h = (1 + 2.5) + (27 + 22.5) = 53; w = 1 + 6.5/53
    assert play(QFFL(q=2)) == pytest.approx([1 + 6.5 / 53, 1.210439742959, 1.263582836998])
    # one full-batch gradient is the same change here
    assert play(QFFL(q=1, mode="sgd"), steps=9) == pytest.approx(play(QFFL(q=1)))


def test_afl():
    # lambda (1/2, 1/2): w = 1.1; then lambda + 0.1 F = (0.55, 0.65), projected (0.45, 0.55)
    # at 1.1: -0.0495 + 0.1485 = 0.099; + 0.1 (0.605, 1.215) = (0.5105, 0.6715) -> (0.4195, 0.5805)
    # at 1.199: -0.4195 * 0.1199 + 0.5805 * 0.2403 = 0.0891961
    assert play(AFL(lam=0.1)) == pytest.approx([1.1, 1.199, 1.2881961])
    # lam = 2: (0.5, 0.5) + (1, 3) -> (0, 1): from the second round on, only client 1 counts,
    # 1.1 + 0.27 = 1.37; then lambda + 2 F = (1.21, 3.43) -> (0, 1) again, 1.37 + 0.189
    assert play(AFL(lam=2)) == pytest.approx([1.1, 1.37, 1.559])


def test_term():
    # T = log 2: weights 2^F ~ (1/3, 2/3): w = 1 + (-0.1 + 0.6)/3
    # at 7/6: F = 49/72, 75/72: weights (1, 2^(13/36)) -> (0.437749, 0.562251)
    # at 1.256159: F = 0.788967, 0.829950: weights (0.492899, 0.507101)
    assert play(TERM(T=math.log(2))) == pytest.approx([7 / 6, 1.256158742044, 1.307403673585])


def test_term_reference():
    # e = 0.5 * 0.75 = 0.375; v = (1/2, 1)/(2 * 0.375) = (2/3, 4/3); mean of v change = 1/6
    # e = 0.1875 + 0.5 * mean(2^(-13/36), 1) = 0.632141; v = (0.615816, 0.790963)
    # e = 0.793854; v = (0.573867, 0.629839)
    found = play(TERM(T=math.log(2), normalise="reference"))
    assert found == pytest.approx([7 / 6, 1.229614412042, 1.26711543285])


def test_fedmgda():
    # directions -1 and +1, prior (1/4, 3/4), epsilon 0.1: mu = (0.35, 0.65), step 0.1 * 0.3
    path = play(FedMGDA(epsilon=0.1, eta=0.1), size=(1, 3))
    assert path == pytest.approx([1.03, 1.06, 1.09], abs=1e-9)
    # decay 1/2: 0.03 + 0.015 + 0.0075
    path = play(FedMGDA(epsilon=0.1, eta=0.1, decay=0.5), size=(1, 3))
    assert path == pytest.approx([1.03, 1.045, 1.0525], abs=1e-9)
    # epsilon 1 lets them cancel
    assert play(FedMGDA(epsilon=1), size=(1, 3)) == pytest.approx([1, 1, 1], abs=1e-9)


def test_propfair():
    # M = 2: factors 1/(2 - 1/2), 1/(2 - 3/2): (-0.1/1.5 + 0.3/0.5)/2 = 4/15
    # at 19/15: F = 0.802222, 0.806667: (-0.126667/1.197778 + 0.22/1.193333)/2 = 0.039303
    # at 1.305970: F = 0.852778, 0.722517: (-0.130597/1.147222 + 0.208209/1.277483)/2 = 0.024573
    assert play(PropFair(M=2)) == pytest.approx([19 / 15, 1.305969741884, 1.33054284579])


def test_propfair_below_the_bound():
    # M = 1, epsilon = 0.2: F = 3/2 > 0.8, so slope 1/0.2 = 5: (-0.1 * 2 + 0.3 * 5)/2 = 0.65
    # at 1.65 the first is over: (-0.165 * 5 + 0.105/(1 - 0.18375))/2
    found = play(PropFair(M=1))
    assert found == pytest.approx([1.65, 1.301818529862, 1.365953871017])
    # scaled: slope 1/M = 1: (-0.2 + 0.3)/2 = 0.05
    found = play(PropFair(M=1, below="scaled"))
    assert found == pytest.approx([1.05, 1.075508356546, 1.086643670665])


def test_fedfv():
    # a = (4, 1), c = (0, 4): losses (2, 4.5), changes (-0.4, 0.3). The second is worst served and
    # kept; the first is projected away; 0.15 gets the length of the mean, 0.05.
    # at 1.05: |-0.42 + 0.295|/2 = 0.0625; at 1.1125: |-0.445 + 0.28875|/2 = 0.078125
    found = play(FedFV(alpha=0.1, tau=0), a=(4, 1), c=(0, 4))
    assert found == pytest.approx([1.05, 1.1125, 1.190625])


def test_fedfv_remembers_the_last_round():
    # One client at a time, 0 (-0.4), 1 (+0.34), 0 (...): with tau = 1 the past change opposes the
    # present one on the same line, so nothing is left of it; with tau = 0 it is applied.
    turns = [[0], [1], [0]]
    found = play(FedFV(tau=1), a=(4, 1), c=(0, 4), cohorts=turns)
    # round 2 opposes what client 1 sent in round 1, though that was not applied
    assert found == pytest.approx([0.6, 0.6, 0.6])
    found = play(FedFV(tau=0), a=(4, 1), c=(0, 4), cohorts=turns)
    assert found == pytest.approx([0.6, 0.94, 0.564])  # 0.6 + 0.34; 0.94 * 0.6


@pytest.mark.parametrize("short", [1e-154, 1e-158, 1e-162, 0])
def test_fedfv_never_projects_on_a_change_too_short_to_measure(short):
    # squares of 1e-308, below the smallest normal float, down to 0; reciprocals may overflow
    seen = told([0, 1], loss=[2, 1], changes=[[1, 0], [-short, 0]])
    assert FedFV(tau=0, alpha=0).weigh({}, seen).coef.tolist() == [0.5, 0.5]


def fair_average(g, loss, alpha, past):
    """FedFV on the vectors themselves; past: for each round, oldest first, what it kept."""
    order = np.argsort(loss)
    kept = set(order[math.ceil((len(g) - 1) * (1 - alpha)) :]) if alpha > 0 else set()
    fair = [v.copy() for v in g]
    for i in set(range(len(g))) - kept:
        for j in order:
            if j != i and fair[i] @ g[j] < 0:
                fair[i] -= fair[i] @ g[j] / (g[j] @ g[j]) * g[j]
    mean = np.mean(fair, axis=0)
    for vectors in past:
        against = sum((v for v in vectors if v @ mean < 0), start=np.zeros_like(mean))
        if against @ mean < 0:
            mean -= against @ mean / (against @ against) * against
    return mean / np.linalg.norm(mean) * np.linalg.norm(np.mean(g, axis=0))


@pytest.mark.parametrize("alpha", [0, 0.1, 0.5])
def test_fedfv_on_coefficients_equals_fedfv_on_vectors(alpha):
    rng = np.random.default_rng(0)
    for _ in range(20):
        g, old = rng.normal(size=(6, 9)), rng.normal(size=(8, 9))
        loss = rng.random(6)
        past = [(6 + k, 3 + k // 4, v) for k, v in enumerate(old)]  # four from each of rounds 3, 4
        seen = told(range(6), loss=loss, changes=g, n=14, t=5, past=past)
        found = FedFV(alpha=alpha, tau=2).weigh({}, seen).coef @ np.concatenate([g, old])
        assert np.allclose(found, fair_average(g, loss, alpha, [old[:4], old[4:]]), atol=1e-12)


def test_fedmaba_with_a_slack_ball():
    # eta_b = log 2, two clients, rho = 1 > log 2: p ~ p 2^F, mixed half and half with 1/2.
    # p = (1/3, 2/3), weights (5/12, 7/12): 1 + (-0.5 + 2.1)/12 = 17/15
    # F = 289/450, 507/450: odds 2 * 2^(218/450): p = (0.263290, 0.736710)
    # F = 0.782316, 0.841833: odds * 2^0.059517: p = (0.255366, 0.744634)
    found = play(FedMABA(eta_b=math.log(2), alpha=0.5))
    assert found == pytest.approx([17 / 15, 1.250852542024, 1.343472040792])


def test_fedmaba_on_the_boundary():
    # rho = 0.05: log 2 + x log x + (1 - x) log(1 - x) = 0.05 at x = 0.656781598365, and every
    # round ends there: weights (1 - x)/2 + 1/4 and x/2 + 1/4
    found = play(FedMABA(eta_b=math.log(2), alpha=0.5, rho=0.05))
    assert found == pytest.approx([1.131356319673, 1.234381950036, 1.315187202026])


def test_fedmaba_multiplier():
    # the free step has log odds log 2; the boundary x has 0.648984556646; their ratio is 1 + lambda
    strategy = FedMABA(eta_b=math.log(2), rho=0.05)
    decision = strategy.weigh(strategy.init(2), told([0, 1], loss=[0.5, 1.5], n=2))
    assert decision.state["p"] == pytest.approx([0.343218401635, 0.656781598365])
    assert decision.info["lambda"] == pytest.approx(0.068048805571)
    assert decision.info["kl"] == pytest.approx(0.05)


def test_fedmaba_server_step_and_sync():
    # four clients at 1/4; 0 and 1 answer with losses 0 and log 3 at eta_b = 1: phat = (1/4, 3/4).
    seen = told([0, 1], loss=[0, math.log(3)], n=4)
    strategy = FedMABA(eta_b=1, alpha=0.8, eta_s=0.5)
    coef, state, _ = strategy.weigh(strategy.init(4), seen)
    assert coef == pytest.approx([0.5 * (0.2 + 0.1), 0.5 * (0.6 + 0.1)])
    assert state["p"] == pytest.approx([1 / 8, 3 / 8, 1 / 4, 1 / 4])  # their own half, shared anew
    state = FedMABA(eta_b=1, sync="overwrite").weigh(strategy.init(4), seen).state
    assert state["p"] == pytest.approx([1 / 4, 3 / 4, 1 / 4, 1 / 4])


# traps in public code


def test_trap_afl_with_a_weight_per_slot():
    strategy = AFL(lam=0.1)
    state = strategy.init(4)
    state = strategy.weigh(state, told([0, 1], loss=[0, 2], n=4)).state
    # (0.25, 0.45, 0.25, 0.25) - 0.05
    assert state["lambda"] == pytest.approx([0.2, 0.4, 0.2, 0.2])
    # other clients in the same slots have weights of their own
    others = strategy.weigh(state, told([2, 3], loss=[0, 0], n=4))
    assert others.coef == pytest.approx([0.5, 0.5])
    again = strategy.weigh(others.state, told([1, 2], loss=[0, 0], n=4))
    assert again.coef == pytest.approx([2 / 3, 1 / 3])


def test_trap_qffl_with_the_first_rounds_step_size():
    # q = 1, F = 1, |change|^2 = 0.01: 1 / (1 + 0.01 / lr)
    for lr, step in ((0.1, 1 / 1.1), (0.01, 1 / 2)):
        coef = QFFL(q=1).weigh({}, told([0], loss=[1], changes=[[0.1]], lr=lr)).coef
        assert coef == pytest.approx([step])


def test_trap_qffl_powers_of_zero_and_of_large_losses():
    changes = [[1, 0], [0, 1]]
    cases = ((0.5, [0, 0]), (0.5, [0, 2]), (15, [1e6, 1e5]), (99, [1e-8, 1e-9]), (99, [1e6, 1e5]))
    for q, loss in cases:
        coef = QFFL(q=q).weigh({}, told([0, 1], loss=loss, changes=changes)).coef
        assert np.isfinite(coef).all()
        assert coef.sum() > 0


def test_trap_fedfv_history_that_is_the_present():
    # tau = 1: client 0 was seen in round 4 with (-1, 1), client 1 in round 3, client 2 is back.
    # (1, 0) off (-1, 1) = (1/2, 1/2), brought back to length 1: sqrt 2 (1, 1/2).
    past = [(0, 4, [-1, 1]), (1, 3, [-5, 0]), (2, 4, [-7, 0])]
    seen = told([2], loss=[1], changes=[[1, 0]], t=5, past=past)
    expected = [math.sqrt(2), math.sqrt(0.5), 0, 0]
    assert FedFV(tau=1).weigh({}, seen).coef == pytest.approx(expected)
    assert FedFV(tau=0).weigh({}, seen).coef == pytest.approx([1, 0, 0, 0])


def test_trap_fedmaba_average_by_size():
    seen = told([0, 1], loss=[1, 1], size=[1, 99], n=2)
    assert FedMABA().weigh(FedMABA().init(2), seen).coef == pytest.approx([0.5, 0.5])


def test_trap_fedmgda_change_of_zero():
    # (1/2, 1/2) on a zero vector and a unit one: all freedom goes to the zero vector
    coef = FedMGDA(epsilon=0.1).weigh({}, told([0, 1], changes=[[0, 0], [0, 2]])).coef
    assert coef == pytest.approx([0, 0.4 / 2])
    assert FedMGDA().weigh({}, told([0, 1], changes=[[0, 0], [0, 0]])).coef.tolist() == [0, 0]
