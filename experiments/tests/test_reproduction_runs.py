"""Running a target: from the command to every file, stops, parts, time left."""

import csv
import io
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import reproduction_cases
from rich.console import Console

from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.report import terminal
from fedmaba.results import run_folder
from laboratory import archive, display, targets
from laboratory import page as reproduction
from laboratory import run as reproduce
from laboratory.targets import RunKey, Scale

pytestmark = pytest.mark.usefixtures("small_sample")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    return reproduction_cases.command(monkeypatch, capsys, tmp_path)


TINY = ["--quick", "--rounds", "2", "--seeds", "2", "--only", "fedavg,fedmaba,afl:lam=0.5"]


CPU = targets.parse_machine("cpu", "float32")


@pytest.mark.slow
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
    assert r"\underline{" in tex
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


def tiny(name="table2-fashion-mnist", rounds=3, seeds=1):
    return targets.load_target(name, Scale(rounds, seeds, ("fedavg", "fedmaba", "fedfv"), True))


def play(work, out, stop_after=None):
    batch = reproduce.begin(work, out, CPU)
    at = batch.session.batch.progress
    for _ in batch.rounds(lambda: stop_after is not None and at.round > stop_after):
        pass
    return batch


@pytest.mark.slow
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
    other = reproduce.begin(again, tmp_path / "b", targets.parse_machine("cpu", "float64"))
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fedmaba. ball=literal")
def test_data_are_read_once_for_batches_one_after_another(tmp_path, monkeypatch, call):
    read, load = [], reproduce.experiment.datasets.load
    monkeypatch.setattr(
        reproduce.experiment.datasets,
        "load",
        lambda *words, **more: read.append(more["normalise"]) or load(*words, **more),
    )
    asked = targets.load_target("readings", Scale(1, 1, ("fedmaba",), True))
    assert len(reproduce.plan(asked, tmp_path)) > 1
    words = ("--quick", "--rounds", "1", "--seeds", "1", "--only", "fedmaba")
    assert call("readings", *words, "--out", tmp_path)[0] == 0
    assert read == [None, "standard"]  # once for each way to make inputs of the pixels
    digests = {batch.about["data"]["sha256"] for batch in archive.read_folder(tmp_path)}
    assert digests == {load("sample", normalise=how).sha256() for how in read}
    held = reproduce.LoadedData(config.Data(name="sample"), load("sample"), "")
    assert held.fits(held.asked)
    for other in ({"name": "cifar10"}, {"name": "sample", "normalise": "standard"}):
        assert not held.fits(config.Data(**other))


def test_what_is_held_for_the_next_batch_is_what_was_read(tmp_path):
    """Where clients flip labels, the batch trains on more than that."""
    asked = targets.load_target("attacks", Scale(1, 1, ("fedavg",), True))
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
            SimpleNamespace(work=work, session=SimpleNamespace(notes=[], warnings=[], batch=batch))
        )

    return show, begin, stream, now


def test_time_left_of_a_target_is_at_the_pace_of_this_process(tmp_path, monkeypatch):
    (work,) = reproduce.plan(tiny(seeds=2), tmp_path)
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


@pytest.mark.slow
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
        a, b = (batch.runs[RunKey(label, 0, deploy)] for deploy in ("ema:0.98", "poly:8"))
        assert np.array_equal(a.accuracy("last"), b.accuracy("last"))
        assert not np.array_equal(a.accuracy("deployed"), b.accuracy("deployed"))
    page = reproduction.document(tiny("table2-fashion-mnist-partial"), [batch])
    names = {grid.name for grid in page.grids}
    assert {"last", "last-ema0.98", "last-poly8", "pairs-last-ema0.98"} <= names
