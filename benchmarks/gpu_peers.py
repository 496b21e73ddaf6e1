"""One GPU: other simulators on the CIFAR-10 job of their own benchmark, and ours on the same job.

pfl: 1,000 clients with 50 images each, 50 a round, minibatch 10, one epoch, a CNN with dropout,
10,000 test images every 10 rounds. BlazeFL: 100 clients with 500 images each, all of them a round,
minibatch 50, five epochs, the CNN of PyTorch's tutorial, 10,000 test images every round. Images
are random. Each simulator runs in a process of its own, as its own examples call it, and ours in
another, with the same nn.Module. All get ready at the same time. Then they take turns on the GPU:
ours, the simulator in each of its ways, ours. What is counted are client-epochs per second.

FLUTE runs in no environment of today. Its jobs are done by ours alone, beside its published times.

    python benchmarks/gpu_peers.py --site FOLDER --out gpu-peers.json
    python benchmarks/gpu_peers.py --site FOLDER --device cpu --small        to try it

FOLDER has pfl and blazefl unpacked, with what they need beside torch, numpy and scipy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent / "peers"
sys.path.append(str(HERE))
import gpu_common  # noqa: E402
from gpu_common import PARALLEL, SHARE  # noqa: E402

WAYS = {  # of a simulator: what it is called here, its word, how many processes at once
    "pfl": {"one process": ("1", 1), f"{SHARE} processes": (str(SHARE), SHARE)},
    "blazefl": {
        "one thread": ("single", 1),
        f"{PARALLEL} threads": ("threads", 1),
        f"{PARALLEL} processes": ("processes", 1),
    },
}
PUBLISHED: dict[str, tuple[float, str]] = {  # client-epochs per second, and where from
    "flute-cnn": (
        1_500 * 10 / 502,
        "FLUTE's README: 1,500 rounds of 10 clients in 8:22, four processes",
    ),
    "flute-lstm": (
        1_200 * 10 / 1_310,
        "FLUTE's README: 1,200 rounds of 10 clients in 21:50, four processes",
    ),
    "flute-resnet18": (
        4_000 * 10 / 6_121,
        "FLUTE's README: 4,000 rounds of 10 clients in 1:42:01, four processes",
    ),
}
USUAL = ["pfl", "flute-cnn", "flute-lstm", "blazefl"]  # the one with long rounds last


class Script:
    """A script of `peers/` in a process of its own, which answers by lines."""

    def __init__(self, script: str, words: list[str], site: str = "") -> None:
        paths = [site, os.environ.get("PYTHONPATH", "")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
        env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / f"gpu_{script}_.py"), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=env,
            start_new_session=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.why = ""  # it cannot go on
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put("")

    def answer(self, until: float) -> dict[str, Any]:
        """What it says next; nothing where it cannot go on."""
        while not self.why:
            try:
                line = self.lines.get(timeout=0.2)
            except queue.Empty:  # what it started may still hold its output open
                line = "" if self.process.poll() is not None else None
            if line:
                return dict(json.loads(line))
            if line == "":
                self.process.wait()
                self.errors.seek(0)
                self.stop((self.errors.read().strip() or "it ended").splitlines()[-1])
            elif time.perf_counter() > until:
                self.stop("no answer in time")
        return {}

    def go(self, seconds: float) -> None:
        """Its turn; `answer` tells where it ended before."""
        if not self.why:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(f"{seconds}\n")
                self.process.stdin.flush()

    def stop(self, why: str = "stopped") -> None:
        """End the process and all that it started."""
        self.why = self.why or why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.listener.join()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def turn(scripts: list[Script], seconds: float, until: float) -> tuple[float, int] | str:
    """Client-epochs per second of scripts that play at the same time, and rounds; or why not."""
    for script in scripts:
        script.go(seconds)
    told = [script.answer(until) for script in scripts]
    if missing := [script.why for script in scripts if script.why]:
        return missing[0]
    return sum(one["per_second"] for one in told), sum(one["rounds"] for one in told)


def version(name: str, site: str) -> str:
    """Of a simulator in a folder, or in this environment."""
    places = [site] if site else sys.path
    found = next(iter(metadata.distributions(name=name, path=places)), None)
    return found.version if found else "not installed"


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All jobs: everything gets ready at once, then one at a time."""
    end = time.perf_counter() + asked.limit
    size = "small" if asked.small else "whole"
    ours, theirs = {}, {}
    begun = time.perf_counter()
    for name in asked.jobs:
        gpu_common.write(name, asked.small, folder)
        rest = [str(folder), asked.device, size]
        ours[name] = Script("fedmaba", [name, asked.dtype, *rest])
        for way, (word, many) in WAYS.get(name, {}).items():
            some = [Script(name, [name, word, *rest], asked.site) for _ in range(many)]
            theirs[name, way] = some
    everyone = [*ours.values(), *(script for some in theirs.values() for script in some)]
    try:
        ready = {script: script.answer(begun + asked.ready) for script in everyone}
        print(f"ready after {time.perf_counter() - begun:.0f} s", flush=True)
        forms = {name: ready[script].get("form", "") for name, script in ours.items()}
        found: dict[str, Any] = {"forms": forms, "peers": [], "readings": []}
        for name in asked.jobs:
            if name in WAYS:
                found["peers"] += against(name, ours[name], theirs, asked, end)
            else:
                found["readings"].append(reading(name, ours[name], asked, end))
    finally:
        for script in everyone:
            script.stop()
    return found


def against(
    name: str,
    mine: Script,
    theirs: dict[tuple[str, str], list[Script]],
    asked: argparse.Namespace,
    end: float,
) -> list[dict[str, Any]]:
    """Ours, the simulator in each of its ways, ours again."""
    first = turn([mine], asked.seconds, end)
    rows: list[dict[str, Any]] = []
    for way in WAYS[name]:
        row: dict[str, Any] = {"peer": name, "version": version(name, asked.site), "way": way}
        other = turn(theirs[name, way], asked.seconds, end - 2 * asked.seconds)
        if isinstance(other, str):
            rows.append({**row, "not_run": other})
        else:
            rows.append({**row, "per_second": other[0], "rounds": other[1]})
    last = turn([mine], asked.seconds, end)
    for row in rows:
        if isinstance(first, str) or isinstance(last, str):
            row["ours_not_run"] = first if isinstance(first, str) else last
        else:
            row["ours"] = statistics.mean([first[0], last[0]])
            row |= {"ours_before": first[0], "ours_after": last[0]}
            if "per_second" in row:
                row["ratio"] = row["ours"] / row["per_second"]
        print(told(row), flush=True)
    return rows


def told(row: dict[str, Any]) -> str:
    """One line for a way of a simulator."""
    line = f"{row['peer']} {row['version']}, {row['way']}: "
    line += f"{row['per_second']:,.1f}/s" if "per_second" in row else f"not run: {row['not_run']}"
    if "ours" not in row:
        return f"{line}; ours not run: {row['ours_not_run']}"
    line += f", ours {row['ours']:,.1f}/s ({row['ours_before']:,.1f}, {row['ours_after']:,.1f})"
    return line + (f": {row['ratio']:,.1f} x" if "ratio" in row else "")


def reading(name: str, mine: Script, asked: argparse.Namespace, end: float) -> dict[str, Any]:
    """Ours on the job of a published figure, which is of other GPUs."""
    published, source = PUBLISHED[name]
    row: dict[str, Any] = {"job": name, "published_per_second": published, "source": source}
    rate = turn([mine], asked.seconds, end)
    if isinstance(rate, str):
        print(f"{name}: ours not run: {rate}", flush=True)
        return {**row, "not_run": rate}
    print(f"{name}: ours {rate[0]:,.1f}/s; {source}: {published:.1f}/s", flush=True)
    return {**row, "ours": rate[0]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", default="", help="folder that has pfl and blazefl unpacked")
    parser.add_argument("--jobs", nargs="*", choices=[*WAYS, *PUBLISHED], default=USUAL)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", help="of ours; tf32 as the others' products, float32 on a CPU")
    parser.add_argument("--seconds", type=float, default=2, help="the least that a turn takes")
    parser.add_argument("--ready", type=float, default=60, help="seconds to get ready")
    parser.add_argument("--limit", type=float, default=98, help="seconds for all of it")
    parser.add_argument("--small", action="store_true", help="very little data, to try it")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    asked.dtype = asked.dtype or ("tf32" if asked.device == "cuda" else "float32")
    if asked.device == "cpu":  # pfl takes a GPU where it finds one
        os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    with tempfile.TemporaryDirectory() as folder:
        found = measure(asked, Path(folder))
    where = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor()
    about = {"device": where, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"precision": asked.dtype, "small": asked.small}
    if asked.out:
        asked.out.write_text(json.dumps({**about, **found}, indent=2) + "\n")
