"""Mutated data files: idx, CIFAR in both forms, archives, and users' own .npz and .csv.

With its checksum a published file is refused unless what is inside is unchanged. Then the checksum
is switched off (the size still counts), to see what the readers themselves do with such bytes.
"""

from __future__ import annotations

import gzip
import lzma
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tools.faults.common import Say, Tally, make_data, progress, scratch
from tools.faults.damage import mutate
from tools.faults.standins import World

from fedmaba.data import datasets, published, published_files
from fedmaba.errors import InputError


@contextmanager
def stand_in(root: Path) -> Iterator[World]:
    """Tiny sets under the published names."""
    world, real = World(root), published.PUBLISHED
    kept = {key: os.environ.get(key) for key in ("XDG_CACHE_HOME", "FEDMABA_DATA")}
    published.PUBLISHED = world.specs
    os.environ["XDG_CACHE_HOME"] = str(world.cache)
    os.environ.pop("FEDMABA_DATA", None)
    try:
        yield world
    finally:
        published.PUBLISHED = real
        for key, value in kept.items():
            os.environ.pop(key, None)
            os.environ.update({key: value} if value is not None else {})


@contextmanager
def unchecked() -> Iterator[None]:
    """Published files are taken whatever their SHA-256."""
    real = published_files.check_bytes

    def same(spec: Any, path: Any, file: Any, size: int, digest: str) -> None:
        archive = path.name.endswith(".tar.gz") and file.name == path.name
        real(spec, path, file, file.size if archive else size, file.sha256)

    published_files.check_bytes = same
    try:
        yield
    finally:
        published_files.check_bytes = real


def forms(world: World) -> list[tuple[str, dict[str, bytes]]]:
    """Every form of every set: its name and its files."""
    plain = world.plain["fashion-mnist"]
    out = [("fashion-mnist", plain)]
    out.append(("fashion-mnist", {f"{n}.gz": gzip.compress(raw) for n, raw in plain.items()}))
    out.append(("fashion-mnist", {f"{n}.xz": lzma.compress(raw) for n, raw in plain.items()}))
    for name in ("cifar10", "cifar100"):
        out += [(name, world.plain[name]), (name, world.batches(name))]
        out += [(name, {key: raw}) for key, raw in world.archive[name].items()]
    return out


def near_opcodes(good: bytes, rng: random.Random) -> bytes:
    """A mutation of the bytes that are not pixels, where a reader has decisions to take."""
    at = good.find(b"T\x00\x24")
    at = min(len(good), 400) if at < 0 else at + 5
    return mutate(good[:at], rng) + good[at:]


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` mutated files, over all forms; with and without the checksum."""
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "data")
    with scratch() as root, stand_in(root) as world:
        listed = forms(world)
        digests = {}
        for done in range(count):
            if done % 5 == 4:
                _own(root, rng, tally)
                continue
            name, files = listed[done % len(listed)]
            world.lay(files)
            if name not in digests:
                digests[name] = world.load(name).sha256()
            path = world.data / rng.choice(sorted(files))
            good = path.read_bytes()
            bad = rng.choice([mutate, near_opcodes])(good, rng)
            bad = good[: rng.randrange(len(good))] if rng.random() < 0.1 else bad
            path.write_bytes(bad)
            loose = rng.random() < 0.5
            try:
                if loose:
                    with unchecked():
                        world.load(name)
                    tally.counts["read without its checksum"] += 1
                    fine, why = True, ""
                else:
                    fine, why = world.load(name).sha256() == digests[name], "accepted"
                    tally.counts["unchanged inside"] += 1
            except InputError as error:
                fine, why = "\n" not in str(error) and path.name in str(error), str(error)
                tally.counts["refused" + " without its checksum" * loose] += 1
            except Exception as error:
                fine, why = False, repr(error)
            tally.check(fine, f"case {done}, {path.name} of {name}, {'un' * loose}checked: {why}")
            shutil.rmtree(world.data)
            show(done, count, tally)
    return tally


def _own(root: Path, rng: random.Random, tally: Tally) -> None:
    """A mutated .npz or .csv of the user: arrays or one line."""
    if rng.random() < 0.5:
        path = make_data(root / "own.npz")
    else:
        path = root / "own.csv"
        rows = np.random.default_rng(0).normal(size=(12, 3)).round(3)
        text = "a,b,c,label,client,split\n" + "".join(
            f"{','.join(map(str, row))},{i % 3},c{i % 2},{'test' if i > 9 else 'train'}\n"
            for i, row in enumerate(rows)
        )
        path.write_text(text)
    good = path.read_bytes()
    path.write_bytes(mutate(good, rng) if rng.random() < 0.9 else good[: rng.randrange(len(good))])
    try:
        data = datasets.load(str(path))
        fine, why = bool(np.isfinite(data.x).all()), "features that are not finite"
        tally.counts["own file read"] += 1
    except InputError as error:
        fine, why = "\n" not in str(error), str(error)
        tally.counts["own file refused"] += 1
    except Exception as error:
        fine, why = False, repr(error)
    tally.check(fine, f"{path.name}: {why}")
    path.unlink()
