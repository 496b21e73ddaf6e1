"""The settings of a real federation, checked before anything else is done. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from typing import Any

from fedmaba.deploy.secure import SecureSum, is_count
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.privacy.mechanism import Privacy, refusal
from fedmaba.simulation.augmentation import parse_augment
from fedmaba.simulation.optimiser import Optimiser, parse_schedule, round_schedule
from fedmaba.strategies import deployed as average
from fedmaba.strategies import parse, records
from fedmaba.strategies.base import Strategy
from fedmaba.strategies.contract import check_strategy

OTHER = "choose another state folder"
# as in a state of version 0.1, which lacks them
NEWER_TERMS: dict[str, Any] = {"batchnorm": None, "schedule": None, "rounds": None, "secure": None}
NEWER_TERMS |= {"dp": None, "losses": None}
BATCHNORM = (None, "refuse", "group", "local", "average", "frozen")


@dataclass(frozen=True)
class FederationSettings:
    """Settings that stay the same from the first round to the last."""

    strategy: Strategy
    seed: int = 0
    lr: float = 0.1
    lr_decay: float = 0.999
    deploy: str | None = None  #      which model is handed out; None: the strategy's own
    batchnorm: str | None = None  #   average: statistics are weighed as the model is; local: sites
    #                                 keep them; None: they are averaged by size
    schedule: str | None = None  #    of the step size over rounds, instead of lr_decay
    rounds: int | None = None  #      how many there will be; None: nobody said
    secure: SecureSum | None = None  # the server sees sums of changes only; None: each change
    dp: Privacy | None = None  #      what sites are promised about the sum and the losses
    losses: Privacy | None = None  #  what they are promised about the losses alone

    def __post_init__(self) -> None:
        if self.batchnorm not in BATCHNORM:
            known = "group, local, average or frozen, as client_app has it"
            raise InputError(f"batchnorm={self.batchnorm!r}: say {known}")
        if not 0 < self.lr < float("inf"):
            raise InputError(f"lr={self.lr}: the local step size must be above 0")
        if not 0 < self.lr_decay <= 1:
            raise InputError(f"lr_decay={self.lr_decay}: it must lie above 0 and at most at 1")
        average.parse_rule(self.average)
        round_schedule(self.schedule, self.lr_decay)
        if average.needs_validation(self.average):
            raise InputError(
                f"deploy={self.average!r} picks a round on validation data, which a server on "
                "Flower does not have: say last, average, poly:K or ema:B"
            )
        check_strategy(self.strategy)
        for record in (self.strategy.needs(), self.strategy.local()):
            if why := records.simulated_only(record):
                raise InputError(f"{self.strategy.label()} {why}")
        kept = self.strategy.local().own_layers
        if self.sent_means and (kept or self.batchnorm == "local"):
            what = f"own_layers={kept}" if kept else "batchnorm='local'"
            other = "simulate it" if kept else "choose group, average or frozen"
            raise InputError(
                f"{self.strategy.label()} needs the mean of a vector over all sites, and with "
                f"{what} a part of it never leaves them: {other}"
            )
        needs = self.strategy.needs()
        if self.secure is not None and (self.strategy.local().means or needs.of_clients):
            raise InputError(
                f"secure: {self.strategy.label()} asks sites for more than a loss and a change: "
                "choose a strategy such as fedavg or fedmaba, or leave out secure"
            )
        if self.secure is not None and self.strategy.combine() is not None:
            raise InputError(
                f"secure: {self.strategy.label()} combines single changes by a rule, and secure "
                "sums hide them: choose a strategy that sums them up, or leave out secure"
            )
        if self.secure is not None and self.strategy.needs().changes != "none":
            raise InputError(
                f"secure: {self.strategy.label()} weighs each site's change by its norm or by its "
                "inner products with others, and secure sums hide single changes: choose a "
                "strategy that weighs by losses or counts, as fedmaba, afl, term or fedavg"
            )
        self._check_privacy()

    def _check_privacy(self) -> None:
        """Refuse promises that cannot be kept; with dp, its clip is that of secure sums."""
        if self.dp is not None:
            if why := refusal(self.strategy):
                raise InputError(f"dp: {self.strategy.label()} is refused: {why}")
            if self.losses is not None:
                raise InputError("losses='noised': dp adds noise to the losses already: leave it")
            if self.secure is not None:
                if self.secure.clip not in (SecureSum.clip, self.dp.clip):
                    raise InputError(
                        f"dp has clip={self.dp.clip:g} and secure clip={self.secure.clip:g}: a "
                        "change is clipped once: give it to dp alone"
                    )
                object.__setattr__(self, "secure", replace(self.secure, clip=self.dp.clip))
        if self.losses is not None and self.secure is None:
            raise InputError(
                "losses='noised': without secure sums the server sees each site's model, which "
                "tells more than its loss: give secure=SecureSum() too, or dp"
            )
        if self.losses is not None and self.strategy.needs().loss == "none":
            raise InputError(
                f"losses='noised': {self.strategy.label()} asks for no losses: leave it out"
            )

    @property
    def sent_means(self) -> tuple[str, ...]:
        """The means of kept vectors that travel: sites receive them, and send their changes."""
        return self.strategy.local().sent_means

    @property
    def named_for(self) -> str:
        """What a site's name decides, so that no site without one is asked; empty if nothing."""
        if self.dp is not None or self.losses is not None:
            return "under which privacy is counted"
        return "which says which prox is its own" if self.strategy.local().by_client else ""

    @property
    def average(self) -> str:
        return self.deploy or self.strategy.deploy

    def lr_in_round(self, t: int) -> float:
        """The local step size of round t, from 0."""
        schedule = round_schedule(self.schedule, self.lr_decay)
        return float(self.lr * schedule.factor(t, self.rounds or t + 1))

    def to_json(self) -> dict[str, Any]:
        """The settings that a saved state must have been made with."""
        planned = round_schedule(self.schedule, self.lr_decay).shape == "cosine"
        return {
            "strategy": self.strategy.label(),
            "seed": self.seed,
            "lr": self.lr,
            "lr_decay": self.lr_decay,
            "deploy": self.average,
            "batchnorm": self.batchnorm,
            "schedule": self.schedule,
            "rounds": self.rounds if planned or self.dp or self.losses else None,
            "secure": None if self.secure is None else self.secure.to_json(),
            "dp": None if self.dp is None else asdict(self.dp),
            "losses": None if self.losses is None else asdict(self.losses),
        }


@dataclass(frozen=True)
class Participation:
    """How many sites take part in a round, and how long the server waits for them."""

    fraction_train: float
    min_train_nodes: int
    min_available_nodes: int
    min_replies: float  #             a count, or a share of those asked
    grace: float  #                   seconds

    def __post_init__(self) -> None:
        check_numbers(0, fraction_train=self.fraction_train, grace=self.grace)
        check_numbers(1, whole=True, min_train_nodes=self.min_train_nodes)
        check_numbers(1, whole=True, min_available_nodes=self.min_available_nodes)
        if not 0 < self.fraction_train <= 1:
            raise InputError(
                f"fraction_train={self.fraction_train}: it must lie above 0, at most at 1"
            )
        count = is_count(self.min_replies)
        check_numbers(int(count), min_replies=self.min_replies)
        if not count and not 0 < self.min_replies <= 1:
            raise InputError(f"min_replies={self.min_replies}: give a count, or a share up to 1.0")

    def quorum(self, asked: int) -> int:
        """How many replies are enough: then the other sites get only a little more time."""
        if is_count(self.min_replies):
            return int(self.min_replies)
        return math.ceil(self.min_replies * asked - 1e-9)


def one_strategy(strategy: Strategy | str) -> Strategy:
    """The strategy that was given, or the one that a text names; a grid of several is refused."""
    if not isinstance(strategy, str):
        return strategy
    listed = parse(strategy)
    if len(listed) > 1:
        raise InputError(f"{strategy!r} is a grid of {len(listed)}: a federation runs one")
    return listed[0]


def read_dp(value: Privacy | Mapping[str, Any] | str | None) -> Privacy | None:
    """What is promised, as `--dp` of a simulation has it; None and "": nothing."""
    if not value:
        return None
    told = asdict(value) if isinstance(value, Privacy) else value
    told = dict(told) if isinstance(told, Mapping) else told
    found = config.build({"strategies": ["fedavg"], "dp": told}).dp
    return None if found is None else Privacy.from_settings(found)


def read_losses(value: str) -> Privacy | None:
    """What is promised about the losses alone: "seen", "noised" or "noised:epsilon=2,loss=5"."""
    kind, colon, more = str(value).partition(":")
    if kind not in ("", "seen", "noised") or (kind != "noised" and colon):
        raise InputError(
            f"losses={value!r}: say seen, noised, or noised:epsilon=8,delta=1e-5,loss=3"
        )
    if kind != "noised":
        return None
    try:
        told = config.pairs_of_text(more) if colon else {}
    except ValueError as error:
        raise InputError(f"losses={value!r}: {error}") from error
    assert isinstance(told, dict)
    if wrong := sorted(set(told) - {"epsilon", "delta", "loss"}):
        raise InputError(f"losses={value!r}: {wrong[0]!r} is none of epsilon, delta and loss")
    found = read_dp({"epsilon": 8.0, **told})
    if found is None:
        raise InputError(f"losses={value!r}: without a limit there is no noise: say losses='seen'")
    return replace(found, loss_share=1.0)


def batchnorm_choice(batchnorm: str) -> Any:
    """What becomes of BatchNorm layers, or InputError."""
    return FederationSettings(one_strategy("fedavg"), batchnorm=batchnorm).batchnorm


def check_numbers(low: int, whole: bool = False, **values: object) -> None:
    """Refuse what is no number of at least `low`: a run configuration may also hold words."""
    kind, words = (Integral, "a whole number") if whole else (Real, "a number")
    for name, value in values.items():
        number = isinstance(value, kind) and not isinstance(value, bool)
        if not number or not low <= float(value) < math.inf:  # type: ignore[arg-type]
            raise InputError(f"{name}={value!r}: it must be {words} from {low} on")


def check_training(config: Mapping[str, Any]) -> None:
    """Refuse settings of local training that no site could follow, before any is asked."""
    known = {key: config[key] for key in ("epochs", "minibatch") if key in config}
    check_numbers(1, whole=True, **known)
    Optimiser.from_task(config)
    parse_schedule(str(config.get("step-schedule", "constant")), "step-schedule")
    if "augment" in config:
        parse_augment(str(config["augment"]))


def require_same_terms(what: str, before: Mapping[str, Any], settings: FederationSettings) -> None:
    """Refuse to go on with other settings than those that a state was made with."""
    mine = settings.to_json()
    before = mine | NEWER_TERMS | dict(before)
    if before["secure"] is not None:  # earlier versions wrote no share where every one was allowed
        before["secure"] = {"most_share": 1.0, **before["secure"]}
    for key, value in mine.items():
        if before[key] != value:
            raise InputError(
                f"{what} was begun with {key}={before[key]}, but this run has {value}: {OTHER}"
            )
