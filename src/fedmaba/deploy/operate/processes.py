"""The programs of a folder, run and watched in the foreground: `fedmaba flower start` and `stop`.

A program that ends is started again, after a pause that grows. Its log stays small. When the run of
a federation has ended, everything is stopped, and its exit code is that of the command. Also when
this process is killed the others end: each of them is asked to by the kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from fedmaba.deploy.flower_app import private
from fedmaba.deploy.flower_app.serve import LOOK_SECONDS, put_aside
from fedmaba.errors import InputError
from fedmaba.results import files

FIRST_PAUSE, MOST_PAUSE = 5.0, 20.0
LONG_LIFE = 60.0  # seconds after which a program that ends begins with the first pause again
PATIENCE = 20.0  # seconds to end by itself
STOP_PATIENCE = 60.0
LOCK = "running"  # the folder that the process which runs the programs holds
Say = Callable[[str], None]


@dataclass
class Program:
    """One program, its environment beside ours, and how often it was started."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    final: bool = False  # its end is the end of all, and its lines are shown
    meanings: Mapping[str, str] = field(default_factory=dict)  # of words in its log, for people
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = FIRST_PAUSE
    due: float = 0.0  # when it is started again

    def start(self, folder: Path) -> None:
        with self._lines(folder) as out:
            self.process = subprocess.Popen(
                list(self.command),
                cwd=folder,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=private.UMASK,
                preexec_fn=private.end_with_us,
            )
        self.began = time.monotonic()

    def _lines(self, folder: Path) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        """Where its lines go: to its log, or to where ours go."""
        if self.final:
            return contextlib.nullcontext()
        return open(folder / "logs" / f"{self.name}.log", "ab", opener=private.opener)

    @property
    def ended(self) -> int | None:
        """Its exit code, if it was started and has ended."""
        return None if self.process is None else self.process.poll()

    def ask_to_end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and all that it started, by force if they take too long."""
        if self.process is None:
            return
        family = family_of(self.process.pid)
        self.ask_to_end(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process = None


def run_all(folder: Path, programs: Sequence[Program], say: Say) -> int:
    """Run the programs until the final one ends, or until we are asked to; the exit code."""
    (folder / LOCK).mkdir(mode=0o700, exist_ok=True)
    lock = files.FolderLock(folder / LOCK, private=True)
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: asked.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        while not asked:
            for one in programs:
                code = _look_after(one, folder, say)
                if code is not None:
                    return code
            time.sleep(LOOK_SECONDS)
        say("asked to stop")
        return 128 + asked[0] if asked[0] == signal.SIGINT else 0
    finally:
        for one in reversed(programs):
            one.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
        lock.close()
        say("all processes stopped")


def _look_after(one: Program, folder: Path, say: Say) -> int | None:
    """Start a program that is due; the exit code if it was the final one and has ended."""
    put_aside(folder / "logs" / f"{one.name}.log")
    now = time.monotonic()
    if one.process is None:
        if now >= one.due:
            if not one.final:
                say(f"{one.name} starts: {folder / 'logs' / one.name}.log")
            one.start(folder)
        return None
    code = one.process.poll()
    if code is None:
        return None
    one.stop()  # what it left behind
    # 2 is a mistake that nobody but a person can correct
    if one.final and code in (0, 2):
        return code
    one.pause = FIRST_PAUSE if now - one.began > LONG_LIFE else min(2 * one.pause, MOST_PAUSE)
    one.due = now + one.pause
    log = folder / "logs" / f"{one.name}.log"
    why = "" if one.final else f": {last_words(log, one.meanings)}"
    say(f"{one.name} ended with {code}, and starts again in {one.pause:.0f} s{why}")
    return None


def stop(folder: Path) -> None:
    """Ask the process that runs a folder's programs to end, and wait until it has."""
    place = folder / LOCK
    if not place.is_dir() or not files.in_use(place):
        raise InputError(
            f"nothing that `fedmaba flower start {folder}` began runs here: what systemd or a "
            "container began, they stop"
        )
    found = re.search(r"process (\d+)", (place / ".lock").read_text())
    if found is None:
        raise InputError(f"{place / '.lock'} names no process: try again in a moment")
    os.kill(int(found[1]), signal.SIGTERM)
    end = time.monotonic() + STOP_PATIENCE
    while files.in_use(place):
        if time.monotonic() > end:
            raise InputError(f"process {found[1]} has not ended in {STOP_PATIENCE:.0f} s: look")
        time.sleep(0.2)


def is_running(folder: Path) -> bool:
    """Whether `start` runs the programs of this folder."""
    return (folder / LOCK).is_dir() and files.in_use(folder / LOCK)


def family_of(pid: int) -> list[int]:
    """A process, the others of its group, and all that any of them started."""
    done = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid="], capture_output=True, text=True, check=True
    )
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    found = [pid, *(p for p, _, group in rows if group == pid != p)]
    for one in found:
        found += [p for p, above, _ in rows if above == one and p not in found]
    return found


def last_words(log: Path, meanings: Mapping[str, str]) -> str:
    """What the newest lines of a log mean, or the last one that says something."""
    with contextlib.suppress(OSError):
        text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace")[-4000:])
        known = {text.rfind(words): told for words, told in meanings.items() if words in text}
        if known:
            return known[max(known)]
        lines = [" ".join(line.split()) for line in text.splitlines()]
        return next((line[:300] for line in reversed(lines) if re.search(r"\w", line)), "")
    return ""
