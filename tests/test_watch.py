"""The page of a run that still goes on, served to this machine alone."""

import http.client
import json
import re
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.report import (
    data,
    page_data,
    watch,
)
from fedmaba.report import html as report
from fedmaba.results import files, run_folder
from fedmaba.results.history import History, RunHistory
from report_cases import SECTIONS, Elements, session


@pytest.fixture(scope="module")
def served(folder):
    with watch.serve(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server, method="GET", path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read().decode()
    connection.close()
    return found


def test_watch_listens_on_loopback_only(served):
    """As the kernel's table of sockets has it."""
    port = f":{served.server_address[1]:04X}"
    bound = []
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/net/{name}")
        if not table.exists():
            pytest.skip("no table of sockets here")
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        bound += [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"]
    assert bound == ["0100007F" + port]


def test_watch_gives_the_page_and_its_version(served):
    status, headers, body = ask(served)
    assert status == 200
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    version = ask(served, path="/version")[2]
    assert f'data-version="{version}"' in body
    assert [a["id"] for t, a in Elements(body).elements if t == "section"] == SECTIONS
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert ask(served, path="/../../etc/passwd")[0] == 404


def test_watch_waits_for_a_folder_that_is_about_to_be_written(folder, tmp_path, monkeypatch):
    told, looks = [], []

    def pause(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            shutil.copytree(folder, tmp_path / "live")

    monkeypatch.setattr(watch.time, "sleep", pause)
    watch.wait_for(tmp_path / "live", told.append)
    assert told == [f"Waiting for {tmp_path / 'live'}/ to appear (Ctrl-C to stop)."]
    assert len(looks) == 2
    watch.wait_for(tmp_path, told.append)  # which is there, and no run: serve() says so
    assert len(told) == 1


def spoken(server, text: str) -> bytes:
    """All that a server answers until it hangs up."""
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(text.replace("HERE", f"127.0.0.1:{port}").replace("\n", "\r\n").encode())
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def test_watch_sends_no_body_after_a_head(served):
    head, _, body = spoken(served, "HEAD / HTTP/1.1\nHost: HERE\nConnection: close\n\n").partition(
        b"\r\n\r\n"
    )
    assert int(re.search(rb"Content-Length: (\d+)", head)[1]) > 1000
    assert body == b""


def test_watch_does_not_take_what_it_refused_for_another_request(served):
    inner = "GET /version HTTP/1.1\nHost: HERE\n\n"
    answer = spoken(served, f"POST / HTTP/1.1\nHost: HERE\nContent-Length: 60\n\n{inner}")
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_watch_makes_a_page_once_for_each_state_of_a_run(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "run")
    made = []
    real = watch.html.page
    monkeypatch.setattr(watch.html, "page", lambda *words: made.append(1) or real(*words))
    with watch.serve(tmp_path / "run") as server:
        first = server.page()
        assert server.page() == first
        assert len(made) == 1
        (tmp_path / "run" / "rounds.jsonl").touch()
        server.page()
        assert len(made) == 2


@pytest.mark.parametrize(("times", "status"), [(1, 200), (2, 503)])
def test_watch_looks_again_before_it_says_what_is_wrong(times, status, served, monkeypatch):
    real, left = data.load_run_folder, [InputError("half a file")] * times

    def load(path):
        if left:
            raise left.pop()
        return real(path)

    monkeypatch.setattr(served, "_made", None)
    monkeypatch.setattr(data, "load_run_folder", load)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    found = ask(served)
    assert found[0] == status
    assert (found[2] == "fedmaba: half a file\n") == (status == 503)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "", None]
)
def test_watch_answers_only_to_its_own_name(served, host):
    assert ask(served, Host=host)[0] == 403


def test_watch_refuses_other_origins_and_other_methods(served):
    port = served.server_address[1]
    assert ask(served, Host=f"localhost:{port}")[0] == 200
    assert ask(served, Origin="http://evil.example")[0] == 403
    assert ask(served, Origin=f"http://127.0.0.1:{port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, headers, _ = ask(served, method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert ask(served, "BREW")[0] == 501


@pytest.mark.parametrize(("error", "said"), [(BrokenPipeError, False), (KeyError, True)])
def test_watch_is_silent_about_a_browser_that_goes_away(served, capsys, error, said):
    try:
        raise error
    except error:
        served.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) == said


def test_watch_says_when_a_port_is_taken(folder, served):
    with pytest.raises(InputError, match="choose another --port"):
        watch.serve(folder, served.server_address[1])


def test_watch_shows_a_run_before_and_after_its_first_checkpoint(tiny_npz, tmp_path):
    going = session(tiny_npz, rounds=8, save={"every": 5})
    out = tmp_path / "live"
    starting.open_run_folder(going, out)
    rounds = going.rounds(stop=lambda: False)
    for _ in range(4):
        next(rounds)
    with watch.serve(out) as server:
        first, text = server.version(), server.page().decode()
        assert "live is running" in text
        assert "round 4 of 8" in text
        tree = json.loads(Elements(text).content["script"][0])
        assert tree["runs"][2]["fair"]["round"] == [2, 4]
        assert "final" not in tree["runs"][2]
        for _ in range(2):  # a checkpoint after the fifth
            next(rounds)
        assert server.version() != first
        tree = json.loads(Elements(server.page().decode()).content["script"][0])
        assert tree["runs"][2]["fair"]["round"] == [2, 4, 6]  # by its lines
        assert tree["runs"][2]["evaluated"] == [2, 4]  # by its checkpoint
        for _ in rounds:
            pass
        assert "is running" not in server.page().decode()


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_nobody_works_on_is_not_called_running(saved, tiny_npz, tmp_path):
    out = tmp_path / "cut"
    going = session(tiny_npz, rounds=8)
    starting.open_run_folder(going, out)
    asked = []
    rounds = going.rounds(stop=lambda: bool(asked))
    for _ in range(4):
        next(rounds)
    with watch.serve(out) as server:
        before = server.version()
        assert "cut is running" in server.page().decode()
        asked.append(saved)
        next(rounds, None) if saved else going.close()  # an interrupt, or the end of a process
        assert server.version() != before
        for text in (server.page().decode(), report.page([data.load_run_folder(out)])):
            assert "is running" not in text
            assert "cut was interrupted" in text
            assert "saved up to round 4 of 8" in text
            assert "deployed model ()" not in text
    assert not run_folder.in_use(out)
    assert not run_folder.in_use(tmp_path)
    again = starting.resume(out)
    assert run_folder.in_use(out)
    again.close()


def test_looking_who_works_on_a_folder_keeps_nobody_out(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    run_folder.Folder(tmp_path).close()
    look = open(tmp_path / ".lock", "rb")  # noqa: SIM115 - as `held` does, for a moment
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: look.close())
    run_folder.Folder(tmp_path).close()
    assert look.closed  # it was in the way, and waited for


@pytest.mark.parametrize("folders", [1, 2])
def test_a_live_run_shows_its_newest_points_beside_another_of_its_name(folders):
    figures = dict.fromkeys(("variance", "accuracy", "worst", "best"), 1.0)
    line = {"strategy": "fedavg", "seed": 0, "round": 7, "deployed": figures, "last": figures}
    run = RunHistory("fedavg", 0, "", np.zeros(0, np.int64))
    sources = [data.Source("run", History([run]), lines=[line], finished=False)] * folders
    assert [r["fair"]["round"] for r in page_data.tree(sources)["runs"]] == [[7]] * folders
