"""Vectors that each client keeps: the seam by which a strategy gives clients a memory."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedmaba.errors import InputError
from fedmaba.simulation import vectors
from fedmaba.simulation.engine import Optimiser, Run, simulate, start
from fedmaba.simulation.memory import mean_after
from fedmaba.simulation.parts import kept_vectors
from fedmaba.strategies.base import Decision, Keep, Local, Objective, Strategy
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


@dataclass(frozen=True)
class Leaning(Strategy):
    """FedAvg whose clients' gradients have a part of the server's model, and of what they keep"""

    name = "leaning"
    lean: float = 0.2
    mu: float = 0.0
    keeps: bool = False

    def local(self):
        keep = {"h": Keep(start=0.5, end=-0.5)} if self.keeps else {}
        return Local(prox=self.mu, keep=keep, add={"server": self.lean} | dict.fromkeys(keep, 0.4))

    def weigh(self, state, replies):
        return Decision(replies.size / replies.size.sum(), state)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_servers_model_joins_gradients_as_in_the_plain_loop(name, make, fed):
    kinds = [Leaning(), Leaning(mu=0.7), Leaning(-0.3, keeps=True), Leaning(-0.3, 0.7, True)]
    plan = PLANS[name]
    batch, _ = played([Run(s, 3, fed) for s in (one("fedavg"), *kinds)], fed, plan, make)
    for r, strategy in enumerate(kinds, start=1):
        plain = Plain(strategy, 3, fed, plan, make).run()
        assert apart(vector(batch, batch.progress.model[r]), plain.path[-1]) < 1e-9


def test_only_a_gradient_gets_the_servers_model():
    for wrong in ({"add_mean": {"server": 1.0}}, {"server_adds": {"server": 1.0}}):
        with pytest.raises(InputError, match=r"='server'\): no vector of that name is kept"):
            Local(**wrong)
    with pytest.raises(InputError, match=r"keep='server'\): this name is taken"):
        Local(keep={"server": Keep()})


def test_a_client_that_takes_no_part_keeps_what_it_had(fed):
    batch = start([Run(Drifting(), 3, fed)], replace(PLAN, participants=2, rounds=4), mlp)
    before = batch.progress.memory.columns[0]["h"].clone()
    for shot in simulate(batch):
        after = batch.progress.memory.columns[0]["h"].clone()
        changed = (after != before).any(1).nonzero().flatten().tolist()
        assert changed == shot.rounds[0].client.tolist()
        before = after


def test_a_run_that_diverges_keeps_the_vectors_of_its_last_good_round(fed):
    bad = replace(PLAN, lr=1e200, rounds=3)
    batch = start([Run(Drifting(), 3, fed)], bad, mlp)
    list(simulate(batch))
    assert batch.progress.diverged[0]
    assert torch.isfinite(batch.progress.memory.columns[0]["h"]).all()


def test_what_a_client_does_travels_as_json_and_comes_back():
    for local in (
        Local(),
        Drifting().local(),
        Local(0.1, Objective("tilted", {"T": 0.2}, ("server",)), add={"server": 0.5}),
    ):
        assert Local.from_json(local.to_json()) == local
        assert Local.from_task({"local": json.dumps(local.to_json()), "lr": 0.1}) == local
    assert Local.from_task({}) == Local()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"unknown": 1}', '{"prox": "1"}', '{"prox": NaN}', '{"keep": {"h": 1}}',
     '{"keep": {"h": {"start": "x"}}}', '{"add": {"h": 1.0}}', "[" * 100_000],
)  # fmt: skip
def test_local_work_that_is_not_known_is_one_line(text):
    with pytest.raises(InputError, match="use the same version of fedmaba on all hosts") as error:
        Local.from_task({"local": text})
    assert "\n" not in str(error.value)


def test_a_vector_that_is_not_kept_cannot_be_added():
    with pytest.raises(InputError, match="no vector of that name is kept"):
        Local(add={"h": 1.0}, keep={"g": Keep()})


def test_vectors_cut_into_pieces_give_the_bits_of_whole_ones(monkeypatch):
    torch.manual_seed(0)
    before, end, gradient = torch.randn(3, 18, 5000).unbind()
    mean, start, moved = torch.randn(5000), torch.randn(1, 5000), torch.rand(18, 1)
    every = torch.randn(40, 5000)
    every[7:25] = before
    keep = Keep(0.3, -0.4, 0.9, -1.5, 0.7, 0.2)
    local = Local(keep={"h": keep}, add={"h": -0.6}, add_mean={"h": 1.1})
    known = kept_vectors.TrainedClients(start, end, moved, gradient)
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
