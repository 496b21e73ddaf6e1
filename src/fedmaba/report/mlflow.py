"""MLflow: a run for each strategy and seed, on a server or in a data base in the run folder.

The variable MLFLOW_TRACKING_URI names a server; without it, nothing leaves the machine.
"""

from __future__ import annotations

import os
import re
import time
from typing import Any

from fedmaba.report import escape, tracked
from fedmaba.results import run_folder

STRANGE = re.compile(r"[^A-Za-z0-9_./ -]")  # in names, which MLflow would refuse
LONGEST = 250  # Every version of MLflow takes names and values of this many characters.


def check() -> None:
    """Say what to install before any work starts."""
    with tracked.installed_for("mlflow", "MLflow"):
        import alembic  # noqa: F401
        import mlflow  # noqa: F401
        import sqlalchemy  # noqa: F401


def errors() -> tuple[type[Exception], ...]:
    """What it raises when the tracker fails, not fedmaba."""
    from mlflow.exceptions import MlflowException

    return (MlflowException, OSError)


def open_run(run: tracked.TrackedRun, known: str) -> tracked.Tracker:
    """Start to track a run, or go on with the one that is `known` by its id."""
    from mlflow import MlflowClient

    uri, files = os.environ.get("MLFLOW_TRACKING_URI", ""), None
    if not uri:
        place = tracked.place(run.folder, "mlflow")
        run_folder.make_folder(place)
        uri, files = f"sqlite:///{place.resolve() / 'mlflow.db'}", place.resolve().as_uri()
    client = MlflowClient(tracking_uri=uri)
    if known and (there := _find(client, known)):
        client.update_run(known, status="RUNNING")
        return MlflowRun(client, known, _rounds(client, there))
    named = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedmaba"
    found = client.get_experiment_by_name(named)
    experiment = found.experiment_id if found else client.create_experiment(named, files)
    tags = {"fedmaba.folder": escape.one_line(str(run.folder)), "fedmaba.group": run.group}
    made = client.create_run(experiment, tags=tags, run_name=escape.one_line(run.title()))
    for name, value in run.settings.items():
        client.log_param(made.info.run_id, _name(name), escape.one_line(str(value))[:LONGEST])
    return MlflowRun(client, made.info.run_id, set())


def _find(client: Any, known: str) -> Any:
    """The run of an id, if this server has it."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_run(known)
    except MlflowException:  # This is another server than before, which begins anew.
        return None
    return found if found.info.lifecycle_stage == "active" else None


def _rounds(client: Any, there: Any) -> set[int]:
    """The rounds of which figures are there."""
    return {
        point.step
        for name in there.data.metrics
        for point in client.get_metric_history(there.info.run_id, name)
    }


class MlflowRun:
    """One run of MLflow."""

    def __init__(self, client: Any, named: str, there: set[int]) -> None:
        self._client, self.id, self.there = client, named, there

    def write(self, done: int, figures: tracked.RoundFigures) -> None:
        """Log the figures of a round."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        told = [Metric(_name(name), value, now, done) for name, value in figures.values.items()]
        self._client.log_batch(self.id, metrics=told)

    def close(self, finished: bool) -> None:
        """End it: the run is finished, or was stopped and may be resumed."""
        self._client.set_terminated(self.id, "FINISHED" if finished else "KILLED")


def _name(text: str) -> str:
    return STRANGE.sub("_", text)[:LONGEST]
