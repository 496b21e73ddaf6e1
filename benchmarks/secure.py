"""What secure sums cost: seconds and bytes of a round, secure against plain, in one process.

    python benchmarks/secure.py                     5, 20 and 100 sites, 1,000,000 parameters
    python benchmarks/secure.py --sites 5 20 --parameters 10000

It needs flwr. Sites do not train: their changes are random. So the seconds, of one core, are those
of the sums alone: without training, processes and a network. `a site` is the work of one site; it
runs beside the others in a federation. Bytes are those of Flower's messages, as they are sent.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedmaba import flower
from fedmaba.deploy import reply_fetching
from fedmaba.flower import FlowerStrategy, SecureSum, secure_mod

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def site(c: int, parameters: int, secure: bool) -> ClientApp:
    """A site whose change is random."""
    app = ClientApp()
    change = np.random.default_rng(c).normal(size=parameters).astype(np.float32) * 1e-3

    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        new = ArrayRecord({"w": Array(w + change)})
        return flower.reply(message, new, {"num-examples": 10, "loss": 1.0 + c}, f"site-{c}")

    app.train(mods=[secure_mod] if secure else [])(train)
    app.query()(lambda message, context: flower.reply(message, None, {}, f"site-{c}"))
    return app


def size_of(message: Message) -> int:
    """The bytes of all parts of a message."""
    return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


class Counted(Grid):
    """A grid inside one process, which counts bytes and the seconds that sites take."""

    def __init__(self, apps: dict[int, ClientApp]) -> None:
        self.apps, self.waiting = apps, {}
        self.states = {node: RecordDict() for node in apps}
        self.down = self.up = 0
        self.seconds = 0.0

    def set_run(self, run): ...

    run = None

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.apps)

    def get_nodes(self):
        return [NodeInfo(node_id=node) for node in self.apps]

    def push_messages(self, messages):
        for number, message in enumerate(messages):
            self.down += size_of(message)
            self.waiting[f"{id(message)}-{number}"] = message
        return list(self.waiting)[-len(messages) :]

    def pull_messages(self, message_ids):
        out = []
        for key in message_ids:
            message = self.waiting.pop(key)
            node = message.metadata.dst_node_id
            begin = time.process_time()
            answer = self.apps[node](message, Context(1, node, {}, self.states[node], {}))
            self.seconds += time.process_time() - begin
            self.up += size_of(answer)
            out.append(answer)
        return out

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))


def one_at_a_time(grid, messages, timeout, quorum, grace):
    """The replies without threads, so that times are those of the work."""
    keys = list(zip(messages, grid.push_messages(messages), strict=True))
    return [(m.metadata.dst_node_id, grid.pull_messages([k])[0]) for m, k in keys]


def measure(sites: int, parameters: int, secure: bool) -> list[float]:
    """Seconds of a site and of the server, megabytes down to and up from a site, in one round."""
    grid = Counted({c + 1: site(c, parameters, secure) for c in range(sites)})
    rule = SecureSum(clip=100.0) if secure else None
    strategy = FlowerStrategy("fedmaba", min_available_nodes=sites, evaluate=False, secure=rule)
    begin = time.process_time()
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(parameters, np.float32))}), 1)
    whole = time.process_time() - begin
    (report,) = strategy.reports
    assert len(report["sites"]) == sites, report["refused"]
    assert not report["refused"], report["refused"]
    server = whole - grid.seconds
    return [grid.seconds / sites, server, grid.down / sites / 1e6, grid.up / sites / 1e6]


NUMBERS = ("site_seconds", "server_seconds", "megabytes_to_a_site", "megabytes_from_a_site")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[5, 20, 100])
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    given = parser.parse_args()
    found = []
    reply_fetching.collect_replies = one_at_a_time
    print("| sites | sums | a site, s | server, s | to a site, MB | from a site, MB |")
    print("|---|---|---|---|---|---|")
    for sites in given.sites:
        for secure in (False, True):
            numbers = measure(sites, given.parameters, secure)
            found.append(
                {"sites": sites, "secure": secure, **dict(zip(NUMBERS, numbers, strict=True))}
            )
            cells = " | ".join(f"{number:.2f}" for number in numbers)
            print(f"| {sites} | {'secure' if secure else 'plain'} | {cells} |")
            sys.stdout.flush()
    if given.json:
        told = {"flwr": importlib.metadata.version("flwr"), "cores": os.cpu_count()}
        told |= {"parameters": given.parameters, "rounds": found}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
