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
from fedmaba.strategies import GIFAIR, AAggFF, AdaFed, DeltaFL, FedGini
from fedmaba.strategies.aaggff import cumulative
from fedmaba.strategies.base import Decision, Needs, Strategy
from fedmaba.strategies.combine import count_of_share
from fedmaba.strategies.krum import Krum, MultiKrum, krum_scores
from plain_loop import PLAN, Plain, apart, mlp, one, played, vector
from test_paper import play, told
from thread_ranks import on_two_ranks

pytestmark = pytest.mark.usefixtures("few_threads")
RNG = np.random.default_rng(0)

# three rounds by hand


def test_deltafl_by_hand():
    # theta = 1/2 of two equal clients: the worst alone. 1 + 0.3; at 1.3 losses (0.845, 0.735):
    # -0.13; at 1.17 losses (0.684, 1.033): +0.249
    assert play(DeltaFL(theta=0.5)) == pytest.approx([1.3, 1.17, 1.419])
    # theta = 0.8: 0.5/0.8 = 0.625 for the worst, 0.375 left; client 1 is the worst three times:
    # -0.0375 + 0.1875; -0.043125 + 0.159375; -0.047484375 + 0.137578125
    assert play(DeltaFL(theta=0.8)) == pytest.approx([1.15, 1.26625, 1.35634375])
    # sizes 1 and 3, theta = 1/2: client 1 has 3/4, so it takes all while it is worst
    assert play(DeltaFL(theta=0.5), size=(1, 3))[0] == pytest.approx(1.3)


def test_gifair_by_hand():
    # p = 1/2, lambda_max = 1/2, half of it: weights (1/4, 3/4), then the same, then (3/4, 1/4):
    # -0.025 + 0.225; -0.03 + 0.18; at 1.35 losses (0.911, 0.634): -0.10125 + 0.04875
    assert play(GIFAIR(lam=0.5)) == pytest.approx([1.2, 1.35, 1.2975])


def test_fedgini_by_hand():
    # epsilon = 0.2: weights 0.1 and 0.1 + 0.8. Client 1 is the worst: 1 - 0.01 + 0.27; at 1.26
    # losses (0.7938, 0.8214): -0.0126 + 0.1998; at 1.4472 losses (1.0472, 0.4584):
    # -0.130248 + 0.016584
    assert play(FedGini(epsilon=0.2)) == pytest.approx([1.26, 1.4472, 1.333536])


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


def test_aaggff_by_hand():
    # responses Phi(-1/2) = 0.3085375, Phi(1/2) = 0.6914625, mean 1/2; gradient -r/1.5;
    # log odds of p: sqrt(log 2)/(3 sqrt 2) * 0.382925/1.5 = 0.0500956, p = (0.4874787, 0.5125213)
    decision = AAggFF().weigh(AAggFF().init(2), told([0, 1], loss=[0.5, 1.5], n=2))
    assert decision.coef == pytest.approx([0.4874787, 0.5125213], abs=1e-7)
    # 1 - 0.0487479 + 0.1537564; then F = (0.6105219, 1.2015147), responses Phi(-+0.3261484), log
    # odds 0.0682146; then F = (0.7086066, 0.9830141), Phi(-+0.1622157), log odds 0.0709963
    assert play(AAggFF()) == pytest.approx([1.1050085, 1.1904676, 1.2587949], abs=1e-7)


def test_aaggff_silo_by_hand():
    # responses Phi(-+1/2)/2 = 0.1542687, 0.3457313; their mean is 1/4; g = -r/1.25 =
    # (-0.1234150, -0.2765850). With p = (1 - x, x), g'p changes by -0.1531700 for each x, and
    # g'(p - p_0) = -0.1531700 (x - 1/2), so
    # 4 (2 x - 1) + (1/2) 0.1531700^2 (x - 1/2) = 0.1531700: x - 1/2 = 0.0191182
    assert play(AAggFF(form="silo"))[0] == pytest.approx(1 + 0.1 + 0.4 * 0.0191182, abs=1e-7)


def test_adafed_by_hand():
    # Two weights, one client for each: x^2/2 and 3/2 (y - 2)^2 from (1, 1), step 0.1.
    # gamma = 1: changes over losses are (-0.2, 0.2), so half of each: (-0.1, 0.1);
    # then 0.09/0.405 = 0.27/1.215 = 0.2222222, half; then 0.2535211, half
    assert in_the_plane(AdaFed(gamma=1)) == pytest.approx(
        [0.9, 1.1, 0.7888889, 1.2111111, 0.6621283, 1.3378717], abs=1e-6
    )
    # gamma = 0: weights in proportion to 1/|change|^2: (0.9, 0.1); (0.910921, 0.089079);
    # (0.921418, 0.078582)
    assert in_the_plane(AdaFed(gamma=0)) == pytest.approx(
        [0.91, 1.03, 0.8271062, 1.055922, 0.7508952, 1.0781782], abs=1e-6
    )


def in_the_plane(strategy):
    w, path = np.ones(2), []
    for t in range(3):
        changes = np.diag([-0.1 * w[0], -0.3 * (w[1] - 2)])
        loss = [w[0] ** 2 / 2, 1.5 * (w[1] - 2) ** 2]
        w = (
            w
            + strategy.weigh({}, told([0, 1], loss=loss, changes=changes, n=2, t=t)).coef @ changes
        )
        path.append(w)
    return np.array(path).ravel().tolist()


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


def test_fedgini_orders_losses_unlike_the_public_copies():
    """The numbers of the docs: there one copy gives these weights to the other end."""
    found = FedGini().weigh({}, told(range(4), loss=[0.4, 0.1, 0.3, 0.2])).coef
    assert found == pytest.approx([0.425, 0.125, 0.275, 0.175])
    tied = FedGini().weigh({}, told(range(4), loss=[0.4, 0.1, 0.4, 0.1])).coef
    assert tied == pytest.approx([0.35, 0.15, 0.35, 0.15])


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


def test_whole_tails_and_no_penalty_are_fedavg(fed):
    plan = replace(PLAN, participants=3)
    specs = ["fedavg:weights=uniform", "fedgini:epsilon=1"]
    batch, _ = played(specs, fed, plan, mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12
    specs = ["fedavg", "deltafl:theta=1", "gifair:lam=0"]
    batch, _ = played(specs, fed, plan, mlp)
    for r in (1, 2):
        assert apart(batch.progress.model[r], batch.progress.model[0]) < 1e-12


def test_equal_losses_give_equal_weights():
    seen = told(range(4), loss=[2, 2, 2, 2], size=[5, 5, 5, 5], n=4)
    for strategy in (DeltaFL(theta=0.1), GIFAIR(), FedGini(), AAggFF(), AAggFF(form="silo")):
        coef = strategy.weigh(strategy.init(4), seen).coef
        assert coef == pytest.approx([0.25] * 4, abs=1e-9), strategy.name


def test_a_small_theta_is_the_worst_client():
    seen = told(range(3), loss=[1, 3, 2])
    assert DeltaFL(theta=1e-6).weigh({}, seen).coef.tolist() == [0, 1, 0]


def test_gifair_at_its_bound_leaves_no_weight_negative():
    coef = GIFAIR(lam=1).weigh({}, told(range(4), loss=[1, 2, 3, 4], size=[3, 5, 5, 5])).coef
    assert coef[0] == pytest.approx(0, abs=1e-15)
    assert (np.diff(coef) > 0).all()


@pytest.mark.parametrize(("form", "bound"), [("silo", 2.0), ("device", 3.0)])
def test_aaggffs_regret_on_constant_losses_grows_slower_than_the_rounds(form, bound):
    n, rounds, strategy = 5, 300, AAggFF(form=form)
    loss = np.array([0.5, 0.5, 1.0, 1.0, 4.0])
    r = cumulative("normal", loss / loss.mean()) / (n if form == "silo" else 1)
    state, regret = strategy.init(n), 0.0
    for t in range(rounds):
        regret += math.log(1 + r.max()) - math.log(1 + state["p"] @ r)  # the best fixed choice
        state = strategy.weigh(state, told(range(n), loss=loss, n=n, t=t)).state
    log = 1 + math.log(1 + rounds / (16 * n))
    assert 0 < regret < bound * (log if form == "silo" else math.sqrt(rounds * math.log(n)))


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


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("deltafl:theta=0", "theta"),
        ("deltafl:theta=1.1", "theta"),
        ("gifair:lam=1.1", "lam"),
        ("gifair:lam=-0.1", "lam"),
        ("fedgini:epsilon=1.1", "epsilon"),
        ("adafed:gamma=-1", "gamma"),
        ("adafed:eta=0", "eta"),
        ("aaggff:form=both", "form"),
        ("aaggff:cdf=uniform", "cdf"),
        ("fedadam:tau=0", "tau"),
        ("fedavgm:beta=1", "beta"),
    ],
)
def test_hyper_parameters_out_of_range_are_refused(spec, rule):
    with pytest.raises(InputError, match=f"{spec.partition(':')[0]}: {rule}="):
        one(spec)


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
