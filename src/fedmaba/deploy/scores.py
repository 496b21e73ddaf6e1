"""How a model serves the sites by what they tell: accuracy or error, also of their own model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmaba.deploy import validation
from fedmaba.results.metrics import OF_TASK, PERCENT, every

ERROR_UNIT = OF_TASK["regress"].unit(False)  # as a site reports it


def score_spread(accuracy: Iterable[float | None], error: Iterable[float | None]) -> dict[str, Any]:
    """How accuracy, in percent, or else error spreads over the sites; {} where none told any.

    The worst sites are those of the lowest accuracy or the highest error.
    """
    right, wrong = ([v for v in values if v is not None] for values in (accuracy, error))
    known = np.array(right or wrong, np.float64)
    if not len(known):
        return {}
    unit, name = (PERCENT, "accuracy") if right else (ERROR_UNIT, "error")
    sizes = np.ones(len(known), np.int64)
    (found,) = every(known[None], np.zeros((1, len(known))), sizes, 0.05, unit)
    spread = {key: float(getattr(found, key)) for key in ("variance", "worst", "best")}
    return {"variance": spread["variance"], name: float(found.accuracy), **spread}


@dataclass
class SiteScores:
    """What sites have told of the model that is handed out, by name."""

    accuracy: dict[str, float] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    personal: dict[str, float] = field(default_factory=dict)  # of the site's own model

    def add(self, site: str, told: validation.RawReply) -> None:
        """Take what a site tells; Refused if that cannot be."""
        if told.error is not None:
            raise validation.Refused(validation.printable(told.error))
        right, wrong = validation.read_score(told.numbers)
        own = validation.read_personal_score(told.numbers)
        for known, value in ((self.accuracy, right), (self.error, wrong), (self.personal, own)):
            if value is not None:
                known[site] = value

    def report(self) -> dict[str, Any]:
        """The scores of each site, and how they spread."""
        out: dict[str, Any] = {"deployed": dict(sorted((self.accuracy or self.error).items()))}
        out |= score_spread(self.accuracy.values(), self.error.values())
        return out | ({"personal": dict(sorted(self.personal.items()))} if self.personal else {})
