"""The paper's theory holds, or fails, as docs/theory.md says; the examples in a small form."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize

ROOT = Path(__file__).parents[1]
NAMES = sorted(p.stem for p in (ROOT / "examples").glob("theory*.py"))
QUICK = ["theory_steady", "theory_surrogate"]
SLOW = [
    *("theory_drift", "theory_generalisation", "theory_rate", "theory_saddle"),
    *("theory_theorem1", "theory_theorem2"),
]


@pytest.fixture
def load(monkeypatch):
    """An example as a module."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield __import__
    for name in NAMES:
        sys.modules.pop(name, None)


def test_surrogate_matches_another_solver(load):
    surrogate = load("theory_surrogate")
    for losses in surrogate.families().values():
        found = surrogate.measure(losses)["excess"]
        for rho, excess in zip(surrogate.RADII, found, strict=True):

            def dual(log_tau, losses=losses, rho=rho):
                z = (losses - losses.mean()) / np.exp(log_tau)
                return np.exp(log_tau) * (np.log(np.mean(np.exp(z - z.max()))) + z.max() + rho)

            best = optimize.minimize_scalar(dual, bounds=(-5, 10), method="bounded")
            assert excess == pytest.approx(best.fun, rel=1e-5)


def test_expansion_has_a_two_and_the_order_that_its_next_term_says(load):
    surrogate = load("theory_surrogate")
    orders = {}
    for name, losses in surrogate.families().items():
        found = surrogate.measure(losses)
        assert found["excess"][-1] / found["sqrt(rho Var)"][-1] == pytest.approx(2**0.5, rel=1e-3)
        orders[name], without = surrogate.orders(found)
        assert without == pytest.approx(0.5, abs=0.02)
    assert orders == pytest.approx({"skewed": 1.0, "symmetric": 1.5}, abs=0.02)
    found = surrogate.measure(surrogate.families()["skewed"])
    left = found["excess"] - found["sqrt(2 rho Var)"]
    assert left[-3] == pytest.approx(found["next term"][-3], rel=0.02)


@pytest.mark.parametrize("eta_b", [0.1, 0.5, 1.0])
def test_weights_settle_where_and_when_the_theory_says(load, eta_b):
    found = load("theory_steady").measure(eta_b)
    assert found["gap"][-1] < 1e-14
    assert found["first"] == int(np.ceil(1 / (found["tau"] * eta_b)))
    assert found["rate"] == pytest.approx(1 / (1 + found["tau"] * eta_b), abs=1e-4)


@pytest.mark.slow
def test_saddle_is_that_of_another_solver(load):
    convex = load("theory_convex")
    problem = convex.Problem(convex.federation())
    w, p = problem.saddle()
    kl = float((p * (p * len(p)).log()).sum())
    assert kl == pytest.approx(convex.RHO, abs=1e-9)
    # from the primal side: p is the best answer to w, and w to p
    assert problem.gradient(w).norm() < 1e-6
    q = convex.ALPHA * p + (1 - convex.ALPHA) / len(p)
    answer = torch.linalg.solve(
        (q[:, None, None] * problem.H).sum(0), (q[:, None, None] * problem.G).sum(0)
    )
    assert (answer - w).norm() < 1e-10
    f = problem.losses(w).numpy()
    ball = {"type": "ineq", "fun": lambda r: convex.RHO - r @ np.log(r * len(r))}
    unit = {"type": "eq", "fun": lambda r: r.sum() - 1}
    best = optimize.minimize(
        lambda r: -(r @ f), np.full(len(f), 1 / len(f)), bounds=[(1e-9, 1)] * len(f),
        constraints=[ball, unit], method="SLSQP", options={"ftol": 1e-14},
    )  # fmt: skip
    assert np.abs(best.x - p.numpy()).max() < 1e-3


@pytest.mark.slow
def test_one_local_step_reaches_the_saddle_and_not_the_mean(load):
    found = load("theory_saddle").measure(rounds=120)
    full = found["full batch", 10.0]
    assert full["last"][-1] < 1e-5
    assert full["last to mean"][-1] > 0.1
    assert full["gradient"][-1] < 1e-8
    for name in (
        "steps too large",
        "minibatch of 10",
    ):  # the last one stays away, the mean is nearer
        case = found[name, 10.0]
        assert case["last"][-30:].min() > 0.01
        assert case["averaged"][-1] < case["last"][-30:].mean() / 2


@pytest.mark.slow
def test_gradient_falls_no_slower_than_the_root_of_the_rounds(load):
    rate = load("theory_rate")
    horizons = (100, 400)
    slopes = rate.slopes(rate.measure(horizons, seeds=3, steps=(10.0,)), horizons)[..., 0]
    assert -0.75 < slopes.mean() < -0.4


@pytest.mark.slow
def test_drift_of_local_steps_is_linear_in_the_step_size(load):
    drift = load("theory_drift")
    rates = (0.04, 0.01)
    one, five = drift.measure(local=(1, 5), rates=rates, rounds=60)
    assert max(one) < 1e-4
    assert min(five) > 100 * max(one)
    assert load("theory").slopes(rates, five) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_generalisation_bound_holds_and_needs_its_two(load):
    bound = load("theory_generalisation")
    small, large = (bound.measure(n, trials=300) for n in (100, 1000))
    for found in (small, large):
        assert found["broken"] <= bound.DELTA
        assert found["gap"] < found["sqrt term"] < found["all terms"]
    assert large["bound"] - large["risk"] < 0.03 < small["bound"] - small["risk"]
    two, one = bound.coverage(trials=10_000)
    assert two < 1e-3 < 4e-3 < one


def test_surrogate_as_printed_is_false_and_true_with_a_shrinking_radius_and_the_two(load):
    surrogate = load("theory_surrogate")
    found = [surrogate.in_clients(10**k) for k in range(1, 6)]
    grows = [f["fixed, times"] for f in found]
    assert grows == sorted(grows)
    assert grows[-1] > 100
    assert found[-1]["fixed"] == pytest.approx(0.56, abs=0.01)  # does not vanish
    falls = [f["with 2"] for f in found]
    assert falls == sorted(falls, reverse=True)
    assert falls[-1] == pytest.approx(falls[-2] / 10**0.5, rel=0.05)
    assert found[-1]["without"] == pytest.approx(0.208, abs=0.002)
    excess, root = surrogate.below()
    assert excess == pytest.approx(0.05)
    assert root == pytest.approx(np.sqrt(0.95 * 0.05))


def test_theorem_1_and_its_corollary_hold_and_say_little(load):
    theorem = load("theory_theorem1")
    found = {n: theorem.measure(n, 60) for n in (10, 100, 1000)}
    for n, f in found.items():
        assert f["first broken"] == f["second broken"] == f["step broken"] == 0
        assert f["first"] > 20 * f["rep"] or n == 10
        noise = np.sqrt(2 * np.log(40) / n)
        assert f["first"] == pytest.approx(2 * f["R"] + 3 * noise)
        assert f["second"] == pytest.approx(2 * f["spread"] + 4 * noise)
    assert found[1000]["second"] > 0.4 > 1000 * found[1000]["excess"]  # does not go to 0
    assert theorem.useless() == 118
    assert found[100]["second"] > 1  # says nothing of losses that differ by 1 at most
    assert theorem.alike() > 0.01  # and not below sup sd, which is 0


def test_theorem_1s_complexity_is_that_of_all_sign_vectors(load, monkeypatch):
    theorem = load("theory_theorem1")
    share = np.array([0.1, 0.4, 0.2, 0.9])
    every = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T
    w = theorem.FAMILY[:, None]
    losses = w**2 + (1 - 2 * w) * share
    want = np.mean([(losses @ tau / 4).max() for tau in every])
    monkeypatch.setattr(theorem, "SIGNS", 20_000)
    assert theorem.rademacher(share, np.random.default_rng(0)) == pytest.approx(want, rel=0.03)


@pytest.mark.slow
def test_theorem_2_is_met_by_the_mixture_and_not_by_the_mean(load):
    horizons = (50, 200)
    found = load("theory_theorem2").measure(horizons, local=(1,))
    least, plain, mean = load("theory").slopes(horizons, [found[1, T] for T in horizons])
    assert least < -0.5
    assert mean < -0.3
    assert plain > -0.1
    assert found[1, 200][1] == pytest.approx(load("theory_theorem2").at_saddle(), rel=0.3)


def shown(name: str, monkeypatch, capsys) -> list[str]:
    """The lines an example prints."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def same(a: str, b: str) -> bool:
    """Equal words, and numbers equal but for rounding; those below 1e-12 are all alike."""
    words, others = a.split(), b.split()
    number = re.compile(r"-?\d[\d.]*(e[+-]\d+)?$")
    if len(words) != len(others):
        return False
    for x, y in zip(words, others, strict=True):
        if not (number.match(x) and number.match(y)):
            if x != y:
                return False
        elif max(abs(float(x)), abs(float(y))) > 1e-12 and not np.isclose(
            float(x), float(y), rtol=0.05, atol=0
        ):
            return False
    return True


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_page_shows_what_the_example_prints(name, monkeypatch, capsys):
    page = (ROOT / "docs" / "theory.md").read_text().splitlines()
    printed = shown(name, monkeypatch, capsys)
    missing = [line for line in printed if not any(same(line, other) for other in page)]
    assert not missing


def test_an_option_is_not_taken_for_the_name_of_a_figure(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["theory_steady.py", "--help"])
    with pytest.raises(SystemExit, match=r"--help is no name of a figure: give FIGURE\.svg"):
        load("theory").figure(lambda *_: None, 1, None)
    assert not list(tmp_path.iterdir())
