"""FedMDFG: by hand, beside a loop from the paper, beside the authors' code, and at its limits."""

import numpy as np
import pytest
import torch

from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.strategies import FedMDFG
from fedmaba.strategies.answers import call_search, call_weigh
from fedmaba.strategies.base import Replies
from fedmaba.strategies.descent import cosine
from plain_loop import one

pytestmark = pytest.mark.usefixtures("few_threads")


def told(loss, gradients, *, lr=0.1, past=(), client=None, n=10, t=0):
    """One round in numbers; `past` are (client, gradient) of the round before."""
    rows = -lr * np.array([*gradients, *(v for _, v in past)], np.float64)
    m = len(gradients)
    return Replies(
        round=t,
        lr=lr,
        n_clients=n,
        client=np.arange(m) if client is None else np.array(client),
        size=np.full(m, 5),
        loss=np.array(loss, np.float64),
        gram=rows @ rows.T,
        past_client=np.array([i for i, _ in past], np.int64),
        past_round=np.full(len(past), t - 1),
    )


def test_the_direction_that_evens_losses_out_by_hand():
    # Gradients (1, 0) and (0, 1), losses (1, 3): 26.6 degrees from equal ones. h is
    # (4/10 (1, 3) - 1) / |.| = (-0.6, 0.2) / 0.632456 = (-0.948683, 0.316228). The shortest point
    # is halfway from (1, 0) to h: (0.025658, 0.158114), of length 0.160182. It gets the length
    # 0.707107 of the mean gradient, so it is 4.414389 times as long.
    gradients = np.eye(2)
    decision = call_weigh(FedMDFG(), FedMDFG().init(10), told([1, 3], gradients))
    assert decision.coef @ gradients == pytest.approx([0.113265, 0.697976], abs=1e-6)
    assert decision.info == pytest.approx({"fair": 1.0, "scale": 4.414389}, abs=1e-6)
    # Within the angle both count alike.
    decision = call_weigh(FedMDFG(theta=30.0), FedMDFG().init(10), told([1, 3], gradients))
    assert decision.coef == pytest.approx([0.5, 0.5])
    assert decision.info == pytest.approx({"fair": 0.0, "scale": 1.0})


def test_what_is_taken_if_no_step_serves_all():
    strategy = FedMDFG(theta=90.0, s=1)
    now = told([2, 2], np.eye(2))
    decision = call_weigh(strategy, strategy.init(10), now)
    tried = []
    for factor, loss in ((2.0, [1, 4]), (1.0, [1, 2.5]), (0.5, [1.8, 2.1])):
        assert call_search(strategy, now, decision, tried) == (factor, False)
        tried.append((factor, np.array(loss)))
    # the first, so the longest, whose sum is below 4; else the one with the least sum
    assert call_search(strategy, now, decision, tried) == (1.0, True)
    tried = [(2.0, np.array([5, np.inf])), (1.0, np.array([3, 2])), (0.5, np.array([1.9, 3.2]))]
    assert call_search(strategy, now, decision, tried) == (1.0, True)


def test_a_loss_must_fall_by_a_share_of_what_its_gradient_promises():
    # g.d = 1/2 for both, so a step of 0.2 must bring 0.2 * 1e-4 / 2 = 1e-5.
    strategy, now = FedMDFG(theta=90.0, s=1), told([2, 2], np.eye(2))
    decision = call_weigh(strategy, strategy.init(10), now)
    for fall, taken in ((1.1e-5, True), (0.9e-5, False), (-0.9e-5, False)):
        after = [(2.0, np.array([1.0, 2 - fall]))]
        assert call_search(strategy, now, decision, after).take == taken


# beside the paper and the authors' code


def quadratic_path(strategy, clients, cohorts, w):
    """Rounds with losses 1/2 sum a (w - c)^2 + b, step size 0.1."""
    state, before, path, taken = strategy.init(len(clients)), {}, [], []
    for t, cohort in enumerate(cohorts):
        here = [clients[i] for i in cohort]

        def losses(at, here=here):
            return np.array([a @ (at - c) ** 2 / 2 + b for a, c, b in here])

        gradients = np.array([a * (w - c) for a, c, _ in here])
        past = [(i, v) for i, v in before.items() if i not in cohort]
        now = told(losses(w), gradients, past=past, client=cohort, n=len(clients), t=t)
        decision = call_weigh(strategy, state, now)
        step = decision.coef @ (-0.1 * np.array([*gradients, *(v for _, v in past)]))
        tried = []
        while not (found := call_search(strategy, now, decision, tried)).take:
            tried.append((found.factor, losses(w + found.factor * step)))
        w, state = w + found.factor * step, decision.state
        before = dict(zip(cohort, gradients, strict=True))
        path.append(w)
        taken.append(found.factor)
    return np.array(path), taken


# zibinpan/FedMDFG (MIT), commit ae862e5: FedMDFG.train_a_round on these clients, run apart in
# float64 with an exact solver in place of cvxopt.
FALLING = (
    [
        ([1.0, 3.0, 3.0], [0.5, -1.0, -1.5], 0.0),
        ([4.0, 3.0, 1.5], [-0.5, 1.0, 0.0], 0.25),
        ([4.0, 4.0, 1.0], [-1.5, -1.5, -1.0], 0.5),
    ],
    [
        [0.396810373, -1.8259180397, 0.9904135838],
        [-1.0638175421, -0.4978887641, -0.744903633],
        [-1.0151158923, -0.3151545456, -0.8843037621],
        [-0.9671463011, -0.3442601659, -0.8446828],
        [-0.9246113437, -0.3833344304, -0.7811094312],
    ],
    [2.0, 4.0, 1.0, 1.0, 0.25],
)
STUCK = (
    [
        ([4.0, 3.5, 3.0], [1.5, -1.0, -1.0], 0.0),
        ([3.5, 1.0, 2.5], [0.0, -0.5, 1.0], 0.25),
        ([2.5, 3.0, 0.5], [1.5, 1.0, -1.5], 0.5),
    ],
    [
        [0.7074784043, -0.0637141443, 0.0015495153],
        [0.7480567829, -0.0763912038, 0.0428884585],
        [0.7756703261, -0.085343842, 0.0728674196],
        [0.8025091511, -0.0918120932, 0.1042957933],
        [0.7963272695, -0.0901540063, 0.0974314349],
    ],
    [4.0, 1.0, 0.25, 0.25, 0.03125],
)
COHORTS = [[0, 1, 2], [0, 1, 2], [0, 1], [1, 2], [0, 2]]
BEGIN = np.array([2.0, -1.0, 1.0])


def arrays(clients):
    return [(np.array(a), np.array(c), b) for a, c, b in clients]


@pytest.mark.parametrize("case", [FALLING, STUCK], ids=["falling", "stuck"])
def test_the_numbers_of_the_authors_code(case):
    clients, want, factors = case
    path, taken = quadratic_path(FedMDFG(), arrays(clients), COHORTS, BEGIN)
    np.testing.assert_allclose(path, want, atol=1e-7)
    assert taken == factors


# limits


@pytest.mark.parametrize("gradients", [np.zeros((2, 3)), [[1, 0, 0], [-1, 0, 0]]])
def test_nothing_to_move_along_is_no_step_and_no_trial(gradients):
    now = told([1, 2], np.array(gradients, np.float64))
    decision = call_weigh(FedMDFG(), FedMDFG().init(10), now)
    assert decision.coef.tolist() == [0, 0]
    assert call_search(FedMDFG(), now, decision, []) == (1.0, True)


def test_equal_losses_and_losses_of_zero_have_no_angle():
    assert cosine(np.full(4, 2.0)) == pytest.approx(1)
    assert cosine(np.zeros(3)) == 1
    assert cosine(np.array([1.0, np.inf])) == -1
    assert call_weigh(FedMDFG(), FedMDFG().init(10), told([2, 2], np.eye(2))).info["fair"] == 0


@pytest.mark.parametrize("spec", ["fedmdfg", "fedsgd", "qffl:q=1,mode=sgd"])
def test_full_gradients_are_the_same_in_any_minibatches(spec, fed):
    models = []
    for minibatch in (3, 1000):
        plan = Plan(rounds=2, minibatch=minibatch, dtype="float64", eval_every=2)
        batch = start([Run(one(spec), 0, fed)], plan, "mlp1")
        *_, last = simulate(batch)
        models.append(last.progress.model)
    torch.testing.assert_close(*models, rtol=1e-12, atol=1e-12)
