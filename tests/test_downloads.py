"""Downloads of published data sets: once, checked, and with a way out where there is no network."""

from __future__ import annotations

import functools
import gzip

from dataset_cases import says, serve
from fedmaba.data.datasets import check, export, fetch, load


def test_the_coarse_classes_are_fetched_once_with_the_fine_ones(world, monkeypatch):
    asked = serve(monkeypatch, world.archive["cifar100"])
    assert fetch("cifar100-coarse") == world.cache / "fedmaba" / "cifar100" == fetch("cifar100")
    assert len(asked) == 1


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


def test_fetch_to_a_folder_repairs_damage(world, monkeypatch):
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
