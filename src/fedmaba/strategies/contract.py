"""What a strategy of your own must be like, checked before a run; one line for what is not."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.strategies.base import (
    Decision,
    Local,
    Needs,
    Replies,
    ServerStep,
    Strategy,
    Trials,
    optimiser_of_server,
)

MAX_TRIALS = 100  # steps that a strategy may try in one round


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy without a name or a rule, or whose hooks give what nobody can use."""
    check_class(type(strategy))
    for hook, kind in (("needs", Needs), ("local", Local)):
        found = _call(strategy, hook)
        if not isinstance(found, kind):
            raise InputError(
                f"{strategy.name}: {hook}() gave {found!r}: return fedmaba.{kind.__name__}(...)"
            )
    if strategy.needs().alone and strategy.local().personal is None:
        raise InputError(
            f"{strategy.name}: needs() asks for the loss of clients' own models, but local() gives "
            "them none: add personal=fedmaba.Personal(), or leave out alone"
        )
    optimiser = optimiser_of_server(strategy)
    if strategy.needs().trials and (optimiser is not None or strategy.local().server_adds):
        hook = "local() adds to it" if optimiser is None else "server_optimiser() takes another"
        raise InputError(
            f"{strategy.name}: needs() asks for trials of the server's step, but {hook}: leave "
            "out one of them"
        )


def call_search(
    strategy: Strategy, replies: Replies, decision: Decision, tried: Trials
) -> ServerStep:
    """Ask a strategy for the length of a step; refuse one that is no length, and endless trials."""
    found = strategy.search(replies, decision, tried)
    where = f"{strategy.name}, round {replies.round + 1}: search()"
    if not isinstance(found, ServerStep):
        raise InputError(f"{where} gave {found!r}: return fedmaba.ServerStep(factor, take)")
    factor = found.factor
    if not isinstance(factor, int | float) or not math.isfinite(factor):
        raise InputError(f"{where} gave the factor {factor!r}: give a finite number")
    if not found.take and len(tried) >= MAX_TRIALS:
        raise InputError(f"{where} tried {MAX_TRIALS} steps and took none: return one to take")
    return found


def check_class(kind: type[Strategy], called: str = "") -> None:
    """Refuse a class without a name or without a rule."""
    called = called or f"{kind.__module__}.{kind.__qualname__}"
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise InputError(f"strategy {called!r} has no name: write name: ClassVar[str] = ... in it")
    if kind.weigh is Strategy.weigh:
        raise InputError(
            f"strategy {called!r} has no weigh(): give it one, as docs/bring-your-own.md"
        )


def _call(strategy: Strategy, hook: str) -> Any:
    """What a hook returns; an error in it becomes one line."""
    try:
        return getattr(strategy, hook)()
    except FedmabaError:
        raise
    except Exception as error:  # user code can raise anything
        wrong = re.search(r"(Local|Needs)\.__init__\(\) got an unexpected .* '(\w+)'", str(error))
        if wrong:
            record, field = {"Local": Local, "Needs": Needs}[wrong[1]], wrong[2]
            known = [f.name for f in dataclasses.fields(record)]
            what = f"field of {wrong[1]} in {strategy.name}: {hook}():"
            raise unknown(what, field, known) from error
        raise user_code.error_in_user_code(f"{strategy.name}: {hook}()", error) from error
