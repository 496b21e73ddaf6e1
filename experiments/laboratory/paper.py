"""What the paper says (paper.toml), and what it calls the rows. No torch."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from fedmaba.strategies import REGISTRY


@cache
def load_paper() -> dict[str, Any]:
    """The paper's numbers and statements."""
    return tomllib.loads(Path(__file__).with_name("paper.toml").read_text(encoding="utf-8"))


def name_of(label: str) -> str:
    """What a row is called: as in the paper, else by the strategy's own title."""
    usual = REGISTRY[label].title if label in REGISTRY else ""
    return str(load_paper()["names"].get(label) or usual or label)
