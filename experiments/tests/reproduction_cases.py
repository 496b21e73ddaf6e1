"""What the tests of the reproduction share: made-up runs, small targets, the command line."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from fedmaba import cli
from fedmaba.results.history import RunHistory
from laboratory import archive, targets


def command(monkeypatch, capsys, tmp_path):
    """Run `fedmaba reproduce`, or `of`, here in an empty folder: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, of="reproduce"):
        monkeypatch.setattr("sys.argv", ["fedmaba", of, *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


SMALL = """
strategies = ["fedavg", "fedmaba:alpha=[0.2,0.8]", "ditto:lam=[0.1,1.0]"]
seeds = 2
model = "softmax"
[data]
name = "sample"
clients = 4
validation = "20%"
[train]
rounds = 2
steps = 1
minibatch = 5
[eval]
every = 2
finetune = 1
[target]
kind = "baselines"
title = "A small search"
search = 1
[[target.variant]]
title = "step size 0.1"
set = { train = { lr = 0.1 } }
[[target.variant]]
title = "step size 0.2"
set = { train = { lr = 0.2 } }
strategies = ["fedavg"]
"""
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"


def made(label, seed, size, evaluations=6, deploy="poly:8", held=None, diverged=""):
    """A run with random but possible accuracies."""
    rng = np.random.default_rng(zlib.crc32(f"{label} {seed}".encode()))
    run = RunHistory(label, seed, deploy, size, diverged)
    if evaluations:
        run.tables["evaluated"] = [np.int64(10 * (e + 1)) for e in range(evaluations)]
    sizes = {"last": size, "deployed": size}
    if held is not None:
        sizes |= {"last_validation": held, "deployed_validation": held}
    for model, many in sizes.items() if evaluations else ():
        right = rng.integers(0, many + 1, (evaluations, len(many)))
        with np.errstate(invalid="ignore"):  # some may have no examples
            run.tables[f"{model}.accuracy"] = list(right / many)
        run.tables[f"{model}.loss"] = list(np.full(right.shape, np.nan))
    return run


ABOUT = {
    "target": "t",
    "seconds": 7.5,
    "dtype": "tf32",
    "device": "a machine",
    "versions": {"fedmaba": "0", "python": "3", "numpy": "2", "torch": "2"},
    "command": "fedmaba reproduce t",
}


def save(path, job, runs, held=None):
    held = np.zeros(len(runs[0].test_size), int) if held is None else held
    archive.write_archive(path, runs, [held] * len(runs), ABOUT | {"settings": job.settings})


def fill(folder, *names):
    """Histories of all runs of some targets, made up, at the paper's full settings."""
    folder.mkdir(exist_ok=True)
    jobs = {}
    for job in (job for name in names for job in targets.load_target(name).every_job()):
        jobs.setdefault(job.digest, (job, {}))[1].update(dict.fromkeys(job.runs))
    for digest, (job, keys) in jobs.items():
        held = np.full(20, 60) if job.experiment.data.validation != "0%" else None
        size = np.full(20, 100)
        runs = [made(k.label, k.seed, size, deploy=k.deploy, held=held) for k in keys]
        save(folder / f"{digest}.npz", job, runs, held)
    return archive.read_folder(folder)


def grid_named(page, name):
    return next(g for g in page.grids if g.name == name)
