"""`fedmaba flower demo` as a process: what it shows, and that Ctrl-C leaves nothing behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.deploy.flower_app import demo as demo_module
from fedmaba.deploy.flower_app import net, proxy
from fedmaba.deploy.flower_app.proxy import find_nginx
from fedmaba.errors import SaveFailed

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
    assert re.search(r"round 1: .* accuracy [\d.]+ %, .* variance [\d.]+, lambda [\d.]+, kl", seen)
    assert re.search(r"site-0 +accuracy +[\d.]+ %  loss [\d.]+  weight 0\.\d+", seen)
    assert not Path(folder).exists()
    if find_nginx():
        assert re.search(r"^nginx on 127\.0\.0\.1:\d+: passes on what SuperNodes ask", seen, re.M)
    else:
        assert "nginx is not installed: the SuperNodes connect directly" in seen
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may end while we look
            assert folder.encode() not in path.read_bytes()


def test_a_kept_demo_leaves_logs_and_two_federations_to_compare(tmp_path):
    program = Path(sys.executable).parent / "fedmaba"
    kept = tmp_path / "kept"
    words = ["flower", "demo", "--sites", "2", "--rounds", "1", "--keep", str(kept)]
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("fed")]
    assert rows == ["fedavg", "fedmaba:alpha=0.8"]
    assert {"fair.log", "site-0.log", "site-1.log"} <= {p.name for p in (kept / "logs").iterdir()}
    assert not list(kept.rglob("*.key"))
    assert not list(kept.glob("*.npz"))
    for name in ("fedavg", "fedmaba"):
        card = (kept / f"state-{name}" / "models" / "card.md").read_text()
        assert "| site-0 | 1 of 1 | 1 |" in card
        assert "| flwr | 1." in card
    shown = subprocess.run(
        [program, "table", kept / "state-fedmaba"], capture_output=True, text=True
    )
    assert "Round 1 of 1: 2 of 2 sites answered." in shown.stdout


def test_without_nginx_the_sites_connect_directly_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(proxy, "find_nginx", lambda path: None)
    alone = net.Net(tmp_path)
    assert alone.sites_port == alone.port
    said = demo_module.way_in(alone)
    assert "nginx is not installed" in said
    assert "must put `fedmaba flower proxy` between them" in said
    assert "\n" not in said


def test_a_disk_that_takes_nothing_is_one_line(monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device", "/tmp/x/site-0.npz")

    monkeypatch.setattr(demo_module, "write_site", full)
    before = os.umask(0o022), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SaveFailed, match=r"site-0.npz: No space left on device: fix that"):
            demo_module.demo(lambda text: None, sites=1)
    finally:
        os.umask(before[0])
        signal.signal(signal.SIGTERM, before[1])
