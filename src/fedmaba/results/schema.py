"""The shape of every JSON file in a run folder; unknown keys of newer versions are ignored.

A value of the wrong type is an error of one line that names the key. No torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_RUNS = 10_000  # in one folder
MAX_LABEL = 2_000  # characters
MAX_GROUPS = 100_000  # of people
Word = Annotated[str, Field(max_length=MAX_LABEL)]
Text = Annotated[str, Field(max_length=20_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class SavedMetric(Part):
    """What a score is; without it, accuracy."""

    name: Word = "accuracy"
    lower: bool = False
    shares: bool | None = None


class SavedGroups(Part):
    """Groups of people that a run is judged by."""

    names: Annotated[list[Word], Field(max_length=MAX_GROUPS)] = []
    positive: Word = ""


class SavedOrigin(Part):
    """Where a run comes from; earlier versions did not note it."""

    data: Word = ""
    partition: Word = ""
    code: Word = ""


class SavedRun(Part):
    """One run, in runs.json, a checkpoint and an archive."""

    label: Word
    seed: Seed
    deploy: Word
    diverged: Text
    of: Word = ""  # This is a digest of what all seeds have in common; earlier versions had none.
    metric: SavedMetric = SavedMetric()
    groups: SavedGroups = SavedGroups()
    origin: SavedOrigin = SavedOrigin()
    personal: bool = False  # In an archive, it says whether clients have models of their own.


class Provenance(Part):
    """What the numbers of a run come from; version 0.1.0 did not record it."""

    asked: dict[str, Any]  # These settings can change the numbers.
    data: Word  # SHA-256
    partition: dict[str, Word]  # SHA-256, by seed


class Runs(Part):
    """runs.json, which a finished folder has."""

    share: Share = 0.05
    runs: Annotated[list[SavedRun], Field(max_length=MAX_RUNS)]
    made: Provenance | None = None
    files: dict[str, Word] = {}  # SHA-256, by name


SITE = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # the name of a site on Flower
Site = Annotated[str, Field(pattern=f"^{SITE}$")]
MAX_REFUSED = 100_000  # lines of one round


class Terms(Part):
    """Settings of a federation on Flower that stay the same."""

    strategy: Word
    seed: Seed
    deploy: Word
    lr: Number | None = None
    lr_decay: Number | None = None
    batchnorm: Word | None = None
    schedule: Word | None = None
    secure: dict[Word, Any] | None = None
    dp: dict[Word, Number] | None = None
    losses: dict[Word, Number] | None = None


class SiteLine(Part):
    """What a site of a federation told in a round, and its weight."""

    weight: Number | None = None
    loss: Number | None = None
    accuracy: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    error: Number | None = None
    examples: Count | None = None


class StateLine(Part):
    """A line of rounds.jsonl of a federation: a round, or how its end serves the sites."""

    round: Count
    strategy: Word = ""
    info: dict[Word, Number | None] = {}
    sites: dict[Site, SiteLine] | None = None
    asked: list[Site] | None = None  # version 0.1.0 did not record it
    refused: Annotated[list[Text], Field(max_length=MAX_REFUSED)] = []
    deployed: dict[Site, Number] | None = None
    secure: dict[Word, Any] | None = None


class StateTiming(Part):
    """A line of timing.jsonl of a federation."""

    round: Annotated[int, Field(ge=1, lt=2**63)]
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    ended: Annotated[str, Field(pattern="^[0-9T:+.-]{10,40}$")]  # ISO 8601


class StateEvent(Part):
    """A line of events.jsonl of a federation."""

    time: Annotated[str, Field(pattern="^[0-9T:+.-]{10,40}$")]  # ISO 8601
    level: Annotated[str, Field(pattern="^[a-z]{1,20}$")]
    round: Count | None = None
    site: Site | None = None
    text: Text


class Ledger(Part):
    """privacy.json of a private federation: how often what each site released was counted."""

    multipliers: Annotated[list[Number], Field(max_length=2)]
    taken: dict[Site, Count]
    ended: Count | None = None  # After this round too few sites could still be asked.


class SavedFederation(Part):
    """What about.json says of a federation on Flower."""

    terms: Terms
    rounds: Count | None = None
    participation: dict[Word, Any] = {}
    train: dict[Word, Any] = {}
    began: Word = ""


class Meta(Runs):
    """The meta data of a checkpoint, of a simulation or of a server on Flower."""

    round: Count
    extends: Count | None = None  # This many rounds were asked for before more were added.
    lines: Count  # bytes of rounds.jsonl
    chunk: Annotated[int, Field(ge=1)] | None = None
    diverged: Annotated[list[Text], Field(max_length=MAX_RUNS)] | None = None
    weights: list[Word] | None = None
    order: str | None = None
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    terms: dict[str, Any] | None = None
    sites: list[Word] | None = None
    owners: dict[Word, Word] | None = None
    changes: list[dict[Word, str | None]] | None = None
    counted: Count | None = None
    refused: list[str] | None = None
    federation: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] | None = None
    privacy: dict[str, dict[Word, Number | Word]] = {}
    last_counted: dict[Word, Count] | None = None
    taken: dict[Word, Count] | None = None  # Ledger says how often each site was counted.


class DataSection(Part):
    name: Word = ""
    sha256: Word = ""
    inputs: Word = ""  # It says how pixels became inputs; versions before this did not say.
    classes: list[str] = []
    clients: list[str] = []
    task: Word = "classify"
    target: Word = ""  # in words


class ModelSection(Part):
    path: str = ""
    parameters: Count = 0


class DataSource(Part):
    """The data as read, and how each seed divides them, as digests."""

    data: Word
    partition: dict[Word, Word] = {}


class About(Part):
    """about.json: where a run comes from."""

    command: list[str] = []
    repeat: str = ""
    python: bool = False
    own: dict[str, str] = {}
    seeds: Annotated[list[Seed], Field(max_length=MAX_RUNS)] = []
    data: DataSection = DataSection()
    partition: dict[Word, Word] = {}
    source: DataSource | None = None  # It is None in a version that did not note it.
    hostile: dict[Word, list[Count]] | None = None
    privacy: dict[str, dict[Word, Number | Word]] = {}  # what makes each run private
    model: ModelSection = ModelSection()
    ranks: Count = 1
    chunk: Annotated[int, Field(ge=1)] = 1
    device: Word = ""
    metric: SavedMetric = SavedMetric()
    versions: dict[Word, Word] = {}
    digest: Word | None = None  # SHA-256 of what the run is made of
    federation: SavedFederation | None = None  # of a server on Flower


class Figures(Part):
    """The fairness figures of a model; nan and infinity are null."""

    variance: Number | None = None
    accuracy: Number | None = None
    worst: Number | None = None
    best: Number | None = None


class Line(Part):
    """A line of rounds.jsonl."""

    run: Count = 0
    strategy: Word
    seed: Seed
    round: Annotated[int, Field(ge=1, lt=2**63)]
    deployed: Figures = Figures()
    last: Figures = Figures()
    personal: Figures = Figures()  # It is given where clients have models of their own.


class SavedTrial(Part):
    """One trial of `fedmaba tune`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    strategy: Word
    row: Word
    values: dict[Word, str | int | float | list[Word] | None]
    seeds: Count
    score: Number | None
    score_sd: Number | None
    variance: Number | None
    note: Text
    picked: bool


class SavedProposal(Part):
    """One entry of a search's order: a trial with what it tries, or what it is worth."""

    model_config = ConfigDict(strict=True, extra="forbid")

    strategy: Word
    trial: Annotated[int, Field(ge=0, lt=MAX_RUNS)]
    row: Word = ""
    values: dict[Word, str | int | float | list[Word] | None] = {}
    value: Number | None = None


class SavedSearch(Part):
    """tune.json: what was searched and found."""

    search: dict[str, Any]
    trials: Annotated[list[SavedTrial], Field(max_length=MAX_RUNS)]
    order: Annotated[list[SavedProposal], Field(max_length=2 * MAX_RUNS)] = []


class Tracked(Part):
    """trackers.json: what each tracker calls each run."""

    ids: dict[Word, dict[Word, Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]]]


def is_site(name: str) -> bool:
    """Whether a site on Flower may have this name."""
    return re.fullmatch(SITE, name) is not None


def check(kind: type[Part], tree: Any) -> dict[str, Any]:
    """Return the tree if it fits the model; else ValueError names the first wrong key."""
    try:
        kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part)[:80] for part in first["loc"])
        rule = str(first["msg"]).replace("Input should", "it should").replace("Field r", "r")
        given = "" if first["type"] == "missing" else f"={_short(first['input'])}"
        raise ValueError(f"{place}{given}: {rule}" if place else "no JSON object") from None
    return dict(tree)


def _short(value: object) -> str:
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value):,}"
    return repr(value[:60] if isinstance(value, str) else value)
