"""Hostile names of runs, clients, classes and files: nothing is written outside, no script runs."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tools.faults.common import Say, Tally, call, one_line, progress, scratch

PARTS = [
    "../", "..\\", "/", "\\", "/etc/passwd", "~", "$(touch x)", "`touch x`", ";touch x;", "|", "&",
    "<script>alert(1)</script>", "</script><script>alert(1)</script>", "\"><img src=x onerror=a()>",
    "javascript:alert(1)", "{{7*7}}", "{% raw %}", "%00", "%2e%2e%2f", "\u202e", "\u2028", "CON",
    "a" * 300, " ", ".", "..", "-rf", "--out", "é" * 90, "😀", "'", '"', "<!--", "]]>", "\t", "\\n",
    "__proto__", "=cmd()", "+1", "@x", "file:///etc/passwd", "//host/share", "C:\\x", "nul\x7f",
]  # fmt: skip


def campaign(count: int, seed: int, say: Say) -> Tally:
    """`count` names, each as a strategy's, a client's, a class's, a data file's and a folder's."""
    rng, tally = random.Random(seed), Tally()
    show = progress(say, "names")
    before = os.getcwd()
    with scratch() as root:
        work = root / "work"
        work.mkdir()
        os.chdir(work)
        try:
            for done in range(count):
                name = "".join(rng.choices(PARTS, k=rng.randint(1, 3)))
                why = _own(name) or _command(name)
                outside = [p for p in root.iterdir() if p != work]
                why = why or (f"written outside: {outside}" if outside else "")
                tally.check(not why, f"name {name!r}: {why}")
                shutil.rmtree(work)
                work.mkdir()
                os.chdir(work)
                show(done, count, tally)
        finally:
            os.chdir(before)
    return tally


def _own(name: str) -> str:
    """The name as a strategy's, a client's and a class's, through Python; then the page."""
    import fedmaba
    from fedmaba.data.datasets import Dataset
    from fedmaba.data.federation import Federation
    from fedmaba.experiment import config
    from fedmaba.report import export, html

    rng = np.random.default_rng(0)
    client = np.repeat([0, 1, 2], 8)
    y = np.arange(24) % 3
    data = Dataset(
        name, rng.normal(size=(24, 2)).astype(np.float32), y, 24, (name, name + "1", "c"), client,
        (name, "b", "c"),
    )  # fmt: skip
    fed = Federation.make(data, "given", test="local")
    options: dict[str, Any] = {"model": "softmax", "rounds": 2, "seeds": 1, "eval_every": 1}
    try:
        fedmaba.compare([_strategy(name)()], data=fed, out="run", device="cpu", **options)
        html.write_page([Path("run")], Path("page.html"), 0.05)
        export.to_csv(Path("run"), Path("csv"))
    except fedmaba.errors.FedmabaError as error:
        odd = config.FORBIDDEN.search(name) is not None and "\n" not in str(error)
        return "" if odd else f"refused: {error}"
    except Exception as error:
        return repr(error)
    page = Path("page.html").read_text(encoding="utf-8")
    if "<script>alert" in page or "<img src=x" in page:
        return "the page holds the name as it is"
    if [p.is_file() for p in Path("run", "clients").iterdir()] != [True]:
        return "the name made folders"
    left = {p.name for p in Path().iterdir()}
    return "" if left == {"run", "page.html", "csv"} else f"written beside the folder: {left}"


def _strategy(name: str) -> Any:
    from fedmaba.strategies.base import Decision, Strategy

    class Named(Strategy):
        def weigh(self, state: Any, replies: Any) -> Any:
            return Decision(np.full(len(replies.client), 1 / len(replies.client)), state)

    kind: Any = dataclass(frozen=True)(Named)
    kind.name = name
    return kind


def _command(name: str) -> str:
    """The name as a data file's, through the command line; the run folder is ours to name."""
    if "\x00" in name or len(name.encode()) > 200:
        return ""
    flat = name.replace("/", "_")
    path = Path(f"{flat}.npz")
    np.savez("plain.npz", x=np.eye(6), y=np.arange(6) % 2, client=np.arange(6) % 2)
    os.rename("plain.npz", path)
    words = ["compare", "fedavg", f"--data={path}", "--model=softmax", "--rounds=1", "--seeds=1"]
    code, _, err = call(*words, "--device=cpu", "--quiet")
    if code not in (0, 2) or (code == 2 and not one_line(err)):
        return f"data file: exit code {code}: {err}"
    return ""
