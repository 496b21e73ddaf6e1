"""`fedmaba reproduce`: targets, compact histories, tables beside the paper's, stops and merges."""

import csv
import io
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedmaba import cli
from fedmaba.errors import InputError, NoRoom
from fedmaba.experiment import config
from fedmaba.report import document, paired, terminal
from fedmaba.report.paired import Interval
from fedmaba.reproduction import archive, claims, display, drawing, paper, targets
from fedmaba.reproduction import page as reproduction
from fedmaba.reproduction import run as reproduce
from fedmaba.reproduction.targets import Key, Scale
from fedmaba.results import run_folder, selection
from fedmaba.results.history import History, RunHistory
from fedmaba.results.selection import CHOICES

ROOT = Path(__file__).parents[1]
TINY = ["--quick", "--rounds", "2", "--seeds", "2", "--only", "fedavg,fedmaba,afl:lam=0.5"]
CPU = config.parse_machine("cpu", "float32")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line here, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words):
        monkeypatch.setattr("sys.argv", ["fedmaba", "reproduce", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


# --- targets -----------------------------------------------------------------------------------


def test_every_target_of_the_issue_is_there_and_loads():
    wanted = {
        *("table1-grid", "table2-fashion-mnist", "table2-cifar10", "table3-cifar100", "figure1a"),
        *("figure1b", "figure1b-all", "figure2-eta_b", "figure2-alpha"),
        *("claims", "readings", "attacks", "all"),
    }
    names = targets.names()
    assert wanted <= set(names)
    for name in names:
        target = targets.load(name)
        assert target.every_job()
        assert all(targets.changes(job) == [] for job in target.every_job())
        assert not any(map(targets.part, target.every_job()))
    asked = {n for n in names if "-dirichlet" in n or "-coarse" in n} | {"attacks"}  # for by name
    assert {t.name for t in targets.load("all").uses} == set(names) - {"all"} - asked


def settings(name):
    return targets.load(name).jobs[0].experiment


def test_the_set_up_is_the_one_the_text_gives():
    one = settings("table2-fashion-mnist")
    assert (one.data.name, one.data.clients, one.data.partition, one.data.test) == (
        *("fashion-mnist", 100, "shards:2", "official"),
    )
    train = one.train
    assert (train.rounds, train.participants, train.epochs, train.minibatch) == (1000, "all", 1, 50)
    assert (train.lr, train.lr_decay, one.eval.every, one.model) == (0.1, 0.999, 10, "mlp")
    two = settings("table2-cifar10")
    assert (two.data.name, two.train.rounds, two.train.participants) == ("cifar10", 2000, "all")
    assert (two.model, two.data.partition) == ("cnn", "shards:2")
    assert settings("table2-cifar10-partial").train.participants == 10
    assert settings("table3-cifar100").data.partition == "dirichlet:0.5"
    for name in ("table2-fashion-mnist", "table2-cifar10"):
        assert settings(f"{name}-dirichlet").data.partition == "dirichlet:0.5"
        assert settings(f"{name}-dirichlet-partial").train.participants == 10


def test_the_rows_and_seeds_are_those_asked_for():
    (job,) = targets.load("table2-fashion-mnist").jobs
    seeds = {label: sum(key.label == label for key in job.runs) for label in job.strategies}
    ten = {"fedavg", "term", "term:normalise=reference", "afl", "afl:lam=0.5", "fedmaba"}
    ten |= {"fedmaba:alpha=0.8"}
    three = {"fedsgd", "qffl", "fedmgda", "fedmgda:eta=0.1", "propfair", "propfair:below=scaled"}
    three |= {"fedprox", "fedfv"}
    assert seeds == dict.fromkeys(ten, 10) | dict.fromkeys(three, 3)
    (job,) = targets.load("table2-fashion-mnist-partial").jobs
    assert {key.deploy for key in job.runs} == {"ema:0.98", "poly:8"}
    (job,) = targets.load("table2-cifar10-partial").jobs
    assert {key.deploy for key in job.runs} == {"ema:0.98"}
    assert len(job.runs) == 45


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
    small, large = targets.load(part).jobs[0], targets.load(whole).jobs[0]
    assert small.digest == large.digest
    assert set(small.runs) <= set(large.runs)


def test_what_decides_the_numbers_is_in_the_digest():
    base = targets.load("table2-fashion-mnist").jobs[0]
    digests = {base.digest}
    for change in ({"rounds": 5}, {"quick": True}):
        digests.add(targets.load("table2-fashion-mnist", Scale(**change)).jobs[0].digest)
    digests |= {targets.load(name).jobs[0].digest for name in ("table2-cifar10", "table1-grid")}
    assert len(digests) == 5
    moved = base.experiment.model_copy(update={"machine": config.parse_machine("cuda", "bf16")})
    assert targets.digest(targets.settings(moved)) == base.digest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2", {0, 1}),
        ("0,2", {0, 2}),
        ("3-9", {3, 4, 5, 6, 7, 8, 9}),
        ("2,", {2}),
        ("8-20,1", {1, 8, 9}),
        ("12", {*range(12)}),
    ],
)
def test_seeds_are_a_number_or_some_of_the_targets_own(text, found):
    (job,) = targets.load("table2-fashion-mnist", Scale(seeds=config.parse_seeds(text))).jobs
    assert {key.seed for key in job.runs} == found
    whole = f"{len(set(job.runs) & job.every)} of {len(job.every)} runs"
    assert targets.changes(job) == []
    assert targets.part(job) == (whole if len(job.runs) < len(job.every) else "")


def test_only_takes_names_and_whole_rows():
    asked = targets.words("fedavg,fedmaba:alpha=0.8,eta_b=0.5, term")
    assert asked == ("fedavg", "fedmaba:alpha=0.8,eta_b=0.5", "term")
    (job,) = targets.load("table2-fashion-mnist", Scale(only=asked)).jobs
    assert {key.label for key in job.runs} == {
        *("fedavg", "fedmaba:alpha=0.8", "term", "term:normalise=reference"),
    }


@pytest.mark.parametrize("name", targets.names())
def test_quick_is_small_for_every_target(name):
    jobs = targets.load(name, Scale(quick=True)).every_job()
    works = [reproduce.PendingBatch(name, job, job.runs) for job in jobs]
    rounds = {job.experiment.train.rounds for job in jobs}
    assert sum(w.updates for w in works) <= targets.QUICK or rounds == {3}
    assert {job.experiment.data.name for job in jobs} == {"sample"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table4"], "unknown target 'table4'"),
        (["figure1a", "--rounds", "0"], "'--rounds'"),
        (["figure1a", "--rounds", "many"], "'--rounds'"),
        (["figure1a", "--seeds", "none"], "seeds='none': write a count"),
        (["figure1a", "--seeds", "0"], "seeds=0: give at least one"),
        (["figure1a", "--seeds", "0-99999999999"], "name at most 10000"),
        (["figure1b", "--seeds", "7,"], "leave no run: its seeds are 0 to 2"),
        (["figure1a", "--only", "fedavgg"], "unknown row 'fedavgg': did you mean 'fedavg'"),
        (["figure1a", "--only", "fedmaba:alpha=2"], "alpha"),
        (["figure1a", "--batch", "3/2"], "--batch 3/2"),
        (["figure1a", "--dtype", "int8"], "'--dtype'"),
        (["figure1a", "--quick", "--device", "tpu"], "device='tpu': say auto"),
        (["figure1a", "--without", "claims"], "--without claims: figure1a does not use it"),
        (["figure1a", "--from", ".", "--device", "cuda"], "--device with --from, which runs"),
        (["figure1a", "--from", ".", "--dtype", "tf32"], "--dtype with --from, which runs"),
        (["figure1a", "--from", ".", "--batch", "1/2"], "--batch with --from, which runs"),
        (["figure1a", "--from", "nowhere"], "nowhere is no folder"),
        (["table3"], "unknown target 'table3': did you mean 'table3-cifar100'?"),
        (["--from", "nowhere"], "nowhere is no folder"),
        (["--quick"], "--quick without a target: name one, or leave it out"),
        (["--seeds", "2"], "--seeds without a target"),
        (["--from", ".", "--dtype", "bf16"], "--dtype without a target"),
        (["figure1a", "--from", "."], "none of its runs is there: name their folder with --from"),
        (["figure1a", "--from", "."], "or run `fedmaba reproduce figure1a`\n"),
        (["figure1a", "--from", ".", "--rounds", "50"], "reproduce figure1a --rounds 50`\n"),
        (["figure1a", "--from", ".", "--quick"], "`fedmaba reproduce figure1a --quick --rounds"),
        (["figure1a", "--from", ".", "--seeds", "0-1"], "figure1a --seeds 0,1,`\n"),
        (["figure1a", "--from", ".", "--only", "fedavg"], "figure1a --only fedavg`\n"),
        (["figure1a", "--only", ""], "--only is empty: give it a value, or leave it out"),
        (["figure1a", "--only", " "], "--only ' ': it names no row: name one, or leave it out"),
        (["figure1a", "--seeds", ""], "--seeds is empty"),
        (["figure1a", "--batch", ""], "--batch is empty"),
        (["figure1a", "--from="], "--from is empty"),
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
    for name, (runs, held, updates, title) in sizes.items():
        target = targets.load(name)
        works = [reproduce.PendingBatch(name, job, job.runs) for job in target.every_job()]
        assert (runs, held) == (sum(len(work.runs) for work in works), 0)
        assert (updates, title) == (sum(w.updates for w in works), target.view.title)
    assert sizes["table2-fashion-mnist"][:3] == [94, 0, 94 * 100 * 1000]
    assert sizes["table2-fashion-mnist-partial"][:3] == [90, 0, 45 * 10 * 1000]  # two models each
    assert sizes["table3-cifar100-partial"][:3] == [45, 0, 45 * 10 * 2000]
    assert sizes["all"][0] < sum(size[0] for size in sizes.values()) / 2  # shared runs count once


def test_the_list_says_what_a_folder_holds(call, monkeypatch, capsys, tmp_path):
    """A run is held for every target that shows it; cut-down ones are other runs."""
    (tmp_path / "some").mkdir()
    few = ("figure1b", Scale(seeds=2, only=("fedavg", "fedmaba")))
    for name, scale in (few, ("figure1a", Scale(rounds=7))):
        (job,) = targets.load(name, scale).jobs
        runs = [made(k.label, k.seed, np.full(4, 9), 1, deploy=k.deploy) for k in job.runs]
        save(tmp_path / "some" / f"{name}.npz", job, runs)
    for words in (["--from", "some"], ["--out", "some"], ["--from", "some", "--out", "none"]):
        sizes, last = listed(call(*words)[1])
        held = {name: size[1] for name, size in sizes.items() if size[1]}
        shared = ("table2-cifar10-partial", "figure1b", "claims", "all")
        assert held == dict.fromkeys(shared, 6)
        assert last.startswith("held: runs in some")
    assert {size[1] for size in listed(call("--out", "none")[1])[0].values()} == {0}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["some"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "some").rename(tmp_path / "runs" / "reproduce")
    _, out, _ = call()
    assert listed(out)[0]["figure1b"][1] == 6
    monkeypatch.setattr("sys.argv", ["fedmaba", "list", "targets"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().out == out


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_list_fits_the_terminal(width, monkeypatch, capsys, tmp_path):
    """Titles stand beside where there is room, else below, and nothing is cut."""
    monkeypatch.setattr(display, "screen", lambda: Console(width=width, force_terminal=True))
    display.targets(tmp_path)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    lines = [line.rstrip() for line in plain.splitlines()][:-1]
    assert max(map(len, lines)) <= width
    assert (len(lines) == 1 + len(targets.names())) == (width == 200)
    whole = " ".join(plain.split())
    for name in targets.names():
        assert any(line.split()[0] == name for line in lines)
        assert targets.load(name).view.title in whole


def test_listing_targets_wants_neither_torch_nor_tables():
    code = (
        "import sys; from pathlib import Path; from fedmaba import cli;"
        "from fedmaba.reproduction import archive, display; archive._run = None;"
        "display.targets(Path('.'), Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    words = [sys.executable, "-c", code, ROOT / "results"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    runs, held, *_ = listed(done.stdout)[0]["table2-fashion-mnist"]
    assert runs == held


# --- compact histories -------------------------------------------------------------------------


def made(label, seed, size, evaluations=6, deploy="poly:8", held=None, diverged=""):
    """A run with random but possible accuracies."""
    rng = np.random.default_rng(zlib.crc32(f"{label} {seed}".encode()))
    run = RunHistory(label, seed, deploy, size, diverged)
    if evaluations:
        run.tables["evaluated"] = [np.int64(10 * (e + 1)) for e in range(evaluations)]
    sizes = {"last": size, "deployed": size} | ({} if held is None else {"last_validation": held})
    for model, many in sizes.items() if evaluations else ():
        right = rng.integers(0, many + 1, (evaluations, len(many)))
        with np.errstate(invalid="ignore"):  # some may have no examples
            run.tables[f"{model}.accuracy"] = list(right / many)
        run.tables[f"{model}.loss"] = list(np.full(right.shape, np.nan))
    return run


ABOUT = {
    "target": "t",
    "seconds": 7.5,
    "dtype": "tf32",
    "device": "a machine",
    "versions": {"fedmaba": "0", "python": "3", "numpy": "2", "torch": "2"},
    "command": "fedmaba reproduce t",
}


def save(path, job, runs, held=None):
    held = np.zeros(len(runs[0].test_size), int) if held is None else held
    archive.write(path, runs, [held] * len(runs), ABOUT | {"settings": job.settings})


@pytest.mark.parametrize("most", [100, 255, 256, 700, 35_000, 100_000])
def test_accuracies_come_back_exactly(most, tmp_path):
    size = np.random.default_rng(0).integers(1, most + 1, 20)
    size[0], held = most, np.arange(1, 21)
    job = targets.load("figure1a").jobs[0]
    runs = [
        made("fedavg", 0, size, held=held),
        made("fedmaba", 0, size, 2, held=held, diverged="fedmaba, seed 0, diverged in round 21"),
        made("afl", 1, size, 0, deploy="average", diverged="afl, seed 1, diverged in round 2"),
    ]
    save(tmp_path / "x.npz", job, runs, held)
    batch = archive.read_file(tmp_path / "x.npz")
    assert batch.digest == job.digest
    assert batch.keys == (
        *(Key("fedavg", 0, "poly:8"), Key("fedmaba", 0, "poly:8"), Key("afl", 1, "average")),
    )
    for run, again in zip(runs, batch.runs.values(), strict=True):
        assert again.diverged == run.diverged
        assert (again.test_size == size).all()
        assert again.tables.keys() >= run.tables.keys()
        for name in run.tables:
            assert np.array_equal(run.column(name), again.column(name), equal_nan=True), name


def test_a_damaged_file_is_one_line(tmp_path):
    job, path = targets.load("figure1a").jobs[0], tmp_path / "x.npz"
    size = np.full(20, 100)
    save(path, job, [made("fedavg", 0, size)])
    good, rng, told = path.read_bytes(), np.random.default_rng(0), []
    for _ in range(150):
        bad = bytearray(good)
        if rng.random() < 0.3:
            bad = bad[: rng.integers(len(good))]
        else:
            bad[rng.integers(len(good))] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        try:
            assert len(archive.read_file(path).runs) == 1
        except InputError as error:
            told.append(str(error))
    assert len(told) > 50
    assert not any("\n" in text for text in told)
    np.savez(path, about=np.frombuffer(b'{"format": 2}', np.uint8))
    with pytest.raises(InputError, match="format=2: it should be 1"):
        archive.read_file(path)


def test_the_same_run_twice_is_refused_and_parts_are_merged(tmp_path):
    job, size = targets.load("figure1a").jobs[0], np.full(20, 100)
    save(tmp_path / "a.npz", job, [made("fedavg", 0, size)])
    save(tmp_path / "b.npz", job, [made("fedavg", 1, size), made("fedmaba", 1, size)])
    history, used, missing = archive.collect(archive.read_folder(tmp_path), job)
    assert [(r.label, r.seed) for r in history.runs] == [
        *(("fedavg", 0), ("fedavg", 1), ("fedmaba", 1)),
    ]
    assert len(used) == 2
    assert len(missing) == len(job.runs) - 3
    save(tmp_path / "c.npz", job, [made("fedavg", 1, size)])
    with pytest.raises(InputError, match="both hold fedavg, seed 1: keep one"):
        archive.read_folder(tmp_path)


# --- from the command to the files -------------------------------------------------------------


def test_a_target_from_the_command_to_every_file(call, tmp_path):
    code, out, err = call("table2-fashion-mnist", *TINY, "--out", "mine")
    assert code == 0, err
    assert "CUT-DOWN VERSION" in out
    assert "train.rounds 2 instead of 1000" in out
    assert "Deployed model" in out  # what the README speaks of
    assert " paper " not in out.split("Last server model")[1]  # nothing to compare
    assert "data.name sample instead of fashion-mnist" in out
    assert re.search(r"round 2/2, .* left", err)
    folder = tmp_path / "mine" / "quick" / "table2-fashion-mnist"
    names = {path.name for path in folder.iterdir()}
    images = {f"{k}{f}" for k in ("variance", "tradeoff") for f in (".png", ".svg", ".pdf")}
    assert names == {"table.md", "table.tex", "table.csv"} | images
    (file,) = (tmp_path / "mine").glob("*.npz")
    batch = archive.read_file(file)
    assert {key.label for key in batch.keys} == {
        *("fedavg", "fedmaba", "fedmaba:alpha=0.8", "afl:lam=0.5"),
    }
    assert batch.about["command"] == f"fedmaba reproduce table2-fashion-mnist {' '.join(TINY)}"
    assert batch.about["dtype"] == "float32"
    assert {*batch.about["versions"]} == {"fedmaba", "python", "numpy", "torch"}
    tex = (folder / "table.tex").read_text()
    assert r"\toprule" in tex
    assert r"\textbf{" in tex
    assert r"\textcolor{blue}{" in tex
    assert not re.search(r"(?<!\\)[&%#_](?![^\n]*\\\\)", re.sub(r"^%.*$", "", tex, flags=re.M))
    with (folder / "table.csv").open() as f:
        rows = list(csv.DictReader(f))
    ours = next(r for r in rows if (r["table"], r["row"]) == ("last", "FedAvg"))
    assert ours["column"] == "seeds"
    mean = next(
        float(r["value"])
        for r in rows
        if (r["table"], r["row"], r["column"]) == ("last", "FedAvg", "accuracy %")
    )
    runs = [run for key, run in batch.runs.items() if key.label == "fedavg"]
    assert mean == pytest.approx(100 * np.mean([run.accuracy("last")[-1] for run in runs]))
    # again: nothing left to run, the same pages; and so from the histories alone
    before = {path: path.read_bytes() for path in folder.iterdir()}
    code, again, err = call("table2-fashion-mnist", *TINY, "--out", "mine")
    assert (code, "round" in err) == (0, False)
    assert again == out
    code, again, _ = call("table2-fashion-mnist", *TINY, "--from", "mine", "--out", "other")
    assert again == out.replace("mine/", "other/")
    for path, content in before.items():
        assert path.read_bytes() == content
        assert (tmp_path / "other" / "quick" / folder.name / path.name).read_bytes() == content


def tiny(name="table2-fashion-mnist", rounds=3, seeds=2):
    return targets.load(name, Scale(rounds, seeds, ("fedavg", "fedmaba", "fedfv"), True))


def play(work, out, stop_after=None):
    batch = reproduce.begin(work, out, CPU)
    at = batch.session.batch.progress
    for _ in batch.rounds(lambda: stop_after is not None and at.round > stop_after):
        pass
    return batch


def test_an_interrupted_batch_goes_on_and_ends_in_the_same_numbers(tmp_path, call):
    (work,) = reproduce.plan(tiny(), tmp_path / "a")
    play(work, tmp_path / "a")
    stopped = play(work, tmp_path / "b", stop_after=0)
    assert stopped.stopped
    assert not list((tmp_path / "b").glob("*.npz"))
    told = "interrupted: table2-fashion-mnist (float32) after round 1; "
    assert told in call("--out", tmp_path / "b")[1]
    (again,) = reproduce.plan(tiny(), tmp_path / "b")
    assert again == work
    held = reproduce.begin(again, tmp_path / "b", CPU)
    assert held.seconds == pytest.approx(stopped.seconds)
    held.session.close()
    held.folder.close()
    other = reproduce.begin(again, tmp_path / "b", config.parse_machine("cpu", "float64"))
    assert other.session.batch.progress.round == 0  # of another precision: begun anew
    other.session.close()
    other.folder.discard()
    batch = play(again, tmp_path / "b")
    assert "resumed after round 1" in batch.session.notes
    assert batch.seconds > stopped.seconds
    whole, parts = (archive.read_folder(tmp_path / name)[0].runs for name in "ab")
    assert whole.keys() == parts.keys()
    for key, run in whole.items():
        for name in run.tables:
            assert np.array_equal(run.column(name), parts[key].column(name), equal_nan=True)
    assert reproduce.plan(tiny(), tmp_path / "b") == []
    for name in "ab":  # one had checkpoints, one was done before the first was due
        assert not list((tmp_path / name / "checkpoint").iterdir())
    assert "interrupted: " not in call("--out", tmp_path / "b")[1]


@pytest.mark.filterwarnings("ignore:fedmaba. ball=literal")
def test_data_are_read_once_for_batches_one_after_another(tmp_path, monkeypatch, call):
    read, load = [], reproduce.experiment.datasets.load
    monkeypatch.setattr(
        reproduce.experiment.datasets, "load", lambda *words: read.append(words) or load(*words)
    )
    asked = targets.load("readings", Scale(1, 1, ("fedmaba",), True))
    assert len(reproduce.plan(asked, tmp_path)) > 1
    words = ("--quick", "--rounds", "1", "--seeds", "1", "--only", "fedmaba")
    assert call("readings", *words, "--out", tmp_path)[0] == 0
    assert len(read) == 1
    digests = {batch.about["data"]["sha256"] for batch in archive.read_folder(tmp_path)}
    assert digests == {load("sample").sha256()}
    other = config.Data(name="cifar10")
    held = reproduce.LoadedData(config.Data(name="sample"), load("sample"), "")
    assert (held.fits(held.asked), held.fits(other)) == (True, False)


def test_what_is_held_for_the_next_batch_is_what_was_read(tmp_path):
    """Where clients flip labels, the batch trains on more than that."""
    asked = targets.load("attacks", Scale(1, 1, ("fedavg",), True))
    works = reproduce.plan(asked, tmp_path)
    does = [w.job.settings.get("attack", {}).get("does") for w in works]
    work = works[does.index("labels=flip")]
    batch = reproduce.begin(work, tmp_path, CPU)
    held = batch.loaded_data()
    batch.session.close()
    batch.folder.close()
    assert len(batch.session.batch.pool.x) > len(held.data.x)
    assert (
        held.sha256 == held.data.sha256() == reproduce.experiment.datasets.load("sample").sha256()
    )


@pytest.mark.slow
def test_a_batch_that_is_killed_goes_on_from_its_last_minutes(tmp_path, monkeypatch):
    (work,) = reproduce.plan(tiny(), tmp_path)
    for seconds, saved in ((reproduce.CHECKPOINT_SECONDS, []), (0, [3])):
        monkeypatch.setattr(reproduce, "CHECKPOINT_SECONDS", seconds)
        batch = reproduce.begin(work, tmp_path, CPU)
        for snapshot in batch.rounds():
            if snapshot.round == 2:
                break
        batch.folder.close()
        found = run_folder.checkpoints(batch.folder.path)
        assert [int(path.stem) for path in found][:1] == saved


def test_reproduce_under_torchrun_names_the_remedy(tmp_path, monkeypatch):
    (work,) = reproduce.plan(tiny(), tmp_path)
    going = reproduce.begin(work, tmp_path, CPU)
    going.session.close()
    going.folder.close()
    going.session.batch.ranks = SimpleNamespace(count=2)
    monkeypatch.setattr(reproduce.experiment, "prepare", lambda *words: going.session)
    with pytest.raises(InputError, match="--batch I/N"):
        reproduce.begin(work, tmp_path, CPU)


def showing(works, monkeypatch):
    """A display of batches, how one begins, what is said, and a clock that stands still."""
    stream, now = io.StringIO(), [50.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    show = display.Batches(works, None, Console(file=stream, width=160))

    def begin(work, done=0):
        asked, runs = (
            work.job.experiment,
            [SimpleNamespace(federation=SimpleNamespace(n_clients=20))],
        )
        batch = SimpleNamespace(
            progress=SimpleNamespace(round=done),
            plan=SimpleNamespace(rounds=asked.train.rounds, participants=None),
            runs=runs * len(work.runs),
            same={r: [r] for r in range(len(work.runs))},
        )
        show.begin(
            SimpleNamespace(work=work, session=SimpleNamespace(notes=[], faults=[], batch=batch))
        )

    return show, begin, stream, now


def test_time_left_of_a_target_is_at_the_pace_of_this_process(tmp_path, monkeypatch):
    (work,) = reproduce.plan(tiny(), tmp_path)
    show, begin, stream, now = showing([work, work], monkeypatch)
    begin(work, done=1)  # another process did the first round
    now[0] += 100  # kernels are compiled
    show.round(2)
    now[0] += 10
    show.round(3)  # a round in ten seconds, three left
    assert f"round 3/3, {2 * len(work.runs)} clients/s, 0:30 left" in stream.getvalue()


def test_time_left_knows_that_batches_to_come_are_dearer(tmp_path, monkeypatch):
    (work,) = reproduce.plan(tiny(), tmp_path)
    dear = work.job.experiment.model_copy(update={"model": "cnn"})
    later = replace(work, job=replace(work.job, experiment=dear))
    show, begin, stream, now = showing([work, later], monkeypatch)
    begin(work)
    for done in (1, 2, 3):
        now[0] += 10
        show.round(done)
    left = terminal.clock(30 * display.EFFORT["cnn"])
    assert stream.getvalue().rstrip().endswith(f" clients/s, {left} left")
    show.end(tmp_path / "saved.npz")
    begin(later)
    for done in (1, 2):
        now[0] += 11  # hardly dearer, as it turns out
        show.round(done)
    assert stream.getvalue().rstrip().endswith("0:11 left")


def test_parts_run_apart_are_the_whole(tmp_path):
    for i in (1, 2, 3):
        (work,) = reproduce.plan(tiny(), tmp_path / str(i), (i, 3))
        play(work, tmp_path / str(i))
    merged = tmp_path / "all"
    merged.mkdir()
    for path in tmp_path.glob("?/*.npz"):
        path.rename(merged / path.name)
    assert len(list(merged.iterdir())) == 3
    assert reproduce.plan(tiny(), merged) == []
    page = reproduction.document(tiny(), archive.read_folder(merged))
    assert not any("Not run yet" in text for text in page.text)


def test_runs_with_different_deployed_models_share_a_batch(tmp_path):
    (work,) = reproduce.plan(tiny("table2-fashion-mnist-partial"), tmp_path)
    play(work, tmp_path)
    (batch,) = archive.read_folder(tmp_path)
    for label in ("fedavg", "fedmaba"):
        a, b = (batch.runs[Key(label, 0, deploy)] for deploy in ("ema:0.98", "poly:8"))
        assert np.array_equal(a.accuracy("last"), b.accuracy("last"))
        assert not np.array_equal(a.accuracy("deployed"), b.accuracy("deployed"))
    page = reproduction.document(tiny("table2-fashion-mnist-partial"), [batch])
    names = {grid.name for grid in page.grids}
    assert {"last", "last-ema0.98", "last-poly8", "pairs-last-ema0.98"} <= names


# --- what is shown -----------------------------------------------------------------------------


def test_the_quantiles_and_intervals_are_students():
    for i, value in enumerate(paired.T95):
        assert value == pytest.approx(stats.t.ppf(0.975, i + 1), abs=5e-4)
    for free in (31, 50, 200, 10_000):
        assert paired._t95(free) == pytest.approx(stats.t.ppf(0.975, free), abs=1e-4)
    sample = [1.0, 2.5, 2.0]
    low, high = stats.t.interval(0.95, 2, np.mean(sample), stats.sem(sample))
    found = paired.interval(sample)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-3)
    assert found.seeds == 3
    assert not found.distinguishable
    assert paired.interval([1.0, 1.1, 0.9]).distinguishable
    assert not paired.interval([5.0]).distinguishable


@pytest.mark.parametrize("sample", [[-0.2] * 2, [0.3 - 0.5, 0.1 - 0.3, 0.7 - 0.9], [0.0] * 10])
def test_equal_differences_say_nothing_of_their_spread(sample):
    span = paired.interval(sample)
    assert not span.distinguishable
    assert span.text() == f"{sample[0]:+.2f} in every seed"
    assert claims.said(CLAIM, span) == f"{sample[0]:+.2f} % in every seed: no interval"
    moved = paired.interval([*sample, sample[0] + 1e-4])
    assert moved.bounded
    assert moved.distinguishable == (sample[0] != 0)


def test_a_table_does_not_call_equal_differences_distinguishable(tmp_path):
    (job,), size = targets.load("figure1a").jobs, np.full(20, 100)
    runs = [made("fedavg", seed, size) for seed in (0, 1)]
    for run in runs[:2]:
        right = 0.3 + 0.01 * np.arange(6)[:, None] + np.linspace(0, 0.19, 20)
        run.tables["last.accuracy"] = list(right + 0.1 * run.seed)
        more = right + 0.1 * run.seed + 0.02
        tables = run.tables | {"last.accuracy": list(more)}
        runs.append(RunHistory("fedmaba", run.seed, run.deploy, size, tables=tables))
    save(tmp_path / "x.npz", job, runs)
    page = reproduction.document(
        targets.load("table2-fashion-mnist"), archive.read_folder(tmp_path)
    )
    (row,) = grid(page, "pairs-last").rows
    shown = ["+0.00 in every seed", *["+2.00 in every seed"] * 3]
    assert [cell.text for cell in row] == ["FedMABA, α=0.5", "2", *shown, "all four"]


CLAIM = {"measure": "less", "number": 33}


@pytest.mark.parametrize(
    ("claim", "span", "said"),
    [
        (CLAIM, Interval(40, 20, 60, 3), "holds"),
        (CLAIM, Interval(20, 10, 30, 3), "smaller"),
        (CLAIM, Interval(30, 20, 40, 3), "within the interval"),
        (CLAIM, Interval(40, -1, 81, 3), "cannot tell"),
        (CLAIM, Interval(10, -1, 21, 3), "not distinguishable"),
        (CLAIM | {"at_least": True}, Interval(10, -1, 21, 3), "not contradicted"),
        (CLAIM, Interval(-20, -30, -10, 3), "contradicted"),
        (CLAIM, Interval(40, -np.inf, np.inf, 1), "one seed only"),
        (CLAIM, Interval(np.nan, -np.inf, np.inf, 0), "not run"),
        ({"measure": "times", "number": 1.5}, Interval(1.6, 1.2, 2.0, 3), "holds"),
        ({"measure": "times", "number": 1.5}, Interval(1.2, 0.9, 1.4, 3), "not distinguishable"),
        ({"measure": "times", "number": 1.5}, Interval(0.8, 0.7, 0.9, 3), "contradicted"),
    ],
)
def test_the_verdict_on_a_statement(claim, span, said):
    assert claims.verdict(claim, span) == said


def fill(folder, *names):
    """Histories of all runs of some targets, made up, at the paper's full settings."""
    folder.mkdir(exist_ok=True)
    jobs = {}
    for job in (job for name in names for job in targets.load(name).every_job()):
        jobs.setdefault(job.digest, (job, {}))[1].update(dict.fromkeys(job.runs))
    for digest, (job, keys) in jobs.items():
        held = np.full(20, 60) if job.experiment.data.validation != "0%" else None
        size = np.full(20, 100)
        runs = [made(k.label, k.seed, size, deploy=k.deploy, held=held) for k in keys]
        save(folder / f"{digest}.npz", job, runs, held)
    return archive.read_folder(folder)


def grid(page, name):
    return next(g for g in page.grids if g.name == name)


def test_some_seeds_of_a_target_with_variants_are_counted_over_all_of_them(tmp_path):
    target = targets.load("attacks", targets.Scale(seeds=2))
    job, size = target.jobs[0], np.full(20, 100)
    save(tmp_path / "x.npz", job, [made("fedavg", s, size) for s in (0, 1)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    assert "A part of it: 64 of 96 runs." in page.text
    (told,) = (text for text in page.text if text.startswith("Not run yet: "))
    assert told.startswith("Not run yet: nobody is hostile (6 of 8 runs); 10 % report a loss of a ")


def test_some_rows_of_a_table_are_no_cut_down_version(tmp_path):
    asked = targets.Scale(only=("fedavg", "fedmaba"))
    page = reproduction.document(
        targets.load("table2-fashion-mnist", asked), fill(tmp_path, "table2-fashion-mnist")
    )
    assert "A part of it: 30 of 94 runs." in page.text
    assert not any("CUT-DOWN" in text for text in page.text)
    assert "paper" in grid(page, "last").head


def test_our_table_stands_beside_the_papers(tmp_path):
    target = targets.load("table2-fashion-mnist")
    batches = fill(tmp_path, "table2-fashion-mnist")
    page = reproduction.document(target, batches)
    assert not any("CUT-DOWN" in text for text in page.text)
    table = grid(page, "last")
    place = {name: i for i, name in enumerate(table.head)}
    rows = {row[0].text: row for row in table.rows}
    assert len(rows) == 15
    term = rows["TERM, T=0.1 (code)"]
    at = place["accuracy %"]
    assert term[at + 1].text == "69.41"
    assert term[at + 2].value == pytest.approx(term[at].value - 69.41)
    assert rows["FedFV, α=0.1, τ=1"][at + 1].text == ""
    assert rows["FedAvg"][1].text == "10"
    # best of the column bold, second marked
    variance = {name: row[place["variance %²"]] for name, row in rows.items()}
    order = sorted(variance, key=lambda name: variance[name].value)
    assert [variance[name].rank for name in order[:3]] == [0, 1, 2]


def test_rounds_are_chosen_as_the_captions_say(tmp_path):
    target = targets.load("table2-fashion-mnist-validation")
    (job,) = target.jobs
    batches = fill(tmp_path, "table2-fashion-mnist-validation")
    history = archive.deployed_history(batches, job)
    run = next(r for r in history.runs if r.label == "fedavg" and r.seed == 1)
    last, held = run.accuracy("last"), run.column("last_validation.accuracy")
    want = {
        "last": last[-1].mean(),
        "best": last.mean(1).max(),
        "valid": last[held.mean(1).argmax()].mean(),
        "last5": last[-5:].mean(),
    }
    assert len({round(v, 6) for v in want.values()}) == 4
    for name, value in want.items():
        found = selection.values(history, "last", CHOICES[name])["fedavg"][1]
        assert found.accuracy == pytest.approx(100 * value), name
    assert {"best", "last", "valid", "last5"} <= {
        g.name for g in reproduction.document(target, batches).grids
    }


def test_differences_are_paired_by_seed(tmp_path):
    job, size = targets.load("figure1a").jobs[0], np.full(20, 100)
    runs = [made(label, seed, size) for label in ("fedavg", "fedmaba") for seed in (0, 1, 2)]
    runs.append(made("fedavg", 7, size))  # no partner
    found = selection.values(History(runs), "last", CHOICES["last"])
    ours, theirs = paired.pairs(
        *(selection.by_seed(found, row, "variance") for row in ("fedmaba", "fedavg"))
    )
    want = [
        [100**2 * np.var(r.accuracy("last")[-1]) for r in runs if r.label == label and r.seed < 3]
        for label in ("fedmaba", "fedavg")
    ]
    assert ours.tolist() == pytest.approx(want[0])
    assert theirs.tolist() == pytest.approx(want[1])
    assert job.strategies.keys() >= {"fedavg", "fedmaba"}


def test_a_row_before_fedavg_is_held_against_it_too(tmp_path):
    target, batches = targets.load("figure1a"), fill(tmp_path, "figure1a")
    (job,) = target.jobs
    turned = replace(job, strategies=dict(reversed(job.strategies.items())))
    tables = [
        grid(reproduction.document(replace(target, jobs=jobs), batches), "curve").rows
        for jobs in ([job], [turned])
    ]
    assert tables[0] == tables[1][::-1]
    assert [row[0].text for row in tables[0] if not row[-1].text] == ["FedAvg"]


def test_what_the_average_does_is_paired_by_run(tmp_path):
    batches = fill(tmp_path, "table2-cifar10-partial")
    target = targets.load("table2-cifar10-partial")
    table = grid(reproduction.document(target, batches), "gain-ema0.98")
    assert len(table.rows) == 15
    history = archive.collect(batches, target.jobs[0])[0]
    want = [
        100**2 * (np.var(r.accuracy("deployed")[-1]) - np.var(r.accuracy("last")[-1]))
        for r in history.runs
        if r.label == "fedavg"
    ]
    assert table.rows[0][0].text == "FedAvg"
    assert table.rows[0][2].value == pytest.approx(np.mean(want))
    assert np.mean(want) != 0


def test_a_statement_is_shown_with_its_unit_interval_and_verdict():
    show = claims.said
    span = Interval(1.6, 1.2, 2.0, 3)
    assert show({"measure": "times", "number": 1.5}, span) == "1.60 x [1.20, 2.00]: holds"
    assert show(CLAIM, Interval(20, 10, 30, 3)) == "+20.00 % [+10.00, +30.00]: smaller"
    assert show(CLAIM, Interval(np.nan, -np.inf, np.inf, 0)) == "not run"


def test_the_search_picks_by_its_rule(tmp_path):
    batches = fill(tmp_path, "table1-grid")
    page = reproduction.document(targets.load("table1-grid"), batches)
    rows = [[cell.text for cell in row] for row in grid(page, "grid").rows]
    by_name: dict[str, list[list[str]]] = {}
    for row in rows:
        by_name.setdefault(row[0].partition(":")[0], []).append(row)
    assert len(by_name["fedmaba"]) == 30
    for group in by_name.values():
        accuracy = [float(row[4].split()[0]) for row in group]
        variance = [float(row[3].split()[0]) for row in group]
        near = [v for a, v in zip(accuracy, variance, strict=True) if a >= max(accuracy) - 1]
        picked = [row for row in group if row[2] == "yes"]
        assert [float(row[3].split()[0]) for row in picked] == [min(near)]
    assert any(text.startswith("Rule: ") for text in page.text)


@pytest.mark.slow
def test_every_page_can_be_made_and_says_what_is_missing(tmp_path):
    batches, drawn = fill(tmp_path, *targets.names()), set()
    for name in targets.names():
        target = targets.load(name)
        page = reproduction.document(target, batches)
        assert not any("Not run yet" in text or "CUT-DOWN" in text for text in page.text), name
        text = document.markdown(page) + document.latex(page) + document.csv(page)
        assert "nan" not in text.lower().replace("finance", "")
        assert bool(page.grids) == (name != "all")
        for kind, make in page.figures.items():
            if (target.view.kind, kind) not in drawn:  # once for each kind of page
                assert make() is not None
                drawn.add((target.view.kind, kind))
    assert len(drawn) >= 5
    target = targets.load("table2-fashion-mnist")
    some = [b for b in batches if b.digest != target.jobs[0].digest]
    with pytest.raises(InputError, match="none of its runs is there"):
        reproduction.document(target, some)
    claims = reproduction.document(targets.load("claims"), some)
    told = {row[2].text: row[-1].text for row in grid(claims, "claims").rows}
    assert told["table2-fashion-mnist"] == "not run"
    assert told["table2-cifar10"] != "not run"
    assert any("Not run yet" in text for text in claims.text)
    fewer = targets.load("claims", targets.Scale(without=("table2-cifar10",)))
    rows = grid(reproduction.document(fewer, batches), "claims").rows
    told = {row[2].text: row[-1].text for row in rows}
    assert told["table2-cifar10"] == "left out"
    assert told["table2-fashion-mnist"] not in ("left out", "not run")


def test_runs_that_are_missing_are_listed_by_seeds_with_every_name(tmp_path):
    target = targets.load("figure1b-all")
    (job,), size = target.jobs, np.full(20, 100)
    save(tmp_path / "x.npz", job, [made("fedavg", s, size) for s in (0, 2)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    (told,) = (text for text in page.text if text.startswith("Not run yet: "))
    others = "FedMABA, α=0.5; FedMABA, α=0.8; FedFV, α=0.1, τ=1"
    assert f"seeds 0, 1, 2 of {others}, and seed 1 of FedAvg" in told


def test_a_run_that_diverged_is_told_and_left_out(tmp_path):
    target = targets.load("figure1a")
    (job,), size = target.jobs, np.full(20, 100)
    why = "fedmaba, seed 1, diverged in round 21: x"
    runs = [made("fedavg", s, size) for s in (0, 1)]
    runs += [made("fedmaba", 0, size), made("fedmaba", 1, size, 2, diverged=why)]
    runs += [made("afl", s, size, 0, deploy="average", diverged=f"afl, seed {s}") for s in (0, 1)]
    save(tmp_path / "x.npz", job, runs)
    for name in ("figure1a", "table2-fashion-mnist"):
        page = reproduction.document(targets.load(name), archive.read_folder(tmp_path))
        assert any("diverged in round 21" in text for text in page.text)
        assert page.figures["variance"]() is not None
    rows = {row[0].text: row for row in grid(page, "last").rows}
    assert rows["FedMABA, α=0.5"][1].text == "1"
    assert rows["FedMABA, α=0.5"][-1].text == "diverged: seed 1"
    assert rows["AFL, λ=0.05"][2].text == "–"


def test_the_papers_numbers_have_a_source_and_known_rows():
    told = paper.load()
    assert "2410.20141" in told["source"]
    labels = set(targets.load("table2-fashion-mnist").jobs[0].strategies)
    past = set(targets.load("attacks").jobs[0].strategies)  # the paper
    assert labels | past == set(told["names"])
    for name in ("table2-fashion-mnist", "table2-cifar10", "table3-cifar100"):
        assert set(told[name]) <= labels
        for row in told[name].values():
            assert set(row) <= {"variance", "accuracy", "worst", "best"}
            assert all(len(value) in (1, 2) for value in row.values())
    known = {t.name for t in targets.load("claims").uses}
    for claim in told["claim"]:
        assert set(claim["targets"]) <= known
    assert {claim["says"] for claim in told["claim"]} >= {"33 %", "6 %", "1.5x", "8 %"}


# --- many targets at once ------------------------------------------------------------------------


@pytest.mark.slow
def test_targets_drawn_at_once_are_those_drawn_one_after_another(tmp_path, monkeypatch):
    names, kept = ("figure2-alpha", "figure2-eta_b"), tmp_path / "kept"
    fill(kept, *names)
    asked = [targets.load(name) for name in (*names, "table3-cifar100")]
    written = []
    for cores in (1, 2):
        monkeypatch.setattr(drawing, "_cores", lambda cores=cores: cores)
        out = tmp_path / str(cores)
        *drawn, nothing = drawing.every(asked, kept, out)
        assert "none of its runs is there" in str(nothing)
        pages = [shown.page for shown in drawn]
        files = {p.relative_to(out): p.read_bytes() for p in out.rglob("*.*")}
        written.append((pages, files))
    forms = {path.suffix for path in written[0][1]}
    assert forms == {".md", ".tex", ".csv", ".svg", ".pdf", ".png"}
    assert written[0] == written[1]


def dies(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_drawing_process_that_is_killed_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(drawing, "_cores", lambda: 2)
    monkeypatch.setattr(drawing, "_work", dies)
    asked = [targets.load(name) for name in ("table2-fashion-mnist", "attacks")]
    with pytest.raises(NoRoom, match="one target at a time"):
        next(drawing.every(asked, tmp_path, tmp_path))


@pytest.mark.slow
def test_ctrl_c_ends_all_that_draw(tmp_path):
    words = [sys.executable, "-m", "fedmaba", "reproduce", "all", "--from", ROOT / "results"]
    going = subprocess.Popen(
        [*words, "--out", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's `&` ignores it
        text=True,
    )
    for _ in range(300):
        if list(tmp_path.glob("*/table.md")):
            break
        time.sleep(0.1)
    os.killpg(going.pid, signal.SIGINT)
    assert going.communicate(timeout=20)[1] == ""  # waits for all who hold its end
    assert going.returncode == 130


def test_a_folder_that_is_none_is_said_before_anything_is_drawn(call, tmp_path):
    code, out, err = call("all", "--from", tmp_path / "no")
    assert (code, out) == (2, "")
    assert "is no folder" in err


# --- the page ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "reproduction.py"))


@pytest.mark.slow
def test_the_numbers_of_the_page_are_those_of_the_files(tool):
    batches = tool["load"](tool["RESULTS"])
    for page in tool["PAGES"]:
        text = page.read_text(encoding="utf-8")
        made = tool["MADE"].search(text) or tool["BLOCK"].search(text)
        assert len(tool["VALUE"].findall(text)) > 3 or made
        assert text == tool["renew"](text, batches), "old: run python tools/reproduction.py"
    text = "".join(tool[name].read_text(encoding="utf-8") for name in ("LOG_PAGE", "TABLE_PAGE"))
    shown = {m[2] for m in tool["BLOCK"].finditer(text)}
    assert shown == set(targets.names()) - {"all"}


def test_the_tool_puts_right_what_is_wrong(tool, tmp_path):
    batches = fill(tmp_path, "table2-fashion-mnist")
    text = (
        "Ours is 1.00<!-- table2-fashion-mnist|fedavg|variance|last|last5 --> %².\n\n"
        "<!-- reproduce table2-fashion-mnist last -->\n| wrong |\n<!-- end -->\nrest\n"
    )
    page = tool["renew"](text, batches)
    found = selection.values(
        archive.collect(batches, targets.load("table2-fashion-mnist").jobs[0])[0],
        "last",
        CHOICES["last5"],
    )["fedavg"]
    assert f"Ours is {np.mean([f.variance for f in found.values()]):.2f}<!--" in page
    pair = "+1.00<!-- table2-fashion-mnist|fedsgd - fedavg|worst|last|last -->"
    table = grid(reproduction.document(targets.load("table2-fashion-mnist"), batches), "pairs-last")
    assert f"{table.rows[0][4].value:+.2f}<!--" in tool["renew"](pair, batches)
    assert "wrong" not in page
    assert "| FedAvg | 10 |" in page
    assert page.count("**Last server model, at the last round") == 1
    assert "fedmaba reproduce t" in page
    assert page.endswith("<!-- end -->\nrest\n")
    assert tool["renew"](page, batches) == page
    assert "not run yet" in tool["renew"](text, [])
    assert "–<!--" in tool["renew"](text, [])


def test_numbers_of_rounds_readings_floors_and_gains(tool, tmp_path):
    batches = fill(tmp_path, "readings")
    target = targets.load("readings")
    runs = {
        i: [r for r in archive.collect(batches, target.jobs[i])[0].runs if r.label == "fedavg"]
        for i in (0, 4)
    }

    def show(name, row, figure, model, at):
        text = tool["renew"](f"0<!-- {name}|{row}|{figure}|{model}|{at} -->", batches)
        return float(text.partition("<!--")[0])

    fifth = [r.accuracy("last") for r in runs[4]]
    want = 100 * np.mean([a[-1].mean() for a in fifth])
    assert show("readings#5", "fedavg", "accuracy", "last", "last") == pytest.approx(want, abs=0.01)
    done = int(runs[4][0].evaluated[1])
    want = 100 * np.mean([a[1].mean() for a in fifth])
    found = show("readings#5", "fedavg", "accuracy", "last", f"r{done}")
    assert found == pytest.approx(want, abs=0.01)
    spread = [np.mean(p * (1 - p) / 99) for p in (r.accuracy("last")[-1] for r in runs[0])]
    found = show("readings", "fedavg", "floor", "last", "last")
    assert found == pytest.approx(1e4 * np.mean(spread), abs=0.01)
    gain = [r.accuracy("deployed")[-1].mean() - r.accuracy("last")[-1].mean() for r in runs[0]]
    found = show("readings", "fedavg", "accuracy", "gain", "last")
    assert found == pytest.approx(100 * np.mean(gain), abs=0.01)
    assert found != 0


def test_rounds_between_which_rows_are_told_apart(tool, monkeypatch):
    def runs(by):  # three seeds, one point apart
        return [
            SimpleNamespace(
                seed=s,
                evaluated=10 * np.arange(1, 1 + len(by)),
                fairness=lambda kind, share, s=s: [SimpleNamespace(variance=v + s) for v in by],
            )
            for s in (-1, 0, 1)
        ], 0.05

    level = runs([0] * 7)
    for run in level[0]:
        run.fairness = lambda kind, share: [SimpleNamespace(variance=0)] * 7
    rows = {"ours": runs([9, 0, 9, 9, 9, 0, 9]), "same": runs([0] * 7), "base": level}
    stretch = tool["stretch"]
    monkeypatch.setitem(stretch.__globals__, "rows_of", lambda name, row, batches: rows[row])
    assert stretch("t", "ours", "base", "variance", "last", []) == (30, 50)
    with pytest.raises(ValueError, match="never told apart"):
        stretch("t", "same", "base", "variance", "last", [])


def test_tables_over_many_targets(tool, tmp_path):
    batches = fill(tmp_path, "table2-cifar10-partial")
    shown = tool["renew"]("<!-- made summary -->\nold\n<!-- end -->", batches)
    assert "old" not in shown
    assert shown.count("| cifar10, shards:2, 10 | 3 | FedMABA") == 2
    assert "fashion" not in shown
    short = tool["renew"]("<!-- made brief -->\nold\n<!-- end -->", batches)
    assert short.count("| cifar10, shards:2, 10 | 3 |") == 1
    left = tool["renew"]("<!-- made missing -->\n<!-- end -->", batches)
    assert "`fedmaba reproduce table3-cifar100 --device cuda --dtype tf32`: 45 runs" in left
    assert "table2-cifar10-partial" not in left
    assert tool["TABLES"]["missing"](fill(tmp_path, *targets.names())) == "Nothing."
    took = tool["TABLES"]["times"](tool["load"](tool["RESULTS"]))
    assert "| 94 | 9,400,000 |" in took
    bare = "<!-- reproduce table2-cifar10-partial bare gain-ema0.98 -->\n<!-- end -->"
    bare = tool["renew"](bare, batches)
    assert "Set-up" not in bare
    assert bare.count("| FedAvg | 3 |") == 1


def test_results_are_small_and_tell_no_paths():
    files = sorted((ROOT / "results").iterdir())
    assert {path.suffix for path in files} == {".npz"}
    assert sum(path.stat().st_size for path in files) < 12_000_000
    for path in files:
        assert not re.search(r"(^|[\s=])[/~]", archive.read_file(path).about["command"])


def test_targets_can_be_left_out_of_all():
    every = {t.name for t in targets.load("all").uses}
    some = targets.load("all", targets.Scale(without=("table1-grid", "table2-cifar10")))
    assert every - {t.name for t in some.uses} == {"table1-grid", "table2-cifar10"}
    assert not [t for u in some.uses for t in u.uses if t.name == "table2-cifar10"]
    with pytest.raises(InputError, match="did you mean 'table1-grid'"):
        targets.load("all", targets.Scale(without=("table1-gird",)))


def test_attacks_that_were_tried_are_shown_with_every_strategy(tmp_path):
    target = targets.load("attacks")
    first, second = target.jobs[:2]
    assert (first.experiment.attack.does, second.experiment.attack.does) == (None, "loss=1e6")
    assert first.digest == targets.load("table2-fashion-mnist").jobs[0].digest  # shares its runs
    assert len({job.digest for job in target.jobs}) == len(target.jobs)
    size = np.where(np.arange(20) < 2, 0, 100)
    save(tmp_path / "x.npz", second, [made("fedmaba", s, size) for s in (0, 1)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    for grid in page.grids:
        assert grid.head[2:] == [
            "FedAvg",
            "FedMABA, α=0.5",
            "FedMABA, α=0.5, ρ=0.1",
            "FedMABA, α=0.5, trust=usual",
        ]
        ((title, seeds, nothing, some, *_),) = grid.rows
        assert (title.text, seeds.text) == ("10 % report a loss of a million", "2")
        assert nothing.text in ("", "–")
        assert float(some.text.split()[0]) > 0  # nan is not
