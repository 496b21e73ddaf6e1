"""Metrics of one client's predictions equal scikit-learn's, or are nan where undefined."""

import numpy as np
import pytest

from fedmaba.errors import InputError
from fedmaba.results import client_metrics as cm


@pytest.fixture(scope="module")
def sk():
    return pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")


def predictions(seed, classes):
    """Outputs and targets of one client: few examples, ties, classes that nobody has."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    outputs = np.round(rng.normal(size=(n, classes)), int(rng.integers(0, 4)))
    y = rng.integers(0, int(rng.integers(1, classes + 1)), size=n)
    return outputs, y


def one_vs_rest(score, p, y):
    if p.shape[1] == 2:
        return score(y == 1, p[:, 1])
    return np.mean([score(y == c, p[:, c]) for c in np.unique(y)])


def calibration(p, y):
    """The definition, bin by bin."""
    sure, right, total = p.max(1), p.argmax(1) == y, 0.0
    for b in range(15):
        inside = (sure > b / 15) & (sure <= (b + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(sure[inside].mean() - right[inside].mean())
    return total


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize(
    "seed", [*range(9), *(pytest.param(n, marks=pytest.mark.slow) for n in range(9, 25))]
)
def test_classification_equals_scikit_learn(seed, classes, sk):
    outputs, y = predictions(seed, classes)
    told, p = outputs.argmax(1), cm.probabilities(outputs)
    found = {name: cm.METRICS[name].score(outputs, y) for name in cm.METRICS if name != "r2"}
    recall = sk.recall_score(y, told, labels=np.unique(y), average="macro", zero_division=0)
    want = {
        "accuracy": sk.accuracy_score(y, told),
        "balanced-accuracy": recall,
        "f1": sk.f1_score(y, told, average="macro", zero_division=0),
        "ece": calibration(p, y),
        "perplexity": np.exp(sk.log_loss(y, p, labels=range(classes))),
    }
    right = np.eye(classes)[y]
    want["brier"] = (
        sk.brier_score_loss(y, p[:, 1], labels=[0, 1], pos_label=1)
        if classes == 2
        else np.square(p - right).sum(1).mean()
    )
    if len(np.unique(y)) > 1:
        want["auc"] = one_vs_rest(sk.roc_auc_score, p, y)
        want["average-precision"] = one_vs_rest(sk.average_precision_score, p, y)
    else:
        assert np.isnan(found["auc"])
        assert np.isnan(found["average-precision"])
    for name, value in want.items():
        assert found[name] == pytest.approx(value, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("width", [1, 3])
def test_regression_equals_scikit_learn(width, sk):
    rng = np.random.default_rng(width)
    outputs, y = rng.normal(size=(40, width)), rng.normal(size=(40, width))
    assert cm.rmse(outputs, y) == pytest.approx(np.sqrt(sk.mean_squared_error(y, outputs)), 1e-12)
    assert cm.mae(outputs, y) == pytest.approx(sk.mean_absolute_error(y, outputs), 1e-12)
    assert cm.r2(outputs, y) == pytest.approx(sk.r2_score(y, outputs), 1e-12)
    assert cm.rmse(outputs[:, 0], y[:, 0]) == pytest.approx(cm.rmse(outputs[:, :1], y[:, :1]))
    assert np.isnan(cm.r2(outputs[:1], y[:1]))
    assert np.isnan(cm.r2(outputs, np.ones_like(y)))


def test_perplexity_leaves_out_positions_without_a_target():
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(3, 4, 5)), rng.integers(0, 5, size=(3, 4))
    y[0, 2:] = -100
    kept = y.reshape(-1) >= 0
    want = cm.perplexity(outputs.reshape(-1, 5)[kept], y.reshape(-1)[kept])
    assert cm.perplexity(outputs, y) == pytest.approx(want, rel=1e-15)
    assert np.isnan(cm.perplexity(outputs, np.full_like(y, -100)))


def test_an_unknown_metric_is_refused_with_a_hint():
    with pytest.raises(InputError, match=r"unknown metric 'acurracy'.*accuracy"):
        cm.metric_named("acurracy", "classify")
