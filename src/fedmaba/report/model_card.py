"""A model card: what trained models are, in one Markdown file beside them. No torch.

It says what the folder says: who trained, how, with which figures, and the SHA-256 of each file.
What a model may be used for is for people to add.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from fedmaba.errors import InputError
from fedmaba.report import data, document, federation, run_setup, table
from fedmaba.report.document import Cell, Document, Grid
from fedmaba.results import files, run_folder

CARD_FILE = "card.md"
MODEL = re.compile(r"[^/]+\.safetensors")
BY_PEOPLE = (
    "Made by a program from the folder of the run. It does not say what these models may be used "
    "for, on whom, and where they fail: add that by hand, in a copy."
)


def card_text(source: data.Source) -> str:
    """The card of the models of a run folder, or of the state folder of a federation."""
    state, told = source.federation, run_setup.setup_of(source)
    listed = _models(source)
    page = Document(f"Model card: {source.name}", [_what(source), BY_PEOPLE], [listed])
    asked = _settings(source.experiment)
    if asked:
        page.grids.append(_pairs("settings", "How they were trained", "setting", asked))
    for model in data.MODELS:
        if any(math.isfinite(row.mean.accuracy) for row in source.history.summary(model)):
            page.grids.append(table.summary(source.history, model))
    if state is not None:
        page.grids += federation.grids(state)
        page.foot += [table.capitalised(f"{note}.") for note in state.notes()]
        page.foot += federation.secure_sums(state)
    facts = [*told["facts"], *((f"SHA-256 of {name}", digest) for name, digest in told["hashes"])]
    page.grids.append(_pairs("software", "Software and data", "what", [f for f in facts if f[1]]))
    page.foot.append(f"To repeat it: {' and then '.join(told['repeat'])}")
    return document.markdown(page)


def _what(source: data.Source) -> str:
    """What was trained, in a sentence."""
    runs = source.history.runs
    labels = ", ".join(dict.fromkeys(run.label for run in runs))
    who = "sites" if source.federation is not None else "clients"
    many = max((run.n_clients for run in runs), default=0)
    done = max((int(run.tables["round"][-1]) for run in runs if "round" in run.tables), default=0)
    where = "a federation on Flower" if source.federation is not None else "a simulation"
    about = source.about.get("model") or {}
    size = f"; {about['parameters']:,} weights each" if about.get("parameters") else ""
    return f"Models of {where}: {labels}, {many} {who}, {done} rounds{size}."


def _models(source: data.Source) -> Grid:
    """The files of the models, each with its size and SHA-256."""
    if source.path is None:
        raise InputError(f"{source.name} has no folder, so no models: name a run or state folder")
    folder = source.path / "models"
    with run_folder.reading(folder):
        names = sorted(files.matching_names(folder, MODEL))
        rows = [_file(folder / name) for name in names]
    if not rows:
        raise InputError(f"{folder} holds no models yet: wait until the run has ended")
    return Grid("files", "Files", ["file", "bytes", "SHA-256"], rows)


def _file(path: Path) -> list[Cell]:
    with files.open_plain(path) as opened:
        size = opened.seek(0, 2)
    return [Cell(path.name), Cell(f"{size:,}"), Cell(files.sha256(path) or "not read: holes")]


def _settings(experiment: str) -> list[tuple[str, str]]:
    """Every setting as key and value; none where the file is of another kind."""
    try:
        found = files.flattened(files.parse_toml(experiment.encode()))
        return [(key, str(value)) for key, value in found]
    except ValueError:
        return [("experiment", "not TOML, so its settings are not listed")]


def _pairs(name: str, title: str, first: str, pairs: list[tuple[str, str]]) -> Grid:
    return Grid(name, title, [first, "value"], [[Cell(k), Cell(v)] for k, v in pairs])
