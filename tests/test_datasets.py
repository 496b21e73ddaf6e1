"""Data sets: every form of a file ends in the same numbers, and no bad file in anything but a line.

Published sets are stood in for by tiny ones, made here, under the same names. Tests of the real
files need $FEDMABA_DATA, a folder that has them.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import gzip
import hashlib
import io
import lzma
import os
import pickle
import urllib.error
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tools.faults.standins import World, as_file, batch, string, tar_gz

from fedmaba.data import datasets, published
from fedmaba.data.datasets import check, export, fetch, from_arrays, load
from fedmaba.errors import InputError

RNG = np.random.default_rng(0)
REAL = os.environ.get("FEDMABA_DATA", "")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Tiny published sets; no environment, no network."""
    world = World(tmp_path)
    monkeypatch.setattr(published, "PUBLISHED", world.specs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(world.cache))
    monkeypatch.delenv("FEDMABA_DATA", raising=False)

    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(published.urllib.request, "urlopen", no_network)
    return world


def says(name_or_call, *words: str) -> str:
    """The one line of the InputError, which has all the words."""
    with pytest.raises(InputError) as caught:
        name_or_call()
    text = str(caught.value)
    assert "\n" not in text
    assert not [word for word in words if word not in text], text
    return text


# --- the embedded sample -----------------------------------------------------------------------


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


def test_sample_stays_small():
    folder = Path(datasets.__file__).parent / "sample"
    sizes = [path.stat().st_size for path in folder.glob("*.xz")]
    assert len(sizes) == 4
    assert max(sizes) < 3_000_000
    assert sum(sizes) < 5_000_000
    assert "Copyright (c) 2017 Zalando SE" in (folder / "LICENSE").read_text()


# --- one set, many forms -----------------------------------------------------------------------


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


def test_the_coarse_classes_are_fetched_once_with_the_fine_ones(world, monkeypatch):
    asked = serve(monkeypatch, world.archive["cifar100"])
    assert fetch("cifar100-coarse") == world.cache / "fedmaba" / "cifar100" == fetch("cifar100")
    assert len(asked) == 1


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


# --- hostile files -----------------------------------------------------------------------------


def mutations(raw: bytes, count: int, seed: int):
    """Truncated, flipped, spliced and lengthened copies."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        out = bytearray(raw)
        at = int(rng.integers(len(out)))
        if i % 4 == 0:
            out = out[:at]
        elif i % 4 == 1:
            for spot in rng.integers(len(out), size=int(rng.integers(1, 6))):
                out[spot] ^= int(rng.integers(1, 256))
        elif i % 4 == 2:
            out[at:at] = rng.bytes(int(rng.integers(1, 40)))
        else:
            out[at : at + 8] = b"\xff" * 8
        yield bytes(out)


def refusal(call) -> str:
    """The line of the InputError, empty if there was none; any other exception goes on."""
    try:
        call()
    except InputError as err:
        return str(err)
    return ""


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


def gadget(proof: Path) -> bytes:
    """What would make Python's own unpickler run a command, from opcodes our reader accepts."""
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
    for code in (b"i", b"o", b"\x81", b"\x92", b"\x82\x01", b"P0\n", b"Q", b"S'x'\n"):
        files["data_batch_1"] = batch(honest, keys, extra=code)
        world.lay(files)
        says(lambda: world.load("cifar10"), f"opcode {code[0]:#04x}")
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


# --- download ----------------------------------------------------------------------------------


class Reply(io.BytesIO):
    headers = {"Content-Length": "7"}  # noqa: RUF012


def serve(monkeypatch, files: dict[str, bytes]) -> list[str]:
    """A network that has these files; returns the list of what was asked for."""
    asked: list[str] = []

    def urlopen(request, timeout):
        assert timeout
        assert request.full_url.startswith("https://")
        asked.append(request.full_url.rsplit("/", 1)[-1])
        if asked[-1] not in files:
            raise urllib.error.HTTPError(request.full_url, 404, "Not Found", {}, None)
        return Reply(files[asked[-1]])

    monkeypatch.setattr(published.urllib.request, "urlopen", urlopen)
    return asked


def test_download_goes_to_the_cache_once(world, monkeypatch):
    served = {f"{n}.gz": gzip.compress(raw) for n, raw in world.plain["fashion-mnist"].items()}
    served |= world.archive["cifar10"]
    asked = serve(monkeypatch, served)
    seen: list[tuple[str, int, int]] = []
    first = load("fashion-mnist", progress=lambda *step: seen.append(step))
    assert len(asked) == 4
    assert seen[0][0] == "train-images-idx3-ubyte.gz"
    assert all(0 < done <= total for _, done, total in seen)
    assert load("fashion-mnist").sha256() == first.sha256()
    assert len(asked) == 4
    folder = world.cache / "fedmaba" / "fashion-mnist"
    assert {p.name for p in folder.iterdir()} == set(world.plain["fashion-mnist"])
    assert load("cifar10").x.shape == (18, 3, 32, 32)
    assert asked[4:] == ["cifar-10-binary.tar.gz"]


def test_fetch_to_a_folder_mends_damage(world, monkeypatch):
    asked = serve(monkeypatch, world.archive["cifar100"])
    target = world.data / "new"
    assert fetch("cifar100", target) == target / "cifar100"
    assert fetch("cifar100", target) == target / "cifar100"
    assert len(asked) == 1
    (target / "cifar100" / "test.bin").write_bytes(b"damaged")
    says(lambda: load("cifar100", target), "7 bytes")
    fetch("cifar100", target)
    (target / "cifar100" / "test.bin").unlink()
    fetch("cifar100", target)
    assert load("cifar100", target).x.shape == (6, 3, 32, 32)
    assert len(asked) == 3


def test_a_bad_download_leaves_nothing(world, monkeypatch):
    good = world.archive["cifar100"]["cifar-100-binary.tar.gz"]
    for raw, word in (
        (good[:-5], "bytes"),
        (good[:-1] + b"?", "SHA-256"),
        (good + b"x", "so not the publisher's"),
    ):
        serve(monkeypatch, {"cifar-100-binary.tar.gz": raw})
        says(lambda: fetch("cifar100"), "https://", word, "try again")
        assert not list((world.cache / "fedmaba" / "cifar100").iterdir())
        says(lambda: load("cifar100"), word, "--data-dir")


def test_without_files_and_network_the_line_says_where_and_how(world, monkeypatch):
    for download in (True, False):
        text = says(
            functools.partial(load, "fashion-mnist", world.data, download=download),
            *(
                str(world.data),
                str(world.data / "fashion-mnist"),
                str(world.cache),
                str(world.system),
            ),
            *("fedmaba data fetch fashion-mnist", "--data-dir", "$FEDMABA_DATA"),
            *("dataset-fashion-mnist", "train-images-idx3-ubyte"),
        )
        assert ("no network in tests" in text) == download
    assert "Debian" not in says(lambda: load("cifar10"), "cifar10")
    assert {status for _, status in check("cifar10", world.data)} == {"absent"}
    says(lambda: export("cifar10", world.data / "out"), "data fetch cifar10")
    says(lambda: load("cifar10", world.data / "no"), "is no folder")
    monkeypatch.setenv("FEDMABA_DATA", "nowhere")
    says(lambda: load("cifar10"), "$FEDMABA_DATA 'nowhere' is no folder")


def test_names(world):
    says(lambda: load("fashion_mnist"), "did you mean 'fashion-mnist'")
    says(lambda: load("cifar"), "did you mean")
    says(lambda: load("/no/such/file.npz"), "no such file")
    says(lambda: load("a" * 5000 + ".npz"), "too long")
    says(lambda: load("cifar10/../\0.csv"), "no such file")
    says(lambda: fetch("synthetic"), "no published files")
    says(lambda: check("mine.csv"), "no published files")
    names = [name for name, _ in datasets.describe()]
    assert names == [
        "sample",
        "fashion-mnist",
        "cifar10",
        "cifar100",
        "cifar100-coarse",
        "synthetic",
        "FILE.npz",
        "FILE.csv",
    ]
    assert all(text and "\n" not in text for _, text in datasets.describe())


# --- users' own data ---------------------------------------------------------------------------

X = np.arange(12.0).reshape(6, 2)
Y = [0, 1, 2, 0, 1, 2]


def test_from_arrays_puts_test_rows_last():
    data = from_arrays(X, Y, ["b", "a", "a", "b", "c", "a"], X[:2], Y[:2], ["c", "a"])
    assert data.x.shape == (8, 2)
    assert data.x.dtype == np.float32
    assert (data.n_train, data.classes) == (6, ("0", "1", "2"))
    assert data.client is not None
    assert data.client.tolist() == [1, 0, 0, 1, 2, 0, 2, 0]
    assert data.client_names == ("a", "b", "c")
    unknown_owner = from_arrays(X, Y, np.array([7, 3, 3, 7, 7, 3]), X[:2], Y[:2])
    assert unknown_owner.client is not None
    assert unknown_owner.client.tolist() == [1, 0, 0, 1, 1, 0, -1, -1]
    assert unknown_owner.client_names == ("3", "7")
    assert from_arrays(X, Y, classes=["p", "q", "r", "s"]).classes == ("p", "q", "r", "s")
    image = from_arrays(np.zeros((6, 3, 8, 8), np.float16), np.array(Y, float))
    assert image.x.shape == (6, 3, 8, 8)


def test_digest_depends_on_everything_a_run_depends_on():
    base = {"x": X, "y": Y, "client": [0, 0, 0, 1, 1, 1], "x_test": X[:2], "y_test": [0, 1]}
    changed = [
        base,
        base | {"x": X + 1},
        base | {"y": Y[::-1]},
        base | {"client": [0, 0, 1, 1, 1, 1]},
        {"x": X, "y": Y, "client": base["client"]},
        {"x": X, "y": Y},
        {"x": np.vstack([X, X[:2]]), "y": [*Y, 0, 1], "client": [0, 0, 0, 1, 1, 1, 2, 2]},
        base | {"x": X[:, :, None], "x_test": X[:2, :, None]},
    ]
    assert len({from_arrays(**arrays).sha256() for arrays in changed}) == len(changed)
    assert from_arrays(**base).sha256() == from_arrays(**base, name="other").sha256()
    assert from_arrays([[1.0, 2.0]], [0]).sha256() == (
        "b86d8424b98245fa335c4b3442030a3131ed9b97e6089cd25b11e4332b2a445e"
    )


def spoiled(*cells: tuple[int, int]) -> np.ndarray:
    out = np.zeros((20, 3))
    for row, column in cells:
        out[row, column] = np.nan
    return out


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": spoiled((17, 0), (18, 1), (18, 2)), "y": [0] * 20},
            "x has 3 non-finite values, first at row 17",
        ),
        ({"x": np.full((6, 2), 1e300), "y": Y}, "12 huge values, first at row 0: scale them"),
        ({"x": [1.0, 2.0], "y": [0, 1]}, "shape (2,)"),
        ({"x": np.zeros((0, 3)), "y": []}, "shape (0, 3)"),
        ({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}, "ragged"),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, "x has dtype <U1"),
        ({"x": X * 1j, "y": Y}, "complex"),
        ({"x": X, "y": Y[:5]}, "y has shape (5,), but there are 6"),
        ({"x": X, "y": [0, 1, 0.5, 0, 1, 2]}, "y is 0.5 at row 2"),
        ({"x": X, "y": [0, 1, np.nan, 0, 1, 2]}, "y is nan at row 2"),
        ({"x": X, "y": np.array(list("abcabc"), object)}, "for words use .astype(str)"),
        ({"x": X, "y": ["a", "b", " ", "a", "b", "c"]}, "y is empty at row 2"),
        ({"x": X, "y": Y, "x_test": X, "y_test": list("abcabc")}, "y_test <U1: give both alike"),
        ({"x": X, "y": Y, "classes": ["a", "b"]}, "label 2, but only 2 classes"),
        ({"x": X, "y": Y, "client": [0.5] * 6}, "client has dtype float64"),
        ({"x": X, "y": Y, "client": [0] * 5}, "client has shape (5,)"),
        ({"x": X, "y": Y, "client_test": [0] * 5}, "client_test without client"),
        ({"x": X, "y": Y, "x_test": X}, "belong together"),
        ({"x": X, "y": Y, "x_test": X[:, :1], "y_test": Y}, "x_test have shape (1,)"),
        (
            {"x": X, "y": Y, "client": Y, "x_test": X, "y_test": Y, "client_test": list("abcabc")},
            "client_test",
        ),
    ],
)
def test_from_arrays_refuses(arrays, message):
    says(lambda: from_arrays(**arrays), message)


def test_npz(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez_compressed(
        path, x=X, y=Y, client=list("aabbcc"), x_test=X, y_test=Y, client_test=list("abcabc")
    )
    data = load(str(path))
    assert data.name == "mine.npz"
    assert (data.n_train, len(data.y), data.client_names) == (6, 12, ("a", "b", "c"))
    assert load("mine.npz", tmp_path).sha256() == data.sha256()
    np.savez(path, x=X, y=Y, labels=Y)
    says(lambda: load(str(path)), str(path), "unknown array 'labels'")
    np.savez(path, x=X)
    says(lambda: load(str(path)), "at least x and y")
    np.savez(path, x=spoiled((3, 1))[:6], y=Y)
    says(lambda: load(str(path)), str(path), "first at row 3")
    with path.open("wb") as handle:
        np.save(handle, X)
    says(lambda: load(str(path)), "not an .npz file")


def test_npz_with_words_as_objects_names_the_remedy(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=X, y=Y, client=np.array(list("aabbcc"), object))
    says(lambda: load(str(path)), f"{path}: client has dtype object", "use .astype(str)")


@pytest.mark.parametrize("name", ["mine.npz", "mine.csv"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(name, tmp_path, monkeypatch):
    path = tmp_path / name
    path.write_text("")

    def refuse(*args, **how):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    says(lambda: load(str(path)), f"{path}: Permission denied: make it readable")


def test_npz_with_objects_is_not_unpickled(tmp_path):
    proof, path = tmp_path / "executed", tmp_path / "mine.npz"

    class Gadget:
        def __reduce__(self):
            return os.system, (f"touch {proof}",)

    np.savez(path, x=np.array([Gadget()], object), y=[0])
    says(lambda: load(str(path)), f"{path}: x has dtype object: save numbers")
    path.write_bytes(pickle.dumps(Gadget()))
    says(lambda: load(str(path)), "not an .npz file of plain arrays")
    assert not proof.exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_mutated_npz(tmp_path, save):
    path = tmp_path / "mine.npz"
    save(path, x=X, y=Y, client=Y)
    lines = []
    for mutant in mutations(path.read_bytes(), 300, 3):
        path.write_bytes(mutant)
        lines.append(refusal(lambda: load(str(path))))
    assert sum(map(bool, lines)) > 150
    assert not [line for line in lines if "\n" in line]


CSV = """label,height,client,split,width
cat,1,anna,train,2.5
dog,-3e2,bert,test,4
cat,5,bert,train,6

eel,7,anna,test,8
"""


def test_csv(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    data = load(str(path))
    assert data.x.tolist() == [[1, 2.5], [5, 6], [-300, 4], [7, 8]]
    assert data.y.tolist() == [0, 0, 1, 2]
    assert data.classes == ("cat", "dog", "eel")
    assert data.n_train == 2
    assert data.client is not None
    assert data.client.tolist() == [0, 1, 1, 0]
    assert data.client_names == ("anna", "bert")
    path.write_text("\ufeffa,y\n1,10\n2,9\n3,10\n", encoding="utf-8")
    plain = load(str(path))
    assert (plain.classes, plain.y.tolist(), plain.n_train) == (("9", "10"), [1, 0, 1], 3)
    assert plain.client is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.replace("-3e2", "tall"), "line 3, column height: 'tall' is no finite number"),
        (CSV.replace("2.5", "nan"), "line 2, column width: 'nan'"),
        (CSV.replace("2.5", "1e39"), "line 2, column width: '1e39'"),
        (CSV.replace("2.5", ""), "line 2, column width: ''"),
        (CSV.replace("eel,7", ",7"), "line 6, column label"),
        (CSV.replace("5,bert", "5, "), "line 4, column client"),
        (CSV.replace("test,8", "tset,8"), "line 6, column split: 'tset'"),
        (CSV.replace("test,8", "test"), "line 6: 4 cells, but the header has 5"),
        (CSV.replace(",train", ",test"), "no training rows"),
        (CSV.replace("label", "name"), "it needs label"),
        (CSV.replace("width", "height"), "no name twice"),
        (CSV.replace("width", "y"), "columns label and y: keep the one"),
        ("label,client\n1,2\n", "at least one feature"),
        ("label,a\n", "no training rows"),
        ("", "it needs label"),
        ("label,a\n1,\xff\n".encode("latin-1"), "UTF-8"),
        ("label,a\n1," + "9" * 200_000 + "\n", "no CSV"),
    ],
)
def test_csv_refuses(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    says(lambda: load(str(path)), str(path), message)


def test_mutated_csv(tmp_path):
    path = tmp_path / "mine.csv"
    lines = []
    for mutant in mutations(CSV.encode(), 300, 4):
        path.write_bytes(mutant)
        lines.append(refusal(lambda: load(str(path))))
    assert sum(map(bool, lines)) > 150
    assert not [line for line in lines if "\n" in line]


# --- synthetic ---------------------------------------------------------------------------------


def test_synthetic():
    data = load("synthetic:clients=12,features=7,classes=4,size=50")
    assert data.client is not None
    assert data.x.shape[1:] == (7,)
    assert data.client_names == tuple(map(str, range(12)))
    assert data.classes == ("0", "1", "2", "3")
    train, test = np.bincount(data.client[: data.n_train]), np.bincount(data.client[data.n_train :])
    np.testing.assert_array_equal(test, (train + test) // 5)
    assert (train + test).min() >= 10
    even = load("synthetic:clients=3,spread=0,size=50")
    assert np.bincount(even.client).tolist() == [50, 50, 50]
    assert load("synthetic").sha256() == load("synthetic:seed=0").sha256()
    assert load("synthetic").sha256() != load("synthetic:seed=1").sha256()


def test_alpha_sets_models_apart_and_beta_inputs():
    def make(options: str) -> datasets.Dataset:
        return load(f"synthetic:clients=60,features=30,spread=0,size=200,{options}")

    def centres(data: datasets.Dataset) -> float:
        return float(np.var([data.x[data.client == k].mean() for k in range(60)]))

    assert centres(make("beta=0")) < 0.2
    assert 4 < centres(make("beta=9")) < 16  # 60 draws of N(0, 9)
    one, near, far = (make(f"alpha={a}") for a in (0, 0.01, 25))
    np.testing.assert_array_equal(one.x, far.x)  # alpha is the model's alone
    assert np.mean(one.y == near.y) > 0.8
    assert np.mean(one.y == far.y) < 0.4
    two = make("alpha=0,classes=2,beta=0")  # one linear rule for all clients: a fit must find it
    inputs = np.c_[two.x, np.ones(len(two.x))]
    fit = inputs @ np.linalg.lstsq(inputs, 2.0 * two.y - 1, rcond=None)[0]
    assert np.mean((fit > 0) == two.y) > 0.9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("synthetic:client=3", "did you mean 'clients'"),
        ("synthetic:clients=0", "an integer from 1"),
        ("synthetic:clients=x", "clients=x"),
        ("synthetic:classes=1", "from 2"),
        ("synthetic:alpha=-1", "a number from 0"),
        ("synthetic:alpha=nan", "a number from 0"),
        ("synthetic:clients", "clients="),
        ("synthetic:clients=1000000000", "needs gigabytes"),
        ("synthetic:clients=1000,size=3000,spread=100", "needs gigabytes"),
    ],
)
def test_synthetic_refuses(name, message):
    says(lambda: load(name), message)


# --- the real files ----------------------------------------------------------------------------

# SHA-256 of the uint8 pixels (n, height, width[, 3]) and labels of all training examples
TRUE = {
    "fashion-mnist": (
        "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    ),
    "cifar10": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "cifar100": (
        "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
    ),
}


@pytest.mark.parametrize("name", TRUE)
def test_real_files(name):
    if not REAL:
        pytest.skip("set $FEDMABA_DATA to a folder with the published files")
    spec = published.PUBLISHED[name]
    data = load(name, download=False)
    x = data.x[: data.n_train]
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (spec.mean, spec.std))
    pixels = np.concatenate(
        [np.rint((piece * std + mean) * 255).astype(np.uint8) for piece in np.array_split(x, 20)]
    )
    pixels = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    labels = data.y[: data.n_train].astype(np.uint8)
    found = tuple(hashlib.sha256(a.tobytes()).hexdigest() for a in (pixels, labels))
    assert found == TRUE[name]
    assert len(data.x) - data.n_train == 10_000


def test_each_real_fine_class_has_one_coarse_class_and_each_of_these_five():
    if not REAL:
        pytest.skip("set $FEDMABA_DATA to a folder with the published files")
    fine, coarse = (load(name, download=False) for name in ("cifar100", "cifar100-coarse"))
    both = {(fine.classes[a], coarse.classes[b]) for a, b in zip(fine.y, coarse.y, strict=True)}
    assert len(both) == 100
    assert Counter(b for _, b in both) == dict.fromkeys(coarse.classes, 5)
    assert {("otter", "aquatic_mammals"), ("tulip", "flowers"), ("bus", "vehicles_1")} <= both
    assert {("man", "people"), ("tank", "vehicles_2"), ("crab", "non-insect_invertebrates")} <= both


def test_the_sample_is_part_of_fashion_mnist():
    if not REAL:
        pytest.skip("set $FEDMABA_DATA to a folder with the published files")
    sample, whole = load("sample"), load("fashion-mnist", download=False)
    for part, count in ((slice(0, 60_000), 600), (slice(60_000, None), 200)):
        rows = np.sort(
            np.concatenate([np.flatnonzero(whole.y[part] == c)[:count] for c in range(10)])
        )
        mine = slice(0, 6000) if count == 600 else slice(6000, None)
        np.testing.assert_array_equal(sample.x[mine], whole.x[part][rows])
        np.testing.assert_array_equal(sample.y[mine], whole.y[part][rows])
