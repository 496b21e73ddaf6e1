"""`fedmaba flower demo`: a federation of real processes on this machine, keys and all."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.data import trees
from fedmaba.data.federation import Federation
from fedmaba.deploy.flower_app import private
from fedmaba.deploy.flower_app.commands import LINK
from fedmaba.deploy.flower_app.net import Net, NetError
from fedmaba.deploy.flower_app.new import new
from fedmaba.deploy.operate.control import Unavailable
from fedmaba.deploy.round_log import lines_of
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.settings import FederationSettings, one_strategy
from fedmaba.errors import InputError, SaveFailed
from fedmaba.report import data, document, table
from fedmaba.results.state_folder import read_rounds

COMPARED_WITH = "fedavg"  # what a kept demo shows the strategy beside


def demo(
    say: Callable[[str], None],
    strategy: str = "fedmaba:alpha=0.8",
    sites: int = 5,
    rounds: int = 4,
    partition: str = "shards:2",
    secure: bool = False,
    keep: Path | None = None,
) -> None:
    """Run a strategy over sites that each hold a shard of the embedded sample.

    With a folder to `keep`, FedAvg runs before it, and logs and states of both stay there.
    """
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise InputError(f"{keep} exists and is not an empty folder: choose another one")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends `with`
    os.umask(private.UMASK)
    rule = SecureSum() if secure else None
    # refuse a wrong strategy before anything is started
    FederationSettings(one_strategy(strategy), secure=rule)
    if rule is not None:
        rule.least(sites)
    strategies = [strategy] if keep is None else list(dict.fromkeys([COMPARED_WITH, strategy]))
    try:
        with _place(keep) as (base, told):
            states = _demo(say, told, base, strategies, sites, rounds, partition, secure)
    except Unavailable as error:
        raise NetError(str(error)) from error
    except OSError as error:
        where = error.filename or tempfile.gettempdir()
        raise SaveFailed(f"{where}: {error.strerror or error}: fix that, or set TMPDIR") from error
    if keep is not None:
        for line in side_by_side(states):
            say(line)


@contextmanager
def _place(keep: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder of a demo, and what is said of it; at most logs and states stay there."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="fedmaba-flower-") as folder:
            yield Path(folder), f"keys, certificates and logs in {folder}, removed at the end"
        return
    try:
        yield keep, f"logs and states in {keep}, kept; keys and examples are removed at the end"
    finally:
        for name in ("keys", "home"):
            shutil.rmtree(keep / name, ignore_errors=True)
        for path in keep.glob("site-*.npz"):
            path.unlink(missing_ok=True)


def side_by_side(states: Sequence[Path]) -> list[str]:
    """The federations of some state folders in one table, and how to look closer."""
    history = data.combine(data.load_all(states))
    shown = document.plain_text(table.for_screen(table.summary(history))).splitlines()
    return [*shown, f"the report of both: fedmaba report {shlex.join(map(str, states))}"]


def _demo(
    say: Callable[[str], None],
    told: str,
    base: Path,
    strategies: Sequence[str],
    sites: int,
    rounds: int,
    partition: str,
    secure: bool,
) -> list[Path]:
    """Run strategies one after another over the same sites; return their state folders."""
    base = base.absolute()  # Flower's programs work in this folder
    network = Net(base)  # raises InputError if Flower's programs are missing
    say(told)
    new(base / "app", secure)
    fed = Federation.make("sample", partition, clients=sites)
    names = [f"site-{c}" for c in range(sites)]
    for c, name in enumerate(names):
        write_site(base / f"{name}.npz", fed, c)
    states = []
    with network as net:
        say(f"SuperLink on 127.0.0.1:{net.port}: TLS, node authentication")
        say(way_in(net))
        for name in names:
            net.register(name)
            net.supernode(name, data=str(base / f"{name}.npz"))
        say(f"{sites} SuperNodes, each with its registered key and its own examples")
        for strategy in strategies:
            state = base / f"state-{strategy.partition(':')[0]}"
            settings = {"strategy": strategy, "rounds": rounds, "sites": sites}
            run = net.submit(base / "app", {**settings, "state": str(state)})
            each = "four client processes" if secure else "a client process"
            say(f"run {run}: {strategy}, {rounds} rounds; {each} per site and round")
            watch(net, run, state, say)
            states.append(state)
    say("all processes stopped")
    return states


def way_in(net: Net) -> str:
    """How the SuperNodes reach the SuperLink."""
    if net.nginx is None:
        return (
            "nginx is not installed: the SuperNodes connect directly, on loopback; a real "
            "deployment must put `fedmaba flower proxy` between them and the SuperLink"
        )
    return f"nginx on 127.0.0.1:{net.sites_port}: passes on what SuperNodes ask for, and no control"


def write_site(path: Path, fed: Federation, client: int) -> None:
    """Write one client's examples as the file that its host would have."""
    train, test = fed.train.of(client), fed.test.of(client)
    y = fed.data.y
    arrays: dict[str, Any] = {}
    for name, values in zip(
        trees.leaf_names(fed.data.x, ""), trees.leaves(fed.data.x), strict=True
    ):
        arrays |= {f"x{name}": values[train], f"x_test{name}": values[test]}
    np.savez(path, y=y[train], y_test=y[test], **arrays)


def watch(net: Net, run: str, state: Path, say: Callable[[str], None]) -> None:
    """Show each round as it is saved, until the run ends."""
    seen, checked = 0, time.monotonic()
    while True:
        lines = read_rounds(state, seen)
        for text in (text for line in lines for text in lines_of(line)):
            say(text)
        seen += len(lines)
        if time.monotonic() - checked > 5 and not lines:
            net.check()
            status = net.status(run)
            checked = time.monotonic()
            if status.startswith("finished") and not read_rounds(state, seen):
                if status != "finished:completed":
                    raise NetError(f"run {run} ended as {status}: {net.last_words(LINK)}")
                return
        time.sleep(0.5)
