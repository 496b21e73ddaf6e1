"""The targets of real federations: their sizes, and scores that are no counts of examples."""

import numpy as np
import pytest
from reproduction_cases import ABOUT, fill, grid_named

from fedmaba.data import datasets
from fedmaba.data.federation import Division, divide
from fedmaba.errors import InputError
from fedmaba.results.history import GrowingArray, RunHistory
from fedmaba.results.metrics import OF_TASK
from laboratory import archive, page, targets

NAMES = ("natural-heart", "natural-adult", "natural-shakespeare")


@pytest.mark.parametrize("name", ["natural-heart", pytest.param(NAMES[2], marks=pytest.mark.slow)])
def test_a_target_says_how_many_clients_its_data_have(name):
    (job,) = targets.load_target(name).jobs
    asked = job.experiment.data
    how = Division("given", None, None, 0.0, asked.min_examples or 0)
    fed = divide(datasets.load(asked.name), [0], how)[0]
    assert job.clients == fed.n_clients
    assert targets.updates(job, job.runs, 1) == len(job.runs) * fed.n_clients


def test_five_strategies_stand_in_each_of_them(tmp_path):
    batches = fill(tmp_path, *NAMES)
    for name in NAMES:
        target = targets.load_target(name)
        shown = page.document(target, batches)
        assert len(grid_named(shown, "last-deployed").rows) == 5
        if name != "natural-shakespeare":  # it has one seed
            assert len(grid_named(shown, "pairs-last-deployed").rows) == 4
        (told,) = (text for text in shown.text if text.startswith("Set-up: "))
        assert f", its own {target.view.clients} clients, all in each round" in told
        assert "None" not in told
        assert "image" not in told


def scored(label, seed, scores):
    """A run whose scores are shares of positions, which no count of examples gives."""
    run = RunHistory(label, seed, "poly:8", np.array([7, 9, 4]), metric=OF_TASK["sequence"])
    run.tables["evaluated"] = GrowingArray(np.arange(1, len(scores) + 1))
    for model in ("last", "deployed"):
        run.tables[f"{model}.accuracy"] = GrowingArray(np.array(scores))
        run.tables[f"{model}.loss"] = GrowingArray(np.zeros((len(scores), 3)))
    return run


def write(path, runs):
    nobody = [np.zeros(3, int)] * len(runs)
    (job,) = targets.load_target("natural-shakespeare").jobs
    archive.write_archive(path, runs, nobody, ABOUT | {"settings": job.settings})


def test_scores_of_another_metric_come_back_as_they_were(tmp_path):
    scores = [[0.2911, 0.3333, np.nan], [0.1234567, 0.5, 0.25]]
    runs = [scored("fedavg", 0, scores), scored("afl", 1, scores[:1])]
    write(tmp_path / "a.npz", runs)
    found = archive.read_file(tmp_path / "a.npz").runs
    for run, back in zip(runs, found.values(), strict=True):
        assert back.metric == OF_TASK["sequence"]
        assert back.accuracy() == pytest.approx(run.accuracy(), abs=1e-7, nan_ok=True)
    (job,) = targets.load_target("natural-shakespeare").jobs
    history, _, missing = archive.collect(archive.read_folder(tmp_path), job)
    assert history.unit.name == "positions right"
    assert len(missing) == len(job.runs) - 1  # AFL hands out its own model


def test_scores_that_no_run_writes_are_refused(tmp_path):
    write(tmp_path / "a.npz", [scored("fedavg", 0, [[0.1, np.inf, 0.3]])])
    with pytest.raises(InputError, match="holds a score that is not finite"):
        archive.read_file(tmp_path / "a.npz").runs  # noqa: B018
