"""What clients minimise in place of their usual loss: torch functions, by name.

An objective of the loss is a function (loss, numbers) -> factor. It gets the usual loss of each row
(R,) and the numbers that its strategy gives, (R,) by name. It returns the factor on each row's
gradient (R,), which is the objective's derivative by the loss.

An objective of outputs is a function (losses, outputs, y, others, numbers) -> (n,). It is written
for the minibatch of one row: the usual loss of each example (n,), outputs and targets (n, ...), the
outputs of other models by name, and numbers (). It returns what is minimised, of each example from
that example alone: minibatches are padded, and their mean is taken elsewhere. `torch.vmap` calls it
for all rows at once.

An objective of features is (losses, outputs, features, y, others, numbers) -> (n,), for models that
return pairs (outputs, features). It gets these pairs of other models, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fedmaba import user_code
from fedmaba.data import trees
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.rows.base import Inputs, RowObjective, Rows

OWN_FORM = "package.module:function"


@dataclass(frozen=True)
class ObjectiveFunction:
    """An objective's function."""

    function: Callable[..., Tensor]
    of_outputs: bool
    of_features: bool  # and of outputs


@cache
def find(name: str) -> ObjectiveFunction:
    """The objective of this name, or the user's own at `package.module:function`."""
    where, _, attribute = name.partition(":")
    if name in OBJECTIVES:
        function = OBJECTIVES[name]
    elif attribute:
        function = user_code.import_attribute(f"objective {name!r}", where, attribute, OWN_FORM)
    else:
        raise unknown("objective", name, OBJECTIVES, other=f", or write {OWN_FORM} for your own")
    try:
        many = len(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # no function, or one that does not say
        many = 0
    if many not in (2, 5, 6):
        raise InputError(
            f"objective {name!r}: write a function of (loss, numbers), or of (losses, outputs, y, "
            "others, numbers), or with features after outputs"
        )
    return ObjectiveFunction(function, many > 2, many == 6)


def check(
    name: str,
    numbers: Mapping[str, float],
    sees: Sequence[str],
    rows: Rows,
    flat: Tensor,  # (., P)
    x: Inputs,  # (n, ...)
    y: Tensor,  # (n, ...)
) -> None:
    """Refuse an objective that does not work, tried on some examples of a pool."""
    find.cache_clear()  # A module of the user's may have been loaded anew since the last run.
    found = find(name)
    if sees and not found.of_outputs:
        raise InputError(f"objective {name!r} is one of the loss: leave out what it sees")
    out = rows.outputs(
        flat[:1].expand(2, -1), trees.mapped(lambda v: v[None, :3].expand(2, *v[:3].shape), x)
    )
    own, targets = [out], y[None, :3].expand(2, *y[:3].shape)
    if found.of_features:
        features = rows.features(trees.mapped(lambda v: v[:3], x))
        if features is None:
            raise InputError(
                f"objective {name!r} is one of features, and this model returns outputs alone: "
                "take a model whose forward returns a pair (outputs, features)"
            )
        own.append(features.to(out).expand(2, *features.shape))
    others = dict.fromkeys(sees, tuple(own) if found.of_features else out.detach())
    with torch.enable_grad():
        own = [v.detach().requires_grad_() for v in own]
        losses = rows.losses(own[0], targets)
    tensors = {n: torch.full_like(losses[:, 0], value) for n, value in numbers.items()}
    tried = RowObjective(found.function, tensors, {} if found.of_outputs else None)
    if found.of_outputs:
        _check_of_outputs(name, tried, (losses, own, targets, others))
    else:
        _tried(name, lambda: tried.factor(losses[:, 0].detach()), (2,), "factor for each row")


def _check_of_outputs(name: str, tried: RowObjective, given: tuple[Any, ...]) -> None:
    """Refuse an objective of outputs that fails on one row, on some of its examples, or on two."""
    losses, own, targets, others = tree_map(lambda v: v[0].detach(), given)
    numbers = {number: v[0] for number, v in tried.numbers.items()}

    def of_first(k: int) -> Tensor:
        """The losses of the first examples of a row."""
        first = tree_map(lambda v: v[:k], (losses, *own, targets, others))
        return _tried(name, partial(tried.function, *first, numbers), (k,), "loss for each example")

    if not torch.allclose(of_first(len(losses))[:1], of_first(1)):
        raise InputError(
            f"objective {name!r} gives an example another loss in another minibatch: make the loss "
            "of each example from that example alone"
        )

    def total(own: list[Tensor], losses: Tensor, *more: Any) -> Tensor:
        return tried.function(losses, *own, *more).sum()

    try:
        with torch.enable_grad():
            together = tried.losses(*given)
            # As all rows at once of a model of the user's, where torch can do less.
            torch.vmap(torch.func.grad(total))(given[1], given[0], *given[2:], {**tried.numbers})
    except Exception as error:  # user code can raise anything
        raise InputError(
            f"objective {name!r} cannot be called for many clients at once by torch.vmap: leave "
            "out .item(), one_hot() and `if` on values of tensors"
        ) from error
    if not together.requires_grad:
        raise InputError(
            f"objective {name!r} gave a loss that no gradient reaches: make it of the outputs, "
            "without detach() or no_grad()"
        )


def _tried(name: str, call: Callable[[], object], shape: tuple[int, ...], what: str) -> Tensor:
    """What an objective gives; refused where it fails, or gives something of another shape."""
    try:
        got = call()
    except FedmabaError:
        raise
    except KeyError as error:
        raise InputError(
            f"objective {name!r} reads {error.args[0]!r}, which is neither among its numbers nor "
            "among the models that it sees: name it in Objective(...)"
        ) from error
    except Exception as error:  # user code can raise anything
        raise user_code.error_in_user_code(f"objective {name!r}", error) from error
    if not isinstance(got, Tensor) or tuple(got.shape) != shape:
        gave = f"shape {tuple(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
        raise InputError(f"objective {name!r} gave {gave}, not {shape}: it must give one {what}")
    if len(wrong := got[~got.isfinite()]):
        raise InputError(
            f"objective {name!r} gave {float(wrong[0])} at the initial model: keep logarithms and "
            "quotients away from 0"
        )
    return got


def scaled(loss: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
    """The usual loss times a factor."""
    return numbers["factor"]


def propfair(loss: Tensor, numbers: Mapping[str, Tensor]) -> Tensor:
    """-log(M - loss); where less than epsilon is left of M, a line of this slope."""
    left, epsilon = numbers["M"] - loss, numbers["epsilon"]
    inside = 1.0 / torch.where(left >= epsilon, left, 1.0)
    return torch.where(left >= epsilon, inside, numbers["slope"])


def fedntd(
    losses: Tensor,
    outputs: Tensor,
    y: Tensor,
    others: Mapping[str, Tensor],
    numbers: Mapping[str, Tensor],
) -> Tensor:
    """The usual loss, and beta * KL(server, client) over the classes that an example is not of."""
    if outputs.ndim != 2 or y.is_floating_point():
        raise InputError(
            "fedntd is for examples of one class each: choose another strategy for these targets"
        )
    true = y[:, None] == torch.arange(outputs.shape[-1], device=y.device)
    theirs, own = (
        (v / numbers["tau"]).masked_fill(true, NEVER).log_softmax(-1)
        for v in (others["server"], outputs)
    )
    return losses + numbers["beta"] * (theirs.exp() * (theirs - own)).sum(-1)


def moon(
    losses: Tensor,
    outputs: Tensor,
    y: Tensor,
    others: Mapping[str, Tensor],
    numbers: Mapping[str, Tensor],
) -> Tensor:
    """The usual loss, and mu * -log of the server's part in exp(cosine / tau)."""
    likeness = [
        torch.nn.functional.cosine_similarity(outputs.flatten(1), others[name].flatten(1))
        for name in ("server", "previous")
    ]
    return losses - numbers["mu"] * (torch.stack(likeness) / numbers["tau"]).log_softmax(0)[0]


def moon_of_features(
    losses: Tensor,
    outputs: Tensor,
    features: Tensor,
    y: Tensor,
    others: Mapping[str, tuple[Tensor, Tensor]],
    numbers: Mapping[str, Tensor],
) -> Tensor:
    """As `moon`, with features in place of outputs."""
    return moon(losses, features, y, {name: pair[1] for name, pair in others.items()}, numbers)


NEVER = -1e30  # a logit whose class has no probability, and no difference that is not a number


OBJECTIVES: dict[str, Callable[..., Tensor]] = {
    "scaled": scaled,
    "propfair": propfair,
    "fedntd": fedntd,
    "moon": moon,
    "moon-features": moon_of_features,
}
