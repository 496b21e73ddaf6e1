"""`fedmaba flower demo` as a process: what it shows, and that Ctrl-C leaves nothing behind."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


def test_a_round_is_shown_and_ctrl_c_stops_everything():
    command = [Path(sys.executable).parent / "fedmaba", "flower", "demo"]
    demo = subprocess.Popen(
        [*command, "--sites", "2", "--rounds", "99"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background
    )
    seen = ""
    try:
        for line in demo.stdout:
            seen += line
            if line.startswith("  site-1"):
                break
        demo.send_signal(signal.SIGINT)
        seen += demo.communicate(timeout=90)[0]
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130, seen
    (folder,) = re.findall(r"logs in (\S+), removed", seen)
    assert re.search(r"round 1: .* mean [\d.]+ %, variance [\d.]+; lambda [\d.]+, kl", seen)
    assert re.search(r"site-0 +accuracy +[\d.]+ %  loss [\d.]+  weight 0\.\d+", seen)
    assert not Path(folder).exists()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may end while we look
            assert folder.encode() not in path.read_bytes()
