"""The server of a real federation: model, strategy state and sites, one round at a time. No torch.

It handles numbers and arrays, and knows no network. A round is `draw` (who takes part), `task`
(what a site is told) and `finish_round` (what the replies do). Everything that the next round needs
is saved before it begins, so a server that was killed goes on with the same numbers.

Sites are known by name, in the order in which they joined; sites that join together are sorted by
name. A site that leaves keeps its entry in the strategy's state and finds it when it returns. A new
site gets the entry that `Strategy.join` gives it. This module saves which node speaks for which
site; `site_names` decides it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba import rng
from fedmaba.deploy import private
from fedmaba.deploy.changes import Changes
from fedmaba.deploy.checkpoint import ServerState, safetensors_of
from fedmaba.deploy.kept_vectors import mean_in, mean_name
from fedmaba.deploy.records import RoundClock, round_report, write_card
from fedmaba.deploy.secure_round import SecureResult
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.site_names import SiteNames
from fedmaba.deploy.statistics import mean_statistics
from fedmaba.deploy.validation import Arrays, Reply, some_names
from fedmaba.errors import InputError
from fedmaba.layer_names import LAST, names_kept
from fedmaba.privacy import secret_noise
from fedmaba.privacy.mechanism import Mechanism, clip_rows
from fedmaba.results import run_folder
from fedmaba.simulation.replies import decide, make_replies
from fedmaba.strategies import deployed as average
from fedmaba.strategies.base import Decision, IntArray, Replies, client_weights, layers_of

Task = dict[str, int | float | str | bool | bytes]
NOT_FINITE = "the new model would not be finite: this round adds nothing"
REMEDY = "fix it, then run again with the same state; what was saved before is whole"


class FederationServer(ServerState):
    """The server of one run."""

    def __init__(
        self,
        settings: FederationSettings,
        model: Arrays,
        folder: Path | None = None,
        site_names: SiteNames | None = None,
    ) -> None:
        super().__init__(settings, model, site_names or SiteNames())
        self.clock = RoundClock()
        patterns = self.local.own_layers
        sure = [one for one in patterns if LAST not in one]  # which module was last is not known
        if kept := sorted(set[str]().union(*(names_kept(one, [*self.model]) for one in sure))):
            raise InputError(
                f"the first model has {some_names(kept)}, which sites keep: make it by "
                f"initial_arrays(..., own_layers={patterns})"
            )
        if self.private is not None and folder is None:
            raise InputError(
                "privacy is counted in the state folder, so that no restart forgets what is spent: "
                "give state, a folder"
            )
        if extra := set(self.model) - set(self.weights):
            self._check_statistics(some_names(extra))
        self.folder = (
            None if folder is None else run_folder.Folder(folder, private=True, remedy=REMEDY)
        )
        if self.folder is not None:
            try:
                counted = None
                if run_folder.checkpoints(self.folder.path):
                    counted = self.restore(self.folder)
                if self.private is not None:
                    self.private.open(self.folder, counted)
            except BaseException:
                self.folder.close()
                raise

    def _check_statistics(self, names: str) -> None:
        """Refuse a model with more than weights where sums are secure or noised."""
        if self.settings.secure is not None:
            why = "secure sums are of weights"
        elif self.private is not None:
            why = "dp: noise is for weights"
        else:
            return
        raise InputError(
            f"{why}, but the model has running statistics or counters, {names}: choose "
            "batchnorm='group', 'local' or 'frozen'"
        )

    def join(self, names: Iterable[str]) -> None:
        """Add the sites that are new."""
        new = sorted(set(names) - set(self.sites))
        if not new:
            return
        count = len(self.sites) + len(new)
        self.local.check_clients(count, more_may_come=True)
        known = bool(self.sites)
        strategy = self.settings.strategy
        self.state = strategy.join(self.state, count) if known else strategy.init(count)
        share = self.dtype.type(len(self.sites) / count)  # what new sites keep is 0
        self.means = {name: share * mean for name, mean in self.means.items()}
        self.sites += new

    def draw(self, present: Iterable[str], fraction: float, least: int) -> list[str]:
        """Who takes part: a seeded sample of the known sites that are connected, in their order."""
        there = set(present)
        ordered = [site for site in self.sites if site in there]
        if not ordered:
            return []
        count = min(len(ordered), max(least, int(fraction * len(ordered) + 1e-9)))
        drawn = rng.sample_clients(self.settings.seed, self.round, len(ordered), count)
        return [ordered[i] for i in drawn]

    @property
    def lr(self) -> float:
        """The local step size of this round."""
        return self.settings.lr_in_round(self.round)

    def round_id(self) -> str:
        """The text that ties a reply to this round and this model."""
        digest = hashlib.sha256()
        for name in sorted(self.model):
            digest.update(name.encode() + b"\0" + self.model[name].tobytes())
        return f"round {self.round + 1} {digest.hexdigest()[:16]}"

    def sent(self) -> Arrays:
        """The arrays of a message: the model, and the means that sites train with.

        A site answers with all of them, each moved as its own change says.
        """
        means = {
            mean_name(self.local, name, weight): value
            for name in self.settings.sent_means
            for weight, value in self._named(self.means[name]).items()
        }
        if both := means.keys() & self.model.keys():
            raise InputError(f"the model has an array {min(both)!r}: give it another name")
        return self.model | means

    @property
    def sent_count(self) -> int:
        """How many arrays `sent` has."""
        return len(self.model) + len(self.settings.sent_means) * len(self.weights)

    def task(self, site: str | None) -> Task:
        """What a site must know besides the model: also what the algorithm wants it to do."""
        needs = self.settings.strategy.needs()
        task: Task = {
            "server-round": self.round + 1,
            "lr": self.lr,
            "loss-at": needs.loss,
            "local": self._work_of(site),
        }
        task |= {} if self.private is None else {"terms": self._terms(self.private, site)}
        task |= self.kept_task(site)
        task |= {"tell": " ".join(needs.of_clients)} if needs.of_clients else {}
        moved = any(not np.array_equal(self.model[n], a) for n, a in self.first.items())
        if moved and not self.last_counted.get(site or ""):
            task["first-model"] = safetensors_of(self.first)
        if site is not None:
            client = self.sites.index(site)
            keys = rng.key(self.settings.seed, "local", self.round, client)
            task["stream"] = int(keys.view(np.int64)[0])
        return task

    def _terms(self, found: private.PrivateRounds, site: str | None) -> str:
        """The promise of privacy, for a site that counts it, too: noise, and its count so far."""
        # before this round, which is counted already where sites add the noise
        taken = found.taken.get(site or "", 0) - found.at_sites
        told = {"federation": self.federation, "noise": list(found.mechanism.releases)}
        return json.dumps(told | {"delta": found.mechanism.asked.delta, "taken": taken})

    def kept_task(self, site: str | None) -> Task:
        """What a site must know to find what it kept; nothing where sites keep nothing."""
        if not self.local.keeps and self.settings.batchnorm != "local":
            return {}
        # of what sites begin with
        seed: Task = {"model-seed": self.settings.seed} if self.local.own_layers else {}
        return seed | {
            "local": self._work_of(site),
            "server-round": self.round + 1,
            "federation": self.federation,
            "kept-round": self.last_counted.get(site or "", 0),
        }

    def in_order(self, replies: Iterable[Reply]) -> list[Reply]:
        """Replies in the order of their sites; sites that are new join."""
        listed = list(replies)
        self.join(r.site for r in listed)
        return sorted(listed, key=lambda r: self.sites.index(r.site))

    def decide(self, replies: Sequence[Reply]) -> Decision:
        """What the strategy says to the numbers of these replies, in their order; no change yet."""
        told = self._told(replies, self._changes(np.empty((len(replies), 0), self.dtype)))
        decision, _ = decide(self.settings.strategy, self.state, told)
        if self.settings.dp is not None and self.private is not None:
            noise = self.private.of_round([r.count for r in replies])
            noise.check_weights(self.settings.strategy, self.round, decision.coef)
        return decision

    def finish_round(
        self,
        replies: Sequence[Reply],
        refused: Sequence[str] = (),
        summed: SecureResult | None = None,
        asked: Iterable[str] = (),
    ) -> dict[str, Any]:
        """End the round with the replies that count; return what happened, ready for JSON.

        `summed` is a secure sum of their changes; without it, each reply has its model. `asked` are
        the sites that were asked, as far as their names were known.
        """
        replies = self.in_order(replies)
        refused = list(refused)
        weights: Mapping[str, float] = {}
        info: Mapping[str, float] = {}
        noise = self._noise_of_round(replies, summed)
        if noise is not None and summed is None:
            replies = self._released(replies, noise)
        if replies:
            weights, info, problem = self._step(replies, summed, noise)
            refused += [problem] if problem else []
            if not problem:
                self.counted += 1
                self.last_counted |= dict.fromkeys(weights, self.round + 1)
        self.refused = refused
        if self.private is not None:
            info = {**info, **self.private.info()}
        report = round_report(self.settings, self.round, replies, weights, info, refused, asked)
        if summed is not None:
            report["secure"] = summed.to_json()
        if noise is not None:
            report["privacy"] = private.round_facts(noise)
            report.get("secure", {}).pop("clipped", None)  # it has no noise
        if self.site_names.changes:
            report["names"], self.site_names.changes = self.site_names.changes, []
        self.round += 1
        self.save([report])
        self.clock.end_round()
        if self.folder is not None:
            self.folder.append_timing([self.clock.line(self.round)])
        return report

    def _noise_of_round(
        self, replies: Sequence[Reply], summed: SecureResult | None
    ) -> Mechanism | None:
        """What makes this round private; None if nothing does, or if nothing is released."""
        if self.private is None or not replies:
            return None
        counts = [r.count for r in replies]
        if not self.private.mechanism.sums:
            return self.private.mechanism
        if summed is None:
            return self.private.of_round(counts)
        held = sum(summed.shares[site] for site in summed.stayed)
        # each entry of two sums differs by up to a step more, as sites round to the nearest one
        rounding = summed.factor * summed.rule.step * self.size**0.5
        return self.private.of_round(counts, held, rounding)

    def _released(self, replies: Sequence[Reply], noise: Mechanism) -> list[Reply]:
        """The replies as anybody but this process may know them; they are counted first."""
        assert self.private is not None
        self.private.count(r.site for r in replies)
        if not noise.losses:
            return [replace(r, loss=None) for r in replies]
        loss = noise.released_losses(self.round, np.array([r.loss for r in replies], np.float64))
        return [replace(r, loss=float(v)) for r, v in zip(replies, loss, strict=True)]

    def _step(
        self, replies: Sequence[Reply], summed: SecureResult | None, noise: Mechanism | None
    ) -> tuple[dict[str, float], Mapping[str, float], str]:
        """Weigh the changes and move the model; return weights by site, info, what went wrong."""
        strategy, base = self.settings.strategy, self.flat(self.model)
        needs = strategy.needs()
        change = np.empty((0 if summed else len(replies), len(base)), self.dtype)  # (m, P)
        if summed is not None:
            decision, delta, weights = summed.decision, summed.move(), np.empty(0)
            by_site = summed.weights()
        else:
            for row, r in zip(change, replies, strict=True):
                np.subtract(self.flat(r.model), base, out=row)
            if noise is not None:
                clip_rows(change, noise.asked.clip)
            changes = self._changes(change)
            names = [r.site for r in replies]
            decision, why = decide(strategy, self.state, self._told(replies, changes), names)
            if why:
                return {}, {}, f"{why}: this round adds nothing"
            if noise is not None:
                noise.check_weights(strategy, self.round, decision.coef)
            weights = client_weights(needs, decision.coef, len(replies))
            by_site = {r.site: float(c) for r, c in zip(replies, weights, strict=True)}
            with np.errstate(over="ignore", invalid="ignore"):
                if (rule := strategy.combine()) is None:
                    delta = changes.weighed(decision.coef.astype(self.dtype))
                else:
                    delta = changes.combined(rule, decision.coef, len(replies))
        kept, kept_change = self._places(replies), change
        if needs.last_step:
            kept, kept_change = np.array([-1]), delta[None]
        with np.errstate(over="ignore", invalid="ignore"):
            delta, moments = self._noised(delta, noise), self.moments
            if self.optimiser is not None:
                delta, moments = self.optimiser.step(moments, delta)
            moved, means = base + delta, self._new_means(change, replies)
            for name in self.local.server_adds:
                mean, old = means[name], self.means[name]
                if self.local.unbiased:
                    mean = old + (mean - old) * self.dtype.type(len(self.sites) / len(replies))
                moved += self.dtype.type(self.local.server_factor(name, self.lr)) * mean
            new = self._named(moved)
        if not all(np.isfinite(part).all() for part in new.values()):
            return {}, {}, NOT_FINITE
        rounds = needs.keep_rounds or int(needs.last_step)
        self.past = self.past.after(kept, kept_change, self.round, rounds)
        self.means, self.state, self.moments = means, decision.state, moments
        weighed = self.settings.batchnorm == "average"
        statistics = mean_statistics(self.model, replies, weights if weighed else None)
        new |= {n: a for n, a in statistics.items() if weighed and a.dtype.kind == "f"}
        self._set(new, statistics)
        return by_site, decision.info, ""

    def _noised(self, delta: NDArray[Any], noise: Mechanism | None) -> NDArray[Any]:
        """(P,) the weighted sum with the noise that makes it private, if any does."""
        if noise is None or not noise.sums:
            return delta
        return secret_noise.add(delta.astype(np.float64), noise.sum_noise).astype(delta.dtype)

    def _changes(self, change: NDArray[Any]) -> Changes:
        """The changes of this round (m, P) and those of past rounds."""
        past = self.past.change
        ends = np.cumsum([self.model[name].size for name in self.weights])
        last = [0, *(int(ends[places[-1]]) for places in layers_of(self.weights))]
        layers = tuple(slice(a, b) for a, b in itertools.pairwise(last))
        return Changes(np.concatenate([change, past]) if len(past) else change, layers)

    def _places(self, replies: Sequence[Reply]) -> IntArray:
        """(m,) The number of each reply's site."""
        return np.array([self.sites.index(r.site) for r in replies], np.int64)

    def _told(self, replies: Sequence[Reply], changes: Changes) -> Replies:
        """This round as the strategy sees it."""
        needs, client = self.settings.strategy.needs(), self._places(replies)
        seen: dict[str, Any] = dict(changes.products(needs, len(client)))
        if needs.loss != "none":
            seen["loss"] = np.array([r.loss for r in replies], np.float64)
            if self.private is not None:
                seen["loss_noise"] = self.private.mechanism.loss_noise
        if needs.changes in ("gram", "layers"):
            seen |= {"past_client": self.past.client, "past_round": self.past.round}
        for name in needs.of_clients:
            seen[name] = np.array([r.numbers[name] for r in replies], np.float64)
        size = np.array([r.count for r in replies], np.int64)
        return make_replies(self.round, self.lr, len(self.sites), client, size, seen)

    def _work_of(self, site: str | None) -> str:
        """What a site does besides plain SGD, with the numbers that are its own."""
        place = self.sites.index(site) if site in self.sites else None
        return json.dumps(self.local.of(place).to_json())

    def _new_means(self, change: NDArray[Any], replies: Sequence[Reply]) -> dict[str, NDArray[Any]]:
        """The means of what sites keep after this round.

        They follow from the changes of the model, or sites sent how they change them.
        """
        new, travels, keep = {}, self.settings.sent_means, self.local.keep
        for name, mean in self.means.items():
            if name in travels:
                before = self.flat(self._named(mean))  # as it was sent
                own = (mean_in(r.model, self.local, name) for r in replies)
                parts = (self.flat(sent) - before for sent in own)
                moved, share = np.sum(list(parts), axis=0), 1.0
            else:
                moved, share = change.sum(0), keep[name].end
            new[name] = mean + self.dtype.type(share / len(self.sites)) * moved
        return new

    def _set(self, weights: Arrays, statistics: Arrays) -> None:
        """Take a new model, and update the deployed model with it."""
        share = average.new_model_share(self.settings.average, self.round)
        for name, new in weights.items():
            averaged = self.deployed[name].astype(self.dtype)
            averaged += share * (new - averaged)
            self.deployed[name] = averaged.astype(new.dtype)
        self.model |= weights | statistics
        self.deployed |= {n: a for n, a in statistics.items() if n not in weights}

    def _named(self, flat: NDArray[Any]) -> Arrays:
        """(P,) weights as the named arrays of the model."""
        ends = np.cumsum([self.model[name].size for name in self.weights])
        parts = zip(self.weights, np.split(flat, ends[:-1]), strict=True)
        return {n: a.reshape(self.model[n].shape).astype(self.model[n].dtype) for n, a in parts}

    def save(self, lines: Sequence[Mapping[str, Any]] = ()) -> None:
        """Save all in one checksummed file; the one before stays until this one is complete."""
        if self.folder is None:
            return
        self.folder.append_lines(lines)
        self.write(self.folder)

    def write_models(self) -> None:
        """Write both models as files of their own, and the card that says what they are."""
        if self.folder is not None:
            for name, model in (("last", self.model), ("deployed", self.deployed)):
                self.folder.write(f"models/{name}.safetensors", safetensors_of(model))
            write_card(self.folder)

    def close(self) -> None:
        """Release the folder for other processes."""
        if self.folder is not None:
            self.folder.close()
