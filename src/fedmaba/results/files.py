"""Read and write files that others may have changed: plain files only, never through a link.

Sizes are checked before reading. Reading raises OSError or ValueError, and the caller adds which
file it was. A file is written whole or not at all. JSON and TOML are parsed within limits. A folder
is locked by one process. No torch and no NumPy.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import stat
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fedmaba.errors import Busy, FedmabaError, InputError, SaveFailed

try:
    import fcntl
except ImportError:  # Windows has no such locks, so two runs on one folder are not refused.
    fcntl = None  # type: ignore[assignment]

MB = 2**20
MAX_JSON_BYTES = 64 * MB
MAX_LINE_BYTES = 4 * MB
MAX_LINES_BYTES = 64 * MB  # of one JSONL file
MAX_TOML_BYTES = 256 * 1024
MAX_VALUES = 2_000_000  # in one JSON text
MAX_DEPTH = 50  # of brackets in a JSON or TOML text
MAX_DIGITS = 20  # of a whole number
MAX_DOTS = 64  # Lines of TOML are limited, because parsing takes time with their square.
REMEDY = "fix it, then `fedmaba resume`"
Buffer = bytes | memoryview

# Flags that Windows does not have count as 0.
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC"))
_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_TEMPORARY = re.compile(  # Names of earlier versions had no random number.
    r"\.(?P<name>.+)\.[0-9a-f]{16}\.tmp|\.(?P<old>experiment\.toml|about\.json|runs\.json|"
    r"rounds\.jsonl|[0-9]+\.ckpt|.+\.npz|.+\.safetensors)\.tmp"
)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BETWEEN = re.compile(r"[^\[\]{}]+")
_QUOTED = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)


class UnexpectedKind(OSError):
    """Something else is where a plain file or a real folder should be."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(errno.EINVAL, what, str(path))


# --- reading -----------------------------------------------------------------------------------


@contextlib.contextmanager
def open_plain(path: Path, links: bool = False) -> Iterator[io.BufferedReader]:
    """Open a plain file to read; a file that the user named may be a link."""
    # This is checked before opening, too: opening a device or a pipe may have effects.
    _require_plain(path, os.stat(path, follow_symlinks=links))
    with open(path, "rb", opener=_opener(_SAFE & ~_FOLLOW if links else _SAFE)) as file:
        _require_plain(path, os.fstat(file.fileno()))
        yield file


def read(path: Path, most: int, links: bool = False) -> bytes:
    """The bytes of a plain file, refused if there are more than `most`."""
    with open_plain(path, links) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise ValueError(f"it has {max(size, len(content)):,} bytes, of at most {most:,}")
    return content


def bytes_on_disk(file: IO[bytes]) -> int:
    """How many bytes an open file takes on the disk: fewer than its size if it has holes."""
    found = os.fstat(file.fileno())
    blocks: int | None = getattr(found, "st_blocks", None)  # Windows does not tell
    return found.st_size if blocks is None else min(found.st_size, blocks * 512)


def mostly_holes(file: IO[bytes]) -> bool:
    """Whether most of a large file is a hole, which is quick to make and slow to read."""
    return bytes_on_disk(file) < os.fstat(file.fileno()).st_size / 2 - MB


def sha256(path: Path) -> str:
    """The SHA-256 of a plain file, or "" for one that is mostly holes."""
    with open_plain(path) as file:
        if mostly_holes(file):
            return ""
        return hashlib.file_digest(file, "sha256").hexdigest()


def exists(path: Path) -> bool:
    """Whether anything has this name, also a link that leads nowhere."""
    return os.path.lexists(path)


def path_inside(root: Path, name: str) -> Path:
    """A path below a folder; refused if anything on the way is not a real folder."""
    path = root
    for part in Path(name).parts[:-1]:
        path = path / part
        with contextlib.suppress(FileNotFoundError):
            real_folder(path)
    return root / name


def without_links(path: Path) -> Path:
    """Where a path that the user names leads to."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # Before Python 3.13, a link to itself raises this.
        raise InputError(f"{path} is a link that leads nowhere: name a run folder") from error


def real_folder(path: Path) -> None:
    """Refuse what is not a folder; a link to a folder is refused, too."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        raise UnexpectedKind(
            path, f"{path.name} is {_kind_in_words(mode)} where a real folder should be"
        )


def matching_names(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    """The names in a real folder that match a pattern; none if there is no such folder."""
    try:
        real_folder(folder)
        return [name for name in os.listdir(folder) if pattern.fullmatch(name)]
    except FileNotFoundError:
        return []


def _opener(flags: int, mode: int = 0o666) -> Callable[[str, int], int]:
    return lambda path, own: os.open(path, own | flags, mode)


def _require_plain(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnexpectedKind(
            path, f"it is {_kind_in_words(found.st_mode)} where a plain file should be"
        )


def _kind_in_words(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a link",
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFREG: "a file",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


# --- JSON and TOML -----------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """The tree of a JSON file."""
    return parse_json(read(path, MAX_JSON_BYTES))


def parse_json(data: bytes) -> Any:
    """Parse JSON text within limits: UTF-8, finite numbers, no name twice, not too much or deep."""
    text = data.decode()
    _check_size_and_depth(_STRING.sub("", text))
    numbers: Any = {"parse_int": _int, "parse_float": _float, "parse_constant": _constant}
    tree = json.loads(text, object_pairs_hook=_unique, **numbers)
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(tree, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("its text is broken: half of a surrogate pair") from None
    return tree


def json_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield place and content of each line of a JSONL file; an unfinished last line is left out.

    `start` and `end` are bytes of the file, each where a line begins.
    """
    with open_plain(path) as file:
        file.seek(start)
        number, left, read = 0, MAX_LINES_BYTES, start
        while (end is None or read < end) and (line := file.readline(MAX_LINE_BYTES + 1)):
            number, left, read = number + 1, left - len(line), read + len(line)
            place = f"line {number}" + (f" after byte {start}" if start else "")
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"{place} has more than {MAX_LINE_BYTES:,} bytes")
            if left < 0:
                raise ValueError(f"it has more than {MAX_LINES_BYTES:,} bytes to read")
            if not line.endswith(b"\n"):
                return
            try:
                yield place, parse_json(line)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error


def parse_toml(data: bytes) -> dict[str, Any]:
    """Parse TOML text within the limits of JSON."""
    text = data.decode()
    if any(line.count(".") > MAX_DOTS for line in _QUOTED.sub("", text).split("\n")):
        raise ValueError(f"a line has more than {MAX_DOTS} dots")
    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}") from None
    level: list[Any] = [tree]
    for _ in range(MAX_DEPTH):
        for value in level:
            if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
                raise ValueError(f"a number has more than {MAX_DIGITS} digits")
        level = [inner for value in level for inner in _children(value)]
    if level:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH}")
    return tree


def flattened(tree: Mapping[str, Any], head: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested tree by dotted keys, as `train.lr`."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{head}{key}.")
        else:
            yield f"{head}{key}", value


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_size_and_depth(bare: str) -> None:
    """Refuse JSON text (without its strings) of too many values, or nested too deep."""
    if sum(map(bare.count, ",[{")) > MAX_VALUES:
        raise ValueError(f"it has more than {MAX_VALUES:,} values")
    bare = _BETWEEN.sub("", bare)
    for _ in range(MAX_DEPTH):
        if not bare:
            return
        bare = bare.replace("[]", "").replace("{}", "")
    if bare:
        raise ValueError(f"its brackets do not match, or are nested deeper than {MAX_DEPTH}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, refused where two readers could take different values of it."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in tree if names.count(name) > 1)
        raise ValueError(f"{twice[:80]!r} is there twice")
    return tree


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits, of at most {MAX_DIGITS}")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


# --- writing -----------------------------------------------------------------------------------


def write(
    target: Path,
    *content: Buffer,
    remedy: str = REMEDY,
    private: bool = False,
    mode: int | None = None,
) -> None:
    """Write a whole file or none: temporary file, fsync, rename, fsync of the folder.

    `mode` is that of the file whatever the umask says.
    """
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")
    try:
        target.parent.mkdir(exist_ok=True, mode=_folder_permissions(private))
        with open(temporary, "xb", opener=_opener(_SAFE, _permissions(private))) as file:
            if mode is not None:
                os.chmod(temporary, mode)
            for part in content:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync(target.parent)
    except BaseException as error:  # also Ctrl-C
        remove([temporary])
        if isinstance(error, OSError):
            raise write_error(target, error, remedy) from error
        raise


@contextlib.contextmanager
def open_to_append(path: Path, private: bool = False, buffering: int = -1) -> Iterator[IO[bytes]]:
    """Open a plain file that has only this name, to write at its end."""
    with contextlib.suppress(FileNotFoundError):
        _require_single_name(path, os.lstat(path))
    with open(path, "ab+", buffering, opener=_opener(_SAFE, _permissions(private))) as file:
        found = os.fstat(file.fileno())
        _require_single_name(path, found)
        if private and found.st_mode & 0o177:  # an older version made it
            os.fchmod(file.fileno(), found.st_mode & 0o600)
        yield file


def _require_single_name(path: Path, found: os.stat_result) -> None:
    _require_plain(path, found)
    if found.st_nlink > 1:
        raise UnexpectedKind(
            path, "the file has another name, too (a hard link): put a copy in its place"
        )


def make_private_folder(path: Path, remedy: str = REMEDY) -> None:
    """Make a folder that only this account can read; a folder that exists keeps its mode."""
    with writing(path, remedy):
        path.mkdir(parents=True, exist_ok=True, mode=_folder_permissions(private=True))


def leave_mark(folder: Path, name: str, remedy: str = REMEDY) -> bool:
    """Make an empty file that nobody made before; of several that try at once, one is told True."""
    make_private_folder(folder, remedy)
    with writing(folder / name, remedy), contextlib.suppress(FileExistsError):
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    return False


def remove_old_marks(folder: Path, seconds: float) -> None:
    """Remove marks that were left so long ago; a mark that cannot be removed stays."""
    with contextlib.suppress(OSError):
        for mark in folder.iterdir():
            if time.time() - mark.lstat().st_mtime > seconds:
                mark.unlink()


def _permissions(private: bool) -> int:
    return 0o600 if private else 0o666


def _folder_permissions(private: bool) -> int:
    return 0o700 if private else 0o777


@contextlib.contextmanager
def writing(target: Path, remedy: str = REMEDY) -> Iterator[None]:
    """Say which file could not be written, and why, and what to do then."""
    try:
        yield
    except OSError as error:
        raise write_error(target, error, remedy) from error


def write_error(target: Path, error: OSError, remedy: str = REMEDY) -> FedmabaError:
    """The error for a failed write; for a full disk it says another remedy."""
    if isinstance(error, UnexpectedKind):
        return InputError(f"{target} is not written: {error.strerror}: move it away")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = re.sub("^fix it", "free some space", remedy)
    return SaveFailed(f"{target} could not be written: {error.strerror}: {remedy}")


def remove(paths: Iterable[Path]) -> None:
    """Remove files; it does not matter if one cannot be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def is_temporary(name: str, of: str | None = None) -> bool:
    """Whether this is the name of an unfinished file of `write`, for any target or for one."""
    found = _TEMPORARY.fullmatch(name)
    return found is not None and (of is None or of[:50] in found.groups() or of == found["old"])


def remove_temporary_files(folder: Path, of: str | None = None) -> None:
    """Remove unfinished files that a killed process left."""
    with contextlib.suppress(OSError):
        remove(
            folder / name for name in matching_names(folder, _TEMPORARY) if is_temporary(name, of)
        )


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk; Windows cannot open folders for that."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR | _SAFE)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- one owner ---------------------------------------------------------------------------------


class FolderLock:
    """Locks a folder, so that only this process works on it until `close`.

    Both the folder and its file `.lock` are locked; the file says which process it is. Deleting the
    file therefore does not let a second process in.
    """

    def __init__(self, path: Path, private: bool = False, remedy: str = REMEDY) -> None:
        self.path = path
        self._kept = contextlib.ExitStack()
        try:
            file = self._lock_both(private)
            file.truncate(0)
            file.write(f"process {os.getpid()}".encode())
        except BlockingIOError:
            self.close()
            raise busy(path) from None
        except OSError as error:
            self.close()
            raise write_error(path / ".lock", error, remedy) from error

    def close(self) -> None:
        self._kept.close()

    def _lock_both(self, private: bool) -> IO[bytes]:
        """Lock the folder; try again if another process removes it or the lock file meanwhile."""
        file = self.path / ".lock"
        for tried in range(10):
            try:
                self.path.mkdir(parents=True, exist_ok=True, mode=_folder_permissions(private))
                handle = self._lock_folder()
                lock = self._kept.enter_context(open_to_append(file, private, 0))
            except BlockingIOError:
                raise
            except OSError as error:
                self.close()
                if isinstance(error, FileNotFoundError) and tried < 9:
                    continue
                if isinstance(error, UnexpectedKind):
                    raise
                raise SaveFailed(f"{self.path}: {error.strerror}: choose another folder") from error
            _lock(lock.fileno())
            with contextlib.suppress(FileNotFoundError):
                same = os.path.samestat(os.fstat(lock.fileno()), os.lstat(file))
                if handle is not None:
                    same &= os.path.samestat(os.fstat(handle), os.stat(self.path))
                if same:
                    return lock
            self.close()
        raise SaveFailed(f"{file} is removed again and again: choose another folder")

    def _lock_folder(self) -> int | None:
        """A locked handle of the folder, or None if the system can only lock files."""
        if fcntl is None or not hasattr(os, "O_DIRECTORY"):
            return None
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        self._kept.callback(os.close, handle)
        try:
            _lock(handle)
        except BlockingIOError:
            raise
        except OSError:  # some network file systems cannot: the lock on the file must be enough
            return None
        return handle


def _lock(handle: int) -> None:
    """Lock a file or folder; tried twice, because `in_use` locks it for a moment to look."""
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def wait_for_lock(handle: int) -> None:
    """Lock a file that others hold for a moment; it is released when the file is closed."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def _who_holds(file: Path) -> str:
    """Which process has locked a folder; it may not have written its name yet."""
    for _ in range(50):
        time.sleep(0.02)
        with contextlib.suppress(OSError, ValueError):
            if text := read(file, 100).decode(errors="replace").strip():
                return text
    return "another process"


def busy(path: Path) -> Busy:
    """The error for a folder that another process works on."""
    holder = _who_holds(path / ".lock")
    return Busy(f"{path} is in use by {holder}: wait, or choose another folder")


def can_lock() -> bool:
    """Whether this system can lock files at all."""
    return fcntl is not None


def in_use(path: Path) -> bool:
    """Whether a process works on a folder; True if the system cannot tell."""
    unsure = False
    for target, flags in ((path, _SAFE & ~_FOLLOW), (path / ".lock", _SAFE)):
        try:
            handle = os.open(target, os.O_RDONLY | flags)
        except OSError:  # There is no such file, or folders cannot be opened.
            continue
        try:
            if fcntl is None:
                unsure = target != path
            else:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # no locks on this file system
            continue
        finally:
            os.close(handle)
    return unsure
