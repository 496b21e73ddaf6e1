"""Signals stop a run after its round; it resumes to the same bytes."""

import os
import re
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from command_line import COMMAND, QUICK, Answer
from fedmaba.report import terminal
from fedmaba.results.run_folder import Folder, load_history

SLOW = """
import os, time
from torch import nn
from fedmaba.strategies import FedMABA

if "SLOW" in os.environ:
    weigh = FedMABA.weigh

    def slowly(self, state, replies):
        time.sleep(0.1)
        return weigh(self, state, replies)

    FedMABA.weigh = slowly

def make(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes))
"""

LONG = ["--rounds", "24", "--seeds", "1", "--minibatch", "20", "--eval-every", "2"]

LONG += ["--model", "slow_model:make", "--device", "cpu", "--checkpoint-every", "4"]


def interrupted(words, number, env):
    """Start a command, send it a signal after its first lines of progress."""
    process = subprocess.Popen(
        [*COMMAND, *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        seen = ""
        while "round " not in seen.replace("after round", ""):
            line = process.stderr.readline()
            assert line, seen
            seen += line
        if number == signal.SIGKILL:
            time.sleep(0.3)  # some rounds further on, in the middle of whatever it does
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return Answer(process.returncode, out, seen + err)


@pytest.mark.slow  # test_signals.py is quicker: a real Ctrl-C, and the same call goes on
def test_a_run_survives_signals_and_ends_in_the_same_bytes(call, tiny_npz):
    Path("slow_model.py").write_text(SLOW)
    env = {**os.environ, "SLOW": "yes"}
    words = ["compare", "fedmaba", "fedfv", "--data", str(tiny_npz), *LONG]

    stopped = interrupted([*words, "--out", "broken"], signal.SIGTERM, env)
    assert stopped.code == 130, stopped.err
    assert stopped.out == ""
    last = stopped.err.splitlines()[-1]
    done = int(
        re.fullmatch(
            r"stopped after round (\d+); resume with: fedmaba resume broken --trust", last
        )[1]
    )
    assert 2 <= done < 24
    assert load_history("broken").runs[0].column("round")[-1] == done
    assert call("table", "broken").code == 0

    killed = interrupted(["resume", "broken", "--trust"], signal.SIGKILL, env)
    assert killed.code == -signal.SIGKILL
    assert f"resumed after round {done}" in killed.err

    ended = call("resume", "broken", "--trust", "--quiet")  # here, and at full speed
    assert ended.code == 0, ended.err
    whole = call(*words, "--out", "whole", "--quiet")
    assert whole.code == 0
    assert ended.out.replace("broken", "whole") == whole.out
    for name in ("clients", "models"):
        for file in (Path("whole") / name).iterdir():
            assert (Path("broken") / name / file.name).read_bytes() == file.read_bytes(), file
    assert Path("broken/rounds.jsonl").read_bytes() == Path("whole/rounds.jsonl").read_bytes()


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

    monkeypatch.setattr(terminal, "progress", lambda session, quiet: nullcontext(show))
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
