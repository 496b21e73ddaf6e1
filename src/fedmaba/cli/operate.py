"""A federation that one administrator runs: init, invite, join, admit, start, status and so on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fedmaba.cli.flower import SecureOption
from fedmaba.cli.messages import say
from fedmaba.errors import InputError

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="the folder that `init` or `join` made")
]
ServerArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="the folder that `init` made")
]


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="new or empty, at the server")],
    sites: Annotated[str, typer.Option(help="their names: north,south,east")],
    host: Annotated[
        str, typer.Option(help="the name or address by which sites reach this server")
    ] = "localhost",
    port: Annotated[int, typer.Option(help="port that sites reach")] = 8443,
    superlink_port: Annotated[int, typer.Option(help="port of the SuperLink, on 127.0.0.1")] = 8000,
    secure: SecureOption = False,
    dp: Annotated[str, typer.Option(help="privacy of sites: epsilon=8,delta=1e-5,clip=1.0")] = "",
    form: Annotated[
        Path | None,
        typer.Option(help="a .csv or .npz of a few examples, as every site will have them"),
    ] = None,
    strategy: Annotated[str, typer.Option(help="one row, no grid")] = "",
    rounds: Annotated[int | None, typer.Option(help="communication rounds", min=1)] = None,
) -> None:
    """Make the folder of a federation at its server, with a join file for each site."""
    from fedmaba.deploy.operate import server_folder

    named, ports = sites.split(","), (port, superlink_port)
    made = server_folder.init(folder, named, host, *ports, secure, dp, form, strategy, rounds)
    for site in made.sites:
        say(f"send {made.path / 'join' / f'{site}.json'} to {site}: nothing in it is secret")
    say(f"then, with what each site sends back: fedmaba flower admit {folder} LINE...")
    say(f"move {made.keys / 'ca.key'} off this host: only a renewal needs it")


def invite(folder: ServerArgument) -> None:
    """Write the join files anew, after a change of the app, the settings or the sites."""
    from fedmaba.deploy.operate import server_folder

    for path in server_folder.invite(server_folder.ServerFolder.read(folder)):
        say(path)


def join(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="the join file that the operator sent")
    ],
    data: Annotated[Path, typer.Option(help="this site's examples, .csv or .npz")],
    folder: Annotated[
        Path | None, typer.Option(help="new or empty; otherwise the site's name")
    ] = None,
    port: Annotated[int, typer.Option(help="port on 127.0.0.1 for this site's processes")] = 9094,
) -> None:
    """Make the folder of a site, with a key that never leaves it, and print what to send back."""
    from fedmaba.deploy.operate import keys, site_folder
    from fedmaba.deploy.operate.check import SPLIT

    made, line, found = site_folder.join(file, data, folder, port)
    for doubt in found.doubts:
        say(f"look: {doubt}")
    say(f"{data}: {found.train:,} examples to train, {found.test:,} to test")
    if not found.test:
        say(f"look: without rows to test no accuracy of this site is known: {SPLIT}")
    say("send this line to the operator; nothing in it is secret:")
    say(line)
    say(f"and read this to them on the telephone: {keys.fingerprint(line)}")
    say(f"look at what this site allows, {made.path / site_folder.FILE}; then")
    say(f"fedmaba flower check {made.path} && fedmaba flower start {made.path}")


def admit(
    folder: ServerArgument,
    line: Annotated[
        list[str],
        typer.Argument(metavar="LINE...", help="what a site sent back, or a file with it"),
    ],
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(help="the fingerprint that the site read out; without it you are asked"),
    ] = None,
) -> None:
    """Let sites in whose fingerprint was read out to you."""
    from fedmaba.deploy.operate import control, server_folder

    found = server_folder.ServerFolder.read(folder)
    asked = [server_folder.applicant(text) for text in line]
    told = {f"SHA256:{text.removeprefix('SHA256:')}" for text in fingerprint or ()}
    if not told and not sys.stdin.isatty():
        raise InputError("nobody can be asked here: give --fingerprint, as the site read it out")
    for one in asked:
        if told and one.fingerprint not in told:
            raise InputError(
                f"{one.site}'s line has {one.fingerprint}, which was not read out to you: ask the "
                "site again, on the telephone"
            )
        question = f"did {one.site} read out {one.fingerprint}"
        if not told and not typer.confirm(question):
            raise InputError(f"{one.site} is not admitted: ask the site again, on the telephone")
    for one in asked:
        say(server_folder.admit(found, one))
    if control.listening(found.superlink):
        for text in control.register(found):
            say(text)


def remove(
    folder: ServerArgument,
    site: Annotated[str, typer.Argument(metavar="SITE", help="its name")],
) -> None:
    """Take a site out for good: its key is refused."""
    from fedmaba.deploy.operate import control, server_folder

    found = server_folder.ServerFolder.read(folder)
    server_folder.remove(found, site)
    file = found.path / server_folder.FILE
    say(f"{site} is removed; take its name out of sites in {file} as well")
    if control.listening(found.superlink):
        for text in control.register(found):
            say(text)


def start(
    folder: Folder,
    part: Annotated[
        str | None,
        typer.Option(help="one program only: superlink, proxy, run; at a site supernode"),
    ] = None,
) -> None:
    """Run a server or a site in the foreground, over crashes, until its run has ended."""
    from fedmaba.deploy.operate import start as programs

    raise typer.Exit(programs.start(programs.read(folder), part, say))


def stop(folder: Folder) -> None:
    """End what `start` runs; what is saved stays."""
    from fedmaba.deploy.operate import processes
    from fedmaba.deploy.operate import start as programs

    processes.stop(programs.read(folder).path)
    say("stopped")


def status(
    folder: Folder,
    to: Annotated[str, typer.Option("--format", help="text or json")] = "text",
) -> None:
    """Say how a federation goes: rounds, sites here and missing, epsilon, the last error."""
    import json

    from fedmaba.deploy.operate import start as programs
    from fedmaba.deploy.operate import status as known
    from fedmaba.deploy.operate.server_folder import ServerFolder

    if to not in ("text", "json"):
        raise InputError(f"--format {to}: say text or json")
    place = programs.read(folder)
    found = known.of_server(place) if isinstance(place, ServerFolder) else known.of_site(place)
    if to == "json":
        typer.echo(json.dumps(found, indent=1))
    else:
        for line in known.lines(found):
            say(line)


def check(
    where: Annotated[
        str, typer.Argument(metavar="FOLDER|HOST:PORT", help="a folder, or where sites connect")
    ],
    ca: Annotated[
        Path | None,
        typer.Option(help="of HOST:PORT, the federation's ca.pem; else this machine's own list"),
    ] = None,
) -> None:
    """Look at all that a server or a site needs, or at what an address lets through."""
    if Path(where).is_dir():
        _check_folder(Path(where))
        return
    from fedmaba.deploy.flower_app.check import check

    found = check(where, ca)
    for line in found.lines():
        say(line)
    if not found.ok:
        raise typer.Exit(InputError.exit_code)


def _check_folder(folder: Path) -> None:
    from fedmaba.deploy.operate import check as dry_run
    from fedmaba.deploy.operate import start as programs
    from fedmaba.deploy.operate.server_folder import ServerFolder

    place, good = programs.read(folder), True
    server = isinstance(place, ServerFolder)
    for line in dry_run.of_server(place) if server else dry_run.of_site(place):  # type: ignore[arg-type]
        say(line.shown)
        good &= line.good is not False
    if not good:
        raise typer.Exit(InputError.exit_code)


def renew(folder: ServerArgument) -> None:
    """Make the server's certificate anew; sites notice nothing."""
    from fedmaba.deploy.operate import server_folder

    days = server_folder.renew(server_folder.ServerFolder.read(folder))
    say(f"the certificate is valid for {days:.0f} days; the proxy takes it within two minutes, and")
    say("the SuperLink when it is started again")


def backup(
    folder: Folder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a new .tar.gz; it holds keys")],
) -> None:
    """Copy a folder that is not at work into one file."""
    from fedmaba.deploy.operate import backup as copies
    from fedmaba.deploy.operate import start as programs

    say(f"{file}: {copies.backup(programs.read(folder).path, file)} files")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the file that `backup` wrote")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where it came from, or new")],
    over: Annotated[bool, typer.Option("--over", help="write over files that are there")] = False,
) -> None:
    """Bring a copy back; what counts rounds and epsilon stays as it is where it is still there."""
    from fedmaba.deploy.operate import backup as copies
    from fedmaba.deploy.operate import start as programs

    count, stayed = copies.restore(file, folder, over)
    programs.read(folder).audit.add("restored", stayed=stayed)
    say(f"{folder}: {count} files are brought back")
    for name in stayed:
        say(f"{folder / name} stayed as it is: move it away first if it is damaged")


def verify(folder: Folder) -> None:
    """Follow the chain of the audit log; exit code 2 where it is broken."""
    from fedmaba.deploy.operate import start as programs
    from fedmaba.deploy.operate.audit import Audit

    copy = any(folder.glob("audit-*.jsonl"))  # of the log alone
    chain = (Audit(folder) if copy else programs.read(folder).audit).verify()
    say(f"whole: {chain.lines} lines, the newest has SHA-256 {chain.head}")
