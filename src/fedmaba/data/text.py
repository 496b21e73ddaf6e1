"""A column of text as the tokens of a model's own tokeniser, taken once, when the data are read.

A model `hf:FOLDER` names the folder; what it computes is in `rows.pretrained`. No torch here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmaba.data.cells import Words, number_of
from fedmaba.data.model_folder import CONFIG, TOKENISER, longest, padding, settings
from fedmaba.data.paths import is_file
from fedmaba.errors import InputError, error_line, installed, shortened

INPUTS = ("input_ids", "attention_mask")  # as models of transformers call them
AT_ONCE = 10_000  # texts
BETWEEN = "\x1e"  # the two texts of a pair, which a tokeniser marks in its own way


class Tokens(NamedTuple):
    """The texts as a model reads them."""

    inputs: dict[str, NDArray[Any]]  # numbers and mask of tokens, (n, length) each
    step: str  # what was done, in words


def inputs(name: str, texts: Words, folder_name: str, most: int | None) -> Tokens:
    """The tokens of a column; a text with more than `most` loses its end."""
    folder = Path(folder_name)
    numbers = [word for word in texts.words if not math.isnan(number_of(word))]
    if 2 * len(numbers) > len(texts.words):
        raise InputError(
            f"column {name} has numbers, as {shortened(numbers[0])}: name a column of text with "
            "--text, or leave it out"
        )
    limit = longest(folder)
    if most is not None and most > limit:
        raise InputError(f"tokens={most}: {folder} takes at most {limit}: give fewer")
    limit = most or limit
    tokeniser = _tokeniser(folder)
    paired = any(BETWEEN in word for word in texts.words)
    if limit <= (marks := tokeniser.num_special_tokens_to_add(paired)):
        raise InputError(f"tokens={limit}: {marks} of them mark the text's ends: give more")
    tokeniser.no_padding()
    tokeniser.enable_truncation(limit)
    found: list[list[int]] = []
    cut = 0
    for first in range(0, len(texts.words), AT_ONCE):
        some = [_one_or_two(word) for word in texts.words[first : first + AT_ONCE]]
        for one in tokeniser.encode_batch(some):
            found.append(one.ids)
            cut += bool(one.overflowing)
    length = max(map(len, found))
    ids = np.full((len(found), length), padding(settings(folder, CONFIG)), np.int64)
    mask = np.zeros((len(found), length), np.bool_)
    for row, tokens in enumerate(found):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = True
    longer = f"{cut:,} of {len(found):,} different texts are longer and were cut"
    step = f"text {name}: up to {length} tokens of {folder / TOKENISER}"
    named = dict(zip(INPUTS, (ids[texts.code], mask[texts.code]), strict=True))
    return Tokens(named, f"{step}; {longer}" if cut else step)


def _one_or_two(word: str) -> str | tuple[str, str]:
    """A text, or the two of a pair."""
    first, between, second = word.partition(BETWEEN)
    return (first, second) if between else word


def _tokeniser(folder: Path) -> Any:
    """The tokeniser of a folder, which runs no code of the folder."""
    path = folder / TOKENISER
    if not is_file(path):
        raise InputError(
            f"{folder} has no {TOKENISER}: name the folder of a Hugging Face model with its "
            "tokeniser (AutoTokenizer.from_pretrained(...).save_pretrained writes it)"
        )
    with installed("text wants tokenizers: in a clone of fedmaba, pip install '.[hf]'"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(path))
    except Exception as err:  # tokenizers has no kind of its own
        raise InputError(f"{path}: {error_line(err)}: restore the file") from None
