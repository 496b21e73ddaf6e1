"""TensorBoard events beside a run folder: scalars per run, and the spread of client accuracy.

The writer is TensorBoard's own, which needs neither torch nor TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.report import escape, tracked
from fedmaba.results import files


def check() -> None:
    """Say what to install before any work starts."""
    with tracked.installed_for("tensorboard", "TensorBoard"):
        import tensorboard.summary.writer.event_file_writer  # noqa: F401


def errors() -> tuple[type[Exception], ...]:
    """What it raises when the tracker fails, not fedmaba."""
    return (OSError,)


def open_run(run: tracked.TrackedRun, known: str) -> tracked.Tracker:
    """Start a file of events for a run, beside those of earlier sessions."""
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    place = tracked.place(run.folder, f"tensorboard/{run.stem}")
    there = {step for file in sorted(place.glob("events.out.*")) for step in _steps(file)}
    return Events(EventFileWriter(str(place)), there)


def _steps(file: Path) -> Iterator[int]:
    """The steps in a file of events, whose last may be torn."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.errors import OpError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    with files.open_plain(file):  # This refuses what would wait, such as a pipe.
        reader = PyRecordReader_New(str(file))
    with suppress(OpError, DecodeError):  # The end is an error, too.
        while True:
            reader.GetNext()
            event = Event.FromString(reader.record())
            if event.summary.value:
                yield event.step


class Events:
    """One file of events."""

    id = ""  # The events of one folder belong together.

    def __init__(self, writer: Any, there: Container[int]) -> None:
        self._writer, self.there = writer, there

    def write(self, done: int, figures: tracked.RoundFigures) -> None:
        """Add the figures of a round, with the spread of the clients."""
        self._writer.add_event(event_of(done, figures.values, figures.clients))
        self._writer.flush()  # A process that is killed leaves what the file has.

    def close(self, finished: bool) -> None:
        """Write what is left."""
        self._writer.close()


def event_of(done: int, values: Mapping[str, float], clients: NDArray[Any] | None) -> Any:
    """An event after so many rounds: figures, and a histogram of the clients' scores."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary

    entries = [
        Summary.Value(tag=escape.one_line(name), simple_value=value)
        for name, value in values.items()
    ]
    if clients is not None and len(clients):
        counts, edges = np.histogram(clients, bins=20)
        histogram = HistogramProto(
            min=float(edges[0]),
            max=float(edges[-1]),
            num=float(len(clients)),
            sum=float(clients.sum()),
            sum_squares=float((clients**2).sum()),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.astype(float).tolist(),
        )
        entries.append(Summary.Value(tag="clients/accuracy", histo=histogram))
    return Event(wall_time=time.time(), step=done, summary=Summary(value=entries))
