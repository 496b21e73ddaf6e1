"""State folders that somebody else wrote: shown or refused in one line, and never obeyed."""

import json
import os
import shutil
import sys

import pytest

import federations
from escape_cases import HOSTILE
from fedmaba import cli
from fedmaba.errors import InputError
from fedmaba.report import data, document, federation, html, model_card
from fedmaba.results import files, run_folder, state_folder
from fedmaba.results.history import History
from test_escape import obeyed
from test_hostile_files import twisted


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return federations.finished(tmp_path_factory.mktemp("federation") / "clinics")


@pytest.fixture
def folder(ended, tmp_path):
    return shutil.copytree(ended, tmp_path / "clinics")


def rewrite(folder, lines) -> None:
    """Put other lines in place, and a checkpoint that counts them."""
    arrays, meta, _ = run_folder.load_checkpoint(folder)
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "rounds.jsonl").write_bytes(text)
    held = run_folder.Folder(folder, private=True)
    held.lines = len(text)
    held.save(meta["round"], arrays, {k: v for k, v in meta.items() if k != "runs"}, History([]))
    held.close()


def lines_of(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def looked_at(folder) -> str:
    """What a folder is refused with, or nothing if it could be shown."""
    try:
        state = state_folder.load_state_folder(folder)
        federation.how_far(state)
        federation.grids(state)
        state.history().summary("last")
    except InputError as error:
        return str(error)
    return ""


def test_every_value_of_another_type_is_shown_or_refused(folder):
    first, good, last = lines_of(folder)[:3]
    for *_, odd in [*twisted(good)][::4]:
        text = "".join(json.dumps(line) + "\n" for line in (first, odd, last))
        (folder / "rounds.jsonl").write_text(text)
        said = looked_at(folder)
        assert "\n" not in said
        assert said == "" or "rounds.jsonl cannot be read (line 2: " in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line["sites"].update(east={"loss": 1.0}), "'east' is no site of this"),
        (lambda line: line.update(round=1), "round 1 follows round 1"),
        (lambda line: line.update(round=9), "round 9 is beyond the 3 that are saved"),
        (lambda line: line.pop("sites"), "it lacks 'sites'"),
        (lambda line: line["sites"]["north"].update(accuracy=7.0), "accuracy=7.0"),
        (lambda line: line["sites"]["north"].update(weight="much"), "weight='much'"),
    ],
)
def test_a_line_that_cannot_be_of_this_federation_is_named(folder, change, said):
    lines = lines_of(folder)
    change(lines[1])
    rewrite(folder, lines)
    with pytest.raises(InputError, match=r"rounds.jsonl cannot be read \(line 2: ") as error:
        data.load_run_folder(folder)
    assert said in str(error.value)


@pytest.mark.parametrize("name", ["rounds.jsonl", "about.json", "timing.jsonl"])
def test_no_file_is_read_through_a_link(folder, tmp_path, name, monkeypatch, capsys):
    os.replace(folder / name, tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", str(folder)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr()
    if name == "timing.jsonl":  # nothing rests on it
        assert "was not recorded" in said.out
        return
    assert end.value.code == 2
    assert said.err.count("\n") == 1
    assert "it is a link where a plain file should be" in said.err


def test_too_many_numbers_are_refused_before_they_are_held(folder, monkeypatch):
    monkeypatch.setattr(state_folder, "MAX_CELLS", 8)
    with pytest.raises(InputError, match="more than 8 rounds times sites"):
        data.load_run_folder(folder)


def test_a_long_line_and_a_damaged_checkpoint_are_one_line(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "MAX_LINE_BYTES", 100)
        with pytest.raises(InputError, match="line 1 has more than 100 bytes"):
            data.load_run_folder(folder)
    for file in (folder / "checkpoint").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="is damaged: its checksum is wrong"):
        data.load_run_folder(folder)


def test_what_a_stranger_said_is_shown_and_never_obeyed(folder, monkeypatch, capsys):
    lines = lines_of(folder)
    hostile = [text for text in HOSTILE if text.isascii()][:200]
    lines[1]["refused"] = hostile
    lines[1]["info"] = dict.fromkeys(hostile[:20], 0.5)
    rewrite(folder, lines)
    page = html.page([data.load_run_folder(folder)])
    assert "<script>alert" not in page
    assert set(obeyed(page)) <= {"\t"}  # which a page shows as a space
    source = data.load_run_folder(folder)
    card = model_card.card_text(source)
    assert not obeyed(card)
    for grid in federation.grids(source.federation):
        rows = document.markdown_table(grid).splitlines()[4:]
        assert len(rows) == len(grid.rows)  # nobody begins a row of their own
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", str(folder)])
    with pytest.raises(SystemExit):
        cli.main()
    assert not obeyed(capsys.readouterr().out)
