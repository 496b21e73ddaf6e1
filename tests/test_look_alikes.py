"""Names that look alike: no client is split or lost without a word, and honest names cause none."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmaba import Federation
from fedmaba.data import tables
from fedmaba.data.datasets import load

ONE = {  # No eye can tell these apart: one client, and a step says so.
    "a blank after it": ("north", "north "),
    "a line break": ("north", "north\n"),
    "two blanks inside": ("St Mary", "St  Mary"),
    "a no-break space": ("St Mary", "St\u00a0Mary"),
    "NFC and NFD": ("Zürich", "Zu\u0308rich"),
    "marks in another order": ("q\u0307\u0323", "q\u0323\u0307"),
    "Hangul in parts": ("\uac00", "\u1100\u1161"),
    "a zero-width space": ("north", "nor\u200bth"),
    "a zero-width joiner": ("north", "north\u200d"),
    "a zero-width non-joiner": ("north", "nor\u200cth"),
    "a BOM": ("north", "\ufeffnorth"),
    "a BOM inside": ("north", "nor\ufeffth"),
    "a soft hyphen": ("north", "nor\u00adth"),
    "a mark of direction": ("north", "\u200enorth"),
    "a variation selector": ("north", "north\ufe0f"),
    "a combining joiner": ("north", "nor\u034fth"),
    "a control character": ("north", "north\x01"),
    "1 and 1.0": ("1", "1.0"),
    "1 and 1.": ("1", "1."),
    "-1 and -1.0": ("-1", "-1.0"),
    "7 and 7.000": ("7", "7.000"),
    "1.0 and a blank": ("1", "1.0 "),
    "a long number": ("123456789012345678901", "123456789012345678901.0"),
}
TWO = {  # An eye can: two clients, and a warning asks.
    "a capital": ("north", "North"),
    "sharp s": ("Weißensee", "Weissensee"),
    "Turkish i": ("IZMIR", "izmir"),
    "full-width": ("north", "ｎｏｒｔｈ"),
    "a ligature": ("office", "oﬃce"),
    "Arabic digits": ("3", "٣"),
    "leading zeros": ("7", "007"),
    "an exponent": ("1000", "1e3"),
    "a plus": ("5", "+5"),
    "a minus sign": ("-1", "\u22121"),
    "a hyphen and a blank": ("site-1", "site 1"),
    "a dash": ("north-east", "north–east"),
    "an apostrophe": ("O'Neill", "O’Neill"),
    "quotes around it": ("north", "'north'"),
    "a Cyrillic letter": ("Anna", "\u0410nna"),
    "a Greek letter": ("top", "t\u03bfp"),
    "a zero-width space and capitals": ("North", "no\u200brth"),
}
HONEST = {  # These are different names: not a word.
    "words": ("north", "south", "east", "west"),
    "numbers": tuple(map(str, range(30))),
    "fractions": ("0.1", "0.2", "1.5", "2.25"),
    "grades": ("A", "A-", "A+", "B", "B-"),
    "dates": ("2020-01", "2020-02", "2021-01"),
    "versions": ("1.2.3", "1.2.4", "1.12.3"),
    "marks": ("Zürich", "Zurich"),
    "scripts": ("北京", "上海", "東京", "Москва", "Αθήνα"),
    "long numbers": ("9007199254740992", "9007199254740993"),
    "paths": ("a/b", "a/c", "ab"),
    "languages": ("C", "C++", "C#"),
    "signs": ("<50", ">50", "50"),
    "letters and digits": ("l1", "I2", "O0"),
    "dots": ("St. Mary", "St Luke"),
    "times of day": ("08:00", "8:30"),
}


def of_csv(names, folder):
    path = Path(folder) / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as handle:
        out = csv.writer(handle)
        out.writerow(["client", "a", "y"])
        out.writerows((name, i % 7, "pq"[i % 2]) for i in range(6) for name in names)
    return load(str(path), reading=tables.reading())


def of_frame(names, _):
    cells = [(name, i % 7, "pq"[i % 2]) for i in range(6) for name in names]
    columns = dict(zip(("client", "a", "y"), map(list, zip(*cells, strict=True)), strict=True))
    return Federation.from_frame(columns).data


def of_arrays(names, _):
    x = np.random.default_rng(0).normal(size=(6 * len(names), 2))
    return Federation.from_arrays(x, np.arange(len(x)) // len(names) % 2, [*names] * 6).data


def of_labels(names, _):
    """The same names as classes."""
    x = np.random.default_rng(0).normal(size=(6 * len(names), 2))
    data = Federation.from_arrays(x, [*names] * 6, np.arange(len(x)) % 2).data
    return replace(data, client_names=data.classes)


READERS = (of_csv, of_frame, of_arrays, of_labels)


def outcome(read, names, folder):
    """How many names there are, and whether a step or a doubt says something of them."""
    data = read(names, folder)
    spoken = [any("read as one name" in step for step in data.steps)]
    spoken.append(any("look alike" in doubt for doubt in data.doubts))
    return len(data.client_names), *spoken


@pytest.mark.parametrize("read", READERS)
def test_what_looks_alike_is_never_split_or_joined_silently(read, tmp_path):
    kinds = [(ONE, 1, (True, False)), (TWO, 2, (False, True)), (HONEST, 0, (False, False))]
    for cases, many, spoken in kinds:
        for what, names in cases.items():
            want = (many + 1, *spoken) if cases is not HONEST else (len(names), *spoken)
            shown = names if cases is HONEST else (*names, "other")
            assert outcome(read, shown, tmp_path) == want, (what, names)
