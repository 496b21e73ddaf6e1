"""What a strategy of your own must be like, checked before a run; one line for what is not."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from fedmaba import user_code
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.strategies.base import Local, Needs, Strategy, optimiser_of_server


def check_strategy(strategy: Strategy) -> None:
    """Refuse a strategy without a name or a rule, or whose hooks give what nobody can use."""
    check_class(type(strategy))
    for hook, kind in (("needs", Needs), ("local", Local)):
        found = _call(strategy, hook)
        if not isinstance(found, kind):
            raise InputError(
                f"{strategy.name}: {hook}() gave {found!r}: return fedmaba.{kind.__name__}(...)"
            )
    optimiser_of_server(strategy)


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
