"""Copies of a folder, and what a copy must not do when it is brought back. No torch.

A copy that is brought back never gives epsilon or rounds back: a ledger that is still there stays,
and where the disk was lost, the larger of the copy's count and the server's holds from the next
round on. Programs must not run meanwhile, so that all files of the copy are of one moment.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path

from fedmaba.deploy.flower_app import private
from fedmaba.deploy.operate import processes
from fedmaba.deploy.operate.forms import no_save
from fedmaba.errors import InputError
from fedmaba.results import files, run_folder

LEFT_OUT = ("logs", "home/apps", processes.LOCK, "proxy/logs")
OWNERS = ("federation.toml", "site.toml")
COUNTS = ("ledger", "keep/rounds-taken", "state")  # what exists already and counts stays


def backup(folder: Path, target: Path) -> int:
    """Write a folder into a new archive that only this account can read; how many files."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of a federation or a site: name one")
    busy = processes.is_running(folder) or run_folder.in_use(folder / "state")
    if busy:
        raise InputError(f"{folder} is at work: fedmaba flower stop {folder}, then copy it")
    count = 0
    try:
        with (
            open(target, "xb", opener=private.opener) as out,
            tarfile.open(fileobj=out, mode="w:gz") as archive,
        ):
            for path in sorted(folder.rglob("*")):
                name = path.relative_to(folder).as_posix()
                if path.is_file() and not path.is_symlink() and not _below(name, LEFT_OUT):
                    archive.add(path, name, recursive=False)
                    count += 1
    except FileExistsError as error:
        raise InputError(f"{target} exists: name a new file") from error
    except OSError as error:
        raise no_save(target, error) from error
    return count


def restore(archive: Path, folder: Path, over: bool = False) -> tuple[int, list[str]]:
    """Bring a copy back; how many files, and what stayed as it was, because it counts."""
    folder = folder.absolute()
    if folder.is_dir() and processes.is_running(folder):
        raise InputError(f"{folder} is at work: fedmaba flower stop {folder} first")
    found = _read(archive)
    whose = [name for name in OWNERS if name in found]
    if len(whose) != 1:
        raise InputError(f"{archive} is no copy of a folder: name a file that `backup` wrote")
    if folder.is_dir() and any(folder.iterdir()):
        _check_same(found, folder, whose[0])
        if not over:
            raise InputError(f"{folder} is there already: to write over its files, say --over")
    stay = sorted(name for name in COUNTS if (folder / name).exists())
    count = 0
    for name, (content, mode) in found.items():
        here = folder / name
        longer = _below(name, ("audit",)) and here.exists() and here.stat().st_size > len(content)
        if not longer and not _below(name, stay):
            private.new_folder(here.parent)
            files.write(here, content, mode=mode)
            count += 1
    return count, stay


def _read(archive: Path) -> dict[str, tuple[bytes, int]]:
    """All files of a copy with their rights, read before anything is written."""
    out = {}
    try:
        with tarfile.open(archive) as opened:
            for one in opened:
                name, content = Path(one.name), opened.extractfile(one) if one.isfile() else None
                if name.is_absolute() or ".." in name.parts:
                    raise InputError(f"{archive}: {one.name!r} would lie outside of the folder")
                if content is not None:
                    out[one.name] = content.read(), one.mode & 0o755
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or "it is damaged, or no copy"
        raise InputError(f"{archive}: {why}: name a file that `backup` wrote") from error
    return out


def _check_same(found: dict[str, tuple[bytes, int]], folder: Path, owner: str) -> None:
    """Refuse to mix the copy of one federation or site into the folder of another."""
    for name in (owner, "keys/ca.pem"):
        here = folder / name
        if not here.is_file() or (name in found and name.endswith(".pem") and
                                  here.read_bytes() != found[name][0]):  # fmt: skip
            raise InputError(
                f"{folder} is not where this copy comes from, by its {name}: name its own folder, "
                "or a new one"
            )


def _below(name: str, places: tuple[str, ...] | list[str]) -> bool:
    return any(name == place or name.startswith(f"{place}/") for place in places)
