"""The report of a folder that was extended: what it shows, how to repeat it, and what is left."""

import html
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import fedmaba
from command_line import QUICK
from fedmaba.report import client_tables, data, run_setup, verdict
from fedmaba.results import run_folder
from fedmaba.results.metrics import PERCENT, Fairness


@pytest.fixture
def extended(call, tiny_npz):
    """A folder with more seeds and another strategy than at first, below another folder."""
    how = ["--data", tiny_npz, *QUICK, "--out", "runs/mine"]
    assert call("compare", "fedavg", *how).code == 0
    assert call("compare", "fedavg", "afl", *how, "--seeds", "3").code == 0
    return Path("runs/mine")


def shown(path):
    """The words of a page."""
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", path.read_text())).split())


def test_the_set_up_lists_every_run_and_commands_that_give_the_same(extended, call):
    (source,) = data.load_parts(extended)
    told = run_setup.setup_of(source)
    assert told["runs"] == ["fedavg, afl: seeds 0 to 2, 4 rounds"]
    begun = [shlex.split(line) for line in told["commands"]]
    assert [words[:3] for words in begun] == [["fedmaba", "compare", "fedavg"]] * 2
    assert len(told["repeat"]) == len(source.parts) == 3
    assert told["repeat"][0] == "fedmaba run runs/mine/experiment.toml --out NEW"
    for line in told["repeat"]:
        assert call(*shlex.split(line)[1:], "--quiet").code == 0
    mine, again = fedmaba.load_history(extended), fedmaba.load_history("NEW")
    for one, other in zip(mine.runs, again.runs, strict=True):
        assert (one.label, one.seed) == (other.label, other.seed)
        np.testing.assert_array_equal(one.accuracy(), other.accuracy())
    assert call("report", extended, "-o", "page.html").code == 0
    page = shown(Path("page.html"))
    assert "Repeat it, with 3 commands in this order and the same NEW:" in page
    assert "It was begun with, and extended by, 2 commands:" in page
    assert "fedavg, afl: seeds 0 to 2, 4 rounds" in page
    assert "Experiment of the first of 3 parts" in page


def test_one_folder_is_repeated_by_one_command(finished):
    told = run_setup.setup_of(data.load_run_folder(finished[1]))
    assert told["repeat"] == [f"fedmaba run {finished[1]}/experiment.toml --out NEW"]
    assert (told["parts"], told["left"]) == (1, "")


def test_a_report_says_which_part_is_not_finished(extended, call):
    part = extended / "parts" / "002"
    for name in ("runs.json", "checkpoint", "rounds.jsonl", "clients", "models"):
        path = part / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not run_folder.is_finished(part)
    (source,) = data.load_parts(extended)
    left = "2 of 3 parts are finished (missing: afl, seeds 0 to 2, not begun)"
    assert source.left == left
    assert verdict.verdicts_of_sources([source])[0].text.startswith(f"so far, {left}: ")
    assert call("report", extended, "-o", "page.html").code == 0
    page = shown(Path("page.html"))
    assert f"mine is not finished : {left}." in page
    assert f"Unfinished: {left}." in page
    assert "fedavg: seeds 0 to 2, 4 rounds" in page


def test_parts_that_prepare_their_own_copies_have_the_same_clients(extended):
    """A table is prepared for the seeds of a part: the digest of such a copy is no identity."""
    (source,) = data.load_parts(extended)
    assert list(source.division[1]) == ["0", "1", "2"]
    one, other = source.parts[0], source.parts[2]
    for part, digest in ((one, "x"), (other, "y")):
        part.about["data"] |= {"clients": [], "sha256": digest}
        part.about["partition"] = dict.fromkeys(part.about["partition"], digest)
    found = client_tables.table([one, other])
    assert found.labels == ["fedavg", "afl"]


def figures(variance, accuracy=80.0):
    nothing = dict.fromkeys(Fairness._fields, 0.0)
    return Fairness(**{**nothing, "variance": variance, "accuracy": accuracy})


def rows(**seeds):
    return {label: {s: figures(v) for s, v in own.items()} for label, own in seeds.items()}


def test_a_verdict_compares_under_the_seeds_of_both_so_that_numbers_subtract():
    # seeds 3 and 4 are hard: a row without them only looks fairer
    hard = {0: 20.0, 1: 21.0, 2: 22.0, 3: 60.0, 4: 61.0}
    found = rows(
        fedavg=hard,
        fedmaba={s: v - 5 + s / 10 for s, v in hard.items()},
        afl={0: 19.0, 1: 20.5, 2: 20.0},
    )
    said = verdict.judge(found, 0.05, PERCENT)
    assert said.named == "fedmaba"
    assert not said.remarks
    few = verdict.judge({x: found[x] for x in ("fedavg", "afl")}, 0.05, PERCENT)
    assert "4.5 points from the mean accuracy; with fedavg, 4.6 points" in few.sentence
    assert few.remarks == ["Compared under the 3 seeds that both have."]
    tile = few.tiles[0]
    assert (tile.now, tile.then, tile.change) == ("19.83 %²", "21.00 %²", "−1.17")
    assert few.table.title.endswith("; differences are under the seeds that both have")


def test_rows_without_a_common_seed_are_not_compared():
    said = verdict.judge(rows(fedavg={0: 20.0, 1: 21.0}, afl={2: 10.0, 3: 11.0}), 0.05, PERCENT)
    assert said.headline == "No strategy shares its seeds with fedavg, so none can be compared"
    assert said.sentence == "Run them with the seeds of fedavg."
    assert said.tiles == []
