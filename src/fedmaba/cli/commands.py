"""Which commands there are, in the order in which `fedmaba --help` lists them."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmaba import __version__
from fedmaba.cli import data, flower, operate, privacy, reading, reproducing, running
from fedmaba.cli.helping import CommandInPanels, examples

app = typer.Typer(
    name="fedmaba",
    help="Fair federated learning: compare, reproduce and look at every algorithm.",
    epilog="Exit codes: 0 done, 1 an exception in your own code, 2 a mistake found before any "
    "work, 65 a run diverged, 69 another process of the job ended, 70 a process of the Flower demo "
    "failed, 71 too little memory, 74 the run folder or the output could not be written, "
    "75 another process works on the folder, 130 stopped after the round and saved, by Ctrl-C, "
    "SIGTERM or SIGHUP; or ended at once by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(
    cls=CommandInPanels,
    epilog=examples(
        "fedmaba compare fedavg fedmaba --seeds 6",
        "fedmaba compare fedavg 'fedmaba:alpha=[0.5,0.8]' --out runs/alpha",
        "fedmaba compare fedavg fedmaba --data patients.csv --client hospital",
    ),
)(running.compare)
app.command(
    cls=CommandInPanels,
    epilog=examples(
        "fedmaba run experiment.toml",
        "fedmaba run experiment.toml --rounds 10 --seeds 1, --out runs/short",
        "fedmaba run experiment.toml --set 'train.lr=[0.05,0.1]'",
    ),
)(running.run)
app.command(
    cls=CommandInPanels,
    epilog=examples(
        "fedmaba tune fedavg fedmaba --grid 'lr=[0.03,0.1]' \\",
        "    --validation 20% --out runs/lr",
        "fedmaba tune 'fedmaba:alpha=[0.5,0.8]' --pick best:fair \\",
        "    --validation 20% --out runs/alpha",
        "fedmaba tune fedavg --grid lr=log:0.01..1 --sampler tpe --trials 9 \\",
        "    --validation 20% --out runs/tpe",
    ),
)(running.tune)
app.command(epilog=examples("fedmaba resume runs/sample"))(running.resume)
app.command(
    epilog=examples(
        "fedmaba table runs/sample --against fedavg",
        "fedmaba table runs/sample --by client",
        "fedmaba table runs/sample --to latex",
    )
)(reading.table)
app.command(context_settings=reproducing.PASSED_ON)(reproducing.reproduce)
app.command(context_settings=reproducing.PASSED_ON)(reproducing.challenge)
app.command(epilog=examples("fedmaba theory runs/sample"))(reading.theory)
app.command(
    epilog=examples(
        "fedmaba report runs/sample -o report.html",
        "fedmaba report runs/first runs/second --share 10%",
        "fedmaba report runs/sample --until accuracy=80%",
    )
)(reading.report)
app.command(epilog=examples("fedmaba watch runs/sample --port 8080"))(reading.watch)
app.command(
    epilog=examples(
        "fedmaba list figures",
        "fedmaba figure tradeoff runs/sample -o tradeoff.pdf --width column",
    )
)(reading.figure)
app.command("export", epilog=examples("fedmaba export runs/sample --to csv -o tables"))(
    reading.export_run
)
app.command("list", epilog=examples("fedmaba list strategies", "fedmaba list datasets --json"))(
    reading.list_
)
app.command(epilog=examples("fedmaba privacy --clients 1000 --participants 100 --epsilon 4"))(
    privacy.privacy
)

data_app = typer.Typer(help="Fetch, check or export a data set.", no_args_is_help=True)
data_app.command()(data.fetch)
data_app.command()(data.check)
data_app.command()(data.export)
app.add_typer(data_app, name="data")

flower_app = typer.Typer(
    help="Run a federation on Flower: see docs/operate.md.", no_args_is_help=True
)
for command in (
    *(operate.init, operate.invite, operate.join, operate.admit, operate.remove),
    *(operate.check, operate.start, operate.status, operate.stop, operate.renew),
    *(operate.backup, operate.restore, flower.demo, flower.new, flower.proxy, flower.serve),
):
    flower_app.command()(command)
audit_app = typer.Typer(help="The record of what happened.", no_args_is_help=True)
audit_app.command()(operate.verify)
flower_app.add_typer(audit_app, name="audit")
app.add_typer(flower_app, name="flower")


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="show the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"fedmaba {__version__}")
        raise typer.Exit
