"""The forms in which people have a client's examples: pairs, torch data sets, tables, images.

Each becomes arrays or a table with a client column. Nothing here imports torch, pandas or the like:
an object is known by its methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data import frames
from fedmaba.data.arrays import as_array
from fedmaba.errors import InputError

ARRAY_NAMES = ("x", "y", "x_validation", "y_validation", "x_test", "y_test")
GROUPS = ("group", "group_validation", "group_test")  # of people
KNOWN = (
    "a pair (x, y), a dict with x and y, a torch Dataset of such pairs, or a table with a label "
    "column"
)


class Pooled(NamedTuple):
    """All clients together: arrays as `datasets.from_arrays` takes them, or columns."""

    arrays: dict[str, Any]
    columns: dict[str, list[Any]]
    steps: tuple[str, ...] = ()


def pooled(clients: Any, label: str | None) -> Pooled:
    """The examples of clients that come one by one; the column of their names is `client`."""
    named = list(_each(clients))
    if not named:
        raise InputError("there are no clients: give at least one")
    if len({name for name, _ in named}) < len(named):
        raise InputError("two clients have the same name: name each once")
    if all(_is_table(part) for _, part in named):
        read = [(name, frames.columns_of(part)) for name, part in named]
        column = _image_column(read, label)
        return _columns(read) if column is None else _images(read, column, label)
    arrays: dict[str, list[Any]] = {}
    owner: dict[str, list[NDArray[Any]]] = {}
    for name, part in named:
        for key, values in _arrays(name, part).items():
            arrays.setdefault(key, []).append(values)
            if key[0] == "y":
                many = np.full(len(values), name, object)
                owner.setdefault(f"client{key[1:]}", []).append(many)
    for key in GROUPS:
        if 0 < len(arrays.get(key, ())) < len(arrays[f"y{key[5:]}"]):
            raise InputError(f"some clients have {key}, others do not: give it to all or to none")
    joined = {key: _joined(key, values) for key, values in arrays.items()}
    owners = {key: np.concatenate(names).astype(str) for key, names in owner.items()}
    return Pooled({**joined, **owners}, {})


def _each(clients: Any) -> Iterator[tuple[str, Any]]:
    """Name and examples of each client."""
    if hasattr(clients, "load_partition") and hasattr(clients, "partitioners"):  # flwr_datasets
        part = "train" if "train" in clients.partitioners else next(iter(clients.partitioners))
        for number in range(clients.partitioners[part].num_partitions):
            yield str(number), clients.load_partition(number, part)
    elif hasattr(clients, "load_partition"):  # a Partitioner of data in memory
        for number in range(clients.num_partitions):
            found = clients.load_partition(number)
            names = getattr(clients, "partition_id_to_natural_id", {})  # known once one is loaded
            yield str(names.get(number, number)), found
    elif isinstance(clients, Mapping):
        yield from ((str(name), part) for name, part in clients.items())
    elif isinstance(clients, list | tuple):
        wide = len(str(len(clients) - 1))  # The names then sort as the list does.
        yield from ((str(number).zfill(wide), part) for number, part in enumerate(clients))
    else:
        raise InputError(
            f"clients of type {type(clients).__name__}: give a dict by name, a list, or a "
            "FederatedDataset or Partitioner of flwr_datasets"
        )


def _is_table(part: Any) -> bool:
    if isinstance(part, Mapping):
        return not {"x", "y"} <= set(part)
    return hasattr(part, "columns") or hasattr(part, "column_names")


def _arrays(name: str, part: Any) -> dict[str, Any]:
    """The arrays of one client."""
    if isinstance(part, Mapping) and {"x", "y"} <= set(part):
        if strange := next((key for key in part if key not in ARRAY_NAMES + GROUPS), None):
            known = ", ".join(ARRAY_NAMES + GROUPS)
            raise InputError(f"client {name!r} has {strange!r}: give some of {known}")
        found = {key: as_array(f"client {name!r}: {key}", value) for key, value in part.items()}
    elif isinstance(part, tuple) and len(part) == 2:
        pair = zip("xy", part, strict=True)
        found = {key: as_array(f"client {name!r}: {key}", value) for key, value in pair}
    elif hasattr(part, "__getitem__") and hasattr(part, "__len__") and not _is_table(part):
        found = _items(name, part)
    else:
        raise InputError(f"client {name!r} is of type {type(part).__name__}: give {KNOWN}")
    for tail in ("", "_validation", "_test"):
        x, y = found.get(f"x{tail}"), found.get(f"y{tail}")
        if (x is None) != (y is None):
            raise InputError(f"client {name!r} has one of x{tail} and y{tail}: give both or none")
        if x is not None and y is not None and (not x.ndim or not y.ndim or len(x) != len(y)):
            shapes = f"x{tail} of shape {x.shape} and y{tail} of shape {y.shape}"
            raise InputError(f"client {name!r} has {shapes}: give each one row per example")
        people = found.get(f"group{tail}")
        if people is not None and (y is None or people.shape != y.shape[:1]):
            raise InputError(
                f"client {name!r} has group{tail} of shape {people.shape}: give the group of each "
                f"example of y{tail}"
            )
    return found


def _items(name: str, part: Any) -> dict[str, Any]:
    """The examples of a torch Dataset, or a list of pairs."""
    xs, ys = [], []
    for row in range(len(part)):
        item = part[row]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(
                f"client {name!r}, example {row} is of type {type(item).__name__}: each is a pair "
                "(x, y)"
            )
        xs.append(as_array(f"client {name!r}, example {row}: x", item[0]))
        ys.append(as_array(f"client {name!r}, example {row}: y", item[1]))
    if not xs:
        raise InputError(f"client {name!r} has no examples: leave it out")
    return {"x": _stack(name, "x", xs), "y": _stack(name, "y", ys)}


def _stack(name: str, word: str, values: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = [value.shape for value in values]
    odd = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        raise InputError(
            f"client {name!r}, example {odd}: {word} has shape {shapes[odd]}, the first "
            f"{shapes[0]}: make them the same"
        )
    return np.stack(values)


def _joined(key: str, parts: list[NDArray[Any]]) -> NDArray[Any]:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        told = ", ".join(map(str, sorted(shapes)))
        raise InputError(f"clients have {key} of shapes {told} per example: make them the same")
    if len({part.dtype.kind in "USO" for part in parts}) > 1:
        raise InputError(f"some clients have words in {key}, others numbers: give all alike")
    return np.concatenate(parts)


def _columns(read: list[tuple[str, dict[str, Any]]]) -> Pooled:
    """Tables of the same columns, one below the other, with a column client."""
    first, names = read[0]
    for name, columns in read:
        if set(columns) != set(names):
            odd = sorted(set(columns) ^ set(names))
            raise InputError(
                f"client {name!r} and client {first!r} differ in columns {', '.join(odd)}: give "
                "all the same"
            )
    if "client" in names:
        raise InputError("the tables have a column client, too: leave it out, or use from_frame")
    out: dict[str, list[Any]] = {column: [] for column in names}
    owner: list[str] = []
    for name, columns in read:
        for column, values in columns.items():
            out[column] += frames.cells_of(values)
        owner += [name] * len(next(iter(columns.values())))
    return Pooled({}, {**out, "client": owner})


def _image_column(read: list[tuple[str, dict[str, Any]]], label: str | None) -> str | None:
    """The column that holds an image or array in each cell; None where all are plain."""
    _, columns = read[0]
    for column, values in columns.items():
        first = values[0] if len(values) and column != label else None
        if hasattr(first, "mode") or np.ndim(np.asarray(first)) > 0:
            return column
    return None


def _images(read: list[tuple[str, dict[str, Any]]], column: str, label: str | None) -> Pooled:
    """Images and labels as arrays: bytes as 0 to 1, channels first."""
    xs, ys, owner = [], [], []
    for name, columns in read:
        others = [word for word in columns if word != column]
        usual = next((word for word in (label, "label", "y") if word in others), None)
        if usual is None or len(others) > 1:
            raise InputError(
                f"client {name!r} has columns {', '.join(columns)}: beside the images in {column} "
                "there is to be one column with labels: remove the others, or say label="
            )
        values = columns[column]
        made = _stack(name, column, [np.asarray(cell) for cell in values])
        if hasattr(values[0], "mode"):  # This is a picture of PIL, so bytes with channels last.
            made = (made / 255).astype(np.float32)
            made = made[:, None] if made.ndim == 3 else np.moveaxis(made, -1, 1)
        xs.append(made)
        ys.append(np.asarray(frames.cells_of(columns[usual])))
        owner.append(np.full(len(made), name, object))
    pictures = hasattr(read[0][1][column][0], "mode")
    step = (f"images of {column}: pixels / 255, channels first",) if pictures else ()
    owners = np.concatenate(owner).astype(str)
    return Pooled({"x": _joined("x", xs), "y": _joined("y", ys), "client": owners}, {}, step)
