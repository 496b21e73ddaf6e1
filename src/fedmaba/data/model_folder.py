"""The folder of a Hugging Face model: what its files of settings say. Light, and no torch here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedmaba.data.paths import is_file, open_file
from fedmaba.errors import InputError, error_line

PREFIX = "hf:"
TOKENISER, CONFIG = "tokenizer.json", "config.json"
MOST_BYTES = 1 << 20  # of a file of settings
NO_LIMIT = 1_000_000  # Where there is none, files of tokenisers say 1e30.


def folder_of(model: str) -> str | None:
    """The folder of a model `hf:FOLDER`, perhaps with options behind it; None for other models."""
    spec = model.removeprefix(PREFIX)
    return None if spec == model else spec.partition(",")[0]


def settings(folder: Path, file: str) -> dict[str, Any]:
    """A JSON file of a model's folder; {} where there is none."""
    path = folder / file
    if not is_file(path):
        return {}
    try:
        with open_file(path, mode="rb") as handle:
            body = handle.read(MOST_BYTES + 1)
        found = json.loads(body) if len(body) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as err:
        raise InputError(f"{path}: {error_line(err)}: restore the file") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no table of settings in JSON: restore the file")
    return found


def longest(folder: Path) -> int:
    """How many tokens a text may have: the least that a file of the folder says."""
    config = settings(folder, CONFIG)
    places = config.get("max_position_embeddings")
    if isinstance(places, int) and "roberta" in str(config.get("model_type")):
        places -= padding(config) + 1  # Its places begin behind the padding's.
    asked = (
        places,
        settings(folder, "tokenizer_config.json").get("model_max_length"),
        settings(folder, "sentence_bert_config.json").get("max_seq_length"),
    )
    found = [n for n in asked if isinstance(n, int) and 0 < n < NO_LIMIT]
    if not found:
        raise InputError(f"{folder}: no file says how long a text may be: restore {CONFIG}")
    return min(found)


def padding(config: dict[str, Any]) -> int:
    """The token that fills short texts up."""
    number = config.get("pad_token_id")
    return number if isinstance(number, int) else 0
