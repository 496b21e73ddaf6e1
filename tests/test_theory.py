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
