"""A Flower grid inside one process: every node is a ClientApp, messages are calls. No torch."""

from __future__ import annotations

import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmaba import flower
from fedmaba.deploy import reply_fetching, secure

reply_fetching.POLL_SECONDS = 0.001  # nobody here is far away
# a message notes who sends it; in a ServerApp's process flwr fills this in
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class LocalGrid(Grid):
    """Nodes by id with their apps; `spoil` may change or lose a reply, or raise as flwr may.

    `known` says what a SuperLink knows of a node besides: its public key, its registered name;
    `config` what its SuperNode was started with.
    """

    def __init__(
        self,
        apps: dict[int, ClientApp],
        spoil: Callable[[Message, Message], Message | None] | None = None,
    ) -> None:
        self.apps, self.spoil = dict(apps), spoil
        self.known: dict[int, dict] = {}
        self.config: dict[int, dict] = {}
        self.states: dict[int, RecordDict] = {}  # what each node keeps between messages
        self.lock = threading.Lock()  # replies are pulled by several threads
        self.waiting: dict[str, Message] = {}
        self.sent: list[Message] = []

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.apps)

    def get_nodes(self):
        return [NodeInfo(node_id=n, **self.known.get(n, {})) for n in self.get_node_ids()]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            key = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = message
            self.sent.append(message)
            ids.append(key)
        return ids

    def pull_messages(self, message_ids):
        out = []
        for key in list(message_ids):
            message = self.waiting.get(key)
            if message is None or message.metadata.dst_node_id not in self.apps:
                continue
            with self.lock:
                answer = self.answer(message)
            if answer is not None:
                del self.waiting[key]
                out.append(answer)
        return out

    def answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        state = self.states.setdefault(node, RecordDict())
        context = Context(1, node, self.config.get(node, {}), state, {})
        try:
            answer = self.apps[node](message, context)
        except Exception as error:  # as a SuperNode answers when its app fails
            answer = Message(Error(2, str(error)), reply_to=message)
        return self.spoil(message, answer) if self.spoil else answer

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))


def light_app(c: int, mods=()) -> ClientApp:
    """A site that pulls a vector towards its own number."""
    app = ClientApp()

    def train(message, context):
        w = message.content["arrays"]["w"].numpy()
        new = ArrayRecord({"w": Array((w - 0.1 * (w - c)).astype(np.float32))})
        numbers = {"num-examples": 10 + c, "loss": float(((w - c) ** 2).mean())}
        return flower.reply(message, new, numbers, f"site-{c}")

    app.train(mods=list(mods))(train)
    app.query()(lambda message, context: flower.reply(message, None, {}, f"site-{c}"))
    return app


def light_model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(50, np.float32))})


# secure sums


def stage_of(message: Message) -> str:
    """Which stage of a secure round a message of the server asks for; "" for other messages."""
    record = message.content.get("config", {})
    return secure.read_message(record["secure"], 10**7)["stage"] if "secure" in record else ""


def lost(nodes, stage: str, silent=False, times: int | None = None):
    """Some nodes fail in a stage, as when their process is killed, or say nothing; or so often."""
    left = [times]

    def spoil(message, answer):
        if message.metadata.dst_node_id not in nodes or stage_of(message) != stage or left[0] == 0:
            return answer
        left[0] = None if left[0] is None else left[0] - 1
        return None if silent else Message(Error(2, "killed"), reply_to=message)

    return spoil


def signing_keys(folder: Path, count: int) -> Path:
    """A folder with a key for each site, as docs/deploy.md makes them, and the list of them."""
    lines = []
    for c in range(count):
        made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"site-{c}"]
        subprocess.run(made, cwd=folder, check=True)
        shown = ["ssh-keygen", "-lf", f"site-{c}.pub"]
        told = subprocess.run(shown, cwd=folder, check=True, capture_output=True, text=True)
        lines.append(f'site-{c} = "{told.stdout.split()[1]}"')
    (folder / "sites.toml").write_text("\n".join(lines))
    return folder
