"""`fedmaba flower serve FOLDER`: run the proxy, and keep it within bounds. Needs no torch.

nginx itself limits neither the size of a log nor how long a request may take in all. So its log is
emptied when it is long, with a copy beside it; and nginx reloads every `RENEW_SECONDS`, after which
the connections of before have as long again to end. A reload also takes a new certificate.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from fedmaba.deploy.flower_app import private
from fedmaba.deploy.flower_app.proxy import (
    LOG,
    NGINX_FILE,
    RENEW_SECONDS,
    find_nginx,
    nginx_command,
)
from fedmaba.errors import InputError

LOG_BYTES = 4_000_000  # after which a log is put aside
LOOK_SECONDS = 1.0


def serve(folder: Path) -> int:
    """Run the proxy of a folder until it ends or is asked to; its exit code."""
    nginx = find_nginx()
    if nginx is None:
        raise InputError("nginx is not installed: apt-get install nginx-light")
    if not (folder / NGINX_FILE).is_file():
        raise InputError(f"{folder} has no {NGINX_FILE}: write it by `fedmaba flower proxy`")
    command = nginx_command(nginx, folder)
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=private.end_with_us)

    def end(number: int, frame: object) -> None:
        process.send_signal(signal.SIGTERM)

    before = {n: signal.signal(n, end) for n in (signal.SIGTERM, signal.SIGINT)}
    renew = time.monotonic() + RENEW_SECONDS
    try:
        while True:
            try:
                return process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                put_aside(folder / LOG)
            if time.monotonic() > renew:
                process.send_signal(signal.SIGHUP)
                renew = time.monotonic() + RENEW_SECONDS
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # workers of a master that was killed


def put_aside(log: Path) -> None:
    """Empty a log that is long; its lines stay in the file beside it until the next time.

    nginx appends to the same file on: its workers may not be allowed to open it anew.
    """
    with contextlib.suppress(OSError):  # no log yet, a full disk, or somebody removed it
        if log.stat().st_size > LOG_BYTES:
            try:
                shutil.copy(log, log.with_name(f"{log.name}.1"))
            finally:
                os.truncate(log, 0)
