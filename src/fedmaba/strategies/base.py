"""The contract between an algorithm and whatever runs it: numbers in, coefficients out.

Every server rule of this field ends in a linear combination of the clients' model changes, whose
coefficients depend only on losses, sample counts and the inner products of those changes. So a
strategy never sees a tensor, a device or a network: the simulator and a real federation use the
same object. Nothing here may import torch, read a file or draw a random number.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError, unknown
from fedmaba.strategies import hyper_parameters
from fedmaba.strategies.combine import Combine as Combine
from fedmaba.strategies.hyper_parameters import MAX_ABS
from fedmaba.strategies.local_work import PERSONAL as PERSONAL
from fedmaba.strategies.local_work import SECOND as SECOND
from fedmaba.strategies.local_work import SERVER as SERVER
from fedmaba.strategies.local_work import Keep as Keep
from fedmaba.strategies.local_work import Local as Local
from fedmaba.strategies.local_work import Objective as Objective
from fedmaba.strategies.local_work import Personal as Personal
from fedmaba.strategies.local_work import Second as Second
from fedmaba.strategies.privacy_knob import PrivacyKnob
from fedmaba.strategies.records import as_truth, at_sites, known_fields_only
from fedmaba.strategies.server_optimisers import ServerOptimiser

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
State = dict[str, FloatArray]
LossAt = Literal["none", "start", "mean", "end", "held"]
Changes = Literal["none", "norms", "gram", "layers"]
# A recorded round has these keys already, so the info of a strategy cannot use them.
PRIVACY_INFO = ("dp_epsilon", "dp_delta")  # of a private run: what is spent after a round
RESERVED_INFO_KEYS = (
    *("run", "strategy", "seed", "round", "deployed", "last", "personal"),
    *PRIVACY_INFO,
)
LOSSES_INFO = ("losses_epsilon", "losses_delta")  # as PRIVACY_INFO where losses alone have noise


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    """The same array, which whoever gets it cannot change."""
    view = values.view()
    view.setflags(write=False)
    return view


@dataclass(frozen=True)
class Replies:
    """One round as the server sees it; row i is participant i, in client order.

    The model change of a participant is its model after local training minus the server's model.
    Rows of `gram` after the m participants are changes kept from earlier rounds (`keep_rounds`).
    A layer is a module of the model with weights of its own, in the model's order.
    """

    round: int
    lr: float  #                                local step size of this round
    n_clients: int  #                           of the whole federation
    client: IntArray  # (m,)                    which of them answered
    size: IntArray  # (m,)                      their training examples
    loss: FloatArray | None = None  # (m,)      where Needs.loss says
    norms: FloatArray | None = None  # (m,)     squared norms of the changes
    gram: FloatArray | None = None  # (m+h, m+h) inner products of the changes
    layer_grams: FloatArray | None = None  # (L, m+h, m+h) the same of each layer's part of them
    past_client: IntArray | None = None  # (h,) whose kept change it is, each client once; -1: the
    #                                           server's last step, where Needs.last_step asks
    past_round: IntArray | None = None  # (h,)  from which round
    steps: FloatArray | None = None  # (m,)     local steps, where Needs.steps asks; with momentum
    #                                           or a step schedule, the sum of their weights
    groups: IntArray | None = None  # (m, G, 2, 2) training examples by group, label, prediction
    alone: FloatArray | None = None  # (m,)     mean loss of the participant's own model over the
    #                                           steps of its training, where Needs.alone asks
    loss_after: FloatArray | None = None  # (m,) training losses after training, besides `loss`
    loss_noise: float = 0.0  #                  standard deviation of the noise on each loss, where
    #                                           privacy adds some

    def __post_init__(self) -> None:
        for name, value in vars(self).items():  # a strategy reads what is recorded
            if isinstance(value, np.ndarray):
                object.__setattr__(self, name, read_only(value))


@known_fields_only
class Decision(NamedTuple):
    """What a strategy answers: the server adds `coef @ changes` to its model.

    Where it sees layers, `coef` may have a row for each of them. Where it asks for first steps,
    the second half of `coef` weighs these. Where `combine` gets mixes of changes, `coef` has a row
    for each mix, (m, m), whose sum is m times the weight of the mix.
    """

    coef: FloatArray  # (m,) or (m+h,), (L, m) or (L, m+h); (2m,) with first steps; (m, m) of mixes
    state: State  #                              carried to the next round, saved in checkpoints
    info: Mapping[str, float] = {}  #            what people like to see: lambda, kl, ...


@known_fields_only
class ServerStep(NamedTuple):
    """A length of the server's step: a multiple of what `weigh` decided, to be tried or taken."""

    factor: float
    take: bool = False  #                        False: ask the participants for their losses first


Tried = tuple[float, FloatArray]  # a factor, and each participant's loss after that step, (m,)
Trials = Sequence[Tried]


@known_fields_only
class Guide(NamedTuple):
    """What joins each local step of the participants, a number for each of them, (m,) or ().

    With g_i the gradient of participant i's step and G_i that of all its examples at the server's
    model, it steps along scale_i g_i + own_i G_i + the sum over j of mix_j G_j.
    """

    scale: FloatArray | float = 1.0
    own: FloatArray | float = 0.0
    mix: FloatArray | float = 0.0


@dataclass(frozen=True)
class Shown:
    """A number of `Decision.info` that people want to see, and the words for it in a report."""

    name: str  #                                 its key in the info
    title: str = ""  #                           of its plot; "": the name
    about: str = ""  #                           a sentence below the title
    short: str = ""  #                           of its column while a run goes on; "": no column
    limit: float | None = None  #                drawn as a line beside the number
    limit_name: str = ""
    above_zero: str = ""  #                      what happens in a round in which it is above 0
    always_zero: str = ""  #                     what it means if that is in no round


def _simulated(why: str) -> dict[str, Any]:
    """The metadata of a switch that no site of a real federation can be asked for, and why."""
    remedy = "simulate it, or choose another strategy"
    return at_sites(lambda on: f"{why}: {remedy}" if on else "")


@dataclass(frozen=True)
class ClientNumber:
    """A field of `Replies` with one number of each client, which `Needs` asks for by its name."""

    about: str
    of_training: bool = (
        True  #                  whether only training gives it: then it has no noise,
    )
    #                                            and private runs refuse it
    limits: tuple[float, float] | None = None  # what a site may say; None: as a loss


CLIENT_NUMBERS = {  # besides the loss
    "steps": ClientNumber("numbers of local steps", of_training=False, limits=(1e-3, 1e9)),
    "alone": ClientNumber("losses of the clients' own models"),
    "loss_after": ClientNumber("losses after training"),
}


@known_fields_only
@dataclass(frozen=True)
class Needs:
    """What the server must know before it can weigh a round; the less, the faster."""

    loss: LossAt = field(  #                     training loss: at the server's model, seen, or
        #                                        after; held: validation loss
        default="none",
        metadata=at_sites(
            lambda at: (
                "weighs by validation losses, which sites do not send: choose another loss, "
                "as loss_at=start"
                if at == "held"
                else ""
            )
        ),
    )
    changes: Changes = "none"
    keep_rounds: int = 0  #                      changes of how many past rounds join the gram
    steps: bool = False  #                       the number of local steps of each participant
    groups: bool = field(  #                     counts by group of people, at the server's model
        default=False,
        metadata=_simulated("weighs sites by groups of people, whose counts sites do not send"),
    )
    first_steps: bool = field(  #                the change that one step on all of a participant's
        #                                        examples would make; coefficients come after all m
        default=False,
        metadata=_simulated("weighs the first step of each site, which sites do not send"),
    )
    alone: bool = False  #                       the training loss of each participant's own model,
    #                                            where `Local.personal` gives it one
    loss_after: bool = False  #                  training losses after training, besides `loss`
    trials: bool = field(  #                     training losses after steps of several lengths, for
        #                                        `Strategy.search`
        default=False,
        metadata=_simulated(
            "asks for losses after steps of several lengths, which sites do not send"
        ),
    )
    last_step: bool = False  #                   the server's last step joins the gram
    guided: bool = field(  #                     a second exchange before training, for
        #                                        `Strategy.guide`
        default=False,
        metadata=_simulated("guides local steps after a first exchange, and sites have one only"),
    )

    def __post_init__(self) -> None:
        for name, choices in (("loss", get_args(LossAt)), ("changes", get_args(Changes))):
            if (value := getattr(self, name)) not in choices:
                raise InputError(f"Needs({name}={value!r}): choose one of {', '.join(choices)}")
        for name in (f.name for f in dataclasses.fields(self) if f.default is False):
            as_truth(f"Needs({name}", getattr(self, name))
        if type(self.keep_rounds) is not int or self.keep_rounds < 0:
            raise InputError(f"Needs(keep_rounds={self.keep_rounds!r}): give a whole number from 0")
        if self.last_step and (self.changes != "gram" or self.keep_rounds):
            raise InputError(
                "Needs(last_step=True): the last step is seen in the gram alone: add "
                "changes='gram', and leave out keep_rounds"
            )
        if self.keep_rounds and self.changes not in ("gram", "layers"):
            raise InputError(
                f"Needs(keep_rounds={self.keep_rounds}): kept changes are seen in the gram alone: "
                "add changes='gram', or leave it out"
            )
        for name in ("first_steps", "guided"):
            if getattr(self, name) and not self.early:
                raise InputError(
                    f"Needs({name}=True): their weights must be known before training: leave out "
                    "changes, and take loss='start'"
                )
        if self.loss_after and self.loss == "end":
            raise InputError(
                "Needs(loss_after=True): loss='end' is the same number: leave one of them out"
            )
        if self.trials and self.early:
            raise InputError(
                "Needs(trials=True): steps are tried once all changes are there: add "
                "changes='gram', 'norms' or 'layers'"
            )

    @property
    def of_training(self) -> tuple[str, ...]:
        """The fields of `Replies` with one number for each client that only training gives."""
        asked = [name for name in self.of_clients if CLIENT_NUMBERS[name].of_training]
        return (*asked, *(["loss"] if self.loss in ("mean", "end") else []))

    @property
    def of_clients(self) -> tuple[str, ...]:
        """The fields of `Replies` that each client tells in one number, besides its loss."""
        return tuple(name for name in CLIENT_NUMBERS if getattr(self, name))

    @property
    def early(self) -> bool:
        """Whether the weights are known before local training ends."""
        return self.changes == "none" and not self.of_training


@dataclass(frozen=True)
class Strategy:
    """A server rule. Fields are its hyper-parameters, named as in its paper; methods are pure."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  #                 as a paper prints it; "": the name
    deploy: ClassVar[str] = (
        "poly:8"  #          which server model is handed out, unless the run says
    )

    def __new__(cls, *args: Any, **values: Any) -> Self:
        hyper_parameters.require_dataclass(cls, Strategy, cls.__qualname__)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(getattr(self, "name", None), str):
            kind = type(self).__qualname__
            raise InputError(
                f"strategy {kind!r} has no name: write name: ClassVar[str] = ... in it"
            )
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            try:
                kept = hyper_parameters.check_value(
                    f, hyper_parameters.field_types(type(self))[f.name], value
                )
            except ValueError as rule:
                raise InputError(f"{self.name}: {f.name}={value!r}: {rule}") from None
            object.__setattr__(self, f.name, kept)

    def needs(self) -> Needs:
        """What `weigh` needs to know."""
        return Needs()

    def local(self) -> Local:
        """What clients do beyond plain SGD."""
        return Local()

    def total(self) -> float | None:
        """The sum that the coefficients must have; None where the algorithm does not fix it."""
        return 1.0

    def max_weight(self, n: int, share: float = 1.0) -> float | None:
        """The largest coefficient that one of n participants can get; None: it cannot be said.

        `share` is the largest share of the participants' training examples that one of them can
        have. Differential privacy needs this bound: noise must hide the largest weight.
        """
        return None

    def privacy_knob(self) -> PrivacyKnob | None:
        """The hyper-parameter that lowers the largest weight, and with it the noise, if any."""
        return None

    def server_optimiser(self) -> ServerOptimiser | None:
        """How the server moves along the weighted changes; None: as the run says."""
        return None

    def combine(self) -> Combine | None:
        """How the server combines changes, where that is no weighted sum; None: it is one."""
        return None

    def init(self, n_clients: int) -> State:
        """The state before the first round."""
        return {}

    def join(self, state: State, n_clients: int) -> State:
        """The state after new clients joined: n_clients in all, the new ones last."""
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

    def search(self, replies: Replies, decision: Decision, tried: Trials) -> ServerStep:
        """How long a step to try next, or to take, after those tried so far.

        Asked after `weigh`, where `needs` says trials. A loss that is not finite is inf.
        """
        return ServerStep(1.0, take=True)

    def guide(self, replies: Replies, decision: Decision) -> Guide:
        """What joins the participants' local steps of this round.

        Asked after `weigh`, where `needs` says guided.
        """
        return Guide()

    def doubts(self, clients: int, participants: int) -> tuple[str, ...]:
        """What its numbers do not do among so many, a sentence each; it is said before a run."""
        return ()

    def shown(self) -> tuple[Shown, ...] | None:
        """Which numbers of its info a report shows, in order; None: all, by their names."""
        return None

    def label(self) -> str:
        """The name with every hyper-parameter that differs from its default."""
        changed = [
            f"{f.name}={told}"
            for f in dataclasses.fields(self)
            if (told := hyper_parameters.format_value(getattr(self, f.name)))
            != hyper_parameters.format_value(hyper_parameters.default_value(f))
        ]
        return self.name + (":" + ",".join(changed) if changed else "")


def param(
    default: float, low: float = -np.inf, high: float = np.inf, *, above: float | None = None
) -> float:
    """A numeric hyper-parameter with its range; `above` excludes the bound itself."""
    meta = {"low": low if above is None else above, "high": high, "open": above is not None}
    return field(default=default, metadata=meta)


def make_strategy(kind: type[Strategy], values: Mapping[str, object]) -> Strategy:
    """A strategy from hyper-parameters by name, refusing unknown ones."""
    known = [f.name for f in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            if not known:
                raise InputError(f"{kind.name} has no hyper-parameters, but {key!r} was given")
            raise unknown(f"hyper-parameter of {kind.name}", key, known)
    return kind(**values)


def optimiser_of_server(strategy: Strategy) -> ServerOptimiser | None:
    """What a strategy says of the server's step; refuse anything else."""
    told = strategy.server_optimiser()
    if told is not None and not isinstance(told, ServerOptimiser):
        raise InputError(
            f"{strategy.name}: server_optimiser() gave {told!r}: return "
            "fedmaba.ServerOptimiser(...), or None"
        )
    return told


def still_kept(
    kept: tuple[IntArray, IntArray],  # clients, and the round of each one's change
    client: IntArray,
    round: int,
    rounds: int,
) -> NDArray[np.bool_]:
    """Which of the kept changes a strategy still sees after this round.

    It asks for those of the last `rounds` rounds. Of each client only the newest is kept, so the
    changes of clients who took part in this round are replaced.
    """
    who, when = kept
    return (when > round - rounds) & ~np.isin(who, client)


def client_weights(needs: Needs, coef: FloatArray, m: int) -> FloatArray:
    """(m,) One number per participant, as a round records it: with layers, the mean over them."""
    if needs.first_steps:
        return np.asarray(coef[:m] + coef[m:])
    return np.asarray(coef[:, :m].mean(0) if coef.ndim == 2 else coef[:m])


def votes_and_mix(coef: FloatArray) -> tuple[FloatArray, FloatArray | None]:
    """The weights that a rule gets, and the mixes (m, m) that it combines, None for the changes."""
    if coef.ndim == 1:
        return coef, None
    rows = coef.sum(1)
    return rows / len(rows), coef / rows[:, None]


def layers_of(names: Sequence[str]) -> list[list[int]]:
    """The weights of a model by layer, as places in `names`: those of one module, in their order.

    "0.weight", "0.bias", "2.weight" are two layers.
    """
    modules = [name.rpartition(".")[0] for name in names]
    return [
        [place for place, _ in part]
        for _, part in itertools.groupby(enumerate(modules), key=lambda entry: entry[1])
    ]


def size_weights(replies: Replies) -> FloatArray:
    """Weights in proportion to the clients' training examples."""
    return np.asarray(replies.size / replies.size.sum(), dtype=np.float64)


def uniform_weights(replies: Replies) -> FloatArray:
    """The same weight for each participant."""
    m = len(replies.client)
    return np.full(m, 1.0 / m)


def require_finite(values: FloatArray | None, what: str) -> FloatArray:
    """A field of the replies that `needs` asked for; an error if it is missing or not finite."""
    if values is None:
        raise InputError(f"the replies carry no {what}: let needs() of the strategy ask for it")
    if not np.isfinite(values).all():
        raise InputError(f"the replies carry a {what} that is not finite: leave that client out")
    return values


# Smaller numbers have fewer digits, and their reciprocals overflow.
SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)


def bounded_product(factor: float, values: FloatArray) -> FloatArray:
    """factor * values, kept between -MAX_ABS and MAX_ABS whatever a client reports."""
    with np.errstate(over="ignore"):
        return np.minimum(np.maximum(factor * values, -MAX_ABS), MAX_ABS)
