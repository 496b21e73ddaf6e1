"""The inputs of a model: one array, a tuple of arrays, or a dict of arrays. No torch.

All arrays of a tree have one entry per example. The functions here work on NumPy arrays and on
tensors alike. A model is called with the array, with the tuple's arrays as arguments, or with the
dict's arrays as keywords.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
U = TypeVar("U")
Tree: TypeAlias = T | tuple[T, ...] | dict[str, T]


class Shape(tuple[int, ...]):
    """The shape of one example, which also says what its numbers are.

    kind: "f" for numbers, "i" for integers such as tokens, "b" for truth values such as a mask.
    vocabulary: for integers from 0, how many there are, the largest included; else 0.
    """

    kind: str
    vocabulary: int

    def __new__(cls, sizes: tuple[int, ...], kind: str = "f", vocabulary: int = 0) -> Shape:
        new = super().__new__(cls, sizes)
        new.kind, new.vocabulary = kind, vocabulary
        return new


Shapes: TypeAlias = tuple[int, ...] | tuple[tuple[int, ...], ...] | Mapping[str, tuple[int, ...]]


def mapped(function: Callable[..., U], tree: Tree[Any], *others: Any) -> Tree[U]:
    """The same tree of what the function gives for each array, and for those there in others."""
    if isinstance(tree, dict):
        return {name: function(tree[name], *(other[name] for other in others)) for name in tree}
    if isinstance(tree, tuple) and not isinstance(tree, Shape):
        return tuple(function(*values) for values in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree[T]) -> list[T]:
    """The arrays of a tree, in order."""
    if isinstance(tree, dict):
        return [*tree.values()]
    return [*tree] if isinstance(tree, tuple) and not isinstance(tree, Shape) else [tree]


def named(tree: Tree[Any], head: str) -> Tree[str]:
    """What to call each array of a tree that is called `head`: x, or x.ids and x.mask."""
    if isinstance(tree, dict):
        return {name: f"{head}.{name}" for name in tree}
    return tuple(f"{head}.{i}" for i in range(len(tree))) if isinstance(tree, tuple) else head


def leaf_names(tree: Tree[Any], head: str) -> list[str]:
    """These names, in order."""
    return leaves(named(tree, head))


def shape_of(array: Any) -> Shape:
    """The shape of an array's examples."""
    kind = "i" if array.dtype.kind in "iu" else array.dtype.kind
    least, most = (int(array.min()), int(array.max())) if kind == "i" and array.size else (0, -1)
    return Shape(tuple(array.shape[1:]), kind, most + 1 if least >= 0 else 0)


def shape_leaves(shapes: Shapes) -> Tree[Shape]:
    """Shapes with their kinds; a plain tuple of sizes is one array of numbers."""
    if isinstance(shapes, Mapping):
        return {name: _shape(shape) for name, shape in shapes.items()}
    if shapes and isinstance(shapes[0], tuple):
        return tuple(_shape(shape) for shape in shapes)
    return _shape(shapes)  # type: ignore[arg-type]


def _shape(shape: tuple[int, ...]) -> Shape:
    return shape if isinstance(shape, Shape) else Shape(tuple(shape))


def in_words(shapes: Shapes) -> str:
    """Shapes for people: (3, 32, 32), or ids (80,), mask (80,)."""
    if isinstance(shapes, Mapping):
        return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    if shapes and isinstance(shapes[0], tuple):
        return ", ".join(str(tuple(shape)) for shape in shapes)
    return str(tuple(shapes))
