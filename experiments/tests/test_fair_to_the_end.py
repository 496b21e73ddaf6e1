"""Fair to the end: losses that are kept, the fairest round, what the tables say of them."""

from dataclasses import replace

import numpy as np
import pytest
import reproduction_cases
from reproduction_cases import grid_named, made, save

from fedmaba.errors import InputError
from fedmaba.results.run_history import GrowingArray
from fedmaba.simulation.engine import Run, start
from laboratory import archive, fair_tables, selection, targets
from laboratory import page as reproduction
from laboratory.archive import TRAINING
from laboratory.selection import CHOICES
from plain_loop import PLAN, one
from plain_norms import norm_net

SIZE, HELD = np.full(20, 100), np.full(20, 60)


def with_losses(run, losses):
    return replace(run, tables=run.tables | {TRAINING: GrowingArray(losses)})


def some_runs(rows, seeds=(0, 1, 2)):
    return [made(row, seed, SIZE, held=HELD) for row in rows for seed in seeds]


# --- archives with losses ------------------------------------------------------------------------


def test_losses_come_back_to_three_digits_and_only_where_they_were_kept(tmp_path):
    job = targets.load_target("fair-fashion-mnist").jobs[0]
    told = np.random.default_rng(0).uniform(0.001, 3, (6, 20))
    told[2, 3] = np.nan
    plain, loud = some_runs(["fedavg", "fedmaba"], seeds=[0])
    save(tmp_path / "x.npz", job, [plain, with_losses(loud, told)], HELD)
    quiet, again = archive.read_file(tmp_path / "x.npz").runs.values()
    assert TRAINING not in quiet.tables
    np.testing.assert_allclose(again.column(TRAINING), told, rtol=1e-3)
    assert np.isnan(again.column(TRAINING)[2, 3])
    assert np.array_equal(again.accuracy("last"), loud.accuracy("last"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [(np.zeros((2, 6, 20), np.int64), "is int64"), (np.zeros((2, 5, 20), np.float16), "shape")],
)
def test_losses_that_no_batch_writes_are_refused(wrong, words, tmp_path):
    job, path = targets.load_target("fair-fashion-mnist").jobs[0], tmp_path / "x.npz"
    save(path, job, some_runs(["fedavg", "fedmaba"], seeds=[0]), HELD)
    with np.load(path) as held:
        arrays = dict(held)
    np.savez(path, **arrays, training_loss=wrong)
    with pytest.raises(InputError, match=words) as error:
        _ = archive.read_file(path).runs
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_target_keeps_the_losses_that_it_asks_for(small_sample, monkeypatch, capsys, tmp_path):
    call = reproduction_cases.command(monkeypatch, capsys, tmp_path)
    for target, row, keeps in (
        ("fair-fashion-mnist", "fedmaba:loss_at=held", True),
        ("table2-fashion-mnist-validation", "fedmaba:alpha=0.8", False),
    ):
        words = ["--quick", "--rounds", 2, "--seeds", 1, "--only", row, "--out", tmp_path / target]
        assert call(target, *words)[0] == 0
        (batch,) = archive.read_folder(tmp_path / target)
        (run,) = batch.runs.values()
        assert run.label == row
        assert (TRAINING in run.tables) == keeps
        if keeps:
            assert run.column(TRAINING).shape == run.accuracy("last").shape
            assert (run.column(TRAINING) > 0).all()


# --- which round ---------------------------------------------------------------------------------


def test_the_fairest_round_is_picked_on_validation_data():
    run = made("fedavg", 0, SIZE, held=HELD)
    held = np.full((6, 20), 0.5)
    held[1] += np.linspace(-0.2, 0.2, 20)  #           as accurate, and less fair
    held[3] = 0.51 + np.linspace(-0.1, 0.1, 20)  #     the most accurate
    held[4] = 0.505 + np.linspace(-0.01, 0.01, 20)  #  within a point of it, and fairer
    held[5] = 0.3  #                                   fair, and too bad
    held[0] = held[2] = 0.49
    run.tables["last_validation.accuracy"] = list(held)
    history = archive.History([run])
    last = run.accuracy("last")
    for name, i in (("valid", 3), ("fair", 4), ("last", 5)):
        found = selection.fairness_by_seed(history, "last", CHOICES[name])["fedavg"][0]
        assert found.variance == pytest.approx(1e4 * last[i].var()), name
    bare = made("fedavg", 0, SIZE)
    assert selection.fairness_by_seed(archive.History([bare]), "last", CHOICES["fair"]) == {}


@pytest.mark.parametrize("rule", ["best:accuracy", "best:fair"])
def test_a_round_is_not_handed_out_where_clients_keep_a_part_of_the_model(rule, held_fed):
    whole = replace(PLAN, minibatch=16)  # no minibatch of one example
    plan = replace(whole, batchnorm="local")
    with pytest.raises(InputError, match="choose another --deploy or --batchnorm") as error:
        start([Run(one("fedavg"), 1, held_fed, rule)], plan, norm_net)
    assert rule in str(error.value)
    start([Run(one("fedavg"), 1, held_fed, "last")], plan, norm_net)
    start([Run(one("fedavg"), 1, held_fed, rule)], replace(whole, batchnorm="average"), norm_net)


# --- the page ------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path):
    """The page of a target of which two variants have runs; the first has losses."""
    target = targets.load_target("fair-fashion-mnist")
    rng = np.random.default_rng(1)
    first = some_runs(["fedavg", "fedmaba", "fedmaba:loss_at=held"])
    first = [
        run
        if run.label == "fedavg"
        else with_losses(run, rng.uniform(0.1, 1, (6, 20)) - 2 * run.accuracy("last"))
        for run in first
    ]
    save(tmp_path / "a.npz", target.jobs[0], first, HELD)
    second = [made(r, s, SIZE[::-1], 6, held=HELD) for r in ("fedavg", "fedmaba") for s in (0, 5)]
    save(tmp_path / "b.npz", target.jobs[1], second, HELD)
    return reproduction.document(target, archive.read_folder(tmp_path)), first, second


def test_the_page_tells_losses_and_their_link_to_accuracy(page):
    shown, first, _ = page
    rows = {row[1].text: row for row in grid_named(shown, "losses").rows}
    assert len(rows) == 2  # FedAvg's clients report none
    own = [run for run in first if run.label == "fedmaba"]
    told = [run.tables[TRAINING].array()[-1] for run in own]
    link = [
        np.corrcoef(loss, run.accuracy("last")[-1])[0, 1]
        for loss, run in zip(told, own, strict=True)
    ]
    want = f"{np.mean(told):.2f} ± {np.mean([x.std() for x in told]):.2f}, {np.mean(link):+.2f}"
    assert rows["FedMABA, α=0.5"][-1].text == want
    assert np.mean(link) < -0.5
    assert np.isnan(fair_tables.losses(with_losses(own[0], np.ones((6, 20))))["loss_link"]).all()


def test_a_change_is_held_against_the_same_row_without_it(page):
    shown, first, second = page
    rows = {tuple(cell.text for cell in row[:3]): row for row in grid_named(shown, "changes").rows}
    plain = ("no weight decay", "last")
    assert (*plain, "FedMABA, α=0.5") not in rows
    assert (*plain, "FedAvg") not in rows

    def variance(runs, row, at=-1):
        return {r.seed: 1e4 * r.accuracy("last")[at].var() for r in runs if r.label == row}

    base = variance(first, "fedmaba")
    held = variance(first, "fedmaba:loss_at=held")  # is a change of FedMABA
    found = rows[(*plain, "FedMABA, α=0.5, held-out loss")]
    assert found[3].text == "3"
    assert found[4].value == pytest.approx(np.mean([held[s] - base[s] for s in base]))
    decayed = variance(second, "fedmaba")
    found = rows["weight decay 0.001", "last", "FedMABA, α=0.5"]
    assert found[3].text == "1"  # seed 0, which both have
    assert found[4].value == pytest.approx(decayed[0] - base[0])


def test_rows_are_held_against_fedavg_under_the_same_rule(page):
    shown, first, _ = page
    names = [grid.name for grid in shown.grids]
    handed = ["handed-last", "handed-bestaccuracy", "handed-bestfair", "handed-poly8"]
    assert names == ["losses", "rounds", *handed, "changes"]
    found = selection.fairness_by_seed(archive.History(first), "last", CHOICES["fair"])
    row = next(
        row
        for row in grid_named(shown, "handed-bestfair").rows
        if [c.text for c in row[:2]] == ["no weight decay", "FedMABA, α=0.5"]
    )
    ours, theirs = (selection.by_seed(found, r, "worst") for r in ("fedmaba", "fedavg"))
    assert row[5].value == pytest.approx(np.mean([*ours.values()]))
    assert row[8].value == pytest.approx(np.mean([ours[s] - theirs[s] for s in ours]))
