"""The targets of `fedmaba reproduce`: what they are, how they are scaled and listed."""

import re
import subprocess
import sys

import numpy as np
import pytest
import reproduction_cases
from reproduction_cases import RESULTS, made, save
from rich.console import Console

from fedmaba import cli
from fedmaba.errors import InputError
from laboratory import display, targets
from laboratory import run as reproduce
from laboratory.targets import Scale


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    return reproduction_cases.command(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("figure1a", "table2-fashion-mnist"),
        ("figure1b", "table2-cifar10-partial"),
        ("figure1b-all", "table2-cifar10"),
        ("table2-fashion-mnist-validation", "table1-grid"),
    ],
)
def test_targets_share_runs_of_the_same_settings(part, whole):
    small, large = targets.load_target(part).jobs[0], targets.load_target(whole).jobs[0]
    assert small.digest == large.digest
    assert set(small.runs) <= set(large.runs)


def test_what_decides_the_numbers_is_in_the_digest():
    base = targets.load_target("table2-fashion-mnist").jobs[0]
    digests = {base.digest}
    for change in ({"rounds": 5}, {"quick": True}):
        digests.add(targets.load_target("table2-fashion-mnist", Scale(**change)).jobs[0].digest)
    digests |= {
        targets.load_target(name).jobs[0].digest for name in ("table2-cifar10", "table1-grid")
    }
    assert len(digests) == 5
    moved = base.experiment.model_copy(update={"machine": targets.parse_machine("cuda", "bf16")})
    assert targets.digest(targets.settings(moved)) == base.digest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2", {0, 1}),
        ("8-20,1", {1, 8, 9}),
        ("12", {*range(12)}),
    ],
)
def test_seeds_are_a_number_or_some_of_the_targets_own(text, found):
    (job,) = targets.load_target(
        "table2-fashion-mnist", Scale(seeds=targets.parse_seeds(text))
    ).jobs
    assert {key.seed for key in job.runs} == found
    whole = f"{len(set(job.runs) & job.every)} of {len(job.every)} runs"
    assert targets.changes(job) == []
    assert targets.part(job) == (whole if len(job.runs) < len(job.every) else "")


def test_only_takes_names_and_whole_rows():
    asked = targets.parse_row_names("fedavg,fedmaba:alpha=0.8,eta_b=0.5, term")
    assert asked == ("fedavg", "fedmaba:alpha=0.8,eta_b=0.5", "term")
    (job,) = targets.load_target("table2-fashion-mnist", Scale(only=asked)).jobs
    assert {key.label for key in job.runs} == {
        *("fedavg", "fedmaba:alpha=0.8", "term", "term:normalise=reference"),
    }


@pytest.mark.parametrize("name", targets.names())
def test_quick_is_small_for_every_target(name):
    jobs = targets.load_target(name, Scale(quick=True)).every_job()
    works = [reproduce.PendingBatch(name, job, job.runs) for job in jobs]
    rounds = {job.experiment.train.rounds for job in jobs}
    assert sum(w.updates for w in works) <= targets.QUICK or rounds == {3}
    real = name.startswith("natural-") or name == "privacy"
    own = {targets.load_target(name).jobs[0].experiment.data.name} if real else ()
    assert {job.experiment.data.name for job in jobs} == set(own or ["sample"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table4"], "unknown target 'table4'"),
        (["figure1a", "--rounds", "0"], "'--rounds'"),
        (["figure1b", "--seeds", "7,"], "leave no run: its seeds are 0 to 2"),
        (["figure1a", "--only", "fedavgg"], "unknown row 'fedavgg': did you mean 'fedavg'"),
        (["figure1a", "--only", "fedmaba:alpha=2"], "alpha"),
        (["figure1a", "--batch", "3/2"], "--batch 3/2"),
        (["figure1a", "--quick", "--device", "tpu"], "device='tpu': say auto"),
        (["figure1a", "--without", "claims"], "--without claims: figure1a does not use it"),
        (["figure1a", "--from", ".", "--device", "cuda"], "--device with --from, which runs"),
        (["figure1a", "--from", ".", "--dtype", "tf32"], "--dtype with --from, which runs"),
        (["figure1a", "--from", ".", "--batch", "1/2"], "--batch with --from, which runs"),
        (["figure1a", "--from", "nowhere"], "nowhere is no folder"),
        (["--quick"], "--quick without a target: name one, or leave it out"),
        (["figure1a", "--from", "."], "none of its runs is there: name their folder with --from"),
        (["figure1a", "--from", "."], "or run `fedmaba reproduce figure1a`\n"),
        (["figure1a", "--from", ".", "--rounds", "50"], "reproduce figure1a --rounds 50`\n"),
        (["figure1a", "--from", ".", "--quick"], "`fedmaba reproduce figure1a --quick --rounds"),
        (["figure1a", "--from", ".", "--seeds", "0-1"], "figure1a --seeds 0,1,`\n"),
        (["figure1a", "--from", ".", "--only", "fedavg"], "figure1a --only fedavg`\n"),
        (["figure1a", "--only", ""], "--only is empty: give it a value, or leave it out"),
        (["figure1a", "--only", " "], "--only ' ': it names no row: name one, or leave it out"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, said, call, tmp_path):
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"fedmaba: [^\n]+\n", err), err
    assert said in err
    assert not list(tmp_path.iterdir())


def listed(out):
    """The lines of a list of targets, by name: runs, held, client updates, title."""
    head, *lines, last = out.splitlines()
    assert head.split() == ["target", "runs", "held", "client", "updates"]
    rows = [line.split(maxsplit=4) for line in lines]
    sizes = {name: [int(n.replace(",", "")) for n in rest[:3]] + rest[3:] for name, *rest in rows}
    return sizes, last


def test_without_a_target_all_are_listed_with_their_work(call):
    code, out, _ = call()
    assert code == 0
    sizes, last = listed(out)
    assert list(sizes) == targets.names()
    assert last.startswith("held: runs in runs/reproduce; ")
    for target, (name, size) in zip(targets.every_target(), sizes.items(), strict=True):
        runs, held, updates, title = size
        works = [reproduce.PendingBatch(name, job, job.runs) for job in target.every_job()]
        assert title == target.view.title
        if name.startswith(("baselines", "equal", "real")):  # fresh runs of picks come on top
            continue
        assert (runs, held) == (sum(len(work.runs) for work in works), 0)
        assert updates == sum(w.updates for w in works)
    trials, fresh = 112 * 2, 28 * 10
    many = trials + fresh
    assert sizes["baselines-fashion-mnist-partial"][:3] == [many, 0, many * 10 * 400]
    assert sizes["table2-fashion-mnist"][:3] == [94, 0, 94 * 100 * 1000]
    assert sizes["table2-fashion-mnist-partial"][:3] == [90, 0, 45 * 10 * 1000]  # two models each
    assert sizes["table3-cifar100-partial"][:3] == [45, 0, 45 * 10 * 2000]
    assert sizes["all"][0] < sum(size[0] for size in sizes.values()) / 2  # shared runs count once


@pytest.mark.slow
def test_the_list_says_what_a_folder_holds(call, monkeypatch, capsys, tmp_path):
    """A run is held for every target that shows it; cut-down ones are other runs."""
    (tmp_path / "some").mkdir()
    few = ("figure1b", Scale(seeds=2, only=("fedavg", "fedmaba")))
    for name, scale in (few, ("figure1a", Scale(rounds=7))):
        (job,) = targets.load_target(name, scale).jobs
        runs = [made(k.label, k.seed, np.full(4, 9), 1, deploy=k.deploy) for k in job.runs]
        save(tmp_path / "some" / f"{name}.npz", job, runs)
    for words in (["--out", "some"], ["--from", "some", "--out", "none"]):
        sizes, last = listed(call(*words)[1])
        held = {name: size[1] for name, size in sizes.items() if size[1]}
        shared = ("table2-cifar10-partial", "figure1b", "claims", "all")
        assert held == dict.fromkeys(shared, 6)
        assert last.startswith("held: runs in some")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "some").rename(tmp_path / "runs" / "reproduce")
    _, out, _ = call()
    assert listed(out)[0]["figure1b"][1] == 6
    monkeypatch.setattr("sys.argv", ["fedmaba", "list", "targets"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    "width", [80, *(pytest.param(w, marks=pytest.mark.slow) for w in (100, 200))]
)
def test_the_list_fits_the_terminal(width, monkeypatch, capsys, tmp_path):
    """Titles stand beside where there is room, else below, and nothing is cut."""
    monkeypatch.setattr(display, "screen", lambda: Console(width=width, force_terminal=True))
    display.show_targets(tmp_path)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in plain.splitlines()][:-1]
    assert max(map(len, lines)) <= width
    assert (len(lines) == 1 + len(targets.names())) == (width == 200)
    whole = " ".join(plain.split())
    for target in targets.every_target():
        assert any(line.split()[0] == target.name for line in lines)
        assert target.view.title in whole


@pytest.mark.slow
def test_listing_targets_wants_neither_torch_nor_tables():
    code = (
        "import sys; from pathlib import Path; from fedmaba import cli;"
        "from fedmaba.experiment import laboratory;"
        "display = laboratory.enter('display');"
        "display.show_targets(Path('.'), Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    words = [sys.executable, "-c", code, RESULTS]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs, held, *_ = listed(done.stdout)[0]["table2-fashion-mnist"]
    assert runs == held


def test_targets_can_be_left_out_of_all():
    every = {t.name for t in targets.load_target("all").uses}
    some = targets.load_target("all", targets.Scale(without=("table1-grid", "table2-cifar10")))
    assert every - {t.name for t in some.uses} == {"table1-grid", "table2-cifar10"}
    assert not [t for u in some.uses for t in u.uses if t.name == "table2-cifar10"]
    with pytest.raises(InputError, match="did you mean 'table1-grid'"):
        targets.load_target("all", targets.Scale(without=("table1-gird",)))
