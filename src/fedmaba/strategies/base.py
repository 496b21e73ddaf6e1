"""The contract between an algorithm and whatever runs it: numbers in, coefficients out.

Every server rule of this field ends in a linear combination of the clients' model changes, whose
coefficients depend only on losses, sample counts and the inner products of those changes. So a
strategy never sees a tensor, a device or a network: the simulator and a real federation use the
same object. Nothing here may import torch, read a file or draw a random number.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, unknown
from fedmaba.strategies import hyper_parameters
from fedmaba.strategies.hyper_parameters import MOST

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
State = dict[str, FloatArray]
LossAt = Literal["none", "start", "mean", "end"]
Changes = Literal["none", "norms", "gram"]
TAKEN = ("run", "strategy", "seed", "round", "deployed", "last")  # a line of a round says them


@dataclass(frozen=True)
class Replies:
    """One round as the server sees it; row i is participant i, in client order.

    The model change of a participant is its model after local training minus the server's model.
    Rows of `gram` after the m participants are changes kept from earlier rounds (`keep_rounds`).
    """

    round: int
    lr: float  #                                local step size of this round
    n_clients: int  #                           of the whole federation
    client: IntArray  # (m,)                    which of them answered
    size: IntArray  # (m,)                      their training examples
    loss: FloatArray | None = None  # (m,)      where Needs.loss says
    norms: FloatArray | None = None  # (m,)     squared norms of the changes
    gram: FloatArray | None = None  # (m+h, m+h) inner products of the changes
    past_client: IntArray | None = None  # (h,) whose kept change it is, each client once
    past_round: IntArray | None = None  # (h,)  from which round


class Decision(NamedTuple):
    """What a strategy answers: the server adds `coef @ changes` to its model."""

    coef: FloatArray  # (m,) or (m+h,)
    state: State  #                              carried to the next round, saved in checkpoints
    info: Mapping[str, float] = {}  #            what people like to see: lambda, kl, ...


@dataclass(frozen=True)
class Needs:
    """What the server must know before it can weigh a round; the less, the faster."""

    loss: LossAt = (
        "none"  #                     training loss: at the server's model, seen, or after
    )
    changes: Changes = "none"
    keep_rounds: int = 0  #                      changes of how many past rounds join the gram

    def __post_init__(self) -> None:
        for name, choices in (("loss", get_args(LossAt)), ("changes", get_args(Changes))):
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"Needs({name}={value!r}): choose one of {', '.join(choices)}")
        if type(self.keep_rounds) is not int or self.keep_rounds < 0:
            raise InputError(f"Needs(keep_rounds={self.keep_rounds!r}): give a whole number from 0")

    @property
    def early(self) -> bool:
        """Whether the weights are known before local training ends."""
        return self.loss in ("none", "start") and self.changes == "none"


@dataclass(frozen=True)
class PropFairLoss:
    """PropFair's local loss: gradient factor 1/(M - loss) while M - loss >= epsilon, else slope."""

    M: float
    epsilon: float
    slope: float


@dataclass(frozen=True)
class Keep:
    """How a vector that a client keeps changes by its training: a combination of three.

    Before a client's first round it is 0. It never leaves the client.
    """

    start: float = 0.0  #                        of the server's model, which training starts from
    end: float = 0.0  #                          of the client's model after training
    before: float = 1.0  #                       of the vector itself


@dataclass(frozen=True)
class Local:
    """What a client does beyond plain SGD on its own loss, as data."""

    prox: float = 0.0  #                         mu of mu/2 |w - w_server|^2
    loss: PropFairLoss | None = None  #          -log(M - loss) in place of the loss
    full_batch: bool = False  #                  one step on the gradient of the whole local set
    keep: Mapping[str, Keep] = field(default_factory=dict)  # vectors that each client keeps
    add: Mapping[str, float] = field(default_factory=dict)  # factor * kept vector joins gradients

    def __post_init__(self) -> None:
        for name in self.add:
            if name not in self.keep:
                raise InputError(
                    f"Local(add={name!r}): no vector of that name is kept: add it to keep"
                )

    def to_json(self) -> dict[str, Any]:
        """As it travels to a site."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Local:
        """What `to_json` gave."""
        loss = told.get("loss")
        return cls(
            **{
                **told,
                "loss": None if loss is None else PropFairLoss(**loss),
                "keep": {name: Keep(**rule) for name, rule in told.get("keep", {}).items()},
            }
        )

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Local:
        """What the message of a server on Flower asks a site to do; nothing special without it."""
        try:
            told = json.loads(str(task.get("local", "{}")))
            local = cls.from_json(told)
            if not all(_finite(number) for number in _leaves(told)):
                raise ValueError("something other than a finite number")
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"the server's message asks for local work that is not known here ({error}): use "
                "the same version of fedmaba on all hosts"
            ) from error
        return local


def _leaves(tree: Any) -> Iterator[Any]:
    """The values in a tree of JSON objects, None apart."""
    for value in tree.values():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value is not None:
            yield value


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True)
class Strategy:
    """A server rule. Fields are its hyper-parameters, named as in its paper; methods are pure."""

    name: ClassVar[str]
    deploy: ClassVar[str] = (
        "poly:8"  #          which server model is handed out, unless the run says
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            try:
                kept = hyper_parameters.checked(
                    f, hyper_parameters.hints(type(self))[f.name], value
                )
            except ValueError as rule:
                raise InputError(f"{self.name}: {f.name}={value!r}: {rule}") from None
            object.__setattr__(self, f.name, kept)

    def needs(self) -> Needs:
        """What `weigh` wants to see."""
        return Needs()

    def local(self) -> Local:
        """What clients do differently."""
        return Local()

    def total(self) -> float | None:
        """The sum of the coefficients, where the algorithm fixes it: other sums are refused."""
        return 1.0

    def init(self, n_clients: int) -> State:
        """The state before the first round."""
        return {}

    def join(self, state: State, n_clients: int) -> State:
        """The state of a federation grown to n_clients, the new ones last; no state, no change."""
        fresh = self.init(n_clients)
        for name, value in state.items():
            if name not in fresh or fresh[name].shape != value.shape:
                raise InputError(
                    f"{self.name} keeps {name!r} per client, so it must say what new clients "
                    "start with: define join(state, n_clients)"
                )
        return state

    def weigh(self, state: State, replies: Replies) -> Decision:
        """Coefficients on this round's changes, and the state for the next."""
        raise NotImplementedError

    def label(self) -> str:
        """The name with every hyper-parameter that differs from its default."""
        changed = [
            f"{f.name}={told}"
            for f in dataclasses.fields(self)
            if (told := hyper_parameters.short(getattr(self, f.name)))
            != hyper_parameters.short(hyper_parameters.default(f))
        ]
        return self.name + (":" + ",".join(changed) if changed else "")


def param(
    default: float, low: float = -np.inf, high: float = np.inf, *, above: float | None = None
) -> float:
    """A numeric hyper-parameter with its range; `above` excludes the bound itself."""
    meta = {"low": low if above is None else above, "high": high, "open": above is not None}
    return field(default=default, metadata=meta)


def build(kind: type[Strategy], values: Mapping[str, object]) -> Strategy:
    """A strategy from hyper-parameters by name, refusing unknown ones."""
    known = [f.name for f in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            if not known:
                raise InputError(f"{kind.name} has no hyper-parameters, but {key!r} was given")
            raise unknown(f"hyper-parameter of {kind.name}", key, known)
    return kind(**values)


def still_kept(
    kept: tuple[IntArray, IntArray],  # clients, and the round of each one's change
    client: IntArray,
    round: int,
    rounds: int,
) -> NDArray[np.bool_]:
    """Which kept changes a strategy that asks for so many rounds sees again after this one.

    Of each client the last: those who took part now have a newer one.
    """
    who, when = kept
    return (when > round - rounds) & ~np.isin(who, client)


def call_weigh(strategy: Strategy, state: State, replies: Replies) -> Decision:
    """What a strategy decides, refused unless it has a coefficient for each change it saw."""
    decision = strategy.weigh(state, replies)
    try:
        coef = np.asarray(getattr(decision, "coef", None))
    except ValueError:  # rows of several lengths
        coef = np.asarray(None)
    m, past = len(replies.client), replies.past_client
    if coef.shape not in ((m,), (m + (0 if past is None else len(past)),)):
        raise InputError(
            f"{strategy.name}: weigh() gave coefficients of shape {coef.shape} for {m} clients: "
            "return Decision(coef, state) with one for each"
        )
    if coef.dtype.kind not in "biuf":
        raise InputError(f"{strategy.name}: weigh() gave coefficients of {coef.dtype}: give floats")
    check_state(strategy, decision.state, decision.info)
    decision = Decision(np.asarray(coef, np.float64), decision.state, decision.info)
    _sum_as_told(strategy, replies.round, decision.coef)
    return decision


def _sum_as_told(strategy: Strategy, round: int, coef: FloatArray) -> None:
    """Refuse coefficients whose sum is not what `total` says; float32 is precise enough."""
    goal = strategy.total()
    if goal is None or not np.isfinite(coef).all():  # that the run has diverged is said elsewhere
        return
    if not isinstance(goal, int | float) or not abs(goal) < np.inf:
        raise InputError(f"{strategy.name}: total() gave {goal!r}: return a finite number, or None")
    with np.errstate(over="ignore"):
        found, rough = float(coef.sum()), 1e-5 * abs(goal) + 1e-12 * float(np.abs(coef).sum())
    if rough == np.inf or abs(found - goal) > rough:
        raise InputError(
            f"{strategy.name}, round {round + 1}: weigh() gave coefficients that sum to "
            f"{found:.9g}, but total() says {goal:.9g}: scale them, or let total() return None"
        )


def check_state(strategy: Strategy, state: State, info: Mapping[str, float] | None = None) -> State:
    """A state that a checkpoint can hold, beside info that can be recorded; else refused."""
    info = {} if info is None else info
    for what, found in (("state", state), ("info", info)):
        if not isinstance(found, Mapping) or not all(map(_named, found)):
            raise InputError(f"{strategy.name}: its {what} is {found!r}: give a dict by names")
    for name, value in state.items():
        if not _numbers(value):
            raise InputError(
                f"{strategy.name}: state {name!r} is {_kind(value)}, which cannot be saved: keep "
                "arrays of numbers, as np.array([1.0])"
            )
    for name, number in info.items():
        if name in TAKEN:
            raise InputError(
                f"{strategy.name}: info {name!r} would stand for the {name} of the run: choose "
                "another name"
            )
        if isinstance(number, int) and not abs(number) < MOST:
            raise InputError(f"{strategy.name}: info {name!r} is no number below {MOST:g}")
        if not isinstance(number, int | float) and (np.ndim(number) or not _numbers(number)):
            raise InputError(
                f"{strategy.name}: info {name!r} is {_kind(number)}: a round records single "
                "numbers, as float(...): keep arrays in the state"
            )
    return state


def _named(name: Any) -> bool:
    """Whether files can hold something of this name."""
    return isinstance(name, str) and name.isprintable()


def _numbers(value: Any) -> bool:
    """Whether it is an array of real numbers, of a kind that files have."""
    array = isinstance(value, np.ndarray | np.generic)
    return array and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return f"of type {type(value).__name__}"


def by_size(replies: Replies) -> FloatArray:
    """Weights in proportion to the clients' training examples."""
    return np.asarray(replies.size / replies.size.sum(), dtype=np.float64)


def uniform(replies: Replies) -> FloatArray:
    """The same weight for each participant."""
    m = len(replies.client)
    return np.full(m, 1.0 / m)


def reported(values: FloatArray | None, what: str) -> FloatArray:
    """The field of a reply that `needs` asked for, refused unless it is there and finite."""
    if values is None:
        raise InputError(f"the replies carry no {what}, though the strategy's needs() asks for it")
    if not np.isfinite(values).all():
        raise InputError(f"the replies carry a {what} that is not finite: leave that client out")
    return values


TINY = float(np.finfo(np.float64).tiny)  # below it a number has fewer digits, and no reciprocal


def times(factor: float, values: FloatArray) -> FloatArray:
    """factor * values, never beyond MOST whatever a client reports."""
    with np.errstate(over="ignore"):
        return np.minimum(np.maximum(factor * values, -MOST), MOST)
