"""What the tests of the report share: hostile names, a long history, a finished run, commands.

Each name would run a script in a careless page, and set `window.hit`.
"""

import html.parser
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import fedmaba
from fedmaba import cli
from fedmaba.experiment import config
from fedmaba.experiment import session as experiment
from fedmaba.report import data
from fedmaba.results.history import GrowingArray, History, RunHistory
from fedmaba.results.metrics import ACCURACY

HIT = "window.hit=1"
CORES = [
    f"<script>{HIT}</script>",
    f"</script><script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f"<svg><script>{HIT}</script></svg>",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'></iframe>",
    f"<a href=javascript:{HIT} autofocus onfocus={HIT}>x</a>",
    f"<math><mtext><style><img src=x onerror={HIT}></style></mtext></math>",
    f"<details open ontoggle={HIT}>",
    f"<input autofocus onfocus={HIT}>",
    f"<body onload={HIT}>",
    f"<object data='data:text/html,<script>{HIT}</script>'></object>",
    f"<base href='javascript:{HIT}//'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{HIT}'>",
    f"<link rel=stylesheet href='http://192.0.2.1/{HIT}'>",
    f"<style>@import 'http://192.0.2.1/{HIT}'</style>",
    f"<template><script>{HIT}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={HIT}>'>",
    f"<!--<script>{HIT}</script>-->",
    f"javascript:{HIT}",
]
FRONTS = [
    "",
    '">',
    "'>",
    "-->",
    "]]>",
    "</title>",
    "</style>",
    "</textarea>",
    "\\u003c/",
    "{{7*7}}",
]
PAYLOADS = [front + core for front in FRONTS for core in CORES]


def history(
    labels=("fedavg", "afl", "term", "qffl:q=0.1", "fedmaba:alpha=0.8"),
    seeds=2, clients=100, rounds=2000, every=1,
) -> History:  # fmt: skip
    """Made-up runs that converge; each strategy is a little fairer than the one before."""
    rng, runs = np.random.default_rng(0), []
    for k, label in enumerate(labels):
        for seed in range(seeds):
            run = RunHistory(label, seed, "poly:8", np.full(clients, 100))
            evaluated = np.arange(every, rounds + 1, every)
            level = np.clip(rng.normal(0.75, 0.14 - 0.02 * k, clients), 0, 1)
            rise = 1 - np.exp(-8 * evaluated / rounds)
            noise = rng.normal(0, 0.01, (len(evaluated), clients))
            accuracy = np.clip(level * rise[:, None] + noise, 0, 1)
            loss = (1.5 - accuracy).astype(np.float32)
            run.tables = {
                "round": list(np.arange(1, rounds + 1)),
                "client": [np.arange(clients)] * rounds,
                "weight": list(rng.dirichlet(np.full(clients, 5.0 + k), rounds)),
                "reported_loss": list(rng.gamma(2, 0.5, (rounds, clients))),
                "evaluated": list(evaluated),
            }
            for model in ("deployed", "last"):
                run.tables[f"{model}.accuracy"] = list(accuracy)
                run.tables[f"{model}.loss"] = list(loss)
            if label.startswith("fedmaba"):
                run.tables["info.lambda"] = list(np.maximum(0, rng.normal(0.2, 0.1, rounds)))
                run.tables["info.kl"] = list(rng.uniform(0.9, 1, rounds))
            runs.append(run)
    return History(runs)


def finished_run(out: Path, tiny_npz) -> Path:
    """A finished run of three strategies and two seeds."""
    fedmaba.compare(
        ["fedavg", "afl", "fedmaba"], data=str(tiny_npz), model="softmax", rounds=6, eval_every=2,
        seeds=2, minibatch=5, out=out, device="cpu",
    )  # fmt: skip
    return out


SECTIONS = [
    "verdict", "summary", "distribution", "tradeoff", "rounds", "weights", "gains", "client",
    "heterogeneity", "setup",
]  # fmt: skip


def call(monkeypatch, capsys, *words) -> str:
    """What a command prints."""
    monkeypatch.setattr(sys, "argv", ["fedmaba", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        cli.main()
    seen = capsys.readouterr()
    assert not end.value.code, seen.err
    return seen.out


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


def one(label, accuracy, seed=0, diverged="") -> RunHistory:
    run = RunHistory(label, seed, "last", np.full(len(accuracy), 10), diverged)
    run.tables = {"evaluated": [np.asarray(1)]}
    for model in data.MODELS:
        run.tables |= {f"{model}.{k}": [np.array(accuracy)] for k in ("accuracy", "loss")}
    return run


def evaluated(label, seed, *scores, sizes=10, metric=ACCURACY, deploy="last", **tables):
    """A run whose clients have these scores at each evaluation; more tables by their names."""
    rows = np.array(scores, float)
    found = {f"{model}.{kind}": rows for model in data.MODELS for kind in ("accuracy", "loss")}
    found |= {name.replace("__", "."): np.array(table, float) for name, table in tables.items()}
    found["evaluated"] = np.arange(1, len(rows) + 1)
    size = np.broadcast_to(sizes, rows.shape[1:]).copy()
    grown = {name: GrowingArray(table) for name, table in found.items()}
    return RunHistory(label, seed, deploy, size, tables=grown, metric=metric)


def session(tiny_npz, rounds=4, save=None):
    asked = {"strategies": ["fedavg", "fedmaba"], "seeds": 2, "model": "softmax"}
    asked["data"], asked["train"] = {"name": str(tiny_npz)}, {"rounds": rounds, "minibatch": 5}
    asked["eval"], asked["machine"] = {"every": 2}, {"device": "cpu", "threads": 1}
    asked["save"] = save or {}
    return experiment.prepare(config.build(asked))


def printed(width, renderable) -> str:
    stream = StringIO()
    Console(file=stream, width=width, color_system=None).print(renderable)
    return stream.getvalue()
