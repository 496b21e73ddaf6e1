"""The three real federations: the publishers' numbers, and what is made of them."""

import json

import numpy as np
import pytest

import fedmaba
from fedmaba import Federation
from fedmaba.data import datasets, natural, tables
from fedmaba.data.features import features
from fedmaba.errors import InputError


def test_four_hospitals():
    table = natural.heart()
    hospital = table.columns["hospital"]
    counts = dict(zip(hospital.words, np.bincount(hospital.code).tolist(), strict=True))
    assert counts == {"Cleveland": 303, "Hungary": 294, "Switzerland": 123, "Long Beach VA": 200}
    assert np.bincount(table.columns["disease"].code).tolist() == [411, 509]
    x, prepared = features(table)
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
    names = features(table)[1].names()
    assert "occupation=Sales" in names
    assert not any(n.startswith("workclass") for n in names)
    with pytest.raises(InputError, match="unknown by of adult 'age'"):
        natural.adult("adult:by=age")
    with pytest.raises(InputError, match=r"unknown option of adult 'buy'.*by"):
        natural.adult("adult:buy=sex")


def test_speaking_roles():
    text = natural.shakespeare("shakespeare")
    assert len(text.client_names) == 309
    assert len(text.classes) == 65
    assert text.x.shape == text.y.shape == (len(text.client), 80)
    number = text.client_names.index("First Citizen")
    first = text.x[text.client == number][0]
    assert "".join(text.classes[i] for i in first).startswith("Before we proceed any further")
    real = text.y[:, 1:] >= 0  # the input of a later position is the target of the one before
    np.testing.assert_array_equal(text.y[:, :-1][real], text.x[:, 1:][real])
    assert natural.shakespeare("shakespeare:length=20").x.shape[1] == 20
    with pytest.raises(InputError, match="length=0: give a whole number from 1 to 1000"):
        natural.shakespeare("shakespeare:length=0")


def test_an_altered_file_is_refused(monkeypatch):
    monkeypatch.setitem(natural.DIGESTS, "shakespeare.txt", "0" * 64)
    with pytest.raises(InputError, match="not the publisher's file: install fedmaba again"):
        natural.shakespeare("shakespeare")


def test_hospitals_are_clients_of_their_own(tmp_path):
    fedmaba.compare(
        ["fedavg", "fedmaba"], data="heart", model="softmax", rounds=2, seeds=2, out=tmp_path / "r"
    )
    data = json.loads((tmp_path / "r" / "about.json").read_text())["data"]
    assert data["clients"] == ["Cleveland", "Hungary", "Long Beach VA", "Switzerland"]
    assert data["classes"] == ["no", "yes"]
    assert data["steps"][0] == "columns: label disease, client hospital; the others are features"
    assert any(
        step.startswith("gaps of numbers filled by the median of all") for step in data["steps"]
    )
    own = fedmaba.compare(
        "fedavg", data="heart", model="softmax", rounds=1, missing="client-median"
    )
    assert len(own.runs) == 3


def test_the_exported_table_is_the_same_federation(tmp_path):
    (path,) = datasets.export("heart", tmp_path)
    how = tables.reading("disease", "hospital", categorical=["cp", "restecg", "thal"])
    again, want = datasets.load(str(path), reading=how), datasets.load("heart")
    assert again.sha256() == want.sha256()
    assert again.preparation == want.preparation
    assert (again.client_names, again.classes) == (want.client_names, want.classes)


@pytest.mark.slow
def test_census_has_the_publishers_test_rows_and_groups():
    fed = Federation.make(datasets.load("adult:by=workclass,group=race"), "given")
    assert (fed.train.size.sum(), fed.test.size.sum()) == (32_561, 16_281)
    assert fed.data.group_names[-1] == "White"
    assert np.isfinite(fed.data.x).all()
    assert fed.n_clients == 9


def test_roles_with_few_speeches_are_left_out():
    fed = Federation.make("shakespeare:length=20", "given", test="local", min_examples=100)
    assert fed.data.task == "sequence"
    assert (fed.train.size + fed.test.size).min() >= 100
    (step,) = fed.data.steps
    assert step.startswith(f"clients: {309 - fed.n_clients} of 309 left out, with fewer than 100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "fedavg", "--data", "heart", "--label", "sex"), "its columns have their uses"),
        (("compare", "fedavg", "--data", "adult:by=age"), "unknown by of adult 'age'"),
        (("compare", "fedavg", "--data", "heart:by=sex"), "unknown option of heart 'by'"),
        (("compare", "fedavg", "--data", "shakespeare", "--missing", "median"), "no table with"),
        (("compare", "fedavg", "--data", "heart", "--task", "regress"), "heart has class labels"),
        (("compare", "fedavg", "--data", "hart"), "did you mean 'heart'"),
        (("data", "fetch", "heart"), "comes with the package: there is nothing to fetch"),
        (("data", "check", "adult:by=age"), "unknown by of adult 'age'"),
    ],
)
def test_what_these_sets_cannot_do_is_refused(words, said, call):
    answer = call(*words)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err


def test_commands_know_the_sets(call, tmp_path):
    checked = call("data", "check", "heart")
    assert checked.out.count(".xz: ok") == 4
    listed = call("list", "datasets").out
    assert "920 patients of four hospitals, 13 features with gaps (CC BY 4.0)" in listed
    assert call("data", "export", "heart", tmp_path / "a").code == 0
    assert (tmp_path / "a" / "heart.csv").read_text().startswith("hospital,age,")


def test_heart_has_sex_as_groups():
    table = natural.table("heart:group=sex")
    assert table.reading[:3] == ("disease", "hospital", "sex")
    sex = table.columns["sex"]
    assert dict(zip(sex.words, np.bincount(sex.code).tolist(), strict=True)) == {
        "female": 194,
        "male": 726,
    }
    assert "sex" not in features(table)[1].names()
    assert natural.table("heart").reading.group is None
    assert "sex" in features(natural.table("heart"))[1].names()
    with pytest.raises(InputError, match="unknown group of heart 'age'"):
        natural.check("heart:group=age")
