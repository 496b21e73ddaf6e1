"""SIGKILL at random times and at every file operation; SIGINT and SIGTERM at random times.

Some experiments begin in an empty folder, others extend a finished one: by seeds, by a strategy, by
rounds. A killed run is resumed, or its command is given again, and killed again, until it ends;
then every file must be that of an unkilled run. What was finished can be read at any time.
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

from faults import inject, process
from faults.common import (
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

RESUME = ["resume", "run", "--quiet"]
READERS = ("table run", "report run", "export run", "figure rounds run -o f.svg")


@dataclass
class Case:
    """An experiment, the files its unkilled run leaves, and how long it takes in a fork."""

    words: list[str]
    want: dict[str, str]
    seconds: float
    finished: Path | None = None  # what it extends


def place(root: Path, name: str, finished: Path | None = None) -> Path:
    """A folder to work in; the run folder in it is always called run."""
    if finished:
        shutil.copytree(finished, root / name)
    else:
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
    begin = process.command if more else process.spawn
    pids = [begin(w, place(root, f"whole{i}")) for i, w in enumerate(listed)]
    for i, pid in enumerate(pids):
        if process.wait(pid):
            raise SystemExit(f"an unkilled run failed: {said(root / f'whole{i}')}")
    out = []
    for i, words in enumerate(listed):
        case = unkilled(root, f"again{i}", words)
        if wrong := differ(hashes(root / f"whole{i}" / "run"), case.want):
            raise SystemExit(f"a fork differs from a fresh process: {wrong}")
        out.append(case)
    return out


def extensions(root: Path) -> list[Case]:
    """Three ways to extend the same folder of two seeds."""
    data = make_data(root / "tiny.npz")
    base = ["--data", str(data), "--quiet", "--device", "cpu", "--minibatch", "5", "--out", "run"]
    base += ["--model", "softmax", "--eval-every", "2", "--checkpoint-every", "1", "--threads", "1"]
    begin = ["compare", "fedavg", "ditto:server=scaffold", *base]
    unkilled(root, "finished", [*begin, "--seeds", "2", "--rounds", "4"])
    return [
        unkilled(root, f"extended{i}", [*begin, *more.split(), "--seeds", "3"], root / "finished")
        for i, more in enumerate(("--rounds 4", "fedfv:tau=2 --rounds 4", "--rounds 6"))
    ]


def unkilled(root: Path, name: str, words: list[str], finished: Path | None = None) -> Case:
    """A case, after its run in a fork that nobody kills."""
    here, start = place(root, name, finished), time.monotonic()
    if process.wait(process.command(words, here)):
        raise SystemExit(f"an unkilled run failed: {said(here)}")
    return Case(words, hashes(here / "run"), time.monotonic() - start, finished)


def after(here: Path, words: list[str], rng: random.Random) -> list[str]:
    """How to go on with what a dead process left: resume, or the same command."""
    if (here / "run" / "experiment.toml").exists() and rng.random() < 0.7:
        return RESUME
    return words


def said(here: Path) -> str:
    log = here / "log"  # there is none where a signal came at once
    return log.read_text(errors="replace") if log.exists() else ""


def finish(here: Path, case: Case, rng: random.Random) -> str:
    """Go on to the end without a kill; what is wrong with the result."""
    # one that died with nothing left to do but tidy up may say so
    over = not case.finished and (here / "run" / "runs.json").exists()
    if case.finished:
        again = [rng.choice(READERS).split(), *rng.choice([[RESUME], []]), case.words]
    else:
        again = [RESUME[:2] if over else after(here, case.words, rng)]
    for words in again:
        code = process.wait(process.command(words, here))
        if code not in ((0, 2) if over else (0,)) or "Traceback" in said(here):
            return f"{words}: exit code {code}: {said(here)}"
    shutil.rmtree(here / "run" / "csv", ignore_errors=True)
    wrong = differ(case.want, hashes(here / "run"))
    return f"{case.words}: files differ: {wrong}" if wrong else ""


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` SIGKILLs at random times, one in 20 on a fresh interpreter instead of a fork."""
    process.warm()
    many = 1 if count < 100 else 4  # chains side by side, each in a fork of this process
    tally = Tally()
    with scratch() as root:
        listed = [*cases(root, 2 if count < 100 else 7), *extensions(root)]

        def work(i: int) -> int:
            part = len(range(count)[i::many])
            counts = _chains(root, listed, i, part, f"{seed}/{i}", count >= 100, say)
            (root / f"counts{i}").write_text(json.dumps(counts))
            return 0

        pids = [process.fork(lambda i=i: work(i)) for i in range(many)]
        for i, pid in enumerate(pids):
            os.waitpid(pid, 0)
            counts = json.loads((root / f"counts{i}").read_text())
            tally.tried += counts.pop("tried")
            for why in counts.pop("why"):
                tally.lose(why)
            tally.counts.update(counts)
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
        here = place(root, f"chain{worker}-{chains}", case.finished)
        kills = 0
        for _ in range(min(rng.randint(1, 12), count - tally.tried)):
            new = some_fresh and rng.random() < 0.05
            words = after(here, case.words, rng) if kills else case.words
            pid = (process.spawn if new else process.command)(words, here)
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
    counts = {"runs": chains, "on fresh processes": fresh, "inside a write": inside}
    return {"tried": tally.tried, "why": tally.why, **counts}


def steps(count: int, seed: int, say: Say) -> Tally:
    """SIGKILL at every file operation of four runs, `count` of them at most, then to the end."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "steps")
    with scratch() as root:
        # strategies which keep what there is to keep
        words = ["compare", "fedfv:tau=2", "ditto:server=scaffold", "--out", "run"]
        words += ["--data", str(make_data(root / "tiny.npz")), "--model", "softmax"]
        words += ["--quiet", "--device", "cpu", "--seeds", "1", "--minibatch", "5", "--rounds", "4"]
        words += ["--eval-every", "2", "--checkpoint-every", "1"]
        listed = [unkilled(root, "whole", words), *extensions(root)]
        every = [(case, n) for case in listed for n in range(_operations(root, case))]
        for case, number in rng.sample(every, min(count, len(every))):
            here = place(root, f"step{tally.tried}", case.finished)

            def work(case: Case = case, number: int = number) -> int:
                with inject.at(Path("run"), number, inject.die):
                    return process.fedmaba(case.words)

            code = process.wait(process.start(work, here))
            why = f"exit code {code}: {said(here)}" if code != -signal.SIGKILL else ""
            why = why or finish(here, case, rng)
            tally.check(not why, f"killed at file operation {number}: {why}")
            shutil.rmtree(here, ignore_errors=True)
            show(tally.tried, len(every), tally)
        tally.figures = {"file operations of the runs": len(every)}
    return tally


def _operations(root: Path, case: Case) -> int:
    """How many file operations a run does."""
    here = place(root, "counted", case.finished)

    def work() -> int:
        with inject.at(Path("run"), -1, inject.die) as log:
            process.fedmaba(case.words)
        Path("count").write_text(str(len(log.seen)))
        return 0

    process.wait(process.start(work, here))
    count = int((here / "count").read_text())
    shutil.rmtree(here)
    return count


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

            def work(words: list[str] = case.words) -> int:
                os.setpgid(0, 0)
                return process.fedmaba(words)

            number = rng.choice([signal.SIGINT, signal.SIGTERM])
            pid = process.start(work, here)
            code = process.send(pid, number, rng.uniform(0.0, case.seconds))
            code = process.wait(pid) if code is None else code
            text, why = said(here), ""
            if code == 130 and "resume with: fedmaba resume" in text:
                stopped += 1
                round_ = re.search(r"stopped after round (\d+);", text)
                saved = sorted((here / "run").rglob("checkpoint/*.ckpt"))
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
