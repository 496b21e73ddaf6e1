"""What a strategy of your own must be like, checked before a run; one line for what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError
from fedmaba.strategies import hyper_parameters, records
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

# What makes a rule another one; what it hands out or shows does not.
OWN_RULE = ("weigh", "local", "needs", "search", "total", "init", "join", "server_optimiser")
MAX_TRIALS = 100  # steps that a strategy may try in one round


def check_strategy(strategy: Strategy, n_clients: int | None = None) -> None:
    """Refuse a strategy without a name or a rule, or whose hooks give what nobody can use.

    Without a number of clients, what it says of each client is not checked.
    """
    check_class(type(strategy))
    for hook, kind in (("needs", Needs), ("local", Local)):
        found = _call(strategy, hook)
        if not isinstance(found, kind):
            raise InputError(
                f"{strategy.name}: {hook}() gave {found!r}: return fedmaba.{kind.__name__}(...)"
            )
    if n_clients is not None:
        _call(strategy, "local", lambda: strategy.local().check_clients(n_clients))
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
    factor = records.as_number(f"{where} gave ServerStep(factor", found.factor)
    found = ServerStep(factor, records.as_truth(f"{where} gave ServerStep(take", found.take))
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
    hyper_parameters.require_dataclass(kind, Strategy, called)
    _require_own_name(kind, called)


def _require_own_name(kind: type[Strategy], called: str) -> None:
    """Refuse a class that makes another rule of a built-in one and would be taken for that one."""
    parent = next(base for base in kind.__mro__ if "name" in vars(base))
    if not parent.__module__.startswith(f"{__package__}."):
        return
    for hook in OWN_RULE:
        if getattr(kind, hook) is not getattr(parent, hook):
            raise InputError(
                f"strategy {called!r} has a {hook}() of its own, but the name {kind.name!r} of "
                "a built-in strategy: write name: ClassVar[str] = ... in it"
            )


def _call(strategy: Strategy, hook: str, ask: Callable[[], Any] | None = None) -> Any:
    """What a hook returns; an error in it becomes one line."""
    try:
        return (ask or getattr(strategy, hook))()
    except InputError as error:
        raise InputError(f"{strategy.name}: {hook}(): {error}") from error
    except FedmabaError:
        raise
    except Exception as error:  # user code can raise anything
        raise user_code.error_in_user_code(f"{strategy.name}: {hook}()", error) from error
