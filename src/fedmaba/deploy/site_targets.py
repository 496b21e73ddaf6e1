"""What a site's model is to predict, by the federation's list of classes. No torch.

A class has the same number at every site: each site looks up the name of the class, which is a word
of a CSV file or a number of an array, in the federation's list of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.dataset import Dataset
from fedmaba.data.targets import TargetKind
from fedmaba.deploy.validation import printable, some_names
from fedmaba.errors import InputError


@dataclass(frozen=True)
class SiteTargets:
    """One site's targets, and the classes of the whole federation."""

    data: Dataset
    classes: int | Sequence[str] | None = None  # None: they are 0 to C-1

    @cached_property
    def agreed(self) -> tuple[str, ...]:
        """The names of all classes of the federation, in one order for all sites."""
        given, own = self.classes, self.data.classes
        if given is None:
            if own != tuple(map(str, range(len(own)))):
                raise InputError(
                    f"this site's labels are {some_names(own)}, and nothing says how the others "
                    "number them: give client_app(classes=[...]), the same list at all sites"
                )
            return own
        if isinstance(given, int):
            return tuple(map(str, range(given)))
        if isinstance(given, str) or len(set(given)) < len(given) or not given:
            raise InputError(f"classes={printable(given)!r}: give a list of names, each once")
        return tuple(map(str, given))

    @cached_property
    def target(self) -> TargetKind:
        """What the model is to predict: the same at all sites."""
        found = self.data.target
        if found.task == "classify":
            return replace(found, outputs=len(self.agreed))
        if found.task != "sequence":
            return found
        if self.classes is None:
            raise InputError(
                f"the task is sequence, and this site's targets reach {found.outputs - 1}: give "
                "client_app(classes=...), the number of classes of all sites together"
            )
        many = self.classes if isinstance(self.classes, int) else len(self.agreed)
        if int(self.data.y.max()) >= many:
            raise InputError(
                f"target {int(self.data.y.max())} of this site, but the federation has {many} "
                "classes, from 0: correct the file, or the number at all sites"
            )
        return replace(found, outputs=many)

    def labels(self) -> NDArray[Any]:
        """(n,) this site's labels by the federation's numbers, or its targets of another kind."""
        if self.data.task != "classify":
            return self.data.y
        y, own, agreed = self.data.y, self.data.classes, self.agreed
        used = np.unique(y)
        wrong = [str(k) for k in used if not 0 <= k < len(own)]
        place = {name: i for i, name in enumerate(agreed)}
        wrong = wrong or [own[k] for k in used if own[k] not in place]
        if wrong:
            raise InputError(
                f"label {some_names(wrong)} of this site is not among the federation's classes, "
                f"{some_names(agreed, 12)}: correct the file, or the list at all sites"
            )
        number = np.array([place.get(name, -1) for name in own], np.int64)
        numbered: NDArray[np.int64] = number[y]
        return numbered
