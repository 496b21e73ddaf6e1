"""The process that trains at a site: Flower's own, with the site's policy around it. Imports flwr.

Flower starts `flwr-clientapp` by name for each message, and a site's folder has a program of that
name, first on its PATH, which runs this. The message and the app's hash are looked at before the
app is installed, and the answer before it leaves. What cannot be recorded is not done. If Flower
has none of the functions that are wrapped here, nothing is answered at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fedmaba.deploy.operate.site_folder import PLACE, SiteFolder
from fedmaba.errors import FedmabaError, InputError

WRAPPED = ("pull_task_input", "install_from_fab", "push_message")


def main() -> None:
    """Answer one message, as `flwr-clientapp` does."""
    from flwr.supernode.cli import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp as flower

    for name in WRAPPED:
        if not callable(getattr(flower, name, None)):
            raise InputError(f"this Flower has no {name}: use one that docs/operate.md names")
    site = SiteFolder.read(Path(os.environ[PLACE]))
    if (most := site.policy.memory_bytes) is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    wrapped = Guard(site, *(getattr(flower, name) for name in WRAPPED))
    for name in WRAPPED:
        setattr(flower, name, getattr(wrapped, name))
    flwr_clientapp()


class Guard:
    """A site's say in one message and its answer."""

    def __init__(
        self, site: SiteFolder, pull: Callable[..., Any], install: Callable[..., Any],
        push: Callable[..., Any],
    ) -> None:  # fmt: skip
        self.site, self._pull, self._install, self._push = site, pull, install, push
        self.message: Any = None
        self.asked: dict[str, Any] = {}

    def pull_task_input(self, client: Any) -> Any:
        """Take the message; it is judged when the app would be installed."""
        found = self._pull(client)
        self.message = found[0]
        return found

    def install_from_fab(self, content: bytes, *args: Any, **words: Any) -> Any:
        """Install the app if the policy allows it and what is asked; else refuse in one line."""
        app = hashlib.sha256(content).hexdigest()
        words_asked = self._words()
        secure = words_asked.get("secure")
        stage = json.loads(str(secure)).get("stage", "") if secure is not None else ""
        kind = str(self.message.metadata.message_type)
        group = str(self.message.metadata.group_id)[:40]  # round and attempt
        self.asked = {"kind": kind, "group": group, "app": app}
        self.asked |= {"stage": stage} if stage else {}
        try:
            self._judge(app, kind, stage, secure is not None, words_asked)
        except FedmabaError as error:
            self.site.audit.add("refused", **self.asked, why=str(error))
            raise
        return self._install(content, *args, **words)

    def _judge(self, app: str, kind: str, stage: str, secure: bool, asked: dict[str, Any]) -> None:
        policy = self.site.policy
        policy.check_app(app)
        if kind == "query":
            return
        policy.check_time(datetime.now())
        if kind != "train" or stage not in ("", "keys"):
            return  # a round is counted once, when it begins
        terms = json.loads(str(asked.get("terms", "{}")))
        policy.check_task(secure, terms)
        needs = str(asked.get("tell", "")).split()
        policy.check_asked([*needs, *(["loss"] if asked.get("loss-at") != "none" else [])])
        count = self.site.ledger.take(terms, policy)
        self.asked["rounds"] = count.rounds
        if count.behind:
            self.asked["ledger was behind by"] = count.behind

    def push_message(self, client: Any, reply: Any, context: Any) -> Any:
        """Record what leaves, by kind and size, and let the numbers go that the policy allows."""
        if reply.has_error():
            self.site.audit.add("error", **self.asked, code=reply.error.code)
            return self._push(client, reply, context)
        left: dict[str, int] = {}
        for name, record in reply.content.metric_records.items():
            told = self.site.policy.leaves(dict(record))
            for key in set(record) - set(told):
                del record[key]
            left |= {f"{name}.{key}": 8 for key in told}
        for name, record in reply.content.config_records.items():
            left |= {f"{name}.{key}": len(str(value)) for key, value in record.items()}
        for name, record in reply.content.array_records.items():
            left[name] = sum(len(array.data) for array in record.values())
        self.site.audit.add("left", **self.asked, bytes=left)
        return self._push(client, reply, context)

    def _words(self) -> dict[str, Any]:
        """The settings in the message."""
        found: dict[str, Any] = {}
        if self.message.has_content():
            for record in self.message.content.config_records.values():
                found |= dict(record)
        return found
