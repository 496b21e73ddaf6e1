"""FedMDFG: by hand, beside a loop from the paper, beside the authors' code, and at its limits."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedmaba.data.datasets import Dataset
from fedmaba.data.federation import Federation
from fedmaba.data.partition import Split
from fedmaba.simulation.engine import Plan, Run, simulate, start
from fedmaba.strategies import FedMDFG
from fedmaba.strategies.answers import call_search, call_weigh
from fedmaba.strategies.base import Replies
from fedmaba.strategies.descent import cosine
from plain_loop import PLAN, mlp, one, played

pytestmark = pytest.mark.usefixtures("few_threads")


# three rounds by hand, played by the simulator


def number(shape, classes):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return nn.Sequential(layer)


def half_square(out, y):
    return (out.flatten(1) - y.flatten(1)).square().sum(1) / 2


def two_clients():
    """Client A has the loss (w - 3)^2 / 2, client B the loss 4 (w - 2)^2 / 2; w begins at 1."""
    x, y = np.float32([[1], [2], [1], [2]]), np.float32([[3], [4], [3], [4]])
    data = Dataset("two", x, y, 4, (), task="regress")
    rows = np.arange(4)
    return Federation(
        data, Split((rows[:1], rows[1:2]), (rows[:0], rows[:0]), (rows[2:3], rows[3:]))
    )


def path_of(spec, rounds=3):
    """The server's number after each round, and what was recorded."""
    plan = Plan(rounds=rounds, minibatch=1, lr=0.1, lr_decay=1.0, dtype="float64")
    batch = start([Run(one(spec), 0, two_clients())], plan, number, half_square)
    shots = list(simulate(batch))
    assert batch.progress.diverged == [""]
    # the snapshots share one model, so the path comes from the weights: each scales a gradient
    w, path = 1.0, []
    for shot in shots:
        change = -0.1 * np.array([w - 3, 4 * (w - 2)])
        w += float(shot.rounds[0].weight @ change)
        path.append(w)
    assert w == pytest.approx(float(batch.progress.model[0, 0]), rel=1e-12)
    return path, [shot.rounds[0].info for shot in shots]


def test_three_rounds_by_hand():
    # s = 1: the first step tried is twice 0.1. Gradients -2 and -4, both scaled to -3: 1 + 0.6.
    # Losses fall from (2, 2) to (0.98, 0.32): taken. Gradients -1.4 and -1.6, mean 1.5: 1.6 + 0.3,
    # losses (0.605, 0.02). Gradients -1.1 and -0.4, mean 0.75: 1.9 + 0.15, (0.45125, 0.005).
    path, info = path_of("fedmdfg:theta=90,s=1")
    assert path == pytest.approx([1.6, 1.9, 2.05], rel=1e-12)
    assert [row["trials"] for row in info] == [1, 1, 1]
    # s = 5: 32, 16 and 8 times 0.1 lead to 10.6, 5.8 and 3.4, where client B's loss is above 2.
    # 4 times leads to 2.2: losses (0.32, 0.08). There the two pull apart, so the number stays.
    path, info = path_of("fedmdfg")
    assert path == pytest.approx([2.2, 2.2, 2.2], rel=1e-12)
    assert [(row["trials"], row["step_factor"]) for row in info] == [(4, 4), (0, 1), (0, 1)]
    # At 1.6 losses (0.98, 0.32) lie 26.9 degrees from equal ones: beyond 11.25. What evens them
    # out raises both, against both gradients: no direction serves all, and the number stays.
    path, info = path_of("fedmdfg:s=1")
    assert path == pytest.approx([1.6, 1.6, 1.6], rel=1e-12)


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


def test_a_loss_above_the_usual_one_brings_fairness_in():
    strategy, gradients = FedMDFG(theta=90.0), np.eye(2)
    state = strategy.init(10)
    fair, usual = [], []
    for loss in ([4, 2], [2, 1], [3.5, 3], [1, 1.2], [9, 9]):
        decision = call_weigh(strategy, state, told(loss, gradients))
        state = decision.state
        fair.append(decision.info["fair"])
        usual.append(state["usual"][:2].tolist())
    # Means 4, 3, then 3.5 > 3 does not count, (3 * 3 + 1) / 4; and 2, 1.5, then 3 > 1.5, 1.425.
    assert usual == [[4, 2], [3, 1.5], [3, 1.5], [2.5, pytest.approx(1.425)], usual[3]]
    assert fair == [0, 0, 0, 0, 0]  # in round 3, and in round 5, both are above
    assert call_weigh(strategy, state, told([9, 1], gradients)).info["fair"] == 1
    assert state["rounds"][:3].tolist() == [5, 5, 0]


def test_absent_clients_count_with_the_last_rounds_gradient_at_that_rounds_norm():
    strategy = FedMDFG(theta=90.0)
    state = call_weigh(strategy, strategy.init(10), told([1, 1], [[3, 0], [0, 5]], lr=0.2)).state
    assert state["norm"] == pytest.approx([4])
    # client 1 is absent: (0, 5) counts as (0, 4). Of (1, 0) and (0, 4) the shortest point is
    # (16, 4)/17: it gets the length of (1, 0), 1. The kept change is 0.2 times a gradient.
    later = told([1], [[1, 0]], past=[(1, np.array([0.0, 10.0]))], client=[0], t=1)
    coef = call_weigh(strategy, state, later).coef
    step = coef @ np.array([[1, 0], [0, 10.0]])
    assert step == pytest.approx(np.array([16, 4]) / np.hypot(16, 4))
    # Steps begin at the step size, not at 2^5 of it, as losses of absent clients are not known.
    decision = call_weigh(strategy, state, later)
    assert call_search(strategy, later, decision, []).factor == 1
    assert call_search(strategy, told([1], [[1, 0]]), decision._replace(coef=coef[:1]), []) == (
        32.0,
        False,
    )


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


def test_where_the_authors_code_takes_a_step_that_makes_losses_less_even():
    """It compares the angle after a step with one that it computes with a wrong norm."""
    clients = arrays([([3, 0.5, 3], [0, -1.5, 1.5], 0.0), ([0.5, 4, 3.5], [1, 0, 1], 1.0)])
    public = np.array([0.5508017782, -0.8250988572, 1.3549850145])  # of the same commit
    path, taken = quadratic_path(FedMDFG(), clients, [[0, 1]], BEGIN)
    assert taken == [2.0]
    np.testing.assert_allclose(2 * (path[0] - BEGIN), public - BEGIN, atol=1e-7)  # twice as long

    def even(at):
        return cosine(np.array([a @ (at - c) ** 2 / 2 + b for a, c, b in clients]))

    assert even(public) < even(BEGIN) < even(path[0])


# limits


def test_all_losses_fall_in_every_round_with_all_clients_and_small_steps(fed):
    """The claim of its Theorem 2, where the search may go far enough down."""
    plan = replace(PLAN, rounds=4, lr=0.05)
    _, shots = played(["fedmdfg:theta=90"], fed, plan, mlp)
    losses = np.array([shot.rounds[0].loss for shot in shots])
    assert (np.diff(losses, axis=0) < 0).all()


def test_a_client_alone_descends_its_own_gradient(fed):
    """One participant: its gradient, and steps as long as its loss allows."""
    now = told([2.0], [[3.0, 4.0]])
    decision = call_weigh(FedMDFG(), FedMDFG().init(3), now)
    assert decision.coef == pytest.approx([1.0])
    assert decision.info == {"fair": 0.0, "scale": pytest.approx(1.0)}


def test_gradients_of_any_norm_count_alike():
    """A client that multiplies what it sends changes the length of the step alone."""
    rng = np.random.default_rng(0)
    gradients, loss = rng.normal(size=(4, 9)), rng.gamma(2, 1, 4)
    plain = call_weigh(FedMDFG(), FedMDFG().init(9), told(loss, gradients)).coef @ gradients
    many = gradients * np.array([[1.0], [100.0], [1.0], [0.01]])
    lied = call_weigh(FedMDFG(), FedMDFG().init(9), told(loss, many)).coef @ many
    assert plain / np.linalg.norm(plain) == pytest.approx(lied / np.linalg.norm(lied))


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
