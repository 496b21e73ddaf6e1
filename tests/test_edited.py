"""A run goes on only as it was begun: an edited or swapped file is refused by its name."""

import json
import re
import shutil

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file, starting
from fedmaba.report import data
from fedmaba.results import array_files, run_folder
from run_folders import asked, begun, play, unlike

# --- the experiment ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("train.lr", 0.3, "0.1"),
        ("train.minibatch", 7, "5"),
        ("train.momentum", 0.5, "0.0"),
        ("server.momentum", 0.2, "0.5"),
        ("eval.every", 1, "2"),
        ("train.rounds", 8, "6"),
        ("data.validation", "10%", "0.2"),
    ],
)
def test_an_edited_experiment_is_not_resumed(key, value, was, stopped, finished):
    file = stopped / "experiment.toml"
    good, tree = file.read_bytes(), experiment_file.read_toml(file)
    config.set_key(tree, key, value)
    file.write_text(experiment_file.dump(config.build(tree)))
    before = [p.name for p in run_folder.checkpoints(stopped)]
    with pytest.raises(InputError) as found:
        starting.resume(stopped)
    said = f"{file} was edited since the run was begun ({key} was {was}, now {value}): restore it"
    assert str(found.value).startswith(said)
    assert not re.search("delete|remove", str(found.value))
    assert [p.name for p in run_folder.checkpoints(stopped)] == before
    file.write_bytes(good)
    list(starting.resume(stopped).rounds())
    assert unlike(finished[1], stopped) == []


def test_what_cannot_change_the_numbers_may_be_edited(stopped, finished):
    file = stopped / "experiment.toml"
    tree = experiment_file.read_toml(file)
    config.set_key(tree, "machine.threads", 1)
    config.set_key(tree, "save.every", 1)
    file.write_text("# a note\n" + experiment_file.dump(config.build(tree)))
    list(starting.resume(stopped).rounds())
    assert unlike(finished[1], stopped) == ["experiment.toml"]  # all else to the byte


def test_a_checkpoint_of_another_run_is_refused(stopped, tiny_npz, tmp_path):
    play(begun(asked(tiny_npz, train__lr=0.3), tmp_path / "other"), stop_after=5)
    newest = run_folder.checkpoints(stopped)[0]
    shutil.copy(tmp_path / "other" / "checkpoint" / newest.name, newest)
    with pytest.raises(InputError, match=r"not of this experiment \(train\.lr\): restore it, or"):
        starting.resume(stopped)
    assert newest.exists()


@pytest.mark.parametrize("key", ["data", "partition", "digest"])
def test_an_edited_about_is_named(key, stopped):
    file = stopped / "about.json"
    about = json.loads(file.read_text())
    if key == "data":
        about["data"]["sha256"] = "0" * 64
    else:
        about[key] = {"0": "0" * 64} if key == "partition" else "0" * 64
    file.write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"about\.json is not that of this run: restore it"):
        starting.resume(stopped)


# --- the partition and the tables --------------------------------------------------------------


def test_an_edited_partition_is_named(stopped, finished):
    file = stopped / "partition.npz"
    arrays = array_files.read_npz(file)
    arrays["seed0.train"] = arrays["seed0.train"][::-1]
    file.write_bytes(run_folder.npz(arrays))
    with pytest.raises(InputError, match=r"partition\.npz is not that of this run: restore it"):
        starting.resume(stopped)
    file.unlink()  # as the line says
    list(starting.resume(stopped).rounds())
    assert unlike(finished[1], stopped) == []


@pytest.mark.parametrize("how", ["between runs", "between folders", "edited"])
def test_swapped_and_edited_tables_are_named(how, done, tiny_npz, tmp_path):
    one, two, *_ = sorted((done / "clients").iterdir())
    if how == "between runs":
        one.rename(done / "spare")
        two.rename(one)
        (done / "spare").rename(two)
    elif how == "between folders":
        play(begun(asked(tiny_npz, train__lr=0.3), tmp_path / "other"))
        shutil.copy(tmp_path / "other" / "clients" / one.name, one)
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("experiment.toml", r"was edited since .* \(train\.lr was 0\.1, now 0\.3\): restore it"),
        ("about.json", "is not that of this run: restore it"),
    ],
)
def test_other_edited_files_of_a_finished_run_are_named(name, said, done):
    data.load_run_folder(done)
    text = (done / name).read_text().replace("lr = 0.1", "lr = 0.3")
    (done / name).write_text(re.sub('"sha256": "[^"]*"', f'"sha256": "{"0" * 64}"', text))
    with pytest.raises(InputError, match=f"{re.escape(name)} {said}"):
        data.load_run_folder(done)
