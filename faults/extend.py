"""SIGKILL while a finished folder is extended: by seeds, by a strategy, by rounds and seeds.

After each kill every command that reads must read what was finished. Then `fedmaba resume` or the
same command goes on to the end, and every file must be that of an unkilled extension.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

from tools.faults import inject, process
from tools.faults.common import Say, Tally, debris, differ, hashes, make_data, progress, scratch
from tools.faults.kill import place, said

READERS = ("table run", "report run", "export run", "figure rounds run -o f.svg")


class Case(NamedTuple):
    """A finished folder, the command that extends it, and what an unkilled one leaves."""

    template: Path
    words: list[str]
    want: dict[str, str]
    seconds: float


def cases(root: Path) -> list[Case]:
    """Three ways to extend the same folder of two seeds."""
    data = make_data(root / "tiny.npz")
    base = ["--data", str(data), "--quiet", "--device", "cpu", "--minibatch", "5", "--out", "run"]
    base += ["--model", "softmax", "--eval-every", "2", "--checkpoint-every", "1", "--threads", "1"]
    template = place(root, "template")
    begin = ["compare", "fedavg", "ditto:server=scaffold", *base, "--seeds", "2", "--rounds", "4"]
    if process.wait(process.fork(begin, template)):
        raise SystemExit(f"an unkilled run failed: {said(template)}")
    out = []
    for i, (strategies, rounds) in enumerate([("", "4"), ("fedfv:tau=2", "4"), ("", "6")]):
        words = ["compare", "fedavg", "ditto:server=scaffold", *strategies.split(), *base]
        words += ["--seeds", "3", "--rounds", rounds]
        here, start = copied(template, root / f"whole{i}"), time.monotonic()
        if process.wait(process.fork(words, here)):
            raise SystemExit(f"an unkilled extension failed: {said(here)}")
        out.append(Case(template, words, hashes(here / "run"), time.monotonic() - start))
    return out


def copied(template: Path, here: Path) -> Path:
    """A finished folder in a place of its own."""
    shutil.copytree(template, here)
    return here


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` SIGKILLs at random times."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "extend", 30)
    with scratch() as root:
        listed, trial = cases(root), 0
        while tally.tried < count:
            case = listed[trial % len(listed)]
            here, trial = copied(case.template, root / f"trial{trial}"), trial + 1
            pid = process.fork(case.words, here)
            code = process.send(pid, signal.SIGKILL, rng.uniform(0.0, case.seconds))
            if code is None and process.wait(pid) == -signal.SIGKILL:
                _judge(tally, here, case, rng, "at a random time")
                show(tally.tried, count, tally)
            elif code:
                tally.lose(f"{case.words}: exit code {code}: {said(here)}")
            shutil.rmtree(here)
        _count(tally)
        return tally


def steps(count: int, seed: int, say: Say) -> Tally:
    """SIGKILL at every file operation of the extensions, `count` of them at most."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "extend-steps", 30)
    with scratch() as root:
        every = [(case, n) for case in cases(root) for n in range(_operations(root, case))]
        for case, number in rng.sample(every, min(count, len(every))):
            here = copied(case.template, root / f"step{tally.tried}")

            def first(number: int = number) -> object:
                held = inject.at(Path("run"), number, inject.die)
                held.__enter__()
                return held

            code = process.wait(process.fork(case.words, here, first))
            if code != -signal.SIGKILL:
                tally.check(False, f"operation {number}: exit code {code}: {said(here)}")
            else:
                _judge(tally, here, case, rng, f"at file operation {number}")
            shutil.rmtree(here)
            show(tally.tried, len(every), tally)
        _count(tally)["file operations"] = len(every)
        return tally


def _operations(root: Path, case: Case) -> int:
    """How many file operations an extension does."""
    here = copied(case.template, root / "counted")

    def first() -> object:
        held = inject.at(Path("run"), -1, inject.die)
        seen, real = held.__enter__().seen, os._exit

        def end(code: int) -> None:
            Path("count").write_text(str(len(seen)))
            real(code)

        os._exit = end  # type: ignore[assignment]
        return held

    process.wait(process.fork(case.words, here, first))
    count = int((here / "count").read_text())
    shutil.rmtree(here)
    return count


def _judge(tally: Tally, here: Path, case: Case, rng: random.Random, when: str) -> None:
    """Read, go on, compare; count what is lost, and what has other bits."""
    parts = sorted((here / "run" / "parts").glob("*")) if (here / "run" / "parts").exists() else []
    bare = any(not (part / "experiment.toml").exists() for part in parts)
    tally.counts["between a part and its first file"] += bare
    tally.counts["with a part begun"] += bool(parts)
    tally.counts["inside a write"] += bool(debris(here))
    reader = rng.choice(READERS)
    why = _ran(reader.split(), here)
    for words in ([["resume", "run", "--quiet"]] if rng.random() < 0.5 else []) + [case.words]:
        why = why or _ran(words, here)
    shutil.rmtree(here / "run" / "csv", ignore_errors=True)
    wrong = [] if why else differ(case.want, hashes(here / "run"))
    tally.counts["other bits"] += bool(wrong)
    tally.check(not why and not wrong, f"killed {when}: {why or f'files differ: {wrong}'}")


def _ran(words: list[str], here: Path) -> str:
    """What is wrong with a command that must end well."""
    code = process.wait(process.fork(words, here))
    return f"{words}: exit code {code}: {said(here)}" if code or "Traceback" in said(here) else ""


def _count(tally: Tally) -> dict[str, object]:
    tally.figures = dict(tally.counts)
    tally.counts.clear()
    return tally.figures
