"""What every campaign shares: a tally, a small experiment, hashes of a run folder."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from faults import process

Say = Callable[[str], None]
APART = {"about.json", "timing.jsonl", ".lock"}  # may differ when a run is repeated
STRATEGIES = [
    "fedavg", "fedsgd", "fedprox", "qffl:q=0.1", "afl", "term", "fedmgda", "propfair",
    "fedfv:tau=2", "fedmaba", "fedmaba:loss_at=mean", "fedmaba:loss_at=end,ball=global",
    "qffl:mode=sgd", "term:normalise=reference",
    # clients keep something, and for some of these the server keeps its mean
    "scaffold", "feddyn", "ditto:server=scaffold", "local", "scaffold:option=I", "ditto:lam=0.1",
    "mifa", "eagle", "fedvarp", "fedexp", "maxfl", "feddgga:d=1,rounds=3",
    "pfedme:lam=3,steps=2", "perfedavg", "apfl",
    # kept changes in layers, moments of the server, steps that are tried
    "fedlf:tau=2", "fedadam", "fedmdfg",
    # a first exchange before training
    "fedebaplus", "scaffpd", "gifair:on=loss",
    # other losses, rules of the server, layers that stay with clients
    "fedntd", "moon", "median", "trimmed:share=0.3", "multikrum",
    "rfa:weights=fedmaba", "cclip:around=last,beta=0.5", "nnm:rule=median:weights=afl",
    "fedper:layers=*.bias", "fedrep:layers=*.bias,epochs=1", "fedbabu:layers=*.bias",
]  # fmt: skip


@dataclass
class Tally:
    """What a campaign tried and lost, and what else it counted."""

    tried: int = 0
    lost: int = 0
    why: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, object] = field(default_factory=dict)

    def lose(self, why: str) -> None:
        self.lost += 1
        if len(self.why) < 20:
            self.why.append(why[:2000])

    def check(self, fine: bool, why: str) -> None:
        self.tried += 1
        if not fine:
            self.lose(why)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that goes away."""
    path = Path(tempfile.mkdtemp(prefix="fedmaba-faults-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder for a while."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def progress(say: Say, what: str, every: float = 10.0) -> Callable[[int, int, Tally], None]:
    """A line every few seconds."""
    last = time.monotonic()

    def show(done: int, total: int, tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last > every:
            last = time.monotonic()
            say(f"{what}: {done} of {total}, lost {tally.lost}")

    return show


def make_data(path: Path) -> Path:
    """A data file with a client column: 6 clients, 5 features, 3 classes."""
    rng = np.random.default_rng(1)
    client = np.repeat(np.arange(6), (10, 15, 20, 25, 10, 12))
    y = rng.integers(3, size=len(client))
    y[:3] = [0, 1, 2]
    x = rng.standard_normal((3, 5))[y] + rng.standard_normal((len(y), 5))
    np.savez(path, x=x.astype(np.float32), y=y, client=client)
    return path


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file that must repeat."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in APART
    }


def differ(want: dict[str, str], got: dict[str, str]) -> list[str]:
    """Names of files that are missing, surplus or different."""
    return sorted(n for n in want.keys() | got.keys() if want.get(n) != got.get(n))


def debris(folder: Path) -> list[str]:
    """Temporary files left in a run folder."""
    return [str(p) for p in folder.rglob("*") if p.name.endswith(".tmp")]


def call(*words: object) -> tuple[int, str, str]:
    """The command line in this process: exit code, stdout, stderr. A traceback is a code of -1."""
    _once()
    out, err = io.StringIO(), io.StringIO()
    before, path = sys.argv, list(sys.path)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = process.fedmaba(words)
    except BaseException:
        code = -1
        err.write("Traceback " + traceback.format_exc()[-700:])
    finally:
        sys.argv, sys.path[:] = before, path
    return code, out.getvalue(), err.getvalue()


@functools.cache
def _once() -> None:
    """Let typer build its commands once in this process, not in each call."""
    import typer.main

    typer.main.get_command = functools.cache(typer.main.get_command)


def one_line(text: str) -> bool:
    """Whether an error is one line in our own words."""
    lines = [line for line in text.splitlines() if not line.startswith("fedmaba: warning: ")]
    return len(lines) == 1 and lines[0].startswith("fedmaba: ") and "Traceback" not in text
