"""Real processes: exec'ed afresh, or forked from one that has imported torch and done no work.

A fork is a process of its own with its own files, locks and threads, killed like any other; it
only saves the seconds that the import takes.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def warm() -> None:
    """Import what a run imports, and start no thread."""
    import fedmaba.cli
    import fedmaba.experiment.session
    import fedmaba.report.terminal
    import fedmaba.rows.stack  # noqa: F401


def fedmaba(words: Sequence[object]) -> int:
    """`fedmaba WORDS` in this process: its exit code."""
    from fedmaba import cli

    sys.argv = ["fedmaba", *map(str, words)]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0


def fork(work: Callable[[], int]) -> int:
    """Start a forked process whose exit code `work` gives; 1 and a traceback where it raises."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def redirect(out: str | Path, err: str | Path) -> None:
    """Let this process write to files from now on."""
    for number, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)


def start(work: Callable[[], int], cwd: Path, log: str = "log") -> int:
    """Start `work` in a forked process, in a folder where its output goes to `log`."""

    def main() -> int:
        os.chdir(cwd)
        redirect(log, log)
        return work()

    return fork(main)


def command(words: Sequence[object], cwd: Path, log: str = "log") -> int:
    """Start `fedmaba WORDS` in a forked process."""
    return start(functools.partial(fedmaba, words), cwd, log)


def spawn(words: Sequence[str], cwd: Path) -> int:
    """Start `fedmaba WORDS` in a fresh interpreter."""
    source = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": source}  # it starts elsewhere
    line = [sys.executable, "-m", "fedmaba", *words]
    with open(cwd / "log", "wb") as handle:
        process = subprocess.Popen(line, stdout=handle, stderr=handle, cwd=cwd, env=env)
    process.returncode = 0  # waited for by id, below
    return process.pid


def wait(pid: int, seconds: float = 600.0) -> int:
    """The exit code of a process, negative for a signal; one that hangs is killed and says -99."""
    code = send(pid, signal.SIGKILL, seconds)
    if code is None:
        os.waitpid(pid, 0)
        return -99
    return code


def send(pid: int, number: int, after: float) -> int | None:
    """Signal a process after some seconds; its exit code if it ended before, else None."""
    end = time.monotonic() + after
    while (left := end - time.monotonic()) > 0:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(left, 0.002))
    os.kill(pid, number)
    return None
