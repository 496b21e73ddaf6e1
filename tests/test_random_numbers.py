"""Random numbers depend on seed, purpose, round and client alone."""

import math

import numpy as np
import pytest
import torch

from fedmaba import rng
from fedmaba.rows.random import dropout_mask, shuffles, stream


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_has_the_right_rate_and_scale(p):
    mask = dropout_mask(torch.arange(20), 3, torch.Size((20, 50, 101)), p, torch.float64)
    assert set(mask.unique().tolist()) <= {0.0, 1 / (1 - p)}
    n = mask.numel()
    zeros = int((mask == 0).sum())
    assert abs(zeros - p * n) <= 5 * math.sqrt(n * p * (1 - p))
    assert dropout_mask(torch.arange(2), 0, torch.Size((2, 3)), 1.0, torch.float32).sum() == 0


def test_masks_of_rows_steps_and_layers_have_nothing_in_common():
    key = torch.from_numpy(rng.key(0, "local", 3, np.arange(2)).view(np.int64))
    keys = torch.cat([key, key + 1, key + 2])  # two rows, three steps
    size = torch.Size((6, 4000))
    masks = torch.cat([dropout_mask(keys, layer, size, 0.5, torch.float64) for layer in (0, 1, 9)])
    correlation = torch.corrcoef(masks)
    off = correlation - torch.eye(len(masks))
    assert off.abs().max() < 5 / math.sqrt(4000)
    ahead = torch.corrcoef(torch.stack([masks[0, 1:], masks[0, :-1]]))[0, 1]
    assert abs(ahead) < 5 / math.sqrt(4000)


def test_a_mask_does_not_depend_on_neighbours_or_padding():
    keys = torch.tensor([5, 6, 7])
    wide = dropout_mask(keys, 1, torch.Size((3, 10, 7)), 0.5, torch.float32)
    narrow = dropout_mask(keys[1:2], 1, torch.Size((1, 6, 7)), 0.5, torch.float32)
    assert torch.equal(wide[1, :6], narrow[0])


def test_shuffles_are_permutations_the_same_alone_and_in_a_batch():
    keys = torch.from_numpy(rng.key(1, "local", 0, np.arange(40)).view(np.int64))
    sizes = torch.arange(1, 41)[:, None]
    order = shuffles(keys, sizes, 40)
    for r in range(40):
        assert sorted(order[r, : r + 1].tolist()) == list(range(r + 1))
        alone = shuffles(keys[r : r + 1], sizes[r : r + 1], r + 1)
        assert torch.equal(alone[0], order[r, : r + 1])
    assert len({tuple(order[r, :5].tolist()) for r in range(20, 40)}) > 15


def test_the_stream_is_the_same_in_numpy_and_torch():
    key = rng.key(3, "x", 4)
    with np.errstate(over="ignore"):
        want = rng.mix(key + np.arange(1, 6, dtype=np.uint64) * np.uint64(rng.GOLDEN))
    got = stream(torch.from_numpy(key.view(np.int64)), 5)
    assert got[0].numpy().view(np.uint64).tolist() == want.tolist()


def test_keys_differ_in_every_word():
    words = [(0, "a", 1, 2), (1, "a", 1, 2), (0, "b", 1, 2), (0, "a", 2, 1), (0, "a", 1), (0, "a")]
    assert len({int(rng.key(*w)[0]) for w in words}) == len(words)
    both = rng.key(0, "a", 1, np.array([2, 3]))
    assert both.tolist() == [int(rng.key(0, "a", 1, c)[0]) for c in (2, 3)]


def test_clients_are_drawn_uniformly_without_replacement_in_order():
    count = np.zeros(10)
    for t in range(600):
        drawn = rng.sample_clients(5, t, 10, 3)
        assert len(set(drawn.tolist())) == 3
        assert drawn.tolist() == sorted(drawn.tolist())
        count[drawn] += 1
    assert ((count - 180) ** 2 / 180).sum() < 35
    column = np.arange(3)[:, None]
    for n, many in ((10, 3), (4, 4)):
        rows = rng.sample_clients(5, column, n, many)
        assert rows.tolist() == [rng.sample_clients(5, t, n, many).tolist() for t in range(3)]
    assert rng.sample_clients(5, 0, 4, 4).tolist() == [0, 1, 2, 3]
    assert rng.sample_clients(5, 7, 10, 3).tolist() == rng.sample_clients(5, 7, 10, 3).tolist()


@pytest.mark.parametrize(("n", "many"), [(10, 3), (4, 4), (60_000, 2)])
def test_participants_of_a_round_are_those_drawn_for_it_alone(n, many):
    draws = rng.ParticipantDraws()
    for t in (0, 1, 31, 32, 70, 31):
        clients, keys = draws(5, t, n, many)
        assert clients.tolist() == rng.sample_clients(5, t, n, many).tolist()
        assert keys.tolist() == rng.key(5, "local", t, clients).tolist()
        clients[:], keys[:] = 0, 0  # a caller's own
        again, streams = draws(5, t, n, many)
        assert again.any()
        assert streams.any()
    assert len(draws.newest) == 1
    draws(6, 0, n, many)
    assert len(draws.newest) == 2  # of each seed the newest
