"""Many rows compared at once: Holm's correction, Friedman's ranks, the critical difference."""

import json

import numpy as np
import pytest
from scipy import stats

from fedmaba.errors import InputError
from fedmaba.report import figures, ranks
from fedmaba.report import table as tables
from report_cases import history


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04, each at least the last
    assert ranks.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert ranks.holm([0.5, 0.9]).tolist() == [1.0, 1.0]
    assert ranks.holm([0.2]).tolist() == [0.2]
    assert ranks.holm([]).tolist() == []


@pytest.mark.parametrize("free", [1, 2, 3, 4, 7, 12, 29, 100])
def test_tails_are_those_of_scipy(free):
    for x in (0.0, 0.3, 1.0, 2.5, 8.0, 40.0):
        assert ranks.t_tail(-x, free) == pytest.approx(2 * stats.t.sf(x, free), abs=1e-12)
        assert ranks.chi2_tail(x, free) == pytest.approx(stats.chi2.sf(x, free), rel=1e-9)


def test_p_values_are_those_of_the_paired_t_test():
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 10):
        x = rng.normal(0.3, 1, n)
        assert ranks.p_value(x) == pytest.approx(stats.ttest_1samp(x, 0).pvalue, abs=1e-10)
    assert ranks.p_value([0.4, 0.4, 0.4]) == 1.0  # equal in every seed: nothing to tell it by
    assert ranks.p_value([0.4]) == 1.0


# Demšar 2006, Table 6: AUC of C4.5, with m, with cf, with both, on 14 data sets.
DEMSAR = np.array(
    [
        *([0.763, 0.768, 0.771, 0.798], [0.599, 0.591, 0.590, 0.569], [0.954, 0.971, 0.968, 0.967]),
        *([0.628, 0.661, 0.654, 0.657], [0.882, 0.888, 0.886, 0.898], [0.936, 0.931, 0.916, 0.931]),
        *([0.661, 0.668, 0.609, 0.685], [0.583, 0.583, 0.563, 0.625], [0.775, 0.838, 0.866, 0.875]),
        *([1.000, 1.000, 1.000, 1.000], [0.940, 0.962, 0.965, 0.962], [0.619, 0.666, 0.614, 0.669]),
        *([0.972, 0.981, 0.9751, 0.975], [0.957, 0.978, 0.946, 0.970]),
    ]
)


def test_ranks_and_critical_difference_of_demsars_example():
    found = ranks.ranking(DEMSAR, lower=False)
    # he has 3.143, 2.000, 2.893, 1.964, chi-squared 9.28, and a critical difference of 1.25
    assert found.ranks == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=1e-3)
    assert found.critical == pytest.approx(1.25, abs=5e-3)
    assert found.p == pytest.approx(stats.friedmanchisquare(*DEMSAR.T).pvalue, rel=1e-9)
    assert found.differs
    assert found.alike() == [(3, 1, 2, 0)]  # 3.143 - 1.964 = 1.18 < 1.25: Nemenyi tells none apart


def test_bars_cover_what_is_not_told_apart():
    found = ranks.Ranking(np.array([1.0, 4.0, 2.5, 1.5]), 10, 0.001, 1.5)
    assert found.alike() == [(0, 3, 2), (2, 1)]
    assert ranks.Ranking(found.ranks, 10, 0.2, 1.5).alike() == [(0, 3, 2, 1)]  # Friedman first
    assert ranks.Ranking(np.array([1.0, 3.0]), 10, 0.001, 1.0).alike() == []


def test_ties_share_ranks_and_less_may_be_better():
    found = ranks.ranking(np.array([[1.0, 1.0, 3.0], [2.0, 1.0, 1.0]]), lower=True)
    assert found.ranks.tolist() == [2.25, 1.5, 2.25]
    assert ranks.ranking(np.ones((3, 4)), lower=True).p == 1.0  # all alike


def test_critical_values_are_those_of_the_studentised_range():
    printed = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]  # Demšar, Table 5(a)
    assert ranks.Q05[:9] == pytest.approx(printed, abs=1.1e-3)
    for rows in (2, 25, 50):
        want = stats.studentized_range.ppf(0.95, rows, np.inf) / np.sqrt(2)
        assert ranks.Q05[rows - 2] == pytest.approx(want, abs=1e-3)
    assert len(ranks.Q05) == 49


def test_too_few_and_too_many_rows_are_one_line():
    with pytest.raises(InputError, match="ranks of 3 rows over 1 seeds: compare at least two rows"):
        ranks.ranking(np.ones((1, 3)), lower=True)
    with pytest.raises(InputError, match="ranks of 51 rows: at most 50 can be compared at once"):
        ranks.ranking(np.ones((2, 51)), lower=True)


ROWS = ("fedavg", "afl", "term", "fedmaba", "qffl")


@pytest.fixture(scope="module")
def compared():
    return history(ROWS, seeds=4, clients=20, rounds=3)


def test_a_table_of_differences_says_which_remain_after_holm(compared):
    page = tables.document(compared, against="fedavg")
    grid = page.grids[-1]
    assert [g.name for g in page.grids] == ["levels", "differences"]
    assert "Holm's correction for 4 rows in each column" in grid.title
    assert [row[0].text for row in grid.rows] == [*ROWS[1:]]
    rows = {run.label: {} for run in compared.runs}
    for run in compared.runs:
        rows[run.label][run.seed] = run.fairness("deployed", 0.05, [-1])[0].variance
    raw = [
        stats.ttest_rel(
            [rows[r][s] for s in range(4)], [rows["fedavg"][s] for s in range(4)]
        ).pvalue
        for r in ROWS[1:]
    ]
    shown = [row[2].p for row in grid.rows]
    assert shown == pytest.approx(ranks.holm(raw), rel=1e-6)
    assert max(shown) > max(raw)  # the correction does something
    for cell in (cell for row in grid.rows for cell in row[2:]):
        assert cell.text.endswith("p < 0.001" if cell.p < 0.001 else f"p = {cell.p:.3f}")
        assert (cell.rank == 0) == (cell.p < 0.05)  # what is bold is significant
    told = json.loads(compared.table("json", against="fedavg"))["differences"]
    assert [entry["p_holm"]["variance"] for entry in told] == pytest.approx(shown)


def test_rows_of_a_sweep_are_compared_at_the_same_settings():
    names = [f"{name}, lr={lr}" for lr in (0.1, 0.2) for name in ("fedavg", "afl")]
    swept = history(names, seeds=3, clients=20, rounds=3)

    def differences(against):
        found = json.loads(swept.table("json", against=against))["differences"]
        return {one["strategy"]: one["figures"] for one in found}

    mine = differences("fedavg")
    assert list(mine) == ["afl, lr=0.1", "afl, lr=0.2"]
    for lr in (0.1, 0.2):
        assert mine[f"afl, lr={lr}"] == differences(f"fedavg, lr={lr}")[f"afl, lr={lr}"]
    assert "difference to fedavg with the same settings" in swept.table(against="fedavg")
    with pytest.raises(InputError, match="unknown row 'qffl'"):
        swept.table(against="qffl")


def test_one_other_row_or_one_seed_needs_no_correction():
    two = history(("fedavg", "afl"), seeds=3, clients=20, rounds=3)
    grid = tables.document(two, against="fedavg").grids[-1]
    assert "Holm" not in grid.title
    assert ", p = " in grid.rows[0][2].text
    alone = history(ROWS, seeds=1, clients=20, rounds=3)
    grid = tables.document(alone, against="fedavg").grids[-1]
    assert "p" not in grid.title.split("seeds")[1]
    assert {cell.p for row in grid.rows for cell in row} == {None}
    told = json.loads(alone.table("json", against="fedavg"))["differences"]
    assert [entry["p_holm"] for entry in told] == [None] * 4


def test_the_picture_has_each_row_its_rank_and_bars(compared):
    figure = figures.figure_of(compared, "ranks")
    for axes, name in zip(figure.axes, ("variance", "worst"), strict=True):
        values = np.array(
            [
                [getattr(r.fairness("deployed", 0.05, [-1])[0], name) for r in compared.runs
                 if r.seed == seed]
                for seed in range(4)
            ]
        )  # fmt: skip
        found = ranks.ranking(values, lower=name == "variance")
        told = [text.get_text() for text in axes.texts]
        for rank in found.ranks:
            assert any(f"{rank:.2f}" in text for text in told)
        bars = [line for line in axes.lines if line.get_linewidth() == 2.2]
        assert len(bars) == len(found.alike())
        assert f"critical difference {found.critical:.2f}" in axes.get_title(loc="left")
    figures.encode(figure, ".svg")


def test_a_picture_of_rows_that_share_one_seed_is_refused():
    with pytest.raises(InputError, match="ranks of 5 rows over 1 seeds: compare at least"):
        figures.figure_of(history(ROWS, seeds=1, clients=20, rounds=3), "ranks")
