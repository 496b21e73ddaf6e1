"""Small federations that are real: four hospitals, the census by a column, Shakespeare's roles.

The publishers' files are part of the package, compressed; their SHA-256 is checked on every load.
"""

from __future__ import annotations

import csv
import hashlib
import io
import lzma
import re
from collections.abc import Mapping, Set
from importlib import resources
from importlib.resources.abc import Traversable

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.cells import Words, in_order
from fedmaba.data.dataset import Dataset
from fedmaba.data.tables import RawTable, Reading
from fedmaba.data.targets import IGNORED
from fedmaba.errors import InputError, unknown

NATURAL = {  # what each is, and its licence; natural_files/README.md names the sources
    "heart": "heart disease: 920 patients of four hospitals, 13 features with gaps (CC BY 4.0)",
    "adult": "census income: 48,842 people; clients by a column: adult:by=occupation (CC BY 4.0)",
    "shakespeare": "next character of 309 speaking roles: shakespeare:length=80 (public domain)",
}
DIGESTS = {
    "processed.cleveland.data": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "processed.hungarian.data": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "processed.switzerland.data": (
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
    ),
    "processed.va.data": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    "shakespeare.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}
HOSPITALS = {
    "Cleveland": "processed.cleveland.data",
    "Hungary": "processed.hungarian.data",
    "Switzerland": "processed.switzerland.data",
    "Long Beach VA": "processed.va.data",
}
FILES = {
    "heart": tuple(HOSPITALS.values()),
    "adult": ("adult.data", "adult.test"),
    "shakespeare": ("shakespeare.txt",),
}
HEART = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal disease"
ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country income"
)
ADULT_BY = ("occupation", "workclass", "education", "native-country", "marital-status")
ADULT_GROUPS = ("sex", "race")
ADULT_NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
DATASET_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "heart": {"group": ("sex",)},
    "adult": {"by": ADULT_BY, "group": ADULT_GROUPS},
}
LENGTH = 80  # An example has this many characters, as in LEAF (Caldas et al. 2018).


def _text(name: str) -> str:
    """A file of the package as text, checked."""
    packed = _packed(name)
    try:
        plain = lzma.decompress(packed.read_bytes())
    except (OSError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{packed}: not readable ({error}): install fedmaba again") from None
    if hashlib.sha256(plain).hexdigest() != DIGESTS[name]:
        raise InputError(f"{packed}: not the publisher's file: install fedmaba again")
    return plain.decode()


def _packed(name: str) -> Traversable:
    return resources.files("fedmaba.data").joinpath("natural_files", f"{name}.xz")


def dataset_options(spec: str, known: dict[str, tuple[str, ...]]) -> dict[str, str]:
    """The options of a specification such as adult:by=sex,group=race, checked."""
    name, _, told = spec.partition(":")
    out = {}
    for part in filter(None, told.split(",")):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in known:
            raise unknown(f"option of {name}", key, known)
        if known[key] and value not in known[key]:
            raise unknown(f"{key} of {name}", value, known[key])
        out[key] = value
    return out


def is_natural(name: str) -> bool:
    """Whether this names one of these federations."""
    return name.partition(":")[0] in NATURAL


def check(spec: str) -> None:
    """Refuse a wrong option of a specification."""
    name = spec.partition(":")[0]
    if name == "shakespeare":
        length_of(spec)
    else:
        dataset_options(spec, DATASET_OPTIONS[name])


def check_files(name: str) -> list[tuple[str, str]]:
    """Each file of a set, with "ok" or what is wrong with it."""
    out = []
    for file in FILES[name]:
        try:
            _text(file)
            status = "ok"
        except InputError as error:
            status = str(error).partition(": ")[2]
        out.append((str(_packed(file)), status))
    return out


def as_csv(name: str) -> dict[str, str]:
    """The set as files that people read: a table with a header for each client, or the text."""
    if name == "shakespeare":
        return {"shakespeare.txt": _text("shakespeare.txt")}
    found = table(name)
    cells = {
        column: [values.words[code] if code >= 0 else "" for code in values.code]
        if isinstance(values, Words)
        else ["" if np.isnan(v) else f"{v:g}" for v in values]
        for column, values in found.columns.items()
    }
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(cells)
    writer.writerows(zip(*cells.values(), strict=True))
    return {f"{name.partition(':')[0]}.csv": out.getvalue()}


def table(spec: str) -> RawTable:
    """The table of a specification: heart, heart:group=sex, or adult:by=COLUMN,group=COLUMN."""
    check(spec)
    return adult(spec) if spec.partition(":")[0] == "adult" else heart(spec)


def heart(spec: str = "heart") -> RawTable:
    """The four hospitals; the label is whether there is any disease (1 to 4 in the files).

    A cholesterol or blood pressure of 0 is a gap: no living patient has it, and one hospital writes
    it for all of its patients. With group=sex, sex is the group of a patient and no feature.
    """
    rows: list[list[str]] = []
    where: list[str] = []
    for hospital, file in HOSPITALS.items():
        found = list(csv.reader(io.StringIO(_text(file))))
        rows += found
        where += [hospital] * len(found)
    cells = _by_column(HEART, rows)
    columns: dict[str, NDArray[np.float64] | Words] = {"hospital": words(where)}
    for name in list(cells)[:-1]:
        values = np.array([np.nan if cell == "?" else float(cell) for cell in cells[name]])
        if name in ("chol", "trestbps"):
            values[values == 0.0] = np.nan
        columns[name] = values
    # These are kinds of pain, of a reading, and of a defect.
    for name in ("cp", "restecg", "thal"):
        kinds = ["" if cell == "?" else str(int(float(cell))) for cell in cells[name]]
        columns[name] = words(kinds)
    columns["disease"] = words(["yes" if cell != "0" else "no" for cell in cells["disease"]])
    group = dataset_options(spec, DATASET_OPTIONS["heart"]).get("group")
    if group is not None:
        columns["sex"] = words(["male" if float(cell) else "female" for cell in cells["sex"]])
    return RawTable(columns, Reading("disease", "hospital", group))


def adult(spec: str) -> RawTable:
    """Census income; clients are the values of one column, `?` among them as the client unknown.

    The sampling weight `fnlwgt` and the words of `education`, which `education-num` counts, are not
    used. Test rows are the publisher's.
    """
    asked = dataset_options(spec, DATASET_OPTIONS["adult"])
    by, group = asked.get("by", "occupation"), asked.get("group", "sex")
    rows, part = [], []
    for name, word in (("adult.data", "train"), ("adult.test", "test")):
        found = csv.reader(io.StringIO(_text(name)), skipinitialspace=True)
        whole = [row for row in found if len(row) > 1]
        rows += whole
        part += [word] * len(whole)
    cells = _by_column(ADULT, rows)
    columns: dict[str, NDArray[np.float64] | Words] = {}
    for name in list(cells)[:-1]:
        if name == "fnlwgt" or (name == "education" and by != name):
            continue
        if name in ADULT_NUMBERS:
            columns[name] = np.array(cells[name], np.float64)
        else:
            gap = "unknown" if name == by else ""
            columns[name] = words([gap if cell == "?" else cell for cell in cells[name]])
    if by == "education":
        del columns["education-num"]
    columns["income"] = words([cell.rstrip(".") for cell in cells["income"]])
    columns["part"] = words(part)
    return RawTable(columns, Reading("income", by, group, "part"))


def _by_column(names: str, rows: list[list[str]]) -> dict[str, tuple[str, ...]]:
    """The cells of rows by the names of their columns."""
    return dict(zip(names.split(), zip(*rows, strict=True), strict=True))


def words(cells: list[str]) -> Words:
    """A column of words; an empty cell is a gap."""
    seen: dict[str, int] = {}
    code = np.array([-1 if c == "" else seen.setdefault(c, len(seen)) for c in cells], np.int64)
    return in_order(code, list(seen))


def length_of(spec: str) -> int:
    """How many characters a piece of text has: NAME:length=80."""
    length = dataset_options(spec, {"length": ()}).get("length", str(LENGTH))
    if not (length.isdecimal() and len(length) < 5 and 1 <= int(length) <= 1000):
        raise InputError(
            f"{spec.partition(':')[0]}:length={length}: give a whole number from 1 to 1000"
        )
    return int(length)


def shakespeare(spec: str) -> Dataset:
    """The speeches of each role, in order."""
    length, text = length_of(spec), _text("shakespeare.txt")
    speeches: dict[str, list[str]] = {}
    # A line that ends in a colon below an empty one names who speaks until the next such line.
    parts = re.split(r"(?:\A|(?<=\n\n))([^\n]+):\n", text)
    for name, words in zip(parts[1::2], parts[2::2], strict=True):
        speeches.setdefault(name, []).append(words.strip("\n"))
    texts = {name: "\n".join(speeches[name]) for name in sorted(speeches)}
    return next_characters(spec, texts, length, set(text))


def next_characters(
    name: str, texts: Mapping[str, str], length: int, alphabet: Set[str]
) -> Dataset:
    """The text of each client, cut into pieces of `length` characters.

    Each position predicts the next character; after the end of a client's text, none.
    """
    characters = tuple(sorted(alphabet))
    number = np.full(max(map(ord, characters)) + 1, -1, np.int64)
    number[[ord(c) for c in characters]] = np.arange(len(characters))
    xs, ys, owner = [], [], []
    for client, text in enumerate(texts.values()):
        codes = number[np.frombuffer(text.encode("utf-32-le"), np.uint32)]
        many = -(-(len(codes) - 1) // length)
        if many < 1:
            continue
        x = np.zeros(many * length, np.int64)
        y = np.full(many * length, IGNORED, np.int64)
        x[: len(codes) - 1], y[: len(codes) - 1] = codes[:-1], codes[1:]
        xs.append(x.reshape(many, length))
        ys.append(y.reshape(many, length))
        owner.append(np.full(many, client, np.int64))
    x, y = np.concatenate(xs), np.concatenate(ys)
    owners = np.concatenate(owner)
    return Dataset(name, x, y, len(y), characters, owners, tuple(texts), task="sequence")
