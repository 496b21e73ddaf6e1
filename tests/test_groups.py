"""Groups of people: how each client and group is served, and the gaps, as fairlearn has them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import fedmaba
from fedmaba.data.groups import judged
from fedmaba.errors import InputError
from fedmaba.results import groups, run_folder
from fedmaba.results.saved_history import from_arrays
from group_cases import compare, people
from run_folders import asked, begun, play, same_history


def counts_of(y, told, group, n):
    """(G, 4), one example after another."""
    out = np.zeros((n, 4), np.int64)
    for a, b, g in zip(y, told, group, strict=True):
        out[g, 2 * a + b] += 1
    return out


# --- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4))]
)  # two, three and four groups
def test_gaps_are_those_of_fairlearn(seed):
    theirs = pytest.importorskip("fairlearn.metrics", reason="needs fairlearn")
    sk = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    rng = np.random.default_rng(seed)
    n = 2 + seed % 3
    y, told, group = rng.integers(2, size=200), rng.integers(2, size=200), rng.integers(n, size=200)
    ours = groups.gaps(counts_of(y, told, group, n))
    rates = groups.rates(counts_of(y, told, group, n))
    frame = theirs.MetricFrame(
        metrics={
            "accuracy": sk.accuracy_score,
            "selected": theirs.selection_rate,
            "true_positive": theirs.true_positive_rate,
            "false_positive": theirs.false_positive_rate,
            "size": theirs.count,
        },
        y_true=y,
        y_pred=told,
        sensitive_features=group,
    )
    about = {"y_true": y, "y_pred": told, "sensitive_features": group}
    same = {
        "worst": frame.group_min()["accuracy"],
        "accuracy": frame.difference()["accuracy"],
        "parity": theirs.demographic_parity_difference(y, told, sensitive_features=group),
        "odds": theirs.equalized_odds_difference(**about),
    }
    for name, want in same.items():
        assert float(getattr(ours, name)) == pytest.approx(want, rel=0, abs=1e-12), name
    for name in rates._fields:
        np.testing.assert_allclose(getattr(rates, name), frame.by_group[name], rtol=0, atol=1e-12)


def test_a_group_without_examples_or_positives_is_left_out():
    counts = np.array([[5, 5, 2, 8], [0, 0, 0, 0], [4, 6, 0, 0]])  # the third has no positives
    rates, gaps = groups.rates(counts), groups.gaps(counts)
    assert rates.size.tolist() == [20, 0, 10]
    assert np.isnan(rates.accuracy[1])
    assert np.isnan(rates.true_positive[[1, 2]]).all()
    assert float(gaps.worst) == 0.4
    assert float(gaps.accuracy) == pytest.approx(0.65 - 0.4)
    assert float(gaps.odds) == pytest.approx(0.1)  # of false positives alone
    alone = groups.gaps(counts[:1])
    assert float(alone.worst) == 0.65
    assert np.isnan([alone.accuracy, alone.parity, alone.odds]).all()
    nobody = groups.gaps(counts[1:2])
    assert np.isnan([float(v) for v in nobody]).all()


def test_gaps_within_clients_and_over_all_of_them_are_different_things():
    # Each client treats its groups alike, but one client, mostly women, is served badly.
    counts = np.array([[[1, 9, 9, 1], [1, 1, 1, 1]], [[1, 1, 1, 1], [9, 1, 1, 9]]])
    counts[0, 1] = [0, 2, 2, 0]
    counts[0, 0] = [0, 10, 10, 0]
    counts[1, 0] = [2, 0, 0, 2]
    counts[1, 1] = [10, 0, 0, 10]
    found = groups.figures(counts)
    assert found.within_accuracy == found.within_odds == 0.0
    assert found.accuracy == pytest.approx(100 * (20 / 24 - 4 / 24))
    assert found.worst == pytest.approx(100 * 4 / 24)


def test_more_classes_have_accuracies_and_no_rates():
    found = groups.figures(np.array([[[2, 8], [5, 5]]]))
    assert found.accuracy == pytest.approx(30)
    assert found.worst == pytest.approx(50)
    assert np.isnan([found.parity, found.odds, found.within_parity]).all()


# --- the record --------------------------------------------------------------------------------


def plain_counts(fed, w, b):
    """Counts by client and group from the weights of a linear model, example by example."""
    want = np.zeros((fed.n_clients, len(fed.data.group_names), 4), np.int64)
    for c in range(fed.n_clients):
        for i in fed.test.of(c):
            told = int(np.argmax(w @ fed.data.x[i].astype(np.float64) + b))
            want[c, fed.data.group[i], 2 * fed.data.y[i] + told] += 1
    return want


def test_counts_are_those_of_a_plain_loop_over_the_test_examples(tmp_path):
    from safetensors.numpy import load_file

    fed = people(validation=0.2)
    history = compare(["fedavg", "fedmaba"], fed, out=tmp_path / "run")
    for r, run in enumerate(history.runs):
        for model in ("last", "deployed"):
            stem = run_folder.run_file_stem(r, run.label, run.seed)
            file = tmp_path / "run" / "models" / f"{stem}-{model}.safetensors"
            w, b = load_file(file).values()
            w, b = (w, b) if w.ndim == 2 else (b, w)
            counts = run.group_counts(model)
            assert counts.shape == (3, 5, 2, 4)
            np.testing.assert_array_equal(counts[-1], plain_counts(fed, w, b))
            right = counts[..., [0, 3]].sum((2, 3)) / run.test_size
            np.testing.assert_allclose(right, run.accuracy(model), rtol=0, atol=1e-12)
        assert run.column("deployed_validation.groups").sum() == 3 * len(fed.validation.index)
    assert run.groups == groups.Groups(("men", "women"), "1")


def test_a_run_folder_keeps_groups_and_an_edited_one_is_refused(tmp_path):
    history = compare(out=tmp_path / "run")
    read = run_folder.load_history(tmp_path / "run")
    (a,), (b,) = history.runs, read.runs
    assert a.groups == b.groups
    np.testing.assert_array_equal(a.group_counts(), b.group_counts())
    about = json.loads((tmp_path / "run" / "runs.json").read_text())["runs"][0]
    tables = a.arrays()
    for wrong in (
        {"deployed.groups": tables["deployed.groups"][:, :, :1]},
        {"deployed.groups": tables["deployed.groups"][:-1]},
        {"deployed.groups": -tables["deployed.groups"]},
        {"deployed.groups": tables["deployed.groups"].astype(float)},
    ):
        with pytest.raises(ValueError, match=r"deployed\.groups"):
            from_arrays([about], [tables | wrong])


def saved(tmp_path):
    """The same people as a file."""
    fed = people()
    parts = {"x": fed.data.x, "y": fed.data.y, "client": fed.data.client}
    np.savez(tmp_path / "people.npz", **parts, group=np.array(fed.data.group_names)[fed.data.group])
    return asked(tmp_path / "people.npz", strategies=["fedavg", "fairfed"])


@pytest.mark.slow
@pytest.mark.parametrize("old", [False, True])
def test_a_run_goes_on_as_it_was_begun(tmp_path, old):
    """Also one of a version that did not count by groups: it goes on without."""
    asked_ = saved(tmp_path)
    first = begun(asked_, tmp_path / "run")
    for run in first.history.runs if old else ():
        run.groups = groups.Groups()
    play(first, stop_after=3)
    second = play(begun(asked_, tmp_path / "run"))
    whole = play(begun(asked_, tmp_path / "whole")).history
    read = run_folder.load_history(tmp_path / "run")
    same_history(second.history, read)
    if old:
        assert not any(name.endswith(".groups") for run in read.runs for name in run.tables)
        np.testing.assert_array_equal(read.runs[2].accuracy(), whole.runs[2].accuracy())
    else:
        same_history(read, whole)
        assert read.runs[0].group_counts().shape == (3, 5, 2, 4)


@pytest.mark.slow
def test_clients_that_keep_a_part_of_the_model_are_counted_with_it():
    def normed(shape, classes):
        return nn.Sequential(nn.Linear(*shape, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))

    options = {"rounds": 2, "seeds": 1, "batchnorm": "local", "minibatch": 6, "steps": 3}
    own = fedmaba.compare("fedavg", model=normed, data=people(), dtype="float64", **options).runs[0]
    right = own.group_counts()[..., [0, 3]].sum((2, 3)) / own.test_size
    np.testing.assert_allclose(right, own.accuracy(), rtol=0, atol=1e-12)


# --- pandas ------------------------------------------------------------------------------------


def test_pandas_has_a_row_for_each_client_and_group_with_examples():
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    fed = people(lonely=(2,))
    history = compare(given=fed, seeds=2)
    frame = history.groups_to_pandas()
    last = frame[(frame["model"] == "deployed") & (frame["round"] == 3) & (frame["seed"] == 0)]
    assert len(last) == 9  # client 2 has one group
    assert set(last[last["client"] == 2]["group"]) == {"women"}
    assert last["examples"].sum() == history.runs[0].test_size.sum()
    counts = history.runs[0].group_counts()[-1, 3, 1]
    cell = last[(last["client"] == 3) & (last["group"] == "women")].iloc[0]
    assert cell["accuracy"] == (counts[0] + counts[3]) / counts.sum()
    assert isinstance(frame, pandas.DataFrame)


def test_the_summary_is_the_mean_over_seeds():
    history = compare(["fedavg", "fedmaba"], seeds=3)
    fedavg = history.group_summary()[0]
    each = [groups.figures(r.group_counts()[-1]) for r in history.runs if r.label == "fedavg"]
    assert fedavg.seeds == 3
    np.testing.assert_allclose(fedavg.mean, np.mean(each, axis=0))
    np.testing.assert_allclose(fedavg.sd, np.std(each, axis=0, ddof=1))
    assert fedavg.rates.shape == (4, 2)
    plain = fedmaba.compare("fedavg", clients=5, rounds=1, seeds=1)
    for ask in (plain.group_summary, plain.groups_to_pandas, plain.runs[0].group_counts):
        with pytest.raises(InputError, match="no groups"):
            ask()


# --- who is judged, in words -------------------------------------------------------------------


def test_what_is_judged_is_said():
    found = judged(people(lonely=(2, 3)))
    assert found.yes
    assert found.note.startswith("groups: men ")
    assert "2 of 5 clients have no test example of some group" in found.note
    assert judged(people(groups=1)) == (
        False,
        "groups: all examples are of one group (women): nothing to compare",
    )
    x, y = np.zeros((8, 2), np.float32), np.arange(8) % 2
    own = {"client": np.arange(8) // 4, "group": np.arange(8) % 2}
    unsaid = fedmaba.Federation.from_arrays(x, y, **own, x_test=x, y_test=y, client_test=y)
    assert judged(unsaid).note.endswith("test examples have none: add group_test")
    numbers = fedmaba.Federation.from_arrays(x, y.astype(np.float32), **own, task="regress")
    assert "they are not judged: it is for classes" in judged(numbers).note
    assert judged(replace(unsaid, data=replace(unsaid.data, group=None))) == (False, "")


def test_clients_that_come_one_by_one_have_groups():
    fed = people()
    names = np.array(fed.data.group_names)
    clients = {}
    for c in range(5):
        own, test = fed.train.of(c), fed.test.of(c)
        clients[str(c)] = {
            "x": fed.data.x[own],
            "y": fed.data.y[own],
            "group": names[fed.data.group[own]],
            "x_test": fed.data.x[test],
            "y_test": fed.data.y[test],
            "group_test": names[fed.data.group[test]],
        }
    made = fedmaba.Federation.from_clients(clients)
    for c in range(5):
        for part in ("train", "test"):
            want, got = (getattr(f, part).of(c) for f in (fed, made))
            np.testing.assert_array_equal(fed.data.group[want], made.data.group[got])
    assert judged(made).yes
    short = clients | {"1": clients["1"] | {"group": np.array(["men"])}}
    with pytest.raises(InputError, match=r"client '1' has group of shape \(1,\): give the group"):
        fedmaba.Federation.from_clients(short)
    del clients["2"]["group_test"]
    with pytest.raises(InputError, match="some clients have group_test, others do not"):
        fedmaba.Federation.from_clients(clients)


def test_a_table_says_the_group_by_a_column():
    fed = people()
    columns = {f"x{i}": fed.data.x[:, i].tolist() for i in range(4)}
    columns |= {"ill": fed.data.y.tolist(), "site": fed.data.client.tolist()}
    columns["sex"] = np.array(fed.data.group_names)[fed.data.group].tolist()
    made = fedmaba.Federation.from_frame(columns, label="ill", client="site", group="sex")
    run = fedmaba.compare("fedavg", data=made, model="softmax", rounds=1, seeds=1).runs[0]
    assert run.groups.names == ("men", "women")
    assert run.group_counts()[-1].sum() == run.test_size.sum()
