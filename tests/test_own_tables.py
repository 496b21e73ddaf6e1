"""Your own table: alike from a file, a frame and arrays; prepared by each seed's training rows."""

import json

import numpy as np
import pytest

import fedmaba
from fedmaba import Federation
from fedmaba.data import datasets, frames, tables
from fedmaba.data.datasets import load
from fedmaba.data.federation import Division, divide, prepared
from fedmaba.data.preparation import Preparation
from fedmaba.data.tables import Reading
from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.experiment.session import prepare
from run_folders import asked, begun, files, play

RNG = np.random.default_rng(0)
N = 120
AGE = RNG.normal(50, 12, N).round(1)
WEIGHT = np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(75, 9, N).round(1))
SEX = RNG.choice(["f", "m"], N)
SITE = RNG.choice(["north", "south", "west"], N, p=[0.6, 0.3, 0.1])
OUTCOME = np.where(AGE + 5 * (SITE == "west") + RNG.normal(0, 8, N) > 50, "ill", "well")
COLUMNS = {"site": SITE, "age": AGE, "sex": SEX, "weight": WEIGHT, "outcome": OUTCOME}
HOW = {"label": "outcome", "client": "site"}
SHORT = {"model": "softmax", "rounds": 2, "seeds": 2, "eval_every": 1}


def csv(path, columns=COLUMNS):
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        lines.append(",".join("" if cell != cell else str(cell) for cell in row))
    path.write_text("\n".join(lines) + "\n")
    return path


def prepared_by_hand(fed):
    """The matrix of a federation's own split, written anew: medians, deviations, words, gaps."""
    train = fed.train.index
    x = [AGE, np.where(np.isnan(WEIGHT), np.nanmedian(WEIGHT[train]), WEIGHT)]
    x = [(c - c[train].mean()) / c[train].std() for c in x]
    gaps = np.isnan(WEIGHT).astype(float)
    return np.stack([x[0], SEX == "f", SEX == "m", x[1], gaps], 1)


def history_of(data, **more):
    runs = fedmaba.compare("fedavg", data=data, **SHORT, **more).runs
    return [run.accuracy().tolist() for run in runs]


def test_a_frame_is_the_same_as_arrays_prepared_by_hand():
    pd = pytest.importorskip("pandas")
    fed = Federation.from_frame(pd.DataFrame(COLUMNS), **HOW)
    y = np.unique(OUTCOME, return_inverse=True)[1]
    np.testing.assert_allclose(fed.data.x, prepared_by_hand(fed), rtol=1e-6, atol=1e-6)
    arrays = Federation.from_arrays(prepared_by_hand(fed).astype(np.float32), y, SITE)
    assert arrays.split.sha256() == fed.split.sha256()
    assert fed.data.classes == ("ill", "well")
    assert fed.client_names() == ("north", "south", "west")
    assert history_of(fed) == history_of(arrays)


def test_forms_of_a_table_give_the_same_runs(tmp_path):
    pd = pytest.importorskip("pandas")
    arrow = pytest.importorskip("pyarrow")
    frame = pd.DataFrame(COLUMNS)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    of_file = history_of(csv(tmp_path / "t.csv"), **HOW)
    assert history_of(tmp_path / "t.parquet", **HOW) == of_file
    for form in (frame, COLUMNS, arrow.Table.from_pandas(frame), frame.convert_dtypes()):
        assert history_of(Federation.from_frame(form, **HOW), resplit="yes") == of_file


def test_each_seed_is_prepared_by_its_own_training_rows(tmp_path):
    data = load(str(csv(tmp_path / "t.csv")), reading=tables.reading(**HOW))
    both = divide(data, [0, 1], Division())
    assert both[0].data is both[1].data
    for seed in (0, 1):
        alone = Federation.make(data, "given", seed=seed, test="local")
        for part in ("train", "test"):
            mine, own = getattr(both[seed], part), getattr(alone, part)
            np.testing.assert_array_equal(both[0].data.x[mine.index], alone.data.x[own.index])
            np.testing.assert_array_equal(both[0].data.y[mine.index], alone.data.y[own.index])
        want = prepared_by_hand(alone)[alone.train.index]
        np.testing.assert_allclose(alone.data.x[alone.train.index], want, rtol=1e-6, atol=1e-6)
    assert len(both[0].data.y) == 2 * N
    same = dict.fromkeys((0, 1), Federation.make(data, "given", test="local"))
    assert len(prepared(same)[1].data.y) == N


def test_medians_of_each_client():
    table = frames.read_frame(
        {"a": [1, 3, None, 10, None, None], "client": list("ppprrs"), "y": list("uvuvuv")},
        tables.reading(missing="client-median", standardise="no"),
    )
    data = datasets.from_table(table)
    done = data.preparation.apply(data.x, np.arange(6), data.client)
    assert done[:, 0].tolist() == [1, 3, 2, 10, 10, 3]  # s has none of its own: the median of all
    assert done[:, 1].tolist() == [0, 0, 1, 0, 1, 1]


def test_each_step_is_told_and_can_be_switched_off(tmp_path, call):
    path = csv(tmp_path / "t.csv")
    words = ["compare", "fedavg", "--data", path, "--label", "outcome", "--client", "site"]
    words += ["--model", "softmax", "--rounds", 1, "--seeds", 1, "--drop", "sex"]
    told = call(*words, "--out", tmp_path / "a", "--standardise", "no")
    assert told.code == 0
    steps = json.loads((tmp_path / "a" / "about.json").read_text())["data"]["steps"]
    first = next(line for line in told.err.splitlines() if line)
    assert first == "data: t.csv: 120 rows, 2 features; 3 clients, named by column site"
    assert steps == [
        "columns: label outcome, client site; the others are features",
        "columns left out: sex",
        "gaps of numbers filled by the median of all clients' training examples; a column of 0 and "
        "1 marks the gaps of weight",
    ]
    shown = " ".join((told.out + told.err).split())
    assert "data: columns left out: sex" in shown
    assert "labels: 0 = ill, 1 = well" in shown
    said = call(*words, "--out", tmp_path / "b", "--missing", "refuse")
    assert (said.code, "column weight: the cell is empty" in said.err) == (2, True)
    again = tmp_path / "a" / "experiment.toml"
    assert 'drop = ["sex"]' in again.read_text()
    assert call("run", again, "--out", tmp_path / "c").code == 0


def test_a_line_break_in_a_cell_is_told_and_loses_nothing(tmp_path):
    note = [f"seen\n{i}, then well" if i % 40 == 7 else "" for i in range(N)]
    path = csv(tmp_path / "t.csv", COLUMNS | {"note": [f'"{cell}"' for cell in note]})
    data = load(str(path), reading=tables.reading(**HOW, drop=["note"]))
    assert len(data.y) == N
    assert "rows with a line break in a cell: 3, the first in line 9" in data.steps


def test_the_first_line_says_who_the_clients_are(tmp_path):
    path = csv(tmp_path / "t.csv", {"client": SITE, "age": AGE, "label": OUTCOME})
    first = "data: t.csv: 120 rows, 1 feature; "
    for more, whence in (
        ({}, "3 clients, named by column client"),
        ({"partition": "iid", "clients": 7}, "7 clients, made by partition iid"),
        ({"drop": ["client"], "clients": 5}, "5 clients, made by partition shards:2: the data "),
    ):
        experiment = asked(path, **{f"data__{key}": value for key, value in more.items()})
        assert prepare(experiment).notes[0].startswith(first + whence)


def test_a_federation_is_shown_by_its_sizes():
    fed = Federation.from_frame(COLUMNS, **HOW)
    sizes = f"{len(fed.train.index)} train, 0 validation, {len(fed.test.index)} test"
    assert repr(fed) == f"Federation(frame: 3 clients, named by column site; examples: {sizes})"
    assert repr(fed.data) == "Dataset(frame: 120 rows, 5 features)"
    assert max(len(repr(part)) for part in (fed.split, fed.train, fed.origin)) < 400


def test_numbers_are_standardised_unless_you_say_no(tmp_path):
    plain = {"client": SITE, "a": AGE, "b": 1000 * AGE[::-1], "label": OUTCOME}
    data = load(str(csv(tmp_path / "t.csv", plain)))
    fed = Federation.make(data, "given", test="local")
    assert np.abs(fed.data.x[fed.train.index].mean(0)).max() < 1e-6
    as_is = load(str(tmp_path / "t.csv"), reading=Reading(standardise=False))
    fed = Federation.make(as_is, "given", test="local")
    np.testing.assert_array_equal(fed.data.x[:, 0], AGE.astype(np.float32))
    assert not any("standardised" in step for step in fed.data.steps)


def test_a_column_says_who_trains_validates_and_tests(tmp_path):
    part = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
    path = csv(tmp_path / "t.csv", {**COLUMNS, "fold": part})
    data = load(str(path), reading=tables.reading(**HOW, split="fold"))
    fed = Federation.make(data, "given", test="official")
    sizes = [fed.train.size.sum(), fed.validation.size.sum(), fed.test.size.sum()]
    assert sizes == [60, 30, 30]
    owner = fed.data.client[fed.validation.of(1)]
    assert (owner == 1).all()
    for words in ({"validation": 0.1}, {"spec": "iid", "clients": 3}):
        with pytest.raises(InputError, match="the data have a validation part of their own"):
            Federation.make(data, **({"spec": "given"} | words))


def test_groups_are_no_features(tmp_path):
    data = load(str(csv(tmp_path / "t.csv")), reading=tables.reading(**HOW, group="sex"))
    assert data.group_names == ("f", "m")
    assert [data.group_names[g] for g in data.group] == SEX.tolist()
    assert "sex" not in {feature.column for feature in data.preparation.features}
    other = load(str(tmp_path / "t.csv"), reading=tables.reading(**HOW, drop=["sex"]))
    assert data.sha256() != other.sha256()


def test_a_site_uses_numbers_as_they_are_and_refuses_the_rest(tmp_path):
    from fedmaba.deploy.client import LocalClient

    plain = load(str(csv(tmp_path / "t.csv", {"a": AGE, "label": OUTCOME})))
    site = LocalClient("softmax", plain, ["ill", "well"])
    np.testing.assert_array_equal(site.data.x[:, 0], AGE.astype(np.float32))
    assert site.data.x.dtype == np.float32
    for columns, words in (
        ({"sex": SEX, "label": OUTCOME}, "column sex has words: each site would number its own"),
        ({"a": WEIGHT, "label": OUTCOME}, "column a has gaps: fill them in the file"),
    ):
        data = load(str(csv(tmp_path / "t.csv", columns)))
        with pytest.raises(InputError, match=words):
            LocalClient("softmax", data, ["ill", "well"])


def test_a_run_on_a_table_resumes_with_the_same_bits(tmp_path):
    few = {"data__label": "outcome", "data__client": "site", "strategies": ["fedavg", "afl"]}
    experiment = asked(csv(tmp_path / "t.csv"), **few, train__participants="all")
    play(begun(experiment, tmp_path / "whole"))
    play(begun(experiment, tmp_path / "halves"), stop_after=4)
    play(starting.resume(tmp_path / "halves"))
    assert files(tmp_path / "halves") == files(tmp_path / "whole")


def test_a_run_of_a_version_that_did_not_standardise_is_told_so(tmp_path, monkeypatch):
    plain = {"client": SITE, "a": AGE, "label": OUTCOME}
    experiment = asked(csv(tmp_path / "t.csv", plain), train__participants="all")
    out = tmp_path / "run"
    with monkeypatch.context() as before:  # numbers as they are, and no word of it
        before.setattr(Preparation, "apply", lambda self, x, *_: x.astype(np.float32))
        play(begun(experiment, out), stop_after=4)
    about = json.loads((out / "about.json").read_text())
    del about["data"]["steps"]
    (out / "about.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match="begun by a version that used the numbers of a table as"):
        starting.resume(out)
