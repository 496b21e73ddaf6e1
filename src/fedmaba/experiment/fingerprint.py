"""Digests of code that users wrote: they change with all that the code reads. No torch here.

A run goes on only with the code that it was begun with. What code does depends on more than its own
lines: names of its module, closures, helpers, base classes, settings of objects. They are followed
as far as they are the user's; what Python, installed packages and fedmaba define counts by its
name. The same things have the same digest in every process.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import hashlib
import importlib.util
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np

from fedmaba.user_code import is_library

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)
# The digests of earlier versions are shorter: they left out most of what code reads.
FINGERPRINT_DIGITS = 16
MOST_OBJECTS = 1_000_000  # A second or two; more would be data.
LIBRARIES = {"torch", "fedmaba", "__future__", *sys.stdlib_module_names} - {"__main__"}
# Code that calls one of these reads what is not in memory.
BUILTIN_READERS = {"open", "eval", "exec", "__import__"}
READERS = {
    *("open", "load", "loadtxt", "genfromtxt", "load_file", "from_pretrained", "environ"),
    *("getenv", "read_csv", "read_parquet", "read_text", "read_bytes"),
}
DRAWS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
Named = tuple[str, Any]


class Fingerprint(NamedTuple):
    """A name with a digest, and what the code reads that the digest does not tell."""

    text: str
    unseen: tuple[str, ...]


class Fingerprints(NamedTuple):
    """Fingerprints of several things, and a line on what cannot be compared; "": all can."""

    texts: dict[str, str]
    note: str


def fingerprints(things: Mapping[str, object], modules: Iterable[Any] = ()) -> Fingerprints:
    """The fingerprints of those things that are the user's; `modules` are those of the model."""
    found = {
        what: fingerprint(thing, structure(modules) if what == "model" else ())
        for what, thing in things.items()
        if thing is not None and _home(thing).partition(".")[0] != "fedmaba"
    }
    unseen = [f"{one} ({what})" for what, told in found.items() for one in told.unseen[:2]]
    note = (
        f"code: whether {', '.join(unseen)} changes from call to call cannot be seen: when it "
        "did, say --fresh, or choose another --out"
    )
    return Fingerprints({what: one.text for what, one in found.items()}, note if unseen else "")


def fingerprint(thing: object, more: object = ()) -> Fingerprint:
    """Name and digest of a function, class or object; the digest changes with what it reads."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    name = str(getattr(named, "__qualname__", ""))
    walk = _Walk()
    walk.follow((name, thing), ("", more))
    return Fingerprint(f"{name} {walk.digest.hexdigest()[:FINGERPRINT_DIGITS]}", tuple(walk.unseen))


def structure(modules: Iterable[Any]) -> list[Any]:
    """What the modules of a model are: their classes, and their settings without weights."""
    kept = (*PLAIN_TYPES, tuple, FunctionType, BuiltinFunctionType, type)
    return [
        (
            type(module),
            {
                key: value
                for key, value in vars(module).items()
                if not key.startswith("_") and key != "training" and isinstance(value, kept)
            },
        )
        for module in modules
    ]


class _Walk:
    """Goes through a thing and all that it reads, and adds each to a digest."""

    def __init__(self, seen: dict[int, tuple[int, Any]] | None = None) -> None:
        self.digest = hashlib.sha256()
        self.unseen: dict[str, None] = {}
        self.seen = dict(seen or {})  # what is kept here lives on, so that its id stays its own

    def follow(self, *things: Named) -> None:
        todo, count = [*reversed(things)], 0
        while todo:
            name, thing = todo.pop()
            count += 1
            if count > MOST_OBJECTS:
                self.unseen[f"more than {MOST_OBJECTS:,} objects"] = None
                return
            try:
                text, inside = self._describe(name, thing)
            except Exception:  # Objects of any kind can raise anything where they are looked at.
                text, inside = _type_name(thing), []
                self.unseen[f"{name}, a {type(thing).__name__},"] = None
            self._add(text.encode(errors="backslashreplace") + b" %d" % len(inside))
            todo += reversed(inside)

    def _add(self, body: Any) -> None:
        self.digest.update(b"%d:" % len(body))
        self.digest.update(body)

    def _describe(self, name: str, thing: Any) -> tuple[str, list[Named]]:
        """A text that says what a thing is, and the things inside it."""
        kind = type(thing)
        if kind in PLAIN_TYPES:
            return _plain(thing), []
        # Whether equal constants are one object depends on how a module was loaded.
        if kind not in (CodeType, tuple, frozenset):
            if id(thing) in self.seen:
                return f"again {self.seen[id(thing)][0]}", []
            self.seen[id(thing)] = len(self.seen), thing
        if kind in (list, tuple):
            if all(type(one) in PLAIN_TYPES for one in thing):
                return f"{kind.__name__} {' '.join(map(_plain, thing))}", []
            return kind.__name__, [(name, one) for one in thing]
        if kind in (dict, MappingProxyType):
            return kind.__name__, [(name, one) for pair in thing.items() for one in pair]
        if kind in (set, frozenset):
            return f"{kind.__name__} {' '.join(sorted(map(self._apart, thing)))}", []
        if kind in (np.ndarray, np.memmap) or isinstance(thing, np.generic):
            return self._array(thing)
        if (torch := sys.modules.get("torch")) and isinstance(thing, torch.Tensor):
            if thing.dtype is torch.bfloat16 or thing.is_sparse:
                thing = thing.to_dense().float()
            told = self._array(thing.detach().cpu().resolve_conj().resolve_neg().numpy())
            return f"{_type_name(thing)} {told[0]}", told[1]
        if isinstance(thing, DRAWS) or (torch and isinstance(thing, torch.Generator)):
            raise ValueError("its state moves with every draw")
        return _type_name(thing), list(self._inside(name, thing))

    def _apart(self, thing: Any) -> str:
        """The digest of one element of a set, which has no order of its own."""
        walk = _Walk(self.seen)
        walk.follow(("", thing))
        self.unseen |= walk.unseen
        return walk.digest.hexdigest()

    def _array(self, values: Any) -> tuple[str, list[Named]]:
        values = np.asarray(values)
        told = f"array {values.dtype} {values.shape}"
        if values.dtype.hasobject:
            return told, [("", values.tolist())]
        body: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._add(memoryview(body))
        return told, []

    def _inside(self, name: str, thing: Any) -> Iterable[Named]:
        """What a function, class or other object is made of and reads."""
        match thing:
            case CodeType():
                args = thing.co_varnames[: thing.co_argcount + thing.co_kwonlyargcount]
                told = (thing.co_code, thing.co_exceptiontable, thing.co_names, thing.co_freevars)
                return [("", told), ("", args), (name, thing.co_consts)]
            case FunctionType():
                return self._function(name, thing)
            case BuiltinFunctionType() if not isinstance(thing.__self__, ModuleType | None):
                return [("", thing.__name__), (name, thing.__self__)]
            case BuiltinFunctionType():
                return [("", f"{thing.__module__}.{thing.__qualname__}")]
            case MethodType():
                return [(name, thing.__func__), (name, thing.__self__)]
            case ModuleType():  # Names that are read from it were followed before.
                return [("", thing.__name__)]
            case type():
                return self._class(thing)
            case staticmethod() | classmethod():
                return [(name, thing.__func__)]
            case property():
                return [(name, one) for one in (thing.fget, thing.fset, thing.fdel)]
            case cached_property():
                return [(name, thing.func)]
            case partial():
                return [(name, one) for one in (thing.func, thing.args, thing.keywords)]
            case dataclasses.Field():
                parts = (thing.name, thing.default, thing.default_factory, thing.metadata)
                return [(name, one) for one in parts]
        if "__wrapped__" in getattr(thing, "__dict__", {}):  # a cache around a function
            return [(name, thing.__wrapped__)]
        return self._state(name, thing)

    def _state(self, name: str, thing: Any) -> Iterable[Named]:
        """The class and state of an object of any kind, as a copy of it would be made."""
        try:
            how = copyreg.dispatch_table.get(type(thing))
            made = how(thing) if how else thing.__reduce_ex__(4)
        except Exception:
            if callable(thing) and isinstance(told := getattr(thing, "__qualname__", None), str):
                return [("", told)]  # a function of a kind of its own
            raise
        if isinstance(made, str):
            return [("", made)]
        parts = [list(part) if isinstance(part, Iterator) else part for part in made]
        return [("", type(thing)), *((name, part) for part in parts)]

    def _function(self, name: str, function: FunctionType) -> Iterable[Named]:
        cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        if not _is_own(function.__globals__.get("__name__"), function.__code__.co_filename):
            # A decorator of a library: what it wraps may be the user's.
            named = f"{function.__globals__.get('__name__')}.{function.__code__.co_qualname}"
            kinds = (FunctionType, MethodType, partial, type)
            return [("", named), *((name, one) for one in cells if isinstance(one, kinds))]
        for call in sorted(_calls_readers(function))[:1]:
            self.unseen[f"what {call} reads in {function.__qualname__}()"] = None
        inner = function.__code__.co_freevars
        filled = [cell != CellType() for cell in function.__closure__ or ()]
        free = [word for word, full in zip(inner, filled, strict=True) if full]
        settings = {**(function.__kwdefaults__ or {}), **vars(function)}
        return [
            (name, function.__code__),
            (name, function.__defaults__),
            *((key, one) for key, value in sorted(settings.items()) for one in (key, value)),
            *zip(free, cells, strict=True),
            *_globals_read(function),
        ]

    def _class(self, kind: type) -> Iterable[Named]:
        named = f"{kind.__module__}.{kind.__qualname__}"
        if not _is_own(kind.__module__):
            return [("", named)]
        entries = [
            (key, value)
            for key, value in sorted(vars(kind).items())
            if key == "__dataclass_fields__" or not _housekeeping(key, value)
        ]
        bases = [(base.__name__, base) for base in (type(kind), *kind.__bases__)]
        return [*bases, *(one for key, value in entries for one in (("", key), (key, value)))]


def _plain(value: Any) -> str:
    """A plain value as text; a whole number may be too long for its decimal digits."""
    kind = type(value)
    text = repr(value) if kind is not int else format(value, "x")
    return f"{kind.__name__}{len(text)}:{text}"


def _type_name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _housekeeping(key: str, value: object) -> bool:
    """Whether an entry of a class is Python's own, and not what its author wrote."""
    dunder = key.startswith("__") and key.endswith("__")
    code = isinstance(value, FunctionType | staticmethod | classmethod | property)
    return (dunder and not code) or key == "_abc_impl"


def _home(thing: object) -> str:
    """The module that defines a function or class, or the class of an object."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    return str(getattr(thing if isinstance(thing, type) else type(thing), "__module__", ""))


def _is_own(module: object, file: str = "") -> bool:
    """Whether a module is the user's, not Python's, fedmaba's or of an installed package."""
    if not isinstance(module, str) or module.partition(".")[0] in LIBRARIES:
        return False
    there = sys.modules.get(module)
    paths = [getattr(there, "__file__", None), *list(getattr(there, "__path__", ()))[:1], file]
    return not any(
        is_library(path)
        for path in paths
        if isinstance(path, str) and not path.startswith("<string")
    )


def _calls_readers(function: FunctionType) -> set[str]:
    """The names by which a function reads files and the like."""
    words, names, _ = _words(function.__code__)
    builtin = BUILTIN_READERS & names - set(function.__globals__)
    return builtin | (READERS & words - names)


def _globals_read(function: FunctionType) -> Iterator[Named]:
    """The values of a module's names that a function reads; of modules of the user's, in them."""
    words, names, imports = _words(function.__code__)
    space = function.__globals__
    found = {name: space[name] for name in sorted(names) if name in space}
    for level, name in sorted(imports):
        if (module := _imported(level, name, space)) is not None:
            found[f"import {name}"] = module
    for name, value in found.items():
        yield "", name
        yield name, value
        if isinstance(value, ModuleType):
            yield from _attributes_read(name, value, words, {id(value)})


def _attributes_read(
    name: str, module: ModuleType, words: set[str], seen: set[int]
) -> Iterator[Named]:
    """The values in a module of the user's that have one of these names."""
    if not _is_own(module.__name__):
        return
    for word in sorted(words & set(vars(module))):
        value = vars(module)[word]
        yield "", word
        yield f"{name}.{word}", value
        if isinstance(value, ModuleType) and id(value) not in seen:
            yield from _attributes_read(f"{name}.{word}", value, words, seen | {id(value)})


def _words(code: CodeType) -> tuple[set[str], set[str], set[tuple[int, str]]]:
    """All names and words in a function's code; the names of its module; what it imports."""
    words = {*code.co_names, *(one for one in code.co_consts if isinstance(one, str))}
    names: set[str] = set()
    imports: set[tuple[int, str]] = set()
    before: list[Any] = []
    for step in dis.get_instructions(code):
        if "GLOBAL" in step.opname or step.opname == "LOAD_NAME":
            names.add(str(step.argval))
        elif step.opname == "IMPORT_NAME":
            level = before[-2] if len(before) > 1 and isinstance(before[-2], int) else 0
            imports.add((level, str(step.argval)))
        before.append(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for mine, more in zip((words, names, imports), _words(inner), strict=True):
                mine |= more  # type: ignore[operator]
    return words, names, imports


def _imported(level: int, name: str, space: Mapping[str, Any]) -> ModuleType | None:
    """A module of the user's that a function imports when it is called."""
    package = str(space.get("__package__") or "")
    found = None
    with suppress(Exception):  # The function itself says what is wrong with the import.
        full = importlib.util.resolve_name("." * level + name, package)
        spec = importlib.util.find_spec(full.partition(".")[0])
        top = str(spec.origin or "") if spec else ""
        if spec and _is_own(full, top) and top not in ("built-in", "frozen"):
            found = importlib.import_module(full)
    return found
