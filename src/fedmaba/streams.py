"""Standard output and error that a run can rely on: any alphabet, any reader. No torch.

`fedmaba compare ... | head -1` closes a pipe under a run that has hours to go; a pipe on Windows
knows no Greek. Neither is a reason to end.
"""

from __future__ import annotations

import codecs
import errno
import io
import sys
import unicodedata
from typing import Any

from fedmaba.errors import SaveFailed

ASCII = {"±": "+-", "²": "^2", "–": "-", "−": "-", "·": "*", "×": "x", "λ": "lambda"}


class Outlet(io.FileIO):
    """Drops what is written from the moment on that nobody can read it."""

    def __init__(self, name: str, handle: int) -> None:
        super().__init__(handle, "w", closefd=False)
        self.said, self.shut = name, False

    def write(self, data: Any, /) -> int:
        if not self.shut:
            try:
                return super().write(data)
            except OSError as error:
                self.shut = True
                if self.said == "stdout" and error.errno != errno.EPIPE:
                    why = f"{error.strerror}: mend it, or send it elsewhere"
                    raise SaveFailed(f"standard output could not be written: {why}") from error
        return len(data)


def settle() -> None:
    """Make both streams take every character, and a pipe or file outlive its reader."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="fedmaba")
        if stream is getattr(sys, f"__{name}__") and not stream.isatty():
            outlet = io.BufferedWriter(Outlet(name, stream.fileno()))
            how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            text = io.TextIOWrapper(outlet, stream.encoding, "fedmaba", **how)
            setattr(sys, name, text)


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
