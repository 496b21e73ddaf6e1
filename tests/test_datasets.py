"""Data sets by name: every form of a published file gives the same numbers.

Tiny sets, made here under the published names, stand in for the published ones.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import pickle

import numpy as np
import pytest

from dataset_cases import says
from fedmaba.data import datasets
from fedmaba.data.datasets import check, export, fetch, load


def test_sample_is_there_and_balanced():
    data = load("sample")
    assert data.x.shape == (8000, 1, 28, 28)
    assert data.x.dtype == np.float32
    assert data.y.dtype == np.int64
    assert (data.x.min(), data.x.max()) == (0, 1)
    assert data.n_train == 6000
    assert (np.bincount(data.y[:6000]) == 600).all()
    assert (np.bincount(data.y[6000:]) == 200).all()
    assert data.y[:6].tolist() == [9, 0, 0, 3, 0, 2]  # as the first labels of Fashion-MNIST
    assert data.classes[9] == "Ankle boot"
    assert data.client is None


def test_sample_checks_and_exports(tmp_path):
    assert [status for _, status in check("sample")] == ["ok"] * 4
    paths = export("sample", tmp_path / "out")
    assert [path.stat().st_size for path in paths] == [1568016, 2008, 4704016, 6008]
    assert (tmp_path / "out" / "t10k-labels-idx1-ubyte").read_bytes()[:8] == b"\0\0\x08\1\0\0\7\xd0"
    assert len(list((tmp_path / "out").iterdir())) == 4  # no temporary files stay
    says(lambda: fetch("sample"), "nothing to fetch")


def test_fashion_mnist_numbers(world):
    world.lay(world.plain["fashion-mnist"])
    data = world.load("fashion-mnist")
    raw = world.plain["fashion-mnist"]["train-images-idx3-ubyte"][16:]
    assert data.x.shape == (10, 1, 28, 28)
    np.testing.assert_array_equal(
        data.x[:6].ravel(), np.frombuffer(raw, np.uint8) / np.float32(255)
    )
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert data.n_train == 6


@pytest.mark.parametrize(("name", "n", "n_train"), [("cifar10", 18, 15), ("cifar100", 6, 3)])
def test_cifar_numbers(world, name, n, n_train):
    world.lay(world.plain[name])
    data = world.load(name)
    rows = np.concatenate(
        [np.frombuffer(r, np.uint8).reshape(3, -1) for r in world.plain[name].values()]
    )
    pixels = rows[:, -3072:].reshape(n, 3, 32, 32) / 255
    mean = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
    std = np.array([0.2023, 0.1994, 0.2010])[:, None, None]
    np.testing.assert_allclose(data.x, (pixels - mean) / std, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(data.y, rows[:, -3073])  # cifar100: the fine label, not the first
    assert (len(data.x), data.n_train) == (n, n_train)
    assert len(data.classes) == int(name.removeprefix("cifar"))


@pytest.mark.parametrize("place", ["data", "data/cifar100", "cache/fedmaba/cifar100"])
def test_the_coarse_classes_come_from_the_same_files(place, world, tmp_path):
    world.lay(world.plain["cifar100"], tmp_path / place)
    data = world.load("cifar100-coarse")
    rows = [np.frombuffer(r, np.uint8).reshape(3, -1) for r in world.plain["cifar100"].values()]
    np.testing.assert_array_equal(data.y, np.concatenate(rows)[:, 0])
    np.testing.assert_array_equal(data.x, world.load("cifar100").x)
    assert (data.name, len(data.classes)) == ("cifar100-coarse", 20)


def test_fashion_mnist_forms_agree(world, monkeypatch):
    plain = world.plain["fashion-mnist"]
    packed = {f"{n}.gz": gzip.compress(raw) for n, raw in plain.items()}
    mixed = {f"{n}.xz": lzma.compress(raw) for n, raw in list(plain.items())[:2]} | dict(
        list(plain.items())[2:]
    )
    places = {
        world.data: plain,
        world.data / "fashion-mnist": packed,
        world.data / "FashionMNIST" / "raw": mixed,
        world.cache / "fedmaba" / "fashion-mnist": packed,
        world.system: packed,
    }
    digests = set()
    for folder, files in places.items():
        world.lay(files, folder)
        digests.add(load("fashion-mnist", world.data, download=False).sha256())
        for name in files:
            (folder / name).unlink()
    world.lay(packed, world.system.parent / "elsewhere" / "fashion-mnist")
    monkeypatch.setenv("FEDMABA_DATA", str(world.system.parent / "elsewhere"))
    digests.add(load("fashion-mnist", download=False).sha256())
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_forms_agree(world, name):
    spec = world.specs[name]
    sub = {"bin": spec.binary[1], "py": spec.python[1]}
    archives = world.archive[name]
    digests = set()
    for files, folder in [
        (world.plain[name], world.data),
        (world.plain[name], world.data / name),
        (world.plain[name], world.data / sub["bin"]),
        (world.batches(name), world.data),
        (world.batches(name), world.data / sub["py"]),
        (world.batches(name, fortran=True), world.data),
        *(({key: raw}, world.data) for key, raw in archives.items()),
    ]:
        world.lay(files, folder)
        digests.add(world.load(name).sha256())
        assert {status for _, status in check(name, world.data)} == {"ok"}
        for key in files:
            (folder / key).unlink()
    assert len(digests) == 1
    assert len(archives) == 2


def test_modern_pickles_of_batches_are_read_too(world):
    files = {}
    for name, raw in world.plain["cifar10"].items():
        rows = np.frombuffer(raw, np.uint8).reshape(3, 3073)
        content = {b"labels": rows[:, 0].tolist(), b"data": rows[:, 1:].copy()}
        files[name.removesuffix(".bin")] = pickle.dumps(content, protocol=4)
    world.lay(files)
    assert world.load("cifar10").x.shape == (18, 3, 32, 32)


def test_the_first_place_wins_and_a_bad_file_there_is_not_skipped(world):
    plain = world.plain["fashion-mnist"]
    world.lay(plain, world.data / "fashion-mnist")
    bad = world.lay({n: raw[:-1] for n, raw in plain.items()}) / "train-images-idx3-ubyte"
    says(
        lambda: world.load("fashion-mnist"),
        str(bad),
        "4719 bytes",
        "4720",
        "data fetch fashion-mnist",
    )
    rows = check("fashion-mnist", world.data)
    assert len(rows) == 4
    assert all("bytes here" in status for _, status in rows)


def test_half_a_set_names_what_is_missing(world):
    plain = dict(world.plain["cifar10"])
    del plain["data_batch_4.bin"]
    world.lay(plain)
    says(
        lambda: world.load("cifar10"),
        "data_batch_1.bin",
        "not data_batch_4.bin",
        "data fetch cifar10",
    )


def test_wrong_content_names_both_digests(world):
    plain = world.plain["cifar100"]
    raw = bytearray(plain["test.bin"])
    raw[100] ^= 1
    world.lay(plain | {"test.bin": bytes(raw)})
    good, bad = (hashlib.sha256(r).hexdigest()[:16] for r in (plain["test.bin"], raw))
    says(lambda: world.load("cifar100"), "test.bin", good, bad, "delete it")


def test_export_writes_the_publishers_bytes(world, tmp_path):
    world.lay({k: v for k, v in world.archive["cifar10"].items() if "python" in k})
    paths = export("cifar10", tmp_path / "out", world.data)
    assert {path.name: path.read_bytes() for path in paths} == world.plain["cifar10"]
    (tmp_path / "file").write_text("")
    says(lambda: export("cifar10", tmp_path / "file", world.data), "cannot write there")
    assert export("cifar10", tmp_path / "out", world.data) == paths  # the same again
    paths[-1].write_bytes(b"mine")
    paths[0].unlink()
    says(lambda: export("cifar10", tmp_path / "out", world.data), "holds something else: choose")
    assert paths[-1].read_bytes() == b"mine"
    assert not paths[0].exists()  # all or none


def test_names(world):
    says(lambda: load("fashion_mnist"), "did you mean 'fashion-mnist'")
    says(lambda: load("cifar"), "did you mean")
    says(lambda: load("/no/such/file.npz"), "no such file")
    says(lambda: load("a" * 5000 + ".npz"), "too long")
    says(lambda: load("cifar10/../\0.csv"), "no such file")
    says(lambda: fetch("synthetic"), "no published files")
    says(lambda: check("mine.csv"), "no published files")
    assert all(text and "\n" not in text for _, text in datasets.describe_datasets())
