"""Runs on a GPU, killed at random times and resumed: the same SHA-256 as unkilled ones.

For the MLP and the CNN in float32, tf32 and bf16, all side by side; every process is a fresh one.
FAULTS_DEVICE=cpu tries the script where there is no GPU, on the MLP only.
"""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import process
from faults.common import Say, Tally, differ, hashes, scratch
from faults.kill import RESUME, place, said

CASES = [(model, dtype) for model in ("mlp", "cnn") for dtype in ("float32", "tf32", "bf16")]


def campaign(count: int, seed: int, say: Say) -> Tally:
    """About `count` kills, as many of each case."""
    tally, device = Tally(), os.environ.get("FAULTS_DEVICE", "cuda")
    cases = CASES if device != "cpu" else CASES[:3]
    each = max(1, count // len(cases))
    with scratch() as root, ThreadPoolExecutor(len(cases)) as pool:
        work = [pool.submit(_case, root, m, d, device, each, seed, say) for m, d in cases]
        for (model, dtype), found in zip(cases, work, strict=True):
            kills, why = found.result()
            tally.tried += kills
            tally.counts[f"{model} {dtype}"] = kills
            if why:
                tally.lose(f"{model} in {dtype}: {why}")
    tally.figures = {"device": _name(device)}
    return tally


def _case(
    root: Path, model: str, dtype: str, device: str, kills: int, seed: int, say: Say
) -> tuple[int, str]:
    """How often one experiment was killed, and what was wrong in the end."""
    rng = random.Random(f"{seed}/{model}/{dtype}")
    words = ["compare", "fedavg", "fedmaba", "fedfv", "--data", "sample", "--clients", "20"]
    words += ["--seeds", "1", "--rounds", "150", "--eval-every", "5", "--checkpoint-every", "1"]
    words += ["--model", model, "--dtype", dtype, "--device", device, "--quiet", "--out", "run"]
    words += ["--chunk", "60"]
    if device == "cpu":
        words += ["--rounds", "4", "--steps", "1"]
    whole, here = (place(root, f"{model}-{dtype}-{name}") for name in ("whole", "killed"))
    if code := process.wait(process.spawn(words, whole), 400):
        return 0, f"the unkilled run ended with {code}: {said(whole)[-800:]}"
    done = 0
    for _ in range(kills):
        before = _newest(here)
        pid = process.spawn(RESUME if before else words, here)
        end = time.monotonic() + 120
        while _newest(here) <= before and _running(pid) and time.monotonic() < end:
            time.sleep(0.02)
        if process.send(pid, signal.SIGKILL, rng.uniform(0.0, 0.8)) is not None:
            break  # it was quicker
        process.wait(pid)
        done += 1
        say(f"{model} {dtype}: killed after round {_newest(here)}")
    over = (here / "run" / "runs.json").exists()
    if not over and (code := process.wait(process.spawn(RESUME, here), 400)):
        return done, f"the resumed run ended with {code}: {said(here)[-800:]}"
    wrong = differ(hashes(whole / "run"), hashes(here / "run"))
    return done, f"files differ: {wrong}" if wrong else ""


def _newest(here: Path) -> int:
    """The round of the newest checkpoint; 0 where there is none."""
    return max((int(p.stem) for p in (here / "run" / "checkpoint").glob("*.ckpt")), default=0)


def _running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def _name(device: str) -> str:
    import torch

    name = torch.cuda.get_device_name(0) if device == "cuda" else "cpu"
    return f"{name}, torch {torch.__version__}"
