"""fedmaba's strategies in a Flower app. Messages in and out.

`FlowerStrategy` is a Flower strategy for the ServerApp and needs no torch. `client_app` makes a
ClientApp from a model and data. `reply` adds what the server needs to a ClientApp of your own.
The folder `deploy` has the rest: what the server computes (`server`), which replies it refuses
(`validation`), how it fetches them (`reply_fetching`), a site's app (`site_app`) and what it does
(`client`), and how both sum changes that the server does not see (`secure`). Besides this module
only `site_app`, `messages` and `masks` import flwr.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy import Strategy as Base

from fedmaba.deploy import records, reply_fetching, round_log, run_config, secure_round, validation
from fedmaba.deploy.event_log import EventLog, why_it_ends
from fedmaba.deploy.flower_app.check import BEHIND_SECONDS
from fedmaba.deploy.messages import (
    array_record,
    as_node,
    initial_arrays,
    load_arrays,
    log_line,
    raw_reply,
)
from fedmaba.deploy.private import PrivacySpent
from fedmaba.deploy.scores import SiteScores
from fedmaba.deploy.secure import MOST_TEXT_BYTES, SecureSum
from fedmaba.deploy.secure_round import MASKED, AttemptFailed, SecureResult, SecureRound
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import (
    FederationSettings,
    Participation,
    check_numbers,
    check_training,
    one_strategy,
    read_dp,
    read_losses,
    require_same_terms,
)
from fedmaba.deploy.site_app import client_app, reply, secure_mod
from fedmaba.deploy.site_names import Node, SiteNames, read_sites
from fedmaba.deploy.validation import Arrays, Limits, RawReply, ReplyValidator
from fedmaba.errors import FedmabaError, InputError
from fedmaba.privacy.mechanism import Privacy
from fedmaba.strategies.base import Strategy

ASK_AGAIN_SECONDS = 300.0  # after which a node that gave no name, or a wrong one, is asked again
OWN_ROUNDS_ONLY = (
    "FlowerStrategy runs its own rounds: call its start(), and put no other strategy around it; "
    "clipping or noise of a wrapper, as Flower's for differential privacy, would not reach the "
    "model: give dp='epsilon=8' here, or client_app(mods=[LocalDpMod(...)]) at the sites, instead"
)
ATTEMPTS = 5  # of a secure round, one after the other

__all__ = [
    "FlowerStrategy",
    "Limits",
    "SecureSum",
    "client_app",
    "initial_arrays",
    "load_arrays",
    "reply",
    "secure_mod",
    "strategy_of_run",
]


class FlowerStrategy(Base):
    """A fedmaba strategy as a Flower strategy; use its `start` as with any other.

    fraction_train, min_train_nodes, min_available_nodes: as in Flower's own strategies, but the
    sample is seeded, and `min_available_nodes` sites are waited for before the first round only.
    lr, lr_decay: local step size and its factor per round, sent to the sites.
    schedule: instead of lr_decay, as "cosine" or "warmup:5,cosine"; cosine ends at num_rounds.
    state: a folder; everything is saved there after each round, and a start finds it again.
    evaluate: whether all sites evaluate the model handed out after the last round; unless you say
    so, not where sites add noise to their losses, since scores have none.
    wait: seconds to wait for enough sites before giving up.
    sites: who may speak for which site, a TOML file of name = "SHA256:..." (a key's fingerprint)
    or a mapping; without it a name belongs for good to the first node that gives it. A value
    { key = "SHA256:...", examples = 800 } also says how many examples the site may claim.
    min_replies, grace: once so many of those asked have answered (a whole number, or a share
    with a decimal point), the others have twice as long again, at least `grace` seconds.
    batchnorm: what client_app(batchnorm=...) says. "average": running statistics are weighed as
    the model is; "local": sites keep their layers. Without it statistics are averaged by size.
    secure: SecureSum(...) lets the server see the weighted sum of the sites' changes, and no single
    one; sites need client_app(secure=True).
    dp: what sites are promised, as "epsilon=8,delta=1e-5,clip=1.0", a mapping or Privacy(...): the
    server adds noise to the sum of clipped changes and to the losses; see docs/privacy.md.
    losses: "seen", or with secure sums "noised" or "noised:epsilon=2,loss=5": sites add noise to
    the losses that they report.
    metrics: a .prom file in which Prometheus finds how the federation goes, renewed each round.
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
        schedule: str | None = None,
        seed: int = 0,
        deploy: str | None = None,
        state: str | Path | None = None,
        limits: Limits | None = None,
        evaluate: bool | None = None,
        wait: float = 3600.0,
        sites: str | Path | Mapping[str, object] | None = None,
        min_replies: float = 0.5,
        grace: float = 60.0,
        batchnorm: str | None = None,
        secure: SecureSum | None = None,
        dp: Privacy | Mapping[str, Any] | str | None = None,
        losses: str = "seen",
        metrics: str | Path | None = None,
    ) -> None:
        check_numbers(0, lr=lr, lr_decay=lr_decay)
        check_numbers(0, whole=True, seed=seed)
        self.participation = Participation(
            fraction_train, min_train_nodes, min_available_nodes, min_replies, grace
        )
        self.settings = FederationSettings(
            *(one_strategy(strategy), seed, lr, lr_decay, deploy, batchnorm, schedule),
            secure=secure,
            dp=read_dp(dp),
            losses=read_losses(losses),
        )
        self.limits, self.wait = limits or Limits(), wait
        noised = self.settings.dp or self.settings.losses
        self.evaluate = not (noised and secure) if evaluate is None else evaluate
        self.site_names = read_sites(sites) if sites else SiteNames()
        listed = self.site_names.listed
        if listed is not None and len(listed) < min_available_nodes:
            few = f"{self.site_names.source} names {len(listed)} sites"
            raise InputError(f"{few}, but min_available_nodes={min_available_nodes}: name as many")
        self.folder = None if not state else Path(state)
        self.metrics = None if not metrics else Path(metrics)
        if self.metrics is not None:
            records.check_metrics_path(self.metrics)
        self.server: FederationServer | None = None
        self.running = False  # whether our own loop is at work
        self.had_enough_sites = False  # whether min_available_nodes were there once
        self.asked_at: dict[int, float] = {}  # node -> when it was asked for its name
        self.name_replies = reply_fetching.ReplyFetcher()
        self.nameless: set[int] = set()  # nodes whose app answers no query: they say it in training
        self.turned_away: list[str] = []  # who was not let in since the last round, and why
        self.nodes: dict[int, Node] = {}  # those that were there when this round began
        self.site_of: dict[int, str] = {}  # the site of each of them, where it is known
        self.asked: dict[int, str | None] = {}  # nodes asked to train now, and their sites
        self.public_keys: set[bytes] = set()  # that sites sent for secure sums
        self.left_out: set[str] = set()  # sites that made this secure round fail before
        self.ttl: float | None = None  # seconds after which a message is void
        self.reports: list[dict[str, Any]] = []  # what happened, a record per round
        self.events = EventLog()

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

        `train_config` says how sites train: epochs or steps, minibatch, optimiser, momentum,
        beta1, beta2, epsilon, weight-decay, clip, step-schedule, augment; see docs/training.md.
        Flower's own loop counts from 1 again and ends with the first reply that cannot be read.
        """
        config = train_config or ConfigRecord()
        check_numbers(1, whole=True, num_rounds=num_rounds)
        check_numbers(0, timeout=timeout)
        check_training(config)
        self.settings = replace(self.settings, rounds=num_rounds)
        server, result = self._begin(initial_arrays), Result()
        records.write_about(
            *(server.folder, self.settings, server.size),
            *(self.participation, config, timeout),
            private=server.private,
        )
        grid = self._limit_replies(grid, server)
        self.name_replies, self.asked_at = reply_fetching.ReplyFetcher(grid), {}
        self.ttl = timeout + BEHIND_SECONDS  # a site that returns skips old rounds, by its clock
        if server.round:
            self._log(INFO, f"going on after round {server.round}, saved in {self.folder}")
        self.running, spent = True, ""
        try:
            self._write_metrics()
            while server.round < num_rounds:
                self.events.round = t = server.round + 1
                try:
                    arrays, metrics = self._one_round(grid, initial_arrays, config, timeout)
                except PrivacySpent as why:
                    spent = str(why)
                    self._log(WARNING, f"the run ends after round {server.round}: {spent}")
                    assert server.private is not None
                    server.private.end(server.round)
                    break
                result.train_metrics_clientapp[t] = metrics
                own = None if evaluate_fn is None else evaluate_fn(t, arrays)
                if own is not None:
                    result.evaluate_metrics_serverapp[t] = own
            if not server.counted:
                raise InputError(round_log.no_reply_counted(server, spent))
            if self.evaluate:
                final = self._final(grid, evaluate_config or ConfigRecord(), timeout)
                spread = {k: v for k, v in final.items() if isinstance(v, float)}
                result.evaluate_metrics_clientapp[server.round] = MetricRecord(spread)
                server.save([final])
            server.write_models()
            self._log(INFO, f"the run has ended after round {server.round}")
        except BaseException as error:
            self.events.add(ERROR, why_it_ends(error))  # who called start() is told, too
            raise
        finally:
            self.running = False
            server.close()
            self._write_metrics()
        result.arrays = array_record(server.model)
        return result

    def _one_round(
        self, grid: Grid, first: ArrayRecord, config: ConfigRecord, timeout: float
    ) -> tuple[ArrayRecord, MetricRecord]:
        """A round from its questions to its report."""
        if self.settings.secure is not None:
            return self._secure_round(grid, config, timeout)
        messages = self.configure_train(self._server.round + 1, first, config, grid)
        return self._aggregate(self._collect(grid, messages, timeout))

    @property
    def deployed(self) -> ArrayRecord:
        """The model to hand out: an average of the last rounds' (`deploy`)."""
        if self.server is None:
            raise InputError("there is no model yet: start the strategy first")
        return array_record(self.server.deployed)

    def summary(self) -> None:
        """Log what this strategy is."""
        share = self.participation.fraction_train
        log_line(INFO, f"fedmaba: {self.label}, a share of {share:g} of the sites")

    @property
    def label(self) -> str:
        return self.settings.strategy.label()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message per participant: model, task, and the caller's own settings."""
        if not self.running:  # a wrapper's loop, which hands its own arrays in and out
            raise InputError(OWN_ROUNDS_ONLY)
        server = self._begin(arrays)
        self._wait_for_sites(grid)
        node_of = {s: node for node, s in self.site_of.items() if s not in self.left_out}
        rule = self.participation
        least = max(rule.min_train_nodes, self._least_sites)
        if server.private is not None:
            node_of = {s: node for s, node in node_of.items() if server.private.may_ask(s)}
            if len(node_of) < least:
                raise PrivacySpent(
                    f"{len(node_of)} sites may still be asked, and {least} are needed; the others "
                    "have been counted as often as the noise allows"
                )
        drawn = server.draw(node_of, rule.fraction_train, least)
        self.asked = {node_of[site]: site for site in drawn}
        self.asked |= dict.fromkeys(sorted(self.nameless & set(self.nodes)))
        if server.private is not None and server.private.at_sites:
            server.private.count(drawn)  # their answers release something
        model, round_id = array_record(server.sent()), server.round_id()
        task = {node: ConfigRecord({**config, **server.task(s)}) for node, s in self.asked.items()}
        return [
            self._message(node, MessageType.TRAIN, round_id, arrays=model, config=own)
            for node, own in task.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, weigh those that count, move the model."""
        if not self.running:
            raise InputError(OWN_ROUNDS_ONLY)
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

    def _begin(self, arrays: ArrayRecord) -> FederationServer:
        """The server of this run, made from the first model or found in the state folder."""
        if self.server is None:
            first = {name: array.numpy() for name, array in arrays.items()}
            self.server = FederationServer(self.settings, first, self.folder, self.site_names)
            self.events.folder = self.server.folder
        require_same_terms("this strategy", self.server.settings.to_json(), self.settings)
        return self.server

    def _wait_for_sites(self, grid: Grid) -> None:
        """Learn who is there, and the names of new nodes; returns once there are enough."""
        server, end, seen = self._server, time.monotonic() + self.wait, -1
        site_of, rule = self.site_names.site_of, self.participation
        while True:
            self.nodes = {info.node_id: as_node(info) for info in grid.get_nodes()}
            self._ask_names(grid, [n for n in self.nodes.values() if site_of(n) is None])
            for node, found in self.name_replies.fetch(reply_fetching.FETCH_SECONDS):
                self._learn_name(node, found)
            known = {number: site_of(node) for number, node in self.nodes.items()}
            self.site_of = {number: site for number, site in known.items() if site is not None}
            self.nameless -= set(self.site_of)
            ready = len(self.site_of) + len(self.nameless & set(self.nodes))
            enough = rule.min_train_nodes if self.had_enough_sites else rule.min_available_nodes
            enough = max(enough, self._least_sites)
            if ready >= enough:
                self.had_enough_sites = True
                server.join(self.site_of.values())  # together, so by name
                self._assign({self.nodes[node]: site for node, site in self.site_of.items()})
                self._save_names()
                return
            if ready != seen:
                self._log(INFO, f"waiting for sites: {ready} of {enough} are here")
                seen = ready
            if time.monotonic() > end:
                self._save_names()
                away = f" ({self.turned_away[-1]})" if self.turned_away else ""
                raise InputError(
                    f"{ready} sites after {self.wait:g} seconds, but {enough} are needed{away}: "
                    "start more SuperNodes, then run again; the state is saved"
                )
            time.sleep(reply_fetching.POLL_SECONDS)

    def _ask_names(self, grid: Grid, strangers: Iterable[Node]) -> None:
        """Ask nodes for their names, each once in a while; with a list, strangers stay outside."""
        now = time.monotonic()
        recent = {n: when for n, when in self.asked_at.items() if now - when < ASK_AGAIN_SECONDS}
        self.asked_at = recent
        self.name_replies.stop_waiting(set(self.name_replies.waiting.values()) - set(recent))
        new = sorted(
            (n for n in strangers if n.number not in recent and n.number not in self.nameless),
            key=lambda n: n.number,
        )
        self.asked_at |= {node.number: now for node in new}
        if self.site_names.listed is not None:
            for node in new:
                self._turn_away(node.number, self.site_names.unlisted(node))
            return
        ttl = ASK_AGAIN_SECONDS + BEHIND_SECONDS
        questions = [Message(RecordDict(), n.number, MessageType.QUERY, ttl=ttl) for n in new]
        for node, message in zip(new, reply_fetching.send_messages(grid, questions), strict=True):
            if message:
                self.name_replies.waiting[message] = node.number

    def _learn_name(self, number: int, found: Message | str) -> None:
        """Learn a node's name from its reply, unless the name belongs to another."""
        if number not in self.nodes:
            return
        if isinstance(found, str) or found.has_error():
            if why := self.settings.named_for:
                self._turn_away(number, f"its app gives no name, {why}")
                return
            self.nameless.add(number)
            return
        node, raw = self.nodes[number], self._raw_reply(number, found)
        try:
            if raw.error is not None:
                raise validation.Refused(raw.error)
            site = validation.site_name(raw.words)
            self.site_names.check(node, site)
        except validation.Refused as why:
            self._turn_away(number, str(why))
            return  # it is asked again later
        self._assign({node: site})

    def _turn_away(self, node: int, why: str) -> None:
        self.turned_away.append(f"node {node} is not let in: {why}")
        self._log(WARNING, self.turned_away[-1])

    def _assign(self, sites: Mapping[Node, str]) -> None:
        """Give nodes the names that they have from now on, and log those that are new."""
        for node, site in sorted(sites.items(), key=lambda one: one[1]):  # not as they arrived
            if said := self.site_names.assign(node, site):
                self._log(INFO, said)

    def _save_names(self) -> None:
        """Save names that changed, before the round whose report will list them."""
        if self.site_names.changes and self.server is not None:
            self.server.save()

    @property
    def _server(self) -> FederationServer:
        assert self.server is not None
        return self.server

    @property
    def _least_sites(self) -> int:
        """How many sites a round needs for its secure sum; 0 without one."""
        return 0 if self.settings.secure is None else self.settings.secure.fewest

    def _limit_replies(self, grid: Grid, server: FederationServer) -> Grid:
        """A grid that fetches no reply larger than an honest one can be."""
        if self.settings.secure is None:
            return reply_fetching.limit_reply_size(grid, server.sent())
        masked = {MASKED: np.zeros(server.size + 1, np.uint32)}
        return reply_fetching.limit_reply_size(grid, masked, MOST_TEXT_BYTES)

    def _secure_round(
        self, grid: Grid, config: ConfigRecord, timeout: float
    ) -> tuple[ArrayRecord, MetricRecord]:
        """A round in which the server sees the sum alone; repeated while too few sites stay."""
        server, rule = self._server, self.settings.secure
        assert rule is not None
        self.left_out, why, earlier = set(), "", list[str]()
        for _ in range(ATTEMPTS):
            told = {} if server.private is None else server.private.site_rule()
            round_id = f"{server.round_id()} {server.federation}"
            attempt = SecureRound(rule, round_id, server.size, self.public_keys, told)
            task = ConfigRecord({**config, "secure": attempt.first_task()})
            messages = self.configure_train(server.round + 1, ArrayRecord(), task, grid)
            for message in messages:
                message.metadata.group_id = attempt.attempt
            found = self._collect(grid, messages, timeout)
            replies, refused = self._read_keys(attempt, found)
            exchange = partial(self._exchange, grid, attempt.attempt, timeout)
            try:
                summed, left = secure_round.sum_changes(attempt, replies, server.decide, exchange)
            except AttemptFailed as failed:
                why = str(failed)
                again = f"round {server.round + 1} is repeated: {why}"
                earlier += [*refused, *failed.lines, again]
                for line in (*refused, *failed.lines, again):
                    self._log(WARNING, line)
                self.left_out |= set(failed.guilty)
                continue
            there = [r for r in replies if r.site in summed.shares]
            return self._finish(there, [*refused, *left], summed, earlier)
        raise InputError(
            f"round {server.round + 1} failed {ATTEMPTS} times, the last time because {why}: "
            "correct that, then run again with the same state; what was saved before is whole"
        )

    def _read_keys(
        self, attempt: SecureRound, found: Sequence[tuple[int, Message | str]]
    ) -> tuple[list[validation.Reply], list[str]]:
        """The first answers of a secure round that count, by site, and a line for each other."""
        raw = [self._raw_reply(*one) for one in found]
        said = {one.node: one.words.get("secure") for one in raw}
        replies, refused = self._validator({}, attempt.attempt).validate(raw)
        taken = []
        for one in self._server.in_order(replies):
            try:
                attempt.take_keys(one.site, said[one.node])
                taken.append(one)
            except validation.Refused as why:
                refused.append(f"node {one.node} ({one.site}): {why}")
        self._assign({self.nodes[one.node]: one.site for one in taken})
        self.site_of |= {one.node: one.site for one in taken}
        return taken, refused

    def _exchange(
        self, grid: Grid, attempt: str, timeout: float, texts: Mapping[str, str]
    ) -> dict[str, RawReply]:
        """Send each site its text of a secure round; return what they answer."""
        node_of = {site: node for node, site in self.site_of.items()}
        asked = {node_of[site]: ConfigRecord({"secure": text}) for site, text in texts.items()}
        messages = [
            self._message(node, MessageType.TRAIN, attempt, config=own)
            for node, own in asked.items()
        ]
        found = self._collect(grid, messages, timeout)
        return {self.site_of[node]: raw_reply(node, message, 1) for node, message in found}

    def _message(
        self, node: int, kind: str, group: str, **records: ArrayRecord | ConfigRecord
    ) -> Message:
        """A message that has expired when nobody waits for its answer any more."""
        return Message(RecordDict({**records}), node, kind, group_id=group, ttl=self.ttl)

    def _collect(
        self, grid: Grid, messages: Sequence[Message], timeout: float
    ) -> list[tuple[int, Message | str]]:
        """Each node's reply, or why there is none."""
        rule, secure = self.participation, self.settings.secure
        quorum = rule.quorum(len(messages))
        if secure is not None:  # fewer would not be enough
            quorum = max(quorum, secure.fewest, len(messages) // 2 + 1)
        return reply_fetching.collect_replies(grid, messages, timeout, quorum, rule.grace)

    def _aggregate(
        self, found: Sequence[tuple[int, Message | str]]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The new model, and the round in numbers."""
        server = self._server
        validator = self._validator(server.sent(), server.round_id())
        replies, refused = validator.validate(self._raw_reply(*reply) for reply in found)
        self._assign({self.nodes[r.node]: r.site for r in replies})
        return self._finish(replies, refused)

    def _validator(self, model: Arrays, round_id: str) -> ReplyValidator:
        """What checks the replies of this round, each with the arrays of `model`."""
        private, limits = self._server.private, self.limits
        at_sites = private is not None and private.at_sites
        if private is not None and at_sites:
            limits = replace(limits, loss=(0.0, private.mechanism.asked.loss))
        return ReplyValidator(
            model,
            round_id,
            self.asked,
            lambda node, site: self.site_names.check(self.nodes[node], site),
            self.settings.strategy.needs().loss != "none",
            limits,
            self.settings.strategy.needs().of_clients,
            any_values=private is not None and not at_sites,
            examples=self.site_names.examples,
        )

    def _finish(
        self,
        replies: Sequence[validation.Reply],
        refused: Sequence[str],
        summed: SecureResult | None = None,
        earlier: Sequence[str] = (),  # lines that are in the log already
    ) -> tuple[ArrayRecord, MetricRecord]:
        """End the round and log it."""
        server = self._server
        before = [*self.turned_away, *earlier]
        self.turned_away = []
        asked = [site for site in self.asked.values() if site is not None]
        report = server.finish_round(replies, [*before, *refused], summed, asked)
        self.reports.append(report)
        self._write_metrics()
        for level, line in round_log.lines_of_round(report, len(before)):
            self._log(level, line)
        if len(self.reports) == 1:  # only now it is known how many sites there are
            for doubt in self.settings.strategy.doubts(len(server.sites), len(report["sites"])):
                self._log(WARNING, f"{self.label}: {doubt}")
        numbers = {key: value for key, value in report.items() if isinstance(value, float)}
        numbers |= {key: value for key, value in report["info"].items() if value is not None}
        numbers["replies"] = float(len(replies))
        return array_record(server.model), MetricRecord(numbers)

    def _log(self, level: int, text: str) -> None:
        """Log a line, and keep it in the state folder."""
        log_line(level, text)
        self.events.add(level, text, () if self.server is None else self.server.sites)

    def _write_metrics(self) -> None:
        """Write the metrics of now, if a file for them was named; a run goes on without them."""
        if self.metrics is None:
            return
        server, report = self._server, self.reports[-1] if self.reports else None
        told = (server.settings, server.round, server.sites, server.last_counted, server.clock)
        try:
            records.write_metrics(self.metrics, records.metrics_text(*told, report, self.running))
        except FedmabaError as error:
            self._log(WARNING, str(error))

    def _raw_reply(self, node: int, message: Message | str) -> RawReply:
        """A reply that has no more arrays than the model, or a line that says why not."""
        return raw_reply(node, message, self._server.sent_count)

    def _final(self, grid: Grid, config: ConfigRecord, timeout: float) -> dict[str, Any]:
        """How the model that is handed out serves each site that can tell."""
        server = self._server
        found = ((i.node_id, self.site_names.site_of(as_node(i))) for i in grid.get_nodes())
        sites = {node: site for node, site in found if site is not None}
        model = array_record(server.deployed)
        task = {node: ConfigRecord({**config, **server.kept_task(s)}) for node, s in sites.items()}
        messages = [
            self._message(node, MessageType.EVALUATE, "end", arrays=model, config=own)
            for node, own in task.items()
        ]
        scores = SiteScores()
        for node, message in self._collect(grid, messages, timeout):
            try:
                scores.add(sites[node], self._raw_reply(node, message))
            except validation.Refused as why:
                self._log(WARNING, f"{sites[node]}: {why}")
        report: dict[str, Any] = {"round": server.round} | scores.report()
        for line in round_log.lines_of_end(report):
            self._log(INFO, line)
        return report


def strategy_of_run(run: Mapping[str, Any]) -> FlowerStrategy:
    """The strategy that an app's run configuration describes, as `fedmaba flower new` writes it.

    Keys that are not there have their usual values; those of the app itself are left alone.
    """
    return FlowerStrategy(**run_config.arguments(run))
