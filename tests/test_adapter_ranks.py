"""Clients with adapters of different ranks: what each holds, what the server makes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba.adapters import add_lora
from fedmaba.deploy.client import first_model
from fedmaba.errors import InputError
from fedmaba.privacy.mechanism import Privacy
from fedmaba.rows.lora import A, B, Ranks, leading, stacked
from fedmaba.simulation.engine import Optimiser, Run, start
from fedmaba.turnout.plan import Turnout
from plain_loop import PLAN, one, played
from test_adapters import base

SHORT = replace(PLAN, rounds=2, participants=None)


def factory(rank, average=None):
    def adapted(shape, classes):
        return add_lora(base(classes), ["q", "v"], rank=rank, alpha=3, average=average)

    return adapted


def runs(fed, *specs):
    return [Run(one(spec), 3, fed, ("last",)) for spec in specs]


def products(batch, r=0):
    """B A of each layer of the server's model."""
    named = batch.rows.layout.unpack(batch.progress.model[r])
    return {n.removesuffix(A): named[n.removesuffix(A) + B] @ named[n] for n in named if A in n}


def test_stacked_factors_are_the_mean_of_products():
    a, b = torch.rand(5, 3, 7).double(), torch.rand(5, 6, 3).double()
    weights = np.array([0.1, 0.4, 0.2, 0.5, -0.2])
    left, right = stacked(a.float(), b.float(), weights)
    mean = sum(
        w * q.float().double() @ p.float().double() for w, p, q in zip(weights, a, b, strict=True)
    )
    assert float((left @ right - mean).abs().max()) < 1e-9
    u, s, v = torch.linalg.svd(mean)
    for rank in (1, 2, 6):
        low, high = leading(left, right, rank)
        nearest = u[:, :rank] * s[:rank] @ v[:rank]
        assert float((high @ low - nearest).abs().max()) < 1e-9
        # A client of rank 1 holds the first direction of it.
        assert float((high[:, :1] @ low[:1] - s[0] * u[:, :1] @ v[:1]).abs().max()) < 1e-9
        lengths = low.norm(dim=1)
        assert float((lengths - 3**-0.5).abs().max()) < 1e-12


def test_ranks_are_dealt_as_often_each_by_the_seed():
    dealt = Ranks((2, 2, 8), "products")
    assert dealt.kinds == ("rank 2", "rank 8")
    kinds = [dealt.deal(seed, 9) for seed in range(4)]
    assert {tuple(np.bincount(kind)) for kind in kinds} == {(6, 3)}
    assert len({tuple(kind) for kind in kinds}) > 1
    assert Ranks((8, 2, 4), "factors").deal(0, 3).tolist() == [2, 0, 1]


@pytest.mark.parametrize("average", ["products", "factors"])
def test_a_client_moves_no_direction_beyond_its_rank(average, fed, monkeypatch):
    seen = []
    cut = Ranks.cut

    def kept(self, weights, kind):
        cut(self, weights, kind)
        seen.append((np.array(self.different)[kind], weights))

    monkeypatch.setattr(Ranks, "cut", kept)
    adamw = Optimiser(optimiser="adamw", weight_decay=0.1)
    plan = replace(SHORT, steps=3, lr=0.01, optimiser=adamw)
    batch, _ = played(runs(fed, "fedmaba"), fed, plan, factory([1, 3, 2, 1, 3], average))
    assert batch.runs[0].federation.kinds.of.tolist() == [0, 2, 1, 0, 2]
    # Rows are trained where they begin, so what was cut shows what training made of them.
    trained = [one for one in seen if len(one[0]) == 5]
    assert trained
    for rank, weights in trained:
        for name, value in weights.items():
            for row, own in zip(value, rank, strict=True):
                if name.endswith(A):
                    assert not row[own:].any()
                    assert row[:own].all()
                elif name.endswith(B):
                    assert not row[:, own:].any()


def test_products_of_one_client_are_those_of_plain_adapters(make_federation):
    one_client, plan = make_federation((9,), (4,)), replace(SHORT, rounds=1)
    plain, _ = played(runs(one_client, "fedavg"), one_client, plan, factory(2))
    joined, _ = played(runs(one_client, "fedavg"), one_client, plan, factory(2, "products"))
    for name, product in products(plain).items():
        assert float(product.norm()) > 0
        torch.testing.assert_close(products(joined)[name], product, rtol=1e-5, atol=1e-7)


def test_the_server_averages_what_clients_send(fed, monkeypatch):
    told = []
    join = Ranks.join

    def kept(self, server, sent, share):
        told.append((sent, share, join(self, server, sent, share)))
        return told[-1][2]

    monkeypatch.setattr(Ranks, "join", kept)
    batch, shots = played(runs(fed, "fedmaba"), fed, SHORT, factory([8, 3, 2, 1, 3]))
    assert len(told) == SHORT.rounds
    for (sent, share, new), shot in zip(told, shots, strict=True):
        np.testing.assert_array_equal(share, shot.rounds[0].weight)
        assert share.sum() == pytest.approx(1)
        for a in (name for name in sent if name.endswith(A)):
            b = a.removesuffix(A) + B
            mean = torch.einsum("k,kor,kri->oi", torch.from_numpy(share), sent[b], sent[a])
            assert float((new[b] @ new[a] - mean).abs().max()) < 1e-9
    for name, product in products(batch).items():
        last = told[-1][2]
        torch.testing.assert_close(product, last[name + B] @ last[name + A])


def test_factors_are_averaged_with_zeros_in_their_gaps(make_federation, monkeypatch):
    trained = []
    cut = Ranks.cut

    def kept(self, weights, kind):
        cut(self, weights, kind)
        trained.append(weights)

    monkeypatch.setattr(Ranks, "cut", kept)
    fed = make_federation((6,) * 5, (3,) * 5)
    plan = replace(SHORT, rounds=1, eval_every=9)
    batch, _ = played(runs(fed, "fedavg"), fed, plan, factory([4, 3, 2, 1, 3], "factors"))
    server = batch.rows.layout.unpack(batch.progress.model[0])
    for name, value in trained[0].items():
        torch.testing.assert_close(server[name], value.mean(0))


def test_a_table_by_rank_and_the_same_bits_after_a_resume(fed, tmp_path):
    asked = {"data": fed, "model": factory([2, 5]), "deploy": "last", "seeds": 2, "eval_every": 1}
    whole = fedmaba.compare(["fedavg", "fedmaba"], rounds=4, **asked)
    for rounds in (2, 4):
        grown = fedmaba.compare(["fedavg", "fedmaba"], rounds=rounds, out=tmp_path / "r", **asked)
    for seed in (0, 1):
        for name, value in whole.model("fedmaba", seed=seed).items():
            np.testing.assert_array_equal(grown.model("fedmaba", seed=seed)[name], value)
    run = grown.runs[0]
    assert run.groups.names == ("rank 2", "rank 5")
    (row,) = (row for row in grown.group_summary() if row.label == "fedavg")
    assert row.size.sum() == pytest.approx(fed.test.size.sum())
    counts = run.tables["deployed.groups"][-1]  # (N, G, K): each client is of one rank
    assert ((counts.sum(-1) > 0).sum(1) == 1).all()


WRONG = {
    "rank 0": ({"rank": [0, 2]}, "rank=[0, 2]: give a whole number from 1, or several"),
    "text": ({"rank": "2|4"}, "rank='2|4': give a whole number from 1"),
    "too large": ({"rank": [2, 9]}, "has 8 inputs and 8 outputs: give a rank of at most 8"),
    "average": ({"rank": [2, 4], "average": "sum"}, "average='sum': say products or factors"),
    "more than clients": ({"rank": [1, 2, 3, 4, 5, 6]}, "6 ranks for 5 clients: give one for each"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ranks_are_one_line(case, fed):
    how, line = WRONG[case]
    with pytest.raises(InputError) as told:
        start(runs(fed, "fedavg"), SHORT, lambda *_: add_lora(base(), ["q"], **how))
    assert line in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("spec", "plan", "line"),
    [
        ("fedprox", {}, "(rank 1, rank 3), which does not go with a pull towards the server's"),
        ("scaffold", {}, "does not go with vectors that clients keep"),
        ("ditto", {}, "does not go with models of the clients' own"),
        ("fedadam", {}, "joins clients' weights by name, which does not go with an optimiser"),
        ("median", {}, "does not go with a rule of the strategy's own that combines changes"),
        ("fedlf", {}, "does not go with weights of layers"),
        ("fedavg", {"server_lr": 0.5}, "does not go with server_lr and server_momentum"),
        ("fedavg", {"own_layers": ("*lora_B*",)}, "without its other factor: say average=factors"),
    ],
)
def test_what_does_not_go_together_is_one_line(spec, plan, line, fed):
    with pytest.raises(InputError) as told:
        start(runs(fed, spec), replace(SHORT, **plan), factory([1, 3]))
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_a_client_of_a_lower_rank_is_sent_fewer_bytes(fed):
    plan = replace(SHORT, turnout=Turnout.parse({"dropout": "0%"}))
    _, shots = played(runs(fed, "fedavg"), fed, plan, factory([1, 3, 3, 1, 2]))
    fewer = 2 * 2 * (8 + 8) * 8  # of each of 2 ranks: 2 layers of 2 blocks, in float64
    for way in ("down", "up"):
        for shot in shots:
            sent = shot.rounds[0].columns[f"turnout.{way}"]
            assert (sent - sent[1]).tolist() == [-2 * fewer, 0, 0, -2 * fewer, -fewer]


@pytest.mark.parametrize("average", ["products", "factors"])
def test_private_rounds_are_refused(average, fed):
    plan = replace(SHORT, privacy=Privacy(8))
    with pytest.raises(InputError, match="which does not go with dp"):
        start(runs(fed, "fedavg"), plan, factory([1, 3] if average == "factors" else 2, average))


def test_an_average_over_rounds_and_a_site_of_a_real_federation_are_refused(fed):
    with pytest.raises(InputError, match="deploy=poly:8, an average over rounds"):
        start([Run(one("fedavg"), 3, fed)], SHORT, factory([1, 3]))
    with pytest.raises(InputError, match="which only a simulation deals out"):
        first_model(factory([1, 3]), (1, 8, 8), 4, 0)


def test_heads_of_their_own_beside_adapters_of_ranks(fed):
    plan = replace(SHORT, own_layers=("head.*",))

    def adapted(shape, classes):
        return add_lora(base(classes), ["q", "v"], rank=[1, 3], alpha=3, train=["head"])

    batch, _ = played(runs(fed, "fedavg"), fed, plan, adapted)
    assert batch.rows.layout.kept_names() == ["head.weight", "head.bias"]
    heads = batch.progress.memory.columns[0]["/model"]
    assert len({tuple(row.tolist()) for row in heads}) == 5
