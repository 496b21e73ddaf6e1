"""What happened, appended line by line, each with the SHA-256 of the line before. No torch.

Who edits, removes or adds a line in the middle breaks the chain, and `verify` names the place. Who
cuts the end off leaves a whole chain: so note the newest hash elsewhere, as `status` shows it. A
line says what was asked and what left, by kind and size, and never a value.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedmaba.errors import InputError
from fedmaba.results import files

NAME = "audit"
FILE = re.compile(r"audit-(\d{6})\.jsonl")
MOST_BYTES = 8_000_000  # of a file, after which the next one goes on with the chain
START = "0" * 64  # before the first line
REMEDY = "fix it; nothing is done here that cannot be recorded"
BEFORE = "before"  # the key of the hash of the line before


@dataclass(frozen=True)
class Chain:
    """How many lines there are, and the hash of the newest."""

    lines: int = 0
    head: str = START


@dataclass(frozen=True)
class Audit:
    """The audit log of a folder."""

    folder: Path

    def add(self, what: str, **told: object) -> None:
        """Append a line; SaveFailed if it cannot be kept, and then nothing may be done."""
        with files.writing(self.folder, REMEDY):
            self.folder.mkdir(mode=0o700, exist_ok=True)
        lock = self.folder / "lock"  # several processes of a host may write
        with files.writing(lock, REMEDY), files.open_to_append(lock, private=True) as held:
            files.wait_for_lock(held.fileno())
            path, head = self._newest()
            now = datetime.now(UTC).isoformat(timespec="seconds")
            line = json.dumps({"time": now, "what": what, **told, BEFORE: head}, sort_keys=True)
            with files.open_to_append(path, private=True, buffering=0) as file:
                file.write(line.encode() + b"\n")
                files.sync(path)

    def verify(self) -> Chain:
        """Follow the chain from its first line; InputError where it is broken."""
        chain = Chain()
        for place, text in self._lines():
            try:
                told = files.parse_json(text)
                before = told[BEFORE] if isinstance(told, Mapping) else None
            except (ValueError, KeyError):
                before = None
            if before != chain.head:
                raise InputError(
                    f"{place}: this line does not follow the one before: it, or what stood before "
                    "it, was changed, added or removed: compare it with a backup"
                )
            chain = Chain(chain.lines + 1, hashlib.sha256(text).hexdigest())
        return chain

    def newest(self, what: str) -> dict[str, Any] | None:
        """The newest line of a kind, from the newest file."""
        found = None
        for path in self._files()[-1:]:
            for text in path.read_bytes().splitlines():
                told = files.parse_json(text)
                if isinstance(told, dict) and told.get("what") == what:
                    found = told
        return found

    def _lines(self) -> Iterator[tuple[str, bytes]]:
        for path in self._files():
            for number, text in enumerate(path.read_bytes().splitlines(), 1):
                yield f"{path}, line {number}", text

    def _files(self) -> list[Path]:
        return [self.folder / name for name in sorted(files.matching_names(self.folder, FILE))]

    def _newest(self) -> tuple[Path, str]:
        """The file to write to, and the hash of the newest line."""
        found = self._files()
        if not found:
            return self.folder / f"{NAME}-000001.jsonl", START
        path = found[-1]
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a power cut; what it was about did not happen
            os.truncate(path, whole)
        if not whole:
            path.unlink()
            return self._newest()
        last = content[:whole].splitlines()[-1]
        if path.stat().st_size > MOST_BYTES:
            number = int(path.name[len(NAME) + 1 : -len(".jsonl")]) + 1
            path = self.folder / f"{NAME}-{number:06}.jsonl"
        return path, hashlib.sha256(last).hexdigest()
