"""Our tables beside the paper's: rounds, pairs, intervals, statements."""

from dataclasses import replace

import numpy as np
import pytest
from reproduction_cases import RESULTS, fill, grid_named, made, save

from fedmaba.errors import InputError
from fedmaba.report import document, paired
from fedmaba.report.paired import Interval
from fedmaba.results.history import RunHistory
from laboratory import archive, claims, selection, targets
from laboratory import page as reproduction
from laboratory.selection import CHOICES


def test_the_quantiles_and_intervals_are_students():
    from scipy import stats  # here: its import takes two seconds

    for i, value in enumerate(paired.T95):
        assert value == pytest.approx(stats.t.ppf(0.975, i + 1), abs=5e-4)
    for free in (31, 50, 200, 10_000):
        assert paired._t95(free) == pytest.approx(stats.t.ppf(0.975, free), abs=1e-4)
    sample = [1.0, 2.5, 2.0]
    low, high = stats.t.interval(0.95, 2, np.mean(sample), stats.sem(sample))
    found = paired.interval(sample)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-3)
    assert found.seeds == 3
    assert not found.distinguishable
    assert paired.interval([1.0, 1.1, 0.9]).distinguishable
    assert not paired.interval([5.0]).distinguishable


@pytest.mark.parametrize("sample", [[-0.2] * 2, [0.3 - 0.5, 0.1 - 0.3, 0.7 - 0.9], [0.0] * 10])
def test_equal_differences_say_nothing_of_their_spread(sample):
    span = paired.interval(sample)
    assert not span.distinguishable
    assert span.text() == f"{sample[0]:+.2f} in every seed"
    assert claims.verdict_in_words(CLAIM, span) == f"{sample[0]:+.2f} % in every seed: no interval"
    moved = paired.interval([*sample, sample[0] + 1e-4])
    assert moved.bounded
    assert moved.distinguishable == (sample[0] != 0)


def test_a_table_does_not_call_equal_differences_distinguishable(tmp_path):
    (job,), size = targets.load_target("figure1a").jobs, np.full(20, 100)
    runs = [made("fedavg", seed, size) for seed in (0, 1)]
    for run in runs[:2]:
        right = 0.3 + 0.01 * np.arange(6)[:, None] + np.linspace(0, 0.19, 20)
        run.tables["last.accuracy"] = list(right + 0.1 * run.seed)
        more = right + 0.1 * run.seed + 0.02
        tables = run.tables | {"last.accuracy": list(more)}
        runs.append(RunHistory("fedmaba", run.seed, run.deploy, size, tables=tables))
    save(tmp_path / "x.npz", job, runs)
    page = reproduction.document(
        targets.load_target("table2-fashion-mnist"), archive.read_folder(tmp_path)
    )
    (row,) = grid_named(page, "pairs-last").rows
    shown = ["+0.00 in every seed", *["+2.00 in every seed"] * 3]
    assert [cell.text for cell in row] == ["FedMABA, α=0.5", "2", *shown]
    assert [cell.p for cell in row[2:]] == [1.0] * 4


CLAIM = {"measure": "less", "number": 33}


@pytest.mark.parametrize(
    ("claim", "span", "said"),
    [
        (CLAIM, Interval(40, 20, 60, 3), "holds"),
        (CLAIM, Interval(20, 10, 30, 3), "smaller"),
        (CLAIM, Interval(30, 20, 40, 3), "within the interval"),
        (CLAIM, Interval(40, -1, 81, 3), "cannot tell"),
        (CLAIM, Interval(10, -1, 21, 3), "not distinguishable"),
        (CLAIM | {"at_least": True}, Interval(10, -1, 21, 3), "not contradicted"),
        (CLAIM, Interval(-20, -30, -10, 3), "contradicted"),
        (CLAIM, Interval(40, -np.inf, np.inf, 1), "one seed only"),
        (CLAIM, Interval(np.nan, -np.inf, np.inf, 0), "not run"),
        ({"measure": "times", "number": 1.5}, Interval(1.6, 1.2, 2.0, 3), "holds"),
        ({"measure": "times", "number": 1.5}, Interval(1.2, 0.9, 1.4, 3), "not distinguishable"),
        ({"measure": "times", "number": 1.5}, Interval(0.8, 0.7, 0.9, 3), "contradicted"),
    ],
)
def test_the_verdict_on_a_statement(claim, span, said):
    assert claims.judgement(claim, span) == said


def test_some_seeds_of_a_target_with_variants_are_counted_over_all_of_them(tmp_path):
    target = targets.load_target("attacks", targets.Scale(seeds=2))
    job, size = target.jobs[0], np.full(20, 100)
    save(tmp_path / "x.npz", job, [made("fedavg", s, size) for s in (0, 1)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    assert "A part of it: 64 of 96 runs." in page.text
    (told,) = (text for text in page.text if text.startswith("Not run yet: "))
    assert told.startswith("Not run yet: nobody is hostile (6 of 8 runs); 10 % report a loss of a ")


def test_some_rows_of_a_table_are_no_cut_down_version(tmp_path):
    asked = targets.Scale(only=("fedavg", "fedmaba"))
    page = reproduction.document(
        targets.load_target("table2-fashion-mnist", asked), fill(tmp_path, "table2-fashion-mnist")
    )
    assert "A part of it: 30 of 94 runs." in page.text
    assert not any("CUT-DOWN" in text for text in page.text)
    assert "paper's variance" in grid_named(page, "last").head


def test_our_table_stands_beside_the_papers(tmp_path):
    target = targets.load_target("table2-fashion-mnist")
    batches = fill(tmp_path, "table2-fashion-mnist")
    page = reproduction.document(target, batches)
    assert not any("CUT-DOWN" in text for text in page.text)
    table = grid_named(page, "last")
    place = {name: i for i, name in enumerate(table.head)}
    rows = {row[0].text: row for row in table.rows}
    assert len(rows) == 15
    term = rows["TERM, T=0.1 (code)"]
    at = place["accuracy %"]
    assert table.head[at + 1] == "paper's accuracy"
    assert term[at + 1].text == "69.41 ± 0.92"
    assert rows["FedFV, α=0.1, τ=1"][at + 1].text == ""
    assert rows["FedAvg"][1].text == "10"
    # best of the column bold, second marked
    variance = {name: row[place["variance %²"]] for name, row in rows.items()}
    order = sorted(variance, key=lambda name: variance[name].value)
    assert [variance[name].rank for name in order[:3]] == [0, 1, 2]


def test_rounds_are_chosen_as_the_captions_say(tmp_path):
    target = targets.load_target("table2-fashion-mnist-validation")
    (job,) = target.jobs
    batches = fill(tmp_path, "table2-fashion-mnist-validation")
    history = archive.deployed_history(batches, job)
    run = next(r for r in history.runs if r.label == "fedavg" and r.seed == 1)
    last, held = run.accuracy("last"), run.column("last_validation.accuracy")
    want = {
        "last": last[-1].mean(),
        "best": last.mean(1).max(),
        "valid": last[held.mean(1).argmax()].mean(),
        "last5": last[-5:].mean(),
    }
    assert len({round(v, 6) for v in want.values()}) == 4
    for name, value in want.items():
        found = selection.fairness_by_seed(history, "last", CHOICES[name])["fedavg"][1]
        assert found.accuracy == pytest.approx(100 * value), name
    assert {"best", "last", "valid", "last5"} <= {
        g.name for g in reproduction.document(target, batches).grids
    }


def test_a_row_before_fedavg_is_held_against_it_too(tmp_path):
    target, batches = targets.load_target("figure1a"), fill(tmp_path, "figure1a")
    (job,) = target.jobs
    turned = replace(job, strategies=dict(reversed(job.strategies.items())))
    tables = [
        grid_named(reproduction.document(replace(target, jobs=jobs), batches), "curve").rows
        for jobs in ([job], [turned])
    ]
    assert tables[0] == tables[1][::-1]
    assert [row[0].text for row in tables[0] if not row[-1].text] == ["FedAvg"]


def test_what_the_average_does_is_paired_by_run(tmp_path):
    batches = fill(tmp_path, "table2-cifar10-partial")
    target = targets.load_target("table2-cifar10-partial")
    table = grid_named(reproduction.document(target, batches), "gain-ema0.98")
    assert len(table.rows) == 15
    history = archive.collect(batches, target.jobs[0])[0]
    want = [
        100**2 * (np.var(r.accuracy("deployed")[-1]) - np.var(r.accuracy("last")[-1]))
        for r in history.runs
        if r.label == "fedavg"
    ]
    assert table.rows[0][0].text == "FedAvg"
    assert table.rows[0][2].value == pytest.approx(np.mean(want))
    assert np.mean(want) != 0


def test_the_search_picks_by_its_rule(tmp_path):
    batches = fill(tmp_path, "table1-grid")
    page = reproduction.document(targets.load_target("table1-grid"), batches)
    rows = [[cell.text for cell in row] for row in grid_named(page, "grid").rows]
    by_name: dict[str, list[list[str]]] = {}
    for row in rows:
        by_name.setdefault(row[0].partition(":")[0], []).append(row)
    assert len(by_name["fedmaba"]) == 30
    for group in by_name.values():
        accuracy = [float(row[4].split()[0]) for row in group]
        variance = [float(row[3].split()[0]) for row in group]
        near = [v for a, v in zip(accuracy, variance, strict=True) if a >= max(accuracy) - 1]
        picked = [row for row in group if row[2] == "yes"]
        assert [float(row[3].split()[0]) for row in picked] == [min(near)]
    assert any(text.startswith("Rule: ") for text in page.text)


@pytest.mark.slow
def test_every_page_can_be_made_and_says_what_is_missing(tmp_path):
    batches, drawn = fill(tmp_path, *targets.names()), set()
    for name in targets.names():
        target = targets.load_target(name)
        page = reproduction.document(target, batches)
        missing = any("Not run yet" in text or "CUT-DOWN" in text for text in page.text)
        assert missing == name.startswith(("baselines", "equal", "real")), (
            name
        )  # whose picks no file names
        text = document.markdown(page) + document.latex(page) + document.csv(page)
        assert "nan" not in text.lower().replace("finance", "")
        assert bool(page.grids) == (name not in ("all", "baselines", "real"))
        for kind, make in page.figures.items():
            if (target.view.kind, kind) not in drawn:  # once for each kind of page
                assert make() is not None
                drawn.add((target.view.kind, kind))
    assert len(drawn) >= 5
    target = targets.load_target("table2-fashion-mnist")
    some = [b for b in batches if b.digest != target.jobs[0].digest]
    with pytest.raises(InputError, match="none of its runs is there"):
        reproduction.document(target, some)
    claims = reproduction.document(targets.load_target("claims"), some)
    told = {row[2].text: row[-1].text for row in grid_named(claims, "claims").rows}
    assert told["table2-fashion-mnist"] == "not run"
    assert told["table2-cifar10"] != "not run"
    assert any("Not run yet" in text for text in claims.text)
    fewer = targets.load_target("claims", targets.Scale(without=("table2-cifar10",)))
    rows = grid_named(reproduction.document(fewer, batches), "claims").rows
    told = {row[2].text: row[-1].text for row in rows}
    assert told["table2-cifar10"] == "left out"
    assert told["table2-fashion-mnist"] not in ("left out", "not run")


def test_runs_that_are_missing_are_listed_by_seeds_with_every_name(tmp_path):
    target = targets.load_target("figure1b-all")
    (job,), size = target.jobs, np.full(20, 100)
    save(tmp_path / "x.npz", job, [made("fedavg", s, size) for s in (0, 2)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    (told,) = (text for text in page.text if text.startswith("Not run yet: "))
    others = "FedMABA, α=0.5; FedMABA, α=0.8; FedFV, α=0.1, τ=1"
    assert told.startswith("Not run yet: seeds 0, 1, 2 of FedSGD; ")
    assert f"; {others}, and seed 1 of FedAvg" in told


def test_a_run_that_diverged_is_told_and_left_out(tmp_path):
    target = targets.load_target("figure1a")
    (job,), size = target.jobs, np.full(20, 100)
    why = "fedmaba, seed 1, diverged in round 21: x"
    runs = [made("fedavg", s, size) for s in (0, 1)]
    runs += [made("fedmaba", 0, size), made("fedmaba", 1, size, 2, diverged=why)]
    runs += [made("afl", s, size, 0, deploy="average", diverged=f"afl, seed {s}") for s in (0, 1)]
    save(tmp_path / "x.npz", job, runs)
    for name in ("figure1a", "table2-fashion-mnist"):
        page = reproduction.document(targets.load_target(name), archive.read_folder(tmp_path))
        assert any("diverged in round 21" in text for text in page.text)
        assert page.figures["variance"]() is not None
    rows = {row[0].text: row for row in grid_named(page, "last").rows}
    assert rows["FedMABA, α=0.5"][1].text == "1"
    assert rows["FedMABA, α=0.5"][-1].text == "diverged: seed 1"
    assert rows["AFL, λ=0.05"][2].text == "–"


def test_attacks_that_were_tried_are_shown_with_every_strategy(tmp_path):
    target = targets.load_target("attacks")
    first, second = target.jobs[:2]
    assert (first.experiment.attack.does, second.experiment.attack.does) == (None, "loss=1e6")
    assert (
        first.digest == targets.load_target("table2-fashion-mnist").jobs[0].digest
    )  # shares its runs
    assert len({job.digest for job in target.jobs}) == len(target.jobs)
    size = np.where(np.arange(20) < 2, 0, 100)
    save(tmp_path / "x.npz", second, [made("fedmaba", s, size) for s in (0, 1)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    for grid in page.grids:
        assert grid.head[2:] == [
            "FedAvg",
            "FedMABA, α=0.5",
            "FedMABA, α=0.5, ρ=0.1",
            "FedMABA, α=0.5, trust=usual",
        ]
        ((title, seeds, nothing, some, *_),) = grid.rows
        assert (title.text, seeds.text) == ("10 % report a loss of a million", "2")
        assert nothing.text in ("", "–")
        assert float(some.text.split()[0]) > 0  # nan is not


def test_who_takes_part_has_a_table_for_each_figure_and_corrected_differences_for_each_setting():
    target = targets.load_target("turnout-fashion-mnist")
    grids = reproduction.document(target, archive.read_folder(RESULTS)).grids
    names = ["variance", "accuracy", "worst", "pairs-1", "pairs-2", "pairs-3", "pairs-4"]
    assert [grid.name for grid in grids] == names
    assert all(len(grid.rows) == 4 for grid in grids[:3])
    for grid in grids[3:]:
        assert {row[1].text for row in grid.rows} == {"10"}
        assert "Holm's correction for 7 rows" in grid.title
