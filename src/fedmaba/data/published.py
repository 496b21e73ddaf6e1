"""Published data sets: finding, fetching, checking and reading their files.

Published files are trusted for one reason only: size and SHA-256 are those of the publisher's plain
files (idx or *.bin). Every other form (gzip, xz, tar, Python batches) is turned into these bytes
first and checked as such, so all ways to load a set end in the same numbers. Python batches are
read by a walk over their opcodes that builds nothing but byte strings and small integers. What may
not live here: torch, and any reader that executes what a file says.
"""

from __future__ import annotations

import filecmp
import gzip
import hashlib
import http.client
import lzma
import math
import os
import tarfile
import tempfile
import urllib.request
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data import natural
from fedmaba.errors import InputError, unknown

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]
Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all
Buffer = bytes | memoryview


# --- what is published -------------------------------------------------------------------------


class _File(NamedTuple):
    name: str
    size: int
    sha256: str


Found = Mapping[Traversable, Sequence[_File]]  # a path, and which plain files it holds


def _table(text: str) -> tuple[_File, ...]:
    """Lines of "name size sha256" as files."""
    rows = [line.split() for line in text.strip().splitlines()]
    return tuple(_File(name, int(size), digest) for name, size, digest in rows)


@dataclass(frozen=True)
class Published:
    """A data set as its publisher ships it: files, digests, classes, addresses."""

    name: str
    about: str
    files: tuple[_File, ...]  # plain files, training ones first
    classes: tuple[str, ...]
    shape: tuple[int, int, int] = (1, 28, 28)
    mean: tuple[float, ...] = (0.2860,)  # per channel, of pixels / 255, of its training images
    std: tuple[float, ...] = (0.3530,)
    usual: str = "scale"  # how pixels become inputs, unless a run says
    labels: tuple[str, ...] = ()  # label lists of a Python batch, in a *.bin record's order
    label: int = -1  # which of them is learnt
    files_of: str = ""  # the set that these files belong to, if it goes by another name
    urls: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # sub-folders in which the plain files may lie, too
    binary: tuple[_File, str] | None = None  # archive of the plain files, the folder inside it
    python: tuple[_File, str] | None = None  # archive of the Python batches, the folder inside it
    system: Path | None = None  # where a package of the operating system puts the files

    @property
    def folder(self) -> str:
        """The name of the folder that the files are kept in."""
        return self.files_of or self.name

    @property
    def record(self) -> int:
        """Bytes of one example: its labels (*.bin only), then the pixels."""
        return len(self.labels) + math.prod(self.shape)

    def bad(self, path: object, what: str) -> InputError:
        """The error for a file that is not what the publisher ships."""
        fix = f"delete it and run `fedmaba data fetch {self.name}`"
        return InputError(f"{path}: {what}: {fix if self.urls else 'install fedmaba again'}")


_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
_CIFAR10 = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
_CIFAR100 = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge
bus butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm"""
_CIFAR20 = """aquatic_mammals fish flowers food_containers fruit_and_vegetables
household_electrical_devices household_furniture insects large_carnivores
large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2"""
_ZALANDO = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10_PIXELS = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))  # mean, std
_CIFAR100_PIXELS = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
_SAMPLE_FILES = _table("""
train-images-idx3-ubyte 4704016 cf313073c7eb485392848071d5c433571d7166043e971e3345b095cc30518084
train-labels-idx1-ubyte 6008 097b93fbcf9bd5bc648b1a457ddc55c9e4ab49afb33f9ecae8ce068399a75e3a
t10k-images-idx3-ubyte 1568016 15a92dd1e9b16ea361928086e77df4dfa890c255c00b5a8c8162c1040ce8eef1
t10k-labels-idx1-ubyte 2008 234596aeb6eb48133ec99a62541f90bc0728c9559a681f1e0638037462458f2c
""")
_FASHION_FILES = _table("""
train-images-idx3-ubyte 47040016 c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888
train-labels-idx1-ubyte 60008 bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9
t10k-images-idx3-ubyte 7840016 5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b
t10k-labels-idx1-ubyte 10008 0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34
""")
_CIFAR10_FILES = _table("""
data_batch_1.bin 30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
data_batch_2.bin 30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
data_batch_3.bin 30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
data_batch_4.bin 30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
data_batch_5.bin 30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
test_batch.bin 30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
""")
_CIFAR100_FILES = _table("""
train.bin 153700000 f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29
test.bin 30740000 d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a
""")
_ARCHIVES = _table("""
cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
cifar-10-python.tar.gz 170498071 6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce
cifar-100-binary.tar.gz 168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec
cifar-100-python.tar.gz 169001437 85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7
""")
PUBLISHED = {
    "sample": Published(
        "sample",
        "8,000 images of Fashion-MNIST that come with the package (6,000 train, 2,000 test)",
        _SAMPLE_FILES,
        tuple(_CLOTHES.split(",")),
    ),
    "fashion-mnist": Published(
        "fashion-mnist",
        "70,000 grey images of clothes, 10 classes (60,000 train, 10,000 test); MIT licence",
        _FASHION_FILES,
        tuple(_CLOTHES.split(",")),
        urls=tuple(f"{_ZALANDO}{file.name}.gz" for file in _FASHION_FILES),
        folders=("FashionMNIST/raw",),
        system=Path("/usr/share/datasets/fashion-mnist"),
    ),
    "cifar10": Published(
        "cifar10",
        "60,000 colour images, 10 classes (50,000 train, 10,000 test); Krizhevsky 2009",
        _CIFAR10_FILES,
        tuple(_CIFAR10.split(",")),
        (3, 32, 32),
        *_CIFAR10_PIXELS,
        usual="cifar10",
        labels=("labels",),
        urls=(_TORONTO + _ARCHIVES[0].name,),
        folders=("cifar-10-batches-bin",),
        binary=(_ARCHIVES[0], "cifar-10-batches-bin"),
        python=(_ARCHIVES[1], "cifar-10-batches-py"),
    ),
    "cifar100": Published(
        "cifar100",
        "60,000 colour images, 100 fine classes (50,000 train, 10,000 test); Krizhevsky 2009",
        _CIFAR100_FILES,
        tuple(_CIFAR100.split()),
        (3, 32, 32),
        *_CIFAR100_PIXELS,
        usual="cifar10",
        labels=("coarse_labels", "fine_labels"),
        urls=(_TORONTO + _ARCHIVES[2].name,),
        folders=("cifar-100-binary",),
        binary=(_ARCHIVES[2], "cifar-100-binary"),
        python=(_ARCHIVES[3], "cifar-100-python"),
    ),
}
PUBLISHED["cifar100-coarse"] = replace(
    PUBLISHED["cifar100"],
    name="cifar100-coarse",
    about="CIFAR-100 with its 20 coarse classes; the same files",
    classes=tuple(_CIFAR20.split()),
    label=0,
    files_of="cifar100",
)


NORMALISE = {
    "scale": "pixels / 255",
    "standard": "pixels / 255, minus the set's own mean, divided by its standard deviation",
    "cifar10": "the same with CIFAR-10's mean and deviation, also for CIFAR-100",
}


class Normalisation(NamedTuple):
    """How pixels become inputs: (pixel / 255 - mean) / std, channel by channel."""

    name: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def in_words(self) -> str:
        """One line for the record of a run."""
        if self.name == "scale":
            return "scale: pixels / 255"
        mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (self.mean, self.std))
        return f"{self.name}: (pixels / 255 - {mean}) / {std}"


def normalisation(spec: Published, how: str | None) -> Normalisation:
    """How the pixels of a set become inputs; None: as is usual for the set."""
    name, channels = how or spec.usual, spec.shape[0]
    if name == "scale":
        return Normalisation(name, (0.0,) * channels, (1.0,) * channels)
    if name == "standard":
        return Normalisation(name, spec.mean, spec.std)
    if name != "cifar10":
        raise unknown("normalise", name, NORMALISE)
    if channels != 3:
        raise InputError(
            f"normalise={name!r} is for colour images, but {spec.name} is grey: say scale or "
            "standard"
        )
    return Normalisation(name, *_CIFAR10_PIXELS)


# --- reading published files -------------------------------------------------------------------

# the pickle opcodes that a batch of numbers needs; any other one ends the reading
_PLAIN = frozenset(b"(}])Rbaesut\x85\x86\x87N\x93\x94")  # no argument
_SKIPPED = {0x80: 1, ord("q"): 1, ord("r"): 4, ord("h"): 1, ord("j"): 4, 0x95: 8}
_INTEGER = {ord("K"): 1, ord("M"): 2, ord("J"): 4}
_STRING = {ord("U"): 1, ord("C"): 1, 0x8C: 1, ord("T"): 4, ord("X"): 4, ord("B"): 4}


def _walk(raw: Buffer) -> Iterator[int | memoryview]:
    """The numbers, truths and strings of a pickle, in order; nothing is built or called."""
    view, at = memoryview(raw), 0
    while at < len(view):
        code, at = view[at], at + 1
        if code == ord("."):
            return
        if code in _SKIPPED:
            at += _SKIPPED[code]
        elif code in (0x88, 0x89):
            yield code == 0x88
        elif code in _INTEGER:
            start, at = at, at + _INTEGER[code]
            yield int.from_bytes(view[start:at], "little", signed=code == ord("J"))
        elif code in _STRING:
            start = at + _STRING[code]
            at = start + int.from_bytes(view[at:start], "little")
            if at > len(view):
                raise ValueError(f"a string ends beyond the file, at byte {at}")
            yield view[start:at]
        elif code == ord("c"):  # the name of a class or function: two lines, skipped unread
            for _ in range(2):
                stop = bytes(view[at : at + 256]).find(b"\n")
                if stop < 0:
                    raise ValueError(f"no end of line near byte {at}")
                at += stop + 1
        elif code not in _PLAIN:
            raise ValueError(f"opcode {code:#04x} at byte {at - 1} has no place in a batch")
    raise ValueError("it ends too early")


def _batch_to_bin(spec: Published, file: _File, raw: Buffer) -> memoryview:
    """A Python batch as the bytes of the *.bin file it stands for."""
    n, pixels = file.size // spec.record, math.prod(spec.shape)
    columns = {word.encode(): array("B") for word in spec.labels}
    data, column, fortran = None, None, False
    for item in _walk(raw):
        if isinstance(item, bool):
            fortran = item if data is None else fortran  # NumPy says it just before the pixels
        elif isinstance(item, memoryview):
            data = item if len(item) == n * pixels else data
            # integers belong to the label list whose key was the last string before them
            column = columns.get(bytes(item[:32]))
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
    spec: Published, path: Traversable, files: Sequence[_File], handle: IO[bytes]
) -> Iterator[tuple[_File, Buffer]]:
    """The plain files that an open file holds in whichever form, not yet checked."""
    # a batch is as long as its *.bin file, apart from the images' file names
    most = {file: file.size + file.size // 8 + 65536 for file in files}
    for archive in filter(None, (spec.binary, spec.python)):
        if path.name == archive[0].name:
            digest = hashlib.sha256()
            while block := handle.read(1 << 20):
                digest.update(block)
            _check_bytes(spec, path, archive[0], handle.tell(), digest.hexdigest())
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


def _check_bytes(spec: Published, path: Traversable, file: _File, size: int, digest: str) -> None:
    """Refuse what does not have the publisher's size and digest."""
    if size != file.size:
        found = f"more than {file.size}" if size == file.size + 1 else f"{size}"
        raise spec.bad(path, f"{file.name} has {found} bytes here, the publisher's {file.size}")
    if digest != file.sha256:
        what = f"{file.name} has SHA-256 {digest[:16]}... here, the publisher's"
        raise spec.bad(path, f"{what} {file.sha256[:16]}...")


def _read(spec: Published, found: Found) -> Iterator[tuple[_File, Buffer]]:
    """Each plain file of a set, checked: (file, its bytes)."""
    for path, files in found.items():
        try:
            with path.open("rb") as handle:
                for file, raw in _unpack(spec, path, files, handle):
                    _check_bytes(spec, path, file, len(raw), hashlib.sha256(raw).hexdigest())
                    yield file, raw
        except InputError:
            raise
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as err:
            raise spec.bad(path, f"cannot be read ({error_line(err)})") from None


def error_line(err: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(err).split()) or type(err).__name__


def is_file(path: Traversable) -> bool:
    """Whether there is a file; a path that cannot even be looked at is an error."""
    try:
        return path.is_file()
    except OSError as err:
        raise InputError(f"{str(path)[:200]}: {err.strerror}: correct the path or rights") from None


def find_files(spec: Published, folder: Traversable) -> Found:
    """Which path in a folder holds which of the plain files; empty if the set is not there."""
    forms = [(sub, False) for sub in ("", *spec.folders)]
    forms += [(sub, True) for sub in ("", spec.python[1])] if spec.python else []
    for sub, batch in forms:
        base = folder.joinpath(*sub.split("/")) if sub else folder
        found: dict[Traversable, list[_File]] = {}
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
        if found and (sub or not batch):  # a lone file called "train" or "test" may be anything
            have, fetch = next(iter(found)).name, f"`fedmaba data fetch {spec.name}`"
            fix = f"add it, or empty the folder and run {fetch}"
            raise InputError(f"{base}: it holds {have} but not {lacking}: {fix}")
    for archive in filter(None, (spec.binary, spec.python)):
        whole = folder.joinpath(archive[0].name)
        if is_file(whole):
            return {whole: spec.files}
    return {}


def read_arrays(
    spec: Published, found: Found, inputs: Normalisation
) -> tuple[FloatArray, IntArray, int]:
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
    for file, raw in _read(spec, found):
        if "labels" in file.name:
            y[first[file]] = np.frombuffer(raw, np.uint8, offset=head[True])
            continue
        record = np.frombuffer(raw, np.uint8, offset=head[False]).reshape(-1, spec.record)
        if spec.labels:
            y[first[file]] = record[:, range(len(spec.labels))[spec.label]]
        pixels = record[:, len(spec.labels) :].reshape(-1, *spec.shape)
        out = x[first[file]]
        for i in range(0, len(out), 5000):  # in pieces, so that the float copy stays small
            for channel, table in enumerate(tables):
                out[i : i + 5000, channel] = table[pixels[i : i + 5000, channel]]
    return x, y, n_train


# --- finding and fetching ----------------------------------------------------------------------


def spec_of(name: str) -> Published:
    """The published set of this name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if name.partition(":")[0] == "synthetic" or name.endswith((".npz", ".csv", ".parquet")):
        raise InputError(f"{name} has no published files: choose one of {', '.join(PUBLISHED)}")
    raise unknown("data set", name, [*PUBLISHED, *natural.NATURAL, "synthetic"])


def _cache() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG rules say that a relative path here is to be ignored
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "fedmaba"


def _places(spec: Published, data_dir: Path | None) -> list[Traversable]:
    """The folders in which a published set is looked for, in order."""
    if not spec.urls:
        return [resources.files("fedmaba.data").joinpath("sample")]
    places: list[Traversable] = []
    given = os.environ.get("FEDMABA_DATA")
    for word, folder in (("data_dir", data_dir), ("$FEDMABA_DATA", Path(given) if given else None)):
        if folder is not None:
            if not folder.is_dir():
                raise InputError(f"{word} {str(folder)!r} is no folder: create it or correct it")
            places += [folder, folder / spec.folder]
    return [*places, _cache() / spec.folder, *([spec.system] if spec.system else [])]


def locate_files(spec: Published, data_dir: Path | None, why: str | None = "") -> Found:
    """The files of a set in the first place that has any; an error that adds `why` if none has."""
    places = _places(spec, data_dir)
    for place in places:
        if found := find_files(spec, place):
            return found
    if why is None:
        return {}
    if not spec.urls:
        raise InputError(f"{places[0]}: the embedded sample is not there: install fedmaba again")
    debian = ", or install the Debian package dataset-fashion-mnist" if spec.system else ""
    raise InputError(
        f"{spec.name}: no {spec.files[0].name} (nor an archive) in {', '.join(map(str, places))}"
        f"{why}: run `fedmaba data fetch {spec.name}` where there is a network, or name a folder "
        f"that has the files by --data-dir or $FEDMABA_DATA{debian}"
    )


def _download(url: str, target: Path, most: int, progress: Progress | None) -> None:
    """Copy a URL to a file of at most `most` bytes."""
    request = urllib.request.Request(url, headers={"User-Agent": "fedmaba"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply, target.open("wb") as out:
            total, done = int(reply.headers.get("Content-Length") or 0), 0
            while block := reply.read(1 << 18):
                done += len(block)
                if done > most:
                    raise ValueError(f"more than {most} bytes, so not the publisher's file")
                out.write(block)
                if progress:
                    progress(target.name, done, max(total, done))
    except (OSError, ValueError, http.client.HTTPException) as err:
        raise InputError(
            f"{url}: the download failed ({error_line(err)}): try again later"
        ) from None


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`, from which finished files are moved into place."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fedmaba-") as part:
            yield Path(part)
    except OSError as err:
        raise InputError(
            f"{folder}: cannot write there: {err.strerror}: name another one"
        ) from None


def _write(spec: Published, found: Found, folder: Path, *, spare: bool = False) -> list[Path]:
    """Write the plain files into a folder, all or none; `spare` what is there and differs."""
    with _scratch(folder) as part:
        for file, raw in _read(spec, found):
            (part / file.name).write_bytes(raw)
        return _move(part, folder, spare=spare)


def _move(part: Path, folder: Path, *, spare: bool) -> list[Path]:
    """Move all files of a temporary folder into place; `spare` what is there and differs."""
    new = sorted(part.iterdir())
    for path in new if spare else ():
        old = folder / path.name
        if old.exists() and not filecmp.cmp(path, old, shallow=False):
            raise InputError(f"{old} holds something else: choose another folder")
    return [path.replace(folder / path.name) for path in new]


def _damage(spec: Published, found: Found) -> str:
    """What is wrong with the files; empty where nothing is."""
    try:
        for _ in _read(spec, found):
            pass
    except InputError as err:
        return str(err)
    return ""


def fetch(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> Path:
    """Put the publisher's plain files into a folder in `data_dir` or the cache; returns it."""
    if natural.is_natural(name):
        raise InputError(f"{name} comes with the package: there is nothing to fetch")
    spec = spec_of(name)
    if not spec.urls:
        raise InputError(f"{name} comes with the package: there is nothing to fetch")
    target = (data_dir or _cache()) / spec.folder
    for place in (data_dir, target) if data_dir else (target,):
        try:
            found = find_files(spec, place)
        except InputError:
            continue  # some of the files only: all are fetched anew
        if found and not _damage(spec, found):
            return place
    most = spec.binary[0].size if spec.binary else max(f.size for f in spec.files) + 4096
    with _scratch(target) as part:
        for url in spec.urls:
            _download(url, part / url.rpartition("/")[2], most, progress)
        found = find_files(spec, part)
        if wrong := _damage(spec, found):
            what = wrong.removeprefix(f"{part}/").rpartition(": ")[0]
            raise InputError(f"{spec.urls[0]}: not what was published ({what}): try again later")
        _write(spec, found, target)  # plain files: they are found before any damaged archive
    return target


def check(name: str, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """Each file of a set with "ok" or what is wrong with it; else each place with "absent"."""
    if natural.is_natural(name):
        natural.check(name)
        return natural.check_files(name.partition(":")[0])
    spec = spec_of(name)
    rows = []
    for path, files in locate_files(spec, data_dir, None).items():
        wrong = _damage(spec, {path: files})
        rows.append((str(path), wrong.removeprefix(f"{path}: ") or "ok"))
    return rows or [(str(place), "absent") for place in _places(spec, data_dir)]


def export(name: str, directory: Path, data_dir: Path | None = None) -> list[Path]:
    """Write the publisher's plain files (idx or *.bin) of a set, or its table, into a folder."""
    if natural.is_natural(name):
        natural.check(name)
        return _put({file: text.encode() for file, text in natural.as_csv(name).items()}, directory)
    spec = spec_of(name)
    return _write(spec, locate_files(spec, data_dir), directory, spare=True)


def _put(texts: dict[str, bytes], folder: Path) -> list[Path]:
    """Write files into a folder, all or none; what is there and differs is spared."""
    with _scratch(folder) as part:
        for file, text in texts.items():
            (part / file).write_bytes(text)
        return _move(part, folder, spare=True)
