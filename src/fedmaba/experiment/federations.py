"""The data of an experiment, divided among the clients of each seed. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedmaba.data import attack, datasets, partition, tables
from fedmaba.data.federation import Division, Federation, divide, prepared, usual
from fedmaba.data.tables import Reading
from fedmaba.errors import InputError
from fedmaba.experiment import config
from fedmaba.experiment.config import Experiment

SPLITTING = ("partition", "clients", "test", "validation")
TABLE = Reading._fields


class ReadData(NamedTuple):
    """Data as they were read, and what was asked for."""

    asked: config.Data
    data: datasets.Dataset
    shown: bool = True  # whether what may be a mistake in them was said


def load_federations(
    experiment: Experiment,
    own: datasets.Dataset | Federation | None,
    before: ReadData | None = None,
) -> tuple[datasets.Dataset, dict[int, Federation]]:
    """The data as read, and the clients of each seed; data read before are not read again."""
    seeds, asked = experiment.seed_list(), experiment.data
    if isinstance(own, Federation):
        _same_task(asked.task, own.data)
        _refuse_keys(
            asked,
            [*SPLITTING, *TABLE, "min_examples", "normalise", "dir"],
            "a Federation is split already: leave it out, or give arrays",
        )
        return own.data, _of_federation(own, seeds, asked.resplit == "yes")
    if own is not None:
        _refuse_keys(asked, TABLE, "a Dataset is read already: leave it out, or name the file")
    folder = None if asked.dir is None else Path(asked.dir)
    data = own or (_read_before(asked, before) if before else None)
    said = {key: getattr(asked, key) for key in TABLE if getattr(asked, key)}
    data = data or datasets.load(
        asked.name,
        folder,
        normalise=asked.normalise,
        task=asked.task,
        reading=tables.reading(**said),
    )
    _same_task(asked.task, data)
    spec = asked.partition or usual(data)
    clients = asked.clients
    if clients is None and spec != "given":
        clients = 20 if data.name == "sample" else 100
    share = partition.parse_share(asked.validation)
    how = Division(spec, clients, asked.test, share, asked.min_examples or 0)
    if asked.resplit == "no":
        return data, dict.fromkeys(seeds, divide(data, [0], how)[0])
    return data, divide(data, seeds, how)


def _read_before(asked: config.Data, before: ReadData) -> datasets.Dataset | None:
    """Data that were read before, if the same are asked for."""
    keys = ("name", "dir", "normalise", "task", *TABLE)
    same = all(getattr(asked, key) == getattr(before.asked, key) for key in keys)
    return before.data if same else None


def _refuse_keys(asked: config.Data, keys: Sequence[str], why: str) -> None:
    for key in keys:
        if (value := getattr(asked, key)) != config.Data.model_fields[key].default:
            raise InputError(f"{key}={value!r}: {why}")


def _of_federation(given: Federation, seeds: Sequence[int], anew: bool) -> dict[int, Federation]:
    """The clients of each seed: those of a federation, or its data divided anew for each seed."""
    if not anew:
        return prepared(dict.fromkeys(seeds, given))
    if given.origin is None:
        raise InputError(
            "resplit='yes', but this Federation was split by hand: leave it out, or use "
            "Federation.from_arrays or from_frame"
        )
    return divide(given.origin.data, seeds, given.origin.how)


def _same_task(asked: str | None, data: datasets.Dataset) -> None:
    """Refuse another task than that of data which were made in Python."""
    if asked not in (None, data.task):
        raise InputError(
            f"task={asked!r}, but the data given are for {data.task}: leave it out, or give "
            "from_arrays(..., task=...)"
        )


def data_notes(fed: Federation, read: datasets.Dataset, own: bool) -> list[str]:
    """What was read, who the clients are, what was done to the data, and who is not judged."""
    data = fed.data
    notes = [f"data: {read.in_words()}; {fed.whence()}", *(f"data: {step}" for step in data.steps)]
    named = own or data.name.endswith(datasets.OWN_FILES) or bool(data.steps)
    if (
        named
        and data.task == "classify"
        and data.classes != tuple(map(str, range(data.target.outputs)))
    ):
        shown = ", ".join(f"{i} = {name}" for i, name in enumerate(data.classes[:12]))
        more = f", ... ({len(data.classes)} in all)" if len(data.classes) > 12 else ""
        notes.append(f"labels: {shown}{more}")
    without = int((fed.test.size == 0).sum())
    if without and fed.hostile is None:
        notes.append(
            f"clients: {without} of {fed.n_clients} have no test example: they train, and figures "
            "are of the others"
        )
    return notes


def attack_of(asked: config.Attack) -> tuple[attack.Attack | None, float]:
    """What hostile clients do, and which share of the clients they are."""
    does = None if asked.does is None else attack.parse_attack(asked.does)
    return does, partition.parse_share(asked.share)
