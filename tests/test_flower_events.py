"""What a federation logs is in its state folder: events.jsonl, and where it is shown."""

import json

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Error, Message

from fedmaba.deploy.event_log import EventLog, why_it_ends
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, SecureSum, secure_mod
from fedmaba.report import data as sources
from fedmaba.report import html, watch
from fedmaba.results import run_folder, state_folder
from flower_grid import LocalGrid, light_app, light_model

SITES = 4


def run(state, spoil=None, rounds=2, secure=None, count=SITES, spec="fedavg", **options):
    mods = [secure_mod] if secure else []
    grid = LocalGrid({100 - c: light_app(c, mods) for c in range(count)}, spoil)
    options = {"min_available_nodes": SITES, "grace": 0, "evaluate": False, **options}
    strategy = FlowerStrategy(spec, state=state, secure=secure, **options)
    return strategy.start(grid, light_model(), rounds, timeout=3)


def events(state) -> list[dict]:
    return [json.loads(line) for line in (state / "events.jsonl").read_text().splitlines()]


def broken(message, answer):
    """One site fails, by an error that would colour a terminal and start a script."""
    if message.metadata.dst_node_id == 99 and message.metadata.message_type.startswith("train"):
        return Message(Error(2, "\x1b[31m<script>alert(1)</script>\nno disk"), reply_to=message)
    return answer


def test_each_line_of_the_log_has_time_level_round_and_site(tmp_path):
    state = tmp_path / "state"
    run(state, broken)
    found = events(state)
    assert all(set(e) == {"time", "level", "round", "site", "text"} for e in found)
    assert {e["round"] for e in found} == {1, 2}
    (said, _) = [e for e in found if e["text"].startswith("left out of round")]
    assert (said["level"], said["round"]) == ("warning", 1)
    assert "no disk" in said["text"]
    rows = [e for e in found if e["site"] == "site-2" and "loss" in e["text"]]
    assert len(rows) == 2
    assert found[-1]["text"] == "the run has ended after round 2"
    assert (state / "events.jsonl").stat().st_mode & 0o777 == 0o600
    run(state, rounds=3)  # goes on, and so does the log
    assert len(events(state)) > len(found)


@pytest.mark.parametrize(("rho", "lines"), [(1.5, 1), (0.5, 0)])
def test_a_radius_that_limits_nothing_is_said_once(rho, lines, tmp_path):
    run(tmp_path / "state", spec=f"fedmaba:rho={rho}")
    told = [e for e in events(tmp_path / "state") if "never limits the weights" in e["text"]]
    assert [(e["level"], e["round"]) for e in told] == [("warning", 1)] * lines


def test_a_federation_that_died_says_why(tmp_path):
    state = tmp_path / "state"

    def lost(message, answer):
        return None if message.metadata.message_type.startswith("train") else answer

    with pytest.raises(InputError, match="no reply counted"):
        run(state, lambda m, a: a if lost(m, a) else Message(Error(2, "killed"), reply_to=m), 1)
    last = events(state)[-1]
    assert last["level"] == "error"
    assert "the run ends by an error: no reply counted in 1 rounds" in last["text"]


def test_failed_attempts_and_waiting_are_in_the_log(tmp_path):
    state = tmp_path / "state"

    def killed(message, answer):
        text = str(message.content.get("config", {}).get("secure", ""))
        if '"stage": "mask"' in text and message.metadata.dst_node_id < 100:
            return Message(Error(2, "killed"), reply_to=message)
        return answer

    with pytest.raises(InputError, match="failed 5 times"):
        run(state, killed, 1, SecureSum(threshold=3))
    found = events(state)
    again = [e for e in found if e["text"].startswith("round 1 is repeated")]
    assert len(again) == 5
    assert {e["site"] for e in found if "left in stage mask" in e["text"]} == {
        "site-1",
        "site-2",
        "site-3",
    }
    assert found[-1]["text"].startswith("the run ends by an error: round 1 failed 5 times")

    with pytest.raises(InputError, match="2 sites after"):
        run(tmp_path / "other", count=2, wait=0.01)
    texts = [e["text"] for e in events(tmp_path / "other")]
    assert "waiting for sites: 2 of 4 are here" in texts
    assert texts[-1].startswith("the run ends by an error: 2 sites after 0.01 seconds")


def test_the_newest_lines_are_shown_and_can_do_nothing(tmp_path, call):
    state = tmp_path / "state"
    run(state, broken)
    found = sources.load_run_folder(state).federation
    assert len(found.events) == state_folder.NEWEST_EVENTS
    page = html.page([sources.load_run_folder(state)], None)
    assert "The server&#39;s log" in page or "The server's log" in page
    assert "<script>alert(1)" not in page
    done = call("table", state)
    assert done.code == 0, done.err
    assert "The server's log" in done.out
    assert "the run has ended after round 2" in done.out
    assert "\x1b[31m<" not in done.out
    assert "events.jsonl" in watch.LIVING


def test_bad_lines_are_left_out_and_a_long_log_is_cut(tmp_path, monkeypatch):
    state = tmp_path / "state"
    run(state)
    file = state / "events.jsonl"
    good = len(sources.load_run_folder(state).federation.events)
    *lines, last = file.read_text().splitlines()
    bad = ['{"time": 7}', '{"x": ', "[" * 10_000, '{"time": "\\u001b"}', "\ufffd"]
    file.write_text("\n".join([*lines, *bad, last, '{"time": "cut of']))
    found = sources.load_run_folder(state).federation.events
    assert len(found) == good
    assert found[-1]["text"] == "the run has ended after round 2"
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert sources.load_run_folder(state).federation.events == []
    file.unlink()
    monkeypatch.setattr(run_folder, "MAX_EVENTS_BYTES", 2000)
    folder = run_folder.Folder(state, private=True)
    log = EventLog()
    log.folder = folder
    for i in range(100):
        log.add(20, f"line {i}")
    folder.close()
    assert file.stat().st_size <= 2000
    assert events(state)[-1]["text"] == "line 99"


def test_why_a_run_ends_in_words():
    assert why_it_ends(InputError("no sites: start some")) == (
        "the run ends by an error: no sites: start some"
    )
    assert why_it_ends(KeyError("x")) == "the run ends by an error: KeyError: 'x'"
    assert "stopped from outside" in why_it_ends(KeyboardInterrupt())
    log = EventLog()
    log.add(20, "nothing is kept without a folder")
