"""What a terminal shows while a run goes on, and of its table."""

import logging
import math
import re
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.report import (
    call_progress,
    data,
    table,
    terminal,
    verdict,
)
from fedmaba.results.history import History
from report_cases import one, printed, session


def played(going):
    """A session to its end, and the pace of its rounds."""
    pace = terminal.Pace(going.batch)
    for snapshot in going.rounds():
        pace.reach(snapshot.round + 1)
    return going, pace


def test_the_display_shows_what_a_person_wants_to_know(tiny_npz):
    going, pace = played(session(tiny_npz))
    stream = StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    console.print(terminal.dashboard(going, pace))
    text = stream.getvalue()
    row = going.history.summary()[1]
    assert "round 4/4" in text
    assert re.search(r"rounds/s +[\d,]+ clients/s", text)
    assert "0:00 left" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("fedmaba")]
    assert f"{row.mean.accuracy:.2f}" in line
    assert f"{row.mean.variance:.2f}" in line
    assert f"{row.mean.worst:.2f}" in line
    assert f"{going.history.runs[-1].column('info.lambda')[-1]:.2f}" in line
    assert re.search("[▁▂▃▄▅▆▇█]", line)


@pytest.mark.parametrize("width", [34, 50, 60, 66, 72, 80, 100, 160])
def test_names_and_numbers_are_whole_at_any_width(width):
    labels = ["fedavg", "fedmaba:alpha=0.8,eta_b=0.5"]
    accuracy = np.linspace(0.1, 0.9, 20)
    runs = [one(label, accuracy * (1 - s / 9), s) for label in labels for s in (0, 1)]
    text = printed(width, terminal.grid(History(runs), "deployed", "last", 0.05))
    for name, *line in table.for_screen(table.summary(History(runs))).rows:
        assert name.text[:12] in text
        assert all(cell.text in text for cell in line)
    assert (labels[1] in text) == (width not in (80,))  # folded, where the table still has room
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [46, 60, 72, 80, 100])
def test_the_display_drops_columns_before_names_and_numbers(width, tiny_npz):
    going, pace = played(session(tiny_npz))
    for run in going.history.runs[2:]:
        run.label = "fedmaba:alpha=0.8,eta_b=0.5"
    text = printed(width, terminal.dashboard(going, pace))
    for row in going.history.summary():
        assert row.label[:12] in text
        assert f"{row.mean.accuracy:.2f}" in text
        assert f"{row.mean.variance:.2f}" in text
    assert "round 4/4" in text
    assert "0:00 left" in text
    if width in (46, 100):
        assert ("rounds/s" in text) == (width == 100)
    assert ("λ*" in text) == (width >= 72)
    assert ("over rounds" in text) == (width >= 100)
    assert "…" not in text


def shown(tiny_npz, quiet, monkeypatch, terminal_like) -> str:
    stream = StringIO()
    stream.isatty = lambda: terminal_like
    console = Console(file=stream, width=100, force_terminal=terminal_like)
    speaker = call_progress.Speaker(console, logging.WARNING if quiet else logging.INFO)
    call_progress.follow(session(tiny_npz), speaker, lambda: False)
    return stream.getvalue()


def test_plain_lines_where_nobody_watches(tiny_npz, monkeypatch):
    lines = shown(tiny_npz, False, monkeypatch, False).splitlines()
    assert len(lines) == 9  # three notes, and for each of two evaluations a head and two strategies
    assert re.fullmatch(r"round 4/4, [\d.,]+ rounds/s, 0 s left", lines[6])
    figures = r"variance [\d.]+ %², mean [\d.]+ %, worst [\d.]+ %"
    assert re.fullmatch(rf"  fedavg: {figures}", lines[7])
    assert re.fullmatch(rf"  fedmaba: {figures}, lambda \d\.\d\d", lines[8])
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in "".join(lines)


def test_quiet_says_nothing_and_no_color_has_none(tiny_npz, monkeypatch):
    assert shown(tiny_npz, True, monkeypatch, True) == ""
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m" in shown(tiny_npz, False, monkeypatch, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(3|4)\d", shown(tiny_npz, False, monkeypatch, True))
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(tiny_npz, False, monkeypatch, True)


def test_rate_and_time_left_count_from_where_this_process_began(tiny_npz, monkeypatch):
    going, now = session(tiny_npz, rounds=10), [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    going.batch.progress.round = 4  # an earlier process did these
    pace = terminal.Pace(going.batch)
    assert (pace.rate, pace.left) == (0.0, 0.0)
    now[0] = 103.0
    pace.reach(5)
    assert (pace.rate, pace.left) == (1 / 3, 15.0)
    now[0] = 107.0
    pace.reach(7)  # the first round no longer counts
    assert (pace.rate, pace.left) == (0.5, 6.0)
    text = printed(100, terminal.dashboard(going, pace))
    assert "round 7/10" in text
    assert "0.5 rounds/s  10 clients/s" in text  # two strategies, two seeds, five clients
    assert "0:06 left" in text
    going.close()


def test_before_a_round_is_timed_the_time_left_is_being_estimated(tiny_npz):
    going = session(tiny_npz)
    pace = terminal.Pace(going.batch)
    text = printed(80, terminal.dashboard(going, pace))
    assert "estimating" in text
    assert "0:00 left" not in text
    assert "rounds/s" not in text
    going.close()


@pytest.mark.parametrize("tty", [True, False])
def test_a_run_ends_with_verdict_time_and_the_next_command(tiny_npz, tty, monkeypatch):
    stream, real = StringIO(), Console
    monkeypatch.setattr(
        terminal, "Console", lambda **how: real(file=stream, width=80, force_terminal=tty)
    )
    going = session(tiny_npz)
    list(going.rounds())
    terminal.result(going.history, Path("my runs/x"), 62.4)
    text = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    said = " ".join(text.split())
    (want,) = verdict.verdicts_of_sources([data.source_of(going.history)])
    assert want.text in said
    assert "It took 1:02." in lines
    assert "Look at it: fedmaba report 'my runs/x' -o report.html" in lines
    assert lines[-1] == "results: my runs/x"


def test_bold_and_colour_are_explained_where_they_are_seen():
    rows = [one(x, [a, b], s) for x, a, b in (("a", 0.2, 0.8), ("b", 0.4, 0.7)) for s in (0, 1)]
    for several in (False, True):
        history = History([*rows, *([one("c", [0.5, 0.6], s) for s in (0, 1)] if several else [])])
        stream = StringIO()
        terminal.show(history, console=Console(file=stream, width=80, force_terminal=True))
        assert ("Bold: best. Cyan: second." in stream.getvalue()) == several
    stream = StringIO()
    terminal.show(history, console=Console(file=stream, width=80))  # a file has neither
    assert "Bold" not in stream.getvalue()


def test_the_display_explains_its_marks_once_there_are_any(tiny_npz):
    going, pace = played(session(tiny_npz))
    assert "Bold" not in printed(80, terminal.dashboard(going, pace))  # two strategies have no rank
    for run, name in zip(going.history.runs, "abcd", strict=True):
        run.label = name
    text = printed(80, terminal.dashboard(going, pace))
    assert text.splitlines()[-1].startswith("Bold: best. Cyan: second.")
    going.close()


def test_slow_rounds_are_told_in_seconds():
    assert terminal.rate_of(1 / 47, "rounds") == "47 s a round"
    assert terminal.rate_of(0.5, "rounds") == "0.5 rounds/s"
    assert terminal.rate_of(0.0, "rounds") == "0.0 rounds/s"


def test_small_words():
    assert terminal.clock(7) == "0:07"
    assert terminal.clock(750) == "12:30"
    assert terminal.clock(11045) == "3:04:05"
    assert terminal.spark([1, 8, 4.5]) == "▁█▅"
    assert terminal.spark([]) == ""
    assert terminal.spark([1, math.nan, 8, math.inf]) == "▁ █ "
    assert terminal.spark([math.nan]) == " "


def test_the_display_shows_a_run_with_hostile_clients(tiny_npz):
    """They have no test images, so no accuracy."""
    tree = {"strategies": ["fedavg"], "seeds": 1, "model": "softmax"}
    tree |= {"data": {"name": str(tiny_npz)}, "train": {"rounds": 3, "minibatch": 5}}
    tree |= {"eval": {"every": 1}, "attack": {"does": "loss=1e6", "share": "40%"}}
    going = experiment.prepare(config.build(tree))
    pace = terminal.Pace(going.batch)
    for snapshot in going.rounds():
        pace.reach(snapshot.round + 1)
        text = printed(100, terminal.dashboard(going, pace))
    (run,) = going.history.runs
    assert (run.test_size == 0).sum() == 2
    want = [f.variance for f in run.fairness()]
    assert terminal.spark(want) in text
