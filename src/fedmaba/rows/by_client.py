"""A model of which each client holds a part: what it tells a simulation. No kind of layer is known.

Clients are of some kinds. A client trains and uses the server's model without what its kind does
not hold. The server sums up what clients send, or lets the model join some weights by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray
from torch import Tensor, nn

from fedmaba.errors import InputError

BY_CLIENT = "fedmaba_by_client"  # A module with this attribute is such a model, or part of one.


class ByClient(Protocol):
    """Which kinds of clients there are, what each holds, and how the server joins it."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds, in words."""

    @property
    def joins(self) -> bool:
        """Whether the server joins some weights by name, in place of their weighted sum."""

    def misfit(self, sent: Sequence[str]) -> str:
        """Why weights cannot be joined if these are sent; empty where they can."""

    def deal(self, seed: int, n: int) -> NDArray[Any]:
        """(n,) the kind of each client."""

    def cut(self, weights: Mapping[str, Tensor], kind: NDArray[Any]) -> None:
        """Set to 0, in place, what rows of weights (n, *shape) of these kinds (n,) do not hold."""

    def join(
        self, server: Mapping[str, Tensor], sent: Mapping[str, Tensor], share: NDArray[Any]
    ) -> dict[str, Tensor]:
        """The server's new weights, from its own and from (m, *shape) with shares (m,).

        What the shares lack of 1 is the server's own.
        """


def by_client(model: nn.Module) -> ByClient | None:
    """What a model says of its clients; None where all hold all of it."""
    found = [getattr(m, BY_CLIENT) for m in model.modules() if hasattr(m, BY_CLIENT)]
    if len(set(found)) > 1:
        raise InputError("the model has adapters of several kinds: call add_lora once")
    return found[0] if found else None


def refuse_at_sites(model: nn.Module) -> None:
    """Refuse a model whose parts only a simulation deals out."""
    if (told := by_client(model)) is not None:
        raise InputError(
            f"clients of the model hold parts of it ({', '.join(told.kinds)}), which only a "
            "simulation deals out: give all sites one rank, without average"
        )
