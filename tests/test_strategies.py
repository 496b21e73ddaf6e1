"""Every registered strategy keeps the contract and stays finite."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from fedmaba import strategies
from fedmaba.errors import InputError
from strategy_cases import NAMES, Bench, every, one, quick, replies

DOCS = Path(__file__).parents[1] / "docs" / "algorithms"


def same(x, y) -> bool:
    """Equal coefficients and states, bit for bit."""
    return x.coef.tolist() == y.coef.tolist() and all(
        np.array_equal(x.state[k], y.state[k]) for k in x.state | y.state
    )


@every
@pytest.mark.parametrize(("n", "m"), [(12, 5), (100, 10), (8, 8), (5, 1)])
def test_coefficients_are_finite_and_sum_to_the_total(spec, n, m):
    strategy = one(spec)
    bench, state = Bench(strategy, n, m), strategy.init(n)
    for _ in range(6):
        told = bench.round()
        coef, state, info = strategy.weigh(state, told)
        rows = m if told.past_client is None else m + len(told.past_client)
        assert coef.dtype == np.float64
        assert coef.shape[-1] in {m, rows} or (strategy.needs().first_steps and len(coef) == 2 * m)
        layers = m if told.layer_grams is None else len(told.layer_grams)  # or mixes
        assert coef.shape[:-1] in {(), (layers,)}
        assert np.isfinite(coef).all()
        assert all(isinstance(v, float) for v in info.values())
        if strategy.total() is not None:
            assert coef.sum(-1) == pytest.approx(strategy.total(), abs=1e-12)


@every
def test_order_of_the_participants_does_not_matter(spec):
    strategy = one(spec)
    bench, state = Bench(strategy), strategy.init(12)
    for _ in range(4):
        told = bench.round()
        grams = told.gram if told.layer_grams is None else told.layer_grams
        rows = bench.m if grams is None else grams.shape[-1]
        order = bench.rng.permutation(bench.m)
        full = np.concatenate([order, np.arange(bench.m, rows)])
        moved = dataclasses.replace(
            told,
            client=told.client[order],
            size=told.size[order],
            loss=None if told.loss is None else told.loss[order],
            norms=None if told.norms is None else told.norms[order],
            gram=None if told.gram is None else told.gram[np.ix_(full, full)],
            layer_grams=None if told.layer_grams is None else told.layer_grams[:, full][:, :, full],
            groups=None if told.groups is None else told.groups[order],
            steps=None if told.steps is None else told.steps[order],
            alone=None if told.alone is None else told.alone[order],
            loss_after=None if told.loss_after is None else told.loss_after[order],
        )
        straight, turned = strategy.weigh(state, told), strategy.weigh(state, moved)
        if strategy.needs().first_steps:
            full = np.concatenate([order, bench.m + order])
        full = full[: straight.coef.shape[-1]]
        mixes = straight.coef.ndim == 2 and told.layer_grams is None
        wanted = straight.coef[order] if mixes else straight.coef
        assert np.allclose(turned.coef, wanted[..., full], atol=1e-7)
        for key in straight.state:
            assert np.allclose(turned.state[key], straight.state[key], atol=1e-9)
        state = straight.state


@every
def test_what_is_needed_and_missing_is_named(spec):
    strategy = one(spec)
    needs = strategy.needs()
    told = Bench(strategy).round()
    seen = {"layers": "layer_grams"}.get(needs.changes, needs.changes)
    for wanted, field in ((needs.loss, "loss"), (needs.changes, seen)):
        if wanted != "none":
            with pytest.raises(InputError, match=field):
                strategy.weigh(strategy.init(12), dataclasses.replace(told, **{field: None}))


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_is_documented(name):
    page = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in index
    for field in dataclasses.fields(strategies.REGISTRY[name]):
        assert f"`{field.name}`" in page
        assert f"`{field.name}`" in index or f"`{field.name}=" in index


changes_of = {
    "random": lambda rng, m: rng.normal(size=(m, 8)),
    "line": lambda rng, m: rng.normal(size=(m, 1)),
    "same": lambda rng, m: np.tile(rng.normal(size=5), (m, 1)),
    "opposite": lambda rng, m: np.outer(rng.choice([-1.0, 1.0], m), rng.normal(size=5)),
    "some zero": lambda rng, m: rng.normal(size=(m, 4)) * rng.integers(0, 2, (m, 1)),
    "zero": lambda rng, m: np.zeros((m, 4)),
    "tiny": lambda rng, m: rng.normal(size=(m, 4)) * 1e-30,
    "large": lambda rng, m: rng.normal(size=(m, 4)) * 1e6,
}


@every
@settings(quick, max_examples=12)
@given(
    some.lists(
        some.tuples(
            some.lists(some.floats(0, 1e6), min_size=5, max_size=5),
            some.sets(some.integers(0, 4), min_size=1),
            some.sampled_from(sorted(changes_of)),
        ),
        min_size=1,
        max_size=4,
    ),
    some.integers(0, 2**32 - 1),
)
@example([([0.0] * 5, {0}, "large"), ([0.0] * 4 + [4e-243], {0, 4}, "large")], 0)
def test_no_reply_makes_a_coefficient_infinite(spec, rounds, seed):
    strategy, rng, past = one(spec), np.random.default_rng(seed), []
    state = strategy.init(5)
    for t, (loss, who, kind) in enumerate(rounds):
        who = sorted(who)
        changes = changes_of[kind](rng, len(who))
        changes = np.pad(changes, ((0, 0), (0, 8 - changes.shape[1])))
        kept = [p for p in past if p[0] not in who and p[1] >= t - strategy.needs().keep_rounds]
        told = replies(strategy, who, np.array(loss)[who], changes, n=5, t=t, past=kept)
        coef, state, _ = strategy.weigh(state, told)
        assert np.isfinite(coef).all()
        assert all(np.isfinite(v).all() for v in state.values())
        if strategy.total() is not None:
            assert coef.sum() == pytest.approx(strategy.total(), rel=1e-9)
        past = [p for p in past if p[0] not in who]
        past += [(c, t, v) for c, v in zip(who, changes, strict=True)]
