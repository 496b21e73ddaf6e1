"""Read and write arrays: NPZ files, and the safetensors body of a checkpoint.

What a file declares (names, types, shapes, sizes) is checked before memory is allocated. Only
numbers are read, so nothing in a file can run as code. No torch.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.results import files

Arrays = dict[str, NDArray[Any]]
ITEM_BITS = (8, 16, 32, 64)
SAFETENSORS_NAMES = {  # NumPy and safetensors give these names to numbers.
    "bool": "BOOL",
    **{
        f"{name}{bits}": f"{name[0].upper()}{bits}"
        for name in ("int", "uint")
        for bits in ITEM_BITS
    },
    **{f"float{bits}": f"F{bits}" for bits in ITEM_BITS[1:]},
}
BF = "BF16"  # which NumPy lacks
DTYPES = {kind: np.dtype(name).newbyteorder("<") for name, kind in SAFETENSORS_NAMES.items()}
MAX_MEMBERS = 100_000  # An NPZ file may have this many arrays: a partition has seven for each seed.
FREE_BYTES = 512 * files.MB  # small files may unpack to this much
MAX_RATIO = 8  # Above that, an array may take this many bytes in memory per byte on the disk.
MAX_DIMENSIONS = 8
PIECE_BYTES = 2**20  # read at a time
MAX_LIST_BYTES = 16 * files.MB  # of a zip file's list of members
MAX_WINDOW_BYTES = 64 * files.MB  # An LZMA member may reserve this much memory.
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
READ_ERRORS = (  # Reading a damaged NPZ file may raise any of these.
    OSError, ValueError, EOFError, KeyError, IndexError, OverflowError, RuntimeError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
_HEADER = re.compile(  # as NumPy writes it
    r"\{'descr': '([<>|](?:b1|[iu][1248]|f[248]))', 'fortran_order': (True|False), "
    r"'shape': \(((?:[0-9]{1,18}, ?)*(?:[0-9]{1,18})?)\), \} *\n"
)


class Declared(NamedTuple):
    """What a file says of an array before it is read."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Check = Callable[[Mapping[str, Declared]], None]


class MemoryBudget:
    """Limits the memory that files of one folder may unpack to, by their size on the disk."""

    def __init__(self) -> None:
        self.disk = self.asked = 0

    def spend(self, disk: int, asked: int) -> None:
        self.disk, self.asked = self.disk + disk, self.asked + asked
        if self.asked > max(FREE_BYTES, MAX_RATIO * self.disk):
            raise ValueError(
                f"it would unpack to {asked:,} bytes from {disk:,} on the disk, which is too much"
            )


# --- NPZ ---------------------------------------------------------------------------------------


def npz(arrays: Mapping[str, NDArray[Any]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An NPZ file whose bytes depend only on the arrays; NumPy's own would contain the time."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            z.writestr(info, entry.getvalue())
    return out.getvalue()


def read_npz(
    path: Path,
    names: Iterable[str] | None = None,
    check: Check | None = None,
    budget: MemoryBudget | None = None,
    *,
    missing: bool = False,
) -> Arrays:
    """Read the arrays of an NPZ file, or those named; `check` first sees what the file declares.

    It is an error if the file lacks a name, unless names may be `missing`.
    """
    with files.open_plain(path) as file, _NpzReader(_LimitedReader(file)) as archive:
        known = archive.members()
        wanted = list(known) if names is None else list(names)
        wanted = [name for name in wanted if name in known] if missing else wanted
        declared = {name: archive.declared(known[name]) for name in wanted}
        if check is not None:
            check(declared)
        total = sum(one.nbytes for one in declared.values())
        (budget or MemoryBudget()).spend(files.bytes_on_disk(file), total)
        return {name: archive.array(known[name]) for name in wanted}


class _LimitedReader(io.RawIOBase):
    """A file of which only a limited number of bytes is read at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > MAX_LIST_BYTES:
            raise ValueError("its list of members is too long")
        return self._file.read(size)

    def seek(self, *where: int) -> int:
        return self._file.seek(*where)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True


class _NpzReader(zipfile.ZipFile):
    """Reads the members of an NPZ file and trusts none of their headers."""

    def members(self) -> dict[str, zipfile.ZipInfo]:
        """All members by the name of their array; no name may appear twice."""
        listed = self.infolist()
        found = {info.filename.removesuffix(".npy"): info for info in listed}
        if len(listed) > MAX_MEMBERS or len(found) < len(listed):
            raise ValueError(f"it has {len(listed):,} arrays, some of one name or too many")
        return found

    def declared(self, info: zipfile.ZipInfo) -> Declared:
        """The type and shape of a member; its size must agree with them."""
        with self._member(info) as member:
            return self._head(info, member)[0]

    def array(self, info: zipfile.ZipInfo) -> NDArray[Any]:
        """The array of a member, unpacked piece by piece."""
        with self._member(info) as member:
            (dtype, shape), turned = self._head(info, member)
            out = np.empty(math.prod(shape), dtype)
            view = memoryview(out.view(np.uint8).data)
            done = 0
            while done < len(view):
                count = member.readinto(view[done : done + PIECE_BYTES])
                if not count:
                    raise EOFError(f"{info.filename} ends early")
                done += count
            if member.read(1):
                raise ValueError(f"{info.filename} goes on after its end")
        return out.reshape(shape, order="F" if turned else "C")

    def _member(self, info: zipfile.ZipInfo) -> zipfile.ZipExtFile:
        if info.compress_type not in COMPRESSIONS:
            raise ValueError(f"{info.filename} is packed in an unusual way")
        if info.compress_type == zipfile.ZIP_LZMA and self._window(info) > MAX_WINDOW_BYTES:
            raise ValueError(f"{info.filename} wants too much memory to unpack")
        member = self.open(info)
        assert isinstance(member, zipfile.ZipExtFile)
        return member

    def _window(self, info: zipfile.ZipInfo) -> int:
        """The size of an LZMA member's dictionary: memory that opening it reserves."""
        file: Any = self.fp
        file.seek(info.header_offset)
        local = file.read(30)
        file.seek(info.header_offset + 30 + sum(local[26:30:2]) + 256 * sum(local[27:30:2]))
        return int.from_bytes(file.read(9)[5:9], "little")

    def _head(self, info: zipfile.ZipInfo, member: zipfile.ZipExtFile) -> tuple[Declared, bool]:
        start = member.read(8)
        wide = {b"\x93NUMPY\x01\x00": 2, b"\x93NUMPY\x02\x00": 4}.get(start)
        if wide is None:
            raise ValueError(f"{info.filename} is no array")
        size = int.from_bytes(member.read(wide), "little")
        found = _HEADER.fullmatch(member.read(min(size, 10_000)).decode("latin-1"))
        if found is None:
            raise ValueError(f"{info.filename} is no array of numbers")
        dtype, turned, words = np.dtype(found[1]), found[2] == "True", found[3]
        declared = Declared(dtype, tuple(int(word) for word in words.split(",") if word.strip()))
        if len(declared.shape) > MAX_DIMENSIONS:
            raise ValueError(f"{info.filename} has {len(declared.shape)} dimensions")
        if declared.nbytes != info.file_size - 8 - wide - size:
            raise ValueError(f"{info.filename} has another size than it says")
        return declared, turned


# --- a safetensors body ------------------------------------------------------------------------


def pack(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> list[files.Buffer]:
    """Arrays and JSON-ready meta data as a safetensors body, in pieces, mostly without a copy."""
    header: dict[str, Any] = {"__metadata__": {"fedmaba": json.dumps(meta)}, **arrays}  # in order
    pieces: list[files.Buffer] = []
    end = 0
    for name, value in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        kind = SAFETENSORS_NAMES.get(value.dtype.name)
        if kind is None:
            raise InputError(f"{name}: an array of {value.dtype} cannot be saved: keep numbers")
        flat = np.ravel(value).astype(value.dtype.newbyteorder("<"), copy=False)
        place = [end, end := end + flat.nbytes]
        header[name] = {"dtype": kind, "shape": value.shape, "data_offsets": place}
        pieces.append(flat.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def unpack(
    file: io.BufferedIOBase, size: int, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Arrays, dict[str, Any]]:
    """Read back what `pack` was given, in the same order; `wanted` picks some arrays."""
    length, told, header = _read_header(file, size)
    if not isinstance(told, dict) or not isinstance(told.get("fedmaba"), str):
        raise ValueError("it lacks what fedmaba says of it")
    meta = files.parse_json(told["fedmaba"].encode())
    if not isinstance(meta, dict):
        raise ValueError("what fedmaba says of it is no JSON object")
    return _read_arrays(file, header, size - 8 - length, wanted), meta


def read_weights(path: Path) -> Arrays:
    """The arrays of a safetensors file that anybody wrote; bfloat16 becomes float32."""
    with files.open_plain(path, links=True) as file:
        size = os.fstat(file.fileno()).st_size
        if files.mostly_holes(file):
            raise ValueError("most of it is a hole")
        length, _, header = _read_header(file, size)
        short = [n for n, one in header.items() if isinstance(one, dict) and one.get("dtype") == BF]
        for name in short:
            header[name] = {**header[name], "dtype": "U16"}
        found = _read_arrays(file, header, size - 8 - length)
    for name in short:  # the upper half of a float32
        found[name] = (found[name].astype(np.uint32) << 16).view(np.float32)
    return found


def first_bytes(path: Path, count: int) -> bytes:
    """How a file that the user named begins."""
    with files.open_plain(path, links=True) as file:
        return file.read(count)


def _read_header(file: io.BufferedIOBase, size: int) -> tuple[int, Any, dict[str, Any]]:
    """The length of a safetensors header, its meta data and its entries."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(files.MAX_JSON_BYTES, size - 8):
        raise ValueError("its header is too long")
    header = files.parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    return length, header.pop("__metadata__", None), header


def _read_arrays(
    file: io.BufferedIOBase,
    header: Mapping[str, Any],
    size: int,
    wanted: Callable[[str], bool] = lambda name: True,
) -> Arrays:
    """The arrays that a header tells of, which fill the file's last `size` bytes."""
    places = {name: _parse_entry(name, one) for name, one in header.items()}
    end = 0
    for first, last, _ in sorted((place for place, _ in places.values()), key=lambda p: p[:2]):
        if first != end:
            raise ValueError("its arrays overlap or leave gaps")
        end = last
    if end != size:
        raise ValueError("its arrays are larger or smaller than the file")
    found: Arrays = {}
    for name, ((first, _, count), (dtype, shape)) in places.items():
        if wanted(name):
            file.seek(first - end, io.SEEK_END)
            data = np.empty(count, dtype)
            if file.readinto(data.view(np.uint8).data) != data.nbytes:
                raise EOFError(f"{name} ends early")
            found[name] = data.astype(dtype.newbyteorder("="), copy=False).reshape(shape)
    return found


def _parse_entry(name: str, one: Any) -> tuple[tuple[int, int, int], Declared]:
    """Where an array begins and ends, its length, type and shape, as the header says."""
    one = one if isinstance(one, dict) else {}
    dtype, shape, place = (
        DTYPES.get(str(one.get("dtype"))),
        one.get("shape"),
        one.get("data_offsets"),
    )
    if dtype is None or not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{name} is no array of numbers")
    declared = Declared(dtype, tuple(shape))
    if not _are_counts(place) or len(place) != 2 or place[1] - place[0] != declared.nbytes:
        raise ValueError(f"{name} has another size than it says")
    return (place[0], place[1], math.prod(shape)), declared


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
