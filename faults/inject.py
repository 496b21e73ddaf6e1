"""Something happens at the n-th file operation below a folder: an error of the disk, or a death.

Operations are those that change a disk: open for writing, write, truncate, flush, fsync, replace,
mkdir, unlink and the opening of a folder for its fsync. A write that fails has written its half.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Action = Callable[[str, str], None]  # operation, path


class Log:
    """The operations seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []


def fail(number: int) -> Action:
    """An action that raises an error of the operating system."""

    def action(what: str, path: str) -> None:
        raise OSError(number, os.strerror(number), path)

    return action


def die(what: str, path: str) -> None:
    """An action that ends this process on the spot."""
    os.kill(os.getpid(), signal.SIGKILL)


class _File:
    """An open file whose changes are counted."""

    def __init__(
        self, file: Any, path: str, step: Callable[[str, str], None], due: Callable[[], bool]
    ) -> None:
        self.__dict__.update(file=file, path=path, step=step, due=due)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *why: object) -> None:
        self.file.close()

    def write(self, content: Any) -> Any:
        if self.due():
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            content = content[len(content) // 2 :]
        self.step("write", self.path)
        return self.file.write(content)

    def flush(self) -> None:
        self.step("flush", self.path)
        self.file.flush()

    def truncate(self, *size: Any) -> Any:
        self.step("truncate", self.path)
        return self.file.truncate(*size)


@contextmanager
def at(root: Path, number: int, action: Action, *, sticky: bool = False) -> Iterator[Log]:
    """`action` at operation `number` (from 0) below root; sticky: at those that follow, too."""
    log, top = Log(), os.path.abspath(root)

    def step(what: str, path: str) -> None:
        path = os.path.abspath(path)
        if not path.startswith(top):
            return
        log.seen.append((what, os.path.relpath(path, top)))
        now = len(log.seen) - 1
        if now == number or (sticky and now > number and what != "unlink"):
            action(what, path)

    def due() -> bool:
        return len(log.seen) == number

    real = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "open")}
    real_open = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        changes = isinstance(file, str | os.PathLike) and set(mode) & set("wax+")
        if not changes or not os.path.abspath(file).startswith(top):
            return real_open(file, mode, *args, **kwargs)
        step("open", str(file))
        return _File(real_open(file, mode, *args, **kwargs), str(file), step, due)

    def counted(name: str, where: Callable[..., str]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            step(name, where(*args))
            return real[name](*args, **kwargs)

        return call

    def of_handle(handle: int) -> str:
        return os.readlink(f"/proc/self/fd/{handle}")

    builtins.open = io.open = opened
    os.fsync = counted("fsync", of_handle)
    for name in ("replace", "mkdir", "unlink"):
        setattr(os, name, counted(name, lambda path, *_: str(path)))

    def handle(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or os.path.isdir(path):
            step("open", str(path))
        return real["open"](path, flags, *args, **kwargs)

    os.open = handle
    try:
        yield log
    finally:
        builtins.open = io.open = real_open
        for name, function in real.items():
            setattr(os, name, function)
