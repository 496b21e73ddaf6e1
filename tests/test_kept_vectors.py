"""Vectors that each client keeps: the seam by which a strategy gives clients a memory."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedmaba.errors import InputError
from fedmaba.simulation import vectors
from fedmaba.simulation.engine import Optimiser, Run, simulate, start
from fedmaba.simulation.memory import mean_after
from fedmaba.simulation.parts import kept_vectors
from fedmaba.strategies.base import Keep, Local, Personal, Second
from plain_loop import PLAN, Drifting, Plain, apart, cnn, mlp, one, played, vector

pytestmark = pytest.mark.usefixtures("few_threads")
PLANS = {
    "all": PLAN,
    "some": replace(PLAN, participants=3, rounds=6),
    "momentum": replace(PLAN, participants=3, optimiser=Optimiser(0.5, 0.01), epochs=2),
}


CASES = [("some", mlp, False), ("momentum", mlp, True), ("all", cnn, True)]
EVERY = [(n, make, late) for make in (mlp, cnn) for n in PLANS for late in (False, True)]
MORE = [case for case in EVERY if case not in CASES]


@pytest.mark.parametrize(
    ("name", "make", "late"), [*CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in MORE)]
)
def test_clients_that_keep_vectors_give_the_plain_loops_model(name, make, late, fed):
    plan, strategy = PLANS[name], Drifting(late=late)
    plain = Plain(strategy, 3, fed, plan, make).run()
    for chunk in (None, 2):
        runs = [Run(one("fedavg"), 3, fed), Run(strategy, 3, fed), Run(one("fedprox"), 3, fed)]
        batch, _ = played(runs, fed, replace(plan, chunk=chunk), make)
        assert apart(vector(batch, batch.progress.model[1]), plain.path[-1]) < 1e-9
        assert [sorted(own) for own in batch.progress.memory.columns] == [[], ["g", "h"], []]
        for (kept, client), want in plain.kept.items():
            got = vector(batch, batch.progress.memory.columns[1][kept][client])
            assert float((got - want).abs().max()) < 1e-12
    single, _ = played([Run(strategy, 3, fed)], fed, replace(plan, dtype="float32"), make)
    assert apart(vector(single, single.progress.model[0]), plain.path[-1]) < 1e-4


def test_a_client_that_takes_no_part_keeps_what_it_had(fed):
    batch = start([Run(Drifting(), 3, fed)], replace(PLAN, participants=2, rounds=4), mlp)
    before = batch.progress.memory.columns[0]["h"].clone()
    for shot in simulate(batch):
        after = batch.progress.memory.columns[0]["h"].clone()
        changed = (after != before).any(1).nonzero().flatten().tolist()
        assert changed == shot.rounds[0].client.tolist()
        before = after


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"unknown": 1}', '{"prox": "1"}', '{"prox": NaN}', '{"keep": {"h": 1}}',
     '{"keep": {"h": {"start": "x"}}}', '{"add": {"h": 1.0}}', "[" * 100_000],
)  # fmt: skip
def test_local_work_that_is_not_known_is_one_line(text):
    with pytest.raises(InputError, match="use the same version of fedmaba on all hosts") as error:
        Local.from_task({"local": text})
    assert "\n" not in str(error.value)


def test_vectors_cut_into_pieces_give_the_bits_of_whole_ones(monkeypatch):
    torch.manual_seed(0)
    before, end, gradient = torch.randn(3, 18, 5000).unbind()
    mean, start, moved = torch.randn(5000), torch.randn(1, 5000), torch.rand(18, 1)
    every = torch.randn(40, 5000)
    every[7:25] = before
    keep = Keep(0.3, -0.4, 0.9, -1.5, 0.7, 0.2)
    local = Local(keep={"h": keep}, add={"h": -0.6}, add_mean={"h": 1.1})
    known = kept_vectors.TrainedClients(start, end, moved, gradient, 0.1)
    in_turn, mixed = np.arange(7, 25), np.random.default_rng(0).permutation(40)[:18]

    def combined(piece):
        monkeypatch.setattr(vectors, "PIECE", piece)
        after = kept_vectors.kept_after(keep, known, before, mean, torch.empty_like(before))
        added = kept_vectors.added_terms(local, {"h": before}, {"h": mean}, torch.empty_like(end))
        return (
            after,
            added,
            *(mean_after(mean, after, every, i) for i in (in_turn, mixed)),
            mean_after(mean, after, before, np.arange(18)),
        )

    whole, pieces = combined(2**40), combined(2**11)
    assert all(map(torch.equal, whole, pieces))
    want = 0.9 * before + 0.3 * start - 0.4 * end - 1.5 * mean + 0.7 * (start - end) / moved
    torch.testing.assert_close(whole[0], want + 0.2 * gradient, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(whole[1], 1.1 * mean - 0.6 * before)
    for index, found in zip((in_turn, mixed), whole[2:], strict=False):
        change = (whole[0] - every[index]).sum(0)
        torch.testing.assert_close(found, mean + change / 40, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(whole[-1], whole[0].mean(0), rtol=1e-4, atol=1e-3)


def test_rows_that_follow_one_another_are_read_in_place_and_others_copied():
    matrix = torch.arange(12.0).view(6, 2)
    for index in ([2, 3, 4], [2, 4, 3], [5], [4, 3, 2], [0, 2, 2]):
        rows = vectors.take_rows(matrix, np.array(index))
        assert torch.equal(rows, matrix[index])
        in_place = rows.untyped_storage().data_ptr() == matrix.untyped_storage().data_ptr()
        assert in_place == (index in ([2, 3, 4], [5]))
        if len(set(index)) == len(index):
            into = torch.zeros(6, 2)
            vectors.put_rows(into, np.array(index), rows)
            assert torch.equal(into[index], rows)
            assert int((into != 0).any(1).sum()) == len(index)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: Second("beside"), "kind='beside'.*choose one of ahead, towards, mixed, between"),
        (lambda: Second("ahead", 0), "steps=0.*whole number from 1"),
        (lambda: Second("towards", lr=-1), "lr=-1"),
        (lambda: Second("mixed", mix="half"), "mix='half'"),
        (lambda: Local(second="ahead"), r"second='ahead'.*fedmaba.Second\(...\)"),
        (lambda: Local(second=Second("ahead"), full_batch=True), "does not go with full_batch"),
        (lambda: Local(second=Second("ahead"), personal=Personal()), "does not go with personal"),
        (lambda: Local(second=Second("ahead"), own_layers=("last",)), "go with own_layers"),
        (lambda: one("ditto:server=apfl"), "models of their own already"),
        (lambda: one("fedala:layers=+"), "name weights"),
        (lambda: one("pfedme:steps=0"), "pfedme: steps=0"),
        (lambda: one("pfedme:lr=0.1").local(), "pull=15.0.*lr times pull must be below 1"),
    ],
)
def test_a_second_model_that_makes_no_sense_is_refused_in_one_line(made, why):
    with pytest.raises(InputError, match=why) as error:
        made()
    assert "\n" not in str(error.value)


def test_second_models_survive_the_way_to_a_site():
    for spec in ("apfl:alpha=0.3", "fedala:layers=0.*"):
        local = one(spec).local()
        assert Local.from_task({"local": json.dumps(local.to_json())}) == local


def test_limits_of_second_models(fed):
    plan = replace(PLAN, participants=3)
    specs = ["fedavg:weights=uniform", "apfl", "apfl:alpha=1", "perfedavg:alpha=0", "local"]
    batch, _ = played(specs, fed, plan, mlp)
    models, columns = batch.progress.model, batch.progress.memory.columns
    assert apart(models[1], models[0]) < 1e-12  # whatever alpha is
    assert apart(columns[2]["personal"], columns[4]["personal"]) < 1e-12  # training alone
    assert apart(models[3], models[0]) > 1e-4  # other minibatches
    whole = replace(plan, minibatch=999)  # but with a single one it is FedAvg
    batch, _ = played(["fedavg:weights=uniform", "perfedavg:alpha=0"], fed, whole, mlp)
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12
    batch, _ = played(["fedavg", "fedala:eta=0"], fed, plan, mlp)  # all the way to the server's
    assert apart(batch.progress.model[1], batch.progress.model[0]) < 1e-12
    with pytest.raises(InputError, match=r"layers 'top.*' fit no weight: choose .*weight"):
        played(["fedala:layers=top.*"], fed, plan, mlp)
