"""fedmaba's strategies in a Flower app: the only module that knows flwr. Messages in and out.

`FlowerStrategy` is a Flower strategy for the ServerApp and needs no torch. `client_app` makes a
ClientApp from a model and data; `reply` adds what the server needs to a ClientApp of one's own.
What the server computes lives in `server`, what it refuses in `door`, what a site does in `site`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as Base

from fedmaba import door
from fedmaba.door import Arrays, Door, Limits, Offer, Sent
from fedmaba.errors import FedmabaError, InputError
from fedmaba.server import Server, Terms, figures
from fedmaba.strategies import parse
from fedmaba.strategy import Strategy

if TYPE_CHECKING:
    from fedmaba import models
    from fedmaba.datasets import Dataset
    from fedmaba.rows import LossFn
    from fedmaba.simulation.local_training import MetricFn

POLL = 0.5  # seconds between two looks for replies
HELLO = 300.0  # seconds after which a node that gave no name, or a wrong one, is asked again
SLACK = 300.0  # seconds by which the clocks of two hosts may differ

__all__ = ["FlowerStrategy", "Limits", "client_app", "initial_arrays", "load_arrays", "reply"]


class FlowerStrategy(Base):
    """A fedmaba strategy as a Flower strategy; use its `start` as with any other.

    fraction_train, min_train_nodes, min_available_nodes: as in Flower's own strategies, but the
    sample is seeded, and `min_available_nodes` sites are waited for before the first round only.
    lr, lr_decay: local step size and its factor per round, sent to the sites.
    state: a folder; everything is saved there after each round, and a start finds it again.
    evaluate: whether all sites evaluate the model handed out after the last round.
    wait: seconds to wait for enough sites before giving up.
    """

    def __init__(
        self,
        strategy: Strategy | str,
        *,
        fraction_train: float = 1.0,
        min_train_nodes: int = 1,
        min_available_nodes: int = 2,
        lr: float = 0.1,
        lr_decay: float = 0.999,
        seed: int = 0,
        deploy: str | None = None,
        state: str | Path | None = None,
        limits: Limits | None = None,
        evaluate: bool = True,
        wait: float = 3600.0,
    ) -> None:
        _check(0, fraction_train=fraction_train, lr=lr, lr_decay=lr_decay)
        _check(0, whole=True, seed=seed)
        _check(1, whole=True, min_train_nodes=min_train_nodes)
        _check(1, whole=True, min_available_nodes=min_available_nodes)
        if not 0 < fraction_train <= 1:
            raise InputError(f"fraction_train={fraction_train}: it must lie above 0, at most at 1")
        if isinstance(strategy, str):
            listed = parse(strategy)
            if len(listed) > 1:
                raise InputError(f"{strategy!r} is a grid of {len(listed)}: a federation runs one")
            strategy = listed[0]
        self.terms = Terms(strategy, seed, lr, lr_decay, deploy)
        self.fraction_train = fraction_train
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.limits, self.evaluate, self.wait = limits or Limits(), evaluate, wait
        self.folder = None if not state else Path(state)
        self.server: Server | None = None
        self.begun = False  # whether enough sites were there once
        self.asked: dict[int, tuple[float, str | None]] = {}  # node -> when, by which message
        self.unnamed: set[int] = set()  # nodes whose app answers no query: they say it in training
        self.present: set[int] = set()  # nodes that were there when this round began
        self.cohort: dict[int, str | None] = {}  # nodes asked to train in it
        self.ttl: float | None = None  # seconds after which a message is void
        self.reports: list[dict[str, Any]] = []  # what happened, a record per round

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run up to round `num_rounds`, from where the state folder stands.

        Flower's own loop counts from 1 again and ends with the first reply that cannot be read.
        """
        config = train_config or ConfigRecord()
        _check(1, whole=True, num_rounds=num_rounds)
        _check(0, timeout=timeout)
        _check(1, whole=True, **{k: config[k] for k in ("epochs", "minibatch") if k in config})
        server, result = self._begin(initial_arrays), Result()
        self.ttl = timeout + SLACK  # a site that returns does not work through old rounds
        if server.round:
            log(INFO, "going on after round %s, saved in %s", server.round, self.folder)
        try:
            while server.round < num_rounds:
                t = server.round + 1
                messages = self.configure_train(t, initial_arrays, config, grid)
                arrays, metrics = self._aggregate(self._exchange(grid, messages, timeout))
                result.train_metrics_clientapp[t] = metrics
                own = None if evaluate_fn is None else evaluate_fn(t, arrays)
                if own is not None:
                    result.evaluate_metrics_serverapp[t] = own
            if self.evaluate:
                final = self._final(grid, evaluate_config or ConfigRecord(), timeout)
                spread = {k: v for k, v in final.items() if isinstance(v, float)}
                result.evaluate_metrics_clientapp[server.round] = MetricRecord(spread)
                server.save([final])
            server.finish()
        finally:
            server.close()
        result.arrays = _record(server.model)
        return result

    @property
    def deployed(self) -> ArrayRecord:
        """The model to hand out: an average of the last rounds' (`deploy`)."""
        if self.server is None:
            raise InputError("there is no model yet: start the strategy first")
        return _record(self.server.deployed)

    def summary(self) -> None:
        """Log what this strategy is."""
        log(INFO, "fedmaba: %s, a share of %g of the sites", self.label, self.fraction_train)

    @property
    def label(self) -> str:
        return self.terms.strategy.label()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message per participant: model, task, and the caller's own settings."""
        server = self._begin(arrays)
        self.present = present = self._meet(grid)
        named = {server.nodes[node]: node for node in present if node in server.nodes}
        drawn = server.draw(named, self.fraction_train, self.min_train_nodes)
        self.cohort = {named[site]: site for site in drawn}
        self.cohort |= dict.fromkeys(sorted(present & self.unnamed))
        model, mark = _record(server.model), server.mark()
        return [
            Message(
                RecordDict(
                    {"arrays": model, "config": ConfigRecord({**config, **server.task(site)})}
                ),
                node,
                MessageType.TRAIN,
                group_id=mark,
                ttl=self.ttl,
            )
            for node, site in self.cohort.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, weigh those that count, move the model."""
        return self._aggregate([(m.metadata.src_node_id, m) for m in replies])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: sites evaluate the model they receive in the same message that trains it."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def _begin(self, arrays: ArrayRecord) -> Server:
        """The server of this run, made from the first model or found in the state folder."""
        if self.server is None:
            first = {name: array.numpy() for name, array in arrays.items()}
            self.server = Server(self.terms, first, self.folder)
        return self.server

    def _meet(self, grid: Grid) -> set[int]:
        """Ask new nodes for their names; the nodes that are there, once they are enough."""
        server, end, seen = self.server, time.monotonic() + self.wait, -1
        assert server is not None
        while True:
            present = set(grid.get_node_ids())
            self._ask(grid, present - set(server.nodes) - self.unnamed)
            for node, (when, message) in sorted(self.asked.items()):
                found = None if message is None else _pull(grid, message)
                if found is not None:
                    self.asked[node] = when, None
                    self._greet(node, found, present)
            known = {node for node in present if node in server.nodes}
            ready = known | (present & self.unnamed)
            enough = self.min_train_nodes if self.begun else self.min_available_nodes
            if len(ready) >= enough:
                self.begun = True
                server.join(server.nodes[node] for node in known)  # together, so by name
                return ready
            if len(ready) != seen:
                log(INFO, "waiting for sites: %s of %s are here", len(ready), enough)
                seen = len(ready)
            if time.monotonic() > end:
                raise InputError(
                    f"{len(ready)} sites after {self.wait:g} seconds, but {enough} are needed: "
                    "start more SuperNodes, then run again; the state is saved"
                )
            time.sleep(POLL)

    def _ask(self, grid: Grid, strangers: set[int]) -> None:
        """Ask nodes for their names, each once in a while."""
        now = time.monotonic()
        self.asked = {n: (t, m) for n, (t, m) in self.asked.items() if now - t < HELLO}
        new = sorted(strangers - set(self.asked))
        hello = [Message(RecordDict(), node, MessageType.QUERY, ttl=HELLO + SLACK) for node in new]
        self.asked |= {n: (now, i) for n, i in zip(new, _push(grid, hello), strict=True)}

    def _greet(self, node: int, found: Message | str, present: set[int]) -> None:
        """Learn a node's name, unless another node that is there has it."""
        assert self.server is not None
        if isinstance(found, str) or found.has_error():
            self.unnamed.add(node)
            return
        try:
            site = door.site_name(_offer(node, found).words)
            if any(s == site for n, s in self.server.nodes.items() if n in present):
                raise door.Refused(f"site {site!r} belongs to another node")
        except door.Refused as why:
            log(WARNING, "node %s is not let in: %s", node, why)
            return  # it is asked again later
        self.server.name(node, site)

    def _exchange(
        self, grid: Grid, messages: Sequence[Message], timeout: float
    ) -> list[tuple[int, Message | str]]:
        """Each node's reply, or why there is none; pulled one by one, so that none spoils others.

        Who answered is known by the message it answers, not by what the reply says of itself.
        """
        end = time.monotonic() + timeout
        nodes = [m.metadata.dst_node_id for m in messages]
        sent = list(zip(_push(grid, messages), nodes, strict=True))
        waiting = {i: n for i, n in sent if i}
        found: list[tuple[int, Message | str]] = [
            (n, "nothing could be sent") for i, n in sent if not i
        ]
        while waiting:
            for message, node in list(waiting.items()):
                got = _pull(grid, message)
                if got is not None:
                    del waiting[message]
                    found.append((node, got))
            if waiting and time.monotonic() > end:
                late = f"no answer within {timeout:g} seconds"
                found += [(node, late) for node in waiting.values()]
                break
            if waiting:
                time.sleep(POLL)
        return found

    def _aggregate(
        self, found: Sequence[tuple[int, Message | str]]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new model, and the round in numbers."""
        server = self.server
        assert server is not None
        held = {site for node, site in server.nodes.items() if node in self.present}
        loss = self.terms.strategy.needs().loss != "none"
        gate = Door(server.model, server.mark(), self.cohort, held, loss, self.limits)
        replies, refused = gate.admit(_offer(node, message) for node, message in found)
        report = server.take(replies, refused)
        self.unnamed -= {r.node for r in replies}
        self.reports.append(report)
        for line in _lines(report):
            log(INFO, "%s", line)
        for why in report["refused"]:
            log(WARNING, "left out of round %s: %s", report["round"], why)
        numbers = {key: value for key, value in report.items() if isinstance(value, float)}
        numbers |= {key: value for key, value in report["info"].items() if value is not None}
        numbers["replies"] = float(len(replies))
        return _record(server.model), MetricRecord(numbers)

    def _final(self, grid: Grid, config: ConfigRecord, timeout: float) -> dict[str, Any]:
        """How the model that is handed out serves each site that can tell."""
        server = self.server
        assert server is not None
        present = set(grid.get_node_ids())
        sites = {n: s for n, s in server.nodes.items() if n in present}
        content = RecordDict({"arrays": _record(server.deployed), "config": config})
        messages = [
            Message(content, node, MessageType.EVALUATE, group_id="end", ttl=self.ttl)
            for node in sites
        ]
        accuracy: dict[str, float] = {}
        for node, message in self._exchange(grid, messages, timeout):
            try:
                value = door.number(_offer(node, message).numbers, "accuracy", 0.0, 1.0)
            except door.Refused as why:
                log(WARNING, "%s: %s", sites[node], why)
                continue
            if value is not None:
                accuracy[sites[node]] = value
        report: dict[str, Any] = {"round": server.round}
        report["deployed"] = dict(sorted(accuracy.items()))
        report |= figures(accuracy)
        log(INFO, "model handed out: %s", _spread(report))
        for site, value in report["deployed"].items():
            log(INFO, "  %-16s accuracy %5.1f %%", site, 100 * value)
        return report


def client_app(
    model: models.Factory | str,
    data: Dataset | Callable[[Context], Dataset],
    *,
    site: str | Callable[[Context], str] | None = None,
    classes: int | None = None,
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    device: str = "cpu",
) -> ClientApp:
    """A ClientApp for every strategy: it trains as the server's message says.

    Its name is `site`, by default what the SuperNode's --node-config says: 'site="north"'. The
    rows of `data` before n_train are trained on; accuracy on the others is reported.
    """

    def name(context: Context) -> str:
        if site is not None:
            return site if isinstance(site, str) else site(context)
        if "site" not in context.node_config:
            raise InputError("this site has no name: start its SuperNode with --node-config "
                             "'site=\"north\"'")  # fmt: skip
        return str(context.node_config["site"])

    def worker(context: Context) -> Any:
        from fedmaba.site import Site  # with torch, which neither a server nor a query needs

        mine = data(context) if callable(data) else data
        return Site(model, mine, classes, loss, metric, device)

    def train(message: Message, context: Context) -> Message:
        weights, task = _weights(message), dict(message.content["config"])
        trained, numbers = worker(context).train(weights, task)
        return reply(message, _record(trained), numbers, name(context))

    def evaluate(message: Message, context: Context) -> Message:
        numbers = worker(context).evaluate(_weights(message))
        return reply(message, None, numbers, name(context))

    def query(message: Message, context: Context) -> Message:
        return reply(message, None, {}, name(context))

    app = ClientApp()
    app.train()(train)
    app.evaluate()(evaluate)
    app.query()(query)
    return app


def reply(
    message: Message, arrays: ArrayRecord | None, numbers: Mapping[str, float], site: str
) -> Message:
    """The answer of a site: the trained model, "num-examples", "loss" where asked for, its name."""
    records: dict[str, Any] = {"metrics": MetricRecord(dict(numbers))}
    records["config"] = ConfigRecord({"site": site})
    if arrays is not None:
        records["arrays"] = arrays
    return Message(RecordDict(records), reply_to=message)


def initial_arrays(
    model: models.Factory | str, shape: tuple[int, ...], classes: int, seed: int = 0
) -> ArrayRecord:
    """The first model, that of the simulator's run with this seed; needs torch."""
    from fedmaba.site import first_model

    return _record(first_model(model, shape, classes, seed))


def load_arrays(path: str | Path) -> ArrayRecord:
    """A first model from a .safetensors file; needs no torch."""
    try:
        return _record(safetensors.numpy.load_file(path))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: {error}: give a .safetensors file of weights") from error


def _check(low: int, whole: bool = False, **values: object) -> None:
    """Numbers as a run configuration gives them, which may hold words as well."""
    kind, words = (Integral, "a whole number") if whole else (Real, "a number")
    for name, value in values.items():
        number = isinstance(value, kind) and not isinstance(value, bool)
        if not number or not low <= float(value) < np.inf:  # type: ignore[arg-type]
            raise InputError(f"{name}={value!r}: it must be {words} from {low} on")


def _record(model: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in model.items()})


def _weights(message: Message) -> Arrays:
    """The model that a message brings to a site."""
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def _offer(node: int, message: Message | str) -> Offer:
    """A reply as the door wants to see it."""
    if isinstance(message, str):
        return Offer(node, "", error=message)
    if message.has_error():
        return Offer(node, "", error=f"{message.error.reason}")
    found = message.content
    kinds: list[Any] = [found.array_records, found.metric_records, found.config_records]
    if any(len(records) > 1 for records in kinds):
        return Offer(node, "", error="it sent two records of a kind, so neither counts")
    empty: dict[str, Any] = {}
    arrays, numbers, words = (next(iter(records.values()), empty) for records in kinds)
    sent = {n: Sent(a.dtype, tuple(a.shape), a.stype, a.data) for n, a in arrays.items()}
    return Offer(node, message.metadata.group_id, sent, dict(numbers), dict(words))


def _push(grid: Grid, messages: Sequence[Message]) -> list[str | None]:
    """Send messages; their ids in order, None where one could not be sent."""
    if not messages:
        return []
    ids = list(grid.push_messages(messages))
    if len(ids) != len(messages):
        raise FedmabaError("the SuperLink took none of the messages: see its log, then run again")
    return ids


def _pull(grid: Grid, message: str) -> Message | str | None:
    """The reply to one message: None while there is none, a line where it cannot be read."""
    try:
        return next(iter(grid.pull_messages([message])), None)
    except Exception as error:  # flwr unpacks what a stranger packed: no way to fail is ruled out
        return f"its reply cannot be read: {type(error).__name__}: {door.line(error)}"


def _lines(report: Mapping[str, Any]) -> list[str]:
    """A round for people: spread, the strategy's figures, then a line per site."""
    info = "".join(f", {k} {v:.3g}" for k, v in report["info"].items() if v is not None)
    count = len(report["sites"])
    lines = [f"round {report['round']}: {count} sites, {_spread(report)}{info}"]
    for site, row in report["sites"].items():
        cells = [f"  {site:<16}"]
        if row["accuracy"] is not None:
            cells.append(f"accuracy {100 * row['accuracy']:5.1f} %")
        if row["loss"] is not None:
            cells.append(f"loss {row['loss']:.3f}")
        if row["weight"] is not None:
            cells.append(f"weight {row['weight']:.3f}")
        lines.append("  ".join(cells))
    return lines


def _spread(report: Mapping[str, Any]) -> str:
    if "variance" not in report:
        return "no accuracy reported"
    mean, worst = report["accuracy"], report["worst"]
    return f"accuracy {mean:.1f} %, worst {worst:.1f} %, variance {report['variance']:.1f}"
