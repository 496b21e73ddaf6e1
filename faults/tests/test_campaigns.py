"""Small versions of the campaigns; `make faults` runs them at full count."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from faults import configs, damage, disk, nans, reports
from faults.__main__ import CAMPAIGNS, table

ROOT = Path(__file__).parents[2]


def quiet(text: str) -> None:
    """Nobody watches a test."""


def whole(tally, least):
    """Nothing lost, and something tried."""
    assert tally.why == []
    assert tally.lost == 0
    assert tally.tried >= least
    return tally


def process(name, count, tmp_path):
    """A campaign that forks, in a process of its own."""
    words = [sys.executable, "-m", "faults", name, "--count", str(count)]
    src = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": src, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--out", str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert found["lost"] == 0
    return found


def test_a_killed_run_ends_in_the_same_bytes(tmp_path):
    assert process("kill", 25, tmp_path)["tried"] == 25


def test_a_run_killed_at_a_file_operation_ends_in_the_same_bytes(tmp_path):
    assert process("steps", 24, tmp_path)["file operations of the runs"] > 400


def test_of_two_processes_one_gets_the_folder(tmp_path):
    assert process("races", 10, tmp_path)["tried"] == 10


def test_a_signal_ends_a_run_after_a_save(tmp_path):
    assert process("signals", 4, tmp_path)["tried"] == 4


def test_one_thread_gives_the_bits_of_two(tmp_path):
    assert process("threads", 1, tmp_path)["counts"]["mlp"] > 50  # files alike


def test_a_damaged_checkpoint_is_never_loaded():
    tally = whole(damage.campaign(400, 0, quiet), 400)
    assert tally.figures["truncations"] >= 200


def test_a_failing_disk_costs_nothing_that_was_saved():
    tally = whole(disk.campaign(44, 0, quiet), 44)
    assert {"ENOSPC", "EDQUOT", "EIO"} <= set(tally.counts)


def test_a_configuration_runs_or_is_refused_with_a_line():
    counts = whole(configs.campaign(100, 0, quiet), 100).counts
    assert min(counts["ran"], counts["refused"], counts["noise"]) > 5


def test_random_reports_give_finite_weights_inside_the_ball():
    tally = whole(reports.campaign(2000, 0, quiet), 20_000)
    assert tally.figures["largest KL - rho"] <= 1e-9


def test_no_nan_is_silent():
    assert set(whole(nans.campaign(3, 0, quiet), 9).counts) == {"client", "server", "weight"}


def test_a_value_of_another_type_is_no_traceback(tmp_path):
    found = process("types", 25, tmp_path)
    assert found["tried"] == 25
    assert found["largest, MB"] < 1000


def test_no_strange_file_holds_a_command_up(tmp_path):
    found = process("special", 8, tmp_path)  # its own rule: 10 s, without the wait for a core
    assert found["tried"] == 8
    assert found["largest, MB"] < 1000


def test_nothing_is_written_through_a_link(tmp_path):
    assert process("links", 25, tmp_path)["tried"] == 25


def test_no_string_of_a_file_is_more_than_text(tmp_path):
    assert process("strings", 30, tmp_path)["tried"] == 30


# --- the campaigns themselves must see what they look for --------------------------------------


def test_a_campaign_that_loses_says_so(monkeypatch):
    """A checkpoint without its checksum, a save without its rename: found."""
    from fedmaba.results import files, run_folder

    real = run_folder.hashlib.sha256

    class Blind:
        def __init__(self, content=b""):
            self.real = real(content)

        def update(self, piece):
            self.real.update(piece)

        def digest(self):
            return bytes(32)

        def hexdigest(self):
            return self.real.hexdigest()

    fake = {"sha256": Blind, "file_digest": staticmethod(lambda file, name: Blind())}
    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "hashlib", type("Fake", (), fake))
        assert damage.campaign(60, 0, quiet).lost > 3

    def in_place(target, *content, remedy="", private=False):
        target.parent.mkdir(exist_ok=True)
        with open(target, "wb") as f:
            f.writelines(content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", in_place)
        assert disk.campaign(10, 0, quiet).lost > 3


# --- what the docs say -------------------------------------------------------------------------


def test_the_page_shows_the_measured_figures():
    found = json.loads((ROOT / "benchmarks" / "results" / "faults.json").read_text())
    text = (ROOT / "docs" / "reliability.md").read_text()
    assert {"kill", "damage"} <= set(found)
    assert re.findall(r"^\| `\w+` \| [0-9].*$", text, re.M) == table(found)
    for name, entry in found.items():
        assert entry["lost"] == 0, name
        assert re.search(rf"--count {CAMPAIGNS[name].trials} ", entry["command"]), name


def test_the_page_shows_what_hostile_folders_did():
    file = ROOT / "benchmarks" / "results" / "hostile-folders.json"
    found = json.loads(file.read_text())
    text = " ".join((ROOT / "docs" / "reliability.md").read_text().split())
    assert f"tried {sum(entry['tried'] for entry in found.values()):,} cases" in text
    assert ", ".join(f"`{name}` {entry['tried']:,}" for name, entry in found.items()) in text
    assert not any(entry["lost"] for entry in found.values())
    assert "None was lost." in text
    slowest, largest = (
        max(e[key] for e in found.values()) for key in ("slowest, s", "largest, MB")
    )
    assert f"took {slowest:.1f} s, the largest {largest} MB" in text


@pytest.mark.skipif(not disk.mountable(), reason="may not mount a disk here")
def test_a_real_disk_that_fills_up(tmp_path):
    assert process("tmpfs", 3, tmp_path)["tried"] == 3
