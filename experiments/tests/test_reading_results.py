"""Results of the laboratory, read like any others: `table`, `report`, `export`, in Python."""

import json

import numpy as np
import pytest
from reproduction_cases import RESULTS, fill

import fedmaba
from fedmaba.cli import sources
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.results import run_folder
from laboratory import archive, targets
from test_eighty_columns import fits
from test_hostile_files import CHANGES, short, twisted
from test_results_for_scripts import only

TARGET = "natural-heart"


@pytest.fixture(scope="module")
def archive_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    fill(folder, TARGET, "attacks")
    return folder


def test_results_of_reproduce_open_like_run_folders(call, archive_folder, tmp_path):
    path = archive_folder / TARGET
    history = fedmaba.load_history(path)
    assert len(history.runs) == 50
    (row, *_) = only(call, "table", str(path), "--json")["rows"]
    assert row["mean"]["accuracy"] == history.summary()[0].mean.accuracy
    text = call("table", str(path))
    assert text.code == 0
    assert "qffl:q=0.1" in text.out
    assert text.err == ""
    frame = history.to_pandas()
    assert len(frame) == 50 * 6 * 20
    assert frame["deployed_accuracy"].between(0, 1).all()
    drawn = call("figure", "tradeoff", str(path), "-o", str(tmp_path / "tradeoff.svg"))
    assert drawn.code == 0, drawn.err
    assert "natural-heart" in (tmp_path / "tradeoff.caption.txt").read_text()
    for form in ("csv", "parquet"):
        pytest.importorskip("pyarrow")
        answer = call("export", str(path), "--to", form, "-o", str(tmp_path / form))
        assert answer.code == 0, answer.err
        assert (tmp_path / form / f"clients.{form}").is_file()


def test_one_file_of_reproduce_opens_by_itself(call, archive_folder):
    (file,) = (
        path
        for path in archive_folder.glob("*.npz")
        if any("qffl:q=0.1" in run.label for run in fedmaba.load_history(path).runs)
    )
    assert len(fedmaba.load_history(str(file)).runs) == 50
    assert call("table", str(file)).code == 0
    assert call("export", str(file)).code == 0
    assert (file.with_suffix("") / "csv" / "summary.csv").is_file()


def test_a_folder_that_reproduce_drew_into_is_still_a_target(archive_folder):
    (archive_folder / TARGET).mkdir(exist_ok=True)  # where reproduce writes table.md
    (source,) = sources.load_each([archive_folder / TARGET])
    assert len(source.history.runs) == 50


def test_the_results_of_the_repository_open():
    history = fedmaba.load_history(RESULTS / TARGET)
    assert {run.label for run in history.runs} == {
        "fedavg", "qffl:q=0.1", "afl", "term", "fedmaba",
    }  # fmt: skip
    assert all(np.isfinite(run.accuracy()[-1]).all() for run in history.runs)


def test_what_is_no_result_is_refused(call, tmp_path):
    (tmp_path / "a.npz").write_bytes(b"no zip")
    for words in (["table", "a.npz"], ["export", "a.npz"]):
        answer = call(*words[:1], str(tmp_path / words[1]))
        assert answer.code == 2
        assert "is no file of `fedmaba reproduce`" in answer.err
    (tmp_path / "empty").mkdir()
    answer = call("table", str(tmp_path / "empty" / "table2-cifar10"))
    assert answer.code == 2
    assert "holds no run of table2-cifar10" in answer.err


@pytest.mark.parametrize("by", ["strategy", "client"])
def test_results_of_reproduce_have_no_validation_scores_and_no_option_for_them(
    by, refused, archive_folder
):
    said = refused("table", archive_folder / TARGET, "--on", "validation", "--by", by)
    assert said.endswith(
        "seed 0: these results of reproduce keep no scores of the deployed model on validation "
        "data: leave out --on validation\n"
    )


def test_the_list_of_targets_is_a_json_document(call):
    found = only(call, "list", "targets", "--json")
    (entry,) = (e for e in found["entries"] if e["name"] == TARGET)
    assert entry["about"][1:] == ["50", "0", str(50 * 4 * 50)]


def test_a_target_of_reproduce_is_shown_too(call, tmp_path):
    fill(tmp_path, "natural-heart")
    shown = call("table", tmp_path / "natural-heart", "--by", "client", "--against", "fedavg")
    assert shown.code == 0, shown.err
    assert "fedavg serves client" in shown.out


@pytest.mark.parametrize(
    "target", [pytest.param("figure2-alpha", marks=pytest.mark.slow), "attacks"]
)
def test_reproduce_fits(target, tmp_path, call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    fill(tmp_path / "results", target)
    shown = call("reproduce", target, "--from", tmp_path / "results", "--out", tmp_path / "out")
    assert shown.code == 0, shown.err
    fits(shown.out)


def test_settings_of_before_keep_their_digest():
    """Archives and run folders of earlier versions know no such key."""
    usual, other = (
        config.build({"strategies": ["fedavg"], "data": {"normalise": how}})
        for how in (None, "scale")
    )
    assert "normalise" not in targets.settings(usual)["data"]
    assert targets.settings(other)["data"]["normalise"] == "scale"
    labels = [
        experiment.prepare(e).history.runs[0].of
        for e in (usual, usual.model_copy(update={"data": config.Data(normalise="scale")}))
    ]
    assert labels[0] != labels[1]


@pytest.fixture
def batch(tmp_path):
    about = {"format": 1, "target": "a", "settings": {"x": 1}, "seconds": 1.0, "dtype": "float32"}
    about |= {"device": "cpu", "command": "a", "versions": {"torch": "2", "fedmaba": "1"}}
    about["runs"] = [{"label": "fedavg", "seed": 0, "deploy": "last", "diverged": ""}]
    tables = {
        "evaluated": np.array([1, 2], np.int32),
        "length": np.array([2], np.int32),
        "test_size": np.full((1, 3), 9, np.int32),
        "last": np.ones((1, 2, 3), np.uint8),
        "deployed": np.ones((1, 2, 3), np.uint8),
    }
    return tmp_path / "a.npz", about, tables


def saved(path, about, tables):
    text = np.frombuffer(json.dumps(about).encode(), np.uint8)
    path.write_bytes(run_folder.npz({"about": text, **tables}))


def looked(path):
    try:
        return len(archive.read_file(path).runs)
    except InputError as error:
        short(str(error), r"a\.npz is no file of `fedmaba reproduce` \(", "restore it")
        return 0


def test_results_of_any_content_are_read_or_refused(batch):
    path, about, tables = batch
    saved(*batch)
    assert looked(path) == 1
    refused = 0
    for *_, tree in twisted(about):
        saved(path, tree, tables)
        refused += not looked(path)
    assert refused > 120
    for name, table in tables.items():
        saved(path, about, {n: t for n, t in tables.items() if n != name})
        assert not looked(path)
        for change in ("float", "nan", "none", "wider", "flat", "single", "bool", "negative"):
            found = CHANGES[change](table)
            if found.shape != table.shape or found.dtype != table.dtype or (found < 0).any():
                saved(path, about, {**tables, name: found})
                assert not looked(path), (name, change)
    saved(path, about, {**tables, "last": tables["last"] * 9})  # the second adds to the first
    assert not looked(path)
    saved(path, {**about, "runs": about["runs"] * 2}, tables)
    assert not looked(path)
