"""What clients do beyond plain SGD, as data. A strategy says it; the engine knows no algorithm."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from fedmaba.errors import InputError
from fedmaba.strategies import records
from fedmaba.strategies.records import known_fields_only

PERSONAL = "personal"  # among the vectors that clients keep: the models of their own
SECOND = "second"  # and the part of those that is mixed with the model that is sent
Kind = Literal["ahead", "towards", "mixed", "between"]
SERVER = "server"  # among models that join training: the server's, which it starts from


@known_fields_only
@dataclass(frozen=True)
class Objective:
    """What a client minimises in place of its usual loss, by name.

    The name is a built-in one or `package.module:function`, for an objective of your own. Losses
    that clients report stay the usual ones.
    """

    name: str
    numbers: Mapping[str, float] = field(default_factory=dict)  # which the function gets by name
    sees: tuple[str, ...] = ()  # models whose outputs it gets too: "server", or kept ones

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise records.wrong_value("Objective(name", self.name, "give a name, as 'mine:loss'")
        given = records.as_dict("Objective(numbers", self.numbers)
        numbers = {n: records.as_number(f"Objective(numbers[{n!r}]", v) for n, v in given.items()}
        object.__setattr__(self, "numbers", numbers)
        object.__setattr__(self, "sees", records.as_words("Objective(sees", self.sees, SERVER))

    @property
    def own(self) -> bool:
        """Whether its function is the user's, of a package that a site need not have."""
        return ":" in self.name

    @property
    def form(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """What is equal for clients that can be trained together: all but the numbers' values."""
        return self.name, tuple(sorted(self.numbers)), self.sees


@known_fields_only
@dataclass(frozen=True)
class Keep:
    """How training changes a vector that a client keeps: a combination of other vectors.

    The kept vector is 0 before the client's first round, or the initial model, and stays with the
    client. Where clients or the server use its mean over all clients, the server keeps that mean:
    then a site on Flower sends how its vector changed, unless that follows from the change of its
    model.
    """

    start: float = 0.0  #                        of the server's model, which training starts from
    end: float = 0.0  #                          of the client's model after training
    before: float = 1.0  #                       of the vector itself
    mean: float = 0.0  #                         of its mean over all clients before the round
    step_gradient: float = 0.0  #                of the mean gradient of the client's steps,
    #                                            (start - end) / (number of steps * step size)
    full_gradient: float = 0.0  #                of the gradient of all its examples at the start
    from_model: bool = False  #                  it begins as the initial model, not as 0
    per_step_size: bool = False  #               start and end are divided by the round's step size,
    #                                            and what the server adds is multiplied with it

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            check = records.as_number if f.default is not False else records.as_truth
            object.__setattr__(self, f.name, check(f"Keep({f.name}", getattr(self, f.name)))


@known_fields_only
@dataclass(frozen=True)
class Personal:
    """A model of its own that each client trains and keeps, beside the one that it sends.

    It begins as the initial model. It sees the same minibatches as the one that is sent.
    """

    prox: float = 0.0  #                         lambda of lambda/2 |v - w_server|^2
    only: bool = False  #                        clients train nothing else, and send no change

    def __post_init__(self) -> None:
        object.__setattr__(self, "prox", records.as_number("Personal(prox", self.prox, 0))
        object.__setattr__(self, "only", records.as_truth("Personal(only", self.only))


@known_fields_only
@dataclass(frozen=True)
class Second:
    """A second model x that takes part in each local step, beside the model w that is sent.

    ahead: x is where `steps` steps lead from w; w takes the gradient at x of its next minibatch.
    towards: x is where `steps` steps pulled back to w lead; w moves by `pull` (w - x). The last x
    is the client's own model.
    mixed: x begins where it ended; it takes the gradient at `mix` x + (1 - mix) w, which is the
    client's own model, and w is trained as usual.
    between: in `layers` w begins between the client's own model and the server's, and x says how
    far on the way for each weight: at first 1, then moved by `steps` steps before the others, and
    kept between 0 and 1. The trained w is the client's own model.
    """

    kind: Kind
    steps: int = 1  #                            on the step's minibatch
    lr: float = 0.01  #                          of these steps
    pull: float = 0.0
    mix: float = 0.5
    layers: tuple[str, ...] = ("last",)  #       patterns of their weights' names

    def __post_init__(self) -> None:
        layers = records.as_words("Second(layers", self.layers, "head.*")
        object.__setattr__(self, "layers", layers)
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise records.wrong_value("Second(kind", self.kind, f"choose one of {', '.join(kinds)}")
        if type(self.steps) is not int or self.steps < 1:
            raise records.wrong_value("Second(steps", self.steps, "give a whole number from 1")
        for name in ("lr", "pull", "mix"):
            number = records.as_number(f"Second({name}", getattr(self, name), 0)
            object.__setattr__(self, name, number)
        if self.lr * self.pull >= 1:
            rule = f"lr times pull must be below 1, and lr is {self.lr:g}: lower one of them"
            raise records.wrong_value("Second(pull", self.pull, rule)

    @property
    def kept(self) -> bool:
        """Whether clients have a model of their own by it."""
        return self.kind != "ahead"


@known_fields_only
@dataclass(frozen=True)
class Local:
    """What a client does beyond plain SGD on its own loss, as data."""

    prox: float | Sequence[float] = 0.0  #       mu of mu/2 |w - w_server|^2; or one for each client
    #                                            of the whole federation, in client order
    objective: Objective | None = field(  #      what it minimises in place of the usual loss
        default=None,
        metadata=records.at_sites(
            lambda one: (
                f"has clients minimise {one.name!r}, and sites take no code from a server: "
                "simulate it, or choose a built-in objective"
                if one is not None and one.own
                else ""
            )
        ),
    )
    full_batch: bool = False  #                  one step on the gradient of the whole local set
    keep: Mapping[str, Keep] = field(default_factory=dict)  # vectors that each client keeps
    add: Mapping[str, float] = field(default_factory=dict)  # factor * kept vector joins gradients;
    #                                            "server" is the model that training starts from
    add_mean: Mapping[str, float] = field(default_factory=dict)  # the same with its mean over all
    server_adds: Mapping[str, float] = field(default_factory=dict)  # factor * its new mean joins
    #                                            the server's step
    unbiased: bool = False  #                    these means are the old ones, and how participants'
    #                                            vectors changed on average, as if all had
    personal: Personal | None = None
    second: Second | None = None  #              takes part in each step
    own_layers: tuple[str, ...] = ()  #          weights that stay with the client, by patterns of
    #                                            their names, as ("head.*",), see `layer_names`
    own_epochs: int | None = None  #             the client trains these alone first, for so many
    #                                            epochs, then the others alone; None: together
    send: str = ""  #                            the kept vector that clients send as their change

    def __post_init__(self) -> None:
        fits: dict[str, Any] = {
            "prox": _prox(self.prox),
            "full_batch": records.as_truth("Local(full_batch", self.full_batch),
            "unbiased": records.as_truth("Local(unbiased", self.unbiased),
            "own_layers": records.as_words("Local(own_layers", self.own_layers, "head.*"),
        }
        self._check_phases()
        self._check_second()
        for name, kind in (("objective", Objective), ("personal", Personal), ("second", Second)):
            if not isinstance(value := getattr(self, name), kind | None):
                rule = f"give fedmaba.{kind.__name__}(...), or None"
                raise records.wrong_value(f"Local({name}", value, rule)
        for name, rule in records.as_dict("Local(keep", self.keep).items():
            if not isinstance(rule, Keep):
                raise records.wrong_value(f"Local(keep[{name!r}]", rule, "give fedmaba.Keep(...)")
        for what in ("add", "add_mean", "server_adds"):
            given = records.as_dict(f"Local({what}", getattr(self, what))
            for name in given:
                if name not in self.keep and (what, name) != ("add", SERVER):
                    raise InputError(
                        f"Local({what}={name!r}): no vector of that name is kept: add it to keep"
                    )
            fits[what] = {n: records.as_number(f"Local({what}[{n!r}]", v) for n, v in given.items()}
        if self.send not in ("", *self.keep):
            raise InputError(
                f"Local(send={self.send!r}): no vector of that name is kept: add it to keep"
            )
        if taken := self.keep.keys() & {PERSONAL, SERVER, SECOND}:
            raise InputError(f"Local(keep={min(taken)!r}): this name is taken: choose another")
        models = {SERVER, *self.keep, *([PERSONAL] if self.personal else [])}
        for name in self.objective.sees if self.objective else ():
            if name not in models:
                listed = ", ".join(sorted(models))
                raise InputError(f"Objective(sees={name!r}): no such model: choose among {listed}")
        for name, value in fits.items():
            object.__setattr__(self, name, value)
        for name in self.means:
            if self.keep[name].from_model:
                raise InputError(
                    f"Local(keep[{name!r}]) begins as the initial model, and its mean is used, "
                    "which begins as 0: leave out from_model, or the mean"
                )

    def _check_second(self) -> None:
        """Refuse a second model in each step beside other forms of local training."""
        for name in ("full_batch", "personal", "own_layers") if self.second is not None else ():
            if getattr(self, name):
                raise InputError(f"Local(second) does not go with {name}: leave out one")

    def _check_phases(self) -> None:
        """Refuse epochs of layers that nobody keeps, and what only one training can have."""
        if self.own_epochs is None:
            return
        if type(self.own_epochs) is not int or self.own_epochs < 0:
            rule = "give a whole number from 0, or None"
            raise records.wrong_value("Local(own_epochs", self.own_epochs, rule)
        for name in ("full_batch", "keep", "add", "personal"):
            if getattr(self, name):
                raise InputError(f"Local(own_epochs) does not go with {name}: leave out one")
        if not self.own_layers:
            raise InputError("Local(own_epochs): no layers are kept: add own_layers")

    @property
    def by_client(self) -> tuple[float, ...] | None:
        """The prox of each client of the federation; None where all have the same."""
        return self.prox if isinstance(self.prox, tuple) else None

    @property
    def pull(self) -> float:
        """The prox of a client of which there is one number."""
        if isinstance(self.prox, Sequence):
            raise TypeError("each client has a prox of its own: take of(client)")
        return self.prox

    def of(self, client: int | None) -> Local:
        """What one client does; None: one that has no number yet, and does not train."""
        if self.by_client is None:
            return self
        return dataclasses.replace(self, prox=0.0 if client is None else self.by_client[client])

    def check_clients(self, n: int, *, more_may_come: bool = False) -> None:
        """Refuse a list of numbers that does not have one for each of n clients."""
        many = n if self.by_client is None else len(self.by_client)
        if many < n or (many > n and not more_may_come):
            raise InputError(
                f"Local(prox) has {many} numbers, but there are {n} clients: give one for each "
                "client of the whole federation, or one number for all"
            )

    @property
    def keeps(self) -> bool:
        """Whether clients keep something between rounds."""
        return bool(self.keep or self.own_model or self.own_layers)

    @property
    def own_model(self) -> bool:
        """Whether each client has a model of its own, beside the one that it sends."""
        return self.personal is not None or (self.second is not None and self.second.kept)

    @property
    def models_kept(self) -> set[str]:
        """What clients keep that begins as the initial model."""
        own = [PERSONAL] if self.own_model else []
        own += [SECOND] if self.second is not None and self.second.kind == "mixed" else []
        return {*own, *(name for name, rule in self.keep.items() if rule.from_model)}

    @property
    def means(self) -> tuple[str, ...]:
        """The kept vectors whose mean over all clients the server keeps."""
        used = self.add_mean.keys() | self.server_adds.keys()
        return tuple(name for name, keep in self.keep.items() if name in used or keep.mean)

    def server_factor(self, name: str, lr: float) -> float:
        """What the server multiplies with the mean of a kept vector, at this step size."""
        return self.server_adds[name] * (lr if self.keep[name].per_step_size else 1.0)

    @property
    def sent_means(self) -> tuple[str, ...]:
        """The means that travel on Flower: sites receive them, and send how theirs changed.

        Others follow from the change of a site's model.
        """

        def follows(rule: Keep) -> bool:
            return rule == Keep(end=rule.end, start=-rule.end) and not self.add_mean

        return tuple(name for name in self.means if not follows(self.keep[name]))

    def to_json(self) -> dict[str, Any]:
        """This record as JSON, as it is sent to a client."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Local:
        """The record that `to_json` wrote."""
        objective, personal = content.get("objective"), content.get("personal")
        second = content.get("second")
        return cls(
            **{
                **content,
                "objective": None if objective is None else Objective(**objective),
                "personal": None if personal is None else Personal(**personal),
                "second": None if second is None else Second(**second),
                "keep": {name: Keep(**rule) for name, rule in content.get("keep", {}).items()},
            }
        )

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Local:
        """What the message of a server on Flower asks a site to do; nothing special without it."""
        try:
            local = cls.from_json(json.loads(str(task.get("local", "{}"))))
            if local.by_client is not None:
                raise ValueError("it has a prox for each of several clients")
            if local.objective is not None and local.objective.own:
                raise ValueError("its objective is code of the server's own")
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"the server's message asks for local work that is not known here ({error}): use "
                "the same version of fedmaba on all hosts"
            ) from error
        return local


def _prox(value: Any) -> float | tuple[float, ...]:
    """A number from 0 on, or one for each client; an array becomes a tuple of numbers."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
        return records.as_number("Local(prox", value, 0)
    if getattr(value, "ndim", 1) != 1 or not len(value):
        raise records.wrong_value("Local(prox", value, "give one number, or one for each client")
    return tuple(records.as_number(f"Local(prox[{i}]", one, 0) for i, one in enumerate(value))
