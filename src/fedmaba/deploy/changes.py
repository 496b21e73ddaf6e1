"""Changes of models at the server of a real federation: what strategies ask of them. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.strategies.base import Combine, IntArray, Needs, still_kept, votes_and_mix
from fedmaba.strategies.combine import combined


@dataclass(frozen=True)
class Changes:
    """Changes (k, P), one row each, of a model whose layers lie in these parts of a row."""

    rows: NDArray[Any]
    layers: tuple[slice, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def by_layer(self) -> Iterator[NDArray[Any]]:
        """The part of each layer."""
        return (self.rows[:, part] for part in self.layers)

    def products(self, needs: Needs, m: int) -> dict[str, NDArray[Any]]:
        """The norms of the first m rows, or the inner products of all, as a strategy asks."""
        if needs.changes == "norms":
            own = self.rows[:m]
            return {"norms": np.einsum("ij,ij->i", own, own, dtype=np.float64)}
        if needs.changes == "gram":
            return {"gram": (self.rows @ self.rows.T).astype(np.float64)}
        if needs.changes == "layers":
            grams = [part @ part.T for part in self.by_layer()]
            return {"layer_grams": np.stack(grams).astype(np.float64)}
        return {}

    def weighed(self, coef: NDArray[Any]) -> NDArray[Any]:  # (P,)
        """Their sum with these coefficients, which may differ by layer (L, .)."""
        if coef.ndim == 1:
            return np.asarray(coef @ self.rows[: len(coef)])
        parts = zip(coef, self.by_layer(), strict=True)
        return np.concatenate([row @ part[: len(row)] for row, part in parts])

    def combined(self, rule: Combine, coef: NDArray[Any], m: int) -> NDArray[Any]:  # (P,)
        """What a rule makes of the first m rows, and the weighted others."""
        now, kind = self.rows[:m], self.rows.dtype
        votes, mix = votes_and_mix(coef[..., :m])
        mixed = now if mix is None else mix.astype(kind) @ now
        step = combined(rule, mixed, votes.astype(kind))
        rest = coef[..., m:].astype(kind)
        return np.asarray(step + rest @ self.rows[m:] if rest.size else step)


@dataclass(frozen=True)
class PastChanges:
    """The newest change of some sites, of rounds that the strategy still sees."""

    change: NDArray[Any]  # (h, P)
    client: IntArray  # (h,)
    round: IntArray  # (h,)

    @classmethod
    def none(cls, width: int, dtype: np.dtype[Any]) -> PastChanges:
        """Those before the first round."""
        nobody = np.zeros(0, np.int64)
        return cls(np.zeros((0, width), dtype), nobody, nobody)

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]]) -> PastChanges:
        """Those of a checkpoint."""
        return cls(*(arrays[name].copy() for name in PAST))

    def after(self, client: IntArray, change: NDArray[Any], round: int, rounds: int) -> PastChanges:
        """Those after a round, where the strategy sees so many rounds."""
        if not rounds:
            return self
        old = still_kept((self.client, self.round), client, round, rounds)
        now = np.full(len(client), round, np.int64)
        return PastChanges(
            np.concatenate([self.change[old], change]),
            np.concatenate([self.client[old], client]),
            np.concatenate([self.round[old], now]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Them by name in a checkpoint."""
        return dict(zip(PAST, (self.change, self.client, self.round), strict=True))

    def misfit(self, arrays: dict[str, NDArray[Any]], n_sites: int) -> str:
        """Which array of a checkpoint cannot be of these; empty if all can."""
        many = arrays["kept_client"].size
        whole = ((many,), np.dtype(np.int64))
        forms = (((many, self.change.shape[1]), self.change.dtype), whole, whole)
        for name, form in zip(PAST, forms, strict=True):
            if (arrays[name].shape, arrays[name].dtype) != form:
                return f"array {name}"
        if many and not -1 <= arrays["kept_client"].min() <= arrays["kept_client"].max() < n_sites:
            return "array kept_client"
        return ""


PAST = ("kept", "kept_client", "kept_round")  # arrays of a checkpoint
