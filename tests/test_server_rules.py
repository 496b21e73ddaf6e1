"""Delta-FL, GIFAIR-FL, FedGini, AAggFF and AdaFed: by hand, beside formulas, at their limits.

Numbers by hand are of the clients of test_paper: losses w^2/2 and 3/2 (w - 2)^2, from w = 1, step
0.1: losses (1/2, 3/2), changes (-0.1, +0.3).
"""

import math
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
from scipy.optimize import linprog

from fedmaba.data.attack import Attack
from fedmaba.data.federation import attacked
from fedmaba.errors import InputError
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies import GIFAIR, AAggFF, AdaFed, DeltaFL, FedDGGA, FedExP, FedGini, MaxFL
from fedmaba.strategies.aaggff import cumulative
from fedmaba.strategies.base import Decision, Needs, Strategy
from fedmaba.strategies.combine import count_of_share
from fedmaba.strategies.krum import Krum, MultiKrum, krum_scores
from plain_loop import PLAN, Plain, apart, mlp, one, played, vector
from test_paper import told
from thread_ranks import on_two_ranks

pytestmark = pytest.mark.usefixtures("few_threads")
RNG = np.random.default_rng(0)

# three rounds by hand


def test_krum_by_hand():
    # On a line at 0, 1, 3, 4, 20 with f = 1, each change has 5 - 1 - 2 = 2 neighbours:
    # squared distances 1 + 9, 1 + 4, 1 + 4, 1 + 9, 256 + 289
    at = np.array([0.0, 1, 3, 4, 20])
    changes = told(range(5), changes=at[:, None], n=9)
    assert krum_scores(changes.gram, 1).tolist() == [10, 5, 5, 10, 545]
    assert Krum(share=0.2).weigh({}, changes).coef.tolist() == [0, 1, 0, 0, 0]  # the first of two
    assert MultiKrum(share=0.2).weigh({}, changes).coef.tolist() == [0.25] * 4 + [0]
    # f may be 1 of 5 at most, whatever the share; without attackers multi-krum is a plain mean
    assert Krum(share=0.49).weigh({}, changes).info == {"assumed": 1.0}
    assert MultiKrum(share=0).weigh({}, changes).coef.tolist() == [0.2] * 5
    for m in (1, 2):
        few = told(range(m), changes=at[:m, None], n=9)
        assert Krum().weigh({}, few).coef.sum() == 1


def test_krum_is_its_formula_on_random_changes():
    for m, share in ((7, 0.2), (10, 0.3), (12, 0.1)):
        v, f = RNG.normal(size=(m, 30)) + 5, int(share * m)
        scores = []
        for i in range(m):
            away = sorted(float(((v[i] - v[j]) ** 2).sum()) for j in range(m) if j != i)
            scores.append(sum(away[: m - f - 2]))
        seen = told(range(m), changes=v, n=20)
        assert Krum(share).weigh({}, seen).coef.argmax() == np.argmin(scores)
        best = np.argsort(scores)[: m - f]
        assert set(MultiKrum(share).weigh({}, seen).coef.nonzero()[0]) == {*best}


def test_a_share_of_a_cohort_is_rounded_down_as_a_person_would():
    assert [count_of_share(0.29, 100), count_of_share(0.1, 30), count_of_share(0.1, 9)] == [
        29,
        3,
        0,
    ]
    assert [count_of_share(0.49, 2), count_of_share(0.49, 3), count_of_share(0.0, 5)] == [0, 1, 0]


# beside the papers' own formulas


@pytest.mark.parametrize("theta", [0.1, 0.37, 0.8, 1.0])
def test_deltafl_maximises_over_weights_up_to_share_over_theta(theta):
    loss, size = RNG.gamma(2, 1, 9), RNG.integers(1, 30, 9)
    found = DeltaFL(theta=theta).weigh({}, told(range(9), loss=loss, size=size)).coef
    top = size / size.sum() / theta
    best = linprog(-loss, bounds=list(zip([0] * 9, top, strict=True)), A_eq=[[1] * 9], b_eq=[1])
    np.testing.assert_allclose(found, best.x, atol=1e-9)


def test_gifair_is_the_gradient_of_the_penalised_loss():
    loss, size = RNG.gamma(2, 1, 7), RNG.integers(5, 30, 7)
    share = size / size.sum()
    step = 0.6 * share.min() / 6
    found = GIFAIR(lam=0.6).weigh({}, told(range(7), loss=loss, size=size)).coef

    def penalised(f):
        return share @ f + step * sum(abs(f[i] - f[j]) for i in range(7) for j in range(i))

    slope = [(penalised(loss + h) - penalised(loss - h)) / 2e-7 for h in 1e-7 * np.eye(7)]
    np.testing.assert_allclose(found, slope, atol=1e-7)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_fedgini_gives_the_largest_weights_to_the_largest_losses(epsilon):
    """No other order of the same weights has a larger weighted loss."""
    loss, m = RNG.gamma(2, 1, 5), 5
    weights = [epsilon / m + (1 - epsilon) * j * (j - 1) / 40 for j in range(1, m + 1)]
    found = FedGini(epsilon=epsilon).weigh({}, told(range(m), loss=loss)).coef
    np.testing.assert_allclose(np.sort(found), weights, atol=1e-15)
    assert found @ loss == pytest.approx(max(np.dot(w, loss) for w in permutations(weights)))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_adafed_is_the_papers_orthogonalisation(gamma):
    g, loss = RNG.normal(size=(6, 30)), RNG.gamma(2, 1, 6)
    made = []
    for k in range(6):  # what remains of g_k, over what remains of F_k^gamma
        parts = [g[k] @ u / (u @ u) for u in made]
        rest = g[k] - sum(c * u for c, u in zip(parts, made, strict=True))
        made.append(rest / (loss[k] ** gamma - sum(parts)))
    inverse = np.array([1 / (u @ u) for u in made])
    direction = inverse / inverse.sum() @ np.array(made)
    found = AdaFed(gamma=gamma).weigh({}, told(range(6), loss=loss, changes=g)).coef @ g
    np.testing.assert_allclose(found, direction, rtol=1e-6, atol=1e-8)
    falls = g @ found / loss**gamma  # every loss falls, in proportion to F^gamma
    np.testing.assert_allclose(falls, falls.mean(), rtol=1e-6)
    assert falls.mean() > 0


@pytest.mark.parametrize("m", [3, 8])
def test_aaggff_device_is_the_papers_estimator(m):
    n, p, total = 8, np.full(8, 1 / 8), np.zeros(8)
    strategy = AAggFF(cdf="exponential")
    state = strategy.init(n)
    for t in range(5):
        who, loss = np.sort(RNG.choice(n, m, replace=False)), RNG.gamma(2, 1, m)
        coef, state, _ = strategy.weigh(state, told(who, loss=loss, n=n, t=t))
        share = m / n
        r = dict(zip(who, share * (1 - np.exp(-loss / loss.mean())), strict=True))
        mean = sum(r.values()) / m
        robust = [mean + (r[i] - mean) / share if i in r else mean for i in range(n)]
        around = 1 + sum(p) * mean
        lean = sum(p[i] * (robust[i] - mean) for i in range(n)) * mean / around**2
        total = total + [lean - robust[i] / around for i in range(n)]
        p = np.exp(-total * math.sqrt(math.log(n)) / ((2 + share) * math.sqrt(t + 2)))
        p = p / p.sum()
        np.testing.assert_allclose(coef, p[who] / p[who].sum(), rtol=1e-12)


def test_aaggff_silo_is_the_online_newton_step():
    n, strategy = 5, AAggFF(form="silo")
    state, seen, p = strategy.init(n), [], np.full(n, 1 / n)
    for t in range(60):
        loss = np.array([0.1, 0.2, 0.2, 0.3, 5.0]) * RNG.uniform(0.9, 1.1, n)
        coef, state, _ = strategy.weigh(state, told(range(n), loss=loss, n=n, t=t))
        r = cumulative("normal", loss / loss.mean()) / n
        seen.append((-r / (1 + p @ r), p))
        p = coef
        slope = 4 * p + sum(g + n / 4 * (g @ (p - q)) * g for g, q in seen)
        np.testing.assert_allclose(slope[p > 1e-9], slope.min(), atol=1e-7)  # optimal there
    assert p[-1] > 0.9
    assert (p < 1e-9).any()


def test_aaggff_silo_in_the_simulator_is_that_of_a_plain_loop(fed):
    batch, _ = played(["aaggff:form=silo"], fed, PLAN, mlp)
    want = Plain(one("aaggff:form=silo"), 3, fed, PLAN, mlp).run()
    assert apart(vector(batch, batch.progress.model[0]), want.path[-1]) < 1e-9


# limits


def test_distribution_functions_rise_from_0_to_1():
    x = np.linspace(0, 40, 500)
    for kind in ("normal", "weibull", "exponential", "frechet", "gumbel", "logistic"):
        found = cumulative(kind, x)
        assert (np.diff(found) >= 0).all(), kind
        assert 0 <= found[0] < 0.3, kind
        assert 0.97 < found[-1] <= 1, kind


def test_the_form_for_all_clients_refuses_a_part_and_new_ones():
    strategy = AAggFF(form="silo")
    with pytest.raises(InputError, match="needs all 4 clients in every round, and 2 answered: use"):
        strategy.weigh(strategy.init(4), told([0, 1], loss=[1, 2], n=4))
    with pytest.raises(InputError, match="is for a fixed number of clients: use form=device"):
        strategy.join(strategy.init(4), 5)


# losses at two moments


@dataclass(frozen=True)
class Gains(Strategy):
    """equal weights; records what clients told of their losses"""

    name = "gains"
    asks: str = "start"
    after: bool = True

    def needs(self):
        return Needs(self.asks, loss_after=self.after)

    def weigh(self, state, replies):
        told = {} if replies.loss is None else {"loss": replies.loss}
        told |= {"after": replies.loss_after} if self.after else {}
        return Decision(
            np.full(len(replies.client), 1 / len(replies.client)),
            state,
            {f"{name}{i}": v for name, values in told.items() for i, v in enumerate(values)},
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_strategy_sees_losses_before_and_after_training(ranks, fed):
    plan = replace(PLAN, participants=3, chunk=2)
    both = [Gains(), Gains("mean"), Gains("start", after=False), Gains("end", after=False)]

    def begin():
        return start([Run(s, 3, fed) for s in both], plan, mlp)

    if ranks == 2:
        on_two_ranks(begin)
        return
    for shot in simulate(begin()):
        start_too, mean_too, before, after = (r.info for r in shot.rounds)
        for i in range(3):
            assert start_too[f"loss{i}"] == pytest.approx(before[f"loss{i}"], rel=1e-12)
            assert start_too[f"after{i}"] == pytest.approx(after[f"loss{i}"], rel=1e-12)
            assert mean_too[f"after{i}"] == pytest.approx(after[f"loss{i}"], rel=1e-12)
            assert before[f"loss{i}"] != after[f"loss{i}"]


def test_the_same_loss_is_not_asked_for_twice():
    with pytest.raises(InputError, match="loss='end' is the same number"):
        Needs("end", loss_after=True)


@pytest.mark.parametrize("asks", ["start", "none"])
def test_who_lies_of_its_loss_lies_of_that_after_training_too(asks, fed):
    hostile = attacked({3: fed}, Attack(times=3.0), 0.4)[3]
    runs = [Run(Gains(asks), 3, one_fed) for one_fed in (fed, hostile)]
    plan = replace(PLAN, rounds=1)
    true, told = (next(simulate(start([run], plan, mlp))).rounds[0].info for run in runs)
    for i, lies in enumerate(hostile.hostile.who):
        assert told[f"after{i}"] == pytest.approx(true[f"after{i}"] * (3 if lies else 1))


def test_fedexp_by_hand():
    # changes (1, 0) and (-0.6, 0.8): |mean|^2 = 0.2, mean of squares 1, so 1 / (2 (0.2 + 0.05)) = 2
    rows = np.array([[1.0, 0.0], [-0.6, 0.8]])
    decision = FedExP(epsilon=0.05).weigh({}, told([0, 1], changes=rows))
    assert decision.info["length"] == pytest.approx(2.0)
    assert decision.coef.tolist() == pytest.approx([1.0, 1.0])
    # by size (1/4, 3/4): mean (-0.2, 0.6), square 0.4
    sized = FedExP(epsilon=0.1, weights="size")
    uneven = told([0, 1], changes=rows, size=[5, 15])
    assert sized.weigh({}, uneven).coef == pytest.approx([0.25, 0.75])  # 1 / (2 * 0.5)
    one = np.ones((3, 4))
    for same in (one, 0 * one, 1e-200 * one):  # no step is shorter than the mean
        for epsilon in (0.0, 1e-3):
            coef = FedExP(epsilon=epsilon).weigh({}, told(range(3), changes=same)).coef
            assert coef.tolist() == [1 / 3] * 3
    apart = np.array([[1.0], [-1.0]])
    assert np.isfinite(FedExP(epsilon=0).weigh({}, told([0, 1], changes=apart)).coef).all()


def test_maxfl_weighs_most_whom_it_nearly_contents():
    # gaps 0, log 3, -log 3 and 800: sigmoid 1/2, 3/4, 1/4 and 1, so q = 4/16, 3/16, 3/16 and 0
    rule, loss = MaxFL(eta=2.0, epsilon=0.375), np.array([2.0, 2 + math.log(3), 1.0, 802.0])
    alone = np.array([2.0, 2.0, 1 + math.log(3), 2.0])
    seen = replace(told(range(4), loss=loss), alone=alone)
    decision = rule.weigh(rule.init(4), seen)
    assert decision.coef == pytest.approx([0.5, 0.375, 0.375, 0.0])  # over 10/16 + 6/16
    assert decision.info["content"] == 0.5
    # the least loss alone counts, whichever round it was told in
    later = replace(seen, alone=alone + np.array([5.0, 5, 5, -1]))
    assert rule.weigh(decision.state, later).state["asked"].tolist() == [*alone[:3], 1.0]
    assert rule.join(decision.state, 5)["told"].tolist() == [1, 1, 1, 1, 0]


def test_feddgga_by_hand():
    # gaps (0.1, 0.5, 0.3) have mean 0.3: centred over the largest -1, 1, 0; d/N of half the rounds
    rule = FedDGGA(d=0.6, rounds=4)
    state = {"a": np.full(3, 1 / 3), "own": np.array([0.9, 0.5, 0.7]), "told": np.ones(3)}
    seen = replace(told(range(3), loss=np.ones(3), t=2), loss_after=np.array([0.2, 0.3, 0.4]))
    decision = rule.weigh(state, seen)
    assert decision.coef == pytest.approx([1 / 3 - 0.1, 1 / 3 + 0.1, 1 / 3])
    assert decision.state["own"].tolist() == [0.2, 0.3, 0.4]
    # after the last of its rounds nothing moves, and equal gaps move nothing
    late = rule.weigh(state, replace(seen, round=9))
    assert late.coef == pytest.approx([1 / 3] * 3)
    even = rule.weigh(state | {"own": np.full(3, 0.5)}, seen)
    assert even.coef == pytest.approx([1 / 3] * 3)
    # a client of which no own model is known moves as the mean of the others
    some = rule.weigh(state | {"told": np.array([1.0, 1, 0])}, seen)
    assert some.coef == pytest.approx([1 / 3 - 0.1, 1 / 3 + 0.1, 1 / 3])
    # weights end at 0 and sum to 1; a cohort without any weight is averaged
    harsh = rule.weigh(state | {"a": np.array([0.05, 0.9, 0.05])}, seen)
    assert harsh.coef[0] == 0
    assert harsh.coef.sum() == pytest.approx(1)
    gone = replace(told([0, 2], loss=[1, 1], n=3, t=9), loss_after=np.ones(2))
    assert rule.weigh(state | {"a": np.array([0, 1.0, 0])}, gone).coef.tolist() == [0.5, 0.5]
    grown = rule.join(state, 4)
    assert grown["a"] == pytest.approx([0.25] * 4)
    assert grown["told"].tolist() == [1, 1, 1, 0]


def test_fedvarp_with_all_clients_is_the_plain_mean(fed):
    batch, _ = played(["fedavg:weights=uniform", "fedvarp"], fed, PLAN, mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12


def test_aaggff_says_which_form_its_paper_has_where_all_take_part():
    assert "all clients take part" in AAggFF().doubts(5, 5)[0]
    assert not AAggFF().doubts(5, 4)
    assert not AAggFF(form="silo").doubts(5, 5)
