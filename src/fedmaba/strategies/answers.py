"""What a strategy answers in a round, checked: coefficients, state and info, and steps to try."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies import records
from fedmaba.strategies.base import (
    CLIENT_NUMBERS,
    RESERVED_INFO_KEYS,
    Decision,
    FloatArray,
    Guide,
    Needs,
    Replies,
    ServerStep,
    State,
    Strategy,
    Trials,
)
from fedmaba.strategies.hyper_parameters import MAX_ABS

MAX_TRIALS = 100  # steps that a strategy may try in one round
# What `Needs` must say so that a field of the replies is there.
ASKS: dict[str, dict[str, Any]] = {
    "loss": {"loss": "start"},
    "norms": {"changes": "norms"},
    "gram": {"changes": "gram"},
    "layer_grams": {"changes": "layers"},
    "past_client": {"changes": "gram", "keep_rounds": 1},
    "past_round": {"changes": "gram", "keep_rounds": 1},
    "groups": {"groups": True},
    **{name: {name: True} for name in CLIENT_NUMBERS},
}
# Inner products tell the norms, and those of layers tell both.
FROM_MORE = {
    ("norms", "gram"): "take replies.gram.diagonal(), which begins with the norms",
    ("norms", "layers"): "take replies.layer_grams.sum(0).diagonal(), which begins with the norms",
    ("gram", "layers"): "take replies.layer_grams.sum(0), which is the gram",
}


def call_weigh(strategy: Strategy, state: State, replies: Replies) -> Decision:
    """Ask a strategy for its decision; refuse one without a coefficient for each change it saw."""
    try:
        decision = _checked(strategy, replies, strategy.weigh(state, replies))
    except Exception as error:  # user code can raise anything
        if "read-only" in str(error):
            raise InputError(
                f"{strategy.name}: weigh() changes what it is given: copy it first, as "
                "replies.loss.copy()"
            ) from error
        _name_forgotten_needs(strategy, state, replies, error)
        raise
    if not np.isfinite(decision.coef).all():
        _name_forgotten_needs(strategy, state, replies)
    return decision


def _checked(strategy: Strategy, replies: Replies, decision: Decision) -> Decision:
    if not hasattr(decision, "coef"):
        given = "None" if decision is None else f"a {type(decision).__name__}"
        raise InputError(
            f"{strategy.name}: weigh() gave {given} for {len(replies.client)} clients: return "
            "Decision(coef, state), with one coefficient for each"
        )
    try:
        coef = np.asarray(decision.coef)
    except ValueError:  # rows of several lengths
        coef = np.asarray(None)
    if coef.shape not in _shapes_of_coefficients(strategy, replies):
        raise InputError(
            f"{strategy.name}: weigh() gave coefficients of shape {coef.shape} for "
            f"{len(replies.client)} clients: return Decision(coef, state) with one for each"
        )
    if coef.dtype.kind not in "biuf":
        raise InputError(f"{strategy.name}: weigh() gave coefficients of {coef.dtype}: give floats")
    state = check_state(strategy, decision.state, decision.info)
    decision = Decision(np.array(coef, np.float64), state, decision.info)
    _check_sum(strategy, replies.round, decision.coef)
    return decision


def _shapes_of_coefficients(strategy: Strategy, replies: Replies) -> list[tuple[int, ...]]:
    """The shapes that a decision's coefficients may have."""
    m, past = len(replies.client), replies.past_client
    if strategy.needs().first_steps:
        return [(2 * m,)]
    wide = m + (0 if past is None else len(past))
    shapes: list[tuple[int, ...]] = [(m,), (wide,)]
    if strategy.combine() is not None:
        shapes.append((m, m))
    elif replies.layer_grams is not None:
        layers = len(replies.layer_grams)
        shapes += [(layers, m), (layers, wide)]
    return shapes


def call_search(
    strategy: Strategy, replies: Replies, decision: Decision, tried: Trials
) -> ServerStep:
    """Ask a strategy for the length of a step; refuse one that is no length, and endless trials."""
    found = strategy.search(replies, decision, tried)
    where = f"{strategy.name}, round {replies.round + 1}: search()"
    if not isinstance(found, ServerStep):
        raise InputError(f"{where} gave {found!r}: return fedmaba.ServerStep(factor, take)")
    factor = records.as_number(f"{where} gave ServerStep(factor", found.factor)
    found = ServerStep(factor, records.as_truth(f"{where} gave ServerStep(take", found.take))
    if not found.take and len(tried) >= MAX_TRIALS:
        raise InputError(f"{where} tried {MAX_TRIALS} steps and took none: return one to take")
    return found


def call_guide(strategy: Strategy, replies: Replies, decision: Decision) -> Guide:
    """Ask a strategy what joins local steps, as arrays (m,); refuse what is no number for each."""
    found, m = strategy.guide(replies, decision), len(replies.client)
    where = f"{strategy.name}, round {replies.round + 1}: guide()"
    if not isinstance(found, Guide):
        raise InputError(f"{where} gave {found!r}: return fedmaba.Guide(scale, own, mix)")
    arrays = {name: np.asarray(value) for name, value in found._asdict().items()}
    for name, value in arrays.items():
        if value.shape not in ((), (m,)) or value.dtype.kind not in "biuf":
            raise InputError(
                f"{where} gave {name} of shape {value.shape} and type {value.dtype} for {m} "
                "clients: give one number, or one for each"
            )
        if not np.isfinite(value).all():
            raise InputError(f"{where} gave {name}={value.tolist()!r}: give finite numbers")
    return Guide(**{n: np.array(np.broadcast_to(v, m), np.float64) for n, v in arrays.items()})


def _name_forgotten_needs(
    strategy: Strategy, state: State, replies: Replies, error: Exception | None = None
) -> None:
    """Say it where weigh() failed, and reads a number that needs() does not ask for.

    It is asked again to see what it reads: in a function that it calls, or where a number that is
    not there fails later, as a weight that is not finite.
    """
    read: list[str] = []

    class Noted(Replies):
        """Replies that note which fields were read and are not there; a copy reads none."""

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if value is None and sys._getframe(1).f_globals.get("__name__") != "dataclasses":
                read.append(name)
            return value

    with suppress(Exception), np.errstate(all="ignore"):
        strategy.weigh(state, Noted(**vars(replies)))
    for line in filter(None, (_how_to_ask(strategy.needs(), name) for name in read)):
        raise InputError(f"{strategy.name}: weigh() reads replies.{line}") from error


def _how_to_ask(needs: Needs, name: str) -> str:
    """How `needs` would ask for a field of the replies; empty where it does so already."""
    asks, nothing = ASKS.get(name, {}), Needs()
    wanted = asks.get("changes", needs.changes)
    if (wanted, needs.changes) in FROM_MORE:
        return f"{name}, but needs() asks for more: {FROM_MORE[wanted, needs.changes]}"
    missing = any(getattr(needs, key) == getattr(nothing, key) for key in asks)
    if not missing and wanted == needs.changes:
        return ""
    asked = {key: v for key, v in vars(needs).items() if v != getattr(nothing, key)} | asks
    told = ", ".join(f"{key}={value!r}" for key, value in asked.items())
    return f"{name}, which needs() does not ask for: let needs() return fedmaba.Needs({told})"


def _check_sum(strategy: Strategy, round: int, coef: FloatArray) -> None:
    """Refuse coefficients whose sum is not what `total` says, to about the precision of float32."""
    goal = strategy.total()
    if goal is None or not np.isfinite(coef).all():  # the caller reports divergence
        return
    if not isinstance(goal, int | float) or not abs(goal) < np.inf:
        raise InputError(f"{strategy.name}: total() gave {goal!r}: return a finite number, or None")
    with np.errstate(over="ignore"):  # a row for each layer, or one for all
        sums, rough = coef.sum(-1), 1e-5 * abs(goal) + 1e-12 * float(np.abs(coef).sum())
    found = float(sums.flat[np.argmax(np.abs(sums - goal))])
    if rough == np.inf or abs(found - goal) > rough:
        raise InputError(
            f"{strategy.name}, round {round + 1}: weigh() gave coefficients that sum to "
            f"{found:.9g}, but total() says {goal:.9g}: scale them, or let total() return None"
        )


def check_state(strategy: Strategy, state: State, info: Mapping[str, float] | None = None) -> State:
    """A copy of the state, which no other run shares.

    A state that a checkpoint cannot hold is refused, and info that a round cannot record.
    """
    info = {} if info is None else info
    for what, found in (("state", state), ("info", info)):
        if not isinstance(found, Mapping) or not all(map(_is_printable_name, found)):
            raise InputError(f"{strategy.name}: its {what} is {found!r}: give a dict by names")
    for name, value in state.items():
        if not _is_numeric(value):
            raise InputError(
                f"{strategy.name}: state {name!r} is {_type_in_words(value)}, which cannot be "
                "saved: keep arrays of numbers, as np.array([1.0])"
            )
    for name, number in info.items():
        if name in RESERVED_INFO_KEYS:
            raise InputError(
                f"{strategy.name}: info {name!r} would stand for the {name} of the run: choose "
                "another name"
            )
        if isinstance(number, int) and not abs(number) < MAX_ABS:
            raise InputError(f"{strategy.name}: info {name!r} is no number below {MAX_ABS:g}")
        if not isinstance(number, int | float) and (np.ndim(number) or not _is_numeric(number)):
            raise InputError(
                f"{strategy.name}: info {name!r} is {_type_in_words(number)}: a round records "
                "single numbers, as float(...): keep arrays in the state"
            )
    return {name: value.copy() for name, value in state.items()}


def _is_printable_name(name: Any) -> bool:
    """Whether this is a name that files can hold."""
    return isinstance(name, str) and name.isprintable()


def _is_numeric(value: Any) -> bool:
    """Whether this is an array of real numbers whose type a file can hold."""
    array = isinstance(value, np.ndarray | np.generic)
    return array and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def _type_in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return f"of type {type(value).__name__}"
