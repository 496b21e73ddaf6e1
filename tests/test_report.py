"""The report without a browser: numbers, sizes, policy, escaping, the server, figures, exports."""

import contextlib
import csv
import hashlib
import html.parser
import http.client
import json
import math
import re
import shutil
import socket
import sys
import threading
from base64 import b64decode, b64encode
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import fedmaba
import report_cases
from fedmaba import cli, load_history, strategies, user_code
from fedmaba.errors import Diverged, InputError
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.report import (
    data,
    document,
    export,
    figures,
    numbers,
    scene,
    table,
    tensorboard,
    terminal,
    watch,
)
from fedmaba.report import html as report
from fedmaba.results import files, run_folder
from fedmaba.results.history import History, RunHistory
from report_cases import PAYLOADS

SECTIONS = [
    "verdict", "summary", "distribution", "tradeoff", "rounds", "weights", "gains", "client",
    "heterogeneity", "setup",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_npz) -> Path:
    """A finished run of three strategies and two seeds."""
    out = tmp_path_factory.mktemp("report") / "run"
    experiment.compare(
        ["fedavg", "afl", "fedmaba"], data=str(tiny_npz), model="softmax", rounds=6, eval_every=2,
        seeds=2, minibatch=5, out=out, device="cpu",
    )  # fmt: skip
    return out


def call(monkeypatch, capsys, *words) -> str:
    """What a command prints."""
    monkeypatch.setattr(sys, "argv", ["fedmaba", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        cli.main()
    seen = capsys.readouterr()
    assert not end.value.code, seen.err
    return seen.out


def fails(monkeypatch, capsys, *words) -> str:
    monkeypatch.setattr(sys, "argv", ["fedmaba", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code in (2, 74)
    (line,) = capsys.readouterr().err.splitlines()
    return line


class Elements(html.parser.HTMLParser):
    """Every element, its attributes, and the text of the table, scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements, self.rows, self.inside, self.content = [], [], "", {}
        self.table = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag
        self.table |= dict(attributes).get("id") == "table"
        if self.table and tag == "tr":
            self.rows.append([])
        if self.table and tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.inside = ""
        self.table &= tag != "table"

    def handle_data(self, text):
        if self.inside in ("script", "style"):
            self.content.setdefault(self.inside, []).append(text)
        elif self.table and self.rows and self.rows[-1]:
            self.rows[-1][-1] += text.strip()


# --- the page ----------------------------------------------------------------------------------


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
    history = experiment.compare(
        ["fedavg", "afl"], data=str(tiny_npz), model="softmax", rounds=4, eval_every=2, seeds=1,
        minibatch=5, share=0.4, out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    source = data.load(tmp_path / "run")
    seen = data.tree([source])
    table = seen["tables"]["deployed.last"]
    assert table["columns"][2] == "worst 40 %"
    worst = history.summary()[0].mean.worst
    assert worst != history.summary(share=0.05)[0].mean.worst
    head, *rows = export.rounds(source.history)
    ends = [row for row in rows if row[:4] == ["fedavg", 0, 4, "deployed"]]
    assert [row[head.index("worst")] for row in ends] == [worst]
    assert seen["runs"][0]["fair"]["deployed"]["worst"][-1] == pytest.approx(worst, rel=1e-5)
    assert "worst 40 %" in history._repr_html_()
    assert history.plot("worst").axes[0].get_ylabel().startswith("worst 40 %")
    assert data.tree([source], 0.2)["tables"]["deployed.last"]["columns"][2] == "worst 20 %"


def test_lines_of_a_live_run_tell_no_worst_of_another_share(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "runs.json").unlink()
    source = data.load(tmp_path / "run")
    assert source.lines
    assert not source.finished
    for share, known in ((0.05, True), (0.4, False)):
        seen = data.tree([source], share)
        (live,) = seen["live"]
        (_, accuracy, worst, best) = live["rows"][0]["figures"]
        assert accuracy is not None
        assert [worst is not None, best is not None] == [known, known]
        curve = seen["runs"][0]["fair"]["deployed"]
        assert (curve["worst"][-1] is not None) == known
        assert curve["variance"][-1] is not None


def test_sections_stand_in_the_order_promised(folder):
    seen = Elements(report.page([data.load(folder)]))
    assert [a["id"] for tag, a in seen.elements if tag == "section"] == SECTIONS


def test_the_policy_allows_our_script_and_style_and_nothing_else(folder):
    text = report.page([data.load(folder)])
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


def test_the_script_never_builds_markup_from_text():
    script = (report.PAGE / "script.js").read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                 "new Function", "setAttribute(\"on", "import("):  # fmt: skip
        assert word not in script, word


def hostile() -> data.Source:
    run = RunHistory(PAYLOADS[0], 0, PAYLOADS[1], np.full(200, 3))
    run.tables = {"evaluated": [np.asarray(1)], "round": [np.asarray(1)]}
    run.tables |= {"client": [np.arange(200)], "weight": [np.full(200, 0.005)]}
    for model in data.MODELS:
        run.tables |= {f"{model}.{k}": [np.linspace(0, 1, 200)] for k in ("accuracy", "loss")}
    runs = [RunHistory(p, 0, p, np.zeros(0, np.int64), p) for p in PAYLOADS[1:]]
    names = {p: p for p in PAYLOADS}
    about = {"command": PAYLOADS, "device": PAYLOADS[3], "versions": names, "partition": names}
    about["data"] = {"name": PAYLOADS[4], "sha256": "x", "classes": PAYLOADS, "clients": PAYLOADS}
    counts = {0: np.ones((200, 200), np.int64)}
    return data.Source(PAYLOADS[5], History([run, *runs]), about, "\n".join(PAYLOADS), counts)


def test_hostile_names_stay_text():
    plain = Elements(report.page([data.of(report_cases.history(seeds=1, rounds=4, clients=5))]))
    seen = Elements(report.page([hostile()]))
    assert {tag for tag, _ in seen.elements} <= {tag for tag, _ in plain.elements} | {
        "pre", "code", "article", "h4", "strong", "ul", "li",
    }  # fmt: skip
    assert len(seen.content["script"]) == 2
    assert "<" not in seen.content["script"][0]
    assert seen.content["script"][1] == plain.content["script"][1]
    for _, attributes in seen.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}


def test_a_long_run_is_thinned_and_the_page_says_so():
    """100 clients x 2,000 rounds x 10 runs stay under 5 MB."""
    text = report.page([data.of(report_cases.history())])
    assert len(text.encode()) < 5_000_000
    tree = json.loads(Elements(text).content["script"][0])
    assert "400 each are embedded in this page, evenly chosen" in text
    for run in tree["runs"]:
        for name in ("rounds", "evaluated"):
            assert len(run[name]) == 400
            assert (run[name][0], run[name][-1]) == (1, 2000)
            assert set(np.diff(run[name])) <= {4, 5, 6}
        assert run["accuracy"]["shape"] == [400, 100]
    sparse = report.page([data.of(report_cases.history(clients=3, rounds=500, every=10))])
    assert "Of up to 500 rounds of a run, 400 are embedded" in sparse


def test_many_clients_are_thinned_too():
    history = report_cases.history(("fedavg", "afl"), 1, clients=3000, rounds=30, every=10)
    names = {"data": {"clients": [f"client {c}" for c in range(3000)]}}
    tree = data.tree([data.Source("many", history, names)])
    assert tree["runs"][0]["accuracy"]["shape"] == [3, 2000]
    who = tree["runs"][0]["client"]
    assert len(who) == 2000
    assert tree["folders"][0]["clients"] == [f"client {c}" for c in who]
    assert "2,000 are shown one by one" in " ".join(tree["notes"])


@pytest.mark.parametrize(("count", "keep"), [(0, 5), (1, 5), (5, 5), (6, 5), (1000, 7)])
def test_thinning_keeps_both_ends(count, keep):
    at = data.thin(count, keep)
    assert len(at) == min(count, keep)
    assert list(at) == sorted(set(at))
    if count:
        assert (at[0], at[-1]) == (0, count - 1)


def unpacked(packed):
    """A table as the script of the page reads it."""
    raw = b64decode(packed["data"])
    if "span" not in packed:
        return np.frombuffer(raw, "<f4").reshape(packed["shape"])
    steps = np.frombuffer(raw, "<u2").reshape(packed["shape"])
    return np.where(steps == 65535, np.nan, packed["low"] + packed["span"] * steps / 65534)


def test_packing_loses_less_than_a_hover_shows():
    values = np.random.default_rng(0).random((7, 9))
    values[2, 3] = np.nan
    np.testing.assert_allclose(unpacked(data.packed(values)), values, atol=1e-5)
    assert data.packed(np.full((2, 2), np.nan))["low"] == 0.0


def test_a_lie_does_not_hide_the_other_losses():
    values = np.array([[2.333, 1e6, 2.3], [np.nan, 1e300, 2.2], [-np.inf, 3e38, 0.0]])
    seen = unpacked(data.floats(values))
    want = np.where(np.abs(values) < 1e38, values, np.nan)
    np.testing.assert_allclose(seen, want, rtol=1e-6)


def test_the_page_carries_the_tables_of_every_run(folder):
    source = data.load(folder)
    seen = data.tree([source])
    for run, told in zip(source.history.runs, seen["runs"], strict=True):
        assert (told["evaluated"], told["rounds"]) == ([2, 4, 6], [1, 2, 3, 4, 5, 6])
        tables = {"accuracy": run.accuracy(), "weight": run.weights()}
        if run.label != "fedavg":  # which asks for no loss
            loss = np.empty_like(run.weights())
            np.put_along_axis(loss, run.column("client"), run.column("reported_loss"), axis=1)
            tables["loss"] = loss
        for name, values in tables.items():
            np.testing.assert_allclose(unpacked(told[name]), values, atol=1e-4, err_msg=name)
        for model in data.MODELS:
            final = run.accuracy(model)[-1:]
            np.testing.assert_allclose(unpacked(told["final"][model]), final, atol=1e-4)
        weights = run.weights() / run.weights().sum(1, keepdims=True)
        want = np.exp(-(weights * np.log(np.maximum(weights, 1e-300))).sum(1))
        np.testing.assert_allclose(told["info"]["effective"], want, rtol=1e-5)
    assert any((run.accuracy() != run.accuracy("last"))[-1].any() for run in source.history.runs)
    counts = run_folder.load_labels(folder)
    for seed, told in seen["folders"][0]["labels"].items():
        np.testing.assert_allclose(unpacked(told["counts"]), counts[int(seed)], atol=1e-2)


def test_the_page_shows_the_numbers_that_a_strategy_declares():
    history = report_cases.history(("fedavg", "fedmaba:rho=0.3"), 1, clients=5, rounds=4)
    history.runs[1].tables |= {"info.lambda": [0.0, 0.0, 0.5, 2.0], "info.kl": [0.1, 0.2, 0.3, 0.3]}
    history.runs[1].tables["info.effective"] = history.runs[1].tables["info.doubted"] = [1.0] * 4
    tree = data.tree([data.of(history)])
    assert [number["title"] for number in tree["numbers"]] == ["Multiplier λ*", "KL from uniform"]
    average, fair = (run["info"] for run in tree["runs"])
    assert average["numbers"] == [None, None]
    assert len(average["effective"]) == 4
    multiplier, kl = fair["numbers"]
    assert multiplier["values"] == [0.0, 0.0, 0.5, 2.0]
    assert multiplier["above"][:3] == [2, 4, "the KL ball of radius ρ = 0.3 binds"]
    assert (kl["values"], kl["limit"], multiplier["limit"]) == ([0.1, 0.2, 0.3, 0.3], 0.3, None)
    history.runs[1].label = "fedmaba:rho=0.3,ball=global"  # rho bounds another divergence
    assert data.tree([data.of(history)])["runs"][1]["info"]["numbers"][1]["limit"] is None


def test_of_a_strategy_that_is_not_known_here_all_that_was_recorded_is_shown(monkeypatch):
    """And its code is not imported, whatever the label says."""
    monkeypatch.setattr(user_code, "find", lambda *_: pytest.fail("imported"))
    label = "package.module.Mine:step=1"
    history = report_cases.history(("fedavg", label), 1, clients=5, rounds=4)
    tables = {"info.strongest": [1.0, 2.0, 3.0, 4.0], "info.effective": [5.0] * 4}
    history.runs[1].tables |= tables
    tree = data.tree([data.of(history)])
    assert [number["title"] for number in tree["numbers"]] == ["Strongest"]
    average, own = (run["info"]["numbers"] for run in tree["runs"])
    assert average == [None]
    assert own[0]["values"] == [1.0, 2.0, 3.0, 4.0]
    assert len(figures.of(history, "constraint").axes) == 2
    assert numbers.of_runs(history.runs)[0].short == "strongest"  # on the terminal too


def test_a_strategy_may_declare_what_is_shown_of_it():
    class Declares(fedmaba.Strategy):
        name = "declares"

        def shown(self):
            return (fedmaba.Shown("b", title="the second"),)

    strategies.register(Declares)
    try:
        history = report_cases.history(("fedavg", "declares"), 1, clients=5, rounds=2)
        history.runs[1].tables |= {"info.a": [1.0, 2.0], "info.b": [3.0, 4.0]}
        assert [n.title for n in numbers.of_runs(history.runs)] == ["the second"]
    finally:
        del strategies.REGISTRY["declares"]


def test_the_report_knows_no_algorithm_by_its_name():
    """But the package's own name, which is that of an algorithm, and words of the user's files."""
    root = Path(data.__file__).parent
    texts = [p.read_text() for p in (*root.glob("*.py"), root / "page" / "script.js")]
    known = {*strategies.BUILT_IN} - {"fedmaba"}
    assert not {n for n in known for text in texts if re.search(rf"[\"']{n}\b", text)}
    for text in texts:
        assert not re.search(r"[\"'.](info\.)?(lambda|kl)[\"']", text.replace('"λ": "lambda"', ""))


def test_the_tiles_show_the_fairest_beside_the_reference():
    history = History([one("fedavg", [0.4, 0.8]), one("afl", [0.5, 0.6])])
    tiles = report.tiles(data.tree([data.of(history)]))
    assert [(t["name"], t["value"], t["unit"], t["then"]) for t in tiles] == [
        ("variance over clients", "25.0", "%²", "400.0 %²"),
        ("worst 5 %", "50.0", "%", "40.0 %"),
        ("mean accuracy", "55.0", "%", "60.0 %"),
    ]
    assert {(t["who"], t["base"]) for t in tiles} == {("afl", "fedavg")}
    assert report.tiles(data.tree([data.of(History(history.runs[:1]))])) == []


def test_the_overview_counts_what_was_run(folder):
    told = ["3 strategies", "2 seeds", "5 clients", "6 rounds"]
    assert report.overview([data.load(folder)])[1:] == told
    few = report.overview([data.of(report_cases.history(("afl",), 1, clients=9, rounds=1))])
    assert few == ["1 strategy", "1 seed", "9 clients", "1 round"]


def test_the_set_up_has_the_hashes_and_the_command(folder):
    told, about = data.setup(data.load(folder)), run_folder.load_about(folder)
    (name, digest), *splits = told["hashes"]
    assert name.startswith("data ")
    assert digest == about["data"]["sha256"]
    assert dict(splits) == {f"partition, seed {s}": about["partition"][s] for s in ("0", "1")}
    assert told["repeat"] == "fedmaba run run/experiment.toml --out NEW"
    python = data.Source("run", History([]), {"python": True, "repeat": "the Python call"})
    assert data.setup(python)["repeat"] == "the Python call"


def test_a_caption_says_which_model_which_round_and_how_many_clients():
    runs = [one("fedavg", [0.4, 0.8]), one("afl", [0.5, 0.6]), one("afl", [0.5, 0.6], seed=1)]
    runs[0].deploy, runs[1].deploy, runs[2].deploy = "poly:8", "average", "average"
    history = History(runs)
    tail = "; mean ± sd over seeds"
    assert table.caption(History(runs[:2]), "last", "last").endswith("; one seed")
    for model, at, said in (
        ("deployed", "last", "deployed model (average, poly:8), at the last round"),
        ("last", "last", "last server model, at the last round"),
        ("last", "best", "last server model, at its best round, picked on test data"),
        ("last", "last5", "last server model, mean of the last five evaluations"),
    ):
        assert table.caption(history, model, at) == said + tail
    runs[0].tables["deployed_validation.accuracy"] = runs[0].tables["deployed.accuracy"]
    assert "picked on validation data" in table.caption(history, "last", "best")
    runs[0].test_size = np.array([10, 0])
    assert table.caption(history, "last", "last").endswith(f"{tail}; 1 of 2 clients")


def test_two_rows_are_not_ranked_and_three_of_one_seed_are():
    rows = History([one(name, [0.4, a]) for name, a in (("a", 0.8), ("b", 0.6), ("c", 0.4))])
    first = table.columns(0.05)[0]
    assert table.ranks(rows.summary(), first) == [2, 1, 0]
    assert table.ranks(rows.summary()[:2], first) == [2, 2]


def test_a_history_in_memory_gives_the_tables_for_a_paper():
    seeds = {"fedavg": (0.4, 0.6), "afl": (0.5, 0.9), "ideal": (0.9, 0.9)}
    runs = [one(name, [a, 0.8], s) for name, pair in seeds.items() for s, a in enumerate(pair)]
    history = History([*runs, one("afl", [0.1, 0.1], 2, diverged="afl, seed 2, diverged")])
    text = history.table(against="fedavg", model="last")
    with pytest.raises(InputError, match="against 'fedavg': there is no other row"):
        History([run for run in history.runs if run.label == "fedavg"]).table(against="fedavg")
    assert text.startswith("Left out of every mean: afl, seed 2, diverged.\n\n**Last server model")
    half = 12.706 * np.std([5, 15], ddof=1) / np.sqrt(2)  # of mean accuracy, seed by seed
    line = next(x for x in text.splitlines()[8:] if x.startswith("| afl | 2 | "))
    assert line.split(" | ")[3] == f"+10.00 [{10 - half:+.2f}, {10 + half:+.2f}]"
    lines = list(csv.DictReader(StringIO(history.table("csv", "last", against="fedavg"))))
    assert list(lines[0]) == ["table", "row", "column", "value", "sd", "low", "high", "text"]
    pair = {
        x["row"]: x for x in lines if (x["table"], x["column"]) == ("differences", "accuracy %")
    }
    found = [float(pair["afl"][name]) for name in ("value", "low", "high")]
    assert found == pytest.approx([10, 10 - half, 10 + half], abs=1e-3)
    assert {x["low"] for x in lines if x["table"] == "levels"} == {""}
    assert r"\toprule" in history.table("latex")
    with pytest.raises(InputError, match="unknown form 'pdf': choose one of csv, latex, markdown"):
        history.table("pdf")


def test_rows_that_look_equal_share_a_rank():
    names = zip("abcd", (0.9, 0.9 + 1e-9, 0.8, 0.7), strict=True)
    rows = History([one(name, [0.9, a]) for name, a in names]).summary()
    mean = table.columns(0.05)[1]
    assert table.ranks(rows, mean) == [0, 0, 1, 2]
    assert table.ranks([rows[0]] * 3, mean) == [2, 2, 2]


def one(label, accuracy, seed=0, diverged="") -> RunHistory:
    run = RunHistory(label, seed, "last", np.full(len(accuracy), 10), diverged)
    run.tables = {"evaluated": [np.asarray(1)]}
    for model in data.MODELS:
        run.tables |= {f"{model}.{k}": [np.array(accuracy)] for k in ("accuracy", "loss")}
    return run


def verdict(*runs) -> str:
    (sentence,) = data.verdict([data.of(History(list(runs)))], 0.05)
    return sentence


def test_the_verdict_says_who_is_fairest_with_numbers_and_seeds():
    base = [one("fedavg", [0.4, 0.8], 0), one("fedavg", [0.5, 0.9], 1)]
    fair = [one("afl", [0.55, 0.65], 0), one("afl", [0.6, 0.8], 1)]
    assert verdict(*base, *fair) == (
        "afl is the fairest of 2 strategies: accuracy varies 84 % less from client to client than "
        "with fedavg (variance 62.5 against 400.0 %², lower in 2 of 2 seeds), the worst 5 % of "
        "clients reach 57.5 % against 45.0 %, and the mean is the same (65.0 against 65.0 %)."
    )
    flat = one("term", [0.1, 0.1])  # equal misery
    assert verdict(*base, *fair, flat).startswith(
        "Of the 2 strategies within 5 points of the best mean, afl is the fairest:"
    )
    assert "is fairer than fedavg" in verdict(*base, one("afl", [0.3, 0.9]))
    spread, told = one("afl", [0.3, 1.0]), verdict(*base, flat, one("afl", [0.3, 1.0]))
    assert told.endswith("against 1225.0 %² at 65.0 % for afl, the next fairest (2 seeds).")
    assert "10.0 % for term, which has the least of the others" in verdict(*base, flat)
    assert "afl is the fairest: accuracy varies 206 % more" in verdict(
        one("fedavg", [0.2, 0.6]), spread
    )
    assert "accuracy varies more from" in verdict(one("fedavg", [0.1, 0.1]), spread)
    assert verdict(*fair) == (
        "afl reaches a mean accuracy of 65.0 % with a variance of 62.5 %² over clients, and "
        "57.5 % for the worst 5 % of clients (2 seeds)."
    )
    assert verdict(*fair, one("term", [0.4, 0.9])).startswith("afl is the fairest of 2 strategies:")
    assert verdict(RunHistory("afl", 0, "last", np.zeros(3))) == "No run has been evaluated yet."


def test_a_verdict_on_scores_that_are_no_numbers():
    nothing = [one(label, [np.nan, np.nan]) for label in ("fedavg", "afl")]
    assert verdict(*nothing) == "No score of any run is a number."
    assert verdict(*nothing, one("term", [0.5, 0.7])).startswith("term reaches a mean")


def test_hostile_clients_are_called_as_everywhere_else():
    about = {"hostile": {"0": [1, 7]}, "data": {"clients": ["north", "south"]}}
    facts = data.setup(data.Source("run", History([one("fedavg", [0.4, 0.8])]), about))["facts"]
    assert facts[-1] == ("hostile clients, seed 0", "south, 7")


def test_a_run_that_diverged_is_named(folder):
    source = data.of(History([one("fedavg", [0.4, 0.8]), one("afl", [0.1, 0.2], 0, "afl broke")]))
    assert "afl broke" in report.page([source])
    assert data.tree([source])["tables"]["deployed.last"]["rows"][1]["cells"][0][0] == "–"


def test_two_folders_keep_their_names_apart(folder, tmp_path):
    other = run_folder.load_history(folder)
    sources = [data.load(folder), data.Source("other", other)]
    labels = [s["label"] for s in data.tree(sources)["strategies"]]
    assert labels[0] == "fedavg (run)"
    assert labels[3] == "fedavg (other)"
    sentences = data.verdict(sources, 0.05)
    assert len(sentences) == 2
    assert sentences[0].startswith("run: ")
    assert len(data.verdict([data.of(other, "a"), data.of(other, "b")], 0.05)) == 2
    assert len(data.verdict([data.load(folder)] * 2, 0.05)) == 1  # of the same data


def test_labels_and_names_of_the_data_reach_the_folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    owner = np.repeat(["north", "south"], 20)
    y = np.r_[np.zeros(20, int), rng.integers(0, 3, 20)]
    y[-3:] = [0, 1, 2]
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 4)), y=y, client=owner)
    out = tmp_path / "run"
    experiment.compare(
        "fedavg", data=str(tmp_path / "mine.npz"), model="softmax", rounds=1, seeds=1, out=out
    )
    assert run_folder.load_about(out)["data"]["clients"] == ["north", "south"]
    (counts,) = run_folder.load_labels(out).values()
    assert counts.shape == (2, 3)
    assert counts[0, 0] == counts[0].sum() == 16  # a fifth is for testing
    text = report.page([data.load(out)])
    assert '"clients":["north","south"]' in text


def test_a_folder_without_label_counts_or_about_still_gives_a_page(folder, tmp_path):
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    (bare / "partition.npz").unlink()
    (bare / "about.json").unlink()
    (bare / "experiment.toml").write_text("strategies = 3\n")
    text = report.page([data.load(bare)])
    assert "strategies = 3" in text
    (bare / "about.json").write_text("{")
    with pytest.raises(InputError, match=r"about\.json cannot be read"):
        data.load(bare)


def test_errors_are_one_line(folder, tmp_path, monkeypatch, capsys):
    assert "is no run folder" in fails(monkeypatch, capsys, "report", tmp_path / "none")
    assert "is no run folder" in fails(monkeypatch, capsys, "report", tmp_path)
    line = fails(monkeypatch, capsys, "report", folder, "-o", tmp_path / "a" / "b" / "c.html")
    assert "could not be written" in line
    assert "resume" not in line
    assert "is no run folder" in fails(monkeypatch, capsys, "watch", tmp_path)
    line = fails(monkeypatch, capsys, "figure", "pie", folder, "-o", tmp_path / "x.pdf")
    assert "unknown figure 'pie'" in line
    line = fails(monkeypatch, capsys, "figure", "rounds", folder, "-o", tmp_path / "x.gif")
    assert "end it in .pdf" in line
    line = fails(monkeypatch, capsys, "report", folder, "-o", tmp_path / "x.pdf")
    assert "x.pdf: a report is a page: end it in .html" in line
    for words, name in ((["report"], "x.html"), (["figure", "rounds"], "x.svg")):
        line = fails(monkeypatch, capsys, *words, folder, folder / ".", "-o", tmp_path / name)
        assert f"{folder} is named twice" in line


# --- notebooks ---------------------------------------------------------------------------------


def test_a_history_shows_itself_in_a_notebook(folder):
    history = load_history(folder)
    text = history._repr_html_()
    assert text.startswith("<table>")
    row = history.summary()[0]
    assert f"{row.mean.variance:.2f} ± {row.sd.variance:.2f}" in text
    evil = History([one(PAYLOADS[0], [0.1, 0.2])])
    assert "<script" not in evil._repr_html_()


def test_a_history_plots(folder):
    pytest.importorskip("matplotlib")
    figure = load_history(folder).plot("variance")
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert [line.get_label() for line in figure.axes[0].lines] == ["fedavg", "afl", "fedmaba"]


# --- figures, exports, events ------------------------------------------------------------------


def test_every_figure_is_drawn_and_the_same_twice(folder, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    for kind, about in figures.describe():
        assert about
        out = tmp_path / f"{kind}.svg"
        figures.write(kind, [folder], out)
        assert b"<svg" in out.read_bytes()
    listed = call(monkeypatch, capsys, "list", "figures")
    assert {line.split()[0] for line in listed.splitlines()} == set(figures.KINDS)
    for name in ("a", "b"):
        call(monkeypatch, capsys, "figure", "variance", folder, "-o", tmp_path / f"{name}.pdf")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


ROWS = [
    *("FedAvg", "FedSGD", "q-FFL, q=0.005", "FedMGDA+, η=1.0, ε=0.1", "FedMGDA+, η=0.1, ε=0.1"),
    *("TERM, T=0.1", "TERM, T=0.1 (code)", "AFL, λ=0.05", "AFL, λ=0.5", "PropFair, M=5, ε=0.2"),
    *("PropFair, M=5, ε=0.2 (code)", "FedProx, μ=0.1", "FedMABA, α=0.5", "FedMABA, α=0.8"),
    "FedFV, α=0.1, τ=1",
]


@pytest.mark.parametrize(
    "labels",
    [
        [*ROWS, "mine", "yours", "fedmaba:alpha=0.1", "fedmaba:alpha=0.2", "fedavg (b)"],
        [f"fedmaba:alpha={i}" for i in range(20)],
        [f"own{i}" for i in range(20)],
    ],
)
def test_every_row_has_a_look_of_its_own(labels):
    looks = scene.styles(labels).values()
    assert len(labels) == 20
    assert len({(s.color, s.marker, s.fill) for s in looks}) == 20
    assert len({(s.color, s.dash) for s in looks}) == 20


def test_an_algorithm_has_the_same_colour_in_every_figure():
    few, many = scene.styles(["fedmaba", "fedavg"]), scene.styles(ROWS)
    assert few["fedmaba"] == many["FedMABA, α=0.5"]
    assert few["fedavg"] == many["FedAvg"]
    assert many["FedMABA, α=0.8"].color == few["fedmaba"].color
    assert len({s.color for s in many.values()}) == 10
    own = scene.styles(["mine:step=1 (a)", "fedavg (a)", "mine:step=1 (b)", "fedavg (b)"])
    assert own["mine:step=1 (a)"].color == own["mine:step=1 (b)"].color
    style = (Path(data.__file__).parent / "page" / "style.css").read_text()
    for hue, color in enumerate(scene.COLORS):  # and in the page
        assert f"--s{hue}: {color};" in style
    script = (Path(data.__file__).parent / "page" / "script.js").read_text()
    assert "radius of 1: " + " ".join(scene.MARKERS) in script
    assert len(data.HUES) == len(scene.MARKERS) == len(scene.COLORS)


def test_rounds_have_whole_ticks():
    few = report_cases.history(seeds=1, rounds=3, clients=5)
    ticks = figures.of(few, "variance").axes[0].get_xticks()
    assert len(ticks) >= 3
    assert (ticks == ticks.round()).all()
    ticks = figures.of(History([one("fedavg", [0.1, 0.9])]), "variance").axes[0].get_xticks()
    assert (ticks == ticks.round()).all()


def test_the_names_of_the_axes_stay_inside_a_figure(folder):
    for kind in figures.KINDS:
        figure = figures.draw([data.load(folder)], kind)
        figure.draw_without_rendering()
        for text in filter(None, (figure._supxlabel, figure._supylabel)):
            box = text.get_window_extent()
            assert min(box.x0, box.y0) >= 0, (kind, text)
            assert (box.max <= figure.bbox.max).all(), (kind, text)


def test_a_figure_of_runs_that_diverged_at_once_does_not_tell_to_wait():
    lost = RunHistory("afl", 0, "last", np.zeros(3, int), "afl, seed 0, diverged in round 1: x")
    with pytest.raises(InputError, match="every run diverged"):
        figures.of(History([lost]), "variance")
    with pytest.raises(InputError, match="wait for the first evaluation"):
        figures.of(History([RunHistory("afl", 0, "last", np.zeros(3, int))]), "variance")


def test_colours_stay_apart_for_the_colour_blind():
    sight = [  # Machado 2009: usual, protan, deutan
        np.eye(3),
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    ]
    xyz = np.array([[0.434, 0.376, 0.190], [0.2126, 0.7152, 0.0722], [0.018, 0.109, 0.873]])
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in scene.COLORS])
    light = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    assert (1.05 / (light @ xyz[1] + 0.05)).min() >= 3  # on white
    for seen in sight:
        f = np.cbrt(np.clip(light @ np.transpose(seen), 0, 1) @ xyz.T)
        lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])])
        apart = np.linalg.norm(lab[:, :, None] - lab[:, None], axis=0) + 99 * np.eye(len(rgb))
        assert apart.min() > 12


def table2() -> History:
    """Runs with the means and spreads of fifteen rows of the paper's Table II."""
    rng, runs = np.random.default_rng(1), []
    level = [
        86.4,
        83.1,
        86.4,
        87.1,
        76.6,
        86.4,
        65.3,
        84.8,
        76.5,
        82.7,
        83.0,
        86.3,
        86.3,
        85.7,
        87.3,
    ]
    spread = [64, 76, 64, 62, 165, 63, 221, 57, 233, 99, 91, 64, 48, 42, 51]
    for label, mean, variance in zip(ROWS, level, spread, strict=True):
        for seed in range(3):
            wave = np.sqrt(2 * variance * rng.uniform(0.9, 1.1)) * np.sin(np.arange(100))
            runs.append(one(label, (mean + rng.normal(0, 0.2) + wave) / 100, seed))
    return History(runs)


def test_names_in_a_full_tradeoff_do_not_overlap():
    pytest.importorskip("matplotlib")
    for size in (None, (6.75, 4.0)):
        figure = figures.of(table2(), "tradeoff", size=size)
        for dpi in (100, 300):
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            texts = [t for axes in figure.axes for t in axes.texts if t.get_text()]
            assert sorted(t.get_text() for t in texts) == sorted(ROWS)
            boxes = [t.get_window_extent() for t in texts]
            for i, box in enumerate(boxes):
                assert not box.count_overlaps(boxes[:i]), texts[i].get_text()
                frame = texts[i].axes.get_window_extent()
                assert frame.count_contains(box.corners()) == 4
    left, right = figure.axes  # the outliers are beside, not in it
    assert left.get_ylim()[0] < 66 < 80 < right.get_ylim()[0]


def test_the_frame_of_a_tradeoff_holds_no_row_that_it_does_not_show():
    pytest.importorskip("matplotlib")
    level = [80, 79, 78, 77, 76, 75.1, 74.9]  # the last is more than five points below the first
    runs = [one(f"own{i}", (v + np.array([-9 - i, 9 + i])) / 100) for i, v in enumerate(level)]
    _, right = figures.of(History(runs), "tradeoff").axes
    assert 74.9 < right.get_ylim()[0] < 75.1


@pytest.mark.parametrize("kind", ["distribution", "rounds", "variance", "accuracy", "worst"])
def test_a_legend_of_many_rows_lies_in_the_figure_and_on_no_panel(kind):
    pytest.importorskip("matplotlib")
    for size in (None, (6.75, 4.0)):
        figure = figures.of(table2(), kind, size=size)
        figure.draw_without_rendering()
        (legend,) = figure.legends
        assert sorted(t.get_text() for t in legend.get_texts()) == sorted(ROWS)
        box = legend.get_window_extent()
        assert figure.bbox.count_contains(box.corners()) == 4
        for axes in figure.axes:
            assert not box.overlaps(axes.get_window_extent())
            assert axes.get_window_extent().height > 80  # of 100 an inch


@pytest.mark.parametrize(("asked", "used"), [(1, 1), (3, 3), (9, 5)])
def test_lines_are_means_of_the_last_evaluations_and_say_of_how_many(asked, used):
    pytest.importorskip("matplotlib")
    level = np.array([0.2, 0.5, 0.3, 0.9, 0.6])
    run = one("fedavg", [0.1, 0.2])
    run.tables["evaluated"] = [np.asarray(10 * t) for t in range(1, 6)]
    for name in run.tables.keys() - {"evaluated"}:
        run.tables[name] = [np.full(2, share) for share in level]
    (axes,) = figures.of(History([run]), "accuracy", smooth=asked).axes
    want = [100 * level[a : a + used].mean() for a in range(6 - used)]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), want)
    assert axes.lines[0].get_xdata().tolist() == [10, 20, 30, 40, 50][used - 1 :]
    assert (f"mean of {used} evaluations" in axes.get_ylabel()) == (used > 1)


def test_figures_say_what_they_cannot_show():
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="run at least two"):
        figures.of(History([one("fedavg", [0.1, 0.9])]), "gains")
    with pytest.raises(InputError, match=r"in memory holds no label counts: compare\(.*out=FOLDER"):
        figures.of(History([one("fedavg", [0.1, 0.9])]), "heterogeneity")
    for kind in ("weights", "constraint"):
        with pytest.raises(InputError, match="no weights in these histories"):
            figures.of(table2(), kind)
    plain = one("fedavg", [0.1, 0.9])
    plain.tables |= {"round": [np.asarray(1)], "weight": [np.array([0.5, 0.5])]}
    with pytest.raises(InputError, match="no strategy of these runs reports a number"):
        figures.of(History([plain]), "constraint")
    with pytest.raises(InputError, match="been evaluated yet"):
        figures.of(History([RunHistory("fedavg", 0, "last", np.zeros(2))]))


def test_export_writes_what_the_history_holds(folder, tmp_path, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    printed = call(monkeypatch, capsys, "export", folder, "--to", "csv", "-o", tmp_path / "csv")
    assert len(printed.splitlines()) == 4
    history = load_history(folder)
    table = {p.stem: pandas.read_csv(p) for p in (tmp_path / "csv").iterdir()}
    run = history.runs[-1]
    own = table["clients"].query("strategy == 'fedmaba' and seed == 1 and round == 6")
    for model in data.MODELS:
        np.testing.assert_allclose(own[f"{model}_accuracy"], run.accuracy(model)[-1])
        np.testing.assert_allclose(own[f"{model}_loss"], run.loss(model)[-1])
    assert (own["deployed_loss"] != own["last_loss"]).any()
    own = table["weights"].query("strategy == 'fedmaba' and seed == 1 and round == 3")
    np.testing.assert_allclose(own["weight"], run.weights()[2])
    np.testing.assert_allclose(own["reported_loss"], run.column("reported_loss")[2])
    row = table["summary"].query("strategy == 'afl' and model == 'last'").iloc[0]
    assert row["variance"] == pytest.approx(history.summary("last")[1].mean.variance)
    assert len(table["rounds"]) == 6 * 3 * 2
    own = table["rounds"].query("strategy == 'fedmaba' and seed == 1 and model == 'last'")
    for name in ("variance", "worst", "gini"):
        want = [getattr(found, name) for found in run.fairness("last")]
        np.testing.assert_allclose(own[name], want)


def test_export_names_clients_that_have_names(tmp_path, monkeypatch):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    owner = np.repeat(["=ward", "icu"], 20)
    np.savez(tmp_path / "mine.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 2, client=owner)
    words = {"data": str(tmp_path / "mine.npz"), "seeds": 1, "device": "cpu", "model": "softmax"}
    for name, options in {"own": {}, "cut": {"partition": "iid", "clients": 2}}.items():
        fedmaba.compare("fedavg", out=tmp_path / name, rounds=2, eval_every=1, **words, **options)
        export.to_csv(tmp_path / name, tmp_path / name / "csv")
        for kind in ("clients", "weights"):
            found = pandas.read_csv(tmp_path / name / "csv" / f"{kind}.csv", keep_default_na=False)
            assert found["client"].tolist() == [0, 1] * 2
            assert found["name"].tolist() == (["'=ward", "icu"] if name == "own" else ["", ""]) * 2


def test_export_marks_clients_that_were_hostile(tiny_npz, tmp_path):
    pandas = pytest.importorskip("pandas")
    words = {"data": str(tiny_npz), "seeds": 2, "device": "cpu", "model": "softmax"}
    lies = {"attack": "loss=1e6", "hostile": "40%"}
    fedmaba.compare("fedmaba", out=tmp_path / "run", rounds=2, eval_every=1, **words, **lies)
    export.to_csv(tmp_path / "run", tmp_path / "csv")
    found = pandas.read_csv(tmp_path / "csv" / "weights.csv", keep_default_na=False)
    assert ((found["hostile"] == "yes") == (found["reported_loss"] == 1e6)).all()
    assert (found["hostile"] == "yes").sum() == 2 * 2 * 2  # clients, rounds, seeds
    found = pandas.read_csv(tmp_path / "csv" / "clients.csv", keep_default_na=False)
    assert ((found["hostile"] == "yes") == (found["last_accuracy"] == "")).all()
    (tmp_path / "run" / "about.json").unlink()
    with pytest.raises(InputError, match=r"about\.json, which says who is hostile, is not there"):
        export.to_csv(tmp_path / "run", tmp_path / "csv")


def test_a_finished_run_is_exported_even_if_all_of_it_diverged(tiny_npz, tmp_path):
    out = tmp_path / "run"
    options = {"data": tiny_npz, "model": "softmax", "rounds": 2, "seeds": [0], "out": out}
    with contextlib.suppress(Diverged):
        fedmaba.compare("fedavg", server_lr=1e39, **options)
    assert (out / "runs.json").exists()
    files = {path.name: path.read_text() for path in export.to_csv(out, tmp_path / "csv")}
    assert "diverged: seed 0" in files["summary.csv"]


def test_export_starts_no_formula():
    assert document.csv_text([["=1+1", "@x", "-1", -1.5, "plain", float("nan")]]) == (
        "'=1+1,'@x,'-1,-1.5,plain,\n"
    )


def test_tensorboard_events_can_be_read_back(tiny_npz, tmp_path, monkeypatch, capsys):
    pytest.importorskip("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    out = tmp_path / "run"
    words = f"compare fedavg fedmaba --data {tiny_npz} --model softmax --rounds 4 --eval-every 2"
    call(monkeypatch, capsys, *words.split(), "--seeds", "1", "-q", "--tensorboard", "--out", out)
    folders = sorted((out / "tensorboard").iterdir())
    assert [f.name for f in folders] == ["00-fedavg-s0", "01-fedmaba-s0"]
    (file,) = folders[1].iterdir()
    reader, seen = PyRecordReader_New(str(file)), {}
    while True:
        try:
            reader.GetNext()
        except Exception:  # its own way to say the end
            break
        event = Event.FromString(reader.record())
        for value in event.summary.value:
            seen[event.step, value.tag] = value.simple_value
    run = load_history(out).runs[1]
    assert seen[4, "deployed/variance"] == pytest.approx(run.fairness()[-1].variance)
    assert seen[3, "strategy/lambda"] == pytest.approx(run.column("info.lambda")[2])
    assert (4, "clients/accuracy") in seen
    event = tensorboard._event(3, {}, np.array([0.5, math.nan, 0.25]))  # a score that is none
    assert event.summary.value[0].histo.num == 2
    assert not tensorboard._event(3, {}, np.full(2, math.nan)).summary.value


# --- the terminal ------------------------------------------------------------------------------


def session(tiny_npz, rounds=4, save=None):
    asked = {"strategies": ["fedavg", "fedmaba"], "seeds": 2, "model": "softmax"}
    asked["data"], asked["train"] = {"name": str(tiny_npz)}, {"rounds": rounds, "minibatch": 5}
    asked["eval"], asked["machine"] = {"every": 2}, {"device": "cpu", "threads": 1}
    asked["save"] = save or {}
    return experiment.prepare(config.build(asked))


def test_the_display_shows_what_a_person_wants_to_know(tiny_npz):
    going = session(tiny_npz)
    pace = terminal.Pace(going.batch)
    for snapshot in going.rounds():
        pace.reach(snapshot.round + 1)
    stream = StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system=None)
    console.print(terminal.dashboard(going, pace))
    text = stream.getvalue()
    row = going.history.summary()[1]
    assert "round 4/4" in text
    assert re.search(r"rounds/s +[\d,]+ clients/s", text)
    assert "0:00 left" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("fedmaba")]
    assert f"{row.mean.accuracy:.2f}" in line
    assert f"{row.mean.variance:.2f}" in line
    assert f"{row.mean.worst:.2f}" in line
    assert f"{going.history.runs[-1].column('info.lambda')[-1]:.2f}" in line
    assert re.search("[▁▂▃▄▅▆▇█]", line)


def printed(width, renderable) -> str:
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(renderable)
    return stream.getvalue()


def test_the_caption_of_a_small_table_stays_in_one_line_and_knows_one_seed():
    text = printed(100, terminal.grid(History([one("afl", [0.1, 0.9])]), "deployed", "last", 0.05))
    assert text.splitlines()[0] == "deployed model (last), at the last round; one seed"


@pytest.mark.parametrize("width", [34, 50, 60, 66, 72, 80, 100, 160])
def test_names_and_numbers_are_whole_at_any_width(width):
    labels = ["fedavg", "fedmaba:alpha=0.8,eta_b=0.5"]
    accuracy = np.linspace(0.1, 0.9, 20)
    runs = [one(label, accuracy * (1 - s / 9), s) for label in labels for s in (0, 1)]
    text = printed(width, terminal.grid(History(runs), "deployed", "last", 0.05))
    for name, *line in table.for_screen(table.summary(History(runs))).rows:
        assert name.text[:12] in text
        assert all(cell.text in text for cell in line)
    assert (labels[1] in text) == (width not in (80,))  # folded, where the table still has room
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [46, 60, 72, 80, 100])
def test_the_display_drops_columns_before_names_and_numbers(width, tiny_npz):
    going = session(tiny_npz)
    pace = terminal.Pace(going.batch)
    for snapshot in going.rounds():
        pace.reach(snapshot.round + 1)
    for run in going.history.runs[2:]:
        run.label = "fedmaba:alpha=0.8,eta_b=0.5"
    text = printed(width, terminal.dashboard(going, pace))
    for row in going.history.summary():
        assert row.label[:12] in text
        assert f"{row.mean.accuracy:.2f}" in text
        assert f"{row.mean.variance:.2f}" in text
    assert "round 4/4" in text
    assert "0:00 left" in text
    if width in (46, 100):
        assert ("rounds/s" in text) == (width == 100)
    assert ("λ*" in text) == (width >= 72)
    assert ("over rounds" in text) == (width >= 100)
    assert "…" not in text


def shown(tiny_npz, quiet, monkeypatch, terminal_like) -> str:
    stream = StringIO()
    real = Console
    monkeypatch.setattr(
        terminal, "Console",
        lambda stderr: real(file=stream, width=100, force_terminal=terminal_like),
    )  # fmt: skip
    going = session(tiny_npz)
    with terminal.progress(going, quiet) as display:
        for snapshot in going.rounds():
            display(snapshot)
    return stream.getvalue()


def test_plain_lines_where_nobody_watches(tiny_npz, monkeypatch):
    lines = shown(tiny_npz, False, monkeypatch, False).splitlines()
    assert len(lines) == 3
    assert re.match(r"round 4/4, [\d.,]+ rounds/s, 0 s left: fedavg [\d.]+ % var \d+", lines[2])
    assert re.search(r"fedmaba .* lambda \d\.\d\d$", lines[2])
    assert "\x1b" not in "".join(lines)


def test_quiet_says_nothing_and_no_color_has_none(tiny_npz, monkeypatch):
    assert shown(tiny_npz, True, monkeypatch, True) == ""
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[36m" in shown(tiny_npz, False, monkeypatch, True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(3|4)\d", shown(tiny_npz, False, monkeypatch, True))
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(tiny_npz, False, monkeypatch, True)


def test_rate_and_time_left_count_from_where_this_process_began(tiny_npz, monkeypatch):
    going, now = session(tiny_npz, rounds=10), [100.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    going.batch.progress.round = 4  # an earlier process did these
    pace = terminal.Pace(going.batch)
    assert (pace.rate, pace.left) == (0.0, 0.0)
    now[0] = 103.0
    pace.reach(5)
    assert (pace.rate, pace.left) == (1 / 3, 15.0)
    now[0] = 107.0
    pace.reach(7)  # the first round no longer counts
    assert (pace.rate, pace.left) == (0.5, 6.0)
    text = printed(100, terminal.dashboard(going, pace))
    assert "round 7/10" in text
    assert "0.5 rounds/s  10 clients/s" in text  # two strategies, two seeds, five clients
    assert "0:06 left" in text
    going.close()


def test_small_words():
    assert terminal.clock(7) == "0:07"
    assert terminal.clock(750) == "12:30"
    assert terminal.clock(11045) == "3:04:05"
    assert terminal.spark([1, 8, 4.5]) == "▁█▅"
    assert terminal.spark([]) == ""
    assert terminal.spark([1, math.nan, 8, math.inf]) == "▁ █ "
    assert terminal.spark([math.nan]) == " "


def test_the_display_shows_a_run_with_hostile_clients(tiny_npz):
    """They have no test images, so no accuracy."""
    tree = {"strategies": ["fedavg"], "seeds": 1, "model": "softmax"}
    tree |= {"data": {"name": str(tiny_npz)}, "train": {"rounds": 3, "minibatch": 5}}
    tree |= {"eval": {"every": 1}, "attack": {"does": "loss=1e6", "share": "40%"}}
    going = experiment.prepare(config.build(tree))
    pace = terminal.Pace(going.batch)
    for snapshot in going.rounds():
        pace.reach(snapshot.round + 1)
        text = printed(100, terminal.dashboard(going, pace))
    (run,) = going.history.runs
    assert (run.test_size == 0).sum() == 2
    want = [f.variance for f in run.fairness()]
    np.testing.assert_allclose(terminal._variances([run]), want, rtol=1e-5)
    assert terminal.spark(want) in text


def below_zero(outputs, targets):
    return -torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("broken", [False, True])
def test_a_metric_of_any_size_has_its_page(broken, tiny_npz, tmp_path):
    calls = []

    def metric(outputs, targets):  # good when it is tried
        calls.append(len(targets))
        return below_zero(outputs, targets) * (math.nan if broken and len(calls) > 1 else 1.0)

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
    page = report.page([data.load(tmp_path / "run")])
    said = "No score of any run is a number" if broken else "fairer"
    assert said in page


# --- the live page -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(folder):
    with watch.serve(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05], daemon=True)
        thread.start()
        yield server
        server.shutdown()


def ask(server, method="GET", path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.headers), answer.read().decode()
    connection.close()
    return found


def test_watch_listens_on_loopback_only(served):
    """As the kernel's table of sockets has it."""
    port = f":{served.server_address[1]:04X}"
    bound = []
    for name in ("tcp", "tcp6"):
        table = Path(f"/proc/net/{name}")
        if not table.exists():
            pytest.skip("no table of sockets here")
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
        bound += [row[1] for row in rows if row[1].endswith(port) and row[3] == "0A"]
    assert bound == ["0100007F" + port]


def test_watch_gives_the_page_and_its_version(served):
    status, headers, body = ask(served)
    assert status == 200
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    version = ask(served, path="/version")[2]
    assert f'data-version="{version}"' in body
    assert [a["id"] for t, a in Elements(body).elements if t == "section"] == SECTIONS
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert ask(served, path="/../../etc/passwd")[0] == 404


def spoken(server, text: str) -> bytes:
    """All that a server answers until it hangs up."""
    port = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(text.replace("HERE", f"127.0.0.1:{port}").replace("\n", "\r\n").encode())
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def test_watch_sends_no_body_after_a_head(served):
    head, _, body = spoken(served, "HEAD / HTTP/1.1\nHost: HERE\nConnection: close\n\n").partition(
        b"\r\n\r\n"
    )
    assert int(re.search(rb"Content-Length: (\d+)", head)[1]) > 1000
    assert body == b""


def test_watch_does_not_take_what_it_refused_for_another_request(served):
    inner = "GET /version HTTP/1.1\nHost: HERE\n\n"
    answer = spoken(served, f"POST / HTTP/1.1\nHost: HERE\nContent-Length: 60\n\n{inner}")
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_watch_makes_a_page_once_for_each_state_of_a_run(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "run")
    made = []
    real = watch.html.page
    monkeypatch.setattr(watch.html, "page", lambda *words: made.append(1) or real(*words))
    with watch.serve(tmp_path / "run") as server:
        first = server.page()
        assert server.page() == first
        assert len(made) == 1
        (tmp_path / "run" / "rounds.jsonl").touch()
        server.page()
        assert len(made) == 2


@pytest.mark.parametrize(("times", "status"), [(1, 200), (2, 503)])
def test_watch_looks_again_before_it_says_what_is_wrong(times, status, served, monkeypatch):
    real, left = data.load, [InputError("half a file")] * times

    def load(path):
        if left:
            raise left.pop()
        return real(path)

    monkeypatch.setattr(served, "_made", None)
    monkeypatch.setattr(data, "load", load)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: None)
    found = ask(served)
    assert found[0] == status
    assert (found[2] == "fedmaba: half a file\n") == (status == 503)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", "", None]
)
def test_watch_answers_only_to_its_own_name(served, host):
    assert ask(served, Host=host)[0] == 403


def test_watch_refuses_other_origins_and_other_methods(served):
    port = served.server_address[1]
    assert ask(served, Host=f"localhost:{port}")[0] == 200
    assert ask(served, Origin="http://evil.example")[0] == 403
    assert ask(served, Origin=f"http://127.0.0.1:{port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, headers, _ = ask(served, method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert ask(served, "BREW")[0] == 501


@pytest.mark.parametrize(("error", "said"), [(BrokenPipeError, False), (KeyError, True)])
def test_watch_is_silent_about_a_browser_that_goes_away(served, capsys, error, said):
    try:
        raise error
    except error:
        served.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) == said


def test_watch_says_when_a_port_is_taken(folder, served):
    with pytest.raises(InputError, match="choose another --port"):
        watch.serve(folder, served.server_address[1])


def test_watch_shows_a_run_before_and_after_its_first_checkpoint(tiny_npz, tmp_path):
    going = session(tiny_npz, rounds=8, save={"every": 5})
    out = tmp_path / "live"
    experiment.begin(going, out)
    rounds = going.rounds(stop=lambda: False)
    for _ in range(4):
        next(rounds)
    with watch.serve(out) as server:
        first, text = server.version(), server.page().decode()
        assert "live is running" in text
        assert "round 4 of 8" in text
        tree = json.loads(Elements(text).content["script"][0])
        assert tree["runs"][2]["fair"]["round"] == [2, 4]
        assert "final" not in tree["runs"][2]
        for _ in range(2):  # a checkpoint after the fifth
            next(rounds)
        assert server.version() != first
        tree = json.loads(Elements(server.page().decode()).content["script"][0])
        assert tree["runs"][2]["fair"]["round"] == [2, 4, 6]  # by its lines
        assert tree["runs"][2]["evaluated"] == [2, 4]  # by its checkpoint
        for _ in rounds:
            pass
        assert "is running" not in server.page().decode()


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_nobody_works_on_is_not_called_running(saved, tiny_npz, tmp_path):
    out = tmp_path / "cut"
    going = session(tiny_npz, rounds=8)
    experiment.begin(going, out)
    asked = []
    rounds = going.rounds(stop=lambda: bool(asked))
    for _ in range(4):
        next(rounds)
    with watch.serve(out) as server:
        before = server.version()
        assert "cut is running" in server.page().decode()
        asked.append(saved)
        next(rounds, None) if saved else going.close()  # an interrupt, or the end of a process
        assert server.version() != before
        for text in (server.page().decode(), report.page([data.load(out)])):
            assert "is running" not in text
            assert "cut was interrupted" in text
            assert "saved up to round 4 of 8" in text
            assert "deployed model ()" not in text
    assert not run_folder.in_use(out)
    assert not run_folder.in_use(tmp_path)
    again = experiment.resume(out)
    assert run_folder.in_use(out)
    again.close()


def test_looking_who_works_on_a_folder_keeps_nobody_out(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    run_folder.Folder(tmp_path).close()
    look = open(tmp_path / ".lock", "rb")  # noqa: SIM115 - as `held` does, for a moment
    fcntl.flock(look, fcntl.LOCK_SH)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: look.close())
    run_folder.Folder(tmp_path).close()
    assert look.closed  # it was in the way, and waited for


@pytest.mark.parametrize(("seeds", "judged"), [(1, False), (2, True)])
def test_a_row_of_one_seed_beside_rows_of_more_is_neither_ranked_nor_on_the_front(seeds, judged):
    several = [
        one(name, [a, b], s)
        for s in (0, 1)
        for name, a, b in (("fedavg", 0.4, 0.79), ("afl", 0.5, 0.8))
    ]
    history = History([*several, *(one("ideal", [0.9, 0.9], s) for s in range(seeds))])
    rows = history.summary("last")
    ranks = [table.ranks(rows, column) for column in table.columns(0.05)]
    assert [[r[-1] == 0 for r in ranks]] == [[judged] * 4]
    assert all(sorted(r)[:2] == [0, 1] for r in ranks)
    front = scene.Scene([data.of(history)], "last", 0.05).front()
    assert front == (["ideal"] if judged else ["afl"])


@pytest.mark.parametrize("folders", [1, 2])
def test_a_live_run_shows_its_newest_points_beside_another_of_its_name(folders):
    figures = dict.fromkeys(("variance", "accuracy", "worst", "best"), 1.0)
    line = {"strategy": "fedavg", "seed": 0, "round": 7, "deployed": figures, "last": figures}
    run = RunHistory("fedavg", 0, "", np.zeros(0, np.int64))
    sources = [data.Source("run", History([run]), lines=[line], finished=False)] * folders
    assert [r["fair"]["round"] for r in data.tree(sources)["runs"]] == [[7]] * folders
