"""Models as ordinary nn.Module, made by a factory of (input shape, number of classes).

Users bring their own as `package.module:factory` or as a callable. Two kinds of layers are refused:
those whose buffers change in training, because clients send only weights; and those that mix
examples, because minibatches are padded. BatchNorm does both; see `batchnorm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.func import functional_call

from fedmaba import rng, user_code
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.rows import batchnorm as norms
from fedmaba.rows.base import Layout, constants

Shape = tuple[int, ...]
Factory = Callable[[Shape, int], nn.Module]


def mlp(shape: Shape, classes: int) -> nn.Module:
    """the paper's perceptron: two hidden layers of 200, ReLU"""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(_count(shape), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """the paper's CNN: conv 5x5 64, pool, conv 5x5 64, pool, 384, 192, dropout 0.2 and 0.5"""
    if len(shape) != 3 or min(shape[1:]) < 16:
        raise InputError(
            f"model cnn wants images of (channels, height, width) with sides of at least 16, but "
            f"the data have shape {shape}: use --model mlp or softmax"
        )
    height, width = (((side - 4) // 2 - 4) // 2 for side in shape[1:])
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * height * width, 384),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(192, classes),
    )


def softmax(shape: Shape, classes: int) -> nn.Module:
    """softmax regression: one linear layer, a convex problem"""
    return nn.Sequential(nn.Flatten(), nn.Linear(_count(shape), classes))


REGISTRY: dict[str, Factory] = {"mlp": mlp, "cnn": cnn, "softmax": softmax}


def find_factory(name: str) -> Factory:
    """The factory of a registered model, or the one at `package.module:factory`."""
    if name in REGISTRY:
        return REGISTRY[name]
    where, _, attribute = name.partition(":")
    if not attribute:
        raise unknown("model", name, REGISTRY)
    found = user_code.import_attribute(
        f"model {name!r}", where, attribute, "package.module:factory"
    )
    if not callable(found):
        raise InputError(f"model {name!r} is no factory: it must take (shape, classes)")
    return found  # type: ignore[no-any-return]


def build_model(
    make: Factory, shape: Shape, classes: int, seed: int, batchnorm: norms.Choice = "refuse"
) -> nn.Module:
    """The model with the initial weights of this seed, checked against the data's shape."""
    if isinstance(make, nn.Module):
        kind = type(make).__name__
        raise InputError(
            f"the model is a {kind} already: give a function of (shape, classes) that makes it, as "
            f"lambda shape, classes: {kind}(...)"
        )
    name = getattr(make, "__name__", str(make))
    with _seeded(int(rng.key(seed, "model")[0]) >> 1):
        try:
            model = make(shape, classes)
        except FedmabaError:
            raise
        except Exception as error:  # user code can raise anything
            raise _unmade(f"model {name!r}", error, shape, classes) from error
        if not isinstance(model, nn.Module):
            raise InputError(f"model {name!r} gave a {type(model).__name__}: return an nn.Module")
        blank = torch.zeros(2, *shape)
        out = _try(model.eval(), name, blank)  # also gives lazy layers their weights
    model = norms.replace_batchnorm(model, batchnorm, name)
    if not any(p.requires_grad for p in model.parameters()):
        some = any(True for _ in model.parameters())
        what = "all weights are frozen" if some else "there are no weights to train"
        raise InputError(f"model {name!r}: {what}: let it have weights with requires_grad=True")
    if out.ndim != 2 or out.shape[0] != 2 or out.shape[1] < classes:
        raise InputError(
            f"model {name!r} gives outputs of shape {tuple(out.shape[1:])} per example, but the "
            f"data have {classes} classes: its last layer must have at least {classes} outputs"
        )
    if why := _leak_between_examples(model, name, shape):
        raise InputError(f"model {name!r}: {why}")
    return model


def sent_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a server and its sites send each other of a model's state.

    Not among it: frozen weights, and layers that each site keeps.
    """
    sent, found = Layout(model).sent_names(), model.named_parameters(remove_duplicate=False)
    here = {name for name, p in found if not p.requires_grad}
    for label, module in model.named_modules():
        if isinstance(module, norms.FrozenBatchNorm | norms.RowBatchNorm):
            here |= {f"{label}.{name}".lstrip(".") for name in module.state_dict()}
    return {n: v for n, v in model.state_dict().items() if n in sent or n not in here}


def require_same_constants(models: Mapping[int, nn.Module]) -> None:
    """Refuse models, by seed, whose frozen weights differ: all rows share one copy of these."""
    (seed, first), *others = models.items()
    kept = constants(first)
    for other, model in others:
        for name, value in constants(model).items():
            if not torch.equal(value, kept[name]):
                raise InputError(
                    f"the frozen weights {name!r} are others with seed {other} than with seed "
                    f"{seed}, and all runs share them: make them alike, from a file or by a seed "
                    "of their own"
                )


def _unmade(what: str, error: Exception, shape: Shape, classes: int) -> InputError:
    """The one-line error for a factory that failed."""
    called = error.__traceback__ is not None and error.__traceback__.tb_next is None
    if isinstance(error, TypeError) and called:  # the call itself failed: it takes other arguments
        return InputError(f"{what}: {error}: it must take (shape, classes)")
    return user_code.error_in_user_code(
        f"{what} cannot be made of shape={shape}, classes={classes}", error
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, and restore the caller's state afterwards."""
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if begun else ()
    with torch.random.fork_rng(devices=list(gpus)):
        torch.manual_seed(seed)
        yield


def _leak_between_examples(model: nn.Module, name: str, shape: Shape) -> str:
    """Why examples or steps affect others except by the weights; empty where they do not."""
    before = dict(model.named_buffers())
    with _seeded(0):
        one, *others = torch.rand(3, *shape)
        for training in (True, False):
            model.train(training)
            norms.use_running_statistics(model)  # what these mix is declared
            outs = []
            for other in others:
                after = {n: b.clone() for n, b in before.items()}
                torch.manual_seed(0)
                x = torch.stack([one, other])
                outs.append(_try(partial(functional_call, model, after), name, x))
                for n, b in before.items():
                    if not torch.equal(b, after[n]):
                        return (
                            f"training changes the buffer {n!r}, which is no weight that clients "
                            "send: leave out such a layer (spectral norm, counters)"
                        )
            if not torch.allclose(outs[0][0], outs[1][0], 1e-4, 1e-6, equal_nan=True):
                return (
                    "its output for an example depends on the others of the minibatch, which is "
                    "padded: normalise each example by itself, as GroupNorm does"
                )
    return ""


def _try(model: Callable[[torch.Tensor], object], name: str, x: torch.Tensor) -> torch.Tensor:
    """The outputs of a model for two inputs."""
    try:
        with torch.no_grad():
            out = model(x)
    except Exception as error:  # user code can raise anything
        what = f"model {name!r} does not accept inputs of shape {tuple(x.shape[1:])}"
        raise user_code.error_in_user_code(what, error) from error
    if not isinstance(out, torch.Tensor):
        raise InputError(f"model {name!r} gives outputs as {type(out).__name__}: return one tensor")
    return out


def describe_models() -> list[tuple[str, str]]:
    """Name and one-line description of each model."""
    yours = ("package.module:factory", "your own: a callable of (input shape, number of classes)")
    return [*((name, (f.__doc__ or "").strip()) for name, f in REGISTRY.items()), yours]


def _count(shape: Shape) -> int:
    return int(torch.Size(shape).numel())
