"""Everything that can go wrong in a way a user can fix: one line each, and the exit code it means.

A message names the value, the rule and the remedy. Anything else that reaches the user is a bug.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MAX_WORD, MAX_LINE = 400, 2000  # characters of a word and of a line that are shown whole
NOTE = 50  # more than half of what is said about what is left out, and "fedmaba: " before it


class FedmabaError(Exception):
    """Base of all errors meant for the user; `exit_code` is what the command line ends with."""

    exit_code = 2

    def __str__(self) -> str:
        return shortened(super().__str__())


def shortened(text: str) -> str:
    """Shorten a text in the middle of overlong words, then of the whole, so that both ends stay."""
    short = re.sub(rf"\S{{{MAX_WORD},}}", lambda word: _ends(word[0], MAX_WORD // 4), text)
    return _ends(short, MAX_LINE // 2 - NOTE) if len(short) > MAX_LINE else short


def error_line(err: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(err).split()) or type(err).__name__


def _ends(text: str, length: int) -> str:
    """The first and the last characters of a text."""
    left = len(text) - 2 * length
    return f"{text[:length]}...({left} characters left out)...{text[-length:]}"


class InputError(FedmabaError, ValueError):
    """Wrong configuration, data files or arguments, found before any work starts."""


class RankLost(FedmabaError):
    """Another process of the job ended; what was saved before is whole."""

    exit_code = 69


class NoRoom(FedmabaError):
    """The device has too little memory, even for one client at a time."""

    exit_code = 71


class Diverged(FedmabaError):
    """A loss, weight or model stopped being finite."""

    exit_code = 65


class SaveFailed(FedmabaError):
    """The run folder could not be written; what was saved before is whole."""

    exit_code = 74


class Busy(FedmabaError):
    """Another process works on the same run folder."""

    exit_code = 75


def unknown(
    kind: str, name: str, known: Iterable[str], head: str = "", other: str = ""
) -> InputError:
    """The error for an unknown name, with the nearest known one; all names begin with `head`.

    Where no name is near, the error lists all of them and ends with `other`.
    """
    names = sorted(known)
    several = [part.strip() for part in name.split(",")]
    if len(several) > 1 and not set(several).isdisjoint(names):
        return InputError(f"unknown {kind} {name!r}: name each by itself: {' '.join(several)}")
    low = name.lower()
    near = difflib.get_close_matches(low, names, n=1) or [
        known for known in names if len(low) > 2 and low in known
    ]
    every = "choose one of " + ", ".join(names) + other
    hint = f"did you mean {head + near[0]!r}?" if near else every
    return InputError(f"unknown {kind} {head + name!r}: {hint}")


@contextmanager
def usable(what: object, remedy: str, kind: type[FedmabaError] = InputError) -> Iterator[None]:
    """Say, in one line, why the system does not do inside what is wanted of a file or the like."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}: {remedy}") from error


@contextmanager
def installed(remedy: str) -> Iterator[None]:
    """Say what to install, in one line, where an import inside fails."""
    try:
        yield
    except ImportError as error:
        raise InputError(remedy) from error


def reason(error: BaseException) -> str:
    """What an exception says, on one line."""
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, KeyError):
        text = f"it lacks {text}"
    if text == "File is not a zip file":
        text = "no NPZ file"
    return " ".join(str(text).split())[:200] or type(error).__name__
