"""A damaged or hostile data file ends in one line, and nothing in it is executed."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import os
import pickle
import shutil
from pathlib import Path

import pytest

from dataset_cases import mutations, refusal, says
from dataset_standins import World, as_file, batch, string, tar_gz
from fedmaba.data import published_files
from fedmaba.data.datasets import export


def unharmed(world: World, name: str, path: Path, count: int) -> int:
    """How many mutants of a file are refused; the others must give the very same data."""
    good, refused = path.read_bytes(), 0
    digest = world.load(name).sha256()

    def same() -> None:
        assert world.load(name).sha256() == digest

    for mutant in mutations(good, count, 1):
        path.write_bytes(mutant)
        if line := refusal(same):
            refused += 1
            assert "\n" not in line
            assert path.name in line
    path.write_bytes(good)
    return refused


def test_mutated_idx_files(world):
    plain = world.plain["fashion-mnist"]
    packed = {f"{n}.gz": gzip.compress(raw) for n, raw in plain.items()}
    xz = {f"{n}.xz": lzma.compress(raw) for n, raw in plain.items()}
    for files, least in ((plain, 150), (packed, 120), (xz, 120)):
        world.lay(files)
        assert unharmed(world, "fashion-mnist", world.data / next(iter(files)), 150) >= least
        for name in files:
            (world.data / name).unlink()


@pytest.mark.slow
def test_mutated_cifar_files(world):
    for files, least in (
        (world.plain["cifar10"], 150),
        (world.batches("cifar10"), 140),
        *(({key: raw}, 150) for key, raw in world.archive["cifar10"].items()),
    ):
        world.lay(files)
        assert unharmed(world, "cifar10", world.data / next(iter(files)), 150) >= least
        for name in files:
            (world.data / name).unlink()


@pytest.mark.slow
def test_mutated_batches_near_their_opcodes(world):
    """Mutations of the few bytes that are not pixels, where the reader has decisions to take."""
    world.lay(world.batches("cifar100"))
    path = world.data / "train"
    good = path.read_bytes()
    digest = world.load("cifar100").sha256()
    at = good.index(b"T\x00\x24") + 5  # where the pixels start
    for mutant in [*mutations(good[:at], 600, 2), *(bytes([i]) + good for i in range(256))]:
        path.write_bytes(mutant + good[at:] if len(mutant) <= at + 40 else mutant)
        if not (line := refusal(lambda: world.load("cifar100"))):
            assert world.load("cifar100").sha256() == digest
        assert "\n" not in line


def forms(world: World) -> list[tuple[str, dict[str, bytes]]]:
    """Every form of every set: its name and its files."""
    plain = world.plain["fashion-mnist"]
    found = [("fashion-mnist", plain)]
    found.append(("fashion-mnist", {f"{n}.gz": gzip.compress(raw) for n, raw in plain.items()}))
    found.append(("fashion-mnist", {f"{n}.xz": lzma.compress(raw) for n, raw in plain.items()}))
    for name in ("cifar10", "cifar100"):
        found += [(name, world.plain[name]), (name, world.batches(name))]
        found += [(name, {key: raw}) for key, raw in world.archive[name].items()]
    return found


@pytest.mark.slow
def test_no_reader_crashes_on_bytes_that_no_checksum_stopped(world, monkeypatch):
    real, lines = published_files.check_bytes, []

    def size_alone(spec, path, file, size, digest):
        archive = path.name.endswith(".tar.gz") and file.name == path.name
        real(spec, path, file, file.size if archive else size, file.sha256)

    monkeypatch.setattr(published_files, "check_bytes", size_alone)
    for name, files in forms(world):
        world.lay(files)
        path = world.data / next(iter(files))
        good = path.read_bytes()
        head, rest = good[:400], good[400:]  # of a batch, the bytes that are not pixels
        for mutant in [*mutations(good, 30, 5), *(m + rest for m in mutations(head, 30, 6))]:
            path.write_bytes(mutant)
            lines.append(refusal(lambda name=name: world.load(name)))
            assert "\n" not in lines[-1]
            assert not lines[-1] or path.name in lines[-1]
        shutil.rmtree(world.data)
    assert 100 < sum(map(bool, lines)) < len(lines) - 100


def gadget(proof: Path) -> bytes:
    """What would make Python's own unpickler run a command, from opcodes that a batch may have."""
    return b"cos\nsystem\n(" + string(b"touch " + os.fsencode(proof)) + b"tR"


def test_nothing_in_a_batch_is_executed(world, tmp_path):
    proof = tmp_path / "executed"
    keys = ("labels",)
    files = world.batches("cifar10")
    honest = world.plain["cifar10"]["data_batch_1.bin"]
    files["data_batch_1"] = b"\x80\x02" + gadget(proof) + b"."
    world.lay(files)
    says(lambda: world.load("cifar10"), "data_batch_1", "lacks 3 images")
    # the numbers are right, so the set loads; the command in their midst is passed over
    files["data_batch_1"] = batch(honest, keys, extra=string(b"x") + gadget(proof))
    world.lay(files)
    assert world.load("cifar10").x.shape == (18, 3, 32, 32)
    assert not proof.exists()
    pickle.loads(b"\x80\x02" + gadget(proof) + b".")  # the gadget is a real one
    assert proof.exists()


def test_bombs_are_not_inflated(world):
    plain = world.plain["fashion-mnist"]
    name = "train-labels-idx1-ubyte"
    others = {n: raw for n, raw in plain.items() if n != name}
    bomb = bytes(20_000_000)
    for end, raw in ((".gz", gzip.compress(bomb, 1)), (".xz", lzma.compress(bomb, preset=0))):
        world.lay(others | {name + end: raw})
        says(lambda: world.load("fashion-mnist"), "more than 14 bytes")
        (world.data / (name + end)).unlink()


def test_archives_with_wild_members_write_nothing(world, tmp_path):
    spec, plain = world.specs["cifar100"], world.plain["cifar100"]
    wild = tar_gz(
        {"../escape.bin": b"x", "/tmp/escape.bin": b"y", "cifar-100-binary/train.bin": b"z"}
    )
    archive = as_file("cifar-100-binary.tar.gz", wild)
    world.specs["cifar100"] = dataclasses.replace(spec, binary=(archive, "cifar-100-binary"))
    world.lay({archive.name: wild})
    says(lambda: export("cifar100", tmp_path / "out" / "in", world.data), "1 bytes")
    assert not list(tmp_path.rglob("escape*"))
    decoy = {"other/train.bin": b"z"} | {f"cifar-100-binary/{n}": r for n, r in plain.items()}
    again = tar_gz(decoy)
    archive = as_file(archive.name, again)
    world.specs["cifar100"] = dataclasses.replace(spec, binary=(archive, "cifar-100-binary"))
    world.lay({archive.name: again})
    assert world.load("cifar100").x.shape == (6, 3, 32, 32)
    lacking = tar_gz(
        {f"cifar-100-binary/{n}": r for n, r in world.plain["cifar100"].items() if n[1] == "e"}
    )
    archive = as_file(archive.name, lacking)
    world.specs["cifar100"] = dataclasses.replace(spec, binary=(archive, "cifar-100-binary"))
    world.lay({archive.name: lacking})
    says(lambda: world.load("cifar100"), "the archive lacks train.bin")
