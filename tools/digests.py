"""Digests of what small batches of runs compute, to be compared before and after a change.

    python tools/digests.py --write before.txt      (then change the code)
    python tools/digests.py --check before.txt      prints the names that differ, exit code 1

A line is the name of a case and a digest of every array of its results: what each round's server
saw and decided, the evaluations, and all that a checkpoint has. What is in a batch stays fixed,
since neighbours change how sums are rounded. Digests are those of one machine and one version of
torch. Where flwr is installed, rounds on Flower follow, in this process. With `--device cuda` the
same batches run there, and some that show what only a GPU does. `--arrays` prints a line for each
array: the difference of two such lists says what moved, in which run and round.

Only what other programs use is used here: Run, Plan, start, simulate, Snapshot, the arrays of a
checkpoint, and on Flower messages and the server's reports.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import platform
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digest_cases import Case, cases
from digest_world import SEED, federation, one

import fedmaba
from fedmaba.errors import InputError
from fedmaba.privacy import accounting
from fedmaba.simulation import distributed
from fedmaba.simulation.engine import Plan, Run, simulate, start

ROOT = Path(__file__).resolve().parents[1]
Arrays = dict[str, Any]


def play(case: Case, way: Mapping[str, Any], device: str, ranks: distributed.Ranks) -> Arrays:
    """All numbers of one batch, by name."""
    plan = Plan(**{**way, **case.plan, "device": device})
    whole, fewer = federation(case.fed), federation(case.fed, turned=True)
    feds = {seed: fewer if case.turned and seed != SEED else whole for seed in case.seeds}
    runs = [Run(one(s), seed, feds[seed], case.deploy) for seed in feds for s in case.specs]

    def begin() -> Any:
        return start(runs, plan, case.model, ranks=ranks, **case.options)

    batch, out = begin(), {}
    for shot in simulate(batch):
        out |= numbers_of(shot)
        if shot.round + 1 == case.stop:
            break
    if case.stop:
        saved, at = batch.progress.arrays(), batch.progress
        out |= {f"checkpoint/{name}": value.copy() for name, value in saved.items()}
        meta = {"round": at.round, "chunk": at.chunk, "diverged": at.diverged}
        batch = begin()
        batch.progress.restore(saved, meta)
        for shot in simulate(batch):
            out |= numbers_of(shot)
    at = batch.progress
    out["end/round"] = at.round
    if device == "cpu" or plan.chunk:  # else it is what a GPU's free memory holds at the moment
        out["end/chunk"] = at.chunk
    out |= {f"end/{r}/diverged": text(why) for r, why in enumerate(at.diverged)}
    return out | {f"end/{name}": value for name, value in at.arrays().items()}


def numbers_of(shot: Any) -> Arrays:
    """What a round's servers saw and decided, and how its models serve clients."""
    out: Arrays = {}
    for r, told in enumerate(shot.rounds):
        at = f"round {shot.round}/{r}"
        if told is not None:
            out |= {f"{at}/client": told.client, f"{at}/weight": told.weight}
            out |= {} if told.loss is None else {f"{at}/loss": told.loss}
            out |= {f"{at}/info/{name}": np.float64(v) for name, v in told.info.items()}
    for d, scores in enumerate(shot.evaluations or []):
        for model, values in (scores or {}).items():
            at = f"round {shot.round}/deployed {d}/{model}"
            out |= {f"{at}/loss": values.loss, f"{at}/accuracy": values.accuracy}
            out |= {} if values.groups is None else {f"{at}/groups": values.groups}
    return {name: np.array(value) for name, value in out.items()}


def results(case: Case, device: str, ranks: distributed.Ranks) -> Arrays:
    """The numbers of all ways in which a case is played; what has no entries is left out."""
    out: Arrays = {}
    with case.around(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, way in enumerate(case.ways):
            try:
                found = play(case, way, device, ranks)
            except InputError as why:
                if not case.refused:
                    raise
                found = {"refused": text(str(why))}
            out |= {f"way {number}/{name}": value for name, value in found.items()}
    return {name: array for name, v in out.items() if (array := np.asarray(v)).size}


def text(words: str) -> Any:
    """Words as an array."""
    return np.frombuffer(words.encode(), np.uint8)


def line_of(name: str, arrays: Arrays) -> str:
    """The name of a case and its digest."""
    whole = hashlib.sha256()
    for line in lines_of(name, arrays):
        whole.update(line.encode())
    return f"{whole.hexdigest()}  {name}"


def lines_of(name: str, arrays: Arrays) -> list[str]:
    """A line for each array of a case."""
    found = []
    for at, value in sorted(arrays.items()):
        array = np.ascontiguousarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        found.append(f"{digest}  {name}/{at} {array.dtype.str} {array.shape}")
    return found


def on_ranks(names: list[str], arrays: bool) -> list[str]:
    """The lines of cases that two processes work on together; both must find the same."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "digests"}
    words = [sys.executable, __file__, "--rank-of", *names, *["--arrays"] * arrays]
    ranks = [
        subprocess.Popen(
            words,
            env={**os.environ, **job, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    first, second = (rank.communicate()[0].splitlines() for rank in ranks)
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed")
    return [a if a == b else f"ranks differ: {a} {b}" for a, b in zip(first, second, strict=True)]


def main() -> int:
    """Print the digests, and compare them where that is asked."""
    parser = argparse.ArgumentParser(description="digests of what small batches compute")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name has this word")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--arrays", action="store_true", help="a line for each array")
    parser.add_argument("--times", action="store_true", help="seconds of each case, on stderr")
    parser.add_argument("--rank-of", nargs="+", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if ROOT not in Path(fedmaba.__file__).parents:
        parser.error(f"fedmaba is {fedmaba.__file__}: say PYTHONPATH={ROOT / 'src'}")
    if words.write and words.write == words.check:
        parser.error(f"{words.write}: it would be compared with itself: give --write another file")
    settle()
    lines: list[str] = []

    def add(more: Sequence[str]) -> None:
        lines.extend(more)
        for line in more:
            print(line, flush=True)
        if words.write:  # as far as it has come
            words.write.write_text("".join(f"{line}\n" for line in lines))

    add([] if words.rank_of else [f"# {machine(words.device)}"])
    for name, job in jobs(words).items():
        begun = time.perf_counter()
        try:
            found = job()
            more = lines_of(name, found) if words.arrays else [line_of(name, found)]
        except Exception as error:  # the other cases still say something
            if words.rank_of:
                raise  # the other rank would wait
            traceback.print_exc()
            more = [f"failed: {type(error).__name__}  {name}"]
        add(more)
        if words.times:
            print(f"{time.perf_counter() - begun:6.2f} s  {name}", file=sys.stderr)
    if words.rank_of:
        return 0
    known = cases(words.device)
    if ranked := [n for n, case in known.items() if case.ranks > 1 and words.only in n]:
        add(on_ranks(ranked, words.arrays))
    failed = any(line.startswith(("failed", "ranks differ")) for line in lines)
    return int(compare(words.check, lines, words.only) if words.check else failed)


def settle() -> None:
    """One thread, so that sums have one order; no accountant, which is another package."""
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    accounting.noise_multiplier = lambda *_: 0.7
    accounting.spent_epsilon = lambda _, rounds, delta: float(rounds)
    accounting.accountant_in_words = lambda: "none"


def machine(device: str) -> str:
    """Where digests are the same."""
    chip = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    return f"torch {torch.__version__}, numpy {np.__version__}, {platform.machine()}, {chip}"


def jobs(words: argparse.Namespace) -> dict[str, Callable[[], Arrays]]:
    """What computes the cases that are asked for and need no other process, by name."""
    known, ranks = cases(words.device), distributed.join()
    found = {n: partial(results, case, words.device, ranks) for n, case in known.items()}
    if words.rank_of:
        return {n: found[n] for n in words.rank_of}
    found = {n: job for n, job in found.items() if known[n].ranks == 1}
    if words.device == "cpu" and find_spec("flwr") is None:
        print("flower: skipped, flwr is not installed", file=sys.stderr)
    elif words.device == "cpu":
        import digest_flower

        more = digest_flower.cases()
        found |= {f"flower {n}": partial(digest_flower.results, c) for n, c in more.items()}
    return {n: job for n, job in found.items() if words.only in n}


def compare(path: Path, lines: list[str], only: str) -> bool:
    """Print the names whose digests are not those of the file; whether there are any."""
    was = path.read_text().splitlines()
    before, now = (dict(reversed(line.split("  ", 1)) for line in s[1:]) for s in (was, lines))
    if was[0] != lines[0]:
        print(f"the file is of another machine: {was[0]}", file=sys.stderr)
    found = 0
    for name in [*now, *(n for n in before if n not in now and only in n)]:
        if before.get(name) != now.get(name):
            found += 1
            why = "" if name in before and name in now else ": only one has it"
            print(f"differs: {name}{why}")
    print(f"{found} of {len(now)} differ", file=sys.stderr)
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
