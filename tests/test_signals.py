"""Signals, closed streams and closed terminals: what is saved, what is said, which exit code."""

import itertools
import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import fedmaba
from fedmaba import stop
from fedmaba.results.run_folder import load_history
from forked import Command

COMMAND = [sys.executable, "-m", "fedmaba"]
ENV = {**os.environ, "PYTHONPATH": str(Path(fedmaba.__file__).parents[1])}
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
slow = partial(pytest.param, marks=pytest.mark.slow)  # repeats what a quicker case shows
SLOW = """
import time

from torch import nn

import fedmaba
from fedmaba.strategies.fedavg import FedAvg

weigh = FedAvg.weigh

def slowly(self, state, replies):
    time.sleep(0.1)
    print("a round", flush=True)
    return weigh(self, state, replies)

FedAvg.weigh = slowly

def make(shape, classes):
    return nn.Linear(shape[0], classes)
"""
LONG = ["compare", "fedavg", "--rounds", "60", "--seeds", "1", "--minibatch", "20"]
LONG += ["--eval-every", "10", "--model", "slow:make", "--device", "cpu", "--out", "run", "--quiet"]


def heard():
    """A child that hears every signal, though a job in the background hears no SIGINT."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def begun(words, cwd, first=heard, **streams):
    """A process, ended with the block."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    with subprocess.Popen(
        list(map(str, words)), cwd=cwd, env=ENV, text=True, preexec_fn=first, **streams
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def saved(folder):
    return int(load_history(folder).runs[0].column("round")[-1])


# --- before the first round --------------------------------------------------------------------


@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM, slow(signal.SIGHUP)])
def test_a_signal_before_the_first_round_ends_at_once_and_leaves_nothing(
    number, tmp_path, tiny_npz
):
    (tmp_path / "slow.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    with Command([*LONG, "--data", tiny_npz], tmp_path) as process:
        process.until("^here$")
        process.send_signal(number)
        assert process.wait(30) == 128 + number  # half of what the module sleeps
        assert process.printed() == ("here\n", "")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("number", "delay"),
    [(signal.SIGINT, 0.3), (signal.SIGTERM, 0.1), (signal.SIGHUP, 0.0)]
    + [slow(number, delay) for number in ENDING for delay in (0.0, 0.05, 0.1, 0.2, 0.3)],
)
def test_a_signal_while_python_starts_is_the_same_to_a_shell(number, delay, tmp_path):
    with begun([*COMMAND, "list", "models"], tmp_path) as process:
        time.sleep(delay)
        process.send_signal(number)
        traceback = process.communicate(timeout=60)[1]
    pythons_own = traceback.startswith("Could not import runpy") or "import_site" in traceback
    assert process.returncode in (0, 128 + number, -number) or pythons_own, traceback


def test_the_package_hears_signals_before_the_command_line_is_imported(tmp_path):
    """A second of imports on a busy machine, in which Ctrl-C was a traceback."""
    plain = "import signal\nsignal.raise_signal(getattr(signal, 'SIG' + {!r}))\n"
    compiled = "import signal\ntry:\n    signal.raise_signal(getattr(signal, 'SIG' + {!r}))\n"
    compiled += "except BaseException:\n    raise ImportError('as NumPy')\n"
    codes = (("INT", 130), ("TERM", 143), ("HUP", 129))
    for trap, (name, code) in itertools.product((plain, compiled), codes):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "typer.py").write_text(trap.format(name))  # among the first that it imports
        env = {**ENV, "PYTHONPATH": os.pathsep.join([ENV["PYTHONPATH"], str(folder)])}
        done = subprocess.run(
            [sys.executable, "-c", "import fedmaba.__main__ as start; start.main()"],
            env=env, cwd=tmp_path, capture_output=True, text=True, preexec_fn=heard,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (code, ""), name


LEAVING = """
import atexit
import os
import time

from torch import nn


class Late:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"torn down\\n")
        sleep(1)


late = Late()
atexit.register(lambda: (os.write(1, b"leaving\\n"), time.sleep(1)))


def make(shape, classes):
    return nn.Linear(shape[0], classes)
"""


@pytest.mark.parametrize("when", ["leaving", "torn down"])
@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM), slow(signal.SIGHUP)])
def test_a_signal_after_the_answer_does_not_change_its_code(number, when, tmp_path, tiny_npz):
    (tmp_path / "slow.py").write_text(LEAVING)
    words = [*COMMAND, *LONG, "--data", tiny_npz, "--rounds", "1", "--eval-every", "1"]
    with begun(words, tmp_path) as process:
        for line in process.stdout:
            if line.strip() == when:
                process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert load_history(tmp_path / "run").runs


# --- during a run ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, slow(signal.SIGTERM), slow(signal.SIGHUP)])
def test_a_signal_during_a_run_saves_after_the_round(number, tmp_path, tiny_npz):
    (tmp_path / "slow.py").write_text(SLOW)
    with Command([*LONG, "--data", tiny_npz], tmp_path) as process:
        process.until("(a round\n){3}")
        process.send_signal(number)
        assert process.wait() == 130
        _, err = process.printed()
    said, last = err.splitlines()
    assert said == stop.STOPPING
    done = re.fullmatch(r"stopped after round (\d+); resume with: (.*)", last)
    assert done[2] == "fedmaba resume run --trust"
    assert 3 <= saved(tmp_path / "run") == int(done[1]) < 60
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_a_closed_terminal_saves_after_the_round(tmp_path, tiny_npz):
    """A real terminal is hung up: what is then said there cannot be written, and is no error."""
    (tmp_path / "slow.py").write_text(SLOW.replace('print("a round", flush=True)', ""))
    ours, theirs = pty.openpty()
    words = [word for word in LONG if word != "--quiet"]
    with Command([*words, "--data", tiny_npz], tmp_path, os.ttyname(theirs)) as process:
        seen, until = b"", time.monotonic() + 60
        while not re.search(rb"[1-9]\x1b\[0m/60", seen) and time.monotonic() < until:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        os.close(theirs)
        os.close(ours)
        assert process.wait() == 130, seen
    assert 1 <= saved(tmp_path / "run") < 60


@pytest.mark.slow
def test_under_nohup_a_run_goes_on(tmp_path, tiny_npz):
    (tmp_path / "slow.py").write_text(SLOW)
    words = [w if w != "60" else "6" for w in LONG]
    deaf = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with begun([*COMMAND, *words, "--data", tiny_npz], tmp_path, deaf) as process:
        assert process.stdout.readline() == "a round\n"
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert out.rstrip().endswith("results: run")


# --- in Python ---------------------------------------------------------------------------------


QUICK = {"model": "softmax", "seeds": 1, "rounds": 3, "minibatch": 20, "device": "cpu"}


def interrupting(monkeypatch, at):
    """Ctrl-C in this process, in round `at`."""
    from fedmaba.strategies import FedAvg

    weigh, seen = FedAvg.weigh, []

    def raising(self, state, replies):
        seen.append(replies.round)
        if len(seen) == at:
            signal.raise_signal(signal.SIGINT)
        return weigh(self, state, replies)

    monkeypatch.setattr(FedAvg, "weigh", raising)


@pytest.fixture
def usual():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_python_saves_and_the_same_call_goes_on(
    usual, monkeypatch, capsys, tmp_path, tiny_npz
):
    interrupting(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt) as found:
        fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / "run", **QUICK)
    assert str(found.value) == (
        f"stopped after round 2, saved in {tmp_path / 'run'}: the same call resumes it"
    )
    assert stop.STOPPING in capsys.readouterr().err.splitlines()
    assert saved(tmp_path / "run") == 2
    resumed, whole = (
        fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / out, **QUICK)
        for out in ("run", "whole")
    )
    assert str(resumed) == str(whole)
    for file in (tmp_path / "whole" / "models").iterdir():
        assert (tmp_path / "run" / "models" / file.name).read_bytes() == file.read_bytes()


def test_without_a_folder_ctrl_c_is_what_it_always_is(usual, monkeypatch, capsys, tiny_npz):
    interrupting(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt) as found:
        fedmaba.compare("fedavg", data=tiny_npz, progress=False, **QUICK)
    assert str(found.value) == ""
    assert capsys.readouterr().err == ""


def test_ctrl_c_in_the_last_round_is_not_lost(usual, monkeypatch, tmp_path, tiny_npz):
    interrupting(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt, match=r"stopped after round 3, .* it is complete"):
        fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / "run", **QUICK)
    assert json.loads((tmp_path / "run" / "runs.json").read_text())


def test_a_handler_of_the_callers_own_is_left_alone(monkeypatch, tmp_path, tiny_npz):
    interrupting(monkeypatch, 2)
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / "run", **QUICK)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_in_another_thread_a_run_needs_no_signals(tmp_path, tiny_npz):
    found = []

    def work():
        found.append(fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / "run", **QUICK))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1


def test_handlers_are_put_back_and_a_line_that_cannot_be_said_is_no_error():
    before = [signal.getsignal(number) for number in ENDING]

    def closed(text):
        raise OSError(text)

    with stop.at_once():
        with stop.after_the_round(closed) as asked:
            assert not asked()
            signal.raise_signal(signal.SIGTERM)
            assert asked()
        with pytest.raises(stop.Ended) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert [signal.getsignal(number) for number in ENDING] == before


# --- closed streams ----------------------------------------------------------------------------


def shell(words, closed, cwd):
    line = shlex.join(map(str, [*COMMAND, *words]))
    return subprocess.run(
        ["sh", "-c", f"{line} {closed}"], cwd=cwd, env=ENV, capture_output=True, text=True
    )


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", slow("<&- >&- 2>&-"), slow("<&- >&-")])
def test_a_closed_standard_output_is_one_line_and_74(closed, folder, tmp_path):
    some = [["table", folder], ["--version"], ["list", "strategies"], ["--help"]]
    for words in some[:2] if closed == ">&-" else some[1:2] if "2>" in closed else some[2:]:
        done = shell(words, closed, tmp_path)
        assert done.returncode == 74, (words, done.stderr)
        assert done.stdout == ""
        line = "fedmaba: standard output could not be written: Bad file descriptor: fix it, or "
        assert done.stderr == ("" if "2>" in closed else line + "send it elsewhere\n")


@pytest.mark.slow
def test_a_closed_standard_error_or_input_is_no_error(folder, tmp_path):
    for closed in ("2>&-", "<&- 2>&-"):
        done = shell(["table", folder], closed, tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), closed
        assert done.stdout
    assert shell(["table", "nowhere"], "2>&-", tmp_path).returncode == 2


@pytest.mark.slow
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path, tiny_npz):
    """The lock of a run would be file 1, and a table be written into it."""
    words = ["compare", "fedavg", "--data", tiny_npz, "--model", "softmax", "--rounds", "2"]
    words += ["--seeds", "1", "--device", "cpu", "--out", "run"]
    done = shell(words, "<&- >&- 2>&-", tmp_path)
    assert done.returncode == 74
    settings = {"model": "softmax", "rounds": 2, "seeds": 1, "device": "cpu"}
    fedmaba.compare("fedavg", data=tiny_npz, out=tmp_path / "whole", **settings)
    assert (tmp_path / "run" / "runs.json").exists()
    for name in ("rounds.jsonl", "runs.json", ".lock"):
        mine, other = (tmp_path / run / name for run in ("run", "whole"))
        assert mine.exists() == other.exists()
        if name != ".lock" and mine.exists():
            assert mine.read_bytes() == other.read_bytes()
