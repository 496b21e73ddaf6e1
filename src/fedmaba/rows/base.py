"""What every form of rows shares: the flat layout of the weights and the loss with its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedmaba.data import trees
from fedmaba.data.trees import Tree
from fedmaba.errors import InputError
from fedmaba.layer_names import names_kept
from fedmaba.rows.by_client import by_client

# A loss turns outputs (n, ...) and targets (n, ...), or classes (n,), into (n,) numbers.
LossFn = Callable[[Tensor, Tensor], Tensor]
# It is one tensor or several, which are arguments or keywords of the model.
Inputs: TypeAlias = Tree[Tensor]
Moves = Literal["all", "sent", "own"]  # which weights gradients move
OWN_WEIGHTS = "fedmaba_own_weights"  # This attribute of a model names what clients keep of it.
ALIGN = 32  # Each weight starts at a multiple of 128 bytes, which matrix units want.


class StoredForm(NamedTuple):
    """How a weight is stored: reshaped to `view`, axes permuted by `order`, reshaped to `shape`."""

    view: tuple[int, ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    def to_stored(self, p: Tensor) -> Tensor:
        """A weight of the model in its stored form."""
        return p.reshape(self.view).permute(self.order).reshape(self.shape)

    def from_stored(self, kept: Tensor) -> Tensor:
        """A stored weight with its axes as the model has them."""
        moved = kept.reshape([self.view[i] for i in self.order])
        return moved.permute([self.order.index(i) for i in range(len(self.order))])


class RunningStatistics(nn.Module):
    """A layer with statistics that training changes without a gradient, such as BatchNorm's.

    In rows they are part of each row's flat vector. In training the layer normalises by the
    statistics of the examples that are `valid`, and leaves the running ones in `after`.
    """

    statistics: tuple[str, ...] = ()  # Training changes the buffers with these names.
    kept_by_client = False  # It says whether clients keep the whole layer and send nothing of it.
    # It is (B,) and says which examples of the minibatch are no padding.
    valid: Tensor | None = None
    after: tuple[Tensor, ...] = ()  # These are the new values of `statistics`.


class Layout:
    """Where each weight of a model lies in its flat vector (P,); gaps stay 0.

    A Linear's matrix is kept as (in, out), which makes forward products plain. Frozen weights are
    not in it: they are the same for all rows and stay in the model. Running statistics are, after
    all weights; gradients move what lies before `trained`. What clients send lies before `shared`;
    what lies after it they keep. So the order is: weights that are sent, weights that are kept,
    statistics.
    """

    def __init__(self, model: nn.Module, forms: Mapping[str, StoredForm] | None = None) -> None:
        self.names: list[str] = []
        self.shapes: list[torch.Size] = []
        self.natural: list[torch.Size] = []
        self.starts: list[int] = []
        self.strides: list[tuple[int, ...]] = []
        self.forms = dict(forms or {})
        self.by_client = by_client(model)
        sent, kept, statistics = _moving(model)
        self.shared = self._place(sent, 0)
        self.trained = self._place(kept, self.shared)
        self.size = self._place(statistics, self.trained)
        layers = layers_with_statistics(model).values()
        if not kept and not any(m.kept_by_client for m in layers):
            self.shared = self.size

    def _place(self, part: Mapping[str, Tensor], end: int) -> int:
        """Give weights or statistics their places from `end` on; return where the last one ends."""
        for name, p in part.items():
            self.names.append(name)
            self.natural.append(p.shape)
            self.shapes.append(
                torch.Size(self.forms[name].shape) if name in self.forms else p.shape
            )
            self.starts.append(end)
            self.strides.append(torch.empty(self.shapes[-1], device="meta").stride())
            end += -(-p.numel() // ALIGN) * ALIGN
        return end

    @property
    def compared(self) -> int:
        """Where the weights end that clients send: of these are norms and products of changes."""
        return min(self.trained, self.shared)

    def moving(self, which: Moves) -> slice:
        """Which weights gradients move: all, those that are sent, or those that are kept."""
        return {
            "all": slice(self.trained),
            "sent": slice(self.compared),
            "own": slice(self.compared, self.trained),
        }[which]

    def weights_in(self, end: int) -> list[tuple[int, int]]:
        """Where each weight before `end` begins and ends, without the gaps between them."""
        every = zip(self.starts, self.shapes, strict=True)
        return [(a, a + shape.numel()) for a, shape in every if a < end]

    def places_of(self, patterns: Sequence[str]) -> list[slice]:
        """Where the weights lie whose names fit a pattern; one that fits none is refused."""
        ends = self.weights_in(self.trained)
        names, found = self.names[: len(ends)], set[str]()
        for pattern in patterns:
            if not (fitting := names_kept(pattern, names)):
                raise InputError(f"layers {pattern!r} fit no weight: choose {', '.join(names)}")
            found |= fitting
        return [slice(*place) for name, place in zip(names, ends, strict=True) if name in found]

    def kept_names(self) -> list[str]:
        """The names of what clients keep."""
        return [n for n, a in zip(self.names, self.starts, strict=True) if a >= self.shared]

    def sent_names(self) -> list[str]:
        """The names of what clients send."""
        return [n for n, a in zip(self.names, self.starts, strict=True) if a < self.shared]

    def order_in_words(self) -> str:
        """How weights are stored, as a checkpoint tells it: in the words of version 0.1."""
        told = [
            f"({name!r}, Form(view={form.view}, order={form.order}, shape={form.shape}))"
            for name, form in sorted(self.forms.items())
        ]
        return f"[{', '.join(told)}]"

    def kept_views(self, own: Tensor) -> dict[str, Tensor]:
        """What clients keep by name, (N, *shape) each, as views of their parts (N, P - S)."""
        apart, base = own.stride(0), own.storage_offset() - self.shared
        every = zip(self.names, self.starts, self.shapes, self.strides, strict=True)
        return {
            name: own.as_strided((len(own), *shape), (apart, *steps), base + a)
            for name, a, shape, steps in every
            if a >= self.shared
        }

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each weight of all rows, (R, *shape), as views of flat (R, P), whose rows are dense."""
        rows, apart, base = len(flat), flat.stride(0), flat.storage_offset()
        return [
            flat.as_strided((rows, *shape), (apart, *steps), base + a)
            for a, shape, steps in zip(self.starts, self.shapes, self.strides, strict=True)
        ]

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """Each weight of all rows by name, (R, *shape); those in a stored form are left out."""
        every = zip(self.names, self.views(flat), strict=True)
        return {name: view for name, view in every if name not in self.forms}

    def pack(self, model: nn.Module) -> Tensor:
        """The weights of a model as a flat vector (P,)."""
        return self.pack_named({name: p.detach() for name, p in self.tensors(model).items()})

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights and statistics of a model that have a place here, in this order."""
        every = _named(model)
        return {name: every[name] for name in self.names}

    def pack_named(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Named weights as a flat vector (P,): what `unpack` takes apart."""
        widest = torch.promote_types(torch.float32, weights[self.names[0]].dtype)
        flat = torch.zeros(1, self.size, dtype=widest)
        for name, view in zip(self.names, self.views(flat), strict=True):
            p = weights[name]
            view[0] = self.forms[name].to_stored(p) if name in self.forms else p
        return flat[0]

    def unpack(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat vector (P,) as named weights."""
        out = {}
        for name, view, shape in zip(self.names, self.views(flat[None]), self.natural, strict=True):
            value = self.forms[name].from_stored(view[0]) if name in self.forms else view[0]
            out[name] = value.reshape(shape).contiguous()
        return out


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def layers_with_statistics(model: nn.Module) -> dict[str, RunningStatistics]:
    """The layers with running statistics, by the beginning of their weights' names."""
    found = model.named_modules()
    return {f"{n}.".lstrip("."): m for n, m in found if isinstance(m, RunningStatistics)}


def _moving(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """What training changes: weights that clients send, weights that they keep, statistics."""
    layers, named = layers_with_statistics(model), _named(model)
    statistics = [head + name for head, m in layers.items() for name in m.statistics]
    own = {head + name for head, m in layers.items() if m.kept_by_client for name in m._parameters}
    own |= set(getattr(model, OWN_WEIGHTS, ()))
    sent: dict[str, Tensor] = {}
    kept: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            (kept if name in own else sent)[name] = p
    return sent, kept, {name: named[name] for name in statistics}


def keep_weights(model: nn.Module, patterns: Sequence[str]) -> str:
    """Let clients keep the trained weights whose names fit a pattern; why not, where that fails.

    A weight with several names is kept where one of them fits.
    """
    every = list(model.named_parameters(remove_duplicate=False))
    names = {name: p for name, p in every if p.requires_grad}
    kept = set[int]()
    for pattern in patterns:
        if not names_kept(pattern.lstrip("!"), [*names]):
            return f"own_layers={pattern!r} fits no weight: its weights are {', '.join(names)}"
        kept |= {id(names[name]) for name in names_kept(pattern, [*names])}
    setattr(model, OWN_WEIGHTS, tuple(n for n, p in model.named_parameters() if id(p) in kept))
    told = f"own_layers={', '.join(map(repr, patterns))}"
    if not _moving(model)[0]:
        return f"{told} leaves nothing to send: its weights are {', '.join(names)}"
    for name, layer in layers_with_statistics(model).items():
        if not layer.kept_by_client:
            return (
                f"{told}: with batchnorm='average' clients send the statistics of "
                f"{name.rstrip('.')!r}: choose batchnorm='local', 'group' or 'frozen'"
            )
    return ""


def constants(model: nn.Module) -> dict[str, Tensor]:
    """What no training changes, all rows share and no client sends: frozen weights and buffers."""
    moving = {n for n, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    moving |= _moving(model)[2].keys()
    return {name: value for name, value in model.state_dict().items() if name not in moving}


def call(model: nn.Module, x: Inputs, weights: dict[str, Tensor] | None = None) -> Tensor:
    """The outputs of a model for inputs, with its own or with other weights."""
    return returned(model, x, weights)[0]


def returned(
    model: nn.Module, x: Inputs, weights: dict[str, Tensor] | None = None
) -> tuple[Tensor, ...]:
    """The outputs of a model, and its features where it returns a pair (outputs, features)."""
    args, named = ((), x) if isinstance(x, dict) else (x if isinstance(x, tuple) else (x,), {})
    got = model(*args, **named) if weights is None else functional_call(model, weights, args, named)
    return got if isinstance(got, tuple) and len(got) == 2 else (got,)


@cache
def _accelerated() -> bool:
    """Whether there is a GPU or the like."""
    return torch.accelerator.is_available()


def seed_torch(seed: int) -> None:
    """Seed torch's random numbers, on a GPU too.

    For each kind of device that could come later `torch.manual_seed` writes down the whole call
    stack, which takes longer than a local step. Where there is none, the processor is enough.
    """
    if _accelerated():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


HAS_OBJECTIVE = (
    "has it"  # among numbers: 1 for rows with the objective, 0 for plain ones beside them
)


class RowObjective(NamedTuple):
    """What rows minimise in place of their usual loss, see `objectives`."""

    function: Callable[..., Tensor]
    numbers: Mapping[str, Tensor]  # (R,) each
    # It has the models (R, P) whose outputs it sees; None says that it is one of the loss alone.
    seen: Mapping[str, Tensor] | None = None
    features: bool = False  # whether it gets features, too

    def factor(self, loss: Tensor) -> Tensor:
        """The derivative of an objective of the loss by that loss, of each row."""
        numbers = dict(self.numbers)
        has_it = numbers.pop(HAS_OBJECTIVE, None)
        factor = self.function(loss, numbers)
        return factor if has_it is None else torch.where(has_it > 0, factor, 1.0)

    def losses(
        self, losses: Tensor, own: Sequence[Tensor], y: Tensor, others: Mapping[str, Any]
    ) -> Tensor:
        """An objective of outputs for each example (R, B); usual losses are (R, B).

        `own` are the outputs, and the features where it gets them; `others` those by model.
        """
        called = torch.vmap(self.function)
        return called(losses, *own, y, dict(others), dict(self.numbers))

    def row(self, r: int) -> RowObjective:
        """The same for one of the rows."""
        numbers, seen = (
            {name: v[r : r + 1] for name, v in (part or {}).items()}
            for part in (self.numbers, self.seen)
        )
        return self._replace(numbers=numbers, seen=None if self.seen is None else seen)


class Step(NamedTuple):
    """One minibatch of every row."""

    x: Inputs  # (R, B, ...)
    y: Tensor  # It is (R, B), or (R, B, ...) where a target is more than one number.
    weight: Tensor  # It is (R, B): the part of each example in its row's loss, 0 for padding.
    scale: Tensor  # It is a tensor (), so that a recorded step can be replayed with another.
    objective: RowObjective | None
    keys: Tensor  # It has the (R,) random streams of this step.
    of: int = 0  # It counts the rows of the whole chunk, of which these are the first.


class ProxPull(NamedTuple):
    """FedProx's term: each step also moves the weights a fraction `rate` back towards `start`."""

    start: Tensor  # It is (R, P), or (1, P) where it is the same for all rows.
    rate: Tensor  # (R, 1)   step size times mu
    last: bool = False  #    after the gradient's step, whose scale makes up for it: no copy of the
    #                        weights is needed then


class Shift(NamedTuple):
    """A constant that each step adds to the weights."""

    vector: Tensor  # (R, P)


class StepsAhead(NamedTuple):
    """What the host knows of the steps of some rows before they are taken."""

    first: NDArray[np.int64]  # (R,) where a row's examples begin
    key: NDArray[np.int64]  # (R,) its random stream, which says how it draws minibatches
    steps: NDArray[np.int64]  # (R,)
    minibatch: int
    rate: NDArray[np.float64] | None  # (R,) the part of the way back that a pull moves it each step
    added: bool  # whether each step also adds something of its own to each row


class StepPlan(ABC):
    """How rows take several steps at once. It can be hashed, as part of a recording's key."""

    @abstractmethod
    def run(self, chunk: Any) -> tuple[Tensor, list[Tensor]]:
        """Take all steps of a `steps.DeviceChunk`, as `steps.run_steps` does one by one."""


class Rows(ABC):
    """R copies of a model as rows of a flat matrix (R, P)."""

    parallel = False  # It says whether several threads may use it at once.
    image_axes = (-2, -1)  # These are the height and width of images that went through `prepare`.
    evaluates_apart = False  # It says whether outputs are computed row after row.
    recordable = False  # It says whether its work can be recorded as a CUDA graph.
    # On a CPU this many rows are computed at once; None means as many as fit its cache.
    max_rows: int | None = None

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        example: Inputs,
        loss: LossFn | None,
        path: str,
    ) -> None:
        self.model, self.layout, self.loss_fn, self.path = model, layout, loss, path
        self.tell: Callable[[str], object] = lambda line: None  # says what takes long
        self.activations = count_activations(model, example)  # numbers per example, all layers

    @property
    def mixes_examples(self) -> bool:
        """Whether the examples of a minibatch affect each other, by statistics over them."""
        return self.layout.size > self.layout.trained

    @abstractmethod
    def add_gradients(self, read: Tensor, sink: Tensor, step: Step) -> Tensor:
        """Add scale * gradient at the weights `read` (R, P) to `sink`, which may be the same.

        Where running statistics have their places, add how far this minibatch moves them. Returns
        the plain loss of each row (R,).
        """

    def plan(self, models: Tensor, steps: StepsAhead) -> StepPlan | None:
        """How to take these steps several at once, where that pays; models are (., P)."""
        return None

    def run_steps(
        self, w: Tensor, steps: list[Step], more: ProxPull | Shift | None = None
    ) -> list[Tensor]:
        """Take SGD steps one after another and return the loss of each row (R,) in each step.

        `more` is what each step does to the weights besides.
        """
        losses, weights = [], slice(self.layout.trained)
        for step in steps:
            if isinstance(more, ProxPull) and not more.last:
                losses.append(self.add_pulled_gradients(w, more, step))
                continue
            losses.append(self.add_gradients(w, w, step))
            if isinstance(more, ProxPull):
                w[:, weights].lerp_(more.start[:, weights], more.rate)
            elif more is not None:
                w[:, weights].add_(more.vector[:, weights])
        return losses

    def add_pulled_gradients(self, w: Tensor, pull: ProxPull, step: Step) -> Tensor:
        """Pull weights (R, P) back and add scale * the gradient at where they were before."""
        read, weights = w.clone(), slice(self.layout.trained)
        w[:, weights].lerp_(pull.start[:, weights], pull.rate)
        return self.add_gradients(read, w, step)

    def compile(self, models: Tensor, work: Callable[[], object]) -> None:  # noqa: B027
        """Compile the kernels that `work` with models (., P) needs, before it is done in earnest.

        `work` is run for this on meaningless numbers. This form of rows has no kernels.
        """

    def room(self, minibatch: int, seen: int = 0) -> int:
        """About how many numbers in memory the training of one row takes.

        It has as many more models as an objective has `seen`.
        """
        other = self.layout.size + self.activations * minibatch
        return 4 * self.layout.size + 3 * self.activations * minibatch + seen * other

    def evaluated_at_once(self, budget: int) -> int:
        """How many examples of a row are evaluated at once, which hold about `budget` numbers."""
        return max(1, budget // self.activations)

    def prepare(self, x: Inputs) -> Inputs:
        """Inputs (n, ...) in the order of axes that `add_gradients` and `outputs` want."""
        return x

    def features(self, x: Inputs) -> Tensor | None:
        """The features (n, ...) that the model returns beside outputs, where it does."""
        return None

    @abstractmethod
    def outputs(self, flat: Tensor, x: Inputs) -> Tensor:
        """(R, B, C) in evaluation mode; x is (R, B, ...), or (1, B, ...) where rows share it."""

    def losses(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each example, (R, B)."""
        targets = y.expand(*out.shape[:2], *y.shape[2:])
        return self.per_example(out.flatten(0, 1), targets.flatten(0, 1)).view(out.shape[:2])

    def per_example(self, out: Tensor, y: Tensor) -> Tensor:
        """The loss of each example of one row, (B,)."""
        if self.loss_fn is None:
            return nn.functional.cross_entropy(out, y, reduction="none")
        return self.loss_fn(out, y)

    def loss_and_gradient(self, out: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Usual loss of each row (R,); scale * the objective's gradient in outputs (R, B, C)."""
        objective = step.objective
        if objective is not None and objective.seen is not None:
            others = {name: self.outputs(flat, step.x) for name, flat in objective.seen.items()}
            with torch.enable_grad():
                leaf = out.detach().requires_grad_()
                losses = self.losses(leaf, step.y)
                total = (objective.losses(losses, [leaf], step.y, others) * step.weight).sum()
                (g,) = torch.autograd.grad(total, leaf)
            return (losses.detach() * step.weight).sum(1), g * step.scale
        loss, g = self.usual_loss_and_gradient(out, step)
        if objective is not None:
            g.mul_(objective.factor(loss).view(-1, *[1] * (g.ndim - 1)))
        return loss, g

    def usual_loss_and_gradient(self, out: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """Loss of each row (R,) and scale * its gradient in the outputs (R, B, C)."""
        y, weight, scale = step.y, step.weight, step.scale
        if self.loss_fn is None:
            log_p = torch.log_softmax(out, -1)
            loss = -(log_p.gather(2, y[..., None])[..., 0] * weight).sum(1)
            g = log_p.exp_()
            g.scatter_add_(2, y[..., None], torch.full_like(g[..., :1], -1.0))
            g.mul_((weight * scale)[..., None])
        else:
            with torch.enable_grad():
                leaf = out.detach().requires_grad_()
                total = (self.losses(leaf, y) * weight).sum(1)
                (g,) = torch.autograd.grad(total.sum(), leaf)
            loss, g = total.detach(), g * scale
        return loss, g


def count_activations(model: nn.Module, example: Inputs) -> int:
    """How many numbers the layers of a model output for one example."""
    total = 0

    def count(module: nn.Module, args: object, out: object) -> None:
        nonlocal total
        if isinstance(out, Tensor):
            total += out.numel()

    leaves = [m for m in model.modules() if not any(True for _ in m.children())]
    hooks = [m.register_forward_hook(count) for m in leaves]
    with torch.no_grad():
        call(model, example)
    for hook in hooks:
        hook.remove()
    inputs = trees.leaves(example)
    return max(1, (total + sum(v.numel() for v in inputs)) // len(inputs[0]))
