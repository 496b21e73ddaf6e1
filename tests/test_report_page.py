"""The page of a report without a browser: numbers, sizes, policy, escaping, what it embeds."""

import hashlib
import json
import math
import re
import shutil
from base64 import b64decode, b64encode

import numpy as np
import pytest
import torch

import fedmaba
import report_cases
from fedmaba.errors import InputError
from fedmaba.report import (
    data,
    export,
    page_data,
    page_numbers,
    run_setup,
    table,
    verdict,
)
from fedmaba.report import html as report
from fedmaba.results import run_folder
from fedmaba.results.history import History
from report_cases import Elements, call, one


def test_the_numbers_are_those_of_the_table_command(folder, tmp_path, monkeypatch, capsys):
    out = tmp_path / "report.html"
    call(monkeypatch, capsys, "report", folder, "-o", out)
    seen = Elements(out.read_text())
    embedded = json.loads(seen.content["script"][0])["tables"]
    for model in data.MODELS:
        for at in data.ATS:
            printed = call(monkeypatch, capsys, "table", folder, "--model", model, "--at", at)
            lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
            table = embedded[f"{model}.{at}"]
            assert table["caption"] in " ".join(printed.split())
            rows = [[row["label"], *(text for text, _ in row["cells"])] for row in table["rows"]]
            assert len(rows) == 3
            assert all(row in lines for row in rows)
            if (model, at) == ("deployed", "last"):  # what stands in the page before any script
                assert [row[:-1] for row in seen.rows[1:]] == rows


def test_the_share_of_a_report_is_that_of_a_table(folder, monkeypatch, capsys, tmp_path):
    call(monkeypatch, capsys, "report", folder, "-o", tmp_path / "r.html", "--share", "0.4")
    printed = call(monkeypatch, capsys, "table", folder, "--share", "0.4")
    head, *rows = Elements((tmp_path / "r.html").read_text()).rows
    assert "worst 40 %" in head
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    assert len(rows) == 3
    assert all(row[:-1] in lines for row in rows)
    plain = call(monkeypatch, capsys, "table", folder)
    assert not any(row[3] in plain for row in rows)  # the worst 5 % are others


def test_worst_and_best_are_of_the_share_that_the_run_was_asked_for(tmp_path, tiny_npz):
    history = fedmaba.compare(
        ["fedavg", "afl"], data=str(tiny_npz), model="softmax", rounds=4, eval_every=2, seeds=1,
        minibatch=5, share=0.4, out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    source = data.load_run_folder(tmp_path / "run")
    seen = page_data.tree([source])
    table = seen["tables"]["deployed.last"]
    assert table["columns"][2] == "worst 40 %"
    worst = history.summary()[0].mean.worst
    assert worst != history.summary(share=0.05)[0].mean.worst
    head, *rows = export.rounds(source.history)
    ends = [row for row in rows if row[:4] == ["fedavg", 0, 4, "deployed"]]
    assert [row[head.index("worst")] for row in ends] == [worst]
    assert seen["runs"][0]["fair"]["deployed"]["worst"][-1] == round(worst, 2)
    assert "worst 40 %" in history._repr_html_()
    assert history.plot("worst").axes[0].get_ylabel().startswith("worst 40 %")
    assert page_data.tree([source], 0.2)["tables"]["deployed.last"]["columns"][2] == "worst 20 %"


def test_lines_of_a_live_run_tell_no_worst_of_another_share(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "runs.json").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    source = data.load_run_folder(tmp_path / "run")
    assert source.lines
    assert not source.finished
    for share, known in ((0.05, True), (0.4, False)):
        seen = page_data.tree([source], share)
        (_, accuracy, worst, best) = seen["tables"]["deployed.last"]["rows"][0]["values"]
        assert accuracy is not None
        assert [worst is not None, best is not None] == [known, known]
        curve = seen["runs"][0]["fair"]["deployed"]
        assert (curve["worst"][-1] is not None) == known
        assert curve["variance"][-1] is not None


def test_the_policy_allows_our_script_and_style_and_nothing_else(folder):
    text = report.page([data.load_run_folder(folder)])
    seen = Elements(text)
    (policy,) = [a["content"] for t, a in seen.elements if a.get("http-equiv")]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    _, script = seen.content["script"]
    (style,) = seen.content["style"]
    for name, body in (("script-src", script), ("style-src", style)):
        digest = b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    assert [t for t, a in seen.elements if t == "script"] == ["script", "script"]
    for _, attributes in seen.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}
        for name in ("src", "href", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"https?://(?!www\.w3\.org)", script + style)
    built = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\bimport\("
    assert len(script) > 40_000
    assert not re.search(built, script)  # markup from text


def test_a_long_run_is_thinned_and_the_page_says_so():
    sparse = report.page([data.source_of(report_cases.history(clients=3, rounds=500, every=10))])
    assert "Of up to 500 rounds of a run, 400 are embedded" in sparse


def test_many_clients_are_thinned_too():
    history = report_cases.history(("fedavg", "afl"), 1, clients=3000, rounds=30, every=10)
    names = {"data": {"clients": [f"client {c}" for c in range(3000)]}}
    tree = page_data.tree([data.Source("many", history, names)])
    assert tree["runs"][0]["accuracy"]["shape"] == [3, 2000]
    who = tree["runs"][0]["client"]
    assert len(who) == 2000
    assert tree["folders"][0]["clients"] == [f"client {c}" for c in who]
    assert "2,000 are shown one by one" in " ".join(tree["notes"])


@pytest.mark.parametrize(("count", "keep"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_thinning_keeps_both_ends(count, keep):
    at = page_data.thin(count, keep)
    assert len(at) == min(count, keep)
    assert list(at) == sorted(set(at))
    if count:
        assert (at[0], at[-1]) == (0, count - 1)


def unpacked(packed):
    """A table as the script of the page reads it."""
    kind = np.dtype(f"<{packed['kind']}")
    values = np.frombuffer(b64decode(packed["data"]), kind).reshape(packed["shape"])
    if kind.kind == "f":
        return values
    none = values == np.iinfo(kind).max
    return np.where(none, np.nan, values / np.asarray(packed["of"], float))


@pytest.mark.parametrize("most", [1, 100, 254, 255, 256, 70_000])
def test_shares_of_test_examples_are_kept_as_they_are(most):
    rng = np.random.default_rng(most)
    size = rng.integers(1, most + 1, 9)
    values = rng.integers(0, size + 1, (7, 9)) / size
    values[2, 3] = np.nan
    for stored in (values, values.astype(np.float32).astype(float)):
        packed = page_numbers.shares(stored, size)
        np.testing.assert_array_equal(unpacked(packed), values)
        assert len(packed["data"]) <= 4 / 3 * 63 * np.dtype(f"<{packed['kind']}").itemsize + 4
    five = np.stack([values] * 5).mean(0)
    np.testing.assert_allclose(unpacked(page_numbers.shares(five, size, 5)), values, rtol=1e-15)


def test_scores_that_are_no_shares_are_kept_whole():
    values = np.random.default_rng(0).random((7, 9)) * 3 - 1
    values[2, 3] = np.nan
    np.testing.assert_array_equal(unpacked(page_numbers.shares(values, np.full(9, 10))), values)
    thin = unpacked(page_numbers.shares(values, np.full(9, 10), exact=False))
    np.testing.assert_allclose(thin, values, rtol=1e-7)


def test_a_lie_does_not_hide_the_other_losses():
    values = np.array([[2.333, 1e6, 2.3], [np.nan, 1e300, 2.2], [-np.inf, 3e38, 0.0]])
    seen = unpacked(page_numbers.floats(values))
    want = np.where(np.abs(values) < 1e38, values, np.nan)
    np.testing.assert_allclose(seen, want, rtol=1e-6)


def test_the_page_carries_the_tables_of_every_run(folder):
    source = data.load_run_folder(folder)
    seen = page_data.tree([source])
    for run, told in zip(source.history.runs, seen["runs"], strict=True):
        assert (told["evaluated"], told["rounds"]) == ([2, 4, 6], [1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(unpacked(told["accuracy"]), run.accuracy())
        tables = {"weight": run.weights()}
        if run.label != "fedavg":  # which asks for no loss
            loss = np.empty_like(run.weights())
            np.put_along_axis(loss, run.column("client"), run.column("reported_loss"), axis=1)
            tables["loss"] = loss
        for name, values in tables.items():
            np.testing.assert_allclose(unpacked(told[name]), values, rtol=1e-6, err_msg=name)
        for model in data.MODELS:
            for at in data.ATS:
                want = run.accuracy(model)[run.chosen(at, model)].mean(0, keepdims=True)
                seen_ = unpacked(told["final"][f"{model}.{at}"])
                np.testing.assert_allclose(seen_, want, rtol=1e-15)
                mean = run.fairness(model, at=run.chosen(at, model))
                figures = [[getattr(f, name) for name in table.FIGURES] for f in mean]
                want = np.mean(figures, axis=0).round(2)
                np.testing.assert_allclose(told["figures"][f"{model}.{at}"], want, atol=1e-9)
        weights = run.weights() / run.weights().sum(1, keepdims=True)
        want = np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(1))
        np.testing.assert_allclose(told["info"]["effective"], want, rtol=1e-5)
    assert any((run.accuracy() != run.accuracy("last"))[-1].any() for run in source.history.runs)
    counts = run_folder.load_labels(folder)
    for seed, told in seen["folders"][0]["labels"].items():
        np.testing.assert_array_equal(unpacked(told["counts"]), counts[int(seed)])


def test_the_overview_counts_what_was_run(folder):
    told = ["3 strategies", "2 seeds", "5 clients", "6 rounds"]
    assert report.overview([data.load_run_folder(folder)])[1:] == told
    few = report.overview([data.source_of(report_cases.history(("afl",), 1, clients=9, rounds=1))])
    assert few == ["1 strategy", "1 seed", "9 clients", "1 round"]


def test_the_set_up_has_the_hashes_and_the_command(folder):
    told, about = run_setup.setup_of(data.load_run_folder(folder)), run_folder.load_about(folder)
    (name, digest), *splits = told["hashes"]
    assert name.startswith("data ")
    assert digest == about["data"]["sha256"]
    assert dict(splits) == {f"partition, seed {s}": about["partition"][s] for s in ("0", "1")}
    assert told["repeat"] == [f"fedmaba run {folder}/experiment.toml --out NEW"]
    python = data.Source("run", History([]), {"python": True, "repeat": "the Python call"})
    assert run_setup.setup_of(python)["repeat"] == ["the Python call"]


def test_hostile_clients_are_called_as_everywhere_else():
    about = {"hostile": {"0": [1, 7]}, "data": {"clients": ["north", "south"]}}
    facts = run_setup.setup_of(data.Source("run", History([one("fedavg", [0.4, 0.8])]), about))[
        "facts"
    ]
    assert facts[-1] == ("hostile clients, seed 0", "south, 7")


def test_a_run_that_diverged_is_named(folder):
    source = data.source_of(
        History([one("fedavg", [0.4, 0.8]), one("afl", [0.1, 0.2], 0, "afl broke")])
    )
    assert "afl broke" in report.page([source])
    assert page_data.tree([source])["tables"]["deployed.last"]["rows"][1]["cells"][0][0] == "–"


def test_two_folders_keep_their_names_apart(folder, tmp_path):
    other = run_folder.load_history(folder)
    sources = [data.load_run_folder(folder), data.Source("other", other)]
    labels = [s["label"] for s in page_data.tree(sources)["strategies"]]
    assert labels[0] == "fedavg (run)"
    assert labels[3] == "fedavg (other)"
    said = verdict.verdicts_of_sources(sources)
    assert [one.where for one in said] == ["run", "other"]
    assert said[0].text.startswith("run: ")
    assert (
        len(verdict.verdicts_of_sources([data.source_of(other, "a"), data.source_of(other, "b")]))
        == 2
    )
    assert (
        len(verdict.verdicts_of_sources([data.load_run_folder(folder)] * 2)) == 1
    )  # of the same data


def test_labels_and_names_of_the_data_reach_the_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    owner = np.repeat(["north", "south"], 20)
    y = np.r_[np.zeros(20, int), rng.integers(0, 3, 20)]
    y[-3:] = [0, 1, 2]
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 4)), y=y, client=owner)
    out = tmp_path / "run"
    fedmaba.compare(
        "fedavg", data=str(tmp_path / "mine.npz"), model="softmax", rounds=1, seeds=1, out=out
    )
    assert run_folder.load_about(out)["data"]["clients"] == ["north", "south"]
    (counts,) = run_folder.load_labels(out).values()
    assert counts.shape == (2, 3)
    assert counts[0, 0] == counts[0].sum() == 16  # a fifth is for testing
    text = report.page([data.load_run_folder(out)])
    assert '"clients":["north","south"]' in text


def test_a_folder_without_label_counts_or_about_still_gives_a_page(folder, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "partition.npz").unlink()
    (bare / "about.json").unlink()
    (bare / "experiment.toml").write_text("strategies = 3\n")
    text = report.page([data.load_run_folder(bare)])
    assert "strategies = 3" in text
    (bare / "about.json").write_text("{")
    with pytest.raises(InputError, match=r"about\.json cannot be read"):
        data.load_run_folder(bare)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["report", "none"], 2, "is no run folder"),
        (["watch", "."], 2, "is no run folder"),
        (["report", "RUN", "-o", "a/b/c.html"], 74, "could not be written"),
        (["report", "RUN", "-o", "x.pdf"], 2, "x.pdf: a report is a page: end it in .html"),
        (["figure", "pie", "RUN", "-o", "x.pdf"], 2, "unknown figure 'pie'"),
        (["figure", "rounds", "RUN", "-o", "x.gif"], 2, "end it in .pdf"),
        (["report", "RUN", "RUN/."], 2, "is named twice"),
        (["figure", "rounds", "RUN", "RUN/.", "-o", "x.svg"], 2, "is named twice"),
    ],
)
def test_errors_are_one_line(words, code, said, folder, refused):
    assert said in refused(*(word.replace("RUN", str(folder)) for word in words), code=code)


def below_zero(outputs, targets):
    return -torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("broken", [False, True])
def test_a_metric_of_any_size_has_its_page(broken, tiny_npz, tmp_path):
    calls = []

    def metric(outputs, targets):  # good when it is tried, twice
        calls.append(len(targets))
        return below_zero(outputs, targets) * (math.nan if broken and len(calls) > 2 else 1.0)

    history = fedmaba.compare(
        ["fedavg", "fedmaba"],
        data=tiny_npz,
        model="softmax",
        rounds=2,
        seeds=[0],
        metric=metric,
        out=tmp_path / "run",
    )
    assert history._repr_html_().startswith("<table>")
    page = report.page([data.load_run_folder(tmp_path / "run")])
    said = "No score of any run is a finite number" if broken else "one seed"
    assert said in page
