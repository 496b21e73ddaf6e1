"""The numbers of a page in Chromium: true ones, of the model and round that are chosen."""

import csv
import io
import re

import numpy as np
import pytest

import page_browser
from fedmaba.report import data, html
from fedmaba.results.history import History, RunHistory

pytestmark = page_browser.IN_A_BROWSER
page, real = page_browser.page, page_browser.real


def whole_percentages() -> History:
    """Three seeds of twenty clients, 100 test examples each; many scores on the edge of a bin."""
    rng, runs = np.random.default_rng(7), []
    for k, label in enumerate(("fedavg", "afl")):
        for seed in range(3):
            run = RunHistory(label, seed, "average", np.full(20, 100))
            run.tables = {"evaluated": [np.asarray(1), np.asarray(2)]}
            for m, model in enumerate(data.MODELS):
                right = 5 * rng.integers(5 + k, 19 - m, (2, 20)) + rng.integers(0, 2, (2, 20))
                run.tables[f"{model}.accuracy"] = list(right / 100)
                run.tables[f"{model}.loss"] = list(np.ones((2, 20)))
            runs.append(run)
    return History(runs)


@pytest.fixture(scope="module")
def percent(tmp_path_factory):
    history = whole_percentages()
    out = tmp_path_factory.mktemp("percent") / "r.html"
    out.write_text(html.page([data.source_of(history)]), encoding="utf-8")
    return history, out


def downloaded(page, name: str) -> list[dict[str, str]]:
    (page.downloads / f"{name}.csv").unlink(missing_ok=True)
    page.click(f"#fig-{name} [data-act=csv]")
    return list(csv.DictReader(io.StringIO(page.file(f"{name}.csv").read_text())))


@pytest.mark.parametrize(("model", "at"), [("deployed", "last"), ("last", "last5")])
def test_the_histogram_counts_as_numpy_does(page, percent, model, at):
    history, out = percent
    page.open(out)
    page.click(f"#models [data-model={model}]")
    page.choose("#at", at)
    page.drawn()
    rows = downloaded(page, "hist")
    for label in ("fedavg", "afl"):
        runs = [run for run in history.runs if run.label == label]
        right = [np.rint(100 * run.accuracy(model)) for run in runs]
        pairs = zip(right, runs, strict=True)
        mean = np.concatenate([r[run.chosen(at)].mean(0) for r, run in pairs])
        want, _ = np.histogram(mean, np.linspace(0, 100, 21))
        seen = [int(row["client-seed pairs"]) for row in rows if row["strategy"] == label]
        assert seen == list(want)
    assert "20 clients x 3 seeds" in page.point("#fig-hist", 0.5, 0.5)


def test_exported_values_are_the_true_ones(page, percent):
    history, out = percent
    page.open(out)
    rows = downloaded(page, "dots")
    assert len(rows) == 120
    assert all(re.fullmatch(r"\d+", row["accuracy %"]) for row in rows)  # not 26.000580191612244
    for run in history.runs:
        own = [r for r in rows if (r["strategy"], r["seed"]) == (run.label, str(run.seed))]
        seen = {r["client"]: float(r["accuracy %"]) for r in own}
        want = {f"client {c}": 100 * a for c, a in enumerate(run.accuracy()[-1])}
        assert seen == pytest.approx(want, abs=1e-9)
    gains = downloaded(page, "gains")
    assert all(re.fullmatch(r"-?\d+", row["difference"]) for row in gains)


def test_the_copied_table_has_one_number_in_a_cell(page, percent):
    history, out = percent
    page.open(out)
    page.js(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
        "{value: {writeText: t => { window.copied.push(t); return Promise.resolve(); }}})"
    )
    page.click("[data-copy=csv]")
    page.until("window.copied.length === 1")
    rows = list(csv.DictReader(io.StringIO(page.js("return window.copied[0]"))))
    for row, want in zip(rows, history.summary(), strict=True):
        assert row.pop("strategy") == want.label
        values = {name: float(value) for name, value in row.items()}
        assert values["variance %²"] == float(f"{want.mean.variance:.2f}")
        assert values["sd of variance %²"] == float(f"{want.sd.variance:.2f}")


def test_the_verdict_follows_the_model_and_the_round(page, real):
    page.open(real[1])
    seen = {}
    for model in ("deployed", "last"):
        page.click(f"#models [data-model={model}]")
        for at in ("last", "best", "last5"):
            page.choose("#at", at)
            page.drawn()
            rows = dict(
                zip(
                    page.texts("#table tbody th"), page.texts("#table td:nth-child(2)"), strict=True
                )
            )
            shown = page.texts("#verdict-text .tiles small:last-child")[0].replace("\u00a0", " ")
            named, now, then = re.fullmatch(
                r"(\S+) ([\d.]+) %², fedavg ([\d.]+) %²", shown
            ).groups()
            assert rows[named].split(" ")[0] == now
            assert rows["fedavg"].split(" ")[0] == then
            assert named in page.texts("#verdict-text")[0]
            seen[model, at] = page.texts("#verdict-text .lead")[0]
            dots = downloaded(page, "tradeoff")
            mean = next(r for r in dots if (r["strategy"], r["seed"]) == (named, "mean"))
            assert float(mean["variance"]) == pytest.approx(float(now), abs=0.011)
    assert seen["deployed", "last"] != seen["last", "last"]


def test_clients_and_seeds_are_told_apart(page, percent):
    _, out = percent
    page.open(out)
    said = page.texts("#gains-text")[0]
    assert "20 clients under 3 seeds (60 cases)" in said
    assert not re.search(r"of 60 clients", " ".join(page.texts("main")))
    page.choose("#gains-seed", "1")
    assert "20 clients, seed 1:" in page.texts("#gains-text")[0]
