"""The three real federations: the publishers' numbers, and what is made of them."""

import numpy as np
import pytest

from fedmaba.data import natural, tables
from fedmaba.errors import InputError


def test_four_hospitals():
    table = natural.heart()
    hospital = table.columns["hospital"]
    counts = dict(zip(hospital.words, np.bincount(hospital.code).tolist(), strict=True))
    assert counts == {"Cleveland": 303, "Hungary": 294, "Switzerland": 123, "Long Beach VA": 200}
    assert np.bincount(table.columns["disease"].code).tolist() == [411, 509]
    x, prepared = tables.features(table)
    swiss = hospital.code == hospital.words.index("Switzerland")
    chol = prepared.names().index("chol")
    assert np.isnan(x[swiss, chol]).all()  # written as 0 in the file
    done = prepared.apply(x, np.flatnonzero(~swiss), hospital.code)
    assert np.isfinite(done).all()
    assert np.unique(done[swiss, chol]).size == 1


def test_census_by_a_column():
    table = natural.adult("adult:by=workclass,group=race")
    assert len(table.columns["age"]) == 48_842
    assert table.reading[:4] == ("income", "workclass", "race", "part")
    part = table.columns["part"]
    assert np.bincount(part.code).tolist() == [16_281, 32_561]
    assert part.words == ("test", "train")
    assert table.columns["income"].words == ("<=50K", ">50K")
    assert "unknown" in table.columns["workclass"].words
    names = tables.features(table)[1].names()
    assert "occupation=Sales" in names
    assert not any(n.startswith("workclass") for n in names)
    with pytest.raises(InputError, match="unknown by of adult 'age'"):
        natural.adult("adult:by=age")
    with pytest.raises(InputError, match=r"unknown option of adult 'buy'.*by"):
        natural.adult("adult:buy=sex")


def test_speaking_roles():
    text = natural.shakespeare("shakespeare")
    assert len(text.roles) == 309
    assert len(text.characters) == 65
    assert text.x.shape == text.y.shape == (len(text.client), 80)
    number = text.roles.index("First Citizen")
    first = text.x[text.client == number][0]
    assert "".join(text.characters[i] for i in first).startswith("Before we proceed any further")
    real = text.y[:, 1:] >= 0  # the input of a later position is the target of the one before
    np.testing.assert_array_equal(text.y[:, :-1][real], text.x[:, 1:][real])
    assert natural.shakespeare("shakespeare:length=20").x.shape[1] == 20
    with pytest.raises(InputError, match="length=0: give a whole number from 1 to 1000"):
        natural.shakespeare("shakespeare:length=0")


def test_an_altered_file_is_refused(monkeypatch):
    monkeypatch.setitem(natural.DIGESTS, "shakespeare.txt", "0" * 64)
    with pytest.raises(InputError, match="not the publisher's file: install fedmaba again"):
        natural.shakespeare("shakespeare")
