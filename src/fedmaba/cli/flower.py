"""Deploy on Flower by its parts: new, proxy, serve, demo. `cli/operate` has the short way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmaba.cli.messages import say

SecureOption = Annotated[
    bool, typer.Option("--secure", help="the server sees sums of changes, and no single change")
]


def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="new or empty")],
    secure: SecureOption = False,
    dp: Annotated[str, typer.Option(help="privacy of sites: epsilon=8,delta=1e-5,clip=1.0")] = "",
) -> None:
    """Write a complete Flower app that runs as it is."""
    from fedmaba.deploy.flower_app.new import new

    for path in new(directory, secure, dp):
        say(path)


def proxy(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="folder for nginx.conf and its logs")
    ],
    keys: Annotated[
        Path, typer.Option(help="folder with server.pem, server.key and ca.pem")
    ] = Path("keys"),
    listen: Annotated[
        str, typer.Option(help="address and port for the SuperNodes")
    ] = "0.0.0.0:8443",
    superlink_port: Annotated[int, typer.Option(help="the SuperLink's, on 127.0.0.1")] = 8000,
) -> None:
    """Write the nginx configuration of the SuperLink's proxy: SuperNodes pass, control does not."""
    from fedmaba.deploy.flower_app import proxy

    target = proxy.write_configs(directory, listen, superlink_port, keys)
    say(f"{target}: start it with {' '.join(proxy.serve_command('fedmaba', directory))}")


def serve(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="the folder that `proxy` wrote")],
) -> None:
    """Run the proxy in the foreground: its log stays small, and no connection lasts for long."""
    from fedmaba.deploy.flower_app.serve import serve

    raise typer.Exit(serve(directory))


def demo(
    strategy: Annotated[str, typer.Option(help="one row, no grid")] = "fedmaba:alpha=0.8",
    sites: Annotated[int, typer.Option(help="SuperNodes, a shard each", min=1, max=50)] = 5,
    rounds: Annotated[int, typer.Option(help="communication rounds", min=1)] = 4,
    secure: SecureOption = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="also run FedAvg, and keep logs and states in this new folder"
        ),
    ] = None,
) -> None:
    """Run a federation of real Flower processes on this machine, with TLS and keys."""
    from fedmaba.deploy.flower_app.demo import demo

    demo(typer.echo, strategy, sites, rounds, secure=secure, keep=keep)
