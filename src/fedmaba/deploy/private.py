"""Privacy of a real federation: the noise of each round, and the count of what is spent. No torch.

The mechanism is the simulator's. Two things differ. The noise is secret. And nobody knows before a
round who will answer, so the largest weight is that of the sites that did, and the busiest site is
found by counting. The noise is made for a site that takes part in every round. Each site is counted
in the state folder before anything about it is released; a site that has been counted as often as
there are rounds is not asked any more. So the promise holds, whatever is repeated or resumed. Three
files of the folder count, and none may say less than another: privacy.json, the checkpoint, and
the lines of rounds.jsonl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.privacy import accounting
from fedmaba.privacy.mechanism import Mechanism, cost_shares, largest_share, largest_weight
from fedmaba.results import files, run_folder, schema
from fedmaba.strategies.base import LOSSES_INFO, PRIVACY_INFO, Strategy

SERVER_SEES = {
    "plain": "the server sees each change and each loss before it adds the noise",
    "secure": "the server sees the sum of the changes before it adds the noise; sites add noise to "
    "their losses",
    "losses": "sites add noise to their losses; the sum of the changes has none",
}
ROUNDS_FILE = "rounds.jsonl"  # of the state folder
RESTORE_OR_OTHER = "restore it, or choose another state folder"


class PrivacySpent(Exception):
    """Too few sites may still be asked, in one line."""


@dataclass
class PrivateRounds:
    """What makes a federation private, and how often each site was counted."""

    strategy: Strategy
    mechanism: Mechanism  #            of a round in which the largest weight is 1
    rounds: int  #                     that the noise is made for
    sees: str  #                       what the server sees, a key of SERVER_SEES
    taken: dict[str, int] = field(default_factory=dict)
    folder: run_folder.Folder | None = None

    @property
    def at_sites(self) -> bool:
        """Whether sites add noise to their losses themselves."""
        return self.sees != "plain"

    def open(self, folder: run_folder.Folder, counted: Mapping[str, int] | None) -> None:
        """Find what was counted; `counted` is what the checkpoint says, None without one.

        A file that is gone, or comes from an older copy, says less than the others: then nobody
        knows what else is missing, and nothing goes on.
        """
        found, file = run_folder.load_ledger(folder.path), folder.path / run_folder.LEDGER_FILE
        if found and tuple(found["multipliers"]) != self.mechanism.releases:
            raise InputError(
                f"{file} counts rounds with the noise {found['multipliers']}, but this run has "
                f"{list(self.mechanism.releases)}: use the settings and the version of "
                "dp-accounting that it was begun with, or choose another state folder"
            )
        taken = found.get("taken", {})
        others = {
            "the checkpoint": counted or {},
            ROUNDS_FILE: counted_in_lines(folder.path, self.at_sites),
        }
        for name, told in others.items():
            for site, many in told.items():
                if taken.get(site, 0) < many:
                    raise InputError(
                        f"{file} counts less than {name} beside it, {taken.get(site, 0)} of "
                        f"{many} rounds of {site}: {RESTORE_OR_OTHER}"
                    )
        self.taken, self.folder = dict(taken), folder

    def may_ask(self, site: str) -> bool:
        """Whether the promise leaves room for one more round of this site."""
        return self.taken.get(site, 0) < self.rounds

    def count(self, sites: Iterable[str]) -> None:
        """Count one more round of these sites, on the disk, before anything is released."""
        assert self.folder is not None
        self.taken |= {site: self.taken.get(site, 0) + 1 for site in sites}
        self.folder.write_json(run_folder.LEDGER_FILE, self._told())

    def end(self, done: int) -> None:
        """Record that the run ends after round `done`, because too few sites may be asked."""
        assert self.folder is not None
        self.folder.write_json(run_folder.LEDGER_FILE, self._told() | {"ended": done})

    def _told(self) -> dict[str, Any]:
        """What privacy.json says while the run goes on."""
        return {"multipliers": list(self.mechanism.releases), "taken": self.taken}

    def info(self) -> dict[str, float]:
        """What is spent by the site that it costs most, as a line of rounds.jsonl has it."""
        found, delta = self.mechanism, self.mechanism.asked.delta
        busiest = max(self.taken.values(), default=0)
        spent = accounting.spent_epsilon(found.releases, busiest, delta)
        names = PRIVACY_INFO if found.sums else LOSSES_INFO
        return dict(zip(names, (spent, delta), strict=True))

    def of_round(
        self, counts: Sequence[int], held: float = 1.0, rounding: float = 0.0
    ) -> Mechanism:
        """The mechanism of a round of sites with so many examples.

        `held` is the share of the weight of those that stayed in a secure sum, which is scaled up
        by what the others held. `rounding` is how far the sites' rounding may move it.
        """
        size = np.array(counts, np.int64)
        weight = largest_weight(self.strategy, len(size), largest_share(size, len(size)))
        return replace(self.mechanism, weight=weight / held, rounding=rounding)

    def site_rule(self) -> dict[str, float]:
        """What sites are told to do with their losses in a secure round; {} if nothing."""
        found = self.mechanism
        return {"loss": found.asked.loss, "loss_noise": found.loss_noise} if self.at_sites else {}

    def facts(self) -> dict[str, float | str]:
        """What the record says; figures of the sum differ by round, and are in its lines."""
        by_round = ("largest weight", "sensitivity", "noise on the sum")
        told = {k: v for k, v in self.mechanism.facts().items() if k not in by_round}
        if not self.mechanism.sums:
            del told["clip"]
        return told | {"trusted": SERVER_SEES[self.sees]}


def counted_in_lines(path: Path, asked: bool) -> dict[str, int]:
    """How often the lines of rounds.jsonl count each site, also lines that no checkpoint has.

    `asked`: a site counts once it is asked, and not only where its reply was in the round.
    """
    file, found = path / ROUNDS_FILE, Counter[str]()
    with run_folder.reading(file, RESTORE_OR_OTHER), suppress(FileNotFoundError):
        for _, line in files.json_lines(file):
            told = schema.check(schema.StateLine, line)
            if {PRIVACY_INFO[0], LOSSES_INFO[0]} & told.get("info", {}).keys():
                sites = told.get("sites") or {}
                found.update({*sites, *((asked and told.get("asked")) or ())})
    return dict(found)


def private_rounds(settings: FederationSettings) -> PrivateRounds | None:
    """What makes a federation with these settings private; None if nothing does."""
    asked = settings.dp or settings.losses
    if asked is None:
        return None
    if settings.rounds is None:
        raise InputError("dp: the noise is made for a number of rounds: give num_rounds")
    losses, sums = settings.strategy.needs().loss != "none", settings.dp is not None
    parts = cost_shares(asked, losses, sums)
    noise = accounting.noise_multiplier(asked.epsilon, asked.delta, parts, settings.rounds)
    taken = np.arange(1, settings.rounds + 1)
    found = Mechanism(asked, settings.seed, 1.0, losses, noise, taken, secret=True, sums=sums)
    sees = "losses" if not sums else "plain" if settings.secure is None else "secure"
    return PrivateRounds(settings.strategy, found, settings.rounds, sees)


def round_facts(found: Mechanism) -> dict[str, Any]:
    """What a line of rounds.jsonl says of the noise of its round."""
    return {
        "largest weight": found.weight,
        "noise on the sum": found.sum_noise,
        "noise on losses": found.loss_noise,
    }
