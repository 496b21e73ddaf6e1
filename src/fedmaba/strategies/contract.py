"""What a strategy of your own must be like, checked before a run; one line for what is not."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError
from fedmaba.strategies import hyper_parameters
from fedmaba.strategies.answers import call_weigh, check_state
from fedmaba.strategies.base import (
    Combine,
    Decision,
    Local,
    Needs,
    Replies,
    Strategy,
    optimiser_of_server,
)

# What makes a rule another one; what it hands out or shows does not.
# fmt: off
OWN_RULE = (
    "weigh", "combine", "local", "needs", "search", "guide", "total", "init", "join",
    "server_optimiser",
)
# fmt: on


def check_strategy(strategy: Strategy, n_clients: int | None = None) -> None:
    """Refuse a strategy without a name or a rule, or whose hooks give what nobody can use.

    Without a number of clients, what it says of each client is not checked.
    """
    check_class(type(strategy))
    hyper_parameters.require_fields_only(strategy)
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
    if strategy.needs().guided and strategy.local() != Local():
        raise InputError(
            f"{strategy.name}: needs() asks to guide local steps, but local() changes them as "
            "well: leave out one of them"
        )
    optimiser = optimiser_of_server(strategy)
    if strategy.needs().trials and (optimiser is not None or strategy.local().server_adds):
        hook = "local() adds to it" if optimiser is None else "server_optimiser() takes another"
        raise InputError(
            f"{strategy.name}: needs() asks for trials of the server's step, but {hook}: leave "
            "out one of them"
        )
    _check_combine(strategy)
    _try_weigh(strategy, n_clients or 3)


def _check_combine(strategy: Strategy) -> None:
    """Refuse a rule that cannot be found or used, and what does not go together with one."""
    rule, needs = _call(strategy, "combine"), strategy.needs()
    if rule is None:
        return
    if not isinstance(rule, Combine):
        raise InputError(
            f"{strategy.name}: combine() gave {rule!r}: return fedmaba.Combine(...), or None"
        )
    for name in ("keep_rounds", "first_steps", "guided", "trials"):
        if getattr(needs, name):
            raise InputError(
                f"{strategy.name}: needs() asks for {name}, which weighs more than the changes "
                "that combine() combines: leave out one of them"
            )
    rule.check(np.ones((3, 5), np.float32), np.full(3, 1 / 3, np.float32), np)


def _try_weigh(strategy: Strategy, n: int) -> None:
    """Refuse a strategy of a user's that answers the same made-up replies in two ways.

    Whatever fails otherwise is left to the first round, whose replies are true.
    """
    if type(strategy).__module__.startswith(f"{__package__}."):
        return
    seen, before = _made_up(strategy.needs(), n), random.getstate()
    also_before = np.random.get_state()  # noqa: NPY002 - the caller's numbers are left alone
    answers: list[Decision] = []
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            first = check_state(strategy, strategy.init(n))
            for _ in range(2):
                answers.append(call_weigh(strategy, check_state(strategy, first), seen))
    except Exception as error:  # user code can raise anything
        if "changes what it is given" in str(error):
            raise
        return
    finally:
        random.setstate(before)
        np.random.set_state(also_before)  # noqa: NPY002
    hyper_parameters.require_fields_only(strategy)
    one, other = ({"coefficients": a.coef, **a.state} for a in answers)
    if one.keys() != other.keys() or not all(
        np.array_equal(one[name], other[name], equal_nan=True) for name in one
    ):
        raise InputError(
            f"{strategy.name}: weigh() gave two answers to the same replies: let it depend on "
            "state and replies alone; draw random numbers from np.random.default_rng(replies.round)"
        )


def _made_up(needs: Needs, n: int) -> Replies:
    """Replies of up to four clients with every number that is asked for."""
    m = min(n, 4)
    rows = np.random.default_rng(0).normal(size=(2, m, 8))  # a change of each client by layers
    layers = 0.01 * rows @ rows.swapaxes(1, 2)
    changes, nothing = needs.changes, np.zeros(0, np.int64)
    told: dict[str, Any] = {
        "loss": np.linspace(0.5, 2.0, m) if needs.loss != "none" else None,
        "norms": layers.sum(0).diagonal() if changes == "norms" else None,
        "gram": layers.sum(0) if changes == "gram" else None,
        "layer_grams": layers if changes == "layers" else None,
        "groups": np.full((m, 2, 2, 2), 3) if needs.groups else None,
        **{name: np.linspace(1.0, 4.0, m) for name in needs.of_clients},
    }
    if changes in ("gram", "layers"):
        told |= {"past_client": nothing, "past_round": nothing}
    return Replies(0, 0.1, n, np.arange(m), np.arange(10, 10 + m), **told)


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
