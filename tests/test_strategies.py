"""Every registered strategy keeps the contract, has the limits its paper implies, and stays finite.

`Bench` plays the server's side of a round: changes of random clients, the inner products that
`needs()` asks for and nothing else, and changes kept for `keep_rounds`, one per client.
"""

import copy
import dataclasses
import io
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.strategies import AFL, TERM, FedAvg, FedFV, FedMABA, FedMGDA, FedProx, PropFair
from fedmaba.strategies import QFFL as QFedAvg
from fedmaba.strategies.base import Local, Replies, Strategy
from fedmaba.strategies.simplex import kl_uniform

NAMES = [name for name, kind in strategies.REGISTRY.items() if "fedmaba." in kind.__module__]
SPECS = [
    *NAMES,
    "fedavg:weights=uniform",
    "qffl:q=5",
    "qffl:q=0.5,mode=sgd",
    "afl:lam=0.5",
    "term:T=0.5,normalise=reference",
    "fedmgda:epsilon=1,eta=0.5,decay=0.9",
    "propfair:M=0.2,below=scaled",
    "fedfv:alpha=0,tau=3",
    "fedmaba:alpha=0.8,eta_b=1,rho=0.3,eta_s=0.5,loss_at=mean",
    "fedmaba:ball=global,loss_at=end",
    "fedmaba:sync=overwrite",
    "fedmaba:trust=usual",
]
DOCS = Path(__file__).parents[1] / "docs" / "algorithms"
quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)

every = pytest.mark.parametrize("spec", SPECS)


def one(spec: str) -> Strategy:
    """The strategy a specification without lists stands for."""
    (strategy,) = strategies.parse(spec)
    return strategy


def replies(strategy: Strategy, client, loss, changes, *, n=100, t=0, past=(), size=None):
    """What the server tells the strategy: only what it needs, and read-only."""
    needs, client = strategy.needs(), np.asarray(client, dtype=np.int64)
    rows = np.array([*changes, *(change for _, _, change in past)], dtype=np.float64)
    gram = rows @ rows.T
    told = Replies(
        round=t,
        lr=0.1 * 0.999**t,
        n_clients=n,
        client=client,
        size=10 + client % 7 if size is None else np.asarray(size),
        loss=None if needs.loss == "none" else np.asarray(loss, dtype=np.float64).copy(),
        norms=gram.diagonal()[: len(client)].copy() if needs.changes != "none" else None,
        gram=gram if needs.changes == "gram" else None,
        past_client=np.array([c for c, _, _ in past], dtype=np.int64) if past else None,
        past_round=np.array([r for _, r, _ in past], dtype=np.int64) if past else None,
    )
    for value in vars(told).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return told


class Bench:
    """A federation of n clients with random losses and changes, m of which answer each round."""

    def __init__(self, strategy: Strategy, n: int = 12, m: int = 5, seed: int = 0) -> None:
        self.strategy, self.n, self.m = strategy, n, m
        self.rng, self.t, self.kept = np.random.default_rng(seed), 0, {}

    def round(self) -> Replies:
        client = np.sort(self.rng.choice(self.n, self.m, replace=False))
        changes = self.rng.normal(size=(self.m, 20)) * self.rng.uniform(0.5, 2, (self.m, 1))
        loss = self.rng.gamma(2.0, 1.0, self.m)
        past = []
        if keep := self.strategy.needs().keep_rounds:
            past = [(c, r, v) for c, (r, v) in self.kept.items() if r >= self.t - keep]
            past = [entry for entry in past if entry[0] not in client]
        told = replies(self.strategy, client, loss, changes, n=self.n, t=self.t, past=past)
        self.kept |= {c: (self.t, v) for c, v in zip(client, changes, strict=True)}
        self.t += 1
        return told


def same(x, y) -> bool:
    """Equal coefficients and states, bit for bit."""
    return x.coef.tolist() == y.coef.tolist() and all(
        np.array_equal(x.state[k], y.state[k]) for k in x.state | y.state
    )


# contract


@every
@pytest.mark.parametrize(("n", "m"), [(12, 5), (100, 10), (8, 8), (5, 1)])
def test_coefficients_are_finite_and_sum_to_the_total(spec, n, m):
    strategy = one(spec)
    bench, state = Bench(strategy, n, m), strategy.init(n)
    for _ in range(6):
        told = bench.round()
        coef, state, info = strategy.weigh(state, told)
        rows = m if told.past_client is None else m + len(told.past_client)
        assert coef.dtype == np.float64
        assert coef.shape in {(m,), (rows,)}
        assert np.isfinite(coef).all()
        assert all(isinstance(v, float) for v in info.values())
        if strategy.total() is not None:
            assert coef.sum() == pytest.approx(strategy.total(), abs=1e-12)


@every
def test_order_of_the_participants_does_not_matter(spec):
    strategy = one(spec)
    bench, state = Bench(strategy), strategy.init(12)
    for _ in range(4):
        told = bench.round()
        rows = len(told.gram) if told.gram is not None else bench.m
        order = bench.rng.permutation(bench.m)
        full = np.concatenate([order, np.arange(bench.m, rows)])
        moved = dataclasses.replace(
            told,
            client=told.client[order],
            size=told.size[order],
            loss=None if told.loss is None else told.loss[order],
            norms=None if told.norms is None else told.norms[order],
            gram=None if told.gram is None else told.gram[np.ix_(full, full)],
        )
        straight, turned = strategy.weigh(state, told), strategy.weigh(state, moved)
        assert np.allclose(turned.coef, straight.coef[full[: len(straight.coef)]], atol=1e-7)
        for key in straight.state:
            assert np.allclose(turned.state[key], straight.state[key], atol=1e-9)
        state = straight.state


@every
def test_state_survives_a_file(spec):
    strategy = one(spec)
    bench, state = Bench(strategy), strategy.init(12)
    for _ in range(3):
        state = strategy.weigh(state, bench.round()).state
        assert all(v.dtype == np.float64 for v in state.values())
        file = io.BytesIO()
        np.savez(file, **state)
        file.seek(0)
        loaded = dict(np.load(file, allow_pickle=False))
        told = bench.round()
        assert same(strategy.weigh(loaded, told), strategy.weigh(state, told))


@every
def test_weigh_is_pure(spec):
    strategy = one(spec)
    bench, state = Bench(strategy), strategy.init(12)
    for _ in range(3):
        told, before = bench.round(), copy.deepcopy(state)
        for value in state.values():
            value.flags.writeable = False  # the replies are read-only already
        first, second = strategy.weigh(state, told), strategy.weigh(state, told)
        assert same(first, second)
        assert all(np.array_equal(state[k], before[k]) for k in before)
        state = first.state


@every
def test_what_is_needed_and_missing_is_named(spec):
    strategy = one(spec)
    needs = strategy.needs()
    told = Bench(strategy).round()
    for wanted, field in ((needs.loss, "loss"), (needs.changes, needs.changes)):
        if wanted != "none":
            with pytest.raises(InputError, match=field):
                strategy.weigh(strategy.init(12), dataclasses.replace(told, **{field: None}))


@every
def test_hyper_parameters_are_frozen(spec):
    strategy = one(spec)
    for field in dataclasses.fields(strategy):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(strategy, field.name, 0)


@every
def test_label_parses_back(spec):
    strategy = one(spec)
    assert one(strategy.label()) == strategy


def test_label_keeps_every_digit():
    for value in (0.12345678, 1 / 3, 1e-7):
        strategy = FedMABA(alpha=value)
        assert one(strategy.label()) == strategy


def test_labels_say_only_what_differs():
    assert FedMABA().label() == "fedmaba"
    assert FedMABA(alpha=0.8, sync="overwrite").label() == "fedmaba:alpha=0.8,sync=overwrite"


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_documented(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in index
    for field in dataclasses.fields(strategies.REGISTRY[name]):
        assert f"`{field.name}`" in page
        assert f"`{field.name}`" in index or f"`{field.name}=" in index


def test_description_has_a_line_for_each_strategy():
    rows = {name: (params, line) for name, line, params in strategies.describe()}
    assert set(NAMES) <= set(rows)
    assert all(line and "\n" not in line for _, line in rows.values())
    assert rows["fedprox"][0] == "mu=0.1"
    assert "ball=cohort|global|literal" in rows["fedmaba"][0]


# parsing


def test_lists_are_a_grid():
    found = strategies.parse("fedmaba:alpha=[0.1, 0.5],eta_b=[1,0.5],sync=overwrite")
    assert [(s.alpha, s.eta_b, s.sync) for s in found] == [
        (a, e, "overwrite") for a in (0.1, 0.5) for e in (1.0, 0.5)
    ]
    assert strategies.parse("qffl:mode=[avg,sgd]") == [QFedAvg(mode="avg"), QFedAvg(mode="sgd")]
    assert strategies.parse("fedfv:tau=2") == [FedFV(tau=2)]
    assert type(one("qffl:q=1").q) is float


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedmba", "unknown strategy 'fedmba': did you mean 'fedmaba'?"),
        ("zzz", "choose one of afl, fedavg"),
        ("", "unknown strategy ''"),
        ("fedmaba:alph=1", "did you mean 'alpha'?"),
        ("fedsgd:mu=1", "fedsgd has no hyper-parameters"),
        ("fedmaba:alpha=1.5", "alpha=1.5: give a finite number of at least 0 and at most 1"),
        ("fedmaba:alpha=[0.5,1.5]", "alpha=1.5"),
        ("fedmaba:alpha=-0.1", "at least 0"),
        ("fedmaba:alpha=nan", "alpha=nan: give a finite number"),
        ("fedmaba:eta_b=inf", "eta_b=inf: give a finite number"),
        ("fedmaba:eta_b=" + "9" * 400, "give a finite number"),
        ("fedmaba:eta_s=0", "above 0"),
        ("fedmaba:alpha=half", "alpha='half'"),
        ("fedmaba:alpha=true", "alpha='true'"),
        ("fedmaba:alpha", "is not key=value"),
        ("fedmaba:alpha=", "is not key=value"),
        ("fedmaba:=1", "is not key=value"),
        ("fedmaba:,", "is not key=value"),
        ("fedmaba:alpha=0.1,alpha=0.2", "given twice"),
        ("fedmaba:alpha=[0.1,0.2", "brackets do not match"),
        ("fedmaba:alpha=0.1]", "brackets do not match"),
        ("fedmaba:alpha=[[0.1]]", "brackets do not match"),
        ("fedmaba:alpha=[]", "alpha=''"),
        ("fedmaba:sync=half", "choose one of mass, overwrite"),
        ("fedmaba:sync=1", "choose one of mass, overwrite"),
        ("fedmaba:ball=global,sync=overwrite", "use sync=mass"),
        ("fedfv:tau=1.5", "give a whole number"),
        ("fedfv:tau=-1", "of at least 0"),
        ("propfair:M=0", "above 0"),
        ("fedmaba:a\nb=1,a\nb=2", "given twice"),
    ],
)
def test_a_wrong_specification_is_one_line(spec, message):
    with pytest.raises(InputError) as caught:
        strategies.parse(spec)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def test_numbers_are_checked_in_python_too():
    for wrong in (True, "0.5", None, float("nan"), 10**30):
        with pytest.raises(InputError, match="alpha"):
            FedMABA(alpha=wrong)


def test_a_taken_name_is_refused():
    class Mine(FedAvg):
        name = "fedavg"

    assert strategies.register(FedAvg) is FedAvg
    with pytest.raises(InputError, match="3 is no class of strategies"):
        strategies.register(3)
    with pytest.raises(InputError, match="registered already"):
        strategies.register(Mine)


# limits: each algorithm's neutral hyper-parameter is plain averaging


def coefficients(strategy: Strategy, rounds: int = 5, n: int = 12, m: int = 5) -> list[np.ndarray]:
    """Coefficients of some random rounds on the participants."""
    bench, state, found = Bench(strategy, n, m), strategy.init(n), []
    for _ in range(rounds):
        coef, state, _ = strategy.weigh(state, bench.round())
        found.append(coef[:m])
    return found


@pytest.mark.parametrize(
    "strategy",
    [
        QFedAvg(q=0),
        TERM(T=0),
        TERM(T=1e-12),
        AFL(lam=0),
        FedMABA(eta_b=0),
        FedMABA(rho=0),
        FedFV(alpha=1, tau=0),
    ],
    ids=lambda s: s.label(),
)
def test_neutral_hyper_parameters_give_the_uniform_average(strategy):
    for coef in coefficients(strategy):
        assert np.allclose(coef, 1 / 5, rtol=0, atol=1e-12)


def test_fedmaba_without_its_bandit_part_is_the_average_bit_for_bit():
    expected = coefficients(FedAvg(weights="uniform"))
    found = coefficients(FedMABA(alpha=0))
    assert [c.tolist() for c in found] == [c.tolist() for c in expected]


def test_fedfv_looks_at_the_rounds_there_were():
    far, all_of_them = coefficients(FedFV(tau=10**12)), coefficients(FedFV(tau=100))
    assert [c.tolist() for c in far] == [c.tolist() for c in all_of_them]


def test_a_hyper_parameter_may_be_of_any_type(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Mine(Strategy):
        """of one's own"""

        name = "mine"
        most: int | None = None
        several: tuple[int, ...] = (1, 2)
        rule: Literal["a", "b"] = "a"

    assert Mine(most=3, several=(5,)).label() == "mine:most=3,several=(5,)"
    with pytest.raises(InputError, match="rule='c': choose one of a, b"):
        Mine(rule="c")
    monkeypatch.setitem(strategies.REGISTRY, "mine", Mine)
    assert ("mine", "of one's own", "most=None, several=(1, 2), rule=a|b") in strategies.describe()


def test_fedprox_without_its_term_is_fedavg():
    assert FedProx(mu=0).local() == Local() == FedAvg().local()
    assert FedProx(mu=0.3).local() == Local(prox=0.3)
    same_rule = zip(coefficients(FedProx(mu=0)), coefficients(FedAvg()), strict=True)
    assert all(x.tolist() == y.tolist() for x, y in same_rule)


def test_reference_form_of_term_is_a_fraction_of_the_average():
    sums = [c.sum() for c in coefficients(TERM(T=0, normalise="reference"), rounds=40)]
    assert sums[:3] == pytest.approx([2 / 5, 4 / 15, 8 / 35])  # the average starts at 0
    assert sums[-1] == pytest.approx(1 / 5, rel=1e-9)


def test_qffl_takes_a_loss_of_zero_for_a_tenth_of_a_billionth():
    told = replies(QFedAvg(q=1), [0, 1], [0.0, 1e-5], np.zeros((2, 3)))
    assert QFedAvg(q=1).weigh({}, told).coef == pytest.approx([1e-5, 1], rel=2e-5)


def test_qffl_takes_no_step_where_the_step_size_has_vanished():
    for lr, norm, want in ((0.0, 1.0, 0.0), (1e-320, 1.0, 0.0), (0.0, 0.0, 0.5)):
        told = replies(QFedAvg(q=0.1), [0, 1], [1.0, 1.0], np.full((2, 1), norm))
        assert QFedAvg(q=0.1).weigh({}, dataclasses.replace(told, lr=lr)).coef == pytest.approx(
            [want] * 2
        )


def test_afl_weighs_a_cohort_without_mass_alike_whatever_its_sizes():
    strategy = AFL()
    told = replies(strategy, [0, 1], [1.0, 2.0], np.zeros((2, 3)), n=3, size=[10, 90])
    assert strategy.weigh({"lambda": np.array([0.0, 0, 1])}, told).coef.tolist() == [0.5, 0.5]


def test_qffl_never_steps_further_than_the_average():
    for q in (0.1, 1, 15):
        assert all(0 < c.sum() <= 1 + 1e-12 for c in coefficients(QFedAvg(q=q)))


def test_fedmgda_without_freedom_averages_normalised_changes():
    strategy = FedMGDA(epsilon=0, eta=0.5, decay=0.9)
    changes = np.array([[3.0, 0.0], [0.0, 4.0]])
    told = replies(strategy, [0, 1], None, changes, t=2, size=[1, 3])
    # 0.5 * 0.9^2 * (1/4, 3/4) / (3, 4)
    assert strategy.weigh({}, told).coef == pytest.approx([0.03375, 0.0759375])


def test_propfair_with_equal_bounds_is_a_scaled_loss():
    bend = PropFair(M=0.2, epsilon=0.2).local().loss
    assert bend.slope == 5.0  # M - loss < epsilon for every positive loss: always the slope


# FedMABA


def plain(n: int, client, loss, t: int = 0) -> Replies:
    """A round of losses alone."""
    return replies(FedMABA(), client, loss, np.zeros((len(client), 1)), n=n, t=t)


def weights(state: dict, told: Replies, **keys) -> np.ndarray:
    """The bandit's weights themselves: alpha = 1."""
    return FedMABA(alpha=1, **keys).weigh(state, told).coef


losses = some.lists(some.floats(0, 1e6), min_size=2, max_size=10)


@quick
@given(losses, some.floats(0.01, 2), some.floats(-10, 10), some.floats(1e-3, 1e3))
def test_fedmaba_weights_follow_the_losses(loss, rho, shift, scale):
    n = len(loss)
    who, start = range(n), FedMABA().init(n)
    loss = np.array(loss)
    found = weights(start, plain(n, who, loss), rho=rho)
    assert (np.diff(found[np.argsort(loss)]) >= -1e-15).all()
    assert np.allclose(weights(start, plain(n, who, loss + shift), rho=rho), found, atol=1e-6)
    scaled = {"p": start["p"] * scale}
    assert np.allclose(weights(scaled, plain(n, who, loss), rho=rho), found, atol=1e-6)
    assert np.allclose(weights(start, plain(n, who, np.full(n, loss[0]))), 1 / n, atol=1e-12)


@pytest.mark.parametrize("eta_b", [0.1, 0.5, 1.0])
def test_constant_losses_settle_where_the_ball_says_whatever_the_step(eta_b):
    n, rho = 20, 1.0
    loss = np.random.default_rng(0).gamma(2.0, 1.0, n)
    strategy, told = FedMABA(eta_b=eta_b, rho=rho), plain(n, range(n), loss)
    state = strategy.init(n)
    for _ in range(1500):
        _, state, info = strategy.weigh(state, told)
    p = state["p"]
    assert kl_uniform(p) == pytest.approx(rho, abs=1e-10)
    # p ~ exp(F / tau): log p is linear in F, with tau = lambda / eta_b
    slope, at_zero = np.polyfit(loss, np.log(p), 1)
    assert np.allclose(np.log(p), at_zero + slope * loss, atol=1e-8)
    assert 1 / slope == pytest.approx(info["lambda"] / eta_b, rel=1e-8)
    tau = 1 / slope
    logs = loss / tau - np.log(np.exp(loss / tau).mean())
    assert (np.exp(logs) * logs).mean() == pytest.approx(rho, abs=1e-8)  # the same tau for each


def play(strategy: FedMABA, n: int, m: int, rounds: int, seed: int = 0):
    """Decisions and cohorts of many rounds with random losses."""
    rng, state = np.random.default_rng(seed), strategy.init(n)
    for t in range(rounds):
        who = np.sort(rng.choice(n, m, replace=False))
        decision = strategy.weigh(state, plain(n, who, rng.gamma(1.0, 3.0, m), t))
        state = decision.state
        yield who, decision


@pytest.mark.parametrize("sync", ["mass", "overwrite"])
@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_cohort_ball_bounds_the_weights_of_each_round(sync, rho):
    bound = 0
    for who, decision in play(FedMABA(alpha=1, rho=rho, sync=sync), 100, 10, 100):
        assert kl_uniform(decision.coef) <= rho + 1e-9
        bound += decision.info["lambda"] > 0
        assert len(who) == 10
    assert bound > 20


def test_mass_stays_one_unless_it_is_overwritten():
    sums = [d.state["p"].sum() for _, d in play(FedMABA(), 100, 10, 100)]
    assert sums == pytest.approx([1.0] * 100, abs=1e-12)
    grown = [d.state["p"].sum() for _, d in play(FedMABA(sync="overwrite"), 100, 10, 100)]
    assert grown[0] == pytest.approx(1.9)  # 1 for the cohort, 0.9 for the others
    assert grown[10] > 4
    assert grown[-1] > 8


def test_unseen_clients_keep_their_share():
    for sync in ("mass", "overwrite"):
        told = plain(100, range(10), np.arange(10.0))
        p = FedMABA(sync=sync).weigh(FedMABA().init(100), told).state["p"]
        assert p[10:].tolist() == [0.01] * 90


@pytest.mark.parametrize("rho", [0.05, 0.3, 1.0])
def test_global_ball_bounds_the_whole_vector(rho):
    bound = 0
    for _, decision in play(FedMABA(ball="global", rho=rho, eta_b=1), 50, 10, 150):
        p = decision.state["p"]
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        assert kl_uniform(p) <= rho + 1e-9
        bound += decision.info["lambda"] > 0
    assert bound > 20


def test_global_ball_survives_a_cohort_without_mass():
    strategy = FedMABA(ball="global")
    state = strategy.init(4)
    for who, loss in (([0, 1], [1e6, 0]), ([2, 3], [1e6, 0]), ([1, 3], [0, 1])):
        coef, state, _ = strategy.weigh(state, plain(4, who, loss))
    assert np.isfinite(coef).all()
    assert coef.sum() == pytest.approx(1.0)
    assert coef[1] > coef[0]  # no arm is dead: the losses still decide


def test_global_ball_survives_a_cohort_of_hardly_any_mass():
    strategy = FedMABA(ball="global")
    state = {"p": np.array([3e-311, 1.0])}
    coef, state, _ = strategy.weigh(state, plain(2, [0], [0.0]))
    assert coef.tolist() == [1.0]
    assert state["p"].tolist() == [3e-311, 1.0]


def test_an_arm_is_floored_at_a_trillionth_of_the_uniform_weight():
    # log(1e-12) + 0.5 * 60 = 2.4 above the other arm's 0
    coef = weights({"p": np.array([0.0, 1.0]) / 2}, plain(2, [0, 1], [60.0, 0.0]), rho=10)
    odds = 1e-12 * np.exp(30.0)
    assert coef == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])


def test_literal_ball_has_no_root_for_a_small_cohort():
    with pytest.warns(RuntimeWarning, match="no root with 10 of 100"):
        coef = weights(FedMABA().init(100), plain(100, range(10), np.arange(10.0)), ball="literal")
    assert coef.tolist() == [0.1] * 10


def test_literal_ball_has_a_root_from_37_of_100_on():
    told = plain(100, range(37), np.arange(37.0))
    p = weights(FedMABA().init(100), told, ball="literal")
    assert kl_uniform(p) == pytest.approx(1 - np.log(100 / 37), abs=1e-10)
    with pytest.warns(RuntimeWarning, match="36 of 100"):
        weights(FedMABA().init(100), plain(100, range(36), np.arange(36.0)), ball="literal")


def test_balls_and_syncs_coincide_at_full_participation():
    variants = [{"ball": b} for b in ("cohort", "global", "literal")] + [{"sync": "overwrite"}]
    paths = [[d.coef for _, d in play(FedMABA(**keys), 20, 20, 30)] for keys in variants]
    for path in paths[1:]:
        assert np.allclose(path, paths[0], atol=1e-12)


def test_loss_is_asked_for_where_the_user_says():
    for at in ("start", "mean", "end"):
        assert FedMABA(loss_at=at).needs().loss == at
    assert FedMABA().needs().early
    assert not FedMABA(loss_at="end").needs().early


# robustness


def test_fedfv_adds_nothing_where_everything_cancels():
    rng = np.random.default_rng(0)
    for _ in range(50):
        line = rng.normal(size=2)
        line[1] = -abs(line[1]) * np.sign(line[0])
        strategy = FedFV(alpha=0, tau=0)
        told = replies(strategy, [0, 1], rng.random(2), line[:, None])
        coef = strategy.weigh({}, told).coef  # each is projected off the other: 0
        assert abs(coef).max() <= 1e-6


def test_fedfv_takes_what_rounding_leaves_of_a_sum_for_nothing():
    # 1 and -1 + 1e-4, as a float32 Gram matrix has them: their mean is mostly rounding
    told = replies(FedFV(alpha=1, tau=0), [0, 1], [1.0, 2.0], [[1.0], [-0.9999]])
    decision = FedFV(alpha=1, tau=0).weigh({}, told)
    assert decision.coef.tolist() == [0.0, 0.0]
    assert decision.info["shrunk"] == 0.0


changes_of = {
    "random": lambda rng, m: rng.normal(size=(m, 8)),
    "line": lambda rng, m: rng.normal(size=(m, 1)),
    "same": lambda rng, m: np.tile(rng.normal(size=5), (m, 1)),
    "opposite": lambda rng, m: np.outer(rng.choice([-1.0, 1.0], m), rng.normal(size=5)),
    "some zero": lambda rng, m: rng.normal(size=(m, 4)) * rng.integers(0, 2, (m, 1)),
    "zero": lambda rng, m: np.zeros((m, 4)),
    "tiny": lambda rng, m: rng.normal(size=(m, 4)) * 1e-30,
    "large": lambda rng, m: rng.normal(size=(m, 4)) * 1e6,
}


@every
@quick
@given(
    some.lists(
        some.tuples(
            some.lists(some.floats(0, 1e6), min_size=5, max_size=5),
            some.sets(some.integers(0, 4), min_size=1),
            some.sampled_from(sorted(changes_of)),
        ),
        min_size=1,
        max_size=4,
    ),
    some.integers(0, 2**32 - 1),
)
def test_no_reply_makes_a_coefficient_infinite(spec, rounds, seed):
    strategy, rng, past = one(spec), np.random.default_rng(seed), []
    state = strategy.init(5)
    for t, (loss, who, kind) in enumerate(rounds):
        who = sorted(who)
        changes = changes_of[kind](rng, len(who))
        changes = np.pad(changes, ((0, 0), (0, 8 - changes.shape[1])))
        kept = [p for p in past if p[0] not in who and p[1] >= t - strategy.needs().keep_rounds]
        told = replies(strategy, who, np.array(loss)[who], changes, n=5, t=t, past=kept)
        coef, state, _ = strategy.weigh(state, told)
        assert np.isfinite(coef).all()
        assert all(np.isfinite(v).all() for v in state.values())
        if strategy.total() is not None:
            assert coef.sum() == pytest.approx(strategy.total(), rel=1e-9)
        past = [p for p in past if p[0] not in who]
        past += [(c, t, v) for c, v in zip(who, changes, strict=True)]
