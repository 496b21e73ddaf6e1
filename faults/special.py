"""Things that are no plain file of a sane size, in the place of every file of every folder."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import shutil
import socket
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from faults import formats, kinds
from faults.cases import Case, turns
from faults.common import inside

KINDS = (*kinds.RUNS, "server", "archive")
BESIDE = ("experiment.toml", "runs.json", "rounds.jsonl", "about.json", ".lock", "partition.npz")


def cases(seed: int, templates: Path) -> Iterator[Case]:
    """Every strange thing in every place with one command, then with another, without end."""
    rng = random.Random(seed)
    places = [(kind, file) for kind in KINDS for file in _files(templates / kind / "run")]
    things = [(*place, what) for place in places for what in THINGS if _fits(place[1], what)]
    for turn, (kind, file, what) in turns(things, rng):
        words = kinds.commands(kind, rng)
        chosen = words[turn % len(words)]
        spoil = functools.partial(_spoil, file, what)
        nobody = what in UNREADABLE and os.geteuid() == 0
        yield Case(f"{file} = {what}", kind, chosen, spoil, nobody=nobody)


def _files(run: Path) -> list[str]:
    """Files and folders of a template, those that may be there too, and the whole of it."""
    found, alike = ["."], set()
    for path in sorted(run.rglob("*")):
        sort = (path.parent.name, path.suffix) if path.parent != run else path.name
        if sort not in alike:
            alike.add(sort)
            found.append(str(path.relative_to(run)))
    more = ["checkpoint/99999999.ckpt", "csv", "models", "extra.npz", *BESIDE]
    if run.parent.name not in ("archive", "server"):
        more.append("../tiny.npz")  # the data of the run
    return [*found, *(name for name in more if name not in found)]


def _fits(file: str, what: str) -> bool:
    """Whether a thing has a meaning there."""
    suffix = THINGS[what][0]
    return not suffix or file.endswith(suffix)


def _spoil(file: str, what: str, folder: Path) -> None:
    target = folder / "run" / file
    target = folder / "run" if file == "." else target
    target.parent.mkdir(exist_ok=True)
    good = target.read_bytes() if target.is_file() else b""
    if what in UNREADABLE:
        if not target.exists():
            target.write_bytes(b"{}\n")
        target.chmod(0)
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
    THINGS[what][1](target, good)


# --- the things ---------------------------------------------------------------------------------


def _fifo(target: Path, good: bytes) -> None:
    os.mkfifo(target)


def _socket(target: Path, good: bytes) -> None:
    with inside(target.parent), socket.socket(socket.AF_UNIX) as s:
        s.bind(target.name)  # an address has at most 108 characters


def _device(number: int) -> Callable[[Path, bytes], None]:
    def make(target: Path, good: bytes) -> None:
        try:
            os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, number))
        except PermissionError:  # a link to it, where only root may make one
            target.symlink_to({3: "/dev/null", 5: "/dev/zero", 7: "/dev/full"}[number])

    return make


def _directory(target: Path, good: bytes) -> None:
    target.mkdir()
    (target / "inside").write_bytes(good)


def _link(to: str) -> Callable[[Path, bytes], None]:
    return lambda target, good: target.symlink_to(to)


def _loop(target: Path, good: bytes) -> None:
    other = target.with_name("loop")
    target.symlink_to(other)
    other.symlink_to(target)


def _sparse(size: int, content: bytes = b"") -> Callable[[Path, bytes], None]:
    def make(target: Path, good: bytes) -> None:
        with open(target, "wb") as f:
            f.write(good or content)
            f.truncate(size)

    return make


def _line(target: Path, good: bytes) -> None:
    """A line of a gigabyte that begins as a JSON string: mostly a hole in the file."""
    with open(target, "wb") as f:
        f.write(b'{"round": 1, "a": "')
        f.seek(10**9)
        f.write(b'"}\n')


def _writes(content: Callable[[bytes], bytes]) -> Callable[[Path, bytes], None]:
    def make(target: Path, good: bytes) -> None:
        target.write_bytes(content(good))

    return make


def _bomb(shape: str, kind: str, mebibytes: int) -> Callable[[Path, bytes], None]:
    """An NPZ whose every member unpacks to gigabytes of zeros; 4 MB as it lies there."""

    def make(target: Path, good: bytes) -> None:
        try:
            names = [name for name, _ in formats.members(good)]
        except (zipfile.BadZipFile, OSError):
            names = ["about.npy", "seed0.labels.npy"]
        target.write_bytes(_packed(names, mebibytes, shape, kind))

    return make


def _packed(names: list[str], blocks: int, shape: str, kind: str) -> bytes:
    """A ZIP file made by hand, as packing gigabytes would take a minute for each."""
    head = formats.npy(shape, kind, b"")
    body, crc, size = _deflated(head, blocks)
    out, places = io.BytesIO(), []
    for name in names:
        places.append(out.tell())
        out.write(struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, 0, 8, 0, 33, crc, len(body),
                              min(size, 2**32 - 1), len(name.encode()), 0))  # fmt: skip
        out.write(name.encode() + body)
    start = out.tell()
    for name, place in zip(names, places, strict=True):
        out.write(struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, 0, 8, 0, 33, crc,
                              len(body), min(size, 2**32 - 1), len(name.encode()), 0, 0, 0, 0, 0,
                              place))  # fmt: skip
        out.write(name.encode())
    end = out.tell()
    out.write(struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(names), len(names), end - start,
                          start, 0))  # fmt: skip
    return out.getvalue()


@functools.cache
def _deflated(head: bytes, blocks: int) -> tuple[bytes, int, int]:
    """A header and mebibytes of zeros, packed, with checksum and size."""
    packer, crc, block = zlib.compressobj(9, zlib.DEFLATED, -15), 0, bytes(2**20)
    parts = [packer.compress(head)]
    crc = zlib.crc32(head)
    for _ in range(blocks):
        parts.append(packer.compress(block))
        crc = zlib.crc32(block, crc)
    parts.append(packer.flush())
    return b"".join(parts), crc, len(head) + blocks * 2**20


def _strategies(good: bytes) -> bytes:
    """100,000 runs, each of its own strategy."""
    run = {"seed": 0, "deploy": "last", "diverged": ""}
    runs = [{"label": f"s{i}", **run} for i in range(100_000)]
    return json.dumps({"share": 0.05, "runs": runs}).encode()


def _same_runs(good: bytes) -> bytes:
    """The first run 100,000 times, which finds one file again and again where labels decide."""
    try:
        told = json.loads(good)
        return json.dumps({**told, "runs": told["runs"][:1] * 100_000}).encode()
    except (ValueError, KeyError, TypeError):
        return _strategies(good)


def _keys(good: bytes) -> bytes:
    return b"".join(b"k%d=1\n" % i for i in range(10**6))


def _many_keys(good: bytes) -> bytes:
    return json.dumps({f"key {i}": i for i in range(500_000)}).encode()


def _clients(good: bytes) -> bytes:
    """About two million clients and classes."""
    names = ["n"] * 2_000_000
    try:
        told = json.loads(good)
    except ValueError:
        told = {}
    told = told if isinstance(told, dict) else {}
    data = {**(told.get("data") or {}), "clients": names, "classes": names}
    return json.dumps({**told, "data": data}).encode()


Thing = tuple[str, Callable[[Path, bytes], None]]  # the ending it is for ("" for any), how to
THINGS: dict[str, Thing] = {
    "a FIFO": ("", _fifo),
    "a socket": ("", _socket),
    "/dev/null": ("", _device(3)),
    "/dev/zero": ("", _device(5)),
    "/dev/full": ("", _device(7)),
    "a link to /dev/zero": ("", _link("/dev/zero")),
    "a folder": ("", _directory),
    "a link to nothing": ("", _link("nothing")),
    "a link to itself": ("", _loop),
    "a link to /proc/self/mem": ("", _link("/proc/self/mem")),
    "a link to the terminal": ("", _link("/dev/tty")),
    "a link to /": ("", _link("/")),
    "unreadable": ("", _fifo),  # of its rights, see _spoil
    "an empty file": ("", _writes(lambda good: b"")),
    "one byte": ("", _writes(lambda good: b"\x80")),
    "a 3-GB sparse file": ("", _sparse(3 * 10**9)),
    "a 10-TB sparse file": ("", _sparse(10**13)),
    "200 MB of brackets": ("json", _writes(lambda good: b"[" * 200_000_000)),
    "100 MB of tabs": ("toml", _writes(lambda good: b"\t" * 100_000_000)),
    "50 MB of quotes": ("toml", _writes(lambda good: b'"' * 50_000_000)),
    "a million keys": ("toml", _writes(_keys)),
    "200 MB of lines": ("jsonl", _writes(lambda good: b'{"round": 1}\n' * 15_000_000)),
    "a line of 1 GB": ("jsonl", _line),
    "one string of 1 GB": ("json", _line),
    "a ZIP bomb": ("npz", _bomb("(500000000,)", "'<f8'", 3815)),
    "a ZIP bomb of bytes": ("npz", _bomb(f"({3000 * 2**20},)", "'|u1'", 3000)),
    "100,000 strategies": ("runs.json", _writes(_strategies)),
    "one run 100,000 times": ("runs.json", _writes(_same_runs)),
    "500,000 keys": ("json", _writes(_many_keys)),
    "two million names": ("about.json", _writes(_clients)),
    "3 GB behind a header": ("ckpt", _sparse(3 * 10**9, b"FEDMABA1" + bytes(32))),
}  # fmt: skip
UNREADABLE = ("unreadable",)
