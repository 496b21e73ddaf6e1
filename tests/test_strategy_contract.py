"""A strategy of your own that does not fit the contract is refused in one line with the remedy."""

import dataclasses
import functools
import pickle
import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import fedmaba
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.strategies import FedProx
from fedmaba.strategies.answers import call_weigh
from fedmaba.strategies.base import (
    Decision,
    Keep,
    Local,
    Needs,
    Objective,
    Personal,
    Replies,
    ServerStep,
    Strategy,
    require_finite,
)
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


def weighs(read, needs=None):
    """A strategy whose weigh() makes coefficients of the replies, and which asks for this."""

    def weigh(self, state, replies):
        return Decision(read(replies), state)

    return type("Mine", (Mine,), {"weigh": weigh, "needs": lambda self: needs or Needs()})()


def helper(replies):
    """Reads what weigh() does not name itself."""
    return replies.steps / replies.steps.sum()


def compared(gram):
    return np.full(2, 0.5 + 0 * gram.sum())


FORGOTTEN = {
    "loss": (lambda r: r.loss / r.loss.sum(), "loss='start'", np.ones(2)),
    "norms": (lambda r: r.norms / r.norms.sum(), "changes='norms'", np.ones(2)),
    "gram": (lambda r: compared(r.gram), "changes='gram'", np.eye(2)),
    "layer_grams": (lambda r: compared(r.layer_grams), "changes='layers'", np.ones((3, 2, 2))),
    "steps": (helper, "steps=True", np.ones(2)),
    "groups": (lambda r: compared(r.groups), "groups=True", np.ones((2, 2, 2, 2))),
    "alone": (lambda r: np.asarray(r.alone, float) / 2, "alone=True", np.ones(2)),
    "loss_after": (lambda r: r.loss_after / 2, "loss_after=True", np.ones(2)),
    "past_client": (
        lambda r: np.full(2, 0.5 + 0 * len(r.past_client)),
        "changes='gram', keep_rounds=1",
        np.zeros(0, int),
    ),
    "past_round": (
        lambda r: np.full(2, 0.5 + 0 * (r.past_round > 3).sum()),
        "changes='gram', keep_rounds=1",
        np.zeros(0, int),
    ),
}


@pytest.mark.parametrize("field", FORGOTTEN)
def test_forgotten_needs_are_named(field):
    read, ask, given = FORGOTTEN[field]
    with pytest.raises(InputError) as told:
        call_weigh(weighs(read), {}, two())
    assert str(told.value) == (
        f"mine: weigh() reads replies.{field}, which needs() does not ask for: let needs() return "
        f"fedmaba.Needs({ask})"
    )
    assert call_weigh(weighs(read), {}, two(**{field: given})).coef.tolist() == [0.5, 0.5]


def test_every_number_that_may_be_missing_has_its_words():
    missing = {f.name for f in dataclasses.fields(Replies) if f.default is None}
    assert missing == FORGOTTEN.keys()


@pytest.mark.parametrize(
    "read",
    [
        lambda r: np.asarray(r.loss, float),  # nan, which is no divergence
        lambda r: np.argsort(r.loss),  # a shape that says nothing
        lambda r: [r.loss, 0.5],
        lambda r: require_finite(r.loss, "loss"),
        lambda r: {"a": 0.5}[r.loss],
        lambda r: np.full(2, 0.4 if r.loss is None else 0.5),  # a wrong sum
        lambda r: np.asarray(dataclasses.replace(r, lr=0.3).loss, float),
    ],
)
def test_a_forgotten_number_is_named_however_it_fails(read):
    with pytest.raises(InputError, match=r"weigh\(\) reads replies.loss, which needs\(\) does not"):
        call_weigh(weighs(read), {}, two())


def test_what_is_asked_for_already_stays_among_the_needs():
    with pytest.raises(InputError, match=r"Needs\(loss='end', changes='gram', steps=True\)$"):
        call_weigh(weighs(helper, Needs("end", "gram")), {}, two(loss=np.ones(2), gram=np.eye(2)))
    with pytest.raises(InputError, match=r"return fedmaba.Needs\(loss='end', changes='layers'\)$"):
        call_weigh(weighs(lambda r: r.layer_grams[0], Needs("end", "norms")), {}, two())


@pytest.mark.parametrize(
    ("field", "changes", "instead"),
    [
        ("norms", "gram", "take replies.gram.diagonal()"),
        ("norms", "layers", "take replies.layer_grams.sum(0).diagonal()"),
        ("gram", "layers", "take replies.layer_grams.sum(0)"),
    ],
)
def test_who_asks_for_more_is_told_where_the_number_is(field, changes, instead):
    strategy = weighs(lambda r: getattr(r, field) / 2, Needs(changes=changes))
    with pytest.raises(InputError) as told:
        call_weigh(strategy, {}, two())
    start = f"mine: weigh() reads replies.{field}, but needs() asks for more: "
    assert str(told.value).startswith(start + instead)


def test_a_number_that_may_be_missing_is_no_error():
    def read(replies):
        return np.full(2, 0.5) if replies.loss is None else replies.loss

    assert call_weigh(weighs(read), {}, two()).coef.tolist() == [0.5, 0.5]


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
    with pytest.raises(InputError, match="mine: local\\(\\): unknown field of Local"):
        FederationSettings(kind())
    with pytest.raises(InputError, match="mine: local\\(\\): unknown field of Local"):
        fedmaba.compare(kind(), data=fed, rounds=1, seeds=1)


# --- records -------------------------------------------------------------------------------------

WRONG = [
    (Local, {"prox": "0.1"}, "Local(prox='0.1'): give a finite number from 0"),
    (Local, {"prox": np.nan}, "Local(prox=nan): give a finite number from 0"),
    (Local, {"prox": -1}, "Local(prox=-1): give a finite number from 0"),
    (Local, {"prox": True}, "Local(prox=True): give a finite number from 0"),
    (Local, {"prox": [0.1, -2]}, "Local(prox[1]=-2): give a finite number from 0"),
    (Local, {"prox": [[0.1]]}, "Local(prox[0]=[0.1]): give a finite number from 0"),
    (Local, {"prox": ()}, "Local(prox=()): give one number, or one for each client"),
    (Local, {"prox": np.ones((2, 1))},
     "Local(prox=array([[1.], [1.]])): give one number, or one for each client"),
    (Local, {"objective": 3}, "Local(objective=3): give fedmaba.Objective(...), or None"),
    (Objective, {"name": ""}, "Objective(name=''): give a name, as 'mine:loss'"),
    (Objective, {"name": "x", "numbers": {"M": "2"}},
     "Objective(numbers['M']='2'): give a finite number"),
    (Objective, {"name": "x", "sees": (3,)},
     "Objective(sees=(3,)): give a tuple of words, as ('server',)"),
    (Local, {"objective": Objective("x", sees=("h",))},
     "Objective(sees='h'): no such model: choose among server"),
    (Local, {"keep": {"h": Keep(mean=1, from_model=True)}},
     "Local(keep['h']) begins as the initial model, and its mean is used, which begins as 0: "
     "leave out from_model, or the mean"),
    (Objective, {"name": "x", "sees": "server"},
     "Objective(sees='server'): give a tuple of words, as ('server',)"),
    (Local, {"keep": {"server": Keep()}},
     "Local(keep='server'): this name is taken: choose another"),
    (Local, {"add_mean": {"server": 1.0}},
     "Local(add_mean='server'): no vector of that name is kept: add it to keep"),
    (Local, {"full_batch": "no"}, "Local(full_batch='no'): say True or False"),
    (Local, {"keep": {"h": 3}}, "Local(keep['h']=3): give fedmaba.Keep(...)"),
    (Local, {"keep": ["h"]}, "Local(keep=['h']): give a dict by names"),
    (Local, {"keep": {"h": Keep()}, "add": {"h": np.inf}},
     "Local(add['h']=inf): give a finite number"),
    (Local, {"keep": {"h": Keep()}, "server_adds": {"h": None}},
     "Local(server_adds['h']=None): give a finite number"),
    (Local, {"personal": True}, "Local(personal=True): give fedmaba.Personal(...), or None"),
    (Local, {"proxy": 1}, "unknown field of Local 'proxy': did you mean 'prox'?"),
    (Keep, {"start": "x"}, "Keep(start='x'): give a finite number"),
    (Keep, {"end": np.inf}, "Keep(end=inf): give a finite number"),
    (Keep, {"befor": 1}, "unknown field of Keep 'befor': did you mean 'before'?"),
    (Personal, {"prox": [0.1, 0.2]}, "Personal(prox=[0.1, 0.2]): give a finite number from 0"),
    (Personal, {"only": 1}, "Personal(only=1): say True or False"),
    (Personal, {"lam": 1}, "unknown field of Personal 'lam': choose one of only, prox"),
    (Needs, {"steps": "yes"}, "Needs(steps='yes'): say True or False"),
    (Needs, {"change": "gram"}, "unknown field of Needs 'change': did you mean 'changes'?"),
    (Decision, {"coef": 1, "state": {}, "infos": {}},
     "unknown field of Decision 'infos': did you mean 'info'?"),
    (ServerStep, {"factor": 1, "takes": True},
     "unknown field of ServerStep 'takes': did you mean 'take'?"),
]  # fmt: skip


@pytest.mark.parametrize(("record", "values", "line"), WRONG)
def test_a_value_that_does_not_fit_its_field_is_one_line(record, values, line):
    with pytest.raises(InputError) as told:
        record(**values)
    assert str(told.value) == line


def test_numbers_of_numpy_become_plain_ones():
    local = Local(np.float32(0.5), keep={"h": Keep(np.int64(2))}, add={"h": np.float32(-1)})
    numbers = (local.prox, local.keep["h"].start, local.add["h"])
    assert numbers == (0.5, 2.0, -1.0)
    assert {type(number) for number in numbers} == {float}


# --- classes -------------------------------------------------------------------------------------


class Plain(Mine):
    """has fields that no @dataclass made"""

    name: ClassVar[str] = "plain"
    share: float = 0.5


class Above(Plain):
    """derived from it"""


def test_a_class_with_fields_that_is_no_dataclass_is_one_line():
    line = r"has the field share, but is no dataclass: write @dataclass\(frozen=True\) above the"
    for make in (lambda: Plain(0.3), lambda: Plain(share=0.3), Plain, Above):
        with pytest.raises(InputError, match=line):
            make()
    with pytest.raises(InputError, match=rf"test_strategy_contract.Plain' {line}"):
        fedmaba.register(Plain)


class Assigning(Mine):
    def __init__(self, power=1.0):
        object.__setattr__(self, "power", power)


@dataclass(frozen=True)
class Passing(Mine):
    power: dataclasses.InitVar[float] = 1.0

    def __post_init__(self, power):
        super().__post_init__()


@dataclass(frozen=True)
class Hiding(Mine):
    share: float = 0.5

    def __init__(self, power=1.0):
        object.__setattr__(self, "share", 0.5)
        object.__setattr__(self, "power", power)


@dataclass(frozen=True)
class Cached(Mine):
    share: float = 0.5

    @functools.cached_property
    def double(self):
        return 2 * self.share


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Assigning, "has an __init__ of its own, whose settings no label or record shows: write"),
        (Passing, "has the InitVar power, which no label or record shows: make it a field"),
        (Hiding, "keeps 'power', which is no field, so that no label, record or checkpoint"),
    ],
)
def test_settings_that_are_no_fields_are_refused(kind, line, fed):
    with pytest.raises(InputError, match=line):
        check_strategy(kind(5.0))
    with pytest.raises(InputError, match=line):
        fedmaba.compare([kind(5.0)], data=fed, rounds=1, seeds=1)


def test_what_follows_from_fields_may_be_kept():
    made = Cached(0.25)
    assert made.double == 0.5
    check_strategy(made)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ({"a": 1}, "it can change while all runs share it: declare and give a tuple"),
        (np.ones(2), "it can change while all runs share it"),
        (([1.0],), "it can change while all runs share it"),
        (torch.ones(2), "it can change while all runs share it"),
        (object(), "its label would be another in every process: give a number, a word or a"),
        (lambda x: x, "its label would be another in every process"),
    ],
    ids=["dict", "array", "tuple of a list", "tensor", "object", "lambda"],
)
def test_a_field_holds_what_stays_as_it_is(value, rule):
    @dataclass(frozen=True)
    class Loose(Mine):
        rule: object = np.tanh

    with pytest.raises(InputError, match=rule):
        Loose(value)
    assert Loose().rule is np.tanh


def test_a_dataclass_of_its_own_needs_no_more():
    @dataclass(frozen=True)
    class Good(Mine):
        share: float = 0.5

    assert Good(0.25).label() == "mine:share=0.25"
    assert pickle.loads(pickle.dumps(FedProx(0.3))) == FedProx(0.3)


@pytest.mark.parametrize(
    ("hook", "method"),
    [
        ("local", lambda self: Local(prox=0.7)),
        ("weigh", lambda self, state, replies: Decision(np.ones(1), state)),
        ("needs", lambda self: Needs()),
        ("total", lambda self: None),
    ],
)
def test_another_rule_under_the_name_of_a_built_in_one_is_refused(hook, method, fed):
    kind = type("Mine", (FedProx,), {hook: method, "__module__": __name__})
    line = (
        f"strategy 'test_strategy_contract.Mine' has a {hook}() of its own, but the name 'fedprox' "
        "of a built-in strategy: write name: ClassVar[str] = ... in it"
    )
    for refuse in (check_strategy, lambda s: fedmaba.register(type(s)), FederationSettings):
        with pytest.raises(InputError) as told:
            refuse(kind())
        assert str(told.value) == line
    named = type("Mine", (FedProx,), {hook: method, "name": "mine"})
    check_strategy(named())


def test_words_of_a_built_in_strategy_may_be_changed():
    mine = type("Shown", (FedProx,), {"title": "Mine", "shown": lambda self: ()})()
    check_strategy(mine)
    assert (mine.name, mine.title, mine.shown()) == ("fedprox", "Mine", ())


# what is handed out stays as it is


def doubling(read):
    def weigh(self, state, replies):
        values = read(replies)
        values *= 2
        return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)

    needs = Needs(loss="start", changes="gram", steps=True)
    return type("Mine", (Mine,), {"weigh": weigh, "needs": lambda self: needs})()


@pytest.mark.parametrize("field", ["loss", "gram", "steps", "size", "client"])
def test_a_strategy_that_changes_what_it_is_given_is_refused(field, fed):
    strategy = doubling(lambda replies: getattr(replies, field))
    with pytest.raises(InputError, match=r"mine: weigh\(\) changes what it is given: copy it"):
        fedmaba.compare([strategy], data=fed, rounds=1, seeds=1)
    values = np.ones(2)
    with pytest.raises(ValueError, match="read-only"):
        two(loss=values).loss[0] = 2
    values[0] = 3  # whoever made them may


@pytest.mark.parametrize(
    "draw",
    [lambda: np.random.random(), random.random, lambda: np.random.default_rng().random()],  # noqa: NPY002
    ids=["numpy", "random", "generator"],
)
def test_a_strategy_that_draws_from_nowhere_is_refused(draw, fed):
    def weigh(self, state, replies):
        odds = np.ones(len(replies.client))
        odds[0] += draw()
        return Decision(odds / odds.sum(), state)

    np.random.seed(1)  # noqa: NPY002
    with pytest.raises(InputError, match="two answers to the same replies: let it depend on"):
        fedmaba.compare([type("Mine", (Mine,), {"weigh": weigh})()], data=fed, rounds=1, seeds=1)
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002 - the caller's numbers are as before


def test_runs_share_no_state(fed):
    """Each seed starts from what init() says, though all get one array and weigh() changes it."""
    shared = np.zeros(fed.n_clients)

    def weigh(self, state, replies):
        state["seen"][replies.client] += 1
        odds = 1 + state["seen"][replies.client]
        return Decision(odds / odds.sum(), state, {"seen": float(state["seen"].sum())})

    own = {"weigh": weigh, "init": lambda self, n: {"seen": shared}}
    history = fedmaba.compare(
        [type("Mine", (Mine,), own)()], data=fed, rounds=2, seeds=3, progress=False
    )
    assert [list(run.tables["info.seen"]) for run in history.runs] == [[5, 10]] * 3
    assert not shared.any()


def test_an_answer_may_be_kept_by_who_gave_it(fed):
    answer = np.full(fed.n_clients, 1 / fed.n_clients)
    kind = type("Mine", (Mine,), {"weigh": lambda self, state, replies: Decision(answer, state)})
    found = call_weigh(kind(), {}, Replies(0, 0.1, 5, np.arange(5), np.ones(5, np.int64)))
    found.coef[0] = 9
    assert answer[0] == 1 / 5
