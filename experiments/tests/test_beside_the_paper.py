"""Ours minus the paper's, row by row; its statements held against what they are meant against."""

from dataclasses import replace

import numpy as np
import pytest
from reproduction_cases import grid_named, made, save

from fedmaba.results.history import History, RunHistory
from laboratory import archive, claims, targets
from laboratory import page as reproduction
from laboratory.targets import Scale

SIZE = np.full(100, 100)


def run(label, seed, accuracy, spread, diverged=""):
    """A run whose last round has this mean accuracy and spread over clients, in per cent."""
    out = made(label, seed, SIZE, 2, diverged=diverged)
    right = accuracy + spread * np.where(np.arange(100) % 2, 1, -1)
    for model in ("last", "deployed"):
        out.tables[f"{model}.accuracy"] = [right / 200, right / 100]
    return out


def shown(tmp_path, runs, name="table2-fashion-mnist", scale=None):
    """The page of a target with these runs only."""
    save(tmp_path / "x.npz", targets.load_target(name, scale).jobs[0], runs)
    return reproduction.document(targets.load_target(name, scale), archive.read_folder(tmp_path))


def test_every_row_says_whether_the_papers_value_lies_inside_our_interval(tmp_path):
    # FedAvg: variance 49, 64 (the paper 50.14); accuracy 90, 91 (85.66); one seed of q-FFL
    runs = [run("fedavg", 0, 90, 7), run("fedavg", 1, 91, 8), run("qffl", 0, 80, 5)]
    runs += [run("term", s, 80, 5 + s) for s in (0, 1)] + [run("fedfv", s, 80, 5) for s in (0, 1)]
    table = grid_named(shown(tmp_path, runs), "paper-last")
    rows = {row[0].text: row for row in table.rows}
    place = {name: i for i, name in enumerate(table.head)}
    assert "FedFV, α=0.1, τ=1" not in rows  # the paper has no such row
    variance, accuracy = (rows["FedAvg"][place[t]] for t in ("variance %²", "accuracy %"))
    half = 12.706 * np.std([49, 64], ddof=1) / np.sqrt(2)
    assert variance.value == pytest.approx(56.5 - 50.14)
    assert variance.span == pytest.approx((6.36 - half, 6.36 + half))
    assert variance.rank == 0  # bold: inside
    assert accuracy.value == pytest.approx(90.5 - 85.66)
    assert accuracy.span == pytest.approx((4.84 - 6.353, 4.84 + 6.353))
    inside = place["the paper's value lies inside our interval"]
    assert rows["FedAvg"][inside].text == "variance, accuracy, best 5 %"
    assert rows["FedAvg"][place["worst 5 %"]].rank == 2
    assert rows["q-FFL, q=0.005"][inside].text == "one seed: no interval"
    assert rows["TERM, T=0.1"][inside].text == "none"
    assert "public code" in rows["TERM, T=0.1"][inside + 1].text
    assert rows["q-FFL, q=0.005"][inside + 1].text == "none tested"


def test_a_page_counts_the_entries_that_reproduce(tmp_path):
    runs = [run("fedavg", 0, 90, 7), run("fedavg", 1, 91, 8)]
    runs += [run("term", s, 80, 5 + s) for s in (0, 1)]
    page = shown(tmp_path, runs)
    (told,) = (text for text in page.text if text.startswith("Beside the paper"))
    assert "3 of 8 entries have the paper's value inside our 95 % interval" in told
    assert "All four: no row. None: TERM, T=0.1." in told


def test_a_cut_down_table_has_no_columns_of_the_papers(tmp_path):
    page = shown(tmp_path, [run("fedavg", s, 90, 7 + s) for s in (0, 1)], scale=Scale(rounds=20))
    assert not [g.name for g in page.grids if g.name.startswith("paper")]
    assert "paper's variance" not in grid_named(page, "last").head


BASE = ["fedavg", "qffl", "afl", "fedprox"]


def seen(*runs: RunHistory) -> claims.TargetFigures:
    return claims.TargetFigures(History(list(runs)))


def test_second_best_is_the_baseline_of_least_variance_in_our_runs():
    # variances: FedMABA 16, 25; q-FFL 36, 49; FedAvg 81, 100; FedFV, which is no baseline, 1, 4
    runs = [run("fedmaba", s, 80, 4 + s) for s in (0, 1)]
    runs += [run("qffl", s, 80, 6 + s) for s in (0, 1)]
    runs += [run("fedavg", s, 80, 9 + s) for s in (0, 1)]
    runs += [run("fedfv", s, 80, 1 + s) for s in (0, 1)]
    runs += [run("afl", 0, 80, 2)]  # fairer still, but with one seed
    claim = {"figure": "variance", "measure": "less", "number": 33, "against": "second best"}
    found = claims.our_number(claim, seen(*runs), "fedmaba", "last", "last", BASE)
    assert found.against == "q-FFL, q=0.005"
    assert found.span.mean == pytest.approx(100 * np.mean([1 - 16 / 36, 1 - 25 / 49]))
    assert claims.verdict_in_words(claim, *found).endswith("holds (against q-FFL, q=0.005)")
    plain = claims.our_number(
        {k: v for k, v in claim.items() if k != "against"}, seen(*runs), "fedmaba", "last", "last"
    )
    assert plain.against == ""
    assert plain.span.mean == pytest.approx(100 * np.mean([1 - 16 / 81, 1 - 25 / 100]))


def test_nothing_is_second_best_where_nothing_was_run():
    claim = {"figure": "variance", "measure": "less", "number": 33, "against": "second best"}
    found = claims.our_number(
        claim, seen(run("fedmaba", 0, 80, 4)), "fedmaba", "last", "last", BASE
    )
    assert claims.verdict_in_words(claim, *found) == "not run"


def test_the_mean_of_the_baselines_is_taken_under_each_seed():
    # FedMABA 80, 82; FedAvg 79, 80; q-FFL 75, 74 (and 90 under a seed that FedAvg lacks)
    runs = [run("fedmaba", s, a, 4) for s, a in enumerate((80, 82, 84))]
    runs += [run("fedavg", s, a, 4) for s, a in enumerate((79, 80))]
    runs += [run("qffl", s, a, 4) for s, a in enumerate((75, 74, 90))]
    runs += [run("afl", 0, 20, 4), run("afl", 1, 20, 4, "afl, seed 1, diverged")]
    claim = {"figure": "accuracy", "measure": "points", "number": 0, "at_least": True}
    claim["against"] = "mean of the baselines"
    found = claims.our_number(claim, seen(*runs), "fedmaba", "last", "last", BASE)
    assert found.against == "the mean of 2 rows"  # without the one that diverged
    assert found.span.seeds == 2
    assert found.span.mean == pytest.approx(np.mean([80 - 77, 82 - 77]))


def test_a_statement_counts_the_papers_baselines_without_those_it_names():
    target = targets.load_target("table2-fashion-mnist")
    assert len(claims.baselines(target, {})) == 10
    assert not [r for r in claims.baselines(target, {}) if r.startswith(("fedmaba", "fedfv"))]
    left = claims.baselines(target, {"without": ["term"]})
    assert set(claims.baselines(target, {})) - set(left) == {"term:normalise=reference"}
    assert claims.baselines(targets.load_target("table3-cifar100"), {}) == [
        *("fedavg", "qffl", "fedmgda", "fedmgda:eta=0.1", "afl", "afl:lam=0.5", "fedprox")
    ]
    unknown = replace(target, view=target.view.model_copy(update={"paper": ""}))
    assert claims.baselines(unknown, {}) == []


def test_a_reading_shows_fedmaba_as_fedmaba_whatever_other_rows_it_has(tmp_path):
    target = targets.load_target("readings")
    job = target.jobs[0]
    runs = [run("fedavg", s, 90, 7 + s) for s in (0, 1)] + [run("fedsgd", s, 50, 9) for s in (0, 1)]
    runs += [run("fedmaba", s, 80, 5 + s) for s in (0, 1)]
    save(tmp_path / "x.npz", job, runs)
    table = grid_named(reproduction.document(target, archive.read_folder(tmp_path)), "last")
    first = table.rows[0]
    assert first[0].text == job.title
    assert first[table.head.index("FedMABA, accuracy %")].value == pytest.approx(80)
    shown = [row[0].text for row in table.rows]
    with_it = [j.title for j in target.jobs if "fedavg" in j.strategies]
    assert shown == [title for title in with_it if title in shown]  # the same runs once
    assert len(with_it) - len(shown) == 3
