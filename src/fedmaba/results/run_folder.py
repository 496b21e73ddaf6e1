"""Read and write run folders: open formats, atomic files, checksummed checkpoints, one writer.

experiment.toml   what was asked for, resolved        about.json       versions, hashes, command
partition.npz     who owns which examples, by seed    rounds.jsonl     a line per run and round
clients/*.npz     client x round tables, by run       models/*.safetensors  last, deployed, best
timing.jsonl      seconds per round, kept apart from what must repeat bit for bit
events.jsonl      what the server of a federation logged, the newest 2 to 4 MB
runs.json         labels and seeds of a finished run, and the SHA-256 of its NPZ files
checkpoint/*.ckpt the two newest: magic, SHA-256, then safetensors with tables, models and states;
                  a finished run keeps the last, so that rounds can be added
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from fedmaba.errors import InputError, SaveFailed, reason, usable
from fedmaba.results import array_files, files, round_lines, schema
from fedmaba.results.array_files import Arrays, MemoryBudget, npz, pack
from fedmaba.results.files import Buffer
from fedmaba.results.history import History, TrainedModel
from fedmaba.results.metrics import ACCURACY
from fedmaba.results.run_history import RunHistory
from fedmaba.results.saved_history import from_arrays
from fedmaba.results.table_checks import check_shapes

if TYPE_CHECKING:
    from torch import nn

MAGIC = b"FEDMABA1"
KEPT_CHECKPOINTS = 2
RUN_KEYS = ("label", "seed", "deploy", "diverged", "of")  # what runs.json says of a run
EXPERIMENT_FILE = "experiment.toml"  # This file makes a folder a run folder.
RUNS_FILE = "runs.json"  # This file is written last and makes the folder a finished one.
PARTS_FOLDER = "parts"  # more runs: run folders of their own
SEARCH = "search"  # The trials of `fedmaba tune` are a run folder of their own.
SEARCH_FILE = "tune.json"  # It says what was searched, and what was picked.
TRACKED_FILE = "trackers.json"  # Experiment trackers call the runs by these names.
# It says how often the releases of each site of a federation were counted.
LEDGER_FILE = "privacy.json"
EVENTS_FILE = "events.jsonl"  # The server of a federation logs into it.
MAX_EVENTS_BYTES = 4 * files.MB  # When the log is longer, its older half goes.
OTHER_CONTENT = (
    ".lock",
    PARTS_FOLDER,
    SEARCH,
    SEARCH_FILE,
)  # These may be there before the first runs are.
SUBFOLDERS = ("checkpoint", "clients", "models")
CHECKPOINT = re.compile(r"[0-9]{1,12}\.ckpt")
in_use = files.in_use  # It says whether a process works on a run folder.
RESTORE_HINT = "restore it, or run the experiment again with another --out"


class Folder:
    """A run folder that this process has locked; other accounts cannot read a private one."""

    def __init__(self, path: Path, private: bool = False, remedy: str = files.REMEDY) -> None:
        # the user may name it by a link
        self.path = files.without_links(path) if path.is_symlink() else path
        self.private, self.remedy = private, remedy
        self.lines = 0  # This many bytes of rounds.jsonl belong to the run.
        self.digests: dict[str, str] = {}  # SHA-256 of its NPZ files
        self._hold = files.FolderLock(self.path, private, remedy)
        for folder in (self.path, *(self.path / name for name in SUBFOLDERS)):
            files.remove_temporary_files(folder)

    def close(self) -> None:
        self._hold.close()

    def write(self, name: str, *content: Buffer) -> None:
        with files.writing(self.path / name, self.remedy):
            target = files.path_inside(self.path, name)
        files.write(target, *content, remedy=self.remedy, private=self.private)

    def write_json(self, name: str, content: object) -> None:
        self.write(name, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def write_npz(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        content = npz(arrays)
        self.write(name, content)
        self.digests[name] = hashlib.sha256(content).hexdigest()

    def append_rounds(self, history: History, first: int) -> None:
        """Append the lines of all runs for the rounds after `first`, round by round."""
        self.append_lines(round_lines.lines_of_rounds(history, first))

    def append_lines(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines to rounds.jsonl, in place of any that do not belong to the run."""
        text = round_lines.as_json_lines(lines)
        with self._at_end_of("rounds.jsonl") as file:
            end = min(self.lines, file.seek(0, os.SEEK_END))  # fewer if somebody removed some
            file.truncate(end)
            file.write(text)
        self.lines = end + len(text)

    def repair_rounds(self, history: History) -> bool:
        """Rewrite rounds.jsonl if it does not begin with the history's lines; True if it was."""
        text = round_lines.as_json_lines(round_lines.lines_of_rounds(history, 0))
        self.lines = len(text)
        target = self.path / "rounds.jsonl"
        try:
            with files.open_plain(target) as file:
                same = file.read(len(text)) == text
        except files.UnexpectedKind as error:
            raise files.write_error(target, error) from error
        except OSError:
            same = not text
        if not same:
            self.write("rounds.jsonl", text)
        return not same

    def repair_npz(self, name: str, arrays: Mapping[str, NDArray[Any]]) -> bool:
        """Rewrite a damaged or missing file and return True; refuse one that was edited."""
        target = self.path / name
        try:
            found = array_files.read_npz(target)
        except files.UnexpectedKind as error:
            raise unreadable(target, error) from error
        except array_files.READ_ERRORS:
            self.write_npz(name, arrays)
            return True
        same = found.keys() == arrays.keys() and all(
            np.array_equal(found[key], value) for key, value in arrays.items()
        )
        if not same:
            raise InputError(
                f"{target} is not that of this run: restore it, or move it away: then it is "
                "written again"
            )
        self.digests[name] = files.sha256(target)
        return False

    def append_timing(self, lines: Iterable[Mapping[str, Any]]) -> None:
        with self._at_end_of("timing.jsonl") as file:
            file.write(round_lines.as_json_lines(lines))

    def append_event(self, line: Mapping[str, Any]) -> None:
        """Append a line to the log; where it has become long, its older half goes."""
        with self._at_end_of(EVENTS_FILE) as file:
            file.write(round_lines.as_json_lines([line]))
            size = file.tell()
            if size <= MAX_EVENTS_BYTES:
                return
            file.seek(size // 2)
            file.readline()
            newer = file.read()
        self.write(EVENTS_FILE, newer)

    @contextlib.contextmanager
    def _at_end_of(self, name: str) -> Iterator[IO[bytes]]:
        """A file of the folder, to write at its end."""
        target = self.path / name
        with files.writing(target, self.remedy), files.open_to_append(target, self.private) as file:
            yield file

    def save(self, round: int, tensors: Arrays, meta: Mapping[str, Any], history: History) -> None:
        """Save a checkpoint; the one before stays until this one is complete."""
        arrays = dict(tensors)
        for r, run in enumerate(history.runs):
            arrays |= {f"table/{r}/{name}": v for name, v in run.arrays().items()}
        meta = {**meta, "round": round, "lines": self.lines, "share": history.share}
        meta["runs"] = _run_entries(history)
        body, digest = pack(arrays, meta), hashlib.sha256()
        for piece in body:
            digest.update(piece)
        if self.lines:  # The lines must be on the disk before a checkpoint counts them.
            with files.writing(self.path / "rounds.jsonl", self.remedy):
                files.sync(self.path / "rounds.jsonl")
        self.write(f"checkpoint/{round:08d}.ckpt", MAGIC, digest.digest(), *body)
        found = checkpoints(self.path)
        keep = [file for file in found if int(file.stem) <= round][:KEPT_CHECKPOINTS]
        # Any that are newer than this one are damaged.
        files.remove(file for file in found if file not in keep)

    def finish(
        self,
        history: History,
        models: Mapping[str, Mapping[str, NDArray[Any]]],
        made: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the tables and models of a finished run; its newest checkpoint stays.

        With it, more rounds can be added later.
        """
        for r, run in enumerate(history.runs):
            self.write_npz(f"clients/{run_file_stem(r, run.label, run.seed)}.npz", run.arrays())
        for name, weights in models.items():
            self.write(f"models/{name}.safetensors", safetensors.numpy.save(dict(weights)))
        found = {"share": history.share, "runs": _run_entries(history), "files": self.digests}
        # This is done before the run counts as finished, because nobody would do it later.
        self.remove_checkpoints(keep=1)
        self.write_json(RUNS_FILE, {**found, **({"made": made} if made else {})})

    def remove_checkpoints(self, keep: int = 0) -> None:
        """Remove the checkpoints of a finished run, but for the newest that are to be kept."""
        files.remove(checkpoints(self.path)[keep:])

    def reopen(self) -> None:
        """Make a finished run an unfinished one, to which rounds are added."""
        target = self.path / RUNS_FILE
        with files.writing(target, self.remedy):
            target.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the checkpoints, and the folder if nothing else is in it."""
        self.remove_checkpoints()
        if not files.can_lock():  # an open file cannot be removed
            self.close()
        with contextlib.suppress(OSError):  # somebody put another file there
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):  # if no checkpoint was saved
                (self.path / "checkpoint").rmdir()
            self.path.rmdir()
        self.close()


def make_folder(path: Path) -> None:
    """Create a folder to write into, unless it exists."""
    with usable(path, "choose another --out", SaveFailed):
        path.mkdir(parents=True, exist_ok=True)


def write_file(
    target: Path, *content: Buffer, remedy: str = files.REMEDY, below: Path | None = None
) -> None:
    """Write a file, whole or not at all; no folder from `below` to the file may be a link."""
    if below is not None:
        with files.writing(target, remedy):
            files.path_inside(below, str(target.relative_to(below)))
    files.write(target, *content, remedy=remedy)


def create_numbered_folder(parent: Path, stem: str) -> Path:
    """Create the folder parent/stem-001, or the next number that is free."""
    for number in range(1, 10**6):
        path = parent / f"{stem}-{number:03d}"
        with usable(path, "choose another --out", SaveFailed), contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise SaveFailed(f"{parent} is full of runs: choose another --out")


def holds_something_else(path: Path) -> bool:
    """Whether this path holds something that is neither a run folder nor empty."""
    if not path.exists():
        return False
    if path.is_dir() and all(
        name in OTHER_CONTENT or files.is_temporary(name, EXPERIMENT_FILE)
        for name in os.listdir(path)
    ):
        return False
    # Asked last: another process may have just written it.
    return not files.exists(path / EXPERIMENT_FILE)


def is_finished(path: Path) -> bool:
    """Whether all rounds of a run folder are done and its results are written."""
    return files.exists(path / RUNS_FILE)


def run_file_stem(index: int, label: str, seed: int) -> str:
    """The name of a run's file without its suffix; safe for any label."""
    return f"{index:02d}-{re.sub(r'[^A-Za-z0-9.=,_-]', '_', label)[:80]}-s{seed}"


def checkpoints(path: Path) -> list[Path]:
    """The checkpoints of a run folder, newest first."""
    folder, found = path / "checkpoint", list[Path]()
    with reading(folder), contextlib.suppress(NotADirectoryError):
        found = [folder / name for name in files.matching_names(folder, CHECKPOINT)]
    return sorted(found, key=lambda file: int(file.stem), reverse=True)


def load_checkpoint(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Arrays, dict[str, Any], list[str]]:
    """Arrays and meta data of the newest undamaged checkpoint, and a message per damaged one."""
    bad: list[str] = []
    for file in checkpoints(path):
        try:
            return *read_checkpoint(file, wanted), bad
        except DamagedCheckpoint as error:
            bad.append(str(error))
    if bad:
        remedy = f"delete {path / 'checkpoint'} to start again, or choose another --out"
        raise InputError(f"{'; '.join(bad)}: {remedy}")
    raise InputError(f"{path} holds no checkpoint yet: wait, or {resume_hint(path)}")


class DamagedCheckpoint(InputError):
    """A checkpoint is missing or its checksum is wrong, so the one before is used."""


def read_checkpoint(
    file: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Arrays, dict[str, Any]]:
    """Read a checkpoint, or some of its arrays, if its checksum is right."""
    try:
        with files.open_plain(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            magic, told = opened.read(8), opened.read(32)
            bad = magic != MAGIC or files.mostly_holes(opened)
            if bad or hashlib.file_digest(opened, "sha256").digest() != told:
                raise DamagedCheckpoint(
                    f"{file} is damaged: its checksum is wrong, so it is not used"
                )
            opened.seek(40)
            found, meta = array_files.unpack(opened, size - 40, wanted)
        return found, schema.check(schema.Meta, meta)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{file}: {error.strerror}") from error
    except InputError:
        raise
    except array_files.READ_ERRORS as error:
        raise InputError(
            f"{file} is no checkpoint of fedmaba: {reason(error)}: restore it, or choose another "
            "--out"
        ) from error


def unpack_from_rank(body: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and meta data that another rank packed."""
    return array_files.unpack(io.BytesIO(body), len(body))


def load_history(path: Path | str) -> History:
    """The history of a run: the whole, or if it is unfinished, up to its checkpoint."""
    return load_history_and_offset(path)[0]


def load_history_and_offset(path: Path | str) -> tuple[History, int]:
    """The history of a run folder, and the byte of rounds.jsonl where newer lines begin."""
    history, offset = _load_history_and_offset(Path(path))
    for run in history.runs:
        run.origin = run.origin._replace(whole=str(Path(path).resolve()))
    return history, offset


def _load_history_and_offset(path: Path) -> tuple[History, int]:
    file = path / RUNS_FILE
    if not (files.exists(file) or files.exists(path / EXPERIMENT_FILE) or checkpoints(path)):
        raise InputError(f"{path} is no run folder: name one that fedmaba wrote")
    if not files.exists(file):
        found, meta, _ = load_checkpoint(path, lambda name: name.startswith("table/"))
        if "terms" in meta:
            raise InputError(f"{path} is the state of a server on Flower, not a run folder")
        if not meta["runs"]:
            raise InputError(f"{path} holds no run: {RESTORE_HINT}")
        return history_from_checkpoint(found, meta, path / "checkpoint"), meta["lines"]
    about = load_runs(path)
    runs, share, budget = [], about.get("share", 0.05), MemoryBudget()
    for r, run in enumerate(about["runs"]):
        name = f"clients/{run_file_stem(r, run['label'], run['seed'])}.npz"
        tables = _read_table(path, name, budget, about.get("files", {}))
        runs += _history(path / name, [run], [tables], share, about.get("made")).runs
    with reading(file):
        history = History(runs, share)
    history.trained = SavedModels(path)
    return history, 0


class SavedModels:
    """The models of a finished run folder, read when they are asked for."""

    def __init__(self, path: Path, new_module: Callable[[], nn.Module] | None = None) -> None:
        about = load_runs(path)
        self.path, self._digests = path.resolve(), about.get("files", {})
        self._new_module = new_module
        self._stems = {
            (run["label"], run["seed"], run["deploy"]): run_file_stem(r, run["label"], run["seed"])
            for r, run in enumerate(about["runs"])
        }

    def weights(self, run: RunHistory, which: TrainedModel) -> Arrays:
        """The named weights of one model of a run; only the deployed one's file has frozen ones."""
        found = self._read(run, "deployed")
        return found if which == "deployed" else found | self._read(run, which)

    def new_module(self, run: RunHistory) -> nn.Module:
        """A new module of the kind that was trained, if this process trained it."""
        if self._new_module is None:
            raise InputError(
                "module=True: a run folder holds weights, not the code of the model: give the "
                "module to fill, as module=MyModel()"
            )
        return self._new_module()

    def _read(self, run: RunHistory, which: TrainedModel) -> Arrays:
        name = f"models/{self._stems[run.label, run.seed, run.deploy]}-{which}.safetensors"
        with reading(self.path / name):
            found = array_files.read_weights(files.path_inside(self.path, name))
            _check_digest(self.path / name, self._digests.get(name))
        return found


def load_runs(path: Path) -> dict[str, Any]:
    """What runs.json of a finished folder says."""
    return _read_json(path / RUNS_FILE, schema.Runs)


def _read_table(root: Path, name: str, budget: MemoryBudget, digests: Mapping[str, str]) -> Arrays:
    """Read the tables of one run; refuse a file that changed after the run was finished."""
    file = root / name
    with reading(file):
        found = array_files.read_npz(files.path_inside(root, name), None, check_shapes, budget)
        _check_digest(file, digests.get(name))
    return found


def _check_digest(file: Path, digest: str | None) -> None:
    """Refuse a file whose SHA-256 is not the recorded one; earlier versions recorded none."""
    if digest is not None and files.sha256(file) != digest:
        raise ValueError("it is not the file that the run ended with")


def _history(
    file: Path,
    runs: list[dict[str, Any]],
    tables: list[Arrays],
    share: float,
    made: Mapping[str, Any] | None,
) -> History:
    with reading(file):
        return from_arrays(runs, tables, share, (made or {}).get("asked"))


def _read_json(file: Path, kind: type[schema.Part]) -> dict[str, Any]:
    with reading(file):
        return schema.check(kind, files.read_json(file))


@contextlib.contextmanager
def reading(file: Path, remedy: str = RESTORE_HINT) -> Iterator[None]:
    """Say which file cannot be read, and why, and what to do then."""
    try:
        yield
    except array_files.READ_ERRORS as error:
        raise unreadable(file, error, remedy) from error


def unreadable(file: Path, error: Exception, remedy: str = RESTORE_HINT) -> InputError:
    """The error for a file that cannot be read."""
    return InputError(f"{file} cannot be read ({reason(error)}): {remedy}")


def load_about(path: Path | str) -> dict[str, Any]:
    """Versions, hashes, device and command of a run folder; {} if it has none."""
    file = Path(path) / "about.json"
    return _read_json(file, schema.About) if files.exists(file) else {}


def load_ledger(path: Path | str) -> dict[str, Any]:
    """What the sites of a private federation have spent; {} if nothing was counted."""
    file = Path(path) / LEDGER_FILE
    return _read_json(file, schema.Ledger) if files.exists(file) else {}


def resume_hint(path: Path) -> str:
    """The command, or call, that resumes an unfinished run."""
    about = load_about(path)
    if about.get("python"):
        return f"repeat the Python call that began it, with out={str(path)!r}"
    return f"fedmaba resume {path}" + (" --trust" if about.get("own") else "")


def load_labels(path: Path | str) -> dict[int, NDArray[np.int64]]:
    """(N, C) training examples of each client and class, by seed; {} if none were stored."""
    root, name = Path(path), "partition.npz"
    file = root / name
    if not files.exists(file):
        return {}
    with reading(file):
        found = array_files.read_npz(file, check=_check_partition)
        if files.exists(root / RUNS_FILE):
            _check_digest(file, load_runs(root).get("files", {}).get(name))
        return {
            int(n[4:-7]): _label_counts(n, a) for n, a in found.items() if n.endswith(".labels")
        }


def _check_partition(declared: Mapping[str, array_files.Declared]) -> None:
    """Refuse arrays whose names, types or shapes are not those of a partition."""
    for name, (dtype, shape) in declared.items():
        known = re.fullmatch(r"seed[0-9]{1,19}\.([a-z_]+)", name)
        if known and (dtype.kind not in "iu" or len(shape) != 1 + (known[1] == "labels")):
            raise ValueError(f"{name} is {dtype} of shape {shape}")
        if not known and name.endswith(".labels"):
            raise ValueError(f"{name} is of no seed")


def _label_counts(name: str, counts: NDArray[Any]) -> NDArray[np.int64]:
    if counts.size and not 0 <= counts.min() <= counts.max() < 2**53:
        raise ValueError(f"{name} holds no counts")
    return counts.astype(np.int64)


def worker(path: Path) -> int | None:
    """The process that works on a run folder, as its lock says."""
    try:
        told = files.read(path / ".lock", 100).decode()
    except array_files.READ_ERRORS:
        return None
    found = re.fullmatch(r"process (\d{1,9})", told)
    return int(found[1]) if found else None


def history_from_checkpoint(arrays: Arrays, meta: Mapping[str, Any], file: Path) -> History:
    """The history that is inside a checkpoint."""
    tables: list[Arrays] = [{} for _ in meta["runs"]]
    for name, value in arrays.items():
        kind, _, own = name.partition("/")
        run, _, table = own.partition("/")
        if kind == "table" and run.isdecimal() and len(run) < 9 and int(run) < len(tables):
            tables[int(run)][table] = value
    return _history(file, meta["runs"], tables, meta.get("share", 0.05), meta.get("made"))


def _run_entries(history: History) -> list[dict[str, Any]]:
    return [
        {key: getattr(run, key) for key in RUN_KEYS}
        | ({"metric": run.metric._asdict()} if run.metric != ACCURACY else {})
        | ({"groups": run.groups._asdict()} if run.groups.names else {})
        | ({"origin": run.origin.recorded()} if run.origin.data else {})
        for run in history.runs
    ]
