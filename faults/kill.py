"""SIGKILL at random times and at every file operation; SIGINT and SIGTERM at random times.

A killed run is resumed, or its command is given again, and killed again, until it ends; then every
file must be that of an unkilled run in a fresh process.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.faults import inject, process
from tools.faults.common import (
    STRATEGIES,
    Say,
    Tally,
    debris,
    differ,
    hashes,
    make_data,
    progress,
    scratch,
)


@dataclass
class Case:
    """An experiment, the files its unkilled run leaves, and how long it takes in a fork."""

    words: list[str]
    want: dict[str, str]
    seconds: float


def place(root: Path, name: str) -> Path:
    """A folder to work in; the run folder in it is always called run."""
    (root / name).mkdir()
    return root / name


def cases(root: Path, many: int, *more: str) -> list[Case]:
    """Experiments that cover every strategy, with their unkilled runs in fresh processes."""
    data = make_data(root / "tiny.npz")
    base = ["compare", "--data", str(data), "--quiet", "--device", "cpu", "--seeds", "1"]
    base += ["--minibatch", "5", "--out", "run"]
    shapes = [
        "--model softmax --rounds 10 --eval-every 3 --checkpoint-every 1",
        "--model mlp --rounds 5 --eval-every 2 --checkpoint-every 1 --server-momentum 0.5",
        "--model softmax --rounds 12 --participants 3 --validation 0.2 --checkpoint-every 2",
        "--model softmax --rounds 8 --dtype float64 --eval-every 5 --checkpoint-seconds 1e-9",
        "--model mlp --rounds 7 --participants 4 --eval-every 3 --checkpoint-every 4 --threads 2",
    ]
    listed = []
    for i in range(many):
        names, shape = STRATEGIES[i::many], shapes[i % len(shapes)]
        if "fedmdfg" in names:  # it tries steps, which momentum would make others
            shape = shape.replace("--server-momentum 0.5", "")
        listed.append([*base, *names, *shape.split(), *more])
    begin = process.fork if more else process.spawn
    pids = [begin(w, place(root, f"whole{i}")) for i, w in enumerate(listed)]
    for i, pid in enumerate(pids):
        if process.wait(pid, 300):
            raise SystemExit(f"an unkilled run failed: {(root / f'whole{i}/log').read_text()}")
    out = []
    for i, words in enumerate(listed):
        want, start = hashes(root / f"whole{i}" / "run"), time.monotonic()
        code = process.wait(process.fork(words, place(root, f"again{i}")))
        seconds = time.monotonic() - start
        wrong = differ(want, hashes(root / f"again{i}" / "run"))
        if code or wrong:
            raise SystemExit(f"a fork differs from a fresh process: {wrong}")
        out.append(Case(words, want, seconds))
    return out


def after(here: Path, words: list[str], rng: random.Random) -> list[str]:
    """How to go on with what a dead process left: resume, or the same command."""
    if (here / "run" / "experiment.toml").exists() and rng.random() < 0.7:
        return ["resume", "run", "--quiet"]
    return words


def said(here: Path) -> str:
    log = here / "log"  # there is none where a signal came at once
    return log.read_text(errors="replace") if log.exists() else ""


def finish(here: Path, case: Case, rng: random.Random) -> str:
    """Go on to the end without a kill; what is wrong with the result."""
    over = (here / "run" / "runs.json").exists()  # it died with nothing left to do but tidy up
    words = ["resume", "run"] if over else after(here, case.words, rng)
    code = process.wait(process.fork(words, here))
    if code not in ((0, 2) if over else (0,)) or "Traceback" in said(here):
        return f"{words}: exit code {code}: {said(here)}"
    wrong = differ(case.want, hashes(here / "run"))
    return f"{case.words}: files differ: {wrong}" if wrong else ""


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` SIGKILLs at random times, one in 20 on a fresh interpreter instead of a fork."""
    process.warm()
    many = 1 if count < 100 else 4  # chains side by side, each in a fork of this process
    with scratch() as root:
        listed = cases(root, 2 if count < 100 else 7)
        parts = [len(range(count)[i::many]) for i in range(many)]
        for i, part in enumerate(parts):
            if os.fork() == 0:
                code = 1
                try:
                    found = _chains(root, listed, i, part, f"{seed}/{i}", count >= 100, say)
                    (root / f"found{i}").write_text(json.dumps(found))
                    code = 0
                finally:
                    os._exit(code)
        for _ in range(many):
            os.wait()
        tally = Tally()
        for i in range(many):
            found = json.loads((root / f"found{i}").read_text())
            tally.tried += found.pop("tried")
            for why in found.pop("why"):
                tally.lose(why)
            tally.counts.update(found)
        tally.figures = dict(tally.counts)
        tally.counts.clear()
    return tally


def _chains(
    root: Path, listed: list[Case], worker: int, count: int, seed: str, some_fresh: bool, say: Say
) -> dict[str, Any]:
    """Runs killed and resumed, one after another, until `count` kills were given."""
    rng, tally = random.Random(seed), Tally()
    show = progress(say, f"kill, worker {worker}", 30)
    chains = fresh = inside = 0
    while tally.tried < count:
        case = listed[(chains + worker) % len(listed)]
        here = place(root, f"chain{worker}-{chains}")
        kills = 0
        for _ in range(min(rng.randint(1, 12), count - tally.tried)):
            new = some_fresh and rng.random() < 0.05
            words = after(here, case.words, rng)
            pid = (process.spawn if new else process.fork)(words, here)
            most = case.seconds + (3.0 if new else 0.0)
            code = process.send(pid, signal.SIGKILL, rng.uniform(1.5 if new else 0.0, most))
            if code is None and process.wait(pid) == -signal.SIGKILL:
                kills += 1
                fresh += new
                inside += bool(debris(here))
                if (here / "run" / "runs.json").exists():
                    break
                continue
            if code or "Traceback" in said(here):
                tally.lose(f"{words}: exit code {code}: {said(here)}")
            break
        if kills and (why := finish(here, case, rng)):
            tally.lose(f"after {kills} kills: {why}")
        tally.tried += kills
        chains += 1
        shutil.rmtree(here, ignore_errors=True)
        show(tally.tried, count, tally)
    found = {"runs": chains, "on fresh processes": fresh, "inside a write": inside}
    return {"tried": tally.tried, "why": tally.why, **found}


def steps(count: int, seed: int, say: Say) -> Tally:
    """SIGKILL at every file operation of a run, `count` of them at most, then to the end."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "steps")
    with scratch() as root:
        words = [
            "compare",
            "fedfv:tau=2",
            "ditto:server=scaffold",
        ]  # which keep what there is to keep
        words += ["--data", str(make_data(root / "tiny.npz"))]
        words += ["--quiet", "--device", "cpu", "--seeds", "1", "--minibatch", "5", "--out", "run"]
        words += ["--model", "softmax", "--rounds", "4", "--eval-every", "2"]
        words += ["--checkpoint-every", "1"]
        here = place(root, "whole")
        process.wait(process.fork(words, here))
        case, total = Case(words, hashes(here / "run"), 0.0), _operations(root, words)
        chosen = sorted(rng.sample(range(total), min(count, total)))
        for done, number in enumerate(chosen):
            here = place(root, f"step{number}")

            def first(number: int = number) -> object:
                held = inject.at(Path("run"), number, inject.die)
                held.__enter__()
                return held

            code = process.wait(process.fork(words, here, first))
            why = f"exit code {code}: {said(here)}" if code != -signal.SIGKILL else ""
            why = why or finish(here, case, rng)
            tally.check(not why, f"killed at file operation {number}: {why}")
            shutil.rmtree(here, ignore_errors=True)
            show(done, len(chosen), tally)
        tally.figures = {"file operations of the run": total}
    return tally


def _operations(root: Path, words: list[str]) -> int:
    """How many file operations a run does."""
    here = place(root, "counted")

    def first() -> object:
        held = inject.at(Path("run"), -1, inject.die)
        seen, real = held.__enter__().seen, os._exit

        def end(code: int) -> None:
            Path("count").write_text(str(len(seen)))
            real(code)

        os._exit = end  # type: ignore[assignment]
        return held

    process.wait(process.fork(words, here, first))
    return int((here / "count").read_text())


def signals(count: int, seed: int, say: Say) -> Tally:
    """SIGINT and SIGTERM at random times: a save, a line, exit code 130, no process left."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "signals")
    early = stopped = 0
    with scratch() as root:
        # no checkpoint but the one that a stop asks for
        listed = cases(root, 2, "--rounds", "20", "--checkpoint-every", "50")
        while tally.tried < count:
            case, here = listed[tally.tried % len(listed)], place(root, f"run{tally.tried}")
            number = rng.choice([signal.SIGINT, signal.SIGTERM])
            pid = process.fork(case.words, here, lambda: os.setpgid(0, 0))
            code = process.send(pid, number, rng.uniform(0.0, case.seconds))
            code = process.wait(pid) if code is None else code
            text, why = said(here), ""
            if code == 130 and "resume with: fedmaba resume" in text:
                stopped += 1
                round_ = re.search(r"stopped after round (\d+);", text)
                saved = sorted((here / "run" / "checkpoint").glob("*.ckpt"))
                if not round_ or not saved or int(saved[-1].stem) != int(round_[1]):
                    why = f"said {text!r}, saved {saved}"
            elif code in (128 + number, -number):
                early += 1  # before the first round: nothing to save
            elif code:
                why = f"exit code {code}: {text}"
            if "Traceback" in text:
                why = f"traceback: {text}"
            if code == 130 and debris(here):
                why = why or f"debris: {debris(here)}"
            if _alive(pid):
                why = why or "a process was left"
            why = why or finish(here, case, rng)
            tally.check(not why, f"{signal.Signals(number).name}: {why}")
            shutil.rmtree(here, ignore_errors=True)
            show(tally.tried, count, tally)
        tally.figures = {"stopped with a save": stopped, "before the first round": early}
    return tally


def _alive(group: int) -> bool:
    """Whether any process of a group still runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
