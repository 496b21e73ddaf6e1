"""Tiny stand-ins for the published data sets, in every form in which their files are shipped."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np

from fedmaba.data import datasets, published

RNG = np.random.default_rng(0)


def as_file(name: str, raw: bytes) -> published.PlainFile:
    return published.PlainFile(name, len(raw), hashlib.sha256(raw).hexdigest())


def idx_files() -> dict[str, bytes]:
    """Four idx files: 6 training and 4 test images."""
    out = {}
    for part, n in (("train", 6), ("t10k", 4)):
        pixels = RNG.integers(0, 256, n * 784, dtype=np.uint8).tobytes()
        out[f"{part}-images-idx3-ubyte"] = np.array([0x803, n, 28, 28], ">u4").tobytes() + pixels
        out[f"{part}-labels-idx1-ubyte"] = np.array([0x801, n], ">u4").tobytes() + bytes(range(n))
    return out


def bin_files(names: list[str], labels: int) -> dict[str, bytes]:
    """*.bin files of 3 images each."""
    head = RNG.integers(0, 10, (len(names), 3, labels), dtype=np.uint8)
    rows = RNG.integers(0, 256, (len(names), 3, 3072), dtype=np.uint8)
    return {
        n: np.concatenate([h, r], 1).tobytes() for n, h, r in zip(names, head, rows, strict=True)
    }


def string(text: bytes) -> bytes:
    """A Python 2 string, as its pickles write it."""
    short = len(text) < 256
    return (b"U" + bytes([len(text)]) if short else b"T" + len(text).to_bytes(4, "little")) + text


def batch(raw: bytes, keys: tuple[str, ...], fortran: bool = False, extra: bytes = b"") -> bytes:
    """A Python 2 pickle of a CIFAR batch, written opcode by opcode."""
    rows = np.frombuffer(raw, np.uint8).reshape(3, -1)
    labels, pixels = rows[:, : len(keys)], rows[:, len(keys) :]
    out = (
        b"\x80\x02}q\x01(" + string(b"batch_label") + b"q\x02" + string(b"batch 1 of 5") + b"q\x03"
    )
    for j, key in enumerate(keys):
        out += string(key.encode()) + b"]q\x04(" + b"".join(b"K%c" % v for v in labels[:, j]) + b"e"
    out += (
        string(b"data") + b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00"
    )
    out += b"\x85" + string(b"b") + b"\x87Rq\x09(K\x01K\x03M\x00\x0c\x86cnumpy\ndtype\nq\x0a"
    out += string(b"u1") + b"K\x00K\x01\x87Rq\x0b(K\x03" + string(b"|")
    out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb" + (b"\x88" if fortran else b"\x89")
    out += string(pixels.tobytes("F" if fortran else "C")) + b"tbq\x0c" + extra
    return out + string(b"filenames") + b"]q\x0d(" + string(b"a.png") * 3 + b"eu."


def tar_gz(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return out.getvalue()


class World:
    """Tiny sets under the published names, an empty cache, and the files to lay out."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.data.mkdir()
        self.cache = root / "cache"
        self.system = root / "system"
        self.plain: dict[str, dict[str, bytes]] = {}
        self.archive: dict[str, dict[str, bytes]] = {}
        self.specs: dict[str, published.Published] = {"sample": published.PUBLISHED["sample"]}
        self.add("fashion-mnist", idx_files())
        self.add("cifar10", bin_files([f.name for f in published._CIFAR10_FILES], 1))
        self.add("cifar100", bin_files(["train.bin", "test.bin"], 2))
        fine, coarse = self.specs["cifar100"], published.PUBLISHED["cifar100-coarse"]
        same = {"files": fine.files, "binary": fine.binary, "python": fine.python}
        self.specs[coarse.name] = dataclasses.replace(coarse, **same)  # type: ignore[arg-type]

    def add(self, name: str, files: dict[str, bytes]) -> None:
        spec = published.PUBLISHED[name]
        change: dict[str, object] = {"files": tuple(as_file(n, raw) for n, raw in files.items())}
        self.plain[name], self.archive[name] = files, {}
        if spec.system:
            change["system"] = self.system
        for kind in ("binary", "python"):
            if packed := getattr(spec, kind):
                members = files if kind == "binary" else self.batches(name)
                raw = tar_gz({f"{packed[1]}/{n}": r for n, r in members.items()})
                self.archive[name][packed[0].name] = raw
                change[kind] = (as_file(packed[0].name, raw), packed[1])
        self.specs[name] = dataclasses.replace(spec, **change)  # type: ignore[arg-type]

    def batches(self, name: str, fortran: bool = False) -> dict[str, bytes]:
        keys = published.PUBLISHED[name].labels
        plain = self.plain[name].items()
        return {n.removesuffix(".bin"): batch(raw, keys, fortran) for n, raw in plain}

    def lay(self, files: dict[str, bytes], folder: Path | None = None) -> Path:
        folder = folder or self.data
        folder.mkdir(parents=True, exist_ok=True)
        for name, raw in files.items():
            (folder / name).write_bytes(raw)
        return folder

    def load(self, name: str, normalise: str | None = None) -> datasets.Dataset:
        return datasets.load(name, self.data, normalise=normalise, download=False)
