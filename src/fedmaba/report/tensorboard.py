"""TensorBoard events beside a run folder: scalars per run, and the spread of client accuracy.

The writer is TensorBoard's own, which needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.errors import InputError
from fedmaba.report import escape
from fedmaba.results import files, run_folder
from fedmaba.results.metrics import PERCENT, Unit, every

if TYPE_CHECKING:
    from fedmaba.experiment.session import Session
    from fedmaba.simulation.engine import Snapshot

MODELS = ("deployed", "last", "personal")
FIGURES = ("variance", "accuracy", "worst", "best", "gini", "jain")


def check() -> None:
    """Say what to install before any work starts."""
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError as error:
        raise InputError(
            "--tensorboard wants TensorBoard: in a clone of fedmaba, pip install '.[tensorboard]'"
        ) from error


@contextmanager
def events(session: Session, out: Path) -> Iterator[Callable[[Snapshot], None]]:
    """A writer of events under out/tensorboard, one folder per run, fed with snapshots."""
    check()
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    runs = session.history.runs
    names = [run_folder.run_file_stem(r, run.label, run.seed) for r, run in enumerate(runs)]
    places = [_place(out, f"tensorboard/{name}") for name in names]
    writers = [EventFileWriter(str(place)) for place in places]
    share = session.experiment.eval.share

    def take(snapshot: Snapshot) -> None:
        done, unit = snapshot.round + 1, session.history.unit
        for r, writer in enumerate(writers):
            values: dict[str, float] = {}
            if (seen := snapshot.rounds[r]) is not None:
                values |= {f"strategy/{name}": float(v) for name, v in seen.info.items()}
            spread: NDArray[Any] | None = None
            found = snapshot.evaluations[r] if snapshot.evaluations else None
            for model in (m for m in MODELS if found is not None and m in found):
                scores = found[model]  # type: ignore[index]
                accuracy, loss = scores.accuracy[None], scores.loss[None]
                (figures,) = every(accuracy, loss, runs[r].test_size, share, unit)
                values |= {f"{model}/{name}": getattr(figures, name) for name in FIGURES}
                if model == "deployed":
                    spread = scores.accuracy[~np.isnan(scores.accuracy)]
            if values:
                writer.add_event(_event(done, values, spread, unit))

    try:
        yield take
    finally:
        for writer in writers:
            writer.close()


def _place(out: Path, name: str) -> Path:
    """A folder for events, refused where it or something in it is a link."""
    place = out / name
    try:
        files.path_inside(out, f"{name}/events")
        for found in os.listdir(place) if files.exists(place) else ():
            if (place / found).is_symlink():
                raise files.UnexpectedKind(
                    place / found, f"{found} is a link where events should be"
                )
    except OSError as error:
        raise files.write_error(place, error) from error
    return place


def _event(
    step: int, values: dict[str, float], spread: NDArray[Any] | None, unit: Unit = PERCENT
) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    entries = [
        Summary.Value(tag=escape.one_line(name), simple_value=value)
        for name, value in values.items()
    ]
    spread = None if spread is None else spread[np.isfinite(spread)]
    if spread is not None and len(spread):
        spread = unit.scale * spread
        counts, edges = np.histogram(spread, bins=20)
        histogram = HistogramProto(
            min=float(edges[0]),
            max=float(edges[-1]),
            num=float(len(spread)),
            sum=float(spread.sum()),
            sum_squares=float((spread**2).sum()),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.astype(float).tolist(),
        )
        entries.append(Summary.Value(tag="clients/accuracy", histo=histogram))
    return Event(wall_time=time.time(), step=step, summary=Summary(value=entries))
