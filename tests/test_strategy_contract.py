"""A strategy of your own that does not fit the contract is refused in one line with the remedy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import fedmaba
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.strategies.base import Decision, Local, Needs, Replies, Strategy, call_weigh
from fedmaba.strategies.contract import check_strategy


@dataclass(frozen=True)
class Mine(Strategy):
    """the base of the wrong ones below"""

    name: ClassVar[str] = "mine"

    def weigh(self, state, replies):
        return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)


def refused(method, *, hook):
    """The message for a class whose hook is this."""
    kind = type("Mine", (Mine,), {hook: method})
    with pytest.raises(InputError) as told:
        check_strategy(kind())
    assert "\n" not in str(told.value)
    return str(told.value)


def two(**fields):
    return Replies(0, 0.1, 2, np.arange(2), np.ones(2, np.int64), **fields)


def test_what_fits_is_accepted():
    check_strategy(Mine())
    assert call_weigh(Mine(), {}, two()).coef.tolist() == [0.5, 0.5]


class ByLoss(Mine):
    def weigh(self, state, replies):
        return Decision(replies.loss / replies.loss.sum(), state)


class ByNorms(Mine):
    def weigh(self, state, replies):
        return Decision(replies.norms / replies.norms.sum(), state)


class ByGram(Mine):
    def weigh(self, state, replies):
        return Decision(replies.gram.diagonal() / 2, state)


@pytest.mark.parametrize(
    ("kind", "field", "ask"),
    [
        (ByLoss, "loss", "loss='start'"),
        (ByNorms, "norms", "changes='norms'"),
        (ByGram, "gram", "changes='gram'"),
    ],
)
def test_forgotten_needs_are_named(kind, field, ask):
    with pytest.raises(InputError) as told:
        call_weigh(kind(), {}, two())
    assert str(told.value) == (
        f"mine: weigh() reads replies.{field}, which needs() does not ask for: let needs() return "
        f"fedmaba.Needs({ask})"
    )
    given = np.eye(2) if field == "gram" else np.ones(2)
    assert call_weigh(kind(), {}, two(**{field: given})).coef.tolist() == [0.5, 0.5]


def test_an_error_of_weigh_with_all_numbers_stays_what_it_is():
    kind = type("Mine", (Mine,), {"weigh": lambda self, state, replies: None + replies.loss})
    with pytest.raises(TypeError):
        call_weigh(kind(), {}, two(loss=np.ones(2)))


def test_a_forgotten_name_is_named():
    @dataclass(frozen=True)
    class Nameless(Strategy):
        def weigh(self, state, replies):
            return Decision(np.ones(1), state)

    with pytest.raises(InputError, match="Nameless' has no name: write name: ClassVar"):
        Nameless()
    with pytest.raises(InputError, match="Nameless' has no name: write name: ClassVar"):
        fedmaba.register(Nameless)


def test_a_forgotten_weigh_is_named():
    @dataclass(frozen=True)
    class Mute(Strategy):
        name: ClassVar[str] = "mute"

    with pytest.raises(InputError, match=r"Mute' has no weigh\(\): give it one"):
        fedmaba.register(Mute)
    with pytest.raises(InputError, match=r"Mute' has no weigh\(\): give it one"):
        check_strategy(Mute())


def test_unknown_fields_of_local_and_needs_are_named():
    told = refused(lambda self: Local(proxy=0.1), hook="local")
    assert told == "unknown field of Local in mine: local(): 'proxy': did you mean 'prox'?"
    told = refused(lambda self: Needs(gram=True), hook="needs")
    assert told == (
        "unknown field of Needs in mine: needs(): 'gram': choose one of alone, changes, "
        "first_steps, groups, keep_rounds, loss, steps, trials"
    )


def test_hooks_that_give_something_else_are_named():
    told = refused(lambda self: "start", hook="needs")
    assert told == "mine: needs() gave 'start': return fedmaba.Needs(...)"
    assert refused(lambda self: None, hook="local") == (
        "mine: local() gave None: return fedmaba.Local(...)"
    )
    assert "mine: server_optimiser() gave 0.9: return fedmaba.ServerOptimiser" in refused(
        lambda self: 0.9, hook="server_optimiser"
    )


def test_an_error_in_a_hook_is_one_line_with_its_place():
    told = refused(lambda self: 1 / 0, hook="needs")
    assert told.startswith("mine: needs(): ")
    assert "ZeroDivisionError: division by zero: fix it" in told


def test_the_simulator_and_flower_refuse_it(fed):
    kind = type("Mine", (Mine,), {"local": lambda self: Local(proxy=0.1)})
    with pytest.raises(InputError, match="unknown field of Local in mine"):
        FederationSettings(kind())
    with pytest.raises(InputError, match="unknown field of Local in mine"):
        fedmaba.compare(kind(), data=fed, rounds=1, seeds=1)
