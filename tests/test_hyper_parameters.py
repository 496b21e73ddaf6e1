"""Hyper-parameters mean what their declared types say: from text, in Python, and in labels."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.strategies import hyper_parameters
from fedmaba.strategies.base import Strategy, param
from fedmaba.strategies.behind import Behind


@dataclasses.dataclass(frozen=True)
class Mine(Strategy):
    """one field of each type"""

    name = "mine"
    flag: bool = True
    word: str = "plain"
    count: int = param(3, low=0, high=10**15)  # type: ignore[assignment]
    rate: float = param(0.5, above=0)
    most: int | None = None
    least: float | None = param(None, low=0)  # type: ignore[assignment, arg-type]
    called: str | None = None
    either: bool | float = False
    rule: Literal["a", "b", 1, True] = "a"
    several: tuple[int, ...] = (1, 2)
    pair: tuple[float, bool] = (0.5, True)
    words: tuple[str, ...] = ()
    loose: Any = 1
    table: frozenset[str] = frozenset()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(strategies.REGISTRY, "mine", Mine)


def one(spec: str) -> Any:
    (found,) = strategies.parse(spec)
    return found


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("flag=False", "flag", False),
        ("flag=FALSE", "flag", False),
        ("flag=true", "flag", True),
        ("word=5", "word", "5"),
        ("word=true", "word", "true"),
        ("word=None", "word", "None"),
        ("word=north west", "word", "north west"),
        ("count=7", "count", 7),
        ("count=1e3", "count", 1000),
        ("count=123456789012345", "count", 123456789012345),
        ("rate=2", "rate", 2.0),
        ("most=4", "most", 4),
        ("most=none", "most", None),
        ("least=0.25", "least", 0.25),
        ("called=None", "called", None),
        ("called=7", "called", "7"),
        ("either=true", "either", True),
        ("either=1", "either", 1.0),
        ("rule=b", "rule", "b"),
        ("rule=1", "rule", 1),
        ("rule=true", "rule", True),
        ("several=(3, 4,5)", "several", (3, 4, 5)),
        ("several=(3)", "several", (3,)),
        ("several=()", "several", ()),
        ("pair=(1,false)", "pair", (1.0, False)),
        ("words=(a,b c)", "words", ("a", "b c")),
        ("loose=2.5", "loose", 2.5),
        ("loose=word", "loose", "word"),
    ],
)
def test_a_text_is_read_as_its_field_is_declared(text, key, value):
    found = one(f"mine:{text}")
    kept = getattr(found, key)
    assert kept == value
    assert type(kept) is type(value)
    assert one(found.label()) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flag=maybe", "mine: flag='maybe': say true or false"),
        ("flag=1", "mine: flag='1': say true or false"),
        ("flag=none", "flag='none': say true or false"),
        ("count=many", "count='many': give a whole number of at least 0"),
        ("count=1.5", "count=1.5: give a whole number"),
        ("most=few", "most='few': say none, or give a whole number"),
        ("least=-1", "least=-1.0: say none, or give a finite number of at least 0"),
        ("rule=c", "rule='c': choose one of a, b, 1, True"),
        ("several=(1,x)", "several=(1, 'x'): give several in parentheses, as (a,b)"),
        ("several=3", "several='3': give several in parentheses"),
        ("pair=(1,2,3)", "pair='(1,2,3)': give several in parentheses"),
        ("several=(1", "brackets do not match"),
        ("several=(1]", "brackets do not match"),
        ("table=3", "mine: table='3': a hyper-parameter of this type is given in Python"),
        ("word=a(b)", "its label would not be read as this value"),
    ],
)
def test_a_text_that_means_nothing_is_refused_in_one_line(text, message):
    with pytest.raises(InputError) as caught:
        strategies.parse(f"mine:{text}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"flag": "False"},
        {"flag": 0},
        {"flag": None},
        {"word": 5},
        {"word": "a,b"},
        {"word": " a"},
        {"word": "a\nb"},
        {"called": "none"},
        {"most": 2.5},
        {"most": True},
        {"least": "0.5"},
        {"rule": "c"},
        {"several": 3},
        {"several": (1, "x")},
        {"several": (True,)},
        {"pair": (0.5,)},
        {"words": ("a,b",)},
    ],
    ids=str,
)
def test_python_is_held_to_the_types_too(given):
    (key,) = given
    with pytest.raises(InputError, match=f"mine: {key}="):
        Mine(**given)


def test_values_of_numpy_and_lists_become_plain_ones():
    found = Mine(flag=np.bool_(False), several=[4, 5], rate=np.float64(2))
    assert found == Mine(flag=False, several=(4, 5), rate=2.0)
    assert type(found.flag) is bool
    assert found.label() == "mine:flag=False,rate=2,several=(4, 5)"


def test_a_type_that_no_text_can_say_takes_anything_in_python():
    assert Mine(table=frozenset("ab")).table == {"a", "b"}


def test_lists_are_a_grid_of_any_type():
    assert [s.flag for s in strategies.parse("mine:flag=[true,False]")] == [True, False]
    found = strategies.parse("mine:several=[(1,2),(),(3)],flag=false")
    assert [s.several for s in found] == [(1, 2), (), (3,)]


# labels

words = some.text("abcXYZ 019._-+=:/äß", min_size=1).filter(lambda w: w == w.strip())


def values(f: dataclasses.Field[Any], kind: Any) -> some.SearchStrategy[Any]:
    """What a field may be, from its declaration."""
    low, high = f.metadata.get("low", -np.inf), f.metadata.get("high", np.inf)
    strict = f.metadata.get("open", False)
    if choices := hyper_parameters.listed_choices(kind):
        return some.sampled_from(choices)
    if kind is int:
        return some.integers(max(int(max(low, -(10**15))), -(10**15)), int(min(high, 10**15)))
    if kind is float:
        bounds = {"min_value": max(low, -1e299), "max_value": min(high, 1e299)}
        return some.floats(**bounds, exclude_min=strict and low > -1e299, allow_nan=False)
    return {
        bool: some.booleans(),
        str: words,
        bool | float: some.booleans() | some.floats(0, 1e9),
        int | None: some.none() | some.integers(0, 10**15),
        float | None: some.none() | some.floats(0, 1e299),
        str | None: some.none() | words.filter(lambda w: w.lower() != "none"),
        tuple[int, ...]: some.lists(some.integers(0, 10**9)).map(tuple),
        tuple[float, bool]: some.tuples(some.floats(1e-9, 1e9), some.booleans()),
        tuple[str, ...]: some.lists(words).map(tuple),
    }[kind]


@pytest.mark.parametrize("name", sorted({*strategies.REGISTRY, "mine"}))
@settings(max_examples=25, deadline=None)
@given(data=some.data())
def test_every_label_is_read_back_as_the_same_strategy(name, data):
    kind = Mine if name == "mine" else strategies.REGISTRY[name]
    given = {
        f.name: data.draw(values(f, hyper_parameters.field_types(kind)[f.name]), f.name)
        for f in dataclasses.fields(kind)
        if f.name not in ("loose", "table")
    }
    if given.get("ball") == "global":
        given["sync"] = "mass"
    named = {"server", "rule", "weights"} if issubclass(kind, Behind) else set()
    for other in given.keys() & named:
        given[other] = data.draw(some.sampled_from(["fedavg", "fedmaba:alpha=0.3;rho=2"]))
    if "layers" in given:
        given["layers"] = given["layers"].replace("+", "a+b")  # each pattern has a name
    made = kind(**given)
    back = one(made.label())
    assert back == made
    for f in dataclasses.fields(kind):
        assert type(getattr(back, f.name)) is type(getattr(made, f.name))
