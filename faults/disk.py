"""A disk that fails: ENOSPC, EDQUOT, EIO, EROFS at every file operation of a run; a real small one.

Wanted: exit code 74 with one line, what was saved before is whole, no debris, and once the disk is
well again the run goes on to the same bytes.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

from faults import inject, process
from faults.common import (
    Say,
    Tally,
    call,
    debris,
    differ,
    hashes,
    inside,
    make_data,
    one_line,
    progress,
    scratch,
)

ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
SMALL = ["--quiet", "--device", "cpu", "--seeds", "1", "--minibatch", "5", "--model", "softmax"]
SMALL += ["--rounds", "4", "--eval-every", "2", "--checkpoint-every", "1", "--threads", "1"]


def campaign(count: int, seed: int, say: Say) -> Tally:
    """An error at every operation of a run, once or from then on; `count` of them at most."""
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "disk")
    with scratch() as root, inside(root):
        words = ["compare", "fedavg", "fedfv:tau=2", "--data", str(make_data(root / "a.npz"))]
        words += [*SMALL, "--out", "run"]
        with inject.at(root / "run", -1, inject.die) as log:
            call(*words)
        want = hashes(root / "run")
        shutil.rmtree("run")
        grid = [(n, e, sticky) for n in range(len(log.seen)) for e in ERRORS for sticky in (0, 1)]
        if count < len(grid):  # whole saves first: those of one checkpoint, then any
            save = [g for g in grid if "00000003" in log.seen[g[0]][1] and g[1] != errno.EROFS]
            rest = [g for g in grid if g not in save]
            grid = sorted(save[:count] + rng.sample(rest, max(0, count - len(save))))
        for done, (n, number, sticky) in enumerate(grid):
            what = f"{errno.errorcode[number]} at {log.seen[n]}{' and after' * sticky}"
            why = _attempt(root / "run", words, want, n, number, bool(sticky))
            tally.check(not why, f"{what}: {why}")
            tally.counts[errno.errorcode[number]] += 1
            shutil.rmtree("run", ignore_errors=True)
            show(done, len(grid), tally)
    tally.figures = {"file operations of the run": len(log.seen)}
    return tally


def _attempt(
    out: Path, words: list[str], want: dict[str, str], n: int, number: int, sticky: bool
) -> str:
    """What went wrong with one failing disk and the run after it."""
    from fedmaba.errors import InputError
    from fedmaba.results import run_folder

    with inject.at(out, n, inject.fail(number), sticky=sticky) as log:
        code, _, err = call(*words)
    if code not in (0, 74) or (code == 74 and not one_line(err)):
        return f"exit code {code}: {err}"
    if out.exists() and debris(out):
        return f"debris: {debris(out)}"
    named = [int(Path(path).stem) for what, path in log.seen[:n] if path.endswith(".ckpt")]
    written = max(named, default=0)  # a checkpoint that had its name before the fault
    if code == 74 and written and not (out / "runs.json").exists():
        try:
            if run_folder.load_checkpoint(out)[1]["round"] < written:
                return f"the checkpoint of round {written} is lost"
        except InputError as error:
            return f"no checkpoint: {error}"
    if code == 74 or len(list(out.glob("checkpoint/*"))):  # the latter: could not be removed
        whole = (out / "runs.json").exists()
        begun = (out / "experiment.toml").exists()
        code, _, err = call(*(["resume", "run", "--quiet"] if begun else words))
        if code not in ((0, 2) if whole else (0,)):
            return f"afterwards: exit code {code}: {err}"
    wrong = differ(want, hashes(out))
    return f"files differ: {wrong}" if wrong else ""


def mountable() -> bool:
    """Whether this process may mount a small disk of its own."""
    with scratch() as root:
        made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(root)], capture_output=True)
        if made.returncode == 0:
            subprocess.run(["umount", str(root)], check=True)
        return made.returncode == 0


def tmpfs(count: int, seed: int, say: Say) -> Tally:
    """Real processes on a real disk of a few pages that fills up, or turns read-only."""
    rng, tally = random.Random(seed), Tally()
    if os.geteuid() or not mountable():
        say("tmpfs: not allowed to mount here: nothing tried")
        return tally
    process.warm()
    show = progress(say, "tmpfs")
    full = frozen = 0
    with scratch() as root:
        words = ["compare", "fedavg", "fedfv:tau=2", "--data", str(make_data(root / "a.npz"))]
        words += [*SMALL, "--rounds", "30", "--out", "run"]
        (root / "whole").mkdir()
        process.wait(process.command(words, root / "whole"))
        want = hashes(root / "whole" / "run")
        disk = root / "disk"
        disk.mkdir()
        for done in range(count):
            pages = 4096 if done % 4 == 3 else rng.randint(1, 60)
            options = f"size={4096 * pages}"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
            try:
                pid = process.command(words, disk, log="../log")
                if done % 4 == 3:
                    process.send(pid, signal.SIGCONT, rng.uniform(0.1, 0.8))
                    ro = ["mount", "-o", "remount,ro", disk]
                    frozen += subprocess.run(ro, capture_output=True).returncode == 0
                code = process.wait(pid)
                text = (root / "log").read_text()
                why = "" if code == 0 or (code == 74 and one_line(text)) else f"{code}: {text}"
                full += code == 74
                left = debris(disk)
                subprocess.run(["mount", "-o", "remount,rw,size=100m", disk], check=True)
                if left and done % 4 != 3:
                    why = why or f"debris: {left}"
                if code == 74:
                    begun = (disk / "run" / "experiment.toml").exists()
                    again = ["resume", "run", "--quiet"] if begun else words
                    code = process.wait(process.command(again, disk, log="../log"))
                    text = (root / "log").read_text()
                    why = why or (f"afterwards {code}: {text}" if code else "")
                wrong = differ(want, hashes(disk / "run"))
                why = why or (f"files differ: {wrong}" if wrong else "")
                tally.check(not why, f"a disk of {pages} pages: {why}")
            finally:
                subprocess.run(["umount", disk], check=True)
            show(done, count, tally)
    tally.figures = {"ended with 74": full, "turned read-only while open": frozen}
    return tally
