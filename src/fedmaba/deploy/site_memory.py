"""What a site remembers on its own disk, whatever the server says or forgets. No torch.

All of it is empty files with a name, in a folder of the site: making one either succeeds or shows
that it is there, also if two messages come at once.

secure-answers  the answers that it gives once in each attempt of a secure sum
secure-sums     the sums that it helped to open, by round, weights and who stayed
rounds-taken    the rounds that it took part in
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmaba.errors import InputError
from fedmaba.results import files

ANSWERS, SUMS, ROUNDS = "secure-answers", "secure-sums", "rounds-taken"
OLD_MARK_SECONDS = 30 * 24 * 3600.0
MARK_REMEDY = "this site needs a folder `keep` that it can write in"


@dataclass(frozen=True)
class SiteMemory:
    """The marks of a site; without a folder it remembers nothing."""

    folder: Path | None = None

    def answer_once(self, attempt: str, place: int, stage: str) -> None:
        """Leave a mark for this answer; InputError if it is there already."""
        if self.folder is None:
            return
        name = _digest(attempt, place, stage)
        if not files.leave_mark(self.folder / ANSWERS, name, MARK_REMEDY):
            raise InputError(
                f"this site has answered stage {stage!r} of this secure sum already: it answers "
                "each once"
            )

    def check_sum(self, attempt: str, weights: Sequence[object]) -> None:
        """InputError if this site helped to open a sum of this round with other weights.

        `weights` says who holds which share. Two sums of one round differ by a change, or by a few.
        """
        mine = _digest(*weights)
        if self.folder is not None:
            self._refuse([m for m in self._sums(attempt) if m.split("-")[1] != mine])

    def open_sum(self, attempt: str, weights: Sequence[object], stayed: Sequence[int]) -> None:
        """Remember that this site helps to open this sum; InputError after another of its round."""
        if self.folder is None:
            return
        name = f"{_digest(_round(attempt))}-{_digest(*weights)}-{_digest(*stayed)}"
        new = files.leave_mark(self.folder / SUMS, name, MARK_REMEDY)
        others = [mark for mark in self._sums(attempt) if mark != name]
        if others and new:  # a sum that this site does not open counts for nothing
            files.remove([self.folder / SUMS / name])
        self._refuse(others)

    def take_round(self, site: str, most: int) -> None:
        """Count one more round of this site; InputError beyond `most` of them."""
        if self.folder is None:
            raise InputError(
                f"most_rounds={most}: this site counts its rounds on its disk: give keep, a folder"
            )
        whose = _digest(site)
        taken = len(self._marks(ROUNDS, whose))
        while taken < most:
            if files.leave_mark(self.folder / ROUNDS, f"{whose}-{taken + 1}", MARK_REMEDY):
                return
            taken += 1
        raise InputError(
            f"this site has taken part in {taken} rounds, and most_rounds={most}: raise it only "
            "if whoever is responsible for its data agrees"
        )

    def forget_old_marks(self) -> None:
        """Remove marks of secure sums that are long over; rounds stay counted."""
        for kind in (ANSWERS, SUMS):
            if self.folder is not None:
                files.remove_old_marks(self.folder / kind, OLD_MARK_SECONDS)

    def _sums(self, attempt: str) -> list[str]:
        return self._marks(SUMS, _digest(_round(attempt)))

    def _marks(self, kind: str, whose: str) -> list[str]:
        """The marks of a kind that begin so."""
        assert self.folder is not None
        try:
            names = [mark.name for mark in (self.folder / kind).iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if name.startswith(f"{whose}-"))

    def _refuse(self, others: Sequence[str]) -> None:
        if others:
            assert self.folder is not None
            raise InputError(
                "this site has helped to open a sum of this round with other weights, or of other "
                "sites, and the difference of two sums shows changes: to accept that, remove "
                f"{self.folder / SUMS / others[0]}"
            )


def _round(attempt: str) -> str:
    """The round of an attempt: its last word is random."""
    return attempt.rsplit(" ", 1)[0]


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
