"""FairFed: three rounds by hand, a plain loop, and what it is refused for."""

import dataclasses

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba import strategies
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.rows import models
from fedmaba.simulation.engine import Plan
from fedmaba.strategies.base import Decision, Replies, Strategy, call_weigh
from fedmaba.strategies.fairfed import FairFed
from group_cases import compare, people
from plain_loop import Plain, apart, played, vector


def told(counts, size, t=0, client=None, n=3):
    client = np.arange(len(counts)) if client is None else np.array(client)
    return Replies(t, 0.1, n, client, np.array(size), groups=np.array(counts))


def client(*rates):
    """Ten positives of each group, of which so many are found; no negatives."""
    return [[[0, 0], [10 - found, found]] for found in rates]


def test_three_rounds_by_hand():
    rule, state = FairFed(beta=0.5), FairFed().init(3)
    # Rates of group 0 minus group 1: 0.4, 0.0 and -0.1; over all, (8+5+5)/30 - (4+5+6)/30 = 0.1.
    first = told([client(8, 4), client(5, 5), client(5, 6)], [50, 30, 20])
    # Away from it: 0.3, 0.1, 0.2; mean 0.2. Shares 0.5, 0.3, 0.2 move by -0.05, +0.05, 0.
    coef, state, info = call_weigh(rule, state, first)
    np.testing.assert_allclose(coef, [0.45, 0.35, 0.2], atol=1e-15)
    assert info["gap"] == pytest.approx(0.1)
    # Now gaps of 0.2, -0.4 and 0.5; over all 0.1; away 0.1, 0.5, 0.4; mean 1/3.
    second = told([client(7, 5), client(3, 7), client(8, 3)], [50, 30, 20], 1)
    coef, state, info = call_weigh(rule, state, second)
    np.testing.assert_allclose(coef, [0.45 + 7 / 60, 0.35 - 1 / 12, 0.2 - 1 / 30], atol=1e-15)
    # The third client has no positives of group 1, so its accuracy counts instead: the gaps are
    # 0.1, 0.1 and none; over all (6+7+8)/30 - (5+6)/20 = 0.15. Accuracy: right are 11, 13 and 8 of
    # 20, 20 and 10, over all 32 of 50 = 0.64. Away 0.05, 0.05, 0.16; mean 26/300.
    third = told([client(6, 5), client(7, 6), [client(8)[0], [[0, 0], [0, 0]]]], [50, 30, 20], 2)
    coef, state, info = call_weigh(rule, state, third)
    up, down = 0.5 * (0.26 / 3 - 0.05), 0.5 * (0.16 - 0.26 / 3)
    want = [0.45 + 7 / 60 + up, 0.35 - 1 / 12 + up, 0.2 - 1 / 30 - down]
    np.testing.assert_allclose(coef, want, atol=1e-15)
    np.testing.assert_allclose(state["weight"], want, atol=1e-15)
    assert coef.sum() == pytest.approx(1)


def test_parity_looks_at_all_examples():
    counts = np.array([[[3, 1], [2, 4]], [[5, 0], [4, 1]]])  # selected 5 of 10, and 1 of 10
    assert float(FairFed(metric="spd").gap(counts)) == pytest.approx(0.4)
    assert float(FairFed(metric="eod").gap(counts)) == pytest.approx(4 / 6 - 1 / 5)
    assert float(FairFed(metric="spd", group=1).gap(counts)) == pytest.approx(-0.4)
    three = np.concatenate([counts, counts[:1]])  # the others together: 6 of 20
    assert float(FairFed(metric="spd").gap(three)) == pytest.approx(0.5 - 0.3)


def test_beta_0_is_fedavg_and_no_weight_falls_below_0():
    away = told([client(10, 0), client(5, 5), client(5, 5)], [10, 10, 10])
    assert call_weigh(FairFed(beta=0), FairFed().init(3), away).coef.tolist() == [1 / 3] * 3
    coef, state, _ = call_weigh(FairFed(beta=9), FairFed().init(3), away)
    assert coef.tolist() == [0, 0.5, 0.5]
    assert (state["weight"] >= 0).all()


def test_clients_that_come_later_begin_with_their_share():
    rule, state = FairFed(beta=0.5), FairFed().init(3)
    _, state, _ = call_weigh(rule, state, told([client(8, 4), client(5, 5)], [60, 40], 0, [0, 1]))
    np.testing.assert_array_equal(state["known"], [1, 1, 0])
    kept = state["weight"][0]
    coef, state, _ = call_weigh(rule, state, told([client(5, 5)] * 2, [60, 20], 1, [0, 2]))
    np.testing.assert_allclose(coef, np.array([kept, 0.25]) / (kept + 0.25))
    assert rule.join(state, 5)["known"].tolist() == [1, 1, 1, 0, 0]


class OneByOne(Strategy):
    """The paper's formulas as they stand there, one example after another."""

    name = "one-by-one"
    beta = 0.2

    def weigh(self, state, replies):
        fed, data = self.plain.fed, self.plain.fed.data
        right, gap, over = [], [], {group: [0, 0] for group in (0, 1)}
        for c in range(fed.n_clients):
            own, hits = {group: [0, 0] for group in (0, 1)}, 0
            for i in fed.train.of(c):
                with torch.no_grad():
                    told = int(self.plain.model(self.plain.x[i : i + 1]).argmax())
                hits += told == data.y[i]
                if data.y[i] == 1:
                    for table in (own, over):
                        table[data.group[i]][0] += told
                        table[data.group[i]][1] += 1
            right.append(hits)
            gap.append(self.difference(own))
        size, overall = fed.train.size, self.difference(over)
        away = np.array(
            [
                abs(right[c] / size[c] - sum(right) / size.sum()) if g is None else abs(overall - g)
                for c, g in enumerate(gap)
            ]
        )
        assert gap[4] is None
        before = state.get("weight", size / size.sum())
        weight = before - self.beta * (away - away.mean())
        assert (weight > 0).all()
        return Decision(weight / weight.sum(), {"weight": weight})

    def difference(self, table):
        (a, n), (b, m) = table[0], table[1]
        return a / n - b / m if n and m else None


def test_the_model_is_that_of_a_plain_loop():
    fed, plan = people(lonely=(4,)), Plan(rounds=3, minibatch=5, lr=0.2, dtype="float64")
    make = models.find_factory("softmax")
    batch, shots = played(["fairfed:beta=0.2"], fed, plan, make)
    rule = OneByOne()
    plain = Plain(rule, 3, fed, plan, make)
    object.__setattr__(rule, "plain", plain)
    plain.run()
    for shot, told in zip(shots, plain.told, strict=True):
        np.testing.assert_allclose(shot.rounds[0].weight, told.weight, rtol=0, atol=1e-12)
    assert apart(vector(batch, batch.progress.model[0]), plain.path[-1]) < 1e-12


def test_a_strategy_may_ask_for_counts_and_inner_products():
    seen = []

    class Both(strategies.FedAvg):
        name = "both"

        def needs(self):
            return dataclasses.replace(super().needs(), changes="gram", groups=True)

        def weigh(self, state, replies):
            seen.append((replies.gram.shape, replies.groups.shape, replies.groups.sum()))
            return super().weigh(state, replies)

    fed = people()
    fedmaba.compare([Both()], data=fed, model="softmax", rounds=1, seeds=1)
    assert seen == [((5, 5), (5, 2, 2, 2), fed.train.size.sum())]


@pytest.mark.parametrize(
    ("fed", "why"),
    [
        (lambda: "sample", "fairfed weighs clients by groups of people, but sample has no group"),
        (lambda: people(classes=3), "there must be two classes"),
        (lambda: people(groups=1), "the training examples are of one group"),
    ],
)
def test_it_is_refused_without_groups(fed, why, tmp_path):
    with pytest.raises(InputError, match=why):
        compare(["fedavg", "fairfed"], fed(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_group_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="group=2, but the data have 2 groups: give a number from"):
        compare(["fairfed:group=2"], people())
    with pytest.raises(InputError, match="counts sites do not send: simulate it"):
        FederationSettings(FairFed())
