"""The real published files. These tests need $FEDMABA_DATA, a folder that has them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter

import numpy as np
import pytest

from fedmaba.data import published
from fedmaba.data.datasets import load

REAL = os.environ.get("FEDMABA_DATA", "")
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
    mean, std = (
        np.array(v, np.float32)[:, None, None] for v in published.normalisation(spec, None)[1:]
    )
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
