"""The command line as a user meets it: help, lists, runs and tables.

Most calls run in this process; those that need one of their own (no torch, speed) get it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba import strategies
from fedmaba.data import datasets
from fedmaba.deploy.flower_app.net import NetError
from fedmaba.errors import FedmabaError
from fedmaba.experiment import config, experiment_file
from fedmaba.results.run_folder import load_history


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
    names = [line.split()[0] for line in answer.out.splitlines() if line[0] != " "]
    assert len(set(names)) == len(names)
    if what == "strategies":
        assert names == [*strategies.REGISTRY]


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
    for out, sign in ((text, "−"), (tex, "-")):  # a screen shows the sign, LaTeX makes it
        assert shown.replace("-", sign) in out
        assert "last server model, at the last round: difference to fedavg" in out.lower()
    assert tex.count(r"\begin{tabular}") == 2
    assert "Holm's correction for 2 rows" in tex
    line = next(x for x in listed.splitlines() if x.startswith("differences,afl,worst 50 %,"))
    assert float(line.split(",")[3]) == pytest.approx(mean)
    plain = call(*asked[:-2], "--to", "markdown").out
    assert "difference to" not in plain
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
    assert taken.code == 0
    assert f"{mean.accuracy:.2f}" in taken.out


def test_runs_without_a_folder_are_numbered(call, tiny_npz):
    for number in ("001", "002"):
        answer = call("compare", "fedavg", "--data", tiny_npz, *QUICK)
        assert f"results: runs/tiny-{number}" in answer.out
        assert (Path("runs") / f"tiny-{number}" / "runs.json").exists()


def test_run_takes_a_file_and_options_override_it(call, tiny_npz):
    Path("e.toml").write_text(
        f'strategies = ["fedavg", "afl"]\nseeds = 1\nmodel = "softmax"\n'
        f'[data]\nname = "{tiny_npz}"\n[train]\nrounds = 50\nminibatch = 5\n'
        f'[machine]\ndevice = "cpu"\n[save]\nout = "a"\n'
    )
    answer = call("run", "e.toml", "--rounds", "3", "--set", "train.lr=0.02", "--quiet")
    assert answer.code == 0
    asked = config.build(experiment_file.read_toml(Path("a") / "experiment.toml"))
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
        "import sys, fedmaba.cli\n"
        "for words in ('list strategies', 'compare fedavg --data ' + sys.argv[1], 'list models'):\n"
        "    sys.argv[1:] = words.split()\n"
        "    try: fedmaba.cli.main()\n"
        "    except SystemExit as end: print(words.split()[0], 'ended with', end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tiny_npz], capture_output=True, text=True, env=env,
        cwd=tmp_path,
    )  # fmt: skip
    first, *listed, good, compared, models = done.stdout.splitlines()
    assert first == "blocked", done.stderr
    assert any("fedmaba" in line for line in listed)
    ends = ["list ended with None", "compare ended with 2", "list ended with 2"]
    assert [good, compared, models] == ends
    assert re.fullmatch(r"(fedmaba: [^\n]*pip install '\.\[sim\]'\n){2}", done.stderr)
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["sitecustomize.py"]
