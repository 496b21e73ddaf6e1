"""A case: a hostile folder and one command on it, in a process of its own, judged by what is left.

What is promised of every command, whatever lies in the folder: it ends with 0, or with one line
`fedmaba: ...` and a documented exit code, within 10 s and 1 GB; it runs no code that it finds, and
it changes nothing but the run folder (writing commands) and the file that -o names.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import http.client
import itertools
import os
import random
import re
import resource
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from faults import kinds, process
from faults.common import Say, Tally, call, inside, one_line, progress, scratch

SECONDS = 10.0  # of processor time
PATIENCE = 6  # times as long on the clock, without the time in which other processes had the cores
MEGABYTES = 1000
LINE = 2000  # characters of an error line; whole names of 5,000 are no help to a reader
OWN = (0, 2, 65, 71, 74, 75)  # exit codes that the docs know for these commands
WRITERS = ("resume", "compare", "server")  # commands that may change the run folder
NOBODY = 65534
Spoil = Callable[[Path], None]
Place = TypeVar("Place")


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str
    seconds: float  # of processor time
    megabytes: float
    folder: Path
    page: bytes | None = None  # what `watch` answered
    status: int = 0  #           and with which code


@dataclass(frozen=True)
class Case:
    """One hostile folder and one command on it."""

    what: str  # is strange, in words
    kind: str  # of folder, by the name of its template; "" for none
    words: tuple[str, ...]
    spoil: Spoil = lambda folder: None
    check: Callable[[Result], Iterable[str]] = lambda result: ()
    fresh: bool = False  # a fresh interpreter, as a user starts it, and no fork
    may: tuple[str, ...] = ()  # paths that may change, apart from what the command is for
    nobody: bool = False  # without root's rights
    number: int = 0

    def line(self) -> str:
        words = " ".join(w if len(w) < 80 else w[:77] + "..." for w in self.words)
        how = "python -m fedmaba" if self.fresh else "fedmaba"
        return f"{self.kind} with {self.what}: {how} {words}"


@dataclass
class Running:
    """A case whose command has not ended."""

    case: Case
    pid: int
    folder: Path
    before: dict[str, tuple[object, ...]]
    start: float
    visitor: int = 0
    peak: float = 0.0
    queued: float = 0.0  # seconds that it was ready and had no core
    over: str = ""  # a limit that it passed


@dataclass
class Group:
    """Failures of one kind."""

    count: int = 0
    commands: set[str] = field(default_factory=set)
    first: str = ""


class Hostile(Protocol):
    """A campaign of hostile folders: which kinds of folder it spoils, and its cases without end."""

    KINDS: Sequence[str]

    def cases(self, seed: int, templates: Path) -> Iterator[Case]: ...


def turns(places: list[Place], rng: random.Random) -> Iterator[tuple[int, Place]]:
    """Every place, then again; with a number that says which of its commands it is the turn of."""
    rng.shuffle(places)
    first = [rng.randrange(100) for _ in places]
    for turn in itertools.count():
        for number, place in zip(first, places, strict=True):
            yield number + turn, place


def play(name: str, hostile: Hostile, count: int, seed: int, say: Say) -> Tally:
    """Try `count` cases, a few at a time; every failure by its kind, with how to repeat it."""
    tally, show = Tally(), progress(say, name)
    groups: dict[str, Group] = {}
    slowest = largest = 0.0
    with scratch() as root:
        cases = _prepare(root, hostile, seed)
        left = (replace(case, number=i) for i, case in enumerate(itertools.islice(cases, count)))
        live: list[Running] = []
        slots, ended = 2 * (os.cpu_count() or 1), False
        while live or not ended:
            while len(live) < slots and not ended:
                if case := next(left, None):
                    live.append(_start(root, case))
                ended = case is None
            for one in list(live):
                result = _poll(root, one)
                if result is None:
                    continue
                live.remove(one)
                tally.tried += 1
                slowest, largest = max(slowest, result.seconds), max(largest, result.megabytes)
                said = "shown" if result.code in (0, 65) else "refused"
                tally.counts[f"{one.case.words[0]} {said}"] += 1
                kinds = list(_judge(one, result))
                for kind in kinds:
                    if kind not in groups:
                        say(f"{name}: {kind}: {one.case.line()}")
                _gather(tally, groups, name, seed, one.case, result, kinds)
                _clear(one.folder)
                show(tally.tried, count, tally)
            time.sleep(0.001)
    tally.figures = {"slowest, s": round(slowest, 2), "largest, MB": round(largest)}
    if groups:
        ordered = sorted(groups.items(), key=lambda item: -item[1].count)
        tally.figures["kinds of failure"] = {
            kind: {"count": g.count, "commands": sorted(g.commands), "first": g.first}
            for kind, g in ordered
        }
    return tally


def _gather(
    tally: Tally,
    groups: dict[str, Group],
    name: str,
    seed: int,
    case: Case,
    result: Result,
    kinds: Sequence[str],
) -> None:
    """Count a case's failures by kind."""
    if not kinds:
        return
    repeat = f"python -m faults {name} --seed {seed} --case {case.number}"
    tail = result.err.strip()[-600:]
    tally.lose(f"{kinds[0]}: {case.line()}: exit code {result.code}: {tail}: {repeat}")
    for kind in kinds:
        group = groups.setdefault(kind, Group())
        group.count += 1
        group.commands.add(" ".join(case.words[:1]))
        group.first = group.first or f"{case.line()} [{repeat}]"


def repeat(name: str, hostile: Hostile, seed: int, number: int) -> None:
    """One case again, its folder left behind, and all that it said."""
    root = Path(tempfile.gettempdir()) / f"fedmaba-{name}-{number}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    cases = _prepare(root, hostile, seed)
    case = next(itertools.islice(cases, number, None))
    running = _start(root, replace(case, number=number))
    while (result := _poll(root, running)) is None:
        time.sleep(0.001)
    print(case.line(), f"\nfolder: {running.folder}\nexit code {result.code}")
    print(f"{result.seconds:.1f} s, {result.megabytes:.0f} MB\n{result.out}\n{result.err}")
    print("\n".join(_judge(running, result)) or "as promised")


def _prepare(root: Path, hostile: Hostile, seed: int) -> Iterator[Case]:
    """Make the folders that are to be spoilt; the cases."""
    process.warm()
    root.chmod(0o755)
    for made in ("templates", "cases", "logs", "matplotlib"):
        (root / made).mkdir()
    (root / "matplotlib").chmod(0o777)
    os.environ["MPLCONFIGDIR"] = str(root / "matplotlib")
    kinds.make(root / "templates", hostile.KINDS)
    _practise(root)
    return hostile.cases(seed, root / "templates")


# --- the folder of a case -----------------------------------------------------------------------


def _start(root: Path, case: Case) -> Running:
    """Lay out the folder, note what is in it, start the command."""
    folder = root / "cases" / str(case.number)
    folder.mkdir()
    (folder / "home").mkdir()
    outside = folder / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "keep.txt").write_bytes(b"do not touch\n" * 20)
    (outside / "deep" / ".keep.tmp").write_bytes(b"nor this\n")
    (outside / "deep" / "00000004.ckpt").write_bytes(b"nor that\n")
    if case.kind:
        for item in (root / "templates" / case.kind).iterdir():
            if item.is_dir():
                shutil.copytree(item, folder / item.name, symlinks=True)
            else:
                shutil.copy2(item, folder / item.name)
    case.spoil(folder)
    if case.nobody:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    running = Running(case, 0, folder, seen(folder), time.monotonic())
    logs = root / "logs"
    for end in ("out", "err", "page"):
        (logs / f"{case.number}.{end}").unlink(missing_ok=True)
    running.pid = _fresh(running, logs) if case.fresh else _fork(running, logs)
    if case.words[0] == "watch":
        running.visitor = _visit(logs / str(case.number), running.pid)
    return running


def seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """Kind, rights, size, time and content of all that lies in a folder; links as links."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        told = path.lstat()
        entry: tuple[object, ...] = (stat.filemode(told.st_mode),)
        if stat.S_ISREG(told.st_mode):
            small = told.st_size < 10**6
            entry += (told.st_size, told.st_mtime_ns)
            entry += (hashlib.sha256(path.read_bytes()).hexdigest()[:12],) if small else ()
        elif stat.S_ISLNK(told.st_mode):
            entry += (os.readlink(path),)
        found[str(path.relative_to(folder))] = entry
    return found


def _practise(root: Path) -> None:
    """Let this process import and build once what each of its forks would build again."""
    # one that becomes nobody may not be able to read the standard library
    import encodings.idna  # noqa: F401, I001
    import importlib.readers  # noqa: F401
    import fedmaba.report.watch
    import fedmaba.deploy.server  # noqa: F401
    from fedmaba.experiment import laboratory

    laboratory.enter("run")

    source = root / "templates" / "done" / "run"
    if not source.exists():
        return
    folder = root / "practice"
    for words in (
        ("table", source), ("table", source, "--to", "csv"), ("report", source, "-o", "out.html"),
        ("figure", "rounds", source, "-o", "out.svg"), ("figure", "gains", source, "-o", "a.pdf"),
        ("figure", "gains", source, "-o", "a.png"), ("export", source, "-o", "csv"),
    ):  # fmt: skip
        folder.mkdir()
        with inside(folder):
            code, _, err = call(*words)
        if code:
            raise RuntimeError(f"{words} on a sound folder: {err}")
        shutil.rmtree(folder)
    gc.collect()
    gc.freeze()


def _clear(folder: Path) -> None:
    """Remove a case's folder, also where something took its rights away."""
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


# --- its process --------------------------------------------------------------------------------


def _environment(folder: Path) -> dict[str, str]:
    """Of a command: its own home, and no working folder on the path by accident."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    return {
        **kept, "HOME": str(folder / "home"), "PYTHONPATH": str(process.SOURCE),
        "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100",
    }  # fmt: skip


def _fork(running: Running, logs: Path) -> int:
    """The command in a fork of this process, which has imported all and done nothing."""
    case, folder = running.case, running.folder

    def work() -> int:
        _streams(logs / str(case.number))
        _limit(int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
        os.environ.update(_environment(folder))
        os.chdir(folder)
        if case.nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        return kinds.serve(case.words) if case.words[0] == "server" else process.fedmaba(case.words)

    return process.fork(work)


def _limit(addresses: int) -> None:
    """Keep a command that takes all it can get from taking the machine; the verdict is stricter."""
    most = addresses + 2 * MEGABYTES * 10**6
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _streams(stem: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process.redirect(f"{stem}.out", f"{stem}.err")


def _fresh(running: Running, logs: Path) -> int:
    """The command in a fresh interpreter, as a user starts it."""
    case, folder = running.case, running.folder

    def work() -> int:
        _streams(logs / str(case.number))
        _limit(4 * 10**9)  # of addresses, which torch takes many of
        os.chdir(folder)
        line = [sys.executable, "-m", "fedmaba", *case.words]
        os.execve(sys.executable, line, _environment(folder))

    return process.fork(work)


def _visit(stem: Path, pid: int) -> int:
    """A visitor of `watch`: waits for its address, asks for the page, then presses Ctrl-C."""

    def work() -> int:
        end = time.monotonic() + 10 * SECONDS * PATIENCE
        while time.monotonic() < end and os.path.exists(f"/proc/{pid}"):
            out = Path(f"{stem}.out")
            text = out.read_text(errors="replace") if out.exists() else ""
            if address := re.match(r"http://127\.0\.0\.1:(\d+)/ ", text):
                link = http.client.HTTPConnection(
                    "127.0.0.1", int(address[1]), timeout=SECONDS * PATIENCE
                )
                link.request("GET", "/")
                answer = link.getresponse()
                Path(f"{stem}.page").write_bytes(b"%d\n" % answer.status + answer.read())
                break
            time.sleep(0.01)
        return 0

    def ended() -> int:
        try:
            return work()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    return process.fork(ended)


def _poll(root: Path, running: Running) -> Result | None:
    """The result of a command that has ended; one past a limit is killed."""
    done, status, used = os.wait4(running.pid, os.WNOHANG)
    clock = time.monotonic() - running.start
    if not done:
        running.peak = max(running.peak, _now(running.pid))
        running.queued = max(running.queued, _queued(running.pid))
        waited = clock - running.queued
        if _worked(running.pid) > SECONDS or waited > SECONDS * PATIENCE:
            running.over = "time"
        elif running.peak > MEGABYTES * 1.2:
            running.over = "memory"
        else:
            return None
        os.kill(running.pid, signal.SIGKILL)
        _, status, used = os.wait4(running.pid, 0)
    if running.visitor:
        process.wait(running.visitor, 2 * SECONDS * PATIENCE)
    stem = root / "logs" / str(running.case.number)
    page = Path(f"{stem}.page")
    whole = page.read_bytes() if page.exists() else b""
    told, _, body = whole.partition(b"\n")
    return Result(
        os.waitstatus_to_exitcode(status),
        _read(Path(f"{stem}.out")),
        _read(Path(f"{stem}.err")),
        used.ru_utime + used.ru_stime,
        max(used.ru_maxrss / 1000, running.peak),
        running.folder,
        body if whole else None,
        int(told or 0),
    )


def _now(pid: int) -> float:
    """MB that a process holds."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * resource.getpagesize() / 1e6


def _worked(pid: int) -> float:
    """Seconds of processor time that a process has used so far, all its threads together."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _queued(pid: int) -> float:
    """Seconds that a process was ready and had no core: other people's time, not its own."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _read(file: Path) -> str:
    with open(file, encoding="utf-8", errors="surrogateescape", newline="") as f:
        return f.read(10**7)


# --- the verdict --------------------------------------------------------------------------------


def _judge(running: Running, result: Result) -> Iterator[str]:
    """Every way in which a command broke what is promised, each as the name of its kind."""
    case, err = running.case, result.err
    for ran in sorted(p.name for p in running.folder.rglob("RAN-*")):
        yield f"code was run: {ran}"
    if running.over == "time":
        busy = result.seconds > SECONDS / 2
        told = f"{SECONDS:.0f} s, busy" if busy else f"{SECONDS * PATIENCE:.0f} s, waiting"
        yield f"over {told}: {_which(case)}"
    elif result.megabytes > MEGABYTES:
        yield f"over {MEGABYTES} MB: {_which(case)}"
    if not running.over:
        yield from _ended(result, err)
    if result.page is not None and result.status not in (200, 503):
        yield f"watch answered {result.status}"
    yield from _changed(running)
    if not running.over:
        yield from case.check(result)


def _which(case: Case) -> str:
    """A case's kind of strangeness, without the value."""
    return case.what.partition(" = ")[0]


def _ended(result: Result, err: str) -> Iterator[str]:
    if re.search(r"Traceback|Exception (?:in thread|ignored|occurred)", err):
        yield f"traceback: {where(err)}"
    elif result.code not in OWN:
        yield f"exit code {result.code}"
    elif result.code not in (0, 65) and not one_line(err):
        yield f"exit code {result.code} without its one line"
    for line in err.splitlines():
        if len(line) > LINE and "Traceback" not in err:
            yield "a line of more than 2,000 characters"
            break


def where(err: str) -> str:
    """The exception of a traceback and the last place in fedmaba that it passed."""
    frames = re.findall(r'File "[^"]*/fedmaba/([^"]+)", line (\d+), in (\S+)', err)
    last = re.findall(
        r"^([A-Za-z_.]+(?:Error|Exception|Interrupt|Exit|Warning|Bomb)?)\b(?=:|$)", err, re.M
    )
    at = f"{frames[-1][0]}:{frames[-1][1]} in {frames[-1][2]}" if frames else "outside"
    return f"{last[-1] if last else '?'} at {at}"


def _changed(running: Running) -> Iterator[str]:
    """Paths that changed although they must not."""
    case, after = running.case, seen(running.folder)
    may = {"out", *case.may}
    if case.words[0] in WRITERS:
        may.add("run")
    if case.words[0] == "export":
        may.add("run/csv")
    if running.over:  # a killed process may leave its temporary file beside -o
        may.add(".out")
    for path in sorted(running.before.keys() | after.keys()):
        was, now = running.before.get(path), after.get(path)
        inside = any(path == m or path.startswith((f"{m}/", f"{m}.")) for m in may)
        if was != now and not inside and not path.rpartition("/")[2].startswith("RAN-"):
            how = "made" if was is None else "removed" if now is None else "changed"
            yield f"{how} by {case.words[0]}: {'/'.join(path.split('/')[:2])}"
