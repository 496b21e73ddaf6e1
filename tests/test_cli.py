"""The command line as a user meets it: results, one-line errors, stops and resumes.

Most calls run in this process; those that need one of their own (signals, no torch, speed) get it.
"""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from fedmaba import cli, strategies
from fedmaba.data import datasets
from fedmaba.deploy.flower_app.net import NetError
from fedmaba.errors import FedmabaError
from fedmaba.experiment import config
from fedmaba.report import terminal
from fedmaba.results.run_folder import Folder, load_history

QUICK = ["--rounds", "4", "--seeds", "2", "--minibatch", "5", "--eval-every", "2"]
QUICK += ["--model", "softmax", "--device", "cpu", "--quiet"]
COMMAND = [sys.executable, "-m", "fedmaba"]


class Answer:
    """What a command gave back."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line here, in an empty folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["fedmaba", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Answer(ended.value.code or 0, captured.out, captured.err)

    return run


@pytest.fixture
def refused(call):
    """Run a command that must end in one line on stderr, exit code 2 and nothing written."""

    def run(*words, code=2):
        before = sorted(Path().rglob("*"))
        answer = call(*words)
        assert answer.out == ""
        assert re.fullmatch(r"fedmaba: [^\n]+\n", answer.err), answer.err
        assert "Traceback" not in answer.err
        assert answer.code == code
        assert sorted(Path().rglob("*")) == before
        return answer.err

    return run


# --- quick answers -----------------------------------------------------------------------------


def test_help_is_quick_and_needs_no_torch():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert done.returncode == 0
        assert all(word in done.stdout for word in ("compare", "run", "resume", "table", "list"))
    assert np.median(seconds) < 0.8  # of computing, so that a busy machine does not count
    check = (
        "import sys; sys.argv = ['fedmaba', 'compare', '--help']; from fedmaba.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("said", [None, "3"])
def test_numpy_gets_one_thread_unless_told_otherwise(said):
    """Its BLAS reads the number when it is loaded, so it must be there before."""
    check = (
        "import os, sys; sys.argv = ['fedmaba', 'compare', '--help']\n"
        "from fedmaba.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('numpy' in sys.modules, os.environ['OPENBLAS_NUM_THREADS'])"
    )
    env = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    env |= {} if said is None else {"OPENBLAS_NUM_THREADS": said}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=env)
    assert done.stdout.splitlines()[-1] == f"False {said or 1}", done.stderr


def test_without_a_word_help_is_shown_as_it_is_written(call):
    for words in ((), ("data",)):
        answer = call(*words)
        shown = answer.out + answer.err
        assert re.match(r"Usage: .*\bfedmaba ", shown)  # or python -m fedmaba, as it was started
        assert shown.count("\n") > 5


def test_help_tells_every_exit_code(call):
    shown = " ".join(call("--help").out.split())
    codes = {kind.exit_code for kind in FedmabaError.__subclasses__()} | {NetError.exit_code}
    told = set(map(int, re.findall(r"\b\d+\b", shown.partition("Exit codes:")[2])))
    assert told == {0, 1, *codes, 129, 130, 143}
    text = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()
    assert told == set(map(int, re.findall(r"^\| (\d+) \|", text, re.MULTILINE)))


def test_a_wrong_word_names_the_help(refused):
    assert refused("go") == "fedmaba: No such command 'go': see fedmaba --help\n"
    said = refused("compar")  # typer guesses since 0.20
    assert "Did you mean 'compare'?" in said or said.endswith("see fedmaba --help\n")


def test_a_check_of_data_that_are_not_there_or_not_right_fails(call, monkeypatch):
    found = {"here": "ok", "there": "ok"}
    monkeypatch.setattr(datasets, "check", lambda *_: list(found.items()))
    assert call("data", "check", "cifar10").code == 0
    for status in ("absent", "cut short"):
        found["there"] = status
        answer = call("data", "check", "cifar10")
        assert answer.code == 2
        assert answer.out == f"here: ok\nthere: {status}\n"


def test_a_data_set_that_nobody_publishes_is_one_line(refused):
    assert "unknown data set 'mnost'" in refused("data", "fetch", "mnost")


def test_the_version(call):
    answer = call("--version")
    assert (answer.code, answer.out) == (0, f"fedmaba {fedmaba.__version__}\n")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("strategies", [*strategies.REGISTRY, "alpha=0.5", "weights=size|uniform"]),
        ("datasets", ["sample", "fashion-mnist", "cifar10", "synthetic", "FILE.npz"]),
        ("models", ["mlp", "cnn", "softmax", "package.module:factory"]),
        ("partitions", ["shards:K", "dirichlet:A", "iid", "given"]),
        ("attacks", ["loss=L", "loss=xF", "loss=worst", "labels=flip", "update=F"]),
    ],
)
def test_a_list_has_one_line_for_each(what, words, call):
    answer = call("list", what)
    assert answer.code == 0
    assert answer.err == ""
    for word in words:
        assert word in answer.out
    names = [line.split()[0] for line in answer.out.splitlines()]
    assert len(set(names)) == len(names)
    if what == "strategies":
        assert names == [*strategies.REGISTRY]


# --- running -----------------------------------------------------------------------------------


def test_a_table_for_a_paper_has_the_differences_to_a_row(call, refused, tiny_npz):
    words = ["fedavg", "afl", "fedmaba", "--data", tiny_npz, *QUICK, "--out", "run"]
    assert call("compare", *words).code == 0
    history = load_history(Path("run"))
    runs = {(run.label, run.seed): run.fairness("last", 0.5)[-1] for run in history.runs}
    apart = [runs["afl", seed].worst - runs["fedavg", seed].worst for seed in (0, 1)]
    mean, half = np.mean(apart), 12.706 * np.std(apart, ddof=1) / np.sqrt(2)
    asked = ["table", "run", "--model", "last", "--share", "50%", "--against", "fedavg"]
    shown = f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"
    text, tex, listed = (call(*asked, "--to", to).out for to in ("text", "latex", "csv"))
    for out in (text, tex):
        assert shown in out
        assert "last server model, at the last round: difference to fedavg" in out.lower()
    assert tex.count(r"\begin{tabular}") == 2
    line = next(x for x in listed.splitlines() if x.startswith("differences,afl,worst 50 %,"))
    assert float(line.split(",")[3]) == pytest.approx(mean)
    plain = call(*asked[:-2], "--to", "markdown").out
    assert "difference" not in plain
    assert [row.split(" | ")[0] for row in plain.splitlines() if row.startswith("| ")][2:] == [
        "| fedavg",
        "| afl",
        "| fedmaba",
    ]
    said = refused("table", "run", "--against", "fedmab")
    assert said == "fedmaba: unknown row 'fedmab': did you mean 'fedmaba'?\n"


def test_compare_runs_a_file_with_a_client_column_and_shows_the_table(call, tiny_npz):
    words = ["compare", "fedavg", "fedmaba:alpha=[0.2,0.8]", "--data", tiny_npz]
    answer = call(*words, *QUICK, "--out", "mine")
    assert answer.code == 0
    assert answer.err == ""
    for word in ("fedavg", "fedmaba:alpha=0.2", "fedmaba:alpha=0.8", "variance", "worst", "±"):
        assert word in answer.out
    assert "results: mine" in answer.out
    history = load_history("mine")
    assert len(history.runs) == 6
    assert history.runs[0].n_clients == 5
    assert history.runs[0].evaluated.tolist() == [2, 4]
    mean = history.summary()[0].mean
    assert f"{mean.accuracy:.2f}" in answer.out

    again = call("table", "mine")
    assert again.code == 0
    assert f"{mean.accuracy:.2f}" in again.out
    last = call("table", "mine", "--model", "last", "--at", "best", "--share", "0.4")
    row = history.summary("last", "best", 0.4)[0].mean
    assert f"{row.worst:.2f}" in last.out
    assert "worst 40 %" in last.out
    assert "picked on test data" in last.out

    taken = call(*words, *QUICK, "--out", "mine")
    assert taken.code == 2
    assert "finished" in taken.err


def test_runs_without_a_folder_are_numbered(call, tiny_npz):
    for number in ("001", "002"):
        answer = call("compare", "fedavg", "--data", tiny_npz, *QUICK)
        assert f"results: runs/tiny-{number}" in answer.out
        assert (Path("runs") / f"tiny-{number}" / "runs.json").exists()


def test_progress_goes_to_stderr_in_plain_lines(call, tiny_npz):
    words = [w for w in QUICK if w != "--quiet"]
    answer = call("compare", "fedavg", "--data", tiny_npz, *words, "--out", "mine")
    lines = answer.err.splitlines()
    assert lines[0].startswith("model: fast rows")
    assert lines[1].startswith("round 2/4")
    assert lines[2].startswith("round 4/4")
    assert len(lines) == 3
    assert "\x1b" not in answer.err + answer.out


def test_run_takes_a_file_and_options_override_it(call, tiny_npz):
    Path("e.toml").write_text(
        f'strategies = ["fedavg", "afl"]\nseeds = 1\nmodel = "softmax"\n'
        f'[data]\nname = "{tiny_npz}"\n[train]\nrounds = 50\nminibatch = 5\n'
        f'[machine]\ndevice = "cpu"\n[save]\nout = "a"\n'
    )
    answer = call("run", "e.toml", "--rounds", "3", "--set", "train.lr=0.02", "--quiet")
    assert answer.code == 0
    asked = config.build(config.load(Path("a") / "experiment.toml"))
    assert (asked.train.rounds, asked.train.lr) == (3, 0.02)
    assert load_history("a").runs[1].column("round").tolist() == [1, 2, 3]
    # a folder's own file repeats it
    assert call("run", "a/experiment.toml", "--out", "b", "--quiet").code == 0
    for kind in ("clients", "models"):
        for file in (Path("a") / kind).iterdir():
            assert (Path("b") / kind / file.name).read_bytes() == file.read_bytes()


def test_a_run_that_diverges_says_so(call, tiny_npz):
    Path("two_layers.py").write_text(TWO)  # found in the folder one works in
    words = ["compare", "fedavg", "fedmaba:eta_s=1e30", "--data", tiny_npz, *QUICK]
    answer = call(*words, "--model", "two_layers:make", "--out", "mine")
    assert answer.code == 65
    assert "diverged in round" in answer.out
    assert "diverged: seed 0, 1" in " ".join(answer.out.split())
    assert answer.err == ""


TWO = """
from torch import nn

def make(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU(), nn.Linear(5, classes))
"""

# --- where the output goes ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_who_leaves_does_not_end_a_run(tmp_path, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK[:-1], "--eval-every", "1"]
    for gone in ("stdout", "stderr"):
        reader, writer = os.pipe()
        os.close(reader)
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, gone: writer}
        done = subprocess.run([*COMMAND, *words, "--out", gone], cwd=tmp_path, text=True, **how)
        os.close(writer)
        assert done.returncode == 0
        assert (tmp_path / gone / "runs.json").exists()
        assert ("results: stderr" in (done.stdout or "")) == (gone == "stderr")
        assert "Error" not in (done.stderr or "")
    reader, writer = os.pipe()
    os.close(reader)
    results = Path(__file__).parents[1] / "results"
    words = ["reproduce", "figure2-alpha", "--from", results, "--out", "drawn"]
    done = subprocess.run([*COMMAND, *words], cwd=tmp_path, stdout=writer)
    os.close(writer)
    assert done.returncode == 0
    assert (tmp_path / "drawn" / "figure2-alpha" / "table.csv").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["table", "mine"]])
def test_output_that_finds_no_room_is_one_line(words, unbuffered, call, tiny_npz, monkeypatch):
    call("compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "mine")
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 74
    assert re.fullmatch(r"fedmaba: standard output .*: No space left .*\n", done.stderr)


@pytest.mark.parametrize(("encoding", "plus"), [("cp1252", "±"), ("ascii", "+-")])
def test_an_encoding_without_a_sign_spells_it(encoding, plus, call, tiny_npz):
    call("compare", "fedavg", "--data", tiny_npz, *QUICK, "--out", "mine")
    results = Path(__file__).parents[1] / "results"
    rows = {"FedMGDA+, eta=0.1, epsilon=0.1 ", "AFL, lambda=0.05 "}
    words = ["reproduce", "table2-fashion-mnist", "--from", results, "--only", "fedmgda,afl"]
    for command, found in ((["table", "mine"], {"fedavg "}), (words, rows)):
        done = subprocess.run(
            [*COMMAND, *map(str, command)],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": encoding},
        )
        shown = done.stdout.decode(encoding).splitlines()
        assert done.returncode == 0, done.stderr
        for name in found:
            (line, *_) = [line for line in shown if line.startswith(f"| {name}")]
            assert f" {plus} " in line
            (head, *_) = [line for line in shown if line.startswith("| ")]
            assert len(line) == len(head)
    assert Path("runs/reproduce/table2-fashion-mnist/table.md").exists()


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedmba"], "unknown strategy 'fedmba': did you mean 'fedmaba'?"),
        (["fedmaba:alfa=0.5"], "did you mean 'alpha'?"),
        (["fedmaba:alpha=1.5"], "fedmaba: alpha=1.5: give a finite number of at least 0 and at"),
        (["fedmaba:alpha"], "'alpha' is not key=value"),
        (
            ["gdro"],
            "'gdro': choose one of afl, fedavg, fedfv, fedmaba, fedmgda, fedprox, fedsgd, "
            "propfair, qffl, term, or write package.module.Class for your own\n",
        ),
        (
            ["fedmaba", "--alpha", "0.8"],
            "--alpha: hyper-parameters stand with their strategy: write STRATEGY:alpha=VALUE\n",
        ),
        (
            ["fedavg", "--participants", "50%"],
            "train.participants='50%': say 'all' or a number of at least 1\n",
        ),
        (["fedavg", "--validation", "10"], "data.validation='10': write"),
        (["fedavg:x=1"], "hyper-parameter of fedavg 'x'"),
        (["fedavg", "fedavg"], "'fedavg' is listed twice"),
        (["fedavg", "--set", "train.epoch=3"], "did you mean 'train.epochs'?"),
        (["fedavg", "--set", "train.foo=3"], "unknown key 'train.foo': choose one of epochs, lr"),
        (["fedavg", "--participants", "6"], "participants=6, but the federation has 5 clients"),
        (["fedavg", "--participants", "few"], "train.participants='few'"),
        (["fedavg", "--lr", "-1", "--rounds", "0"], "train.rounds=0"),
        (["fedavg", "--model", "mlpp"], "did you mean 'mlp'?"),
        (["fedavg", "--model", "cnn"], "model cnn wants images"),
        (["fedavg", "--model", "no.where:make"], "No module named 'no'"),
        (["fedavg", "--device", "gpu"], "device='gpu'"),
        (["fedavg", "--device", "cuda:99"], ": say auto or cpu\n"),
        (["fedavg", "--device", "meta"], "device='meta'"),
        (["fedavg", "--partition", "shard:2"], "did you mean 'shards'?"),
        (["fedavg", "--deploy", "ema:2"], "deploy='ema:2'"),
        (["fedavg", "--test", "official"], "no official test part"),
        (["fedavg", "--validation", "120%"], "120%"),
        (["fedavg", "--seeds", "1,1"], "none twice"),
        (["fedavg", "--seeds", "2-0"], "seeds='2-0': 2-0 is no range: write 0-2\n"),
        (["fedavg", "--seeds", "few"], "seeds='few': say how many, as 3, or which: 3-9"),
        (["fedavg", "--data", "mine.txt"], "data 'mine.txt': your own file must end in .npz or"),
        (["fedavg", "--minibatch", str(10**30)], "train.minibatch=1000000"),
        (["fedavg", "--rounds", "1e2"], "train.rounds=1e2: it should be a valid integer"),
        (["fedavg,fedmaba"], "strategy 'fedavg,fedmaba': name each by itself: fedavg fedmaba"),
        (["fedavg", "--set", "lr=0.1"], "'lr': did you mean 'train.lr' or 'server.lr'?"),
        (["fedavg", "--set", "train.eval_every=1"], "did you mean 'eval.every'?"),
        (["fedavg", "--out", ""], "save.out='': it is empty: name a folder, or leave it out\n"),
        (["fedavg", "--data-dir="], "data.dir='': it is empty"),
        (["fedavg", "--data="], "unknown data set ''"),
        (["fedavg", ""], "unknown strategy ''"),
        (["fedavg", "--set", "save.out="], "save.out='': it is empty: name a folder"),
        (["fedavg", "--model", ":make"], "write package.module:factory"),
        (["fedavg", "--model", "os:getpid"], "it must take (shape, classes)"),
        (["..x.y"], "write package.module.Class"),
        (["fedavg", "--partition", "a\nb"], "control characters"),
        (["fedavg", "--clients", "4", "--participants", "5"], "participants=5, but clients=4"),
        (["fedavg", "--clients", "9"], "clients=9, but the data name 5 clients"),
        (["fedavg", "--rouns", "9"], "--rouns"),
        ([], "STRATEGY"),
    ],
)
def test_a_bad_argument_is_one_line_and_nothing_is_written(words, said, refused, tiny_npz):
    assert said in refused("compare", "--data", tiny_npz, "--out", "mine", *QUICK, *words)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("own_broken", "x = 1\nclass Shy(:\n", "own_broken.py, line 2: invalid syntax: fix it"),
        ("own_needy", "import nosuchpkg\n", "module 'own_needy' needs 'nosuchpkg', which is"),
        ("own_typo", "import os\nprnt(os)\n", "own_typo.py, line 2: NameError: name 'prnt' is"),
        ("own_other", "from os import nothing\n", "own_other.py, line 1: ImportError: cannot"),
        ("own_empty", "", "module 'own_empty' has no 'Shy': write package.module"),
    ],
)
def test_a_module_of_ones_own_that_cannot_be_read_is_named(name, text, said, refused, tiny_npz):
    Path(f"{name}.py").write_text(text)
    words = ["compare", "--data", tiny_npz, "--out", "mine", *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        assert said in refused(*words, f"{name}.Shy")
        assert said in refused(*words, "fedavg", "--model", f"{name}:Shy")


def test_an_experiment_file_is_no_strategy(refused):
    Path("exp.toml").write_text("")
    assert "'exp.toml' is an experiment file: say fedmaba run exp.toml" in refused(
        "compare", "exp.toml"
    )


def test_all_errors_are_told_at_once(refused):
    words = ["fedmba", "fedmaba:alpha=2", "afl", "afl", "--lr", "0", "--deploy", "ema:2"]
    words += ["--partition", "shard:2", "--data", "cifar-10", "--model", "mlpp"]
    words += ["--validation", "120%", "--set", "train.epoch=3", "--device", "gpu"]
    words += ["--attack", "labels=swap", "--hostile", "130%"]
    said = refused("compare", *words, "--out", "mine")
    for part in ("'fedmba'", "alpha=2", "'afl' is listed twice", "train.lr=0", "deploy='ema:2'",
                 "partition 'shard'", "'cifar-10'", "'mlpp'", "data.validation='120%'",
                 "'train.epoch'", "machine.device='gpu'", "attack 'labels=swap'",
                 "attack.share='130%'"):  # fmt: skip
        assert part in said, part


@pytest.mark.parametrize("kind", ["truncated", "empty", "garbage"])
def test_a_damaged_data_file_is_one_line(kind, refused, tiny_npz):
    good = tiny_npz.read_bytes()
    bad = {"truncated": good[: len(good) // 2], "empty": b"", "garbage": b"\x93NUMPY\xff" * 70}
    Path("mine.npz").write_bytes(bad[kind])
    said = refused("compare", "fedavg", "--data", "mine.npz", *QUICK)
    assert "mine.npz: not an .npz file of plain arrays" in said


def test_a_missing_data_file_is_one_line(refused):
    assert "none.npz" in refused("compare", "fedavg", "--data", "none.npz", *QUICK)
    assert "did you mean 'cifar10'" in refused("compare", "fedavg", "--data", "cifar-10", *QUICK)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.nan}, "non-finite values, first at row 0"),
        ({"y_test": 0}, "x_test and y_test belong together"),
        ({"weight": 0}, "unknown array 'weight'"),
    ],
)
def test_data_that_cannot_be_learned_from_are_one_line(change, said, refused, tiny_npz):
    with np.load(tiny_npz) as z:
        arrays = dict(z)
    for name, value in change.items():
        arrays.setdefault(name, np.zeros(3)).flat[0] = value
    np.savez("mine.npz", **arrays)
    assert said in refused("compare", "fedavg", "--data", "mine.npz", *QUICK)


def test_a_bad_experiment_file_is_one_line(refused):
    assert "none.toml: No such file" in refused("run", "none.toml")
    Path("e.toml").write_text("strategies = ['fedavg'\n")
    assert "e.toml is not TOML" in refused("run", "e.toml")
    Path("e.toml").write_text("strategies = ['fedavg']\n[train]\nlearning_rate = 3\nlr = 0\n")
    said = refused("run", "e.toml")
    assert "e.toml: " in said
    assert "unknown key 'train.learning_rate'" in said
    assert "train.lr=0" in said
    Path("e.toml").write_text("rounds = 3\n")
    said = refused("run", "e.toml")
    assert "strategies is missing" in said
    assert "unknown key 'rounds': did you mean 'train.rounds'?" in said
    Path("e.toml").write_text("strategies = 'fedavg'\nseeds = [true]\ntrain.rounds = true\n")
    said = refused("run", "e.toml")
    for name in ("seeds=[True]", "train.rounds=True"):
        assert f"{name}: no key is true or false: give a number" in said


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["table", "mine", "--share", "5"], "5"),
        (["table", "mine", "--share", "few"], "few"),
        (["flower", "demo", "--sites", "0"], "0"),
        (["watch", "mine", "--port", "99999"], "99999"),
        (["reproduce", "table1-grid", "--rounds", "1.5"], "1.5"),
    ],
)
def test_a_number_out_of_range_is_shown(words, value, refused):
    said = refused(*words)
    assert re.search(rf"'{words[-2]}': '?{value}\b", said)
    assert "Input" not in said


def test_a_folder_in_use_for_something_else_is_left_alone(call, refused, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, *QUICK, "--out"]
    Path("thesis").mkdir()
    Path("thesis", "chapter1.tex").write_text("")
    assert "no run folder" in refused(*words, "thesis")
    Path("notes").write_text("")
    assert "notes" in refused(*words, "notes")
    assert call(*words, "done").code == 0
    other = [w if w != "fedavg" else "afl" for w in words]
    assert "holds another experiment, in strategies: choose another --out" in refused(
        *other, "done"
    )
    assert "is finished" in refused("resume", "done")
    assert "is no run folder" in refused("resume", "nowhere")
    assert "is no run folder" in refused("table", "nowhere")
    assert "thesis" in refused("table", "thesis")
    assert "--at" in refused("table", "done", "--at", "never")
    assert "--share" in refused("table", "done", "--share", "3")
    assert "unknown list 'strategy': did you mean 'strategies'" in refused("list", "strategy")
    assert "No such command" in refused("comparee", "fedavg")
    next(Path("done", "clients").iterdir()).unlink()
    assert "done" in refused("table", "done")


# --- stops -------------------------------------------------------------------------------------

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


def test_a_run_survives_signals_and_ends_in_the_same_bytes(call, tiny_npz):
    Path("slow_model.py").write_text(SLOW)
    env = {**os.environ, "SLOW": "yes"}
    words = ["compare", "fedmaba", "fedfv", "--data", str(tiny_npz), *LONG]

    stopped = interrupted([*words, "--out", "broken"], signal.SIGTERM, env)
    assert stopped.code == 130, stopped.err
    assert stopped.out == ""
    last = stopped.err.splitlines()[-1]
    done = int(
        re.fullmatch(r"stopped after round (\d+); go on with: fedmaba resume broken --trust", last)[
            1
        ]
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
    assert answer.err == told + "stopped after round 1; go on with: fedmaba resume mine\n"
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


# --- without torch -----------------------------------------------------------------------------

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Block())
"""


def test_without_torch_strategies_work_and_simulating_names_the_remedy(tmp_path, tiny_npz):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code = (
        "import numpy as np, fedmaba\n"
        "from fedmaba.strategies.base import Replies\n"
        "s = fedmaba.FedMABA()\n"
        "who = np.arange(3)\n"
        "r = Replies(0, 0.1, 3, who, who + 5, np.array([1.0, 2.0, 3.0]))\n"
        "d = s.weigh(s.init(3), r)\n"
        "assert abs(d.coef.sum() - 1) < 1e-12 and d.coef[2] > d.coef[0]\n"
        "fedmaba.Federation, fedmaba.fairness, fedmaba.load_history\n"
        "try: import torch\n"
        "except ModuleNotFoundError: print('blocked')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.stdout == "blocked\n", done.stderr
    for words in (["compare", "fedavg", "--data", str(tiny_npz)], ["list", "models"]):
        done = subprocess.run(
            [*COMMAND, *words], capture_output=True, text=True, env=env, cwd=tmp_path
        )
        assert done.returncode == 2
        assert done.stdout == ""
        assert re.fullmatch(r"fedmaba: [^\n]*pip install '\.\[sim\]'\n", done.stderr)
    listed = subprocess.run(
        [*COMMAND, "list", "strategies"], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert listed.returncode == 0
    assert "fedmaba" in listed.stdout
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["sitecustomize.py"]


@pytest.mark.parametrize("there", [True, False])
def test_an_app_that_does_not_fit_on_the_disk_leaves_nothing(there, call, refused, monkeypatch):
    folder, write = Path("app"), Path.write_text
    if there:
        folder.mkdir()

    def full(path, text, **how):
        write(path, "" if path.name == "server_app.py" else text, **how)
        if path.name == "server_app.py":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert "No space left" in refused("flower", "new", folder, code=74)
    assert call("flower", "new", folder).code == 0
