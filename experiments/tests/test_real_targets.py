"""Every strategy on real clients: rows, picks by the worst tenth, the table over federations."""

import numpy as np
import pytest
from reproduction_cases import ABOUT

from fedmaba import strategies
from fedmaba.data import real
from fedmaba.results.history import GrowingArray, RunHistory
from fedmaba.results.metrics import Metric
from laboratory import archive, picks, real_tables, run, targets

NAMES = [name for name in targets.names() if name.startswith("real-")]
ERROR = Metric("error", lower=True, shares=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_that_fits_has_two_trials(name):
    target = targets.load_target(name)
    data = target.jobs[0].experiment.data.name.removeprefix(real.PREFIX)
    known = real.REAL[data.partition(",")[0]]
    trials = [label for job in target.jobs for label in job.strategies]
    rows = [targets.row_of(label) for label in trials]
    lacking = {"moon"}  # it compares features, and the model is linear
    # these joined fedmaba after the runs
    lacking |= {"fedexp", "fedvarp", "maxfl", "feddgga", "pfedme", "perfedavg", "apfl"}
    lacking |= {"rfa", "cclip", "nnm", "fedebaplus", "scaffpd"}
    if known.task == "regress" or "flights" in name:
        lacking |= {"fedntd", "fairfed"}
    assert set(rows) == strategies.REGISTRY.keys() - lacking
    assert all(rows.count(row) == 2 for row in rows)
    if not data.partition(",")[2]:
        assert target.view.clients == known.found[0]


def test_a_batch_has_one_form_of_model(tmp_path):
    target = targets.load_target("real-star", targets.Scale(only=("fedavg", "fedper", "lgfedavg")))
    forms = [
        {work.job.strategies[key.label].local().own_layers for key in work.runs}
        for work in run.plan(target, tmp_path)
    ]
    assert all(len(form) == 1 for form in forms)
    assert set.union(*forms) == {(), ("*.bias",), ("*.weight",)}


def made(key, held, tested, own=None):
    """A run with these errors of four clients on validation and test data."""
    size = np.full(len(held), 10)
    out = RunHistory(key.label, key.seed, key.deploy, size, metric=ERROR)
    out.tables["evaluated"] = GrowingArray(np.array([20]))
    scores = {"last": tested, "deployed": tested, "personal": tested if own is None else own}
    scores |= {f"{model}_validation": held for model in ("last", "deployed", "personal")}
    for model, values in scores.items():
        out.tables[f"{model}.accuracy"] = GrowingArray(np.array([values], float))
        out.tables[f"{model}.loss"] = GrowingArray(np.zeros((1, len(values))))
    return out


def written(folder, name, of_row):
    """The trials of a target with two rows, then the fresh runs of what was picked."""
    target = targets.load_target(name, targets.Scale(only=("fedavg", "ditto")))
    for stage in ("trials", "fresh"):
        shown = picks.with_picks(target, archive.read_folder(folder))
        for j, job in enumerate(shown.jobs):
            keys = [key for key in job.runs if (key.seed > 0) == (stage == "fresh")]
            if keys:
                runs = [of_row(key, job.experiment.train.lr) for key in keys]
                sizes = [np.full(run.n_clients, 5) for run in runs]
                about = ABOUT | {"settings": job.settings}
                archive.write_archive(folder / f"{name}{stage}{j}.npz", runs, sizes, about)
    return target


def fedavg_and_ditto(key, lr):
    """FedAvg's mean is better at 0.02, its worst client at 0.1; Ditto halves every error."""
    worst = {0.02: 4.0, 0.1: 3.0}.get(lr, 2.0)
    held = np.array([1.0, 1.0, 1.0 + (lr == 0.1), worst])
    own = np.array([1.0, 1.0, 1.0, 2.0]) if key.label.startswith("ditto") else held * 1.5
    return made(key, held, np.array([2.0, 2.0, 2.0, 4.0]) + key.seed, own + key.seed / 2)


def test_the_worst_tenth_picks_and_differences_are_in_per_cent(tmp_path):
    target = written(tmp_path, "real-star", fedavg_and_ditto)
    batches = archive.read_folder(tmp_path)
    found = {t.row: t for t in picks.trials(target, batches) if t.picked}
    assert target.jobs[found["fedavg"].job].experiment.train.lr == 0.1
    assert found["fedavg"].good == pytest.approx(-3.0)
    table = real_tables.over_federations({"schools": target}, batches)
    lines = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert lines["FedAvg"] == [
        "+0.0",
        "+0.0",
        "2.83",
    ]  # its worst ties with the tuned one in seed 1
    # Ditto by the clients' own models: (2 + s / 2) / (4 + s) is half in each seed.
    assert lines["Ditto"] == ["-50.0*", "-50.0*", "1.00"]
    worst = np.mean([(4.5 + s / 2) / (4 + s) - 1 for s in (1, 2, 3)])
    assert lines[real_tables.TUNED][0] == f"{100 * worst:+.1f}"


def test_ranks_are_over_federations_and_seeds(tmp_path):
    def larger(key, lr):  # Another federation has another number of clients.
        held = np.array([1.0, 1.0, 2.0, 3.0, 4.0])
        return made(key, held, held + key.seed)

    shown = {NAMES[0]: written(tmp_path, NAMES[0], fedavg_and_ditto)}
    shown[NAMES[1]] = written(tmp_path, NAMES[1], larger)
    batches = archive.read_folder(tmp_path)
    found = real_tables.over_federations(shown, batches)
    assert "over 6 blocks" in found.title
    assert {len(row) for row in found.rows} == {1 + 2 * len(shown) + 1}
