"""The only writer of a run folder: open formats, atomic files, checksummed checkpoints, one owner.

experiment.toml   what was asked for, resolved        about.json       versions, hashes, command
partition.npz     who owns which examples, by seed    rounds.jsonl     a line per run and round
clients/*.npz     client x round tables, by run       models/*.safetensors  last, deployed, best
timing.jsonl      wall-clock figures, apart from all that must repeat bit for bit
checkpoint/*.ckpt the two newest: magic, SHA-256, then safetensors with tables, models and states
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import hashlib
import io
import json
import lzma
import math
import os
import re
import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedmaba.errors import Busy, FedmabaError, InputError, SaveFailed
from fedmaba.history import History, from_arrays
from fedmaba.metrics import every

try:
    import fcntl
except ImportError:  # no advisory locks on this platform: two runs on one folder are not refused
    fcntl = None  # type: ignore[assignment]

MAGIC = b"FEDMABA1"
KEEP = 2
# what runs.json says of a run
KEYS = {"label": str, "seed": int, "deploy": str, "diverged": str, "of": str}
BITS = (8, 16, 32, 64)
FIRST = "experiment.toml"  # the file that makes a folder a run folder
NAMES = (FIRST, "about.json", "partition.npz", "rounds.jsonl", "runs.json")
UNREADABLE = (  # what a parser may say of a damaged file
    OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, OverflowError, MemoryError,
    IndexError, RuntimeError, NotImplementedError, RecursionError, SyntaxError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, safetensors.SafetensorError,
)  # fmt: skip
KINDS = {  # numbers as NumPy and safetensors name them
    "bool": "BOOL",
    **{f"{name}{bits}": f"{name[0].upper()}{bits}" for name in ("int", "uint") for bits in BITS},
    **{f"float{bits}": f"F{bits}" for bits in BITS[1:]},
}
Arrays = dict[str, NDArray[Any]]
Buffer = bytes | memoryview


class Folder:
    """A run folder held by this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0  # bytes of rounds.jsonl that belong to the run
        try:
            self._take()
            self.lock.truncate(0)
            self.lock.write(f"process {os.getpid()}".encode())
        except BlockingIOError:
            holder = self._holder()
            self.lock.close()
            raise Busy(f"{path} is in use by {holder}: wait, or choose another folder") from None
        except OSError as error:
            self.lock.close()
            raise _failed(path / ".lock", error) from error
        self._tidy()

    def _take(self) -> None:
        """Lock the folder; again where another process removes the lock file meanwhile."""
        file = self.path / ".lock"
        for tried in range(10):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self.lock = open(file, "ab+", buffering=0)  # noqa: SIM115 - held until close
            except OSError as error:
                if isinstance(error, FileNotFoundError) and tried < 9:
                    continue
                raise SaveFailed(f"{self.path}: {error.strerror}: choose another folder") from error
            _lock(self.lock)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.lock.fileno()), file.stat()):
                    return
            self.lock.close()
        raise SaveFailed(f"{file} is removed again and again: choose another folder")

    def _holder(self) -> str:
        """Who holds the folder; it may not have said so yet."""
        for _ in range(50):
            time.sleep(0.02)
            self.lock.seek(0)
            if text := self.lock.read().decode(errors="replace").strip():
                return text
        return "another process"

    def _tidy(self) -> None:
        """Remove what a process that was killed in a write had not finished."""
        begun = [_temporary(self.path / name) for name in NAMES]
        for folder in ("checkpoint", "clients", "models"):
            begun += (self.path / folder).glob(".*.tmp")
        _remove(begun)

    def close(self) -> None:
        self.lock.close()

    def write(self, name: str, *content: Buffer) -> None:
        write_file(self.path / name, *content)

    def write_json(self, name: str, content: object) -> None:
        self.write(name, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def write_npz(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.write(name, npz(arrays))

    def append_rounds(self, history: History, first: int) -> None:
        """Lines of all runs for rounds after `first`, one round after another."""
        self._append(_text(_all_lines(history, first)))

    def append_lines(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """JSON-ready lines behind the bytes of rounds.jsonl that belong to the run."""
        self._append(_text(lines))

    def mend_rounds(self, history: History) -> bool:
        """Make rounds.jsonl begin with what the history tells; whether it did not."""
        text = _text(_all_lines(history, 0))
        self.lines = len(text)
        target = self.path / "rounds.jsonl"
        try:
            with open(target, "rb") as f:
                same = f.read(len(text)) == text
        except OSError:
            same = not text
        if not same:
            self.write("rounds.jsonl", text)
        return not same

    def mend_npz(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Make a file hold these arrays; whether it did not."""
        try:
            there = read_npz(self.path / name)
        except InputError:
            there = {}
        same = there.keys() == arrays.keys() and all(
            np.array_equal(there[key], value) for key, value in arrays.items()
        )
        if not same:
            self.write_npz(name, arrays)
        return not same

    def _append(self, text: bytes) -> None:
        target = self.path / "rounds.jsonl"
        try:
            with open(target, "ab") as f:
                end = min(self.lines, f.seek(0, os.SEEK_END))  # fewer where someone took them away
                f.truncate(end)
                f.write(text)
        except OSError as error:
            raise _failed(target, error) from error
        self.lines = end + len(text)

    def append_timing(self, lines: Iterable[Mapping[str, Any]]) -> None:
        try:
            with open(self.path / "timing.jsonl", "ab") as f:
                f.write(_text(lines))
        except OSError as error:
            raise _failed(self.path / "timing.jsonl", error) from error

    def save(self, round: int, tensors: Arrays, meta: Mapping[str, Any], history: History) -> None:
        """A checkpoint of everything; the one before stays until this one is whole."""
        arrays = dict(tensors)
        for r, run in enumerate(history.runs):
            arrays |= {f"table/{r}/{name}": v for name, v in run.arrays().items()}
        meta = {**meta, "round": round, "lines": self.lines, "share": history.share}
        meta["runs"] = _runs(history)
        body, digest = pack(arrays, meta), hashlib.sha256()
        for piece in body:
            digest.update(piece)
        if self.lines:  # a checkpoint never tells of lines that a power cut could take
            try:
                _sync(self.path / "rounds.jsonl")
            except OSError as error:
                raise _failed(self.path / "rounds.jsonl", error) from error
        name = f"{round:08d}.ckpt"
        self.write(f"checkpoint/{name}", MAGIC, digest.digest(), *body)
        found = checkpoints(self.path)
        keep = [file for file in found if file.name <= name][:KEEP]
        _remove(file for file in found if file not in keep)  # newer ones are damaged

    def finish(self, history: History, models: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
        """Tables and models of a finished run; then its checkpoints are no longer needed."""
        for r, run in enumerate(history.runs):
            self.write_npz(f"clients/{run_id(r, run.label, run.seed)}.npz", run.arrays())
        for name, weights in models.items():
            self.write(f"models/{name}.safetensors", safetensors.numpy.save(dict(weights)))
        self.write_json("runs.json", {"share": history.share, "runs": _runs(history)})
        self.forget()

    def forget(self) -> None:
        """Remove the checkpoints of a finished run."""
        _remove(checkpoints(self.path))

    def discard(self) -> None:
        """The checkpoints are no longer needed, nor is the folder that holds nothing else."""
        self.forget()
        if fcntl is None:  # an open file cannot be removed
            self.close()
        with contextlib.suppress(OSError):  # something of someone else's lies there
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # done before the first was due
                (self.path / "checkpoint").rmdir()
            self.path.rmdir()
        self.close()


def _lock(file: IO[bytes]) -> None:
    """Take a folder; tried twice, as someone may only be looking whether it is `held`."""
    if fcntl is None:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(0.05)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def held(path: Path) -> bool:
    """Whether a process works on a run folder; yes where nobody can tell."""
    try:
        with open(path / ".lock", "rb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no locks on this file system
        return False
    return fcntl is None


def make_folder(path: Path) -> None:
    """A folder to write into."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveFailed(f"{path}: {error.strerror}: choose another --out") from error


def write_file(
    target: Path, *content: Buffer, remedy: str = "mend it, then `fedmaba resume`"
) -> None:
    """A whole file or none: temporary file, fsync, rename, fsync of the folder."""
    temporary = _temporary(target)
    try:
        target.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as f:
            for part in content:
                f.write(part)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
        _sync(target.parent)
    except BaseException as error:  # Ctrl-C among them
        _remove([temporary])
        if isinstance(error, OSError):
            raise _failed(target, error, remedy) from error
        raise


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.tmp")


def _remove(files: Iterable[Path]) -> None:
    """Remove files nobody needs; one that cannot be removed does no harm."""
    for file in files:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def claim(parent: Path, stem: str) -> Path:
    """A new folder parent/stem-001 or the next free one, taken at once."""
    for number in range(1, 10**6):
        path = parent / f"{stem}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise SaveFailed(f"{path}: {error.strerror}: choose another --out") from error
        return path
    raise SaveFailed(f"{parent} is full of runs: choose another --out")


def foreign(path: Path) -> bool:
    """Whether something other than a run folder, begun or to be begun, lies here."""
    if not path.exists():
        return False
    own = {".lock", _temporary(path / FIRST).name}
    if path.is_dir() and all(p.name in own for p in path.iterdir()):
        return False
    return not (path / FIRST).exists()  # asked last: another process may just have written it


def run_id(index: int, label: str, seed: int) -> str:
    """A file name for a run that cannot leave its folder, whatever the label."""
    return f"{index:02d}-{re.sub(r'[^A-Za-z0-9.=,_-]', '_', label)[:80]}-s{seed}"


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run folder, newest first."""
    return sorted((path / "checkpoint").glob("*.ckpt"), reverse=True)


def load_checkpoint(path: Path) -> tuple[Arrays, dict[str, Any], list[str]]:
    """Arrays and meta data of the newest whole checkpoint, and what was found damaged."""
    damaged: list[str] = []
    for file in checkpoints(path):
        try:
            return *read_checkpoint(file), damaged
        except InputError as error:
            damaged.append(str(error))
    if damaged:
        remedy = f"delete {path / 'checkpoint'} to begin anew, or choose another --out"
        raise InputError(f"{'; '.join(damaged)}: {remedy}")
    raise InputError(f"{path} holds no checkpoint yet: wait, or {to_go_on(path)}")


def read_checkpoint(file: Path) -> tuple[Arrays, dict[str, Any]]:
    """One checkpoint, refused unless its checksum is right."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    body = content[40:]
    if content[:8] != MAGIC or hashlib.sha256(body).digest() != content[8:40]:
        raise InputError(f"{file} is damaged: its checksum is wrong, so it is not used")
    try:
        return unpack(body)
    except UNREADABLE as error:
        raise InputError(f"{file} is no checkpoint of fedmaba: {_reason(error)}") from error


def pack(arrays: Arrays, meta: Mapping[str, Any]) -> list[Buffer]:
    """Arrays and JSON-ready words as a safetensors body, in pieces, mostly without a copy."""
    header: dict[str, Any] = {"__metadata__": {"fedmaba": json.dumps(meta)}, **arrays}  # in order
    pieces: list[Buffer] = []
    end = 0
    for name, value in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize):
        kind = KINDS.get(value.dtype.name)
        if kind is None:
            raise InputError(f"{name}: an array of {value.dtype} cannot be saved: keep numbers")
        flat = np.ravel(value).astype(value.dtype.newbyteorder("<"), copy=False)
        place = [end, end := end + flat.nbytes]
        header[name] = {"dtype": kind, "shape": value.shape, "data_offsets": place}
        pieces.append(flat.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def unpack(body: bytes) -> tuple[Arrays, dict[str, Any]]:
    """What `pack` was given, in the same order."""
    (length,) = np.frombuffer(body[:8], "<u8")
    header = json.loads(body[8 : 8 + int(length)])
    meta = json.loads(header.pop("__metadata__")["fedmaba"])
    found = safetensors.numpy.load(body)  # in any order
    return {name: found[name] for name in header}, {**meta}


def load_history(path: Path | str) -> History:
    """The history of a finished run, or of an unfinished one as far as its checkpoint goes."""
    path = Path(path)
    file = path / "runs.json"
    if not (file.exists() or (path / FIRST).exists() or checkpoints(path)):
        raise InputError(f"{path} is no run folder: name one that fedmaba wrote")
    if not file.exists():
        arrays, meta, _ = load_checkpoint(path)
        if "terms" in meta:
            raise InputError(f"{path} is the state of a server on Flower: see its rounds.jsonl")
        return history_of(arrays, meta, path / "checkpoint")
    about = read_json(file)
    runs, share = _about_runs(file, about)
    found = []
    for r, run in enumerate(runs):
        table = path / "clients" / f"{run_id(r, run['label'], run['seed'])}.npz"
        found += _history(table, [run], [read_npz(table)], share).runs
    return History(found, share)


def _about_runs(file: Path, about: Any) -> tuple[list[dict[str, Any]], float]:
    """What a file says of the runs and their share of worst clients, checked."""
    try:
        runs = [{"of": "", **run} for run in about["runs"]]  # before, nobody told
        runs = [{key: run[key] for key in KEYS} for run in runs]
        share = float(about.get("share", 0.05))
        for run in runs:
            for key, kind in KEYS.items():
                if type(run[key]) is not kind:
                    raise ValueError(f"{key}={run[key]!r}")
        if not 0 < share <= 1:
            raise ValueError(f"share={share}")
    except UNREADABLE as error:
        raise _damaged(file, error) from error
    return runs, share


def _history(file: Path, runs: list[dict[str, Any]], tables: list[Arrays], share: float) -> History:
    try:
        return from_arrays(runs, tables, share)
    except UNREADABLE as error:
        raise _damaged(file, error) from error


def read_json(file: Path) -> Any:
    """The content of a JSON file of a run folder."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise _damaged(file, error) from error


def read_npz(file: Path, names: Iterable[str] | None = None) -> Arrays:
    """The arrays of an NPZ file of a run folder, or some of them."""
    try:
        with open(file, "rb") as f, np.load(f, allow_pickle=False) as z:
            return {name: z[name] for name in (z.files if names is None else names)}
    except UNREADABLE as error:
        raise _damaged(file, error) from error


def _reason(error: BaseException) -> str:
    """What an exception says, on one line."""
    text = getattr(error, "strerror", None) or str(error)
    if isinstance(error, KeyError):
        text = f"it lacks {text}"
    if "allow_pickle" in text:  # what numpy says of anything it does not know
        text = "no NPZ file"
    return " ".join(str(text).split())[:200] or type(error).__name__


def _damaged(file: Path, error: Exception) -> InputError:
    return InputError(
        f"{file} cannot be read ({_reason(error)}): restore it, or run the experiment again with "
        "another --out"
    )


def load_about(path: Path | str) -> dict[str, Any]:
    """Versions, hashes, device and command of a run folder; {} where there are none."""
    file = Path(path) / "about.json"
    about = read_json(file) if file.exists() else {}
    if not isinstance(about, dict):
        raise _damaged(file, ValueError("no JSON object"))
    return about


def to_go_on(path: Path) -> str:
    """What an unfinished run wants."""
    if load_about(path).get("python"):
        return f"repeat the Python call that began it, with out={str(path)!r}"
    return f"fedmaba resume {path}"


def load_labels(path: Path | str) -> dict[int, NDArray[np.int64]]:
    """(N, C) training examples of each client and class, by seed; {} where none were stored."""
    file = Path(path) / "partition.npz"
    arrays = read_npz(file) if file.exists() else {}
    counts = {n: a for n, a in arrays.items() if a.ndim == 2 and a.dtype.kind in "iu"}
    names = [name for name in counts if re.fullmatch(r"seed\d+\.labels", name)]
    return {int(name[4:-7]): counts[name].astype(np.int64) for name in names}


def read_lines(path: Path | str, first: int = 0) -> list[dict[str, Any]]:
    """Whole lines of rounds.jsonl for rounds after `first`; a last line in the making is left."""
    file = Path(path) / "rounds.jsonl"
    try:
        text = file.read_bytes().decode(errors="replace")
    except (FileNotFoundError, IsADirectoryError):
        return []
    lines = []
    for line in text.splitlines(keepends=True):
        try:
            found = json.loads(line) if line.endswith("\n") else {}
        except ValueError:
            continue
        done = found.get("round", 0) if isinstance(found, dict) else 0
        if isinstance(done, int) and done > first:
            lines.append(found)
    return lines


def history_of(arrays: Arrays, meta: Mapping[str, Any], file: Path) -> History:
    """The tables inside a checkpoint."""
    runs, share = _about_runs(file, meta)
    tables = [
        {n.split("/", 2)[2]: v for n, v in arrays.items() if n.startswith(f"table/{r}/")}
        for r in range(len(runs))
    ]
    return _history(file, runs, tables, share)


def _runs(history: History) -> list[dict[str, Any]]:
    return [{key: getattr(run, key) for key in KEYS} for run in history.runs]


def _text(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


def _all_lines(history: History, first: int) -> list[dict[str, Any]]:
    """JSON-ready lines of all runs for rounds after `first`, one round after another."""
    found = [
        line for r, run in enumerate(history.runs) for line in _lines(r, run, first, history.share)
    ]
    return sorted(found, key=lambda line: (line["round"], line["run"]))


def _lines(r: int, run: Any, first: int, share: float) -> list[dict[str, Any]]:
    """One run's rounds after `first` as JSON-ready lines; they depend on the tables alone."""
    evaluated = {int(t): i for i, t in enumerate(run.tables.get("evaluated", []))}
    infos = sorted(name for name in run.tables if name.startswith("info."))
    rounds, lines = run.tables.get("round", []), []
    for i in range(bisect.bisect_right(rounds, first), len(rounds)):
        done = rounds[i]
        line: dict[str, Any] = {"run": r, "strategy": run.label, "seed": run.seed}
        line["round"] = int(done)
        told = {name[5:]: run.tables[name][i] for name in infos}
        line |= {name: _number(v) for name, v in told.items() if not np.isnan(v)}
        at = evaluated.get(int(done))
        if at is not None:
            models = ("deployed", "last")
            accuracy, loss = (
                np.stack([run.tables[f"{model}.{name}"][at] for model in models]).astype(float)
                for name in ("accuracy", "loss")
            )
            found = every(accuracy, loss, run.test_size, share)
            for model, figures in zip(models, found, strict=True):
                line[model] = {k: _number(v) for k, v in figures._asdict().items()}
        lines.append(line)
    return lines


def _number(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None


def npz(arrays: Mapping[str, NDArray[Any]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An NPZ file whose bytes depend on the arrays alone; NumPy's own holds the time of day."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            z.writestr(info, entry.getvalue())
    return out.getvalue()


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk; Windows cannot open folders for that."""
    folder = path.is_dir()
    if folder and not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _failed(
    target: Path, error: OSError, remedy: str = "mend it, then `fedmaba resume`"
) -> FedmabaError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = remedy.replace("mend it", "free some space")
    return SaveFailed(f"{target} could not be written: {error.strerror}: {remedy}")
