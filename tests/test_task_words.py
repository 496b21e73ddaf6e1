"""What a user says and sees of targets: inferred or told, refused in one line, recorded."""

import json

import numpy as np
import pytest
from torch import nn

import fedmaba
from fedmaba import Federation
from fedmaba.data import targets
from fedmaba.data.datasets import from_arrays, load
from fedmaba.errors import InputError
from fedmaba.experiment import starting
from fedmaba.rows import models
from run_folders import asked, begun, play, same_history

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
HALVES = X.sum(1)
MANY = (RNG.random((12, 4)) < 0.5).astype(int)
MANY[0] = [1, 1, 0, 0]
TEXT = np.arange(12 * 5).reshape(12, 5) % 7
OWNER = np.repeat(["a", "b"], 6)


@pytest.mark.parametrize(
    ("y", "task", "outputs"),
    [
        (np.arange(12) % 3, "classify", 3),
        ((np.arange(12) % 3).astype(float), "classify", 3),
        (np.array(["ill", "well"] * 6), "classify", 2),
        (HALVES, "regress", 1),
        (HALVES.astype(np.float64), "regress", 1),
        (X, "regress", 3),
        (HALVES[:, None], "regress", 1),
        (MANY, "multilabel", 4),
        (MANY.astype(bool), "multilabel", 4),
        (MANY.astype(np.float32), "multilabel", 4),
        (TEXT, "sequence", 7),
        (np.where(TEXT == 3, -100, TEXT), "sequence", 7),
        (TEXT.reshape(12, 5, 1), "sequence", 7),
    ],
)
def test_the_task_is_inferred_where_type_and_shape_leave_no_doubt(y, task, outputs):
    data = from_arrays(X, y)
    assert (data.task, data.target.outputs, data.task_given) == (task, outputs, False)
    assert from_arrays(X[:8], y[:8], x_test=X[8:], y_test=y[8:]).task == task
    same = np.unique(y, return_inverse=True)[1] if task == "classify" else y
    np.testing.assert_array_equal(data.y, same.astype(data.y.dtype))


ONE_HOT = np.eye(3, dtype=int)[np.arange(12) % 3]


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (
            MANY[:, :1],
            None,
            "y has shape (12, 1): for one label per example give y[:, 0]; else say",
        ),
        (
            TEXT[:, :1],
            None,
            "y has shape (12, 1): for one label per example give y[:, 0]; else say",
        ),
        (ONE_HOT, None, "exactly one 1 in each row: if that marks the class, give y.argmax(1)"),
        (TEXT.astype(float), None, "y has shape (12, 5) and dtype float64: say --task"),
        (np.where(np.arange(12) == 4, 0.5, 1.0), None, "y is 0.5 at row 4: labels are whole"),
        (HALVES, "classify", "at row 0: labels are whole numbers or words; for numbers say --task"),
        (HALVES, "multilabel", "y has shape (12,), but the task is multilabel: give an array"),
        (2 * MANY, "multilabel", "y is 2 at row 0: give an array (n, labels) of 0 and 1"),
        (HALVES, "sequence", "y has shape (12,), but the task is sequence: give whole numbers"),
        (np.where(TEXT == 6, -1, TEXT), "sequence", "y is -1 at row 1: give whole numbers from 0"),
        (np.where(TEXT < 5, -100, TEXT), "sequence", "y is -100 at row 0: leave this row out"),
        (np.where(np.arange(12) == 4, np.nan, HALVES), None, "y is nan at row 4: give finite"),
        (
            np.where(np.arange(12) == 4, 1e300, HALVES.astype(float)),
            None,
            "at row 4: give finite numbers of",
        ),
        (np.array(["a"] * 12), "regress", "y has dtype <U1, but the task is regress: give numbers"),
        (HALVES[:5], "regress", "y has shape (5,), but there are 12 examples: give numbers"),
        (HALVES, "guess", "unknown task 'guess'"),
    ],
)
def test_targets_in_doubt_or_wrong_are_refused(y, task, message):
    with pytest.raises(InputError) as caught:
        from_arrays(X, y, task=task)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_user_has_the_last_word():
    whole = np.arange(12)
    assert from_arrays(X, whole, task="regress").y.dtype == np.float32
    assert from_arrays(X, ONE_HOT, task="multilabel").target.outputs == 3
    assert from_arrays(X, MANY, task="sequence").target.outputs == 2
    assert from_arrays(X, MANY, task="regress").target.outputs == 4
    assert from_arrays(X, HALVES.round(), task="regress").task_given


def test_training_and_test_targets_are_of_one_kind():
    whole = np.arange(12.0)
    assert from_arrays(X, HALVES, x_test=X[:2], y_test=whole[:2]).task == "regress"
    with pytest.raises(InputError, match=r"y has examples of shape \(3,\), y_test of \(2,\)"):
        from_arrays(X, X, x_test=X, y_test=X[:, :2])


def test_the_vocabulary_of_a_text_is_that_of_inputs_and_targets():
    later = np.where(TEXT == 6, 2, TEXT)
    assert from_arrays(TEXT, later).target.outputs == 7
    assert from_arrays(TEXT, later, classes=list("abcdefghij")).target.outputs == 10
    with pytest.raises(InputError, match="classes names 3, but y has 7 classes, 0 to 6"):
        from_arrays(TEXT, TEXT, classes=list("abc"))
    with pytest.raises(InputError, match="classes names 3, but y has 4 labels"):
        from_arrays(X, MANY, classes=list("abc"))


def test_several_inputs_are_checked_together():
    with pytest.raises(InputError, match=r"x\.mask has 5 rows, x\.ids 12: give each one row"):
        from_arrays({"ids": TEXT, "mask": TEXT[:5]}, HALVES)
    with pytest.raises(InputError, match=r"x\.ids has dtype <U1"):
        from_arrays({"ids": np.full((12, 2), "a")}, HALVES)
    with pytest.raises(InputError, match="x has the key 'my ids': name an argument of the model"):
        from_arrays({"my ids": TEXT}, HALVES)
    both = {"ids": TEXT, "mask": TEXT > 2}
    with pytest.raises(
        InputError, match=r"x_test has x\.ids, x has x\.ids, x\.mask: give the same"
    ):
        from_arrays(both, HALVES, x_test={"ids": TEXT}, y_test=HALVES)
    with pytest.raises(InputError, match=r"the examples of x_test\.ids have shape \(2,\)"):
        from_arrays({"ids": TEXT}, HALVES, x_test={"ids": TEXT[:, :2]}, y_test=HALVES)
    rows = from_arrays(tuple(X), HALVES)  # a tuple of rows is one array
    np.testing.assert_array_equal(rows.x, X)
    with pytest.raises(
        InputError, match=r"model mlp takes one array, but the data have ids \(5,\)"
    ):
        fedmaba.compare("fedavg", data=Federation.from_arrays({"ids": TEXT}, HALVES, OWNER))


def test_a_digest_tells_kinds_and_inputs_apart():
    made = [
        from_arrays(X, MANY),
        from_arrays(X, MANY, task="sequence"),
        from_arrays(X, MANY, task="regress"),
        from_arrays({"a": X}, MANY),
        from_arrays({"b": X}, MANY),
        from_arrays((X,), MANY),
        from_arrays((X[:, :2], X[:, 2:]), MANY),
        from_arrays(TEXT, MANY),
        from_arrays(TEXT + 2**40, MANY),
        from_arrays(TEXT + 2**40 + 1, MANY),
    ]
    assert len({data.sha256() for data in made}) == len(made)


# files


def test_files_hold_every_kind(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **{"x.ids": TEXT, "x.mask": TEXT > 2, "y": TEXT, "client": OWNER})
    data = load(str(path))
    assert (data.task, [*data.x], data.x["mask"].dtype) == ("sequence", ["ids", "mask"], bool)
    np.savez(path, **{"x.0": X, "x.1": TEXT, "x_test.1": TEXT, "x_test.0": X},
             y=HALVES, y_test=HALVES)  # fmt: skip
    data = load(str(path))
    assert isinstance(data.x, tuple)
    assert (data.task, data.n_train, [v.shape for v in data.x]) == (
        "regress",
        12,
        [(24, 3), (24, 5)],
    )
    np.savez(path, **{"x": X, "x.ids": TEXT, "y": HALVES})
    with pytest.raises(InputError, match=r"arrays x and x\.ids: save one or the other"):
        load(str(path))
    np.savez(path, x=X, y=np.arange(12))
    assert load(str(path), task="regress").task == "regress"


def test_a_column_of_fractions_is_a_regression(tmp_path):
    path = tmp_path / "mine.csv"

    def written(labels):
        lines = [f"{a},{b},{c}" for (a, b, _), c in zip(X, labels, strict=True)]
        path.write_text("\n".join(["p,q,label", *lines, ""]))
        return str(path)

    data = load(written(HALVES))
    assert (data.task, data.classes) == ("regress", ())
    np.testing.assert_allclose(data.y, HALVES, rtol=1e-6)
    assert load(written(HALVES), task="classify").task == "classify"
    assert load(written(np.arange(12) / 1.0)).task == "classify"  # as pandas writes whole numbers
    assert load(written(np.arange(12)), task="regress").y.tolist() == list(range(12))
    for labels, task, message in (
        (["a"] * 12, "regress", r"line 2, column label: 'a' is no number, but the task is"),
        (HALVES, "sequence", r"a table has one label for each row: save an \.npz file"),
        (
            [*HALVES[:11], "nan"],
            "regress",
            r"line 13, column label: it is empty .1 such",
        ),
    ):
        with pytest.raises(InputError, match=message):
            load(written(labels), task=task)


# what goes with it


@pytest.mark.parametrize("spec", ["shards:2", "dirichlet:0.5"])
def test_a_partition_by_label_needs_labels(spec):
    with pytest.raises(InputError) as caught:
        Federation.make(from_arrays(X, HALVES), spec, 2, test="local")
    assert str(caught.value) == (
        f"partition {spec} divides by class label, but the targets are 1 number for each example: "
        "say --partition iid or sizes, or name each example's client in the data"
    )
    for other in ("iid", "sizes:1"):
        assert Federation.make(from_arrays(X, HALVES), other, 2, test="local").labels() is None


def test_only_classes_can_be_flipped():
    mine = Federation.from_arrays(X, HALVES, np.arange(12) % 4)
    with pytest.raises(InputError, match="attack labels=flip, but the targets are 1 number"):
        fedmaba.compare("fedavg", data=mine, attack="labels=flip", hostile="25%", rounds=1)
    fedmaba.compare(
        "fedavg", data=mine, attack="update=-1", hostile="25%", rounds=1, seeds=1, model="softmax"
    )


@pytest.fixture(scope="module")
def numbers_npz(tmp_path_factory):
    path = tmp_path_factory.mktemp("task") / "numbers.npz"
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(90, 3)), np.repeat(np.arange(3), 30)
    np.savez(path, x=x, y=x @ [1.0, -2.0, 0.5] + 0.3 * owner, client=owner)
    return path


def test_a_run_says_and_records_its_task(numbers_npz, tmp_path, call):
    out = tmp_path / "run"
    words = ["compare", "fedavg", "fedmaba", "--data", str(numbers_npz), "--model", "softmax",
             "--rounds", "4", "--eval-every", "2", "--lr", "0.05", "--seeds", "2"]  # fmt: skip
    done = call(*words, "--out", str(out))
    assert done.code == 0, done.err
    line = (
        "task: regress (by the shape and type of y): 1 number for each example; mean squared "
        "error, lower is better"
    )
    assert line in done.err
    about = json.loads((out / "about.json").read_text())
    assert about["data"]["task"] == "regress"
    assert about["data"]["target"] == "1 number for each example"
    assert about["metric"] == {"name": "mean squared error", "lower": True, "shares": False}
    assert "%²" not in done.out
    assert "mean squared error" in done.out
    told = call(*words, "--task", "regress", "--out", str(tmp_path / "told"))
    assert "task: regress: 1 number for each example; mean squared error" in told.err
    assert 'task = "regress"' in (tmp_path / "told" / "experiment.toml").read_text()
    assert "task =" not in (out / "experiment.toml").read_text()
    other = call(*words, "--task", "regress", "--out", str(out))
    assert other.code == 2
    assert "holds another experiment, in data.task" in other.err


class Net(nn.Module):
    def __init__(self, tokens, outputs, turned=False):
        super().__init__()
        self.embed, self.out, self.turned = nn.Embedding(tokens, 4), nn.Linear(4, outputs), turned

    def forward(self, x):
        out = self.out(self.embed(x))
        return out.movedim(-1, 1) if self.turned else out


@pytest.mark.parametrize(
    ("x", "y", "model", "message"),
    [
        (X, HALVES, lambda s, c: nn.Linear(3, 2), r"outputs of shape \(2,\).*regress.*give \(1,\)"),
        (X, X, lambda s, c: nn.Linear(3, 2), r"outputs of shape \(2,\).*3 numbers.*give \(3,\)"),
        (X, MANY, lambda s, c: nn.Linear(3, 5), r"outputs of shape \(5,\).*any of 4 labels"),
        (
            TEXT,
            TEXT,
            lambda s, c: Net(7, c, True),
            r"\(7, 5\).*give \(5, 7\): the classes come last",
        ),
        (TEXT, TEXT, lambda s, c: Net(7, 3), r"\(5, 3\) per example, but the task is sequence"),
        (
            TEXT,
            TEXT,
            lambda s, c: Net(5, c),
            "gets token id 6, but its Embedding has 5 rows, for 0",
        ),
        (TEXT - 1, TEXT, lambda s, c: Net(7, c), "gets token id -1, but its Embedding has 7 rows"),
        (X, TEXT, "mlp", r"model 'mlp' gives outputs of shape \(7,\).*sequence"),
        (X, np.arange(12) % 3, lambda s, c: nn.Linear(3, 2), "at least 3 outputs"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_any_work(x, y, model, message, tmp_path):
    mine, out = Federation.from_arrays(x, y, OWNER), tmp_path / "run"
    with pytest.raises(InputError, match=message) as caught:
        fedmaba.compare("fedavg", data=mine, model=model, rounds=1, seeds=1, out=out)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_data_made_in_python_have_their_task():
    mine = Federation.from_arrays(X, HALVES, OWNER)
    with pytest.raises(InputError, match=r"task='multilabel', but the data given are for regress"):
        fedmaba.compare("fedavg", data=mine, task="multilabel", rounds=1)
    fedmaba.compare("fedavg", data=mine, task="regress", model="softmax", rounds=1, seeds=1)


def test_a_resumed_regression_goes_on_as_if_never_stopped(numbers_npz, tmp_path):
    wanted = asked(numbers_npz, strategies=["fedavg", "fedmaba"], seeds=1, train__lr=0.05)
    whole = play(begun(wanted, tmp_path / "whole")).history
    play(begun(wanted, tmp_path / "half"), stop_after=2)
    rest = play(starting.resume(tmp_path / "half")).history
    same_history(rest, whole)
    again = fedmaba.load_history(tmp_path / "half")
    assert again.unit == rest.unit == whole.unit
    assert again.unit.lower


@pytest.mark.parametrize("name", ["lstm", "gpt"])
@pytest.mark.parametrize(("y", "outputs"), [(TEXT, (5, 7)), (np.arange(12) % 3, (3,))])
def test_a_ready_model_of_tokens_follows_the_task(name, y, outputs):
    """One class after the last token, or one at each position."""
    data = from_arrays(TEXT, y)
    kind, make = data.target, models.find_factory(name)
    model = models.build_model(make, data.shape, kind.outputs, 0, target=kind)
    assert models.outputs_of(model.eval(), data.shape) == outputs


def test_a_factory_is_told_the_target_if_it_has_a_place_for_it():
    told = []

    def model(shape, classes, target):
        told.append((shape, classes, target))
        return nn.Linear(3, classes)

    mine = Federation.from_arrays(X, HALVES, OWNER)
    fedmaba.compare("fedavg", data=mine, model=model, rounds=1, seeds=1, lr=0.01)
    assert told[0] == ((3,), 1, targets.TargetKind("regress", (), 1))
