"""Targets that search: as many trials for every row, picks on validation data, fresh seeds."""

import zipfile

import numpy as np
import pytest
from reproduction_cases import ABOUT, SMALL, command, grid_named

import equal_chances
import run_parts
from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.results.history import GrowingArray, RunHistory
from laboratory import archive, baseline_tables, page, picks, target_sources, targets
from laboratory.targets import RunKey, Scale

NAMES = [name for name in targets.names() if name.startswith("baselines-")]
EQUAL = [name for name in targets.names() if name.startswith("equal-")]
SIZE, HELD = np.full(4, 100), np.full(4, 50)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """One small target and no others."""
    where = tmp_path / "experiments"
    where.mkdir()
    (where / "baselines-small.toml").write_text(SMALL)
    monkeypatch.setattr(targets, "folder", lambda: where)
    return where / "baselines-small.toml"


def made(key, tested, held, own=None, diverged=""):
    """A run evaluated once, with these shares of examples right at each of four clients."""
    run = RunHistory(key.label, key.seed, key.deploy, SIZE, diverged)
    run.tables["evaluated"] = GrowingArray(np.array([2]))
    scores = {"last": tested, "deployed": tested, "personal": tested if own is None else own}
    scores |= {"last_validation": held, "deployed_validation": held}
    scores["personal_validation"] = held if own is None else own
    for name, value in scores.items():
        run.tables[f"{name}.accuracy"] = GrowingArray(np.array([value], float))
        run.tables[f"{name}.loss"] = GrowingArray(np.zeros((1, 4)))
    return run


def fill(folder, held, tested=(0.5, 0.5, 0.5, 0.5), own=None, diverged=(), only=None):
    """The trials of the small target; `held` gives shares of validation examples by experiment."""
    folder.mkdir(exist_ok=True)
    target = targets.load_target("baselines-small")
    for j, job in enumerate(target.jobs):
        runs = [
            made(
                key,
                tested,
                held[j, key.label],
                (own or {}).get(key.label),
                "it diverged" if (j, key.label) in diverged else "",
            )
            for key in job.runs
            if only is None or key.label in only
        ]
        about = ABOUT | {"settings": job.settings}
        archive.write_archive(folder / f"{j}.npz", runs, [HELD] * len(runs), about)
    return target, archive.read_folder(folder)


EVEN, UNEVEN, BETTER = (0.5, 0.5, 0.5, 0.5), (0.2, 0.8, 0.4, 0.6), (0.6, 0.6, 0.5, 0.7)
ALIKE = {
    (0, "fedavg"): UNEVEN,
    (1, "fedavg"): EVEN,
    (0, "fedmaba:alpha=0.2"): EVEN,
    (0, "fedmaba:alpha=0.8"): BETTER,
    (0, "ditto:lam=0.1"): EVEN,
    (0, "ditto"): EVEN,
}


def picked(target, batches):
    """The experiment and the label of each row's pick."""
    place = {job.digest: j for j, job in enumerate(picks.searched(target, batches).jobs)}
    return {
        t.row: (place[t.job.digest], t.label) for t in picks.trials(target, batches) if t.picked
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_row_has_four_trials(name):
    target = targets.load_target(name)
    trials = [(job.experiment.train.lr, label) for job in target.jobs for label in job.strategies]
    rows = {targets.row_of(label) for _, label in trials}
    assert rows < strategies.REGISTRY.keys()
    for row in rows:
        assert len({t for t in trials if targets.row_of(t[1]) == row}) == 4
    assert len(target.jobs[0].fresh) == (5 if "cifar" in name else 10)


@pytest.mark.parametrize("name", EQUAL)
def test_every_strategy_of_the_package_has_the_same_chance(name):
    target = targets.load_target(name)
    assert equal_chances.unequal_rules(target) == []
    rows = {targets.row_of(label) for job in target.jobs for label in job.strategies}
    assert rows == strategies.REGISTRY.keys() - {"fairfed"}  # which needs groups of people
    for job in target.jobs:
        assert not {key.seed for key in job.runs} & {*job.fresh}


def test_the_fairest_of_nearly_the_best_is_picked_on_validation_data(small, tmp_path):
    target, batches = fill(tmp_path / "a", ALIKE, own={"ditto": BETTER, "ditto:lam=0.1": EVEN})
    found = picked(target, batches)
    assert found["fedavg"] == (1, "fedavg")  # equal mean, less variance
    assert found["fedmaba"] == (0, "fedmaba:alpha=0.8")  # ten points above the other
    assert found["ditto"] == (0, "ditto")  # by the clients' own models: the server's are equal
    other = ALIKE | {(0, "fedavg"): EVEN, (1, "fedavg"): UNEVEN}
    assert picked(*fill(tmp_path / "b", other))["fedavg"] == (0, "fedavg")
    assert picked(*fill(tmp_path / "c", ALIKE, tested=UNEVEN))["fedavg"] == (1, "fedavg")


def test_a_yardstick_that_clients_train_alone_is_not_judged(small, tmp_path):
    small.write_text(SMALL.replace("ditto:lam=[0.1,1.0]", "eagle:lam=[1.0,5.0]"))
    held = ALIKE | {(0, "eagle"): UNEVEN, (0, "eagle:lam=5"): EVEN}
    assert picked(*fill(tmp_path / "a", held, own={"eagle": BETTER}))["eagle"] == (0, "eagle:lam=5")
    judged = {row: picks.judged_model(kind()) for row, kind in strategies.REGISTRY.items()}
    assert {row for row, model in judged.items() if model == "personal"} == {
        *("ditto", "local", "pfedme", "apfl", "perfedavg", "fedbabu", "fedala"),
    }
    layers = {row for row, kind in strategies.REGISTRY.items() if picks.for_own_models(kind())}
    assert layers - {row for row, model in judged.items() if model == "personal"} == {
        *("fedper", "fedrep", "lgfedavg"),
    }


def test_a_trial_that_diverged_is_not_picked_and_one_that_lacks_leaves_its_row_out(small, tmp_path):
    target, batches = fill(tmp_path / "a", ALIKE, diverged={(1, "fedavg")})
    assert picked(target, batches)["fedavg"] == (0, "fedavg")
    lost = {(0, "fedavg"), (1, "fedavg")}
    target, batches = fill(tmp_path / "b", ALIKE, diverged=lost)
    assert "fedavg" not in picked(target, batches)
    assert "Every trial diverged: FedAvg." in page.document(target, batches).text
    assert not picks.waiting(picks.trials(target, batches))
    target, batches = fill(tmp_path / "c", ALIKE, only=("fedavg", "fedmaba:alpha=0.8"))
    assert picked(target, batches).keys() == {"fedavg"}
    assert picks.waiting(picks.trials(target, batches)) == ["fedmaba", "ditto"]
    told = page.document(target, batches).text
    assert "Not picked yet, because a trial is missing: fedmaba, ditto." in told


def test_fresh_seeds_follow_those_of_the_trials(small, tmp_path):
    target, batches = fill(tmp_path / "a", ALIKE)
    whole = picks.with_picks(target, batches)
    fresh = [key for job in whole.jobs for key in job.runs if key.seed >= 1]
    assert set(fresh) == {
        RunKey(label, seed, "poly:8")
        for label in ("fedavg", "fedmaba:alpha=0.8", "ditto:lam=0.1")
        for seed in (1, 2)
    }
    assert picks.with_picks(whole, batches) == whole
    (size,) = picks.target_sizes(batches)
    assert (size.runs, size.done) == (6 + 6, 6)
    (size,) = picks.target_sizes([])
    assert (size.runs, size.done, size.updates) == (12, 0, 12 * 4 * 2)
    one = targets.load_target("baselines-small", Scale(seeds=(2,)))
    assert one.jobs[0].fresh == (2,)
    with pytest.raises(InputError, match="leaves none of the seeds 1 to 2, which no trial has"):
        targets.load_target("baselines-small", Scale(seeds=(0,)))


GRID = SMALL.partition("[[target.variant]]")[0].replace("[0.2,0.8]", "[0.2,0.5,0.8]")
GRID = (
    GRID.replace(', "ditto:lam=[0.1,1.0]"', "")
    + """
step_sizes = [0.05, 0.1, 0.2, 0.4]
[target.further]
lr = { low = [0.02], high = [0.8, 1.6] }
fedmaba = { low = "alpha = 0 is FedAvg", high = [0.9, 1.0] }
"""
)


def fill_grid(folder, best, lacking=()):
    """The trials of the grid, round after round of what it asks for; `best` are not UNEVEN."""
    folder.mkdir()
    target, batches = targets.load_target("baselines-small"), []
    while asked := [
        (job, left)
        for job in picks.searched(target, batches).jobs
        if (left := [k for k in archive.collect(batches, job)[2] if k.label not in lacking])
    ]:
        for job, keys in asked:
            lr = job.experiment.train.lr
            runs = [made(k, EVEN, best.get((lr, k.label), UNEVEN)) for k in keys]
            about = ABOUT | {"settings": job.settings}
            name = f"{len(list(folder.iterdir()))}.npz"
            archive.write_archive(folder / name, runs, [HELD] * len(runs), about)
        batches = archive.read_folder(folder)
    return target, batches


def test_a_pick_at_the_end_of_its_grid_is_tried_further(small, tmp_path, capsys, monkeypatch):
    small.write_text(GRID)
    best = {(0.1, "fedavg"): EVEN, (0.4, "fedmaba:alpha=0.8"): EVEN}
    target, batches = fill_grid(tmp_path / "a", best)
    tried = [(t.row, t.job.experiment.train.lr, t.label) for t in picks.trials(target, batches)]
    assert [t for t in tried if t[0] == "fedavg"] == [
        ("fedavg", lr, "fedavg") for lr in (0.05, 0.1, 0.2, 0.4)
    ]
    base = {(lr, a) for lr in (0.05, 0.1, 0.2, 0.4) for a in ("0.2", "0.5", "0.8")}
    found = {(lr, label.partition("=")[2] or "0.5") for row, lr, label in tried if row != "fedavg"}
    assert found - base == {(0.8, "0.8"), (0.4, "0.9")}  # worse than the pick, so no further
    assert equal_chances.unequal_rules(target) == []
    monkeypatch.setattr(equal_chances, "RESULTS", tmp_path / "a")
    assert equal_chances.main(["baselines-small"]) == 1
    said = capsys.readouterr().out
    assert "fedmaba lacks the fresh seeds [1, 2]" in said
    assert "fedavg lacks the fresh seeds [1, 2]" in said


def test_a_grid_grows_along_a_line_to_where_the_file_ends(small, tmp_path):
    small.write_text(GRID)
    best = {(0.4, "fedavg"): EVEN, (0.8, "fedavg"): BETTER, (1.6, "fedavg"): (0.7, 0.7, 0.7, 0.7)}
    best |= {(0.1, "fedmaba:alpha=0.2"): EVEN}
    target, batches = fill_grid(tmp_path / "a", best)
    found = {t.row: t for t in picks.trials(target, batches) if t.picked}
    assert found["fedavg"].job.experiment.train.lr == 1.6
    met = equal_chances.ends_met(target, batches)
    assert met == {"extended to its end": 1, "alpha = 0 is FedAvg": 1}


def test_a_row_whose_further_trials_are_missing_waits(small, tmp_path):
    small.write_text(GRID)
    best = {(0.1, "fedavg"): EVEN, (0.1, "fedmaba:alpha=0.8"): EVEN}
    target, batches = fill_grid(tmp_path / "a", best, lacking=("fedmaba:alpha=0.9",))
    assert picks.waiting(picks.trials(target, batches)) == ["fedmaba"]
    assert "fedmaba lacks 1 runs" in " ".join(equal_chances.missing_chances(target, batches))


def test_rules_that_give_a_row_less_are_named(small):
    small.write_text(GRID.replace("0.2,0.5,0.8", "0.2,0.8").replace("lr = { low", "fedavg = { low"))
    faults = " ".join(equal_chances.unequal_rules(targets.load_target("baselines-small")))
    assert "fedmaba has 2 values of alpha, not 3" in faults
    assert "lr has no entry" in faults
    assert "fedavg has a needless entry" in faults


def test_rows_with_other_numbers_of_trials_are_refused(small):
    small.write_text(SMALL.replace("alpha=[0.2,0.8]", "alpha=[0.2,0.5,0.8]"))
    with pytest.raises(InputError, match="differ: fedavg 2, fedmaba 3, ditto 2"):
        targets.load_target("baselines-small")
    small.write_text(SMALL.replace('validation = "20%"', ""))
    with pytest.raises(InputError, match="a search picks on validation data"):
        targets.load_target("baselines-small")
    small.write_text(SMALL.replace("seeds = 2", "seeds = [1, 2]"))
    with pytest.raises(InputError, match="say how many seeds follow those of the trials"):
        targets.load_target("baselines-small")


@pytest.fixture
def parts(small, tmp_path):
    """Play parts of the small target on the CPU; the results lie in a folder."""
    zipped, results = tmp_path / "parts.zip", tmp_path / "results"

    def play(*which):
        machine = ("--device", "cpu", "--dtype", "float32")
        run_parts.main(["--out", str(zipped), *machine, *(f"baselines-small#{w}" for w in which)])
        zipfile.ZipFile(zipped).extractall(results)
        return results

    return play


@pytest.mark.slow
def test_parts_search_then_run_what_was_picked(parts, capsys):
    results = parts("picks", "search", "picks")
    said = capsys.readouterr().out
    assert "no pick yet for fedavg, fedmaba, ditto: run #search before" in said
    assert "FAILED" not in said.partition("#search: 6 runs")[2]
    assert "#picks: 6 runs" in said
    target, batches = targets.load_target("baselines-small"), archive.read_folder(results)
    assert sum(len(batch.keys) for batch in batches) == 12
    history = picks.picked_history(target, batches)
    assert {(run.label, run.seed) for run in history.runs} == {
        (row, seed) for row in ("fedavg", "fedmaba", "ditto") for seed in (1, 2)
    }
    assert all(run.has_personal for run in history.runs)
    (source,) = target_sources.of_target(results, "baselines-small")
    assert {run.label for run in source.history.runs} == {"fedavg", "fedmaba", "ditto"}
    written = page.document(target, batches)
    names = [row[0].text for row in grid_named(written, "levels").rows]
    assert names == ["FedAvg", "FedMABA"]
    names = [row[0].text for row in grid_named(written, "personal-levels").rows]
    assert names == ["FedAvg", "FedMABA", "Ditto"]
    assert len(grid_named(written, "search").rows) == 6
    assert len(grid_named(written, "ranks").rows) == 2
    names = {grid.name for grid in written.grids}
    assert {"personal-levels", "personal-differences", "differences"} <= names
    assert written.figures.keys() == {"tradeoff"}
    assert not [text for text in written.text if text.startswith("Not run yet")]
    shown = baseline_tables.over_settings({"here": target}, batches)
    assert {row[0].text for row in shown.rows} == {"FedAvg", "FedMABA"}


@pytest.mark.slow
def test_one_command_searches_runs_the_picks_and_redraws_them(small, tmp_path, monkeypatch, capsys):
    run = command(monkeypatch, capsys, tmp_path)
    where = tmp_path / "out"
    code, first, said = run("baselines-small", "--out", where, "--device", "cpu")
    assert code == 0, said
    assert "Holm's correction" in first
    held = sum(len(batch.keys) for batch in archive.read_folder(where))
    assert held == 12
    code, again, _ = run("baselines-small", "--from", where, "--out", where)
    assert code == 0
    assert again == first
