"""Read results: table, report, watch, figure, export; and list what there is to choose from."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fedmaba.cli.messages import say, show_page, tell, tell_unfinished
from fedmaba.cli.options import (
    AsJson,
    At,
    By,
    ExportForm,
    Font,
    JudgedOn,
    Model,
    On,
    RunFolders,
    RunOrState,
    RunOrTarget,
    TableForm,
    Until,
    Width,
    WorstShare,
)
from fedmaba.errors import InputError


def table(
    folders: RunFolders,
    model: Annotated[
        Model, typer.Option(help="the deployed model, the server's last one, or each client's own")
    ] = "deployed",
    at: Annotated[
        At,
        typer.Option(help="the last round, the best one, or the mean of the last five evaluations"),
    ] = "last",
    on: JudgedOn = "test",
    share: WorstShare = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="also each row's differences to this one, with intervals and p-values",
        ),
    ] = None,
    to: Annotated[TableForm, typer.Option(help="the form in which it is written")] = "text",
    by: Annotated[
        By,
        typer.Option(help="a row for each strategy, for each client, or for each group of people"),
    ] = "strategy",
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show the table of a run folder, finished or not, of several, or of a reproduced target.

    Of a federation on Flower, name its state folder: then also its sites, and who was left out.
    """
    from fedmaba.cli import sources
    from fedmaba.experiment import trials
    from fedmaba.report import (
        cost_tables,
        data,
        document,
        federation,
        json_forms,
        terminal,
        trials_table,
    )
    from fedmaba.report import table as tables
    from fedmaba.results import costs, state_folder
    from fedmaba.results.loading import load_history

    to = "json" if as_json else to
    if by != "strategy":
        if share is not None:
            raise InputError(f"--by {by} has no worst share of clients: leave out --share")
        if until:
            raise InputError(f"--by {by} says nothing of costs: leave out --until")
        show = _clients if by == "client" else _groups
        show(folders, model, at, on, against, to)
        for folder in folders:
            tell_unfinished(folder)
        return
    goals = costs.goals(until or ())
    # Only one folder has trials, or is the state of a federation.
    one, title = folders[0] if len(folders) == 1 else None, ", ".join(map(str, folders))
    history = load_history(one) if one is not None else data.combine(sources.load_each(folders))
    history = history.judged_on(on)
    searched = [] if one is None else trials.load_trials(one)
    if to == "json":
        text = json_forms.json_table(history, model, at, share, against, goals, searched)
        typer.echo(text, nl=False)
        return
    page = tables.document(history, model, at, share, against, title)
    # what terminal.show does not show
    more = [grid for grid in page.grids if grid.name == "differences"]
    page.grids += (spent := cost_tables.grids(history, model, at, share, goals))
    more += spent
    if searched:
        more.append(trials_table.trials_grid(searched, history.unit))
        page.grids.append(more[-1])
    state = None if one is None else state_folder.load_state_folder(one)
    if state is not None:
        more += federation.tables(state)
        page.grids += federation.grids(state)
    if to == "text":
        terminal.show(history, model, at, share)
        terminal.tables(more)
        terminal.lines([] if state is None else federation.how_far(state))
    else:
        typer.echo(document.written(page, to), nl=False)
    for folder in folders:
        tell_unfinished(folder)


def _clients(
    folders: list[Path], model: Model, at: At, on: On, against: str | None, to: TableForm
) -> None:
    """Each client by itself, the worst served first."""
    from fedmaba.cli import sources
    from fedmaba.report import client_tables

    found = client_tables.table(sources.load_each(folders), model, at, on, against)
    if to == "json":
        typer.echo(client_tables.json_document(found), nl=False)
        return
    page = client_tables.document(found, ", ".join(map(str, folders)))
    show_page(client_tables.for_terminal(page, found) if to == "text" else page, to)


def _groups(
    folders: list[Path], model: Model, at: At, on: On, against: str | None, to: TableForm
) -> None:
    """Groups of people, and the gaps between them."""
    from fedmaba.experiment import parts
    from fedmaba.report import group_tables
    from fedmaba.results.loading import load_history

    if against is not None:
        raise InputError("--by group has no --against: leave one of them out")
    if to == "json":
        raise InputError("--by group has no JSON: write it with --to csv")
    if on == "validation":
        raise InputError("--by group counts test examples: leave out --on validation")
    if len(folders) > 1:
        raise InputError("--by group reads one folder: name one")
    (folder,) = folders
    about = parts.about_of(folder) if folder.is_dir() else {}
    names = group_tables.Names(about.get("data", {}).get("clients", ()))
    history = load_history(folder)
    page = group_tables.document(history, model, at, names, str(folder))
    show_page(page, to)


def theory(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, finished or not")],
    to: Annotated[TableForm, typer.Option(help="the form in which it is written")] = "text",
) -> None:
    """Show how uneven a run's weights were, and what that costs: see docs/theory.md."""
    from fedmaba.report import theory as unevenness
    from fedmaba.results import run_folder
    from fedmaba.results.loading import load_history

    page = unevenness.document(load_history(folder), run_folder.load_labels(folder), str(folder))
    show_page(page, to)
    tell_unfinished(folder)


def report(
    folders: RunFolders,
    out: Annotated[Path, typer.Option("-o", "--out", help="the page to write")] = Path(
        "report.html"
    ),
    share: WorstShare = None,
    on: JudgedOn = "test",
    until: Until = None,
) -> None:
    """Write one self-contained page with every table and figure.

    Of run folders, or of a reproduced target: `fedmaba report
    experiments/results/table2-fashion-mnist`. Of federations on Flower, name their state folders.
    """
    from fedmaba.cli import sources
    from fedmaba.report import html
    from fedmaba.results import costs

    html.write_page(folders, out, share, sources.load_each, on, costs.goals(until or ()))
    say(out)


def watch(
    folder: RunOrState,
    port: Annotated[
        int, typer.Option(help="port of this machine; 0 takes any that is free", min=0, max=65535)
    ] = 0,
    share: WorstShare = None,
) -> None:
    """Serve the report of a run or a federation while it goes on, to this machine only."""
    from fedmaba.report import watch as live

    with suppress(KeyboardInterrupt):
        live.wait_for(folder, tell)
        with live.serve(folder, port, share) as server:
            say(f"{server.url} shows {folder} and renews itself; Ctrl-C ends it")
            server.serve_forever()


def figure(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="see fedmaba list figures")],
    folders: RunFolders,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="the picture to write: .pdf, .svg or .png")
    ],
    model: Annotated[
        Model, typer.Option(help="the deployed model, the server's last one, or each client's own")
    ] = "deployed",
    share: WorstShare = None,
    width: Annotated[
        Width | None,
        typer.Option(help="as wide as one column of a paper, or as its page"),
    ] = None,
    font: Annotated[Font, typer.Option(help="letters of all texts in the picture")] = "sans",
) -> None:
    """Draw one figure in print quality, with its caption in a text file beside it."""
    from fedmaba.cli import sources
    from fedmaba.report import figures

    load = sources.load_each
    for path in figures.write_figure(kind, folders, out, model, share, width, font, load):
        say(path)


def export_run(
    folder: RunOrTarget,
    to: Annotated[
        ExportForm, typer.Option(help="tables as csv or parquet, or the card of the models")
    ] = "csv",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="folder to write [RUN/csv, RUN/csv-validation, RUN/models, ...]"
        ),
    ] = None,
    on: JudgedOn = "test",
) -> None:
    """Write the tables of a run for a spreadsheet or another program, or the card of its models."""
    from fedmaba.cli import sources
    from fedmaba.report import export as tables

    name = "models" if to == "card" else to if on == "test" else f"{to}-{on}"
    place = out or (folder.with_suffix("") if folder.is_file() else folder) / name
    for path in tables.write_export(folder, place, to, sources.load_one, on):
        say(path)
    tell_unfinished(folder)


def list_(
    what: Annotated[
        str, typer.Argument(metavar="strategies|datasets|models|partitions|attacks|figures|targets")
    ],
    as_json: AsJson = False,
) -> None:
    """One line each, with hyper-parameters and defaults."""
    from fedmaba.experiment import laboratory
    from fedmaba.report import json_forms, terminal

    display = laboratory.enter("display") if what == "targets" else None
    if as_json:
        rows = terminal.rows_of(what) if display is None else display.target_rows()
        typer.echo(json_forms.json_list(what, rows), nl=False)
    elif display is None:
        terminal.listing(what)
    else:
        display.show_targets()
