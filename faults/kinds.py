"""Folders of every kind that fedmaba writes, made once and copied for each case."""

from __future__ import annotations

import functools
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from faults import process
from faults.common import make_data

ROOT = Path(__file__).parents[1]
BASE = [
    "--data", "tiny.npz", "--model", "softmax", "--minibatch", "5", "--eval-every", "2",
    "--device", "cpu", "--threads", "1", "--quiet", "--out", "run",
]  # fmt: skip
AGAIN = ("compare", "fedavg", "fedmaba", "--rounds", "6", "--seeds", "1", *BASE)
FIGURES = (
    "distribution", "tradeoff", "rounds", "variance", "accuracy", "worst", "weights", "constraint",
    "gains", "heterogeneity",
)  # fmt: skip
RUNS = ("done", "half", "attacked", "diverged")
ARCHIVE = "readings.92642bfcf4.npz"  # the smallest of them
TARGET = "readings"


def make(root: Path, names: Sequence[str]) -> None:
    """A folder per kind: `run` inside it, beside the data it was run on."""
    begun = {}
    for name in names:
        if name == "begun":  # half done, without a checkpoint
            continue
        (root / name).mkdir()
        if name == "archive":
            (root / name / "run").mkdir()
            content = (ROOT / "experiments" / "results" / ARCHIVE).read_bytes()
            (root / name / "run" / ARCHIVE).write_bytes(content)
        else:  # this process must do no work of its own: its forks would inherit it
            work = functools.partial(_make, name)
            begun[name] = process.start(work, root / name, log=os.devnull)
    for name, pid in begun.items():
        code = process.wait(pid)
        if code != {"diverged": 65, "half": 130}.get(name, 0):
            raise RuntimeError(f"the folder {name} could not be made: exit code {code}")
        for older in sorted((root / name / "run").glob("checkpoint/*.ckpt"))[:-1]:
            older.unlink()  # else it would be read in the place of a damaged one
    if "begun" in names:
        shutil.copytree(root / "half", root / "begun")
        shutil.rmtree(root / "begun" / "run" / "checkpoint")


def _make(name: str) -> int:
    """Make a folder in this process, which is a fork."""
    make_data(Path("tiny.npz"))
    if name == "server":
        return serve(["server", "run", "3"])
    if name == "half":
        return _half()
    more = {
        "done": ["--rounds", "4", "--seeds", "2"],
        "attacked": ["--rounds", "4", "--seeds", "1", "--attack", "loss=x3", "--hostile", "20%"],
        "diverged": ["--rounds", "4", "--seeds", "1", "--lr", "1e38"],
    }[name]
    return process.fedmaba(["compare", "fedavg", "fedmaba", *more, *BASE])


def _half() -> int:
    """A run that was stopped after round 4 of 6, as by Ctrl-C."""
    from fedmaba.experiment import session

    real = session.Session.rounds

    def rounds(self: session.Session, stop: object = None) -> object:
        return real(self, lambda: self.batch.progress.round >= 4)

    session.Session.rounds = rounds
    return process.fedmaba(AGAIN)


def serve(words: Sequence[str]) -> int:
    """`server FOLDER ROUNDS`: a Flower server's state goes on for some rounds, without Flower."""
    from fedmaba.deploy.server import FederationServer
    from fedmaba.deploy.settings import FederationSettings
    from fedmaba.deploy.validation import Reply
    from fedmaba.errors import FedmabaError
    from fedmaba.strategies import parse

    model = {"w": np.zeros((3, 5), np.float32), "b": np.zeros(3, np.float32)}
    rng = np.random.default_rng(0)
    try:
        server = FederationServer(
            FederationSettings(parse("fedfv:tau=2")[0]), model, Path(words[1])
        )
        server.join(["north", "south", "west"])
        for _ in range(int(words[2])):
            replies = []
            for site in server.draw(["north", "south", "west"], 1.0, 1):
                server.task(site)
                told = {n: a + rng.normal(size=a.shape).astype(a.dtype) for n, a in model.items()}
                replies.append(Reply(len(replies), site, told, 10, 0.5, 0.5))
            server.finish_round(replies)
        server.write_models()
        server.close()
    except FedmabaError as error:
        print(f"fedmaba: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def commands(kind: str, rng: random.Random) -> list[tuple[str, ...]]:
    """Every command that reads a folder of this kind, each with options drawn at random."""
    if kind == "archive":
        return [
            ("reproduce", "--from", "run", "--out", "out"),
            ("reproduce", TARGET, "--from", "run", "--out", "out"),
            ("reproduce", "table1-grid", "--from", "run", "--out", "out"),
            ("table", "run"),
        ]
    found = [
        ("table", "run", *rng.choice(TABLES)),
        ("table", "run", "--to", rng.choice(["markdown", "latex", "csv"])),
        ("report", "run", "-o", "out.html"),
        ("figure", rng.choice(FIGURES), "run", "-o", "out" + rng.choice([".svg", ".pdf", ".png"])),
        ("export", "run", *rng.choice([(), ("-o", "out")])),
        ("watch", "run"),
        ("resume", "run", "--quiet"),
    ]
    if kind == "server":
        return [*found, ("server", "run", "1"), ("server", "run", "1")]
    if kind == "half":
        found += [AGAIN, ("resume", "run", "--quiet")]
    if rng.random() < 0.1:
        found.append(("reproduce", TARGET, "--from", "run", "--out", "out"))
    return found


TABLES = (
    (), ("--model", "last"), ("--at", "best"), ("--at", "last5"), ("--share", "50%"),
    ("--against", "fedavg"), ("--against", "fedavg", "--at", "best", "--model", "last"),
)  # fmt: skip
