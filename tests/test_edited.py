"""A run goes on only as it was begun: an edited or swapped file is refused by its name."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file, starting
from fedmaba.experiment import session as experiment
from fedmaba.report import data
from fedmaba.results import array_files, run_folder
from test_links import asked, play


@pytest.fixture(scope="module")
def folders(tiny_npz, tmp_path_factory):
    root = tmp_path_factory.mktemp("edited")
    two = {"strategies": ["fedavg", "fedprox"]}
    play(root / "done", tiny_npz, **two)
    play(root / "half", tiny_npz, stop=3, **two)
    play(root / "other", tiny_npz, stop=3, train__lr=0.3, **two)
    play(root / "other-done", tiny_npz, train__lr=0.3, **two)
    return root


@pytest.fixture
def half(folders, tmp_path):
    return shutil.copytree(folders / "half", tmp_path / "half")


@pytest.fixture
def done(folders, tmp_path):
    return shutil.copytree(folders / "done", tmp_path / "done")


def same(a, b):
    """Names of files that must repeat and do not."""
    apart = {"about.json", "timing.jsonl", ".lock"}
    names = {str(p.relative_to(f)) for f in (a, b) for p in f.rglob("*") if p.is_file()}
    return [
        n
        for n in sorted(names)
        if n.split("/")[-1] not in apart
        and not ((a / n).exists() and (b / n).exists() and files(a, n) == files(b, n))
    ]


def files(folder, name):
    return (folder / name).read_bytes()


# --- the experiment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("train.lr", 0.3, "0.1"),
        ("train.minibatch", 7, "5"),
        ("train.momentum", 0.5, "0.0"),
        ("server.momentum", 0.5, "0.0"),
        ("eval.every", 1, "2"),
        ("train.rounds", 8, "4"),
        ("data.validation", "20%", "0%"),
    ],
)
def test_an_edited_experiment_is_not_resumed(key, value, was, half, folders):
    file = half / "experiment.toml"
    good, tree = file.read_bytes(), experiment_file.read_toml(file)
    config.set_key(tree, key, value)
    file.write_text(experiment_file.dump(config.build(tree)))
    before = [p.name for p in run_folder.checkpoints(half)]
    with pytest.raises(InputError) as found:
        starting.resume(half)
    said = f"{file} was edited since the run was begun ({key} was {was}, now {value}): restore it"
    assert str(found.value).startswith(said)
    assert not re.search("delete|remove", str(found.value))
    assert [p.name for p in run_folder.checkpoints(half)] == before
    file.write_bytes(good)
    list(starting.resume(half).rounds())
    assert same(half, folders / "done") == []


def test_what_cannot_change_the_numbers_may_be_edited(half, folders):
    file = half / "experiment.toml"
    tree = experiment_file.read_toml(file)
    config.set_key(tree, "machine.threads", 1)
    config.set_key(tree, "save.every", 1)
    file.write_text("# a note\n" + experiment_file.dump(config.build(tree)))
    list(starting.resume(half).rounds())
    assert same(half, folders / "done") == ["experiment.toml"]  # all else to the byte


def test_a_checkpoint_of_another_run_is_refused(half, folders):
    newest = run_folder.checkpoints(half)[0]
    other = run_folder.checkpoints(folders / "other")[0]
    assert other.name == newest.name
    shutil.copy(other, newest)
    with pytest.raises(InputError, match=r"not of this experiment \(train\.lr\): restore it, or"):
        starting.resume(half)
    assert newest.exists()


def test_a_checkpoint_of_the_version_before_goes_on_and_says_so(half, folders):
    for file in run_folder.checkpoints(half):
        arrays, meta = run_folder.read_checkpoint(file)
        del meta["made"]
        body = b"".join(run_folder.pack(arrays, meta))
        file.write_bytes(run_folder.MAGIC + hashlib.sha256(body).digest() + body)
    about = json.loads((half / "about.json").read_text())
    del about["digest"]
    (half / "about.json").write_text(json.dumps(about))
    session = starting.resume(half)
    assert any("earlier version" in text for text in session.warnings)
    list(session.rounds())
    assert same(half, folders / "done") == []


@pytest.mark.parametrize("key", ["data", "partition", "digest"])
def test_an_edited_about_is_named(key, half):
    file = half / "about.json"
    about = json.loads(file.read_text())
    if key == "data":
        about["data"]["sha256"] = "0" * 64
    else:
        about[key] = {"0": "0" * 64} if key == "partition" else "0" * 64
    file.write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"about\.json is not that of this run: restore it"):
        starting.resume(half)


def test_a_key_that_a_newer_version_adds_does_not_stop_a_run(half, monkeypatch):
    """What an older version did not ask for was at its default."""
    for file in run_folder.checkpoints(half):
        arrays, meta = run_folder.read_checkpoint(file)
        del meta["made"]["asked"]["train"]["weight_decay"]
        body = b"".join(run_folder.pack(arrays, meta))
        file.write_bytes(run_folder.MAGIC + hashlib.sha256(body).digest() + body)
    about = json.loads((half / "about.json").read_text())
    del about["digest"]
    (half / "about.json").write_text(json.dumps(about))
    starting.resume(half).close()


# --- the partition and the tables --------------------------------------------------------------


def test_an_edited_partition_is_named(half, folders):
    file = half / "partition.npz"
    arrays = array_files.read_npz(file)
    arrays["seed0.train"] = arrays["seed0.train"][::-1]
    file.write_bytes(run_folder.npz(arrays))
    with pytest.raises(InputError, match=r"partition\.npz is not that of this run: restore it"):
        starting.resume(half)
    file.unlink()  # as the line says
    list(starting.resume(half).rounds())
    assert same(half, folders / "done") == []


@pytest.mark.parametrize("how", ["between runs", "between folders", "edited"])
def test_swapped_and_edited_tables_are_named(how, done, folders):
    one, two = sorted((done / "clients").iterdir())
    if how == "between runs":
        one.rename(done / "spare")
        two.rename(one)
        (done / "spare").rename(two)
    elif how == "between folders":
        shutil.copy(folders / "other-done" / "clients" / one.name, one)
    else:
        arrays = array_files.read_npz(one)
        arrays["deployed.accuracy"] = np.ones_like(arrays["deployed.accuracy"])
        one.write_bytes(run_folder.npz(arrays))
    with pytest.raises(InputError, match=f"{one.name} .*not the file that the run ended with"):
        run_folder.load_history(done)


def test_an_edited_partition_of_a_finished_run_is_named(done):
    file = done / "partition.npz"
    arrays = array_files.read_npz(file)
    arrays["seed0.labels"] = arrays["seed0.labels"][::-1]
    file.write_bytes(run_folder.npz(arrays))
    with pytest.raises(InputError, match=r"partition\.npz .*not the file that the run ended with"):
        data.load_run_folder(done)


def test_an_edited_experiment_of_a_finished_run_is_named(done):
    data.load_run_folder(done)
    file = done / "experiment.toml"
    file.write_text(file.read_text().replace("lr = 0.1", "lr = 0.3"))
    said = r"experiment\.toml was edited since .* \(train\.lr was 0\.1, now 0\.3\): restore it"
    with pytest.raises(InputError, match=said):
        data.load_run_folder(done)


def test_an_edited_about_of_a_finished_run_is_named(done):
    about = json.loads((done / "about.json").read_text())
    about["data"]["sha256"] = "0" * 64
    (done / "about.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"about\.json is not that of this run: restore it"):
        data.load_run_folder(done)


def test_a_finished_folder_of_the_version_before_is_read(done):
    about = json.loads((done / "runs.json").read_text())
    assert set(about["made"]) == {"asked", "data", "partition"}
    assert set(about["files"]) == {"partition.npz", *names(done)}
    whole = str(run_folder.load_history(done))
    (done / "runs.json").write_text(json.dumps({k: about[k] for k in ("share", "runs")}))
    assert str(run_folder.load_history(done)) == whole


def names(folder):
    return {f"clients/{p.name}" for p in (folder / "clients").iterdir()}


def test_the_digest_covers_experiment_data_and_partition(tiny_npz):
    sessions = [experiment.prepare(asked(tiny_npz, **c)) for c in ({}, {}, {"seeds": [1]})]
    first, again, other = (session.provenance() for session in sessions)
    for session in sessions:
        session.close()
    assert first == again
    assert set(first) == {"asked", "data", "partition"}
    assert first["partition"] != other["partition"]
    assert first["asked"]["train"]["lr"] == 0.1
