"""A tutorial as its reader sees it: its blocks, its commands, and what it says they print."""

import re
import shlex
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
NUMBER = re.compile(r"[−+]?\d+\.\d+")


def read(name):
    return (Path(__file__).parents[1] / "docs" / name).read_text()


def blocks(page, *kinds):
    return [body for kind, body in BLOCK.findall(page) if kind in kinds]


def commands(page):
    """The words of each command, in order."""
    shell = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [shlex.split(line) for line in shell.split("\n") if line]


def words(text):
    """The text in one line without rules of tables, its numbers as #."""
    return NUMBER.sub("#", " ".join(text.replace("─", " ").split()))


def numbers(text):
    return [float(x.replace("−", "-")) for x in NUMBER.findall(text)]


def require_shown(body, out, near):
    """A block of the page stands in what was printed; its numbers are near those printed."""
    before, found, _ = words(out).partition(words(body))
    assert found, f"not printed:\n{body}\nbut:\n{out}"
    first = before.count("#")
    theirs = numbers(out)[first : first + len(numbers(body))]
    assert numbers(body) == pytest.approx(theirs, abs=near)
