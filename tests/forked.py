"""`fedmaba` in processes of its own, forked from one that has imported torch and done no work.

To import torch takes seconds. A test of what a process does later (signals, ranks) need not wait
for that in each process. What Python itself does when it starts and ends is for real starts.
"""

import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from contextlib import suppress

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["fedmaba.cli", "fedmaba.experiment.session", "fedmaba.report.terminal", "fedmaba.rows.stack"]
)


def _play(words, cwd, streams, env, leads):
    """The command in this process, which is a fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if leads:  # the first terminal that it opens is its own
        os.setsid()
    os.chdir(cwd)
    os.environ.update(env)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
    sys.argv = ["fedmaba", *words]
    from fedmaba.__main__ import main

    code = 1
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a terminal that was closed
                stream.flush()
        os._exit(code)


class Command:
    """`fedmaba WORDS` in a folder, killed with the block; it prints into files, or a terminal."""

    def __init__(self, words, cwd, terminal=None, log="forked", **env):
        self.files = [cwd / f"{log}.{name}" for name in ("out", "err")]
        streams = [terminal or str(path) for path in self.files]
        given = (list(map(str, words)), str(cwd), streams, env, terminal is not None)
        self._process = FORKS.Process(target=_play, args=given, daemon=True)
        self._process.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.join()

    def send_signal(self, number):
        os.kill(self._process.pid, number)

    def wait(self, seconds=60):
        """Its exit code, negative for a signal; None if it has not ended by then."""
        self._process.join(seconds)
        return self._process.exitcode

    def printed(self):
        """What is on its standard output and error so far."""
        return tuple(path.read_text() if path.exists() else "" for path in self.files)

    def until(self, pattern, seconds=60):
        """Wait for a line on its standard output."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.printed()[0], re.MULTILINE):
            assert self._process.is_alive(), self.printed()
            assert time.monotonic() < end, self.printed()
            time.sleep(0.01)
