"""One self-contained page: no network, a strict policy, everything a reader sees escaped.

The page carries its numbers as a JSON block and draws them with the script beside this file. Text
from runs, clients, classes and configuration is only ever text, here (autoescape) and there
(textContent).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedmaba import __version__
from fedmaba.errors import InputError
from fedmaba.report import data, escape, page_data, run_setup, table
from fedmaba.results import run_folder
from fedmaba.results.costs import Goal
from fedmaba.results.history import History, On
from fedmaba.results.joining import some_of
from fedmaba.results.metrics import Unit

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("base", "chart", "clients", "runs", "matrices", "page", "live")  # in this order


def write_page(
    folders: Sequence[Path],
    out: Path,
    share: float | None = None,
    load: Callable[[Sequence[Path]], list[data.Source]] = data.load_all,
    on: On = "test",
    until: Sequence[Goal] = (),
) -> None:
    """The report of one or more run folders, or what else `load` knows, as one file."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: a report is a page: end it in .html")
    text = page([data.judged_on(source, on) for source in load(folders)], share, until=until)
    run_folder.write_file(out, text.encode(), remedy="fix it, or choose another -o")


def page(
    sources: Sequence[data.Source],
    share: float | None = None,
    version: str | None = None,
    until: Sequence[Goal] = (),
) -> str:
    """The page; `version` names the state of a live run, which the page then asks after."""
    tree = page_data.tree(sources, share, until)
    style, script = _asset("style.css"), _script()
    text: str = (
        _environment()
        .get_template("page.html.j2")
        .render(
            policy=policy(live=version is not None),
            style=Markup(style),  # our own file
            script=Markup(script),
            data=Markup(
                block({k: v for k, v in tree.items() if k != "federations"})
            ),  # no < is left
            tree=tree,
            title=title(sources),
            table=tree["tables"][f"{tree['model']}.last"],
            alone=tree["alone"][f"{tree['model']}.last"],
            costs=tree["costs"].get(f"{tree['model']}.last", ()),
            more=table.more_figures([], Unit(**tree["unit"])).head[1:],
            unit=tree["unit"],
            setups=[run_setup.setup_of(source) for source in sources],
            overview=overview(sources, tree["live"]),
            verdicts=tree["verdicts"][f"{tree['model']}.last"],
            live=version,
            version=__version__,
        )
    )
    return text.lstrip()


def policy(live: bool = False) -> str:
    """Allowed are our own script and style, pictures made on the spot and, in a live page, news."""
    rules = [
        "default-src 'none'",
        f"script-src '{_digest(_script())}'",
        f"style-src '{_digest(_asset('style.css'))}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, "connect-src 'self'"] if live else rules)


def block(tree: Any) -> str:
    """JSON that cannot end its own script element."""
    text = json.dumps(_seen(tree), allow_nan=False, separators=(",", ":"))
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _seen(tree: Any) -> Any:
    """The same with every text in one line of visible signs."""
    if isinstance(tree, dict):
        return {key: _seen(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_seen(value) for value in tree]
    return escape.one_line(tree) if isinstance(tree, str) else tree


def title(sources: Sequence[data.Source]) -> str:
    """The runs by name."""
    names = data.short_names(sources)
    front = sources[0].name.removesuffix(names[0])
    return front + some_of(names, 3)


def overview(sources: Sequence[data.Source], live: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What was run, in a few words each."""
    runs = [run for source in sources for run in source.history.runs]
    labels, seeds = {run.label for run in runs}, {run.seed for run in runs}
    clients = sorted({run.n_clients for run in runs if run.n_clients})
    ends = [int(run.evaluated[-1]) for run in runs if len(run.tables.get("evaluated", ()))]
    rounds = max([*ends, *(len(run.tables.get("round", ())) for run in runs)], default=0)
    names = dict.fromkeys(str(s.data["name"]) for s in sources if s.data.get("name"))
    going = [f"round {at['clock']}" + f" of {at['rounds']}" * bool(at["rounds"]) for at in live]
    return [
        *names,
        f"{len(labels)} strateg{'ies' if len(labels) != 1 else 'y'}",
        f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}",
        *([f"{', '.join(f'{n:,}' for n in clients)} clients"] if clients else []),
        *(going or [f"{rounds:,} round{'s' if rounds != 1 else ''}"]),
    ]


def snippet(history: History) -> str:
    """The table of a history for a notebook."""
    grid = table.for_screen(table.summary(history))
    return str(_environment().get_template("table.html.j2").render(grid=grid))


@cache
def _script() -> str:
    """Our own files in one function, so that the page has no global names."""
    body = "".join(_asset(f"script/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}}})();\n'


@cache
def _asset(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    made.filters["parts"] = run_setup.parts
    return made


def _safe(value: Any) -> Any:
    """What a template shows: every text that is not a part of the page itself, escaped."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return Markup(escape.for_html(value)) if plain else value
