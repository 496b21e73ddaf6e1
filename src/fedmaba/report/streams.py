"""Standard output and error that a run can rely on: any alphabet, any reader. No torch.

`fedmaba compare ... | head -1` closes a pipe under a run that has hours to go; a pipe on Windows
knows no Greek. Neither is a reason to end.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from fedmaba.errors import SaveFailed

ASCII = {"±": "+-", "²": "^2", "–": "-", "−": "-", "·": "*", "×": "x", "λ": "lambda"}


class ClosableStream(io.TextIOWrapper):
    """A stream that drops what is written once nobody can read it any more.

    It is a layer above the buffer and not below it: a signal may interrupt Python code that a
    buffer waits for, and what is written then would find the buffer locked.
    """

    def write(self, text: str, /) -> int:
        if text == "":  # The caller only asks whether text is taken, and an error would mean no.
            return 0
        with self._open():
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with self._open():
            super().flush()

    @contextmanager
    def _open(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            handle = self.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, handle)
            os.close(nowhere)
            if handle == 1 and error.errno != errno.EPIPE:
                why = f"{error.strerror}: fix it, or send it elsewhere"
                raise SaveFailed(f"standard output could not be written: {why}") from error


def make_streams_safe() -> None:
    """Make both streams accept any character and survive a closed pipe."""
    for handle, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # The stream is closed, and the next opened file would take its place.
            stream = _reopened(handle)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        if name == "stdin" or not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="fedmaba")
        if stream is getattr(sys, f"__{name}__"):
            how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            setattr(sys, name, ClosableStream(stream.buffer, stream.encoding, "fedmaba", **how))


def _reopened(handle: int) -> io.TextIOWrapper:
    """A standard stream that was closed: nothing to read, and writing to it is an error."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != handle:
        os.dup2(nothing, handle)
        os.close(nothing)
    return open(handle, "r" if handle == 0 else "w", encoding="utf-8", closefd=False)


def spelled(text: str) -> str:
    """A text in signs that standard output has, for what must stay aligned."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "fedmaba").decode(encoding)


def _spell(error: UnicodeError) -> tuple[str, int]:
    """What an encoding has no sign for, in ASCII: +- for ±, eta for η."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    out = ""
    for c in error.object[error.start : error.end]:
        name = unicodedata.name(c, "").split()
        out += ASCII.get(c) or (name[-1].lower() if name[:1] == ["GREEK"] else "?")
    return out, error.end


codecs.register_error("fedmaba", _spell)
