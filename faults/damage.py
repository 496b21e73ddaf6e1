"""Damaged checkpoints, forged ones with the right checksum, and other damaged files of a folder."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.faults.common import (
    Say,
    Tally,
    call,
    differ,
    hashes,
    make_data,
    one_line,
    progress,
    scratch,
)

WORDS = ["--quiet", "--device", "cpu", "--seeds", "1", "--minibatch", "5", "--model", "softmax"]
WORDS += ["--eval-every", "2", "--threads", "1"]


def play(root: Path, out: str, rounds: int, stop: int | None = None) -> None:
    """A small run, to its end or stopped after some rounds with a checkpoint every second one."""
    from fedmaba.experiment import config, starting
    from fedmaba.experiment import session as experiment

    tree = {"strategies": ["fedavg", "fedmaba"], "seeds": 1, "model": "softmax"}
    for name, value in {
        "data.name": str(root / "tiny.npz"), "train.rounds": rounds, "train.minibatch": 5,
        "eval.every": 2, "machine.device": "cpu", "machine.threads": 1, "save.every": 2,
        "save.out": out,
    }.items():  # fmt: skip
        config.set_key(tree, name, value)
    session = experiment.prepare(config.build(tree))
    starting.open_run_folder(session, Path(out))
    at = session.batch.progress
    for _ in session.rounds(lambda: stop is not None and at.round >= stop):
        pass


def mutate(good: bytes, rng: random.Random) -> bytes:
    """The bytes with some of them changed, lost, added or moved."""
    bad, n = bytearray(good), len(good)
    kind = rng.randrange(7)
    if kind <= 2:  # flips
        for _ in range(1 if kind else rng.randint(2, 8)):
            bad[rng.randrange(n)] ^= 1 << rng.randrange(8)
    elif kind == 3:  # a lost block
        at, size = rng.randrange(n), rng.choice([1, 16, 512, 4096])
        bad[at : at + size] = bytes(len(bad[at : at + size]))
    elif kind == 4:
        bad += rng.randbytes(rng.randint(1, 64))
    elif kind == 5:
        at = rng.randrange(n)
        bad[at : at + rng.randint(1, 64)] = b""
    else:  # two blocks that changed places
        a, b, size = rng.randrange(n), rng.randrange(n), 64
        bad[a : a + size], bad[b : b + size] = bad[b : b + size], bad[a : a + size]
    return bytes(bad)


def _inside(root: Path, work: Callable[[], Tally]) -> Tally:
    before = os.getcwd()
    os.chdir(root)
    try:
        return work()
    finally:
        os.chdir(before)


def campaign(count: int, seed: int, say: Say) -> Tally:
    """Every truncation of a checkpoint, then other damage: none loaded, the one before is used."""
    from fedmaba.results import run_folder

    rng, tally = random.Random(seed), Tally()
    show = progress(say, "damage")

    def work() -> Tally:
        make_data(Path("tiny.npz"))
        play(Path().absolute(), "whole", 6)
        play(Path().absolute(), "run", 6, stop=5)
        newest, older = run_folder.checkpoints(Path("run"))
        good, before = newest.read_bytes(), older.read_bytes()
        want = hashes(Path("whole"))
        want.pop("experiment.toml")
        lengths = rng.sample(range(len(good)), min(len(good), count // 2))
        ended = 0
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
            if (
                done % max(1, count // (20 if count >= 10_000 else 4)) == 0
            ):  # all the way, as a user would
                shutil.copytree("run", "copy")
                code, _, err = call("resume", "copy")
                got = hashes(Path("copy"))
                got.pop("experiment.toml")
                if code or newest.name not in err or differ(want, got):
                    tally.lose(f"case {done}: resume gave {code}, {err}, {differ(want, got)}")
                ended += 1
                shutil.rmtree("copy")
            show(done, count, tally)
        tally.figures = {
            "bytes": len(good), "truncations": len(lengths), "resumed to the end": ended,
        }  # fmt: skip
        return tally

    with scratch() as root:
        return _inside(root, work)


def forged(count: int, seed: int, say: Say) -> Tally:
    """Checkpoints of strange content but with the right checksum: refused or used, no traceback."""
    from fedmaba.results import run_folder

    rng, tally = random.Random(seed), Tally()
    show = progress(say, "forged")

    def work() -> Tally:
        make_data(Path("tiny.npz"))
        play(Path().absolute(), "run", 6, stop=5)
        newest, older = run_folder.checkpoints(Path("run"))
        body = newest.read_bytes()[40:]
        older.unlink()
        for done in range(count):
            bad = _twist(body, rng) if rng.random() < 0.7 else mutate(body, rng)
            newest.write_bytes(run_folder.MAGIC + hashlib.sha256(bad).digest() + bad)
            shutil.copytree("run", "copy")
            code, _, err = call(*rng.choice([("resume", "copy", "--quiet"), ("table", "copy")]))
            fine = code in (0, 65) or (code == 2 and one_line(err))
            tally.check(fine, f"case {done}: exit code {code}: {err}")
            tally.counts["used" if code != 2 else "refused"] += 1
            shutil.rmtree("copy")
            show(done, count, tally)
        return tally

    with scratch() as root:
        return _inside(root, work)


def _twist(body: bytes, rng: random.Random) -> bytes:
    """A safetensors body whose header says something else."""
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    meta = json.loads(header["__metadata__"]["fedmaba"])
    odd = [None, -1, 0, 10**30, 1.5, "x", [], {}, [[]], True, "../../x", float("inf")]
    target = rng.choice([meta, meta, header, *meta["runs"]])
    key = rng.choice([k for k in target if k != "__metadata__"])
    if rng.random() < 0.4:
        del target[key]
    elif target is header and rng.random() < 0.5:
        header[key][rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(
            [*odd, "F64", "I64", "F32", [1], [2, 3]]
        )
    elif target is header:
        header[rng.choice(list(header))] = header.pop(key)
    else:
        target[key] = rng.choice(odd)
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["fedmaba"] = json.dumps(meta)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


def folders(count: int, seed: int, say: Say) -> Tally:
    """Any file of a run folder damaged: what reads it works or says so in one line."""
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "folders")

    def work() -> Tally:
        make_data(Path("tiny.npz"))
        play(Path().absolute(), "done", 6)
        play(Path().absolute(), "half", 6, stop=5)
        for done in range(count):
            source = rng.choice(["done", "half"])
            shutil.copytree(source, "copy")
            files = [p for p in Path("copy").rglob("*") if p.is_file() and p.name != ".lock"]
            file = rng.choice(sorted(files))
            good = file.read_bytes()
            file.write_bytes(_strange(file, good, rng))
            words = [("table", "copy"), ("resume", "copy", "--quiet"), ("export", "copy")]
            words += [("report", "copy", "-o", "page.html")]
            chosen = rng.choice(words)
            code, _, err = call(*chosen)
            fine = code in (0, 65) or (code in (2, 74) and one_line(err))
            tally.check(fine, f"case {done}, {file}, {chosen}: exit code {code}: {err}")
            tally.counts["read" if code in (0, 65) else "refused"] += 1
            shutil.rmtree("copy")
            show(done, count, tally)
        return tally

    with scratch() as root:
        return _inside(root, work)


def _strange(file: Path, good: bytes, rng: random.Random) -> bytes:
    """A file cut, mutated, empty, of another kind, or of odd JSON."""
    kind = rng.randrange(6)
    if kind == 0:
        return good[: rng.randrange(len(good))]
    if kind == 1:
        return rng.choice([b"", b"\0" * 100, b"PK\x03\x04" + bytes(50), b"[" * 100_000, b"null"])
    if kind == 2 and file.suffix == ".json":
        tree = json.loads(good)
        inner = tree
        for _ in range(rng.randint(0, 3)):
            values = [v for v in _values(inner) if isinstance(v, dict | list) and v]
            inner = rng.choice(values) if values else inner
        odd = rng.choice([None, -1, 1.5, "../../../x", [], {}, 10**400, "\ud800", True])
        if isinstance(inner, dict):
            key = rng.choice(list(inner))
            inner[key] = odd
            if rng.random() < 0.3:
                del inner[key]
        else:
            inner[rng.randrange(len(inner))] = odd
        return json.dumps(tree).encode()
    return mutate(good, rng)


def _values(tree: object) -> list[object]:
    return list(tree.values()) if isinstance(tree, dict) else list(tree)  # type: ignore[call-overload]
