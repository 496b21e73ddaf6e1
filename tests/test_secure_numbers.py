"""The numbers and words of secure sums, without any network or cryptography."""

import math

import numpy as np
import pytest

from fedmaba.deploy import secure
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.validation import Refused
from fedmaba.errors import InputError


@pytest.mark.parametrize("clip", [1e-3, 0.7, 1.0, 10.0, 12345.6])
@pytest.mark.parametrize("bits", [8, 16, 28, 30])
def test_quantised_changes_stay_within_half_a_step_and_within_the_limit(clip, bits):
    rule = SecureSum(clip=clip, bits=bits)
    assert math.log2(rule.step).is_integer()
    assert rule.limit <= 2 ** (bits - 1)
    rng = np.random.default_rng(bits)
    for size, scale in ((1, 5.0), (40, 5.0), (40, 0.1)):
        change = rng.normal(size=size) * clip * scale
        numbers, clipped = secure.quantise(change, 0.3, rule)
        norm = np.linalg.norm(change)
        assert clipped == (norm > clip)
        want = 0.3 * change * min(1, clip / norm)
        assert np.abs(numbers * rule.step - want).max() <= rule.step / 2 * (1 + 1e-9)
        assert np.abs(numbers).max() <= rule.limit


def test_the_sum_of_the_worst_case_still_fits():
    """All the weight on one coordinate: no number of sites overflows 32 bits."""
    rule = SecureSum(clip=1.0, bits=30)
    sites = 1000
    one = [secure.quantise(np.array([-5.0]), 1 / sites, rule) for _ in range(sites)]
    total = sum(secure.to_words(*each) for each in one)
    steps, clipped = secure.from_words(total.astype(np.uint32), sites, rule)
    assert steps[0] * rule.step == pytest.approx(-1.0, abs=sites * rule.step)
    assert clipped == sites


def test_huge_and_tiny_changes_do_not_overflow_and_bad_ones_are_refused():
    rule = SecureSum(clip=1.0)
    numbers, clipped = secure.quantise(np.array([1e300, -1e300]), 1.0, rule)
    assert clipped
    assert np.abs(numbers * rule.step).max() == pytest.approx(math.sqrt(0.5), abs=rule.step)
    assert not secure.quantise(np.full(3, 1e-300), 1.0, rule)[0].any()
    assert not secure.quantise(np.zeros(3), 1.0, rule)[0].any()
    for bad in (math.nan, math.inf):
        with pytest.raises(InputError, match="not finite"):
            secure.quantise(np.array([0.0, bad]), 1.0, rule)


def test_a_sum_that_no_clipped_changes_give_is_refused():
    rule = SecureSum(clip=1.0, bits=16)
    far = np.array([0, rule.limit + 6, 0], np.uint32)
    with pytest.raises(Refused, match="outside what 5 changes of norm 1 can reach"):
        secure.from_words(far, 5, rule)
    near = np.array([0, rule.limit + 5, 5], np.uint32)
    assert secure.from_words(near, 5, rule)[1] == 5
    with pytest.raises(Refused):
        secure.from_words(np.array([0, 0, 6], np.uint32), 5, rule)


def test_numbers_without_masks_are_seen_and_masked_ones_are_not():
    rng = np.random.default_rng(0)
    for bits in (8, 20, 28):
        rule = SecureSum(bits=bits)
        plain = secure.to_words(*secure.quantise(rng.normal(size=60), 0.2, rule))
        assert secure.looks_unmasked(plain, rule)
        for _ in range(300):
            words = rng.integers(0, 2**32, 61, np.uint32)
            assert not secure.looks_unmasked(words, rule)


@pytest.mark.parametrize(
    "wrong",
    [
        {"threshold": 1},
        {"threshold": 0.5},
        {"threshold": 1.1},
        {"threshold": "3"},
        {"threshold": True},
        {"clip": 0},
        {"clip": math.nan},
        {"clip": "1"},
        {"bits": 31},
        {"bits": 7},
        {"bits": 20.0},
    ],
)
def test_wrong_settings_are_one_line(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"secure: {name}=") as error:
        SecureSum(**wrong)
    assert "\n" not in str(error.value)


def test_the_threshold_is_more_than_half_and_at_least_two():
    assert [SecureSum().least(n) for n in (2, 3, 5, 10, 100)] == [2, 2, 3, 6, 60]
    assert SecureSum(threshold=3).least(5) == 3
    with pytest.raises(InputError, match="more than half must stay"):
        SecureSum(threshold=3).least(6)
    with pytest.raises(InputError, match="3 are needed: wait for more sites"):
        SecureSum(threshold=3).least(2)
    with pytest.raises(InputError, match="at most 1000 sites"):
        SecureSum().least(1001)


def test_shares_of_the_weight_sum_to_one_or_are_refused():
    shares, total = secure.shares_of_weight(np.array([0.5, 1.5]))
    assert (shares.tolist(), total) == ([0.25, 0.75], 2.0)
    for bad in ([-0.1, 1.1], [math.nan, 1.0], [0.0, 0.0]):
        with pytest.raises(Refused, match="negative or not finite"):
            secure.shares_of_weight(np.array(bad))


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ([0.5, 0.5], "a list of 3"),
        ("x", "a list of 3"),
        ([0.5, 0.6, -0.1], "0..1"),
        ([0.5, True, 0.5], "0..1"),
        ([1.0, None, None], "at least 2"),
        ([0.5, 0.6, None], "sum to 1.1"),
    ],
)
def test_a_site_checks_the_weights_that_it_is_told(weights, why):
    with pytest.raises(Refused, match=why):
        secure.read_shares_of_weight(weights, 3, 2)
    assert secure.read_shares_of_weight([0.5, None, 0.5], 3, 2) == [0.5, None, 0.5]


@pytest.mark.parametrize("text", [None, 3, "{", "[1]", "[" * 5000, "x" * 101])
def test_texts_that_are_none_are_refused(text):
    with pytest.raises(Refused):
        secure.read_message(text, 100 if text == "x" * 101 else 10_000)


def test_bytes_and_places_are_read_strictly():
    told = secure.read_message(secure.write_message({"key": b"\x00\xff"}), 100)
    assert secure.read_bytes(told["key"], "key", 2) == b"\x00\xff"
    for value, size in (("AA=", 1), ("*" * 4, 3), (5, 1), ("AAAA", 2), ("A" * 2000, None)):
        with pytest.raises(Refused):
            secure.read_bytes(value, "key", size)
    assert secure.read_places([0, 2], "left", 3) == [0, 2]
    for places in ([2, 0], [0, 0], [3], [-1], [True], ["0"], None, list(range(9))):
        with pytest.raises(Refused):
            secure.read_places(places, "left", 3)


def test_what_sites_are_told_alike_is_in_the_agreement():
    first = ("round 1", {"clip": 1.0}, 2, [b"a", b"b"], [0.5, 0.5])
    others = [
        ("round 2", *first[1:]),
        (first[0], {"clip": 2.0}, *first[2:]),
        (*first[:2], 3, *first[3:]),
        (*first[:3], [b"a", b"c"], first[4]),
        (*first[:4], [0.4, 0.6]),
        (*first[:4], [None, 1.0]),
    ]
    found = {secure.agreement(*told) for told in (first, *others)}
    assert len(found) == len(others) + 1
    assert secure.agreement(*first) in found
