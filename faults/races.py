"""Two processes start on one folder at the same moment: exactly one of them gets it."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

from faults import process
from faults.common import Say, Tally, differ, hashes, make_data, progress, scratch


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` races: of the same command, or of two experiments that want the same folder."""
    process.warm()
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "races")
    with scratch() as root:
        data = make_data(root / "tiny.npz")
        base = ["compare", "fedmaba", "afl", "--data", str(data), "--quiet", "--device", "cpu"]
        base += ["--seeds", "1", "--minibatch", "5", "--model", "softmax", "--rounds", "25"]
        base += ["--checkpoint-every", "1", "--out", "run", "--threads", "1"]
        words = [base, [*base, "--lr", "0.05"]]
        want = []
        for i in range(2):
            (root / f"whole{i}").mkdir()
            process.wait(process.command(words[i], root / f"whole{i}"))
            want.append(hashes(root / f"whole{i}" / "run"))
        for done in range(count):
            here = root / f"race{done}"
            here.mkdir()
            pair = [words[0], words[rng.randrange(2)]]
            late = rng.choice([0.0, 0.0, rng.uniform(0, 0.2)])  # a head start
            why = _race(here, pair, late, [want[words.index(w)] for w in pair], tally)
            tally.check(not why, f"race {done}: {why}")
            shutil.rmtree(here, ignore_errors=True)
            show(done, count, tally)
    return tally


def _race(
    here: Path, pair: list[list[str]], late: float, want: list[dict[str, str]], tally: Tally
) -> str:
    """What went wrong: one winner whose files are right, and one refused that names the holder."""
    ready, go = os.pipe()
    delays = (0.0, late)

    def work(i: int) -> int:
        os.close(go)
        os.read(ready, 1)  # both begin when the other end is closed
        time.sleep(delays[i])
        return process.fedmaba(pair[i])

    pids = [process.start(lambda i=i: work(i), here, f"log{i}") for i in range(2)]
    os.close(ready)
    os.close(go)
    codes = [process.wait(pid) for pid in pids]
    said = [(here / f"log{i}").read_text() for i in range(2)]
    if codes.count(0) != 1:
        return f"exit codes {codes}: {said}"
    winner = codes.index(0)
    code, text = codes[1 - winner], said[1 - winner]
    named = f"in use by process {pids[winner]}" in text
    later = code == 2 and ("finished" in text or "holds another experiment" in text)
    if not (code == 75 and named) and not later:
        return f"the loser ended with {code}: {text}"
    tally.counts["refused as busy" if code == 75 else "refused as taken"] += 1
    wrong = differ(want[winner], hashes(here / "run"))
    return f"the winner's files differ: {wrong}" if wrong else ""
