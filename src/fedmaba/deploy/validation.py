"""Check every reply of a real federation before it counts. Pure NumPy.

Nothing in a reply is trusted. Names, shapes, dtypes and sizes must be those of the server's model.
Arrays are read without parsing their headers and without unpickling. Numbers must be finite and in
range. A reply must answer this round and model, come from a node that was asked, name that node's
site, and counts once. A reply that fails a check is left out, with a line that says why, and the
round goes on.

A lie within these limits, such as a flipped label or a moderate scale, cannot be seen here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.results import schema
from fedmaba.strategies.base import CLIENT_NUMBERS

Arrays = dict[str, NDArray[Any]]
SITE_NAME = re.compile(schema.SITE)
NPY = b"\x93NUMPY\x01\x00"  # the first bytes of an array
MAX_HEADER_BYTES = 4096  # of an array
MAX_COUNTER = 2**53  # largest integer: up to here a mean of counters is exact
MAX_ENTRIES = 32  # numbers or words in a reply; a site needs four
MAX_RECORD_BYTES = 2**16  # of all numbers together, or of all words


class Refused(Exception):
    """Why a reply does not count, in one line."""


class RawArray(NamedTuple):
    """An array as it arrived: what it says of itself, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    kind: str  #                        how it was written; "numpy.ndarray" is the .npy format
    data: bytes


@dataclass(frozen=True)
class RawReply:
    """A reply as it arrived."""

    node: int  #                        who was asked, known to the server
    round_id: str  #                    which round and model it says it answers
    arrays: Mapping[str, RawArray] = field(default_factory=dict)
    numbers: Mapping[str, object] = field(default_factory=dict)
    words: Mapping[str, object] = field(default_factory=dict)
    error: str | None = None  #         what went wrong at the site


@dataclass(frozen=True)
class Reply:
    """A reply that counts."""

    node: int
    site: str
    model: Arrays
    count: int
    loss: float | None = None
    accuracy: float | None = None  #    of the model it received, where the site reports one
    error: float | None = None  #       the same where the lower score is the better one
    personal: float | None = None  #    accuracy or error of the site's own model, if it has one
    anew: bool = False  #               whether what the site kept was gone, so it started anew
    numbers: Mapping[str, float] = field(default_factory=dict)  # others that the strategy asks for


@dataclass(frozen=True)
class Limits:
    """What a site may say."""

    loss: tuple[float, float] = (0.0, 1e3)
    count: int = 1_000_000  #           examples
    weight: float = 1e6  #              largest entry of a model, either sign


@dataclass(frozen=True)
class ReplyValidator:
    """Checks the replies of one round."""

    model: Arrays  #                    the server's own
    round_id: str
    asked: Mapping[int, str | None]  #  node -> site, None where its name is not known yet
    # raises Refused if a node may not take the name of a site
    check_name: Callable[[int, str], None] = lambda node, site: None
    needs_loss: bool = True
    limits: Limits = Limits()
    asks: tuple[str, ...] = ()  #       other numbers that the strategy needs
    # in a private round the values of an honest site decide nothing here: the server bounds them
    any_values: bool = False
    # site -> how many examples it may say that it has; other sites, and at most: limits.count
    examples: Mapping[str, int] = field(default_factory=dict)

    def validate(self, raw_replies: Iterable[RawReply]) -> tuple[list[Reply], list[str]]:
        """The replies that count, one per node and site, and a line for each other one."""
        taken: list[Reply] = []
        refused: list[str] = []
        for raw in sorted(raw_replies, key=lambda raw: raw.node):  # not in order of arrival
            try:
                if any(raw.node == r.node for r in taken):
                    raise Refused("it answered this round already")
                reply = self.check(raw)
                if any(reply.site == r.site for r in taken):
                    raise Refused(f"site {reply.site!r} answered this round already")
                taken.append(reply)
            except Refused as why:
                name = self.asked.get(raw.node)
                refused.append(f"node {raw.node}{f' ({name})' if name else ''}: {why}")
        return taken, refused

    def check(self, raw: RawReply) -> Reply:
        """Check one reply; raise Refused if it does not count."""
        if raw.node not in self.asked:
            raise Refused("it was not asked in this round")
        if raw.error is not None:
            raise Refused(f"it failed: {printable(raw.error, 200)}")
        if raw.round_id != self.round_id:
            raise Refused(f"it answers {printable(raw.round_id)!r}, but this is {self.round_id!r}")
        site = site_name(raw.words)
        known = self.asked[raw.node]
        if known is None:
            self.check_name(raw.node, site)
        elif site != known:
            raise Refused(f"it says site {site!r}, but this node is {known!r}")
        count = self._count(raw.numbers, site)
        loss = self._loss(raw.numbers)
        accuracy, error = read_score(raw.numbers)
        others = {name: self._number(raw.numbers, name) for name in self.asks}
        personal, anew = read_personal_score(raw.numbers), bool(raw.numbers.get("started-anew"))
        model = self._model(raw.arrays)
        scores = (accuracy, error, personal, anew, others)
        return Reply(raw.node, site, model, count, loss, *scores)

    def _count(self, numbers: Mapping[str, object], site: str) -> int:
        count, most = numbers.get("num-examples"), self.examples.get(site, self.limits.count)
        if not isinstance(count, int) or isinstance(count, bool):
            raise Refused(f"num-examples is {printable(count)!r}: it must be a whole number")
        if not 1 <= count <= most:
            raise Refused(f"num-examples is {printable(count)}: it must lie in 1..{most}")
        return count

    def _loss(self, numbers: Mapping[str, object]) -> float | None:
        loss = numbers.get("loss")
        if self.any_values and isinstance(loss, float):
            return loss
        loss = read_number(numbers, "loss", *self.limits.loss)
        if loss is None and self.needs_loss:
            raise Refused("it reports no loss, which this strategy needs")
        return loss

    def _number(self, numbers: Mapping[str, object], name: str) -> float:
        limits = CLIENT_NUMBERS[name].limits or self.limits.loss
        value = read_number(numbers, name, *limits)
        if value is None:
            raise Refused(f"it reports no number {name!r}, which this strategy needs")
        return value

    def _model(self, arrays: Mapping[str, RawArray]) -> Arrays:
        if set(arrays) != set(self.model):
            raise Refused(other_names(arrays, self.model))
        size = sum(len(sent.data) for sent in arrays.values())
        most = sum(like.nbytes + MAX_HEADER_BYTES for like in self.model.values())
        if size > most:  # before any of it is read
            raise Refused(f"{size} bytes: this model takes at most {most}")
        limits = None if self.any_values else self.limits
        return {n: read_array(n, arrays[n], like, limits) for n, like in self.model.items()}


def check_entry_counts(
    arrays: Sized, numbers: Mapping[str, object], words: Mapping[str, object], most: int
) -> None:
    """Refuse a reply with more arrays or entries than an honest one has, before any is read."""
    if len(arrays) > most:
        raise Refused(f"it sent {len(arrays)} arrays: this model has {most}")
    for record, kind in ((numbers, "numbers"), (words, "words")):
        count = len(record)
        if count <= MAX_ENTRIES:
            count += sum(len(value) for value in record.values() if isinstance(value, list))
        if count > MAX_ENTRIES:
            raise Refused(f"it sent {count} {kind}: at most {MAX_ENTRIES} are read")


def max_parts(model: Mapping[str, NDArray[Any]]) -> int:
    """How many pieces a reply with this model may have; Flower cuts arrays every 5 MB."""
    return 16 + 2 * len(model) + sum(a.nbytes for a in model.values()) // 2**20


def read_array(
    name: str, sent: RawArray, like: NDArray[Any], limits: Limits | None
) -> NDArray[Any]:
    """Read an array with the dtype and shape of `like`, finite and in range, or raise Refused.

    Without limits its weights may have any value.
    """
    if sent.kind != "numpy.ndarray":
        raise Refused(f"{name} is written as {printable(sent.kind)!r}, not as numpy.ndarray")
    if (sent.dtype, tuple(sent.shape)) != (str(like.dtype), like.shape):
        said = f"{printable(sent.dtype)} {printable(tuple(sent.shape))}"
        raise Refused(f"{name} is {said}, but the model has {like.dtype} {like.shape}")
    length = int.from_bytes(sent.data[8:10], "little")
    header, body = sent.data[10 : 10 + length].rstrip(), sent.data[10 + length :]
    orders = {_header(like, flag): order for flag, order in ((False, "C"), (True, "F"))}
    if sent.data[:8] != NPY or header not in orders:
        raise Refused(f"{name}: its bytes do not begin as an array of {like.dtype} {like.shape}")
    if len(body) != like.nbytes:
        raise Refused(f"{name}: {len(body)} bytes follow its header, not {like.nbytes}")
    values = np.frombuffer(body, like.dtype)
    if like.dtype.kind == "f" and limits is not None:
        if not np.isfinite(values).all():
            raise Refused(f"{name} has values that are not finite")
        if values.size and float(np.abs(values).max()) > limits.weight:
            raise Refused(f"{name} has values beyond {limits.weight:g}")
    integers = like.dtype.kind != "f" and values.size
    if integers and max(-int(values.min()), int(values.max())) > MAX_COUNTER:
        raise Refused(f"{name} has values beyond {MAX_COUNTER}")
    if is_statistic(name, like) and values.size and values.min() < 0 and not _signed(name):
        raise Refused(f"{name} has negative values")
    return values.reshape(like.shape, order="F" if orders[header] == "F" else "C")


def forms(arrays: Arrays) -> dict[str, tuple[Any, ...]]:
    """The shape and type of each array."""
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def is_statistic(name: str, array: NDArray[Any]) -> bool:
    """Whether an array is a running statistic or a counter, which is averaged and not weighed.

    The names are those of PyTorch's normalisation layers. Every array that is not of floats counts
    as one, too.
    """
    last = name.rpartition(".")[2]
    known = last in ("running_mean", "running_var", "num_batches_tracked")
    return known or array.dtype.kind != "f"


def _signed(name: str) -> bool:
    """Whether a statistic may be negative: not if it is a variance or a counter."""
    return name.rpartition(".")[2] not in ("running_var", "num_batches_tracked")


def _header(like: NDArray[Any], fortran: bool) -> bytes:
    """The header NumPy writes for such an array, without its padding."""
    shape = tuple(int(n) for n in like.shape)
    said = f"{{'descr': {like.dtype.str!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}"
    return said.encode()


def site_name(words: Mapping[str, object]) -> str:
    """The name that a site gives itself; raises Refused if it is not a proper name."""
    site = words.get("site")
    if not isinstance(site, str) or not SITE_NAME.fullmatch(site):
        rule = "1 to 64 letters, digits, '.', '_' or '-', not beginning with a sign"
        raise Refused(f"site is {printable(site)!r}: give a name of {rule}")
    return site


def read_number(
    numbers: Mapping[str, object], key: str, low: float = -math.inf, high: float = math.inf
) -> float | None:
    """Read a finite number in range; None if it is missing; else raise Refused."""
    value = numbers.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Refused(f"{key} is {printable(value)!r}: it must be a number")
    if not low <= value <= high or value in (math.inf, -math.inf):  # also false for nan
        raise Refused(
            f"{key} is {printable(value)}: it must be finite and lie in {low:g}..{high:g}"
        )
    return float(value)


def read_score(numbers: Mapping[str, object]) -> tuple[float | None, float | None]:
    """How a model serves a site: its accuracy, or its error, or neither; else Refused."""
    accuracy, error = read_number(numbers, "accuracy", 0.0, 1.0), read_number(numbers, "error", 0.0)
    if accuracy is not None and error is not None:
        raise Refused("it sent accuracy and error: send one of them")
    return accuracy, error


def read_personal_score(numbers: Mapping[str, object]) -> float | None:
    """How a site's own model serves it: an accuracy or an error; None: it has none."""
    names = {"accuracy": "personal-accuracy", "error": "personal-error"}
    own = {what: numbers[name] for what, name in names.items() if name in numbers}
    return next((score for score in read_score(own) if score is not None), None)


def some_names(items: Iterable[str], few: int = 3) -> str:
    """The first few of many names, on one line."""
    ordered = sorted(items)
    listed = ", ".join(printable(item, 40) for item in ordered[:few])
    return (listed + (f" and {len(ordered) - few} more" if len(ordered) > few else "")) or "none"


def other_names(sent: Iterable[str], wanted: Iterable[str]) -> str:
    """What is missing among the arrays that were sent, and what is too much."""
    missing, extra = set(wanted) - set(sent), set(sent) - set(wanted)
    return f"arrays missing: {some_names(missing)}; not of this model: {some_names(extra)}"


def printable(value: object, most: int = 100) -> str:
    """What a stranger sent, for one line of a log: shortened, without control characters."""
    try:
        text = str(value)[: most + 1]
    except ValueError:  # an integer with more digits than Python prints
        text = "a huge number"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else text[:most] + "..."
