"""Flower's records and messages as arrays and numbers, and back. Imports flwr, no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log

from fedmaba.deploy import validation
from fedmaba.deploy.settings import batchnorm_choice
from fedmaba.deploy.site_names import Node, key_fingerprint
from fedmaba.deploy.validation import Arrays, RawArray, RawReply
from fedmaba.errors import InputError
from fedmaba.report.escape import one_line

if TYPE_CHECKING:
    from fedmaba.rows import models


def initial_arrays(
    model: models.Factory | str,
    shape: models.InputShapes,
    classes: int,
    seed: int = 0,
    batchnorm: str = "refuse",
    task: str | None = None,
    own_layers: Sequence[str] = (),
) -> ArrayRecord:
    """The first model, that of the simulator's run with this seed; needs torch.

    What sites do not send is not in it: frozen weights, and layers that they keep, as
    `batchnorm` and the strategy's `own_layers` say. `classes` is
    how many outputs it has; `task` is what it is to predict, a class unless you say otherwise.
    """
    from fedmaba.deploy.client import first_model

    choice = batchnorm_choice(batchnorm)
    return array_record(first_model(model, shape, classes, seed, choice, task, own_layers))


def load_arrays(path: str | Path) -> ArrayRecord:
    """A first model from a .safetensors file; needs no torch."""
    try:
        return array_record(safetensors.numpy.load_file(path))
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: {error}: give a .safetensors file of weights") from error


def array_record(model: Mapping[str, Any]) -> ArrayRecord:
    """A model as Flower carries it."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in model.items()})


def weights_of(message: Message) -> Arrays:
    """The model that a message brings to a site."""
    return {name: array.numpy() for name, array in message.content["arrays"].items()}


def in_words(reason: str) -> str:
    """Why a site failed, without the class of our own exceptions, as Flower puts it in front."""
    return re.sub(r"^<class 'fedmaba\.[\w.]+'>:<['\"](.*)['\"]>$", r"\1", reason, flags=re.S)


def raw_reply(node: int, message: Message | str, most: int) -> RawReply:
    """A reply as it is validated, unless it has more than `most` arrays or too many entries."""
    if isinstance(message, str):
        return RawReply(node, "", error=message)
    if message.has_error():
        return RawReply(node, "", error=in_words(f"{message.error.reason}"))
    found = message.content
    kinds = (ArrayRecord, MetricRecord, ConfigRecord)
    if len(found) > len(kinds) or len({type(record) for record in found.values()}) < len(found):
        return RawReply(node, "", error="it sent two records of a kind, so neither counts")
    by_kind: dict[Any, Any] = {type(record): record for record in found.values()}
    arrays, numbers, words = (by_kind.get(kind, {}) for kind in kinds)
    try:
        validation.check_entry_counts(arrays, numbers, words, most)
    except validation.Refused as why:
        return RawReply(node, "", error=str(why))
    sent = {n: RawArray(a.dtype, tuple(a.shape), a.stype, a.data) for n, a in arrays.items()}
    return RawReply(node, message.metadata.group_id, sent, dict(numbers), dict(words))


def as_node(info: Any) -> Node:
    """A node as the SuperLink knows it."""
    return Node(info.node_id, key_fingerprint(bytes(info.public_key)), info.name)


def log_line(level: int, text: str) -> None:
    """Log one line; names and reasons from the network cannot break or colour it."""
    log(level, "%s", one_line(text))
