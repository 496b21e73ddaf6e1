"""The lines of a run folder: rounds.jsonl has one per run and round, timing.jsonl how long it took.

This makes and reads them; `run_folder` writes them.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedmaba.errors import InputError, reason
from fedmaba.results import array_files, files, schema
from fedmaba.results.history import History
from fedmaba.results.metrics import every, finite

MAX_LINES = 100_000  # At most this many lines of rounds.jsonl are read of a run in progress.


def as_json_lines(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """The text of these lines, as it is appended to a file."""
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()


def lines_of_rounds(history: History, first: int) -> list[dict[str, Any]]:
    """JSON-ready lines of all runs for rounds after `first`, one round after another."""
    found = [
        line
        for r, run in enumerate(history.runs)
        for line in _lines_of_run(r, run, first, history.share)
    ]
    return sorted(found, key=lambda line: (line["round"], line["run"]))


def _lines_of_run(r: int, run: Any, first: int, share: float) -> list[dict[str, Any]]:
    """One run's rounds after `first` as JSON-ready lines, made only from its tables."""
    evaluated = {int(t): i for i, t in enumerate(run.tables.get("evaluated", []))}
    infos = sorted(name for name in run.tables if name.startswith("info."))
    rounds, lines = run.tables.get("round", []), []
    for i in range(bisect.bisect_right(rounds, first), len(rounds)):
        done = rounds[i]
        line: dict[str, Any] = {"run": r, "strategy": run.label, "seed": run.seed}
        line["round"] = int(done)
        told = {name[5:]: run.tables[name][i] for name in infos}
        line |= {name: finite(v) for name, v in told.items() if not np.isnan(v)}
        at = evaluated.get(int(done))
        if at is not None:
            models = run.models()
            accuracy, loss = (
                np.stack([run.tables[f"{model}.{name}"][at] for model in models]).astype(float)
                for name in ("accuracy", "loss")
            )
            # Figures are in percent, unless the metric says that its scores are no shares.
            found = every(accuracy, loss, run.test_size, share, run.metric.unit(True))
            for model, figures in zip(models, found, strict=True):
                line[model] = {k: finite(v) for k, v in figures._asdict().items()}
        lines.append(line)
    return lines


def read_round_lines(path: Path | str, start: int = 0) -> list[dict[str, Any]]:
    """The complete lines of rounds.jsonl, from this byte to its end."""
    file = Path(path) / "rounds.jsonl"
    lines: list[dict[str, Any]] = []
    try:
        for place, line in files.json_lines(file, start):
            try:
                lines.append(schema.check(schema.Line, line))
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            if len(lines) > MAX_LINES:
                raise ValueError(f"it has more than {MAX_LINES:,} lines to read")
    except FileNotFoundError:
        return []
    except array_files.READ_ERRORS as error:
        raise InputError(
            f"{file} cannot be read ({reason(error)}): restore it, or move it away: `fedmaba "
            "resume` writes it anew"
        ) from error
    return lines


def read_seconds(path: Path, newest: int = 20) -> list[float]:
    """How long the newest rounds took, by timing.jsonl; nothing where it does not say."""
    found: list[float] = []
    try:
        for _, line in files.json_lines(path / "timing.jsonl"):
            took = line.get("seconds") if isinstance(line, dict) else None
            if isinstance(took, int | float) and 0 <= took < math.inf:
                found.append(float(took))
    except array_files.READ_ERRORS:  # Nothing rests on these wall-clock figures.
        return []
    return found[1:][-newest:]  # The first round also compiles kernels.
