"""Damaged checkpoints: every truncation, other damage; never loaded, the one before is used."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from faults.common import Say, Tally, call, differ, hashes, inside, make_data, progress, scratch
from faults.formats import mutate


def play(root: Path, out: str, rounds: int, stop: int | None = None) -> None:
    """A small run, to its end or stopped after some rounds with a checkpoint every second one."""
    from fedmaba.experiment import config, opening
    from fedmaba.experiment import session as experiment

    tree = {"strategies": ["fedavg", "fedmaba"], "seeds": 1, "model": "softmax"}
    for name, value in {
        "data.name": str(root / "tiny.npz"), "train.rounds": rounds, "train.minibatch": 5,
        "eval.every": 2, "machine.device": "cpu", "machine.threads": 1, "save.every": 2,
        "save.out": out,
    }.items():  # fmt: skip
        config.set_key(tree, name, value)
    session = experiment.prepare(config.build(tree))
    opening.open_run_folder(session, Path(out))
    at = session.batch.progress
    for _ in session.rounds(lambda: stop is not None and at.round >= stop):
        pass


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` damaged checkpoints; some folders are resumed to the end, as by a user."""
    from fedmaba.results import run_folder

    rng, tally = random.Random(seed), Tally()
    show = progress(say, "damage")
    with scratch() as root, inside(root):
        make_data(Path("tiny.npz"))
        play(root, "whole", 6)
        play(root, "run", 6, stop=5)
        newest, older = run_folder.checkpoints(Path("run"))
        good, before = newest.read_bytes(), older.read_bytes()
        want = hashes(Path("whole"))
        want.pop("experiment.toml")
        lengths = rng.sample(range(len(good)), min(len(good), count // 2))
        resumed = 0
        for done in range(count):
            if done < len(lengths):
                bad = good[: lengths[done]]
            elif rng.random() < 0.1:  # a torn write: begins as the new one, goes on as the old one
                at = rng.randrange(1, min(len(good), len(before)))
                bad = good[:at] + before[at:]
            else:
                bad = mutate(good, rng)
            if bad in (good, before):
                bad = good[:-1]
            newest.write_bytes(bad)
            try:
                _, meta, damaged = run_folder.load_checkpoint(Path("run"))
                fine = meta["round"] == 4 and len(damaged) == 1 and str(newest) in damaged[0]
                why = f"round {meta['round']} loaded, said {damaged}"
            except Exception as error:
                fine, why = False, repr(error)
            tally.check(fine, f"case {done}: {why}")
            if done % max(1, count // (20 if count >= 10_000 else 4)) == 0:
                shutil.copytree("run", "copy")
                code, _, err = call("resume", "copy")
                got = hashes(Path("copy"))
                got.pop("experiment.toml")
                if code or newest.name not in err or differ(want, got):
                    tally.lose(f"case {done}: resume gave {code}, {err}, {differ(want, got)}")
                resumed += 1
                shutil.rmtree("copy")
            show(done, count, tally)
    tally.figures = {
        "bytes": len(good), "truncations": len(lengths), "resumed to the end": resumed,
    }  # fmt: skip
    return tally
