"""What privacy costs: the noise that a run would take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmaba.cli.messages import say, show_page
from fedmaba.cli.options import TableForm
from fedmaba.errors import InputError
from fedmaba.experiment import config

COUNT = config.MAX_COUNT


def privacy(
    clients: Annotated[int, typer.Option(help="how many clients", min=1, max=COUNT)] = 100,
    participants: Annotated[
        int | None,
        typer.Option(help="clients per round [all]", min=1, max=COUNT),
    ] = None,
    rounds: Annotated[int, typer.Option(help="communication rounds", min=1, max=10**6)] = 100,
    epsilon: Annotated[float, typer.Option(help="epsilon that may be spent")] = 8.0,
    delta: Annotated[float, typer.Option(help="delta of that epsilon")] = 1e-5,
    clip: Annotated[float, typer.Option(help="largest norm of a client's change")] = 1.0,
    loss: Annotated[float, typer.Option(help="largest loss that counts")] = 3.0,
    loss_share: Annotated[
        float, typer.Option(help="share of epsilon that is spent on the losses")
    ] = 0.1,
    strategy: Annotated[str, typer.Option(help="as name:key=value,...")] = "fedmaba",
    rho: Annotated[
        float | None,
        typer.Option(help="radius of FedMABA's ball"),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="share of FedMABA's bandit weights"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed that draws who takes part", min=0)] = 0,
    to: Annotated[TableForm, typer.Option(help="how it is written")] = "text",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="also draw it: .pdf, .svg or .png"),
    ] = None,
) -> None:
    """Show the noise that privacy takes, before anything runs: see docs/privacy.md."""
    from fedmaba import strategies
    from fedmaba.privacy.mechanism import Privacy
    from fedmaba.report import privacy_plan

    told = {"epsilon": epsilon, "delta": delta, "clip": clip, "loss": loss}
    asked = config.build({"strategies": [strategy], "dp": told | {"loss_share": loss_share}}).dp
    if asked is None:
        raise InputError("epsilon=inf: nothing is promised, so there is no noise: choose a number")
    many = participants or clients
    if many > clients:
        raise InputError(f"participants={many}, but clients={clients}: lower it")
    own = {"rho": rho, "alpha": alpha}
    more = [f"{name}={value!r}" for name, value in own.items() if value is not None]
    head = [f"{strategy}:{more.pop(0)}"] if more and ":" not in strategy else [strategy]
    found = strategies.parse(",".join([*head, *more]))
    if len(found) > 1:
        raise InputError(f"--strategy {strategy}: this is a grid: name one strategy")
    plan = privacy_plan.PrivacyPlan(
        Privacy.from_settings(asked), found[0], clients, many, rounds, seed
    )
    page = privacy_plan.document(plan)
    if out is not None:
        privacy_plan.write_plan_figure(plan, out)
    show_page(page, to)
    if out is not None:
        say(out)
