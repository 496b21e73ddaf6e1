"""Reading the files of published data sets, in every form in which they are shipped.

Published files are trusted for one reason only: size and SHA-256 are those of the publisher's plain
files (idx or *.bin). Every other form (gzip, xz, tar, Python batches) is turned into these bytes
first and checked as such, so all ways to load a set end in the same numbers. Python batches are
read opcode by opcode, which builds nothing but byte strings and small integers. What may
not live here: torch, and any reader that executes what a file says.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import math
import pickletools
import tarfile
import warnings
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.dataset import IntArray
from fedmaba.data.paths import is_file
from fedmaba.data.published import Normalisation, PlainFile, Published
from fedmaba.errors import InputError, error_line

Float32Array = NDArray[np.float32]
Buffer = bytes | memoryview
# It maps a path to the plain files that it holds.
FoundFiles = Mapping[Traversable, Sequence[PlainFile]]


_TRUTHS = {"NEWTRUE": True, "NEWFALSE": False}
_INTEGERS = ("BININT", "BININT1", "BININT2")


def _literals(raw: Buffer) -> list[int | bytes]:
    """The numbers, truths and strings of a pickle, in order; nothing is built or called."""
    out: list[int | bytes] = []
    with warnings.catch_warnings(action="ignore"):  # of wrong escapes, in files that are no batch
        for opcode, value, _ in pickletools.genops(io.BytesIO(raw)):
            if opcode.name in _TRUTHS:
                out.append(_TRUTHS[opcode.name])
            elif isinstance(value, bytes) or (isinstance(value, int) and opcode.name in _INTEGERS):
                out.append(value)
            elif isinstance(value, str) and opcode.name.endswith(("STRING", "UNICODE")):
                out.append(value.encode("latin-1", "replace"))
    return out


def _batch_to_bin(spec: Published, file: PlainFile, raw: Buffer) -> memoryview:
    """A Python batch as the bytes of the *.bin file it stands for."""
    n, pixels = file.size // spec.record, math.prod(spec.shape)
    columns = {word.encode(): array("B") for word in spec.labels}
    data, column, fortran = None, None, False
    for item in _literals(raw):
        if isinstance(item, bool):
            fortran = item if data is None else fortran  # NumPy says this just before the pixels.
        elif isinstance(item, bytes):
            data = item if len(item) == n * pixels else data
            # Integers belong to the label list whose key was the last string before them.
            column = columns.get(item[:32])
        elif column is not None:
            if len(column) == n or not 0 <= item < len(spec.classes):
                raise ValueError(f"label {item} after {len(column)} others")
            column.append(item)
    if data is None or any(len(column) != n for column in columns.values()):
        raise ValueError(f"it lacks {n} images of {pixels} bytes or their labels")
    out = np.empty((n, spec.record), np.uint8)
    for j, column in enumerate(columns.values()):
        out[:, j] = column
    values = np.frombuffer(data, np.uint8)
    out[:, len(columns) :] = values.reshape((n, pixels), order="F" if fortran else "C")
    return out.reshape(-1).data


def _unpack(
    spec: Published, path: Traversable, files: Sequence[PlainFile], handle: IO[bytes]
) -> Iterator[tuple[PlainFile, Buffer]]:
    """The plain files that an open file holds in whichever form, not yet checked."""
    # A batch is as long as its *.bin file, apart from the images' file names.
    most = {file: file.size + file.size // 8 + 65536 for file in files}
    for archive in filter(None, (spec.binary, spec.python)):
        if path.name == archive[0].name:
            digest = hashlib.sha256()
            while block := handle.read(1 << 20):
                digest.update(block)
            check_bytes(spec, path, archive[0], handle.tell(), digest.hexdigest())
            handle.seek(0)
            batch = archive is spec.python
            inside = {f.name.removesuffix(".bin") if batch else f.name: f for f in files}
            with tarfile.open(fileobj=handle, mode="r|gz") as tar:
                for member in tar:
                    folder, _, stem = member.name.partition("/")
                    expected = folder == archive[1] and member.isreg()
                    file = inside.pop(stem, None) if expected else None
                    if file and (stream := tar.extractfile(member)):
                        raw = stream.read(most[file])
                        yield file, _batch_to_bin(spec, file, raw) if batch else raw
            if inside:
                raise ValueError(f"the archive lacks {min(inside)}")
            return
    (file,) = files
    if path.name.endswith(".gz"):
        yield file, gzip.GzipFile(fileobj=handle).read(file.size + 1)
    elif path.name.endswith(".xz"):
        packed = handle.read(most[file])
        yield file, lzma.LZMADecompressor(memlimit=1 << 27).decompress(packed, file.size + 1)
    elif path.name == file.name:
        yield file, handle.read(file.size + 1)
    else:
        yield file, _batch_to_bin(spec, file, handle.read(most[file]))


def check_bytes(
    spec: Published, path: Traversable, file: PlainFile, size: int, digest: str
) -> None:
    """Refuse what does not have the publisher's size and digest."""
    if size != file.size:
        found = f"more than {file.size}" if size == file.size + 1 else f"{size}"
        raise spec.bad(path, f"{file.name} has {found} bytes here, the publisher's {file.size}")
    if digest != file.sha256:
        what = f"{file.name} has SHA-256 {digest[:16]}... here, the publisher's"
        raise spec.bad(path, f"{what} {file.sha256[:16]}...")


def read_checked(spec: Published, found: FoundFiles) -> Iterator[tuple[PlainFile, Buffer]]:
    """Each plain file of a set, checked: (file, its bytes)."""
    for path, files in found.items():
        try:
            with path.open("rb") as handle:
                for file, raw in _unpack(spec, path, files, handle):
                    check_bytes(spec, path, file, len(raw), hashlib.sha256(raw).hexdigest())
                    yield file, raw
        except InputError:
            raise
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as err:
            raise spec.bad(path, f"cannot be read ({error_line(err)})") from None


def find_files(spec: Published, folder: Traversable) -> FoundFiles:
    """Which path in a folder holds which of the plain files; empty if the set is not there."""
    forms = [(sub, False) for sub in ("", *spec.folders)]
    forms += [(sub, True) for sub in ("", spec.python[1])] if spec.python else []
    for sub, batch in forms:
        base = folder.joinpath(*sub.split("/")) if sub else folder
        found: dict[Traversable, list[PlainFile]] = {}
        lacking = ""
        for file in spec.files:
            stem = file.name.removesuffix(".bin")
            names = [stem] if batch else [file.name + end for end in ("", ".gz", ".xz")]
            path = next((p for p in map(base.joinpath, names) if is_file(p)), None)
            if path is None:
                lacking = lacking or names[0]
            else:
                found[path] = [file]
        if found and not lacking:
            return found
        if found and (sub or not batch):  # A lone file called "train" or "test" may be anything.
            have, fetch = next(iter(found)).name, f"`fedmaba data fetch {spec.name}`"
            fix = f"add it, or empty the folder and run {fetch}"
            raise InputError(f"{base}: it holds {have} but not {lacking}: {fix}")
    for archive in filter(None, (spec.binary, spec.python)):
        whole = folder.joinpath(archive[0].name)
        if is_file(whole):
            return {whole: spec.files}
    return {}


def read_arrays(
    spec: Published, found: FoundFiles, inputs: Normalisation
) -> tuple[Float32Array, IntArray, int]:
    """x, y and the number of training rows, read with one file in memory at a time."""
    first, n, n_train = {}, {True: 0, False: 0}, 0  # first row of each file; rows so far
    head = {True: 8, False: 0 if spec.labels else 16}  # an idx header: of labels, of images
    for file in spec.files:
        only_labels = "labels" in file.name
        rows = (file.size - head[only_labels]) // (1 if only_labels else spec.record)
        first[file] = slice(n[only_labels], n[only_labels] + rows)
        n[only_labels] += rows
        n_train = n_train if file.name.startswith(("t10k", "test")) else n[only_labels]
    x, y = np.empty((n[False], *spec.shape), np.float32), np.empty(n[False], np.int64)
    level = np.arange(256, dtype=np.float32) / np.float32(255)  # (256,)
    tables = [
        (level - np.float32(m)) / np.float32(s)
        for m, s in zip(inputs.mean, inputs.std, strict=True)
    ]
    for file, raw in read_checked(spec, found):
        if "labels" in file.name:
            y[first[file]] = np.frombuffer(raw, np.uint8, offset=head[True])
            continue
        record = np.frombuffer(raw, np.uint8, offset=head[False]).reshape(-1, spec.record)
        if spec.labels:
            y[first[file]] = record[:, range(len(spec.labels))[spec.label]]
        pixels = record[:, len(spec.labels) :].reshape(-1, *spec.shape)
        out = x[first[file]]
        # It works in pieces, so that the float copy stays small.
        for i in range(0, len(out), 5000):
            for channel, table in enumerate(tables):
                out[i : i + 5000, channel] = table[pixels[i : i + 5000, channel]]
    return x, y, n_train
