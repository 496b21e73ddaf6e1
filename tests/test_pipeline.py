"""A device that works while the host goes on gives the same bits as playing in order."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch

from fedmaba import rng
from fedmaba.rows import cuda_graphs
from fedmaba.rows.cuda_graphs import Buffers, GraphCache
from fedmaba.simulation import measurements, pipeline
from fedmaba.simulation import round as round_
from fedmaba.simulation.distributed import Ranks
from fedmaba.simulation.engine import Run, simulate, start
from plain_loop import MIXED, MODELS, PLAN, Odd, mlp, one
from recordings import Parts, Replays

pytestmark = pytest.mark.usefixtures("few_threads")


def test_recordings_are_given_back_at_the_end(fed):
    batch = start([Run(one("fedmaba"), 3, fed)], PLAN, MODELS["mlp"])
    batch.graphs = Replays()
    shots = simulate(batch)
    next(shots)
    assert batch.graphs.recordings
    shots.close()
    assert not batch.graphs.recordings
    assert len(list(simulate(batch))) == PLAN.rounds - 1
    assert batch.graphs.count
    assert not batch.graphs.recordings


def test_arrays_that_share_a_copy_arrive_whole():
    rng = np.random.default_rng(0)
    first = [
        rng.integers(-9, 9, (7, 5)),
        rng.normal(size=(2, 33)).astype(np.float32),
        np.zeros((0, 3)),
        rng.normal(size=100)[::2],
        np.array([True, False, True]),
        torch.arange(6.0).view(2, 3).T,
    ]
    buffers = Buffers(first, torch.device("cpu"))
    for sent in (first, [a.flip(0) if torch.is_tensor(a) else a[::-1].copy() for a in first]):
        buffers.fill(sent)
        for value, tensor in zip(sent, buffers.tensors, strict=True):
            assert tensor.data_ptr() % tensor.element_size() == 0
            assert np.array_equal(tensor.numpy(), np.asarray(value))
            assert tensor.numpy().dtype == np.asarray(value).dtype
    Buffers([], torch.device("cpu")).fill([])
    with pytest.raises(ValueError, match="broadcast"):
        buffers.fill([np.zeros(4), *first[1:]])


def double(spec, values):
    return 2 * values


def test_a_recording_that_is_no_longer_used_makes_room_for_another():
    kept = Replays()
    kept.wanted = 2
    limit = cuda_graphs.MAX_RECORDINGS
    old, new = range(limit), range(limit, limit + 3)

    def recorded(specs):
        for spec in specs:
            assert kept.run(double, spec, (), (np.array([spec]),)).tolist() == [2 * spec]
        return sorted(key.spec for key in kept.recordings)

    assert recorded([*old, *old]) == list(old)
    kept.calls += cuda_graphs.UNUSED_CALLS
    still = [0, *old[2:], new[0]]
    assert recorded([0, *old[2:], *new, *new]) == still  # all but one are still in use
    kept.calls += cuda_graphs.UNUSED_CALLS
    # the one that made room had not paid: four times are wanted now
    assert recorded([new[1]]) == still
    assert new[1] in recorded([*[0] * cuda_graphs.MIN_REPLAYS, new[1]])
    assert kept.wanted == 8
    kept.calls += cuda_graphs.UNUSED_CALLS
    assert new[2] in recorded([*old[3:], new[0], new[1], *[new[2]] * 6])
    assert kept.wanted == 2  # the one that made room had paid
    assert new[2] in recorded(range(100, 200 + cuda_graphs.MAX_REMEMBERED))
    assert len(kept.seen) < 200


def test_parts_of_work_whose_shapes_rarely_repeat_are_recorded(monkeypatch):
    kept = GraphCache(torch.device("cpu"), recordable=True)
    many = cuda_graphs.MANY_SHAPES
    assert not any(kept.shapes_rarely_repeat("a") for _ in range(2 * many))  # not on a CPU
    kept.on = True
    found = [kept.shapes_rarely_repeat("a") for _ in range(many + 2)]
    assert found[-3:] == [False, True, True]
    assert not kept.shapes_rarely_repeat("b")
    kept.recording = True
    assert not kept.shapes_rarely_repeat("a")
    kept = Replays()
    found = []
    for value in (1.0, 2.0, 3.0, 4.0):
        given = torch.full((2,), value)
        found.append(kept.run_part(double, "spec", (), (given,)))
        assert given.tolist() == [value] * 2
    assert [x.tolist() for x in found] == [[2.0] * 2, [4.0] * 2, [6.0] * 2, [8.0] * 2]
    assert (len(kept.parts), kept.count) == (1, 2)  # none of the results was overwritten
    monkeypatch.setattr(cuda_graphs, "MAX_PARTS", 1)
    for _ in range(3):
        assert kept.run_part(double, "spec", (), (torch.ones(3),)).tolist() == [2.0] * 3
    assert len(kept.parts) == 1  # no room for another
    first = kept.buffer("w", torch.zeros(1, 4), 3)
    assert first.shape == (3, 4)
    assert kept.buffer("w", torch.zeros(1, 4), 3) is first


def times(spec, held, values):
    return spec.factor * held * values


def test_parts_of_clients_smaller_than_a_minibatch_are_replayed(make_federation):
    sizes = (1, 3, 5, 6, 7, 9, 20)
    small = make_federation(sizes=sizes, tested=(3,) * len(sizes))
    plan, found = replace(PLAN, rounds=40, participants=2, minibatch=8), []
    for device in (None, Parts()):
        batch = start([Run(one("fedavg"), 3, small)], plan, mlp)
        batch.graphs = device or batch.graphs
        for _ in simulate(batch):
            pass
        found.append(batch.progress.model)
    assert device.count > 20
    assert torch.equal(*found)


LATE, EARLY = (*MIXED, "fedmaba:loss_at=end"), ("fedmaba", "afl", "fedavg")
QUICK = [(LATE, Replays, None), (LATE, Parts, 4), (EARLY, Replays, 1), (EARLY, Parts, None)]
EVERY = [
    (s, kind, chunk) for s in (LATE, EARLY) for kind in (Replays, Parts) for chunk in (None, 1, 4)
]


@pytest.mark.parametrize(
    ("specs", "kind", "chunk"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in EVERY],
)
def test_rounds_begun_ahead_and_replayed_have_the_same_bits(specs, kind, chunk, fed, monkeypatch):
    plan = replace(PLAN, rounds=7, participants=3, chunk=chunk, server_momentum=0.5)
    ends = [one("fedmaba:eta_s=1e299"), Odd()]  # after and before the next round has begun
    found = []
    monkeypatch.setattr(pipeline, "pipelines_rounds", lambda batch: batch.ranks.count == 1)
    for device in (None, kind()):
        batch = start([Run(s, 3, fed) for s in (*ends, *map(one, specs))], plan, mlp)
        if device is not None:
            batch.graphs = device
            for module in (round_, measurements):
                monkeypatch.setattr(module, "start_fetch", lambda values: values.clone().numpy)
        for shot in simulate(batch):
            if shot.round == 4:
                batch.progress.model *= 0.9  # what has begun is void
        assert all(batch.progress.diverged[:2])
        found.append(batch.progress)
    assert device.count > 3
    first, second = found
    assert first.diverged == second.diverged
    for name, value in first.arrays().items():
        np.testing.assert_array_equal(second.arrays()[name], value, name)


def test_the_host_weighs_a_lane_while_the_device_trains_the_other(fed, monkeypatch):
    """Each lane's next round begins once, and before changes of this one are weighed."""
    events, begin, measure, weigh = [], pipeline.begin_round, pipeline.measure, pipeline.weigh

    def begins(batch, lane, t, *work):
        events.append(("begin", t, lane))
        return begin(batch, lane, t, *work)

    def weighs(batch, work, moment):
        known = set(work.decision)
        weigh(batch, work, moment)
        events.extend(("weigh", work.round, r) for r in work.decision if r not in known)

    def measures(batch, work, moment):
        events.append(("measure", work.round, tuple(work.runs), moment == "after training"))
        measure(batch, work, moment)

    monkeypatch.setattr(pipeline, "begin_round", begins)
    monkeypatch.setattr(pipeline, "measure", measures)
    monkeypatch.setattr(pipeline, "weigh", weighs)
    specs = ["fedmgda", "fedavg", "fedfv", "fedmaba"]
    batch = start([Run(one(s), 3, fed) for s in specs], replace(PLAN, rounds=4, chunk=4), mlp)
    batch.graphs = Replays()
    list(simulate(batch))
    weighed = sorted(event for event in events if event[0] == "weigh")
    assert weighed == [("weigh", t, r) for t in range(4) for r in range(4)]
    begun = [tuple(event) for what, *event in events if what == "begin"]
    assert sorted(begun) == [(t, lane) for t in range(4) for lane in ((0, 2), (1, 3))]
    for t in range(1, 3):
        order = [events.index(("weigh", t, 3)), events.index(("begin", t + 1, (1, 3)))]
        order += [events.index(("weigh", t, 0)), events.index(("begin", t + 1, (0, 2)))]
        assert order == sorted(order)
        asked = events.index(("measure", t, (0, 2), True))
        assert asked < order[0]  # of the device, before the host weighs the other lane


def test_several_ranks_begin_nothing_ahead(fed, monkeypatch):
    """Changes are looked at when all ranks have added theirs."""

    class Two(Ranks):
        def sum(self, tensor):
            return tensor

        def least(self, value):
            return value

    batch = start([Run(one(s), 3, fed) for s in ("fedmgda", "fedavg")], PLAN, mlp, ranks=Two())
    batch.graphs = Replays()
    begun, play = [], pipeline.play

    def played(batch, t, ahead):
        out, ahead = play(batch, t, ahead)
        begun.append(len(ahead.lanes))
        return out, ahead

    monkeypatch.setattr(pipeline, "play", played)
    for shot in simulate(batch):
        batch.ranks.count = 2 - shot.round % 2
    assert begun == [2, 0, 0]  # of one rank, of two, and at the end


def test_the_client_that_breaks_the_model_is_named_after_replays(make_federation):
    fed = make_federation(sizes=(8, 8, 8, 8, 8))
    fed.data.x[fed.split.train[4][0]] = 3e38
    plan = replace(PLAN, rounds=2, chunk=1, dtype="float32")  # no third is begun
    batch = start([Run(one("fedavg"), 3, fed)], plan, "softmax")
    batch.graphs = Replays()
    list(simulate(batch))
    assert batch.graphs.count >= 4  # each client but the first overwrites the one before
    assert "client 4" in batch.progress.diverged[0]


def test_the_client_whose_model_breaks_after_a_finite_loss_is_named_after_replays(make_federation):
    fed = make_federation(sizes=(8, 8, 8, 8, 8))
    fed.data.x[fed.split.train[4]] = 1e30
    plan = replace(PLAN, participants=2, minibatch=8, lr=1e9, dtype="float32")
    drawn = ([4 in rng.sample_clients(seed, t, 5, 2) for t in (0, 1)] for seed in count())
    seed = next(i for i, has in enumerate(drawn) if has == [True, False])
    batch = start([Run(one("fedavg"), seed, fed)], plan, "softmax")
    batch.graphs = Replays()
    list(simulate(batch))
    assert batch.graphs.count == 1  # the next round, without the client, has overwritten its model
    assert "round 1: the model of client 4 is not finite" in batch.progress.diverged[0]
