"""Run folders and histories as something to report on. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.experiment import config, experiment_file, parts
from fedmaba.report import federation_commands
from fedmaba.results import files, round_lines, run_folder, state_folder
from fedmaba.results.history import History, On
from fedmaba.results.run_history import At, Model, RunHistory
from fedmaba.results.saved_history import metric_of
from fedmaba.results.state_folder import FederationState

MODELS: tuple[Model, ...] = ("deployed", "last")
ATS: tuple[At, ...] = ("last", "best", "last5")


@dataclass
class Source:
    """One run folder, or a history in memory."""

    name: str
    history: History
    about: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""  # TOML
    labels: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)  # seed -> (N, C)
    # These lines of rounds.jsonl are newer than the history.
    lines: Sequence[Mapping[str, Any]] = ()
    rounds: int | None = None  # asked for
    finished: bool = True
    held: bool = False  # by a process that works on it
    path: Path | None = None  # of the folder
    place: Path | None = None  # the folder as it was named
    parts: Sequence[Source] = ()  # It was read from these, if there are several.
    left: str = ""  # This says which of its parts are not finished, if any is.
    seconds: Sequence[float] = ()  # These are of the newest rounds of a run in progress.
    # This is the state of a server on Flower, if the folder holds one.
    federation: FederationState | None = None

    @property
    def data(self) -> Mapping[str, Any]:
        data = self.about.get("data")
        return data if isinstance(data, dict) else {}

    @property
    def division(self) -> tuple[object, Mapping[str, Any]]:
        """Digests of the data and of each seed's division of them, before seeds prepare copies."""
        if (read := self.about.get("source")) is not None:
            return read["data"], read.get("partition", {})
        return self.data.get("sha256"), self.about.get("partition", {})

    @property
    def hostile(self) -> dict[str, list[int]]:
        """Clients that did not do as they were told, by seed."""
        return self.about.get("hostile") or {}


def load_run_folder(path: Path) -> Source:
    """A run folder or a state folder, finished or not; an unfinished one as far as it goes."""
    if (state := state_folder.load_state_folder(path)) is not None:
        return of_state(path, state)
    finished = files.exists(path / "runs.json")
    lines: list[dict[str, Any]] = []
    if finished or run_folder.checkpoints(path):
        history, saved = run_folder.load_history_and_offset(path)
        lines = [] if finished else round_lines.read_round_lines(path, saved)
    elif files.exists(path / "experiment.toml"):
        lines = round_lines.read_round_lines(path)
        ordered = dict.fromkeys((str(at["strategy"]), int(at["seed"])) for at in lines)
        nobody = np.zeros(0, np.int64)
        metric = metric_of(run_folder.load_about(path).get("metric"))
        history = History(
            [RunHistory(label, seed, "", nobody, metric=metric) for label, seed in ordered]
        )
    else:
        raise InputError(f"{path} is no run folder: name one that fedmaba wrote")
    text, rounds, lies, about = "", None, False, run_folder.load_about(path)
    if files.exists(path / "experiment.toml"):
        text = _text(path / "experiment.toml")
        try:
            asked = config.build(experiment_file.read_toml(path / "experiment.toml", links=False))
            rounds, history.share = asked.train.rounds, asked.eval.share
            lies = bool(asked.attack.does)
        except InputError:  # Another version wrote this, so it is shown and not judged.
            rounds = None
        else:
            if finished:
                _as_begun(path, asked, about)
    labels = run_folder.load_labels(path)
    for run in history.runs:
        if run.n_clients and run.seed in labels and len(labels[run.seed]) != run.n_clients:
            raise InputError(
                f"{path / 'partition.npz'} has {len(labels[run.seed])} clients, but seed "
                f"{run.seed} has {run.n_clients}: {run_folder.RESTORE_HINT}"
            )
    if lies and about.get("hostile") is None:
        raise InputError(
            f"{path / 'about.json'}, which says who is hostile, is not there or not whole: restore "
            "it, or run the experiment again with another --out"
        )
    held = not finished and run_folder.in_use(path)
    seconds = () if finished else round_lines.read_seconds(path)
    out = Source(path.name, history, about, text, labels, lines, rounds, finished, held)
    return replace(out, path=files.without_links(path), place=path, seconds=seconds)


def of_state(path: Path, state: FederationState) -> Source:
    """The state of a server on Flower; its sites are the clients."""
    about = {
        **state.about,
        "data": {**state.about.get("data", {}), "clients": list(state.sites)},
        "python": True,  # A command of Flower's runs it again.
        "repeat": federation_commands.rerun_command(state),
    }
    text, seconds = (
        federation_commands.as_toml(state),
        [t["seconds"] for t in state.timing.values()],
    )
    out = Source(path.name, state.history(), about, text, rounds=state.asked, federation=state)
    out = replace(out, finished=state.finished, held=state.held, seconds=seconds[1:][-20:])
    return replace(out, path=files.without_links(path))


def _as_begun(path: Path, asked: config.Experiment, about: Mapping[str, Any]) -> None:
    """Refuse a finished folder whose experiment or origin is not that of its runs."""
    made = run_folder.load_runs(path).get("made")
    if made is None:  # of an earlier version
        return
    if edits := experiment_file.changed_keys(made["asked"], experiment_file.result_settings(asked)):
        raise InputError(experiment_file.edited_message(path / "experiment.toml", edits))
    told = {"data": about.get("data", {}).get("sha256"), "partition": about.get("partition")}
    if about and told != {key: made[key] for key in told}:
        raise InputError(
            f"{path / 'about.json'} is not that of this run: {run_folder.RESTORE_HINT}"
        )


def _text(file: Path) -> str:
    """What an experiment file says, also where it is no TOML."""
    with run_folder.reading(file):
        return files.read(file, files.MAX_TOML_BYTES).decode(errors="replace")


def judged_on(source: Source, on: On) -> Source:
    """The same with its scores on "test" or on "validation" examples.

    Lines of a run in progress have no scores on validation examples, so only its tables count.
    """
    lines = source.lines if on == "test" else ()
    return replace(source, history=source.history.judged_on(on), lines=lines)


def source_of(history: History, name: str = "history") -> Source:
    """A history in memory as something to report on."""
    return Source(name, history)


def load_parts(path: Path) -> list[Source]:
    """A run folder with its parts: one source for each combination of settings."""
    if path.is_dir():
        parts.require_picked(path)
    if not path.is_dir() or (found := parts.folders(path)) == [path]:
        return [load_run_folder(path)]
    settings = [parts.run_settings(parts.experiment_of(part)) for part in found]
    groups: dict[str, list[Source]] = {}
    for part, more in zip(found, parts.suffixes(settings), strict=True):
        groups.setdefault(more, []).append(load_run_folder(part))
    out = [_joined(path, more, some) for more, some in groups.items()]
    return [source for source in out if source.history.runs] or out[:1]


def _joined(path: Path, more: str, sources: Sequence[Source]) -> Source:
    """Runs of the same settings, from several parts, as one source."""
    first, about = sources[0], dict(sources[0].about)
    for key in ("partition", "hostile"):
        told = {k: v for one in sources for k, v in (one.about.get(key) or {}).items()}
        about |= {key: told} if told else {}
    divided = {k: v for source in sources for k, v in source.division[1].items()}
    about |= {"source": {"data": first.division[0], "partition": divided}} if divided else {}
    going = [source for source in sources if not source.finished]
    # Newer lines count only where no run is ahead of the others.
    lines = (
        [line for source in going for line in source.lines] if len(going) == len(sources) else []
    )
    return replace(
        first,
        name=path.name + more,
        history=parts.merged([(more, one.history) for one in sources], str(path.resolve())),
        about=about,
        labels={seed: counts for source in sources for seed, counts in source.labels.items()},
        lines=[{**line, "strategy": f"{line['strategy']}{more}"} for line in lines],
        finished=not going,
        held=any(source.held for source in sources),
        path=files.without_links(path),
        place=path,
        parts=sources,
        left=_left(sources, going),
        seconds=going[0].seconds if going else (),
    )


def _left(sources: Sequence[Source], going: Sequence[Source]) -> str:
    """Which parts are not finished, and how far they are; "" where all are, or none is."""
    if len(going) in (0, len(sources)):
        return ""
    told = []
    for source in going:
        asked = parts.experiment_of(source.place or Path())
        found = [run for run in source.history.runs if len(run.tables.get("evaluated", ()))]
        ends = [int(run.evaluated[-1]) for run in found]
        far = f"at round {max(ends, default=0)} of {source.rounds}" if ends else "not begun"
        told.append(f"{', '.join(asked.strategies)}, {seeds_in_words(asked.seed_list())}, {far}")
    done = len(sources) - len(going)
    return f"{done} of {len(sources)} parts are finished (missing: {'; '.join(told)})"


def seeds_in_words(seeds: Iterable[int]) -> str:
    """Seeds in a few words: "seeds 0 to 9"."""
    found = sorted(set(seeds))
    if len(found) > 2 and found == [*range(found[0], found[-1] + 1)]:
        return f"seeds {found[0]} to {found[-1]}"
    return f"seed{'s' * (len(found) != 1)} {', '.join(map(str, found))}"


def load_all(paths: Sequence[Path]) -> list[Source]:
    """Several run folders, each once."""
    require_each_once(paths)
    return [source for path in paths for source in load_parts(path)]


def require_each_once(paths: Sequence[Path]) -> None:
    """Refuse a run folder, or a target, that is named twice."""
    found = [files.without_links(path) for path in paths]
    for i, path in enumerate(found):
        if path in found[:i]:
            raise InputError(f"{paths[i]} is named twice: name each once")


def short_names(sources: Sequence[Source]) -> list[str]:
    """The names of sources without what all begin with: `no decay` of `fair-cifar10: no decay`."""
    names = [source.name.partition(": ") for source in sources]
    same = len(names) > 1 and len({name[:2] for name in names}) == 1 and all(n[2] for n in names)
    return [name[2] if same else "".join(name) for name in names]


def combine(sources: Sequence[Source]) -> History:
    """All runs in one history; a label that two folders share gets its folder's name."""
    owners: dict[str, set[int]] = {}
    names = short_names(sources)
    for i, source in enumerate(sources):
        for run in source.history.runs:
            owners.setdefault(run.label, set()).add(i)
    runs = []
    for i, source in enumerate(sources):
        for run in source.history.runs:
            shared = len(owners[run.label]) > 1
            name = f"{names[i]} #{i + 1}" if names.count(names[i]) > 1 else names[i]
            runs.append(replace(run, label=f"{run.label} ({name})") if shared else run)
    shares = {source.history.share for source in sources}
    on = sources[0].history.on if sources else "test"
    return History(runs, shares.pop(), on) if len(shares) == 1 else History(runs, on=on)
