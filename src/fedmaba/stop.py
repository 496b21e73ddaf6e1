"""What signals such as Ctrl-C do: end the program at once, or after the current round. No torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
STOPPING = "stopping after this round; Ctrl-C again, a second later, ends at once"


class Ended(SystemExit):
    """A signal ended the program; its code is the one a shell gives to a killed process."""


@contextmanager
def at_once() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program as Ctrl-C does, so that files are closed.

    A signal ends it, too, where its exception becomes another on the way: compiled modules, NumPy's
    among them, turn whatever happens while they are imported into an ImportError.
    """
    heard: list[int] = []

    def end(number: int, frame: object) -> None:
        heard.append(number)
        _end(number)

    try:
        with _handled(ENDING, end):
            yield
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:  # a panic of compiled code is no Exception
        if not heard:
            raise
        _end(heard[0])


def answer_stands(code: int) -> None:
    """Let later signals end the process with the code of its answer, which is out already.

    To take a process apart that has used torch takes a good part of a second.
    """
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # no nohup
            signal.signal(number, lambda *_: os._exit(code))


def ignore() -> None:
    """Hear no signal: when Python takes itself apart, its own handlers go, and a signal would kill.

    This is for the last moment, since what hangs could not be ended by Ctrl-C.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def after_the_round(
    tell: Callable[[str], None], numbers: Sequence[int] = ENDING
) -> Iterator[Callable[[], bool]]:
    """Let a signal ask to stop after the round; another, a second later, ends the program at once.

    Signals within one second count as one: `timeout` signals both the process and its group.
    """
    asked: list[float] = []

    def say(text: str) -> None:
        with suppress(OSError, RuntimeError):  # the terminal is closed, or a line is being printed
            tell(text)

    def ask(number: int, frame: object) -> None:
        asked.append(time.monotonic())
        if len(asked) == 1:
            say(STOPPING)
        elif asked[-1] > asked[0] + 1:
            say("ended at once: what came after the last checkpoint is lost")
            _end(number)

    with _handled(numbers, ask):
        yield lambda: bool(asked)


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Ended(128 + number)


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Send signals to a handler, and restore the old handlers afterwards; main thread only."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            was = signal.getsignal(number)
            if number in (signal.SIGINT, signal.SIGTERM) or was is not signal.SIG_IGN:  # no nohup
                before[number] = was
                signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in before.items():
            if signal.getsignal(number) is handler:  # not where the answer stands
                signal.signal(number, signal.SIG_DFL if was is None else was)
