"""fedmaba's strategies in a Flower app: the only module that knows flwr. Messages in and out.

`FlowerStrategy` is a Flower strategy for the ServerApp and needs no torch. `client_app` makes a
ClientApp from a model and data; `reply` adds what the server needs to a ClientApp of your own.
What the server computes lives in `server`, what it refuses in `door`, what a site does in `site`.
"""

from __future__ import annotations

import base64
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from cryptography.hazmat.primitives import (  # type: ignore[import-not-found,unused-ignore]
    serialization,  # it comes with flwr
)
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

from fedmaba.deploy import validation
from fedmaba.deploy.inbox import Looks, counted, push
from fedmaba.deploy.kept_vectors import KeptVectors
from fedmaba.deploy.server import Server, Terms, figures
from fedmaba.deploy.site_names import Names, Who, read_sites
from fedmaba.deploy.validation import Arrays, Door, Limits, Offer, Sent
from fedmaba.errors import InputError
from fedmaba.strategies import parse
from fedmaba.strategies.base import Strategy

if TYPE_CHECKING:
    from fedmaba.data.datasets import Dataset
    from fedmaba.rows import LossFn, models
    from fedmaba.simulation.local_training import MetricFn

POLL = 0.5  # seconds between two looks for replies
LOOK = 2.0  # seconds that slow looks may hold up the next
LAST = 30.0  # seconds for a last look after the time is up, and for replies on their way by then
SLOW = 2.0  # how many times as long as the quick sites the others may take on top
HELLO = 300.0  # seconds after which a node that gave no name, or a wrong one, is asked again
SLACK = 300.0  # seconds by which the clocks of two hosts may differ
ALONE = (
    "FlowerStrategy runs its own rounds: call its start(), and put no other strategy around it; "
    "clipping or noise of a wrapper, as Flower's for differential privacy, would not reach the "
    "model: give client_app(mods=[LocalDpMod(...)]) at the sites instead"
)

__all__ = ["FlowerStrategy", "Limits", "client_app", "initial_arrays", "load_arrays", "reply"]


class FlowerStrategy(Base):
    """A fedmaba strategy as a Flower strategy; use its `start` as with any other.

    fraction_train, min_train_nodes, min_available_nodes: as in Flower's own strategies, but the
    sample is seeded, and `min_available_nodes` sites are waited for before the first round only.
    lr, lr_decay: local step size and its factor per round, sent to the sites.
    state: a folder; everything is saved there after each round, and a start finds it again.
    evaluate: whether all sites evaluate the model handed out after the last round.
    wait: seconds to wait for enough sites before giving up.
    sites: who may speak for which site, a TOML file of name = "SHA256:..." (a key's fingerprint)
    or a mapping; without it a name belongs for good to the first node that gives it.
    min_replies, grace: once so many of those asked have answered (a whole number, or a share
    with a decimal point), the others have twice as long again, at least `grace` seconds.
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
        sites: str | Path | Mapping[str, object] | None = None,
        min_replies: float = 0.5,
        grace: float = 60.0,
    ) -> None:
        _check(0, fraction_train=fraction_train, lr=lr, lr_decay=lr_decay, grace=grace)
        _check(0, whole=True, seed=seed)
        _check(1, whole=True, min_train_nodes=min_train_nodes)
        _check(1, whole=True, min_available_nodes=min_available_nodes)
        if not 0 < fraction_train <= 1:
            raise InputError(f"fraction_train={fraction_train}: it must lie above 0, at most at 1")
        count = isinstance(min_replies, Integral) and not isinstance(min_replies, bool)
        _check(int(count), min_replies=min_replies)
        if not count and not 0 < min_replies <= 1:
            raise InputError(f"min_replies={min_replies}: give a count, or a share up to 1.0")
        if isinstance(strategy, str):
            listed = parse(strategy)
            if len(listed) > 1:
                raise InputError(f"{strategy!r} is a grid of {len(listed)}: a federation runs one")
            strategy = listed[0]
        self.terms = Terms(strategy, seed, lr, lr_decay, deploy)
        self.fraction_train = fraction_train
        self.min_train_nodes, self.min_available_nodes = min_train_nodes, min_available_nodes
        self.limits, self.evaluate, self.wait = limits or Limits(), evaluate, wait
        self.min_replies, self.grace = min_replies, grace
        self.names = read_sites(sites) if sites else Names()
        if self.names.listed is not None and len(self.names.listed) < min_available_nodes:
            few = f"{self.names.where} names {len(self.names.listed)} sites"
            raise InputError(f"{few}, but min_available_nodes={min_available_nodes}: name as many")
        self.folder = None if not state else Path(state)
        self.server: Server | None = None
        self.running = False  # whether our own loop is at work
        self.begun = False  # whether enough sites were there once
        self.asked: dict[int, float] = {}  # node -> when it was asked for its name
        self.hello = Looks()  # for the answers
        self.unnamed: set[int] = set()  # nodes whose app answers no query: they say it in training
        self.turned: list[str] = []  # who was not let in, since the last round
        self.who: dict[int, Who] = {}  # nodes that were there when this round began
        self.sites: dict[int, str] = {}  # those of them whose site is known
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
        grid = counted(grid, server.model)
        self.hello, self.asked = Looks(grid), {}
        self.ttl = timeout + SLACK  # a site that returns does not work through old rounds
        if server.round:
            log(INFO, "going on after round %s, saved in %s", server.round, self.folder)
        self.running = True
        try:
            while server.round < num_rounds:
                t = server.round + 1
                messages = self.configure_train(t, initial_arrays, config, grid)
                arrays, metrics = self._aggregate(self._exchange(grid, messages, timeout))
                result.train_metrics_clientapp[t] = metrics
                own = None if evaluate_fn is None else evaluate_fn(t, arrays)
                if own is not None:
                    result.evaluate_metrics_serverapp[t] = own
            if not server.counted:
                raise InputError(_nobody(server))
            if self.evaluate:
                final = self._final(grid, evaluate_config or ConfigRecord(), timeout)
                spread = {k: v for k, v in final.items() if isinstance(v, float)}
                result.evaluate_metrics_clientapp[server.round] = MetricRecord(spread)
                server.save([final])
            server.finish()
        finally:
            self.running = False
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
        if not self.running:  # a wrapper's loop, which hands its own arrays in and out
            raise InputError(ALONE)
        server = self._begin(arrays)
        self._meet(grid)
        named = {site: node for node, site in self.sites.items()}
        drawn = server.draw(named, self.fraction_train, self.min_train_nodes)
        self.cohort = {named[site]: site for site in drawn}
        self.cohort |= dict.fromkeys(sorted(self.unnamed & set(self.who)))
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
        if not self.running:
            raise InputError(ALONE)
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
            self.server = Server(self.terms, first, self.folder, self.names)
        return self.server

    def _meet(self, grid: Grid) -> None:
        """Learn who is there, and the names of new nodes; returns once they are enough."""
        server, end, seen = self.server, time.monotonic() + self.wait, -1
        assert server is not None
        while True:
            self.who = {info.node_id: _who(info) for info in grid.get_nodes()}
            self._ask(grid, [w for w in self.who.values() if self.names.site(w) is None])
            for node, found in self.hello.once(LOOK):
                self._greet(node, found)
            known = {n: self.names.site(w) for n, w in self.who.items()}
            self.sites = {n: site for n, site in known.items() if site is not None}
            self.unnamed -= set(self.sites)
            ready = len(self.sites) + len(self.unnamed & set(self.who))
            enough = self.min_train_nodes if self.begun else self.min_available_nodes
            if ready >= enough:
                self.begun = True
                server.join(self.sites.values())  # together, so by name
                self._note({self.who[node]: site for node, site in self.sites.items()})
                self._keep_names()
                return
            if ready != seen:
                log(INFO, "waiting for sites: %s of %s are here", ready, enough)
                seen = ready
            if time.monotonic() > end:
                self._keep_names()
                away = f" ({self.turned[-1]})" if self.turned else ""
                raise InputError(
                    f"{ready} sites after {self.wait:g} seconds, but {enough} are needed{away}: "
                    "start more SuperNodes, then run again; the state is saved"
                )
            time.sleep(POLL)

    def _ask(self, grid: Grid, strangers: Iterable[Who]) -> None:
        """Ask nodes for their names, each once in a while; with a list, strangers stay outside."""
        now = time.monotonic()
        self.asked = {node: when for node, when in self.asked.items() if now - when < HELLO}
        self.hello.drop(set(self.hello.waiting.values()) - set(self.asked))
        new = sorted(
            (w for w in strangers if w.node not in self.asked and w.node not in self.unnamed),
            key=lambda w: w.node,
        )
        self.asked |= {w.node: now for w in new}
        if self.names.listed is not None:
            for w in new:
                self._turn_away(w.node, self.names.unlisted(w))
            return
        hello = [Message(RecordDict(), w.node, MessageType.QUERY, ttl=HELLO + SLACK) for w in new]
        for w, message in zip(new, push(grid, hello), strict=True):
            if message:
                self.hello.waiting[message] = w.node

    def _greet(self, node: int, found: Message | str) -> None:
        """Learn a node's name, unless it belongs to another."""
        if node not in self.who:
            return
        if isinstance(found, str) or found.has_error():
            self.unnamed.add(node)
            return
        who, offer = self.who[node], self._offer(node, found)
        try:
            if offer.error is not None:
                raise validation.Refused(offer.error)
            self.names.check(who, validation.site_name(offer.words))
        except validation.Refused as why:
            self._turn_away(node, str(why))
            return  # it is asked again later
        self._note({who: validation.site_name(offer.words)})

    def _turn_away(self, node: int, why: str) -> None:
        self.turned.append(f"node {node} is not let in: {why}")
        log(WARNING, "%s", self.turned[-1])

    def _note(self, sites: Mapping[Who, str]) -> None:
        """Names that nodes have from now on; what is new is logged."""
        for who, site in sites.items():
            said = self.names.give(who, site)
            if said:
                log(INFO, "%s", said)

    def _keep_names(self) -> None:
        """Save names that changed before the round that will tell of them."""
        if self.names.changes and self.server is not None:
            self.server.save()

    def _exchange(
        self, grid: Grid, messages: Sequence[Message], timeout: float
    ) -> list[tuple[int, Message | str]]:
        """Each node's reply, or why there is none.

        Who answered is known by the message it answers, not by what the reply says of itself.
        """
        begin = time.monotonic()
        end, quorum = begin + timeout, self._quorum(len(messages))
        nodes = [m.metadata.dst_node_id for m in messages]
        looks, found = Looks(grid), list[tuple[int, Message | str]]()
        for message, node in zip(push(grid, messages), nodes, strict=True):
            if message:
                looks.waiting[message] = node
            else:
                found.append((node, "nothing could be sent"))
        late = f"no answer within {timeout:g} seconds"
        good = 0
        while looks.waiting:
            over = time.monotonic() >= end  # then this look is the last
            new = looks.once(LAST if over else min(LOOK, max(0.0, end - time.monotonic())))
            found += new
            if over:
                found += [(node, late) for node in looks.waiting.values()]
                break
            before, now = good, time.monotonic()
            good += sum(not isinstance(m, str) and not m.has_error() for _, m in new)
            if before < quorum <= good:
                soon = now + max(self.grace, SLOW * (now - begin))
                if soon < end:
                    end = soon
                    had = f"{good} of {len(messages)} had answered"
                    late = f"no answer within {end - begin:.0f} seconds, when {had}"
            if looks.waiting:
                time.sleep(POLL)
        return found

    def _quorum(self, asked: int) -> int:
        """After how many answers the others are no longer waited for at length."""
        share = not isinstance(self.min_replies, Integral)
        return math.ceil(self.min_replies * asked - 1e-9) if share else int(self.min_replies)

    def _aggregate(
        self, found: Sequence[tuple[int, Message | str]]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new model, and the round in numbers."""
        server = self.server
        assert server is not None
        loss = self.terms.strategy.needs().loss != "none"
        gate = Door(server.model, server.mark(), self.cohort, self._claim, loss, self.limits)
        replies, refused = gate.admit(self._offer(node, message) for node, message in found)
        self._note({self.who[r.node]: r.site for r in replies})
        self.turned, turned = [], self.turned
        report = server.take(replies, [*turned, *refused])
        self.reports.append(report)
        for line in _lines(report):
            log(INFO, "%s", line)
        for why in report["refused"][len(turned) :]:  # the others were logged when it happened
            log(WARNING, "left out of round %s: %s", report["round"], why)
        numbers = {key: value for key, value in report.items() if isinstance(value, float)}
        numbers |= {key: value for key, value in report["info"].items() if value is not None}
        numbers["replies"] = float(len(replies))
        return _record(server.model), MetricRecord(numbers)

    def _claim(self, node: int, site: str) -> None:
        self.names.check(self.who[node], site)

    def _offer(self, node: int, message: Message | str) -> Offer:
        """A reply as the door wants to see it, unless it is larger than any honest one."""
        assert self.server is not None
        return _offer(node, message, len(self.server.model))

    def _final(self, grid: Grid, config: ConfigRecord, timeout: float) -> dict[str, Any]:
        """How the model that is handed out serves each site that can tell."""
        server = self.server
        assert server is not None
        found = ((info.node_id, self.names.site(_who(info))) for info in grid.get_nodes())
        sites = {node: site for node, site in found if site is not None}
        content = RecordDict({"arrays": _record(server.deployed), "config": config})
        messages = [
            Message(content, node, MessageType.EVALUATE, group_id="end", ttl=self.ttl)
            for node in sites
        ]
        accuracy: dict[str, float] = {}
        for node, message in self._exchange(grid, messages, timeout):
            offer = self._offer(node, message)
            try:
                if offer.error is not None:
                    raise validation.Refused(validation.line(offer.error))
                value = validation.number(offer.numbers, "accuracy", 0.0, 1.0)
            except validation.Refused as why:
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
    classes: int | Sequence[str] | None = None,
    loss: LossFn | None = None,
    metric: MetricFn | None = None,
    device: str = "cpu",
    mods: Sequence[Any] = (),
    keep: str | Path | None = None,
) -> ClientApp:
    """A ClientApp for every strategy: it trains as the server's message says.

    Its name is `site`, by default what the SuperNode's --node-config says: 'site="north"'. The
    rows of `data` before n_train are trained on; accuracy on the others is reported. `classes`
    are the names of all classes in one order for all sites, or how many there are, 0 to C-1.
    `mods` are Flower's, around training: LocalDpMod(...), say. `keep` is a folder of this site for
    vectors that a strategy lets it keep between rounds, by default --node-config 'keep="..."'.
    """

    def name(context: Context) -> str:
        if site is not None:
            return site if isinstance(site, str) else site(context)
        if "site" not in context.node_config:
            raise InputError("this site has no name: start its SuperNode with --node-config "
                             "'site=\"north\"'")  # fmt: skip
        return str(context.node_config["site"])

    def worker(context: Context) -> Any:
        from fedmaba.deploy.client import (
            Site,  # with torch, which neither a server nor a query needs
        )

        mine = data(context) if callable(data) else data
        folder = keep or context.node_config.get("keep")
        kept = KeptVectors(Path(str(folder)) if folder else None, name(context))
        return Site(model, mine, classes, loss, metric, device, kept)

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
    app.train(mods=list(mods))(train)
    app.evaluate()(evaluate)
    app.query()(query)
    return app


def reply(
    message: Message, arrays: ArrayRecord | None, numbers: Mapping[str, float], site: str
) -> Message:
    """The answer of a site: the trained model, "num-examples", "loss" where asked for, its name.

    Arrays without names, as ArrayRecord makes them of a list, are those of the message in order.
    """
    records: dict[str, Any] = {"metrics": MetricRecord(dict(numbers))}
    records["config"] = ConfigRecord({"site": site})
    if arrays is not None:
        records["arrays"] = _named(arrays, list(message.content["arrays"]))
    return Message(RecordDict(records), reply_to=message)


def _named(arrays: ArrayRecord, names: list[str]) -> ArrayRecord:
    """Arrays under the names that the server knows, or InputError."""
    if set(arrays) == set(names):
        return arrays
    if list(arrays) == [str(place) for place in range(len(names))]:
        return ArrayRecord(dict(zip(names, arrays.values(), strict=True)))
    missing, extra = (
        validation.names(set(names) - set(arrays)),
        validation.names(set(arrays) - set(names)),
    )
    raise InputError(
        f"arrays missing: {missing}; not of this model: {extra}: answer with those of "
        'message.content["arrays"], by name or as a list in their order'
    )


def initial_arrays(
    model: models.Factory | str, shape: tuple[int, ...], classes: int, seed: int = 0
) -> ArrayRecord:
    """The first model, that of the simulator's run with this seed; needs torch."""
    from fedmaba.deploy.client import first_model

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


def _offer(node: int, message: Message | str, most: int) -> Offer:
    """A reply as the door wants to see it; one of a model with more than `most` arrays is not."""
    if isinstance(message, str):
        return Offer(node, "", error=message)
    if message.has_error():
        return Offer(node, "", error=f"{message.error.reason}")
    found = message.content
    kinds = (ArrayRecord, MetricRecord, ConfigRecord)
    if len(found) > len(kinds) or len({type(record) for record in found.values()}) < len(found):
        return Offer(node, "", error="it sent two records of a kind, so neither counts")
    by_kind: dict[Any, Any] = {type(record): record for record in found.values()}
    arrays, numbers, words = (by_kind.get(kind, {}) for kind in kinds)
    try:
        validation.bounded(arrays, numbers, words, most)
    except validation.Refused as why:
        return Offer(node, "", error=str(why))
    sent = {n: Sent(a.dtype, tuple(a.shape), a.stype, a.data) for n, a in arrays.items()}
    return Offer(node, message.metadata.group_id, sent, dict(numbers), dict(words))


def _who(info: Any) -> Who:
    """A node as the SuperLink knows it; its key's fingerprint as OpenSSH writes it."""
    key = bytes(info.public_key)
    if not key:
        return Who(info.node_id, name=info.name)
    try:
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        key = base64.b64decode(
            serialization.load_pem_public_key(key).public_bytes(*form).split()[1]
        )
    except ValueError:  # no key at all: Flower's simulation gives random bytes
        pass
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return Who(info.node_id, f"SHA256:{digest}", info.name)


def _nobody(server: Server) -> str:
    """Why a run in which no reply counted has failed, and what to do."""
    few = server.refused[:3]
    more = f" and {len(server.refused) - 3} more" if len(server.refused) > 3 else ""
    why = ("; ".join(few) + more) or "nobody answered"
    return (
        f"no reply counted in {server.round} rounds, so no model was made; in the last: {why}: "
        "correct that, then run again with another state folder"
    )


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
