"""Names as people write them: spellings that are one name, and names that only look like one.

Whoever reads two spellings on a screen must not get two clients, nor lose one, without a word. What
no eye can tell apart is one name: composed and decomposed letters, signs without width, kinds of
blanks, and 1 and 1.0. What an eye can tell apart, like capital letters, stays apart and is asked
about. No torch here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache

SHOWN = 3  # This many examples are shown.
WHOLE = re.compile(r"(-?[0-9]+)\.0*")  # a whole number, as it is written in a column of fractions
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,3})?", re.IGNORECASE)
SEPARATORS = re.compile(r"[\s_-]+")
# Letters of other scripts, quotes and dashes that look like these of ours.
LETTERS = str.maketrans("авекмнорстухіјѕβικνορτυχ", "abekmhopctyxijsbikvoptux")
SIGNS = str.maketrans("‘’´`“”‐‑‒–—−", "''''\"\"------")
# These signs have no width, though their category is that of letters' marks.
NO_WIDTH = {"\u034f", "\u115f", "\u1160", "\u3164", "\uffa0", *map(chr, range(0xFE00, 0xFE10))}


def plain(word: str) -> str:
    """The name as it is seen: letters composed, nothing without width, one blank between words."""
    if word.isascii() and word.isprintable() and "  " not in word:
        return word.strip()
    seen = "".join(" " if sign.isspace() else sign for sign in word if not _hidden(sign))
    return " ".join(unicodedata.normalize("NFC", seen).split())


@cache
def _hidden(sign: str) -> bool:
    category = unicodedata.category(sign)
    return sign in NO_WIDTH or (category in ("Cf", "Cc") and not sign.isspace())


def joined(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The name that each word stands for, and in words which ones were read as one name."""
    spelled: dict[str, list[str]] = {}
    keys = []
    for word in words:
        key = plain(word)
        if key.endswith(("0", ".")) and (whole := WHOLE.fullmatch(key)):
            key = whole[1]
        keys.append(key)
        spelled.setdefault(key, []).append(word)
    names = [key if len(spelled[key]) > 1 else word for key, word in zip(keys, words, strict=True)]
    return names, [" and ".join(map(_shown, same)) for same in spelled.values() if len(same) > 1]


def read_as_one(what: str, pairs: Sequence[str]) -> tuple[str, ...]:
    """The step of a run in which these spellings became one name each."""
    return (f"{what}: read as one name: {_listed(pairs)}",) if pairs else ()


def look_alike(what: str, names: Iterable[str]) -> tuple[str, ...]:
    """A doubt about names that differ in what is easily mistaken, as in capital letters."""
    seen: dict[str, str] = {}
    pairs = []
    for name in names:
        if (first := seen.setdefault(_loose(name), name)) != name:
            pairs.append(f"{_shown(first)} and {_shown(name)}")
    text = f"{what}: these look alike, but are kept apart: {_listed(pairs)}; if they are one, "
    return (text + "write them alike in the data",) if pairs else ()


def _loose(name: str) -> str:
    """The name without all that is easily mistaken."""
    wide = unicodedata.normalize("NFKC", plain(name).translate(SIGNS))
    if NUMBER.fullmatch(wide):
        return str(Decimal(wide).normalize())
    low = SEPARATORS.sub(" ", wide.casefold().translate(LETTERS))
    return low.strip("\"'") or low


def _shown(word: str) -> str:
    return repr(word) if word.isascii() else ascii(word)


def _listed(pairs: Sequence[str]) -> str:
    more = f", and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    return ", ".join(pairs[:SHOWN]) + more
