"""Signals stop a run after its round; it resumes to the same bytes."""

import signal
import time
from pathlib import Path

import pytest

from command_line import QUICK
from fedmaba.report import call_progress
from fedmaba.results.run_folder import Folder


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_stops_after_the_round_and_a_later_one_at_once(
    number, call, tiny_npz, monkeypatch
):
    """Both in this process; the handlers of before are put back."""
    shown = []

    def show(snapshot):
        shown.append(snapshot.round + 1)
        for _ in range(2):  # at once in the first round, as `timeout` does; later in the second
            signal.raise_signal(number)
            time.sleep(1.1 * (len(shown) - 1))

    def follow(session, speaker, asked, used):
        for snapshot in session.rounds(asked):
            show(snapshot)

    monkeypatch.setattr(call_progress, "follow", follow)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--checkpoint-every", "1"]
    answer = call(*words, "--out", "mine")
    assert answer.code == 130
    told = "stopping after this round; Ctrl-C again, a second later, ends at once\n"
    assert answer.err == told + "stopped after round 1; resume with: fedmaba resume mine\n"
    assert call("table", "mine").err == "unfinished, saved up to round 1: fedmaba resume mine\n"
    assert call("export", "mine").err == "unfinished, saved up to round 1: fedmaba resume mine\n"
    folder = Folder(Path("mine"))
    assert call("table", "mine").err == "unfinished, saved up to round 1: it is running\n"
    folder.close()
    ended = call("resume", "mine")
    assert ended.code == 128 + number
    assert ended.err.endswith("ended at once: what came after the last checkpoint is lost\n")
    assert shown == [1, 2]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
