"""What a server writes beside its state: about.json, timing.jsonl, metrics, a model card. No torch.

Wall-clock figures are kept apart from rounds.jsonl, which repeats bit for bit after a crash.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import fedmaba
from fedmaba.deploy.private import PrivateRounds
from fedmaba.deploy.scores import score_spread
from fedmaba.deploy.settings import FederationSettings, Participation
from fedmaba.deploy.validation import Reply
from fedmaba.errors import InputError
from fedmaba.report import data, model_card
from fedmaba.report.escape import for_prometheus
from fedmaba.results import files, run_folder, state_folder

METRICS_REMEDY = "fix it; the federation goes on"


@dataclass
class RoundClock:
    """How long rounds take: each lasts from the end of the one before."""

    started: datetime = field(default_factory=lambda: datetime.now(UTC))  # of the server
    began: float = field(default_factory=time.monotonic)
    seconds: float = math.nan  # of the last round
    ended: datetime | None = None  # when it did

    def end_round(self) -> None:
        now = time.monotonic()
        self.seconds, self.began, self.ended = now - self.began, now, datetime.now(UTC)

    def line(self, done: int) -> dict[str, Any]:
        """The last round as a line of timing.jsonl."""
        assert self.ended is not None
        when = self.ended.isoformat(timespec="seconds")
        return {"round": done, "seconds": round(self.seconds, 3), "ended": when}


def versions() -> dict[str, str]:
    """The software of this server."""
    found = {
        "fedmaba": fedmaba.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
    try:
        return found | {"flwr": metadata.version("flwr")}
    except metadata.PackageNotFoundError:  # a server of your own, without Flower
        return found


def write_about(
    folder: run_folder.Folder | None,
    settings: FederationSettings,
    size: int,
    participation: Participation,
    train: Mapping[str, Any],
    timeout: float,
    private: PrivateRounds | None = None,
) -> None:
    """Write what was asked for and what runs it, at each start."""
    if folder is None:
        return
    told = {key: value for key, value in train.items() if isinstance(value, int | float | str)}
    asked = {
        "terms": settings.to_json(),
        "rounds": settings.rounds,
        "participation": {**asdict(participation), "timeout": timeout},
        "train": told,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    about: dict[str, Any] = {"versions": versions(), "device": platform.machine() or "cpu"}
    if private is not None:
        about["privacy"] = {settings.strategy.label(): private.facts()}
    folder.write_json("about.json", {**about, "model": {"parameters": size}, "federation": asked})


def write_card(folder: run_folder.Folder | None) -> None:
    """Write the model card beside the models, when the federation has ended."""
    if folder is None:
        return
    state = state_folder.load_state_folder(folder.path)
    if state is None:
        raise InputError(f"{folder.path} is no state folder any more: restore it")
    state.held = False  # this process holds it, and has ended the run
    text = model_card.card_text(data.of_state(folder.path, state))
    folder.write(f"models/{model_card.CARD_FILE}", text.encode())


# --- metrics -----------------------------------------------------------------------------------


def check_metrics_path(path: Path) -> None:
    """Refuse a file of metrics that no collector would read, before anything is begun."""
    if path.suffix != ".prom":
        raise InputError(f"metrics={str(path)!r}: end it in .prom, as textfile collectors want")
    if not path.parent.is_dir():
        raise InputError(f"metrics={str(path)!r}: {path.parent} is no folder: make it first")


def write_metrics(path: Path, text: str) -> None:
    """Write the metrics whole or not at all; every account may read them, whatever the umask."""
    files.write(path, text.encode(), remedy=METRICS_REMEDY, mode=0o644)


def metrics_text(
    settings: FederationSettings,
    done: int,
    sites: Iterable[str],
    last_counted: Mapping[str, int],
    clock: RoundClock,
    report: Mapping[str, Any] | None,
    running: bool,
) -> str:
    """A federation in Prometheus' text format: how far it is, and its last round, if any."""
    about = {"version": fedmaba.__version__, "strategy": settings.strategy.label()}
    lines = _metric("build_info", "Version and strategy, always 1.", (about, 1))
    lines += _metric("running", "1 until the server has ended.", ({}, int(running)))
    lines += _metric(
        "start_timestamp_seconds", "When the server started.", ({}, clock.started.timestamp())
    )
    lines += _metric("rounds", "Rounds that are saved.", ({}, done))
    lines += _metric("rounds_asked", "Rounds that were asked for.", ({}, settings.rounds))
    lines += _metric(
        "site_last_round",
        "The last round in which a reply of the site counted, 0 for none.",
        *(({"site": site}, last_counted.get(site, 0)) for site in sites),
    )
    if clock.ended is not None:
        when = clock.ended.timestamp()
        lines += _metric("last_round_timestamp_seconds", "When the last round ended.", ({}, when))
        lines += _metric("last_round_seconds", "How long the last round took.", ({}, clock.seconds))
    return "\n".join(lines + ([] if report is None else _of_round(report))) + "\n"


def _of_round(report: Mapping[str, Any]) -> list[str]:
    """The metrics of the last round."""
    told, score = report["sites"], "error" if "error" in report else "accuracy"
    scale = 100.0 if score == "accuracy" else 1.0
    spread = {"mean": report.get(score), **{key: report.get(key) for key in ("worst", "best")}}
    variance = None if "variance" not in report else report["variance"] / scale**2
    asked, refused = report.get("asked") or list(told), len(report["refused"])
    lines = _metric("sites_asked", "Sites asked in the last round.", ({}, len(asked)))
    lines += _metric("sites_answered", "Sites whose reply counted in it.", ({}, len(told)))
    lines += _metric("replies_refused", "Lines on what did not count in it.", ({}, refused))
    lines += _metric(
        score,
        f"Mean, worst and best {score} of the sites in it, of the model they received.",
        *(({"over": k}, None if v is None else v / scale) for k, v in spread.items()),
    )
    lines += _metric(f"{score}_variance", f"Variance of {score} over these sites.", ({}, variance))
    numbers = (({"name": name}, value) for name, value in report["info"].items())
    lines += _metric("strategy", "Numbers of the strategy.", *numbers)
    lines += _metric(
        "site_answered",
        "1 if the site's reply counted in the last round that asked it.",
        *(({"site": site}, int(site in told)) for site in asked),
    )
    for name, text in (("weight", "The site's weight."), ("loss", "The loss it reported.")):
        lines += _metric(f"site_{name}", text, *(({"site": s}, r[name]) for s, r in told.items()))
    return lines


def _metric(name: str, text: str, *values: tuple[Mapping[str, str], float | None]) -> list[str]:
    """A metric with its help and its values by labels; nothing where none is known."""
    known = [(labels, v) for labels, v in values if v is not None and math.isfinite(v)]
    if not known:
        return []
    head = [f"# HELP fedmaba_{name} {text}", f"# TYPE fedmaba_{name} gauge"]
    return head + [f"fedmaba_{name}{_labels(labels)} {value:.12g}" for labels, value in known]


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{k}="{for_prometheus(v)}"' for k, v in labels.items()) + "}"


def round_report(
    settings: FederationSettings,
    done: int,
    replies: Sequence[Reply],
    weights: Mapping[str, float],
    info: Mapping[str, float],
    refused: Sequence[str],
    asked: Iterable[str],
) -> dict[str, Any]:
    """What happened in a round after `done` others, ready for JSON."""
    report: dict[str, Any] = {
        "round": done + 1,
        "strategy": settings.strategy.label(),
        "lr": settings.lr_in_round(done),
        "info": {name: float(v) if np.isfinite(v) else None for name, v in info.items()},
        "sites": {
            r.site: {
                "weight": weights.get(r.site),
                "loss": r.loss,
                "accuracy": r.accuracy,
                "examples": r.count,
                **({} if r.error is None else {"error": r.error}),
                **({} if r.personal is None else {"personal": r.personal}),
            }
            for r in replies
        },
        "asked": sorted({*asked, *(r.site for r in replies)}),
        "refused": list(refused),
    }
    report |= score_spread([r.accuracy for r in replies], [r.error for r in replies])
    if anew := [r.site for r in replies if r.anew]:
        report["started_anew"] = anew
    return report
