"""Tables and numbers that pages show, from the results.

    python experiments/pages.py                      check every number that a page quotes
    python experiments/pages.py made brief           print a table over many targets
    python experiments/pages.py reproduce T last     print tables of the target T
    python experiments/pages.py picture              draw docs/images/real-star-judged.svg again

The site has the tables (tools/site_pages.py). The numbers in the text of a page stand in
`experiments/quoted/PAGE.toml`, each with a phrase that stands exactly once in the page, the number
in braces, and where it comes from:

    [[number]]
    text = "variance is {24} % below FedAvg's"
    value = "table2-fashion-mnist|fedmaba % fedavg|variance|last|best"

`page` at the top names the page (docs/PAGE.md without it). A value is TARGET|ROW|FIGURE|MODEL|ROUND
or `speed FILE/KEYS` of benchmarks/results/. It is compared at the decimals that the text shows,
without its sign where the text shows none. TARGET `readings#3` is the third reading, ROW `a - b`
the mean difference over the seeds both have, `a % b` by how many per cent a's is below b's, MODEL
`paper`, ROUND `told`, what the paper has, FIGURE `floor` the variance that the number of test
images alone makes, `loss_mean`, `loss_spread` and `loss_link` of the losses that clients reported,
`score` the distance of a reading to the paper's table (ROW `table`: all rows; `two`: FedAvg's and
FedMABA's) and `seeds_apart` that of two seeds, MODEL `gain` the deployed minus the last model,
ROUND `r110` the evaluation of round 110; `from` and `to` are the ends of the longest stretch of
evaluations at which a difference is distinguishable.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from fedmaba.errors import InputError
from fedmaba.report import document, figures, paired, plot_data
from fedmaba.report.document import Cell, Grid
from fedmaba.results.history import History
from fedmaba.results.run_history import GrowingArray, Model, RunHistory
from laboratory import (
    archive,
    baseline_tables,
    claims,
    fair_tables,
    paper,
    picks,
    reading_tables,
    real_tables,
    selection,
    target_tables,
    targets,
)
from laboratory import page as reproduction
from laboratory.paper import name_of
from laboratory.targets import Target

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
SPEEDS = ROOT / "benchmarks" / "results"
BF16 = SPEEDS / "bf16"  # runs of several targets in bf16
AGAIN = BF16.with_name("again")  # the same again in tf32, by later kernels
TWICE = (
    *("table2-fashion-mnist", "table2-fashion-mnist-partial"),
    *("table2-cifar10-partial", "table3-cifar100-partial"),
)
QUOTED = ROOT / "experiments" / "quoted"
NUMBER = re.compile(r"\{([-+–−]?[\d.,]+)\}")
LEFT_OUT = ("The paper: ",)  # said once on the page
MODELS: tuple[Model, ...] = ("last", "deployed")


target_of = cache(targets.load_target)


@cache
def load(folder: Path = RESULTS) -> list[archive.ArchiveFile]:
    return archive.read_folder(folder) if folder.is_dir() else []


def block(kind: str, words: str) -> tuple[str, dict[str, bytes]]:
    """The tables of a `made` or `reproduce` block, and the pictures that they show, by path."""
    if kind == "made":
        return TABLES[words](load()), {}
    name, *chosen = words.split()
    return section(name, chosen, load())


# --- numbers in the text -------------------------------------------------------------------------


def quotations(file: Path) -> tuple[Path, list[dict[str, str]]]:
    """The page that a file of experiments/quoted speaks of, and the numbers of its text."""
    read = tomllib.loads(file.read_text(encoding="utf-8"))
    usual = "README.md" if file.stem == "README" else f"docs/{file.stem}.md"
    return ROOT / read.get("page", usual), read["number"]


def wrong(file: Path, batches: list[archive.ArchiveFile]) -> list[str]:
    """What is wrong with the numbers of a page, a line for each."""
    page, every = quotations(file)
    text = plain(page.read_text(encoding="utf-8"))
    found = (fault(text, one["text"], one["value"], batches) for one in every)
    return [f"{page.relative_to(ROOT)}: {line}" for line in found if line]


def plain(text: str) -> str:
    """A text on one line, without comments."""
    return re.sub(r"\s+", " ", re.sub(r"<!--.*?-->", "", text, flags=re.S))


def fault(page: str, phrase: str, said: str, batches: list[archive.ArchiveFile]) -> str:
    """What is wrong with one number; nothing where it is right."""
    braced = NUMBER.findall(phrase)
    if len(braced) != 1:
        return f'"{phrase}" has {len(braced)} numbers in braces: give it one'
    if (times := page.count(plain(NUMBER.sub(r"\1", phrase)))) != 1:
        return f'"{phrase}" stands {times} times in the page: name a phrase that stands there once'
    shown = braced[0].replace(",", "").replace("−", "-").replace("–", "-")
    number = quoted_value(said, batches)
    signed = shown[0] in "+-"
    digits = len(shown.partition(".")[2])
    right = f"{number if signed else abs(number):{'+' if signed else ''}.{digits}f}"
    return "" if shown == right else f'"{phrase}" should have {right} ({said})'


def quoted_value(said: str, batches: list[archive.ArchiveFile]) -> float:
    """A number by the words that name it."""
    if said.startswith("speed "):
        file, *keys = said.removeprefix("speed ").split("/")
        found = json.loads((SPEEDS / f"{file}.json").read_text(encoding="utf-8"))
        for key in keys:
            found = found[int(key) if isinstance(found, list) else key]
        return float(found)
    name, row, figure, model, at = said.split("|")
    return measured(name, row, figure, model, at, batches)


# --- a target ------------------------------------------------------------------------------------


def section(
    name: str, chosen: list[str], batches: list[archive.ArchiveFile]
) -> tuple[str, dict[str, bytes]]:
    """The tables of a target with its pictures, or that it has not been run."""
    target = picks.with_picks(target_of(name), batches)
    try:
        page = reproduction.document(target, batches)
    except InputError:
        return f"{target.view.title}: not run yet.\n", {}
    if "bare" in chosen:
        tables = [document.markdown_table(g) for g in page.grids if g.name in chosen]
        return "\n\n".join(tables) + "\n", {}
    page.text = [t for t in page.text if not t.startswith(LEFT_OUT)]
    used = {b.path: b for job in target.every_job() for b in archive.collect(batches, job)[1]}
    said = sorted({f"`{batch.about['command']}`" for batch in used.values()})
    drawn = {
        picture(name, kind): figures.encode(make(), ".svg")
        for kind, make in page.figures.items()
        if target.view.kind in ("figure", "sweep", "baselines")
    }
    shown = [f"![{target.view.title}]({path})" for path in drawn]
    tables = [document.markdown_table(g) for g in page.grids if not chosen or g.name in chosen]
    words = document.markdown(replace(page, grids=[]), level=3)
    parts = [words + f"\nCommands: {', '.join(said)}.", *tables, *shown]
    return "\n\n".join(parts) + "\n", drawn


def picture(name: str, kind: str) -> str:
    return f"images/{name}-{kind}.svg"


def level(name: str, row: str, figure: str, model: str, batches: list[archive.ArchiveFile]) -> str:
    """A figure of a row at the last round, as a table would show it."""
    return document.number(measured(name, row, figure, model, "last", batches)).text


def measured(
    name: str, row: str, figure: str, model: str, at: str, batches: list[archive.ArchiveFile]
) -> float:
    """One mean over seeds, or a number of the paper's; nan where nothing was run."""
    ours, sign, base = re.fullmatch(r"(.+?)(?: (-|%) (.+))?", row).groups()
    if at in ("from", "to"):
        return stretch(name, ours, base, figure, model, batches)[at == "to"]
    found = by_seed(name, ours, figure, model, at, batches)
    if sign == "%":
        mine, other = paired.pairs(found, by_seed(name, base, figure, model, at, batches))
        return float(np.mean(100 * (1 - mine / other))) if len(mine) else np.nan
    if base:
        theirs = by_seed(name, base, figure, model, at, batches)
        return paired.difference(found, theirs).mean
    return paired.moments([*found.values()])[0]


def rows_of(
    name: str, row: str, batches: list[archive.ArchiveFile]
) -> tuple[list[RunHistory], float]:
    """A row's runs that did not diverge, and the share that its worst clients are."""
    history = history_of(name, batches)
    return [r for r in history.runs if r.label == row and not r.diverged], history.share


def history_of(name: str, batches: list[archive.ArchiveFile]) -> History:
    """The runs of a target, made once for a list of files."""
    if (id(batches), name) not in HISTORIES:
        plain_name, _, which = name.partition("#")
        if (target := target_of(plain_name)).view.search:
            found = picks.picked_history(target, batches)
        else:
            found = archive.deployed_history(batches, target.jobs[int(which or 1) - 1])
        HISTORIES[id(batches), name] = batches, found
    return HISTORIES[id(batches), name][1]


# the list is kept beside its histories, so that no other one gets its id
HISTORIES: dict[tuple[int, str], tuple[list[archive.ArchiveFile], History]] = {}


def stretch(
    name: str, row: str, base: str, figure: str, model: str, batches: list[archive.ArchiveFile]
) -> tuple[int, int]:
    """Ends of the longest stretch of evaluations at which two rows can be told apart."""
    kind: Model = "last" if model == "last" else "deployed"
    found = [rows_of(name, label, batches) for label in (row, base)]
    ours, theirs = (
        {run.seed: [getattr(f, figure) for f in run.fairness(kind, share)] for run in runs}
        for runs, share in found
    )
    evaluated = found[0][0][0].evaluated
    seeds = sorted(ours.keys() & theirs.keys())
    differ = np.array([ours[s] for s in seeds]) - np.array([theirs[s] for s in seeds])
    best, first = (0, -1), 0
    for k, column in enumerate(differ.T):
        if not paired.interval(column).distinguishable:
            first = k + 1
        elif k - first > best[1] - best[0]:
            best = first, k
    if best[1] < 0:
        raise ValueError(f"{name}: {row} and {base} are never told apart in {figure}")
    return int(evaluated[best[0]]), int(evaluated[best[1]])


def by_seed(
    name: str, row: str, figure: str, model: str, at: str, batches: list[archive.ArchiveFile]
) -> dict[int, float]:
    """A figure of a row's runs that did not diverge; the paper's is one value."""
    if model == "paper":
        return {0: paper.load_paper()[target_of(name).view.paper][row][figure][0]}
    if figure in ("score", "seeds_apart"):
        return distance(name, row, figure, at, batches)
    runs, share = rows_of(name, row, batches)
    if at.startswith("r"):
        runs, at = [until(run, int(at[1:])) for run in runs], "last"
    if figure == "floor":
        return {run.seed: floor(run) for run in runs}
    if figure in fair_tables.LOSSES:
        kept = [run for run in runs if archive.TRAINING in run.tables]
        return {run.seed: float(fair_tables.losses(run)[figure][-1]) for run in kept}
    history = History(runs, share)

    def of(model: Model) -> dict[int, float]:
        return selection.by_seed(
            selection.fairness_by_seed(history, model, selection.CHOICES[at]), row, figure
        )

    if model == "gain":
        last, handed = map(of, MODELS)
        return {seed: handed[seed] - last[seed] for seed in last}
    return of("last" if model == "last" else "deployed")


def distance(
    name: str, row: str, figure: str, at: str, batches: list[archive.ArchiveFile]
) -> dict[int, float]:
    """How far a reading is from the paper's table, by seed, or its seeds from each other."""
    name, _, which = name.partition("#")
    target = target_of(name)
    found = reading_tables.found_rows(target, int(which or 1) - 1, batches, at)
    whole = reading_tables.whole_rows(target)
    rows = {"table": whole, "two": ["fedavg", "fedmaba"]}[row]
    if figure == "seeds_apart":
        return {0: reading_tables.own_spread(found, rows)}
    apart = reading_tables.distances_to_paper(found, rows, target.view.paper)
    return reading_tables.score(apart)


def until(run: RunHistory, done: int) -> RunHistory:
    """A run as it was after some rounds."""
    count = int(np.flatnonzero(run.evaluated == done)[0]) + 1
    return replace(run, tables={k: GrowingArray(t.array()[:count]) for k, t in run.tables.items()})


def floor(run: RunHistory) -> float:
    """The variance (%²) that clients of the same true accuracies show by their few images alone."""
    return float(run.test_noise("last", [-1])[0][0])


# --- tables over many targets --------------------------------------------------------------------

WIDE = (
    *("table2-fashion-mnist", "table2-fashion-mnist-partial"),
    *("table2-fashion-mnist-dirichlet", "table2-fashion-mnist-dirichlet-partial"),
    *("table2-cifar10", "table2-cifar10-partial", "table2-cifar10-dirichlet-partial"),
    *("table3-cifar100", "table3-cifar100-partial"),
)
OURS = ("fedmaba", "fedmaba:alpha=0.8")


def brief(batches: list[archive.ArchiveFile]) -> str:
    """FedMABA's variance minus FedAvg's, in every table: a line for each setting."""
    head = ["data, split, clients in a round", "seeds", "FedAvg, last / deployed"]
    head += [f"{name_of(row)}, {model}" for row in OURS for model in MODELS]
    body = []
    for name in WIDE:
        asked = target_of(name).jobs[0].experiment
        cells = []
        for row in OURS:
            for model in MODELS:
                ours, theirs = (
                    by_seed(name, r, "variance", model, "last", batches) for r in (row, "fedavg")
                )
                span = paired.difference(ours, theirs)
                text = document.number(span.mean, sign=True).text
                cells.append(Cell(text, rank=0 if span.distinguishable else 2))
        if not span.seeds:
            continue
        levels = " / ".join(level(name, "fedavg", "variance", m, batches) for m in MODELS)
        where = f"{asked.data.name}, {asked.data.partition}, {asked.train.participants}"
        body.append([*map(Cell, [where, str(span.seeds), levels]), *cells])
    return document.markdown_table(
        Grid("brief", "FedMABA's variance minus FedAvg's, %²", head, body)
    )


def summary(batches: list[archive.ArchiveFile]) -> str:
    """FedMABA against FedAvg, in every table."""
    head = ["data, split, clients in a round", "seeds", "row", "FedAvg's variance, last / deployed"]
    head += ["variance, last round", "variance, last five", "variance, deployed"]
    head += ["worst 5 %, deployed", "accuracy, deployed"]
    looks = (("variance", "last", "last"), ("variance", "last", "last5"))
    looks += (("variance", "deployed", "last"), ("worst", "deployed", "last"))
    looks += (("accuracy", "deployed", "last"),)
    body = []
    for name in WIDE:
        asked = target_of(name).jobs[0].experiment
        for row in OURS:
            cells = []
            for figure, model, at in looks:
                ours, theirs = (
                    by_seed(name, r, figure, model, at, batches) for r in (row, "fedavg")
                )
                span = paired.difference(ours, theirs)
                cells.append(span_cell(span))
            if not span.seeds:
                continue
            levels = (level(name, "fedavg", "variance", m, batches) for m in MODELS)
            where = f"{asked.data.name}, {asked.data.partition}, {asked.train.participants}"
            first = [where, str(span.seeds), name_of(row), " / ".join(levels)]
            body.append([*map(Cell, first), *cells])
    return document.markdown_table(
        Grid("summary", "FedMABA minus FedAvg, 95 % t-interval", head, body)
    )


PAPERS = {  # tables of the paper: the target that reads it as we do
    "Table II, Fashion-MNIST": "table2-fashion-mnist",
    "Table II, CIFAR-10": "table2-cifar10",
    "Table III, CIFAR-100": "table3-cifar100",
}


def glance(batches: list[archive.ArchiveFile]) -> str:
    """Ours minus the paper's in every row of its tables, at the best round, as Algorithm 1."""
    head, tables = ["row"], {}
    for title, target in PAPERS.items():
        history = archive.deployed_history(batches, target_of(target).jobs[0])
        known, best = paper.load_paper()[target], selection.CHOICES["best"]
        tables[target] = target_tables.from_paper(history, best, known)
        head += [f"{title}: variance %², accuracy", "inside our interval"]
    body = []
    for row in paper.load_paper()["names"]:
        line, causes = [Cell(name_of(row))], []
        for target, apart in tables.items():
            if own := apart.get(row):
                if why := paper.load_paper()["cause"].get(target, {}).get(row):
                    causes.append(f"{target.partition('-')[2]}: {why}")
                line.append(Cell(f"{own[0].mean:+.2f}, {own[1].mean:+.2f}"))
                line.append(Cell(target_tables.inside_in_words(own, 0.05)))
            else:
                line += [Cell(""), Cell("")]
        if any(cell.text for cell in line[1:]):
            body.append([*line, Cell("; ".join(causes) or "none tested")])
    title = "Ours minus the paper's, all clients in each round, last server model at its best round"
    return document.markdown_table(Grid("glance", title, [*head, target_tables.CAUSE], body))


def verdicts(batches: list[archive.ArchiveFile]) -> str:
    """What our runs say of each statement of the paper, in words: a line for each target."""
    head = ["the paper says", "held against", "where", "row", *LOOKS_IN_WORDS]
    lines: dict[tuple[int, str], list[claims.FoundFor]] = {}
    for found in claims.found_for(target_of("claims"), batches):
        lines.setdefault((found.number, found.where), []).append(found)
    body, before = [], -1
    for (number, where), every in lines.items():
        claim = every[0].claim
        against = name_of(claim.get("against", "fedavg"))
        against += "".join(
            f", without {name_of(w).split(',')[0]}" for w in claim.get("without", [])
        )
        told = [claim["says"], against] if number != before else ["", ""]
        before = number
        rows = " / ".join(name_of(found.row).removeprefix("FedMABA, ") for found in every)
        words = [
            " / ".join(claims.judgement(claim, found.by_model_and_round[k].span) for found in every)
            for k in LOOKS_IN_WORDS.values()
        ]
        if claim["measure"] == "steadier":  # said of many rounds: none is the best
            words[0] = "–"
        body.append([Cell(text) for text in [*told, where, rows, *words]])
    return document.markdown_table(Grid("verdicts", "Statement by statement, in words", head, body))


LOOKS_IN_WORDS = {"best round": 1, "last round": 0, "deployed model": 2}  # where in claims.LOOKS


def which(batches: list[archive.ArchiveFile]) -> str:
    """The rows among which one chooses: levels of the deployed model, differences to FedAvg."""
    name, figures = "table2-fashion-mnist", ("variance", "accuracy", "worst", "best")
    head = ["row", "seeds", "variance %²", "accuracy %", "worst 5 %", "best 5 %"]
    head += ["worst 5 %, minus FedAvg's"]
    body = []
    for row in ("fedavg", *OURS, "fedfv", "afl", "term"):
        levels = [level(name, row, figure, "deployed", batches) for figure in figures]
        found = by_seed(name, row, "worst", "deployed", "last", batches)
        base = by_seed(name, "fedavg", "worst", "deployed", "last", batches)
        apart = Cell("") if row == "fedavg" else span_cell(paired.difference(found, base))
        body.append([*map(Cell, [row, str(len(found)), *levels]), apart])
    title = "Fashion-MNIST, two classes a client, all 100 clients, deployed model"
    return document.markdown_table(Grid("which", title, head, body))


ATTACKED = ("attacks-fashion-mnist", "attacks-cifar10")
FIGURES = {"accuracy": "accuracy %", "worst": "worst 5 %", "variance": "variance %²"}
FAIR = {  # rules with FedMABA's weights, and without
    "fedmaba": "fedavg",
    "median:weights=fedmaba": "median",
    "trimmed:weights=fedmaba,share=0.3": "trimmed:share=0.3",
    "rfa:weights=fedmaba": "rfa",
    "cclip:weights=fedmaba": "cclip",
    "multikrum:weights=fedmaba,share=0.3": "multikrum:share=0.3",
    "nnm:share=0.3,rule=trimmed:share=0.3;weights=fedmaba": "nnm:share=0.3,rule=trimmed:share=0.3",
}


def robust(batches: list[archive.ArchiveFile]) -> str:
    """What each row gives the honest clients under each attack, bold where FedAvg differs."""

    def cell(name: str, row: str, figure: str) -> Cell:
        found, base = (
            by_seed(name, one, figure, "deployed", "last", batches) for one in (row, "fedavg")
        )
        tried = sum(run.label == row for run in history_of(name, batches).runs)
        if tried and not found:
            return Cell("diverged")
        text = document.number(paired.moments([*found.values()])[0]).text
        if len(found) < tried:
            text += f" ({len(found)} of {tried})"
        return Cell(text, rank=0 if paired.difference(found, base).distinguishable else 2)

    title = "bold where it differs from FedAvg's; (4 of 5): as many seeds did not diverge"
    return under_attack(batches, title, cell)


def fair_weights(batches: list[archive.ArchiveFile]) -> str:
    """What FedMABA's weights change behind each rule, under the same seeds."""

    def cell(name: str, row: str, figure: str) -> Cell:
        found, plain = (
            by_seed(name, one, figure, "deployed", "last", batches) for one in (row, FAIR[row])
        )
        return span_cell(paired.difference(found, plain))

    title = "with FedMABA's weights, minus the same rule with equal ones"
    return under_attack(batches, title, cell, tuple(FAIR))


def under_attack(
    batches: list[archive.ArchiveFile],
    title: str,
    cell: Callable[[str, str, str], Cell],
    rows: tuple[str, ...] = (),
) -> str:
    """A table for each experiment and figure: a column for each attack; all rows, or these."""
    out = []
    for name in ATTACKED:
        tried = {
            f"{name}#{k}": hostile(job)
            for k, job in enumerate(target_of(name).jobs, 1)
            if history_of(f"{name}#{k}", batches).runs
        }
        found = {run.label for at in tried for run in history_of(at, batches).runs}
        first = target_of(name).jobs[0]
        about = f"{first.experiment.data.name}, {first.experiment.model}"
        for figure, words in FIGURES.items() if tried else ():
            body = [
                [Cell(row), *(cell(at, row, figure) for at in tried)]
                for row in rows or first.strategies
                if row in found
            ]
            caption = f"{about}: {words}, {title}"
            out.append(document.markdown_table(Grid(figure, caption, ["", *tried.values()], body)))
    return "\n\n".join(out) if out else "Not run yet."


def hostile(job: targets.Job) -> str:
    """What hostile clients do, and how many do it."""
    attack = job.experiment.attack
    return f"{attack.share} {attack.does}" if attack.does else "nobody"


def span_cell(span: paired.Interval) -> Cell:
    """A difference, bold where it is one."""
    return Cell(span.text(), rank=0 if span.distinguishable else 2)


def precision(batches: list[archive.ArchiveFile]) -> str:
    """Rows in bf16 beside the same ones in tf32."""
    again = load(BF16)
    head = ["row", "model", "variance %²", "bf16 - tf32", "accuracy %", "bf16 - tf32"]
    head += ["worst 5 %", "bf16 - tf32"]
    body = []
    for label in ("fedavg", *OURS):
        for words, model, at in (
            ("last round", "last", "last"),
            ("mean of the last five", "last", "last5"),
            ("best round", "last", "best"),
            ("deployed (ema:0.98)", "deployed", "last"),
        ):
            line = [Cell(name_of(label)), Cell(words)]
            for figure in ("variance", "accuracy", "worst"):
                then, now = (
                    by_seed("table2-cifar10-partial", label, figure, model, at, some)
                    for some in (batches, again)
                )
                sides = [document.number(*paired.moments(x)) for x in paired.pairs(then, now)]
                line.append(Cell(" / ".join(side.text for side in sides)))
                line.append(span_cell(paired.difference(now, then)))
            body.append(line)
    return document.markdown_table(
        Grid("precision", "tf32 / bf16, mean ± sd over three seeds", head, body)
    )


def again(batches: list[archive.ArchiveFile]) -> str:
    """Runs beside the same ones of another day: how far rounding alone moves a table."""
    later = load(AGAIN)
    head = ["target", "entries", "within one sd", "median, sd", "row", "variance, last round"]
    head += ["again", "variance, deployed", "again"]
    body = []
    for name in TWICE:
        moved = [far for far, _ in _moved(name, batches, later)]
        said = [name, f"{len(moved)}", f"{sum(m < 1 for m in moved)}", f"{np.median(moved):.2f}"]
        for label in OURS:
            line = [Cell(text) for text in [*said, name_of(label)]]
            for model in MODELS:
                for some in (batches, later):
                    ours, plain = (
                        {k: v for k, v in seen.items() if k < 3}
                        for seen in (
                            by_seed(name, row, "variance", model, "last", some)
                            for row in (label, "fedavg")
                        )
                    )
                    line.append(span_cell(paired.difference(ours, plain)))
            body.append(line)
            said = ["", "", "", ""]
    title = "FedMABA minus FedAvg under the same three seeds, twice; 95 % t-interval"
    return document.markdown_table(Grid("again", title, head, body))


def _moved(
    name: str, batches: list[archive.ArchiveFile], later: list[archive.ArchiveFile]
) -> list[tuple[float, bool]]:
    """How far entries moved, in their standard deviations over seeds, and whether seeds agree.

    That is: whether the interval of the paired difference leaves out 0. No rows that diverged.
    """
    out = []
    (job, *_), last = target_of(name).jobs, selection.CHOICES["last"]
    for model in MODELS:
        sides = [
            selection.fairness_by_seed(archive.deployed_history(some, job), model, last)
            for some in (batches, later)
        ]
        for label in job.strategies:
            for figure in ("variance", "accuracy", "worst", "best"):
                then, now = (selection.by_seed(found, label, figure) for found in sides)
                before, after = paired.pairs(then, now)
                if len(after) == 3:
                    far = abs(float(np.mean(after - before))) / float(np.std(before, ddof=1))
                    out.append((far, paired.difference(now, then).distinguishable))
    return out


def rounding(batches: list[archive.ArchiveFile]) -> str:
    """How far tables move in bf16, beside how far they move in tf32 on another day."""
    head = ["target", "", "entries", "within one sd", "median, sd", "intervals without 0"]
    sides, body = {"tf32 again": load(AGAIN), "bf16": load(BF16)}, []
    for name in TWICE:
        for words, later in sides.items():
            moved = _moved(name, batches, later)
            far = [m for m, _ in moved]
            line = [name, words, f"{len(far)}", f"{sum(m < 1 for m in far)}"]
            line += [f"{np.median(far):.2f}", f"{sum(agree for _, agree in moved)}"]
            body.append([Cell(text) for text in line])
    title = "Entries of a table against those in tf32 with the same three seeds"
    return document.markdown_table(Grid("rounding", title, head, body))


def baselines(batches: list[archive.ArchiveFile]) -> str:
    """Every strategy of the package in every setting that was run."""
    shown = {
        "Fashion-MNIST, 10 of 100": target_of("baselines-fashion-mnist-partial"),
        "CIFAR-10, 10 of 100": target_of("baselines-cifar10-partial"),
        "CIFAR-100, 10 of 100": target_of("baselines-cifar100-partial"),
        "Fashion-MNIST, all": target_of("baselines-fashion-mnist"),
        "CIFAR-10, all": target_of("baselines-cifar10"),
    }
    grid = baseline_tables.over_settings(shown, batches)
    return document.markdown_table(grid) if grid.rows else "Not run yet."


REAL = {
    "80 schools": "real-star",
    "131 authorities": "real-chem97",
    "671 users": "real-movielens",
    "194 communes": "real-vietnam",
    "51 states": "real-tv16",
}


def real(batches: list[archive.ArchiveFile]) -> str:
    """Every strategy on the real federations that were run."""
    grid = real_tables.over_federations(real_shown(batches), batches)
    return document.markdown_table(grid) if grid.rows else "Not run yet."


def real_shown(batches: list[archive.ArchiveFile]) -> dict[str, Target]:
    """The real federations in which FedAvg has fresh seeds."""
    found = {title: target_of(name) for title, name in REAL.items()}
    return {
        title: target
        for title, target in found.items()
        if selection.REFERENCE in {r.label for r in picks.picked_history(target, batches).runs}
    }


def spread(_: list[archive.ArchiveFile]) -> str:
    """How far real clients differ, beside what noise alone makes."""
    measured = json.loads((RESULTS / "real-spread.json").read_text())
    head = ["federation", "clients", "rows", "spread", "p", "error", "worst tenth", "without model"]
    keys = ("mean", "worst tenth", "without a model")
    body = [
        [name, str(one["clients"]), f"{one['examples']:,}", f"{one['ratio']:.2f}", f"{one['p']:g}"]
        + [f"{one[key]:.3f}" for key in keys]
        for name, one in measured.items()
    ]
    cells = [[Cell(text) for text in line] for line in body]
    return document.markdown_table(
        Grid("spread", "Squared errors of one linear model", head, cells)
    )


TABLES: dict[str, Callable[[list[archive.ArchiveFile]], str]] = {
    "brief": brief,
    "glance": glance,
    "verdicts": verdicts,
    "summary": summary,
    "precision": precision,
    "rounding": rounding,
    "again": again,
    "which": which,
    "robust": robust,
    "fair_weights": fair_weights,
    "baselines": baselines,
    "real": real,
    "spread": spread,
}


def draw() -> None:
    """The picture of the schools, which pages show as a file."""
    schools = real_tables.judged(target_of("real-star"), load())
    ranks = figures.figure_of(schools, "ranks", "deployed", (plot_data.WIDE, 4.0))
    (ROOT / "docs" / picture("real-star", "judged")).write_bytes(figures.encode(ranks, ".svg"))


def check() -> None:
    """Every quoted number; leave with the lines that say what is wrong."""
    lines = [line for file in sorted(QUOTED.glob("*.toml")) for line in wrong(file, load())]
    if lines:
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            check()
        case ["picture"]:
            draw()
        case [("made" | "reproduce") as kind, *words]:
            print(block(kind, " ".join(words))[0])
        case words:
            raise SystemExit(f"{' '.join(words)}: say nothing, `made NAME` or `reproduce TARGET`")
