"""Random changes of training images: drawn from the client's stream, the same however it runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedmaba import rng
from fedmaba.errors import InputError
from fedmaba.rows import grouped
from fedmaba.rows.images import take_augmented
from fedmaba.rows.random import GOLDEN
from fedmaba.simulation import local_training
from fedmaba.simulation.augmentation import Augmentation, parse_augment
from fedmaba.simulation.engine import Optimiser, Run, start
from plain_loop import PLAN, Drifting, Plain, apart, cnn, mlp, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
BOTH = "flip,crop:3"


def word(key: int, place: int) -> int:
    """The random word of an example, in Python's own integers."""
    mask = 2**64 - 1
    key = (key ^ (GOLDEN >> 1)) & mask
    first = np.array([(key + (place + 1) * rng.GOLDEN) & mask], np.uint64)
    return int(rng.mix(first)[0])


def changed(image, drawn, flip, border):
    """One image (C, H, W), changed by padding, cutting and turning it."""
    top, left = ((drawn >> bits & 0xFFFF) * (2 * border + 1) >> 16 for bits in (16, 32))
    height, width = image.shape[1:]
    padded = F.pad(image, (border,) * 4)[:, top : top + height, left : left + width]
    return padded.flip(-1) if flip and drawn & 1 else padded


class Augmented(Plain):
    """The plain loop, with each image changed by itself."""

    words = parse_augment(BOTH)

    def inputs(self, rows, key):
        each = [
            changed(self.x[row], word(int(key), place), self.words.flip, self.words.crop)
            for place, row in enumerate(rows)
        ]
        return torch.stack(each)


@pytest.mark.parametrize("how", ["flip", "crop:1", "crop:7", BOTH])
@pytest.mark.parametrize("axes", [(-2, -1), (-3, -2)])
def test_each_image_is_turned_and_cut_by_its_own_word(how, axes):
    words, keys = parse_augment(how), torch.tensor([[5, -9, 2**62], [7, 8, 9]])
    x = torch.randn(6, 2, 9, 8, dtype=torch.float64)
    index = torch.randint(6, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    given = x if axes == (-2, -1) else x.permute(0, 2, 3, 1).contiguous()
    got = take_augmented(given, index, keys, axes, flip=words.flip, crop=words.crop)
    got = got if axes == (-2, -1) else got.permute(0, 1, 2, 5, 3, 4)
    seen = set()
    for a, b, place in np.ndindex(2, 3, 4):
        drawn = word(int(keys[a, b]), place)
        want = changed(x[index[a, b, place]], drawn, words.flip, words.crop)
        assert torch.equal(got[a, b, place], want)
        seen.add((drawn & 1, torch.equal(want, x[index[a, b, place]])))
    assert len(seen) > 1


SOME = replace(PLAN, optimiser=Optimiser(0.5), participants=3)


@pytest.mark.parametrize(("make", "plan"), [(mlp, PLAN), (cnn, SOME)])
def test_a_run_trains_on_changed_images_and_is_measured_on_the_others(make, plan, fed):
    plan, specs = replace(plan, augment=BOTH, rounds=2), ["fedavg", "fedprox:mu=1", "fedmaba"]
    batch, shots = played(specs, fed, plan, make)
    for r, spec in enumerate(specs):
        want = Augmented(one(spec), 3, fed, plan, make).run()
        assert apart(vector(batch, batch.progress.model[r]), want.path[-1]) < 1e-9
        if want.told[-1].loss is not None:  # FedMABA's: of the images as they are
            np.testing.assert_allclose(shots[-1].rounds[r].loss, want.told[-1].loss, rtol=1e-9)
    still, _ = played(specs, fed, replace(plan, augment=None), make)
    assert apart(still.progress.model, batch.progress.model) > 1e-3


def test_alone_in_chunks_and_in_pieces_of_full_batches_the_images_are_the_same(fed, monkeypatch):
    monkeypatch.setattr(local_training, "FULL_BATCH_PIECE", 2)
    plan = replace(PLAN, augment=BOTH, rounds=2, participants=3)
    rules = [one(s) for s in ("fedavg", "fedsgd", "propfair")]
    runs = [Run(rule, 3, fed) for rule in (*rules, Drifting())]
    batch, _ = played(runs, fed, plan, mlp)
    chunks, _ = played(runs, fed, replace(plan, chunk=2), mlp)
    assert apart(chunks.progress.model, batch.progress.model) < 1e-12
    for r, run in enumerate(runs):
        alone, _ = played([run], fed, plan, mlp)
        assert apart(alone.progress.model[0], batch.progress.model[r]) < 1e-12


def test_runs_that_share_inputs_share_the_changes_too(make_federation, kernels, monkeypatch):
    fed, plan = make_federation(sizes=(7, 7, 7, 7, 7)), replace(PLAN, augment=BOTH, epochs=2)
    runs = [Run(one(s), seed, fed) for seed in (3, 4) for s in ("fedavg", "fedmaba", "fedprox")]
    monkeypatch.setattr(grouped.GroupedRows, "group", lambda *_: 2)
    found = []
    for least in (10**9, 1):
        monkeypatch.setattr(grouped, "MIN_SHARED_ROWS", least)
        found.append(played(runs, fed, plan, mlp)[0].progress.model)
    assert apart(*found) < 1e-9


@pytest.mark.parametrize(
    "words", ["", "turn", "flip,flip", "crop", "crop:0", "crop:-1", "crop:x", "crop:1,crop:2",
              "flip,", "crop:99999"],
)  # fmt: skip
def test_words_that_are_no_change_are_one_line(words):
    with pytest.raises(InputError, match="say flip, crop:4 or flip,crop:4") as error:
        parse_augment(words)
    assert "\n" not in str(error.value)


def test_words_are_read_and_told():
    assert parse_augment("crop:4, flip") == Augmentation(True, 4)
    assert str(parse_augment("crop:4,flip")) == "flip,crop:4"


def test_inputs_that_are_no_images_are_refused(fed, make_federation):
    flat = make_federation(shape=(6,))
    with pytest.raises(InputError, match=r"augment=flip: it wants images .* shape \(6,\)"):
        start([Run(one("fedavg"), 3, flat)], replace(PLAN, augment="flip"), mlp)
    with pytest.raises(InputError, match=r"the border is as wide as the images of shape \(1, 8, 8"):
        start([Run(one("fedavg"), 3, fed)], replace(PLAN, augment="crop:8"), mlp)
