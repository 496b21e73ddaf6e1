"""Links in a run folder that lead out of it, then every command that writes: no change outside.

The tree outside is compared byte for byte, with rights and times; so is what a link points at.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from faults import kinds
from faults.cases import Case, turns

KINDS = ("half", "done", "server", "attacked", "begun")
FILES = (
    ".lock", "rounds.jsonl", "timing.jsonl", "about.json", "runs.json", "experiment.toml",
    "partition.npz", "checkpoint/00000004.ckpt", "checkpoint/00000006.ckpt",
    "checkpoint/00000003.ckpt", "clients/00-fedavg-s0.npz", "models/00-fedavg-s0-last.safetensors",
    "models/last.safetensors", "csv/summary.csv", "csv/rounds.csv", "csv/clients.csv",
)  # fmt: skip
TEMPORARY = tuple(str(Path(name).parent / f".{Path(name).name}.tmp") for name in FILES)
FOLDERS = ("checkpoint", "clients", "models", "csv", "events")  # not the run, which a user names
TO = (  # what it leads to
    "file", "empty file", "folder", "nothing", "nothing in a folder", "hard link", "absolute file",
    "link to a file", "folder of the same names",
)  # fmt: skip
OUTPUTS = ("out.html", "out.svg", "out.pdf", ".out.html.tmp", ".out.svg.tmp", "out", "out.csv")


def cases(seed: int, templates: Path) -> Iterator[Case]:
    """Every place and every target with one command, then with another, without end."""
    rng = random.Random(seed)
    found = [
        (kind, place, to)
        for kind in KINDS
        for place in (*FILES, *TEMPORARY, *FOLDERS)
        for to in TO
        if not (place in FOLDERS and to in ("hard link", "empty file"))
    ]
    beside = [("done", f"../{place}", to) for place in OUTPUTS for to in TO]
    for turn, (kind, place, to) in turns([*found, *beside * 3], rng):
        words = commands(kind, place)
        chosen = words[turn % len(words)]
        spoil = functools.partial(_spoil, place, to)
        # A folder that the user names may be a link: what it leads to is the user's choice.
        may = ("outside/target",) if place == "../out" and chosen[-1] == "out" else ()
        yield Case(f"a link at {place} = {to}", kind, chosen, spoil, may=may)


def commands(kind: str, place: str) -> list[tuple[str, ...]]:
    """What writes, and what may write although it should only read."""
    if place.startswith("../"):
        return [
            ("report", "run", "-o", "out.html"), ("figure", "rounds", "run", "-o", "out.svg"),
            ("export", "run", "-o", "out"), ("figure", "gains", "run", "-o", "out.pdf"),
            ("reproduce", kinds.TARGET, "--from", "run", "--out", "out"),
        ]  # fmt: skip
    found: list[tuple[str, ...]] = [
        ("resume", "run", "--quiet"), ("resume", "run", "--quiet"), ("export", "run"),
        ("report", "run", "-o", "out.html"), ("watch", "run"), kinds.AGAIN, ("table", "run"),
    ]  # fmt: skip
    return [("server", "run", "2"), *found[2:5]] if kind == "server" else found


def _spoil(place: str, to: str, folder: Path) -> None:
    """Put a link where a file or folder was; where its content matters, outside holds it."""
    run, outside = folder / "run", folder / "outside"
    link = Path(os.path.normpath(run / place))
    link.parent.mkdir(exist_ok=True, parents=True)
    target = outside / "target"
    if to == "folder of the same names":
        if link.is_dir():
            shutil.move(link, target)
        else:
            target.mkdir()
            (target / ".summary.csv.tmp").write_bytes(b"not yours\n")
            (target / "summary.csv").write_bytes(b"not yours\n")
    elif to in ("file", "hard link", "absolute file", "link to a file"):
        target.write_bytes(link.read_bytes() if link.is_file() else b"not yours\n" * 99)
    elif to == "empty file":
        target.write_bytes(b"")
    elif to == "folder":
        target.mkdir()
        for name in (".rounds.jsonl.tmp", "00000001.ckpt", "00000004.ckpt", "last.safetensors"):
            (target / name).write_bytes(b"not yours\n")
    elif to == "nothing in a folder":
        target = outside / "deep" / "new.txt"
    if to == "link to a file":
        (outside / "second").symlink_to(target)
        target = outside / "second"
    for path in outside.rglob("*"):
        os.utime(path, (10**9, 10**9), follow_symlinks=False)
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    else:
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
    if to == "hard link":
        os.link(target, link)
    elif to == "absolute file":
        link.symlink_to(target)
    else:
        link.symlink_to(os.path.relpath(target, link.parent))
