"""Models as ordinary nn.Module, made by a factory of (input shape, number of classes).

Users bring their own as `package.module:factory` or as a callable. Two kinds of layers are refused:
those whose buffers change in training, because clients send only weights; and those that mix
examples, because minibatches are padded. BatchNorm does both; see `batchnorm`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray
from torch import nn

from fedmaba import rng, user_code
from fedmaba.data import trees
from fedmaba.data.model_folder import PREFIX
from fedmaba.data.targets import TargetKind
from fedmaba.data.trees import Tree
from fedmaba.errors import FedmabaError, InputError, unknown
from fedmaba.rows import batchnorm as norms
from fedmaba.rows.base import Inputs, Layout, call, constants, keep_weights, returned, seed_torch
from fedmaba.rows.ready import lstm, mlp_tabular, resnet, transformers

# Of one example: sizes, or a tuple or dict of sizes where there are several inputs. What a factory
# gets also says what the numbers are: see `trees.Shape`.
InputShapes: TypeAlias = trees.Shapes
Factory = Callable[[Any, int], nn.Module]  # of (Shape, number of outputs)
Examples: TypeAlias = Tree[NDArray[Any]] | None  # inputs of the user's own data


def mlp(shape: InputShapes, classes: int) -> nn.Module:
    """perceptron: two hidden layers of 200, ReLU, as FedMDFG's code has it"""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(_count(shape, "mlp"), 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, classes),
    )


def mlp1(shape: InputShapes, classes: int) -> nn.Module:
    """perceptron with one hidden layer of 200, ReLU"""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(_count(shape, "mlp1"), 200), nn.ReLU(), nn.Linear(200, classes)
    )


def cnn(shape: InputShapes, classes: int) -> nn.Module:
    """CNN of FedMDFG's code: conv 5x5 64, pool, conv 5x5 64, pool, 384, 192, dropout 0.2, 0.5"""
    shape = _images(shape, "cnn", 16)
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


def softmax(shape: InputShapes, classes: int) -> nn.Module:
    """softmax regression: one linear layer, a convex problem"""
    return nn.Sequential(nn.Flatten(), nn.Linear(_count(shape, "softmax"), classes))


def _for_images(make: Factory, least: int) -> Factory:
    """A ready model that takes images alone."""

    @wraps(make)
    def checked(shape: InputShapes, classes: int) -> nn.Module:
        return make(_images(shape, make.__name__, least), classes)

    return checked


def _for_tokens(make: Callable[..., nn.Module]) -> Factory:
    """A ready model that takes tokens alone; sizes without a kind may be those of tokens."""

    @wraps(make)
    def checked(shape: InputShapes, classes: int, target: Any = None) -> nn.Module:
        plain, shape = not isinstance(shape, trees.Shape), _sizes(shape, make.__name__)
        tokens = plain or (shape.kind == "i" and shape.vocabulary > 0)
        if not tokens or len(shape) != 1:
            what = "whole numbers" if shape.kind == "i" else "numbers"
            raise InputError(
                f"model {make.__name__} wants tokens, whole numbers from 0 of shape (length,), but "
                f"the data have {what} of shape {tuple(shape)}: use --model mlp"
            )
        return make(shape, classes, target)

    return checked


def _for_tables(make: Factory) -> Factory:
    """A ready model that takes rows of a table alone."""

    @wraps(make)
    def checked(shape: InputShapes, classes: int) -> nn.Module:
        shape = _sizes(shape, "mlp-tabular")
        if len(shape) != 1:
            raise InputError(
                f"model mlp-tabular wants the features of a table, of shape (features,), but the "
                f"data have shape {tuple(shape)}: use --model mlp"
            )
        return make(shape, classes)

    return checked


REGISTRY: dict[str, Factory] = {
    "mlp": mlp,
    "mlp1": mlp1,
    "cnn": cnn,
    "softmax": softmax,
    "resnet8": _for_images(resnet.resnet8, 8),
    "resnet18": _for_images(resnet.resnet18, 8),
    "vit": _for_images(transformers.vit, 8),
    "lstm": _for_tokens(lstm.lstm),
    "lstm-small": _for_tokens(lstm.lstm_small),
    "gpt": _for_tokens(transformers.gpt),
    "mlp-tabular": _for_tables(mlp_tabular.mlp_tabular),
}


def find_factory(name: str) -> Factory:
    """The factory of a registered model, of a folder, or the one at `package.module:factory`."""
    if name in REGISTRY:
        return REGISTRY[name]
    if name.startswith(PREFIX):
        from fedmaba.rows.pretrained import Pretrained

        return Pretrained(name)
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
    make: Factory,
    shape: InputShapes,
    classes: int,
    seed: int,
    batchnorm: norms.Choice = "refuse",
    *,
    target: TargetKind | None = None,
    free: bool = False,
    examples: Examples = None,
    own_layers: Sequence[str] = (),
) -> nn.Module:
    """The model with the initial weights of this seed, checked against the data's shape.

    `target` is what it is to predict; None: one of the classes. `free`: the user's own loss and
    metric decide what outputs mean, so that they need not fit the target; classes must be there.
    `own_layers` are patterns of the names of weights that clients keep.
    The model is tried with some of the `examples`; without them, with zeros and random numbers.
    """
    if isinstance(make, nn.Module):
        kind = type(make).__name__
        raise InputError(
            f"the model is a {kind} already: give a function of (shape, classes) that makes it, as "
            f"lambda shape, classes: {kind}(...)"
        )
    name = getattr(make, "__name__", str(make))
    target = target or TargetKind("classify", (), classes)
    told = _told(make, target)
    with _seeded(int(rng.key(seed, "model")[0]) >> 1):
        try:  # It is called right here, so an error says that it takes other arguments.
            model = make(shape, classes, **told)
        except FedmabaError:
            raise
        except Exception as error:  # user code can raise anything
            raise _unmade(f"model {name!r}", error, shape, classes) from error
        if not isinstance(model, nn.Module):
            raise InputError(f"model {name!r} gave a {type(model).__name__}: return an nn.Module")
        _require_float32(model, name)
        read = as_read(model.eval(), shape, examples)
        x = _inputs(read, examples)
        out, *features = _try(model, name, x)  # This also gives lazy layers their weights.
        if examples is None and any(trees.leaves(trees.mapped(lambda leaf: leaf.vocabulary, read))):
            _try(model, name, _inputs(read, None, largest=True))
    model = norms.replace_batchnorm(model, batchnorm, name)
    if not any(p.requires_grad for p in model.parameters()):
        some = any(True for _ in model.parameters())
        what = "all weights are frozen" if some else "there are no weights to train"
        raise InputError(f"model {name!r}: {what}: let it have weights with requires_grad=True")
    for what, one in zip(RETURNED, (out, *features), strict=False):
        if not one.ndim or len(one) != 2:
            gave = f"gives {what} of shape {tuple(one.shape)} for 2 examples"
            raise InputError(f"model {name!r} {gave}: give one entry for each, as (2, ...)")
    free = free and target.task != "classify"
    if not free and (why := target.misfit(tuple(out.shape[1:]))):
        raise InputError(f"model {name!r} {why}")
    if why := _leak_between_examples(model, name, read, examples) or _no_training(model, name, x):
        raise InputError(f"model {name!r}: {why}")
    if own_layers and (why := keep_weights(model, own_layers)):
        raise InputError(f"model {name!r}: {why}")
    return model


def _require_float32(model: nn.Module, name: str) -> None:
    """Refuse weights that training would change in another precision than the run's."""
    for weight, p in model.named_parameters():
        if p.requires_grad and p.dtype != torch.float32:
            raise InputError(
                f"model {name!r} has the weights {weight!r} of {str(p.dtype)[6:]}: make them "
                "float32; --dtype says in which precision fedmaba computes"
            )


def _no_training(model: nn.Module, name: str, x: Inputs) -> str:
    """Why a model could not be trained from where it begins; empty where it can."""
    for weight, p in model.named_parameters():
        if not bool(p.isfinite().all()):
            return f"its weights {weight!r} are not finite at the start: correct how they are made"
    with generator_left_alone():
        buffers = {n: b.clone() for n, b in model.named_buffers()}
        got = _try(model, name, x, buffers, trained=True)
    for what, one in zip(RETURNED, got, strict=False):
        if not one.is_floating_point():
            kind = str(one.dtype)[6:]
            return f"its {what} are of {kind}: return floating-point numbers, as logits"
    if not got[0].requires_grad:
        return (
            "its outputs have no gradient, so nothing would be trained: leave out .detach(), "
            ".numpy() and torch.no_grad() in forward"
        )
    return ""


def _told(make: object, target: TargetKind) -> dict[str, TargetKind]:
    """What a factory is told besides sizes: one with a parameter `target`, what to predict."""
    try:
        asks = callable(make) and "target" in signature(make).parameters
    except ValueError:  # it has no signature
        asks = False
    return {"target": target} if asks else {}


def sent_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """What a server and its sites send each other of a model's state.

    Not among it: frozen weights, and layers that each site keeps.
    """
    layout, named = Layout(model), dict(model.named_parameters(remove_duplicate=False))
    sent, kept = layout.sent_names(), {id(named.get(name)) for name in layout.kept_names()}
    here = {name for name, p in named.items() if not p.requires_grad or id(p) in kept}
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


def _unmade(what: str, error: Exception, shape: InputShapes, classes: int) -> InputError:
    """The one-line error for a factory that failed."""
    called = error.__traceback__ is not None and error.__traceback__.tb_next is None
    # The call itself failed, so it takes other arguments.
    if isinstance(error, TypeError) and called:
        return InputError(f"{what}: {error}: it must take (shape, classes)")
    return user_code.error_in_user_code(
        f"{what} cannot be made of shape={shape}, classes={classes}", error
    )


@contextmanager
def generator_left_alone() -> Iterator[None]:
    """Restore the caller's random numbers afterwards, whatever a model draws when it is tried."""
    begun = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if begun else ()
    with torch.random.fork_rng(devices=list(gpus)):
        yield


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's random numbers, and restore the caller's state afterwards."""
    with generator_left_alone():
        seed_torch(seed)
        yield


def _leak_between_examples(
    model: nn.Module, name: str, shape: Tree[trees.Shape], examples: Examples
) -> str:
    """Why examples or steps affect others except by the weights; empty where they do not."""
    before = dict(model.named_buffers())
    with _seeded(0):
        one, first, second = (_random(shape, examples, k) for k in range(3))
        for training in (True, False):
            model.train(training)
            norms.use_running_statistics(model)  # what these mix is declared
            outs = []
            for other in (first, first, second):
                after = {n: b.clone() for n, b in before.items()}
                seed_torch(0)
                x = trees.mapped(lambda *two: torch.stack(two), one, other)
                outs.append(_try(model, name, x, after))
                for n, b in before.items():
                    if not torch.equal(b, after[n]):
                        return (
                            f"training changes the buffer {n!r}, which is no weight that clients "
                            "send: leave out such a layer (spectral norm, counters)"
                        )
            if not all(map(_alike, outs[0], outs[1])):
                return (
                    "its output changes from call to call for the same inputs and the same seed "
                    "of torch: draw random numbers by torch, not by numpy or random"
                )
            if not all(_alike(a[0], b[0]) for a, b in zip(outs[1], outs[2], strict=True)):
                return (
                    "its output for an example depends on the others of the minibatch, which is "
                    "padded: normalise each example by itself, as GroupNorm does"
                )
    return ""


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, 1e-4, 1e-6, equal_nan=True)


def as_read(model: nn.Module, shape: InputShapes, examples: Examples = None) -> Tree[trees.Shape]:
    """The shape of inputs as this model reads them: one array of integers may stand for numbers.

    Integers stay integers where the model takes them, as an Embedding does. A model that only takes
    numbers, as a Linear layer does, gets them as numbers.
    """
    read = trees.shape_leaves(shape)
    if not isinstance(read, trees.Shape) or (read.kind == "f" and isinstance(shape, trees.Shape)):
        return read
    other = trees.Shape(read, "i" if read.kind == "f" else "f")  # plain sizes may mean either
    takes = _takes(model, read, examples) or not _takes(model, other, examples)
    return read if takes else other


def outputs_of(
    model: nn.Module, shape: Tree[trees.Shape], examples: Examples = None
) -> tuple[int, ...]:
    """The shape of a model's outputs for one example of inputs as it reads them."""
    with torch.no_grad():
        return tuple(call(model, _inputs(shape, examples)).shape[1:])


def _takes(model: nn.Module, shape: trees.Shape, examples: Examples) -> bool:
    """Whether a model accepts inputs of a shape."""
    try:
        with torch.no_grad():
            call(model, _inputs(shape, examples))
    except Exception:  # User code can raise anything, and `_try` says what.
        return False
    return True


def check_tokens(model: nn.Module, make: Factory, x: Tree[NDArray[Any]]) -> None:
    """Refuse integers that the model cannot look up, such as tokens beyond its Embedding.

    Tried on the examples with the least and the largest value of each input, with a model on the
    CPU, where a wrong one is an error that can be caught.
    """
    rows: set[int] = set()
    for values in trees.leaves(x):
        if values.dtype.kind == "i":
            flat = values.reshape(len(values), -1)
            rows |= {int(flat.min(1).argmin()), int(flat.max(1).argmax())}
    if rows:
        name = getattr(make, "__name__", str(make))
        _try(model.eval(), name, trees.mapped(lambda v: torch.from_numpy(v[sorted(rows)]), x))


@contextmanager
def _watched_tokens(model: nn.Module) -> Iterator[list[str]]:
    """What is wrong with the tokens that reach an Embedding, as long as this lasts."""
    wrong: list[str] = []

    def look(layer: nn.Module, args: tuple[object, ...]) -> None:
        many, ids = int(layer.num_embeddings), args[0] if args else None  # type: ignore[arg-type]
        if isinstance(ids, torch.Tensor) and not ids.is_floating_point() and ids.numel():
            least, most = int(ids.min()), int(ids.max())
            if least < 0 or most >= many:
                wrong.append(
                    f"token id {least if least < 0 else most}, but its Embedding has {many} rows, "
                    f"for 0 to {many - 1}: correct the ids, or make it larger"
                )

    looked = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    hooks = [layer.register_forward_pre_hook(look) for layer in looked]
    try:
        yield wrong
    finally:
        for hook in hooks:
            hook.remove()


def _inputs(shape: Tree[trees.Shape], examples: Examples, largest: bool = False) -> Inputs:
    """The inputs of two examples: given ones, or 0 and 1 in turn; `largest`: the largest tokens.

    Zeros alone may stand for padding. A mask of ones masks nothing.
    """

    def empty(leaf: trees.Shape) -> torch.Tensor:
        most = leaf.vocabulary - 1 if leaf.vocabulary else 1
        values = torch.arange(2 * math.prod(leaf)).view(2, *leaf) % 2 * min(most, 1)
        if leaf.kind == "b" or largest:
            values = torch.full((2, *leaf), 1 if leaf.kind == "b" else max(0, most))
        return values.to(_DTYPES[leaf.kind])

    if examples is None:
        return trees.mapped(empty, shape)
    rows = _distinct_rows(examples)[:2]
    return trees.mapped(
        lambda leaf, values: torch.from_numpy(values[rows]).to(_DTYPES[leaf.kind]), shape, examples
    )


def _random(shape: Tree[trees.Shape], examples: Examples, which: int) -> Inputs:
    """Random inputs of one example, of which tokens and masks are those of a given one."""
    row = 0 if examples is None else _distinct_rows(examples)[which]

    def one(leaf: trees.Shape, value: NDArray[Any] | None = None) -> torch.Tensor:
        if leaf.kind == "f":
            return torch.rand(leaf)
        if value is not None:
            return torch.from_numpy(value[row : row + 1]).to(_DTYPES[leaf.kind])[0]
        if leaf.kind == "i":
            return torch.randint(leaf.vocabulary or 2, tuple(leaf))
        return torch.ones(leaf, dtype=torch.bool)

    return trees.mapped(one, shape, *([] if examples is None else [examples]))


def _distinct_rows(examples: Tree[NDArray[Any]]) -> list[int]:
    """Three examples, each another one where there are so many."""
    values = trees.leaves(examples)
    found: dict[bytes, int] = {}
    many = len(values[0])
    for i in range(0, many, max(1, many // 64)):
        found.setdefault(b"".join(v[i].tobytes() for v in values), i)
    return (list(found.values())[:3] * 3)[:3]


RETURNED = ("outputs", "features")
_DTYPES = {"f": torch.float32, "i": torch.int64, "b": torch.bool}


def _try(
    model: nn.Module,
    name: str,
    x: Inputs,
    buffers: dict[str, torch.Tensor] | None = None,
    *,
    trained: bool = False,
) -> tuple[torch.Tensor, ...]:
    """What a model returns for some inputs: outputs, and features where there are."""
    wrong: list[str] = []
    try:
        with torch.set_grad_enabled(trained), _watched_tokens(model) as wrong:
            got: tuple[object, ...] = returned(model, x, buffers)
    except Exception as error:  # user code can raise anything
        if wrong:
            raise InputError(f"model {name!r} gets {wrong[0]}") from error
        sizes = trees.mapped(lambda v: trees.Shape(tuple(v.shape[1:])), x)
        what = f"model {name!r} does not accept inputs of shape {trees.in_words(sizes)}"
        raise user_code.error_in_user_code(what, error) from error
    for what, one in zip(RETURNED, got, strict=False):
        if not isinstance(one, torch.Tensor):
            gave = f"{what} as {type(one).__name__}"
            raise InputError(
                f"model {name!r} gives {gave}: return one tensor, or a pair (outputs, features)"
            )
    return got  # type: ignore[return-value]


def describe_models() -> list[tuple[str, str]]:
    """Name and one-line description of each model."""
    yours = ("package.module:factory", "your own: a callable of (input shape, number of classes)")
    text = (
        f"{PREFIX}FOLDER",
        "text model of a Hugging Face folder; ,train=head or ,rank=8,on=query|value trains less",
    )
    return [*((name, (f.__doc__ or "").strip()) for name, f in REGISTRY.items()), text, yours]


def _count(shape: InputShapes, name: str) -> int:
    return math.prod(_sizes(shape, name))


def _sizes(shape: InputShapes, name: str) -> trees.Shape:
    """The sizes of the one array that a ready model takes."""
    one = trees.shape_leaves(shape)
    if not isinstance(one, trees.Shape):
        raise InputError(
            f"model {name} takes one array, but the data have {trees.in_words(shape)}: give a "
            "model of your own"
        )
    return one


def _images(shape: InputShapes, name: str, least: int) -> trees.Shape:
    """The sizes of images, which a ready model takes with sides from `least` on."""
    one = _sizes(shape, name)
    if len(one) != 3 or min(one[1:]) < least:
        raise InputError(
            f"model {name} wants images of (channels, height, width) with sides of at least "
            f"{least}, but the data have shape {tuple(one)}: use --model mlp"
        )
    return one
