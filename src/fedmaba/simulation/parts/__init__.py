"""The parts that a round can have, one file each, in the order in which it meets them.

What a later part reads an earlier one wrote: who takes part is decided, clients train, attackers
change what they send, privacy clips it, layers that stay at home are taken out, and what clients
keep is made of the rest.
A part that replaces a server's step comes before those that add to it. What splits the training of
a client in two comes last, because it needs all that decides how the client trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedmaba.simulation.memory import Column
from fedmaba.simulation.part import Part, Setting
from fedmaba.simulation.parts.attack import UpdateAttack
from fedmaba.simulation.parts.changes import ChangeProducts
from fedmaba.simulation.parts.combine import CombinedChanges
from fedmaba.simulation.parts.full_gradient import FullGradient
from fedmaba.simulation.parts.groups import GroupCounts
from fedmaba.simulation.parts.guided import Guided
from fedmaba.simulation.parts.kept_vectors import KeptVectors
from fedmaba.simulation.parts.kinds import ClientKinds
from fedmaba.simulation.parts.losses import Losses
from fedmaba.simulation.parts.objective import LocalObjective
from fedmaba.simulation.parts.own_layers import OwnLayers
from fedmaba.simulation.parts.personal import PersonalModels
from fedmaba.simulation.parts.phases import Phases
from fedmaba.simulation.parts.privacy import PrivateRounds
from fedmaba.simulation.parts.prox import Prox
from fedmaba.simulation.parts.second import SecondModels
from fedmaba.simulation.parts.step_search import StepSearch
from fedmaba.simulation.parts.steps import StepCounts
from fedmaba.simulation.parts.turnout import TurnoutPart

PARTS: tuple[type[Part], ...] = (
    TurnoutPart,
    CombinedChanges,
    ClientKinds,
    Losses,
    GroupCounts,
    ChangeProducts,
    StepCounts,
    SecondModels,
    FullGradient,
    PersonalModels,
    UpdateAttack,
    PrivateRounds,
    OwnLayers,
    KeptVectors,
    LocalObjective,
    Prox,
    Guided,
    StepSearch,
    Phases,
)


def parts_of(setting: Setting) -> tuple[Part, ...]:
    """The parts of a batch, or of a site."""
    return tuple(part for kind in PARTS if (part := kind.of(setting)) is not None)


def columns_of(parts: Sequence[Part], runs: int) -> list[Mapping[str, Column]]:
    """What the clients of each run keep."""
    return [
        {name: column for part in parts for name, column in part.columns(r).items()}
        for r in range(runs)
    ]


def carried_by(parts: Sequence[Part], runs: int) -> list[dict[str, NDArray[Any]]]:
    """What each run hands from round to round besides models, states and what clients keep."""
    return [{k: v for part in parts for k, v in part.carries(r).items()} for r in range(runs)]
