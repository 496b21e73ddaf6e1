"""What the paper says (paper.toml), and what it calls the rows. No torch."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def load_paper() -> dict[str, Any]:
    """The paper's numbers and statements."""
    text = (
        resources.files("fedmaba.reproduction").joinpath("paper.toml").read_text(encoding="utf-8")
    )
    return tomllib.loads(text)


def name_of(label: str) -> str:
    """What a row is called."""
    return str(load_paper()["names"].get(label, label))
