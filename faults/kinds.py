"""Folders of every kind that fedmaba writes, made once and copied for each case."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tools.faults import process
from tools.faults.common import make_data

ROOT = Path(__file__).parents[2]
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


def make(root: Path, names: Sequence[str] = (*RUNS, "server", "archive")) -> None:
    """A folder per kind: `run` inside it, beside the data it was run on."""
    begun = {}
    for name in names:
        (root / name).mkdir()
        if name == "archive":
            (root / name / "run").mkdir()
            content = (ROOT / "experiments" / "results" / ARCHIVE).read_bytes()
            (root / name / "run" / ARCHIVE).write_bytes(content)
        else:  # this process must do no work of its own: its forks would inherit it
            begun[name] = _begin(name, root / name)
    for name, pid in begun.items():
        code = process.wait(pid)
        if code != (65 if name == "diverged" else 0):
            raise RuntimeError(f"the folder {name} could not be made: exit code {code}")
        for older in sorted((root / name / "run").glob("checkpoint/*.ckpt"))[:-1]:
            older.unlink()  # else it would be read in the place of a damaged one


def _begin(name: str, folder: Path) -> int:
    """Make a folder in a fork."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(folder)
        code = _make(name)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        os._exit(code)


def _make(name: str) -> int:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    make_data(Path("tiny.npz"))
    if name == "server":
        return serve(["server", "run", "3"])
    if name == "half":
        return _half()
    from fedmaba import cli

    more = {
        "done": ["--rounds", "4", "--seeds", "2"],
        "attacked": ["--rounds", "4", "--seeds", "1", "--attack", "loss=x3", "--hostile", "20%"],
        "diverged": ["--rounds", "4", "--seeds", "1", "--lr", "1e38"],
    }[name]
    sys.argv = ["fedmaba", "compare", "fedavg", "fedmaba", *more, *BASE]
    cli.main()
    return 0


def _half() -> int:
    """A run that was stopped after round 4 of 6, as by Ctrl-C."""
    from fedmaba import cli
    from fedmaba.experiment import session

    real = session.Session.rounds

    def rounds(self: session.Session, stop: object = None) -> object:
        return real(self, lambda: self.batch.progress.round >= 4)

    session.Session.rounds = rounds  # type: ignore[method-assign, assignment]
    sys.argv = ["fedmaba", *AGAIN]
    try:
        cli.main()
    except SystemExit as end:
        return 0 if end.code == 130 else 1
    return 1


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
