"""Real processes: exec'ed afresh, or forked from one that has imported torch and done no work.

A fork is a process of its own with its own files, locks and threads, killed like any other; it
only saves the seconds that the import takes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def warm() -> None:
    """Import what a run imports, and start no thread."""
    import fedmaba.cli
    import fedmaba.experiment.session
    import fedmaba.report.terminal
    import fedmaba.rows.stack  # noqa: F401


def fork(
    words: Sequence[str], cwd: Path, first: Callable[[], object] | None = None, log: str = "log"
) -> int:
    """Start `fedmaba WORDS` in a forked process, in a folder where its output goes to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.chdir(cwd)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        from fedmaba import cli

        sys.argv = ["fedmaba", *words]
        held = first() if first is not None else None  # an injection lives as long as this
        cli.main()
        del held
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def spawn(words: Sequence[str], cwd: Path) -> int:
    """Start `fedmaba WORDS` in a fresh interpreter."""
    source = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": source}  # it starts elsewhere
    command = [sys.executable, "-m", "fedmaba", *words]
    with open(cwd / "log", "wb") as handle:
        process = subprocess.Popen(command, stdout=handle, stderr=handle, cwd=cwd, env=env)
    process.returncode = 0  # waited for by id, below
    return process.pid


def wait(pid: int, seconds: float = 120.0) -> int:
    """The exit code of a process, negative for a signal; one that hangs is killed and says -99."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def send(pid: int, number: int, after: float) -> int | None:
    """Signal a process after some seconds; its exit code if it ended before, else None."""
    end = time.monotonic() + after
    while (left := end - time.monotonic()) > 0:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(min(left, 0.005))
    os.kill(pid, number)
    return None
