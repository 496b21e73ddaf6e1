"""Sentences of the package: everyday words, and a docstring for each function and class."""

import ast
import re
from functools import cache

import pytest

from package_source import EVERY, tree, walked

# An old word, and the word to use in its place.
PLAIN = {
    r"one's own": "your own",
    r"mend(s|ed|ing)?": "fix",
    r"iterations?": "round or step",
}
# People are users and computers have devices; a client of a federation is neither.
USER_IS_A_CLIENT = r"(each|every|per|all|other) users?|users? (take|takes|took) part|n_users"
DEVICE_IS_A_CLIENT = r"(each|every|per|all|other|edge|mobile) devices?|devices? (take|takes) part"
TRUE_MEANING = {
    "on every device",
    "another device",
    "other users",
}  # processors; people of a computer


def public(module: ast.Module):
    """The functions and classes of a module that others may use."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


@cache  # many words are looked for
def sentences(name: str):
    """Docstrings, messages and other texts of a module, each with its line."""
    return [
        (node.lineno, " ".join(node.value.split()))
        for node in walked(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def found(pattern: str):
    """Where a text of the package has these words."""
    words = re.compile(rf"(?<![\w-])({pattern})(?![\w-])", re.IGNORECASE)
    for name in EVERY:
        for line, text in sentences(name):
            if words.search(text) and not any(known in text.lower() for known in TRUE_MEANING):
                yield f"{name}, line {line}: {text[:100]}"


@pytest.mark.parametrize("old", PLAIN)
def test_texts_use_everyday_words(old):
    assert not list(found(old)), f"say {PLAIN[old]!r}"


@pytest.mark.parametrize("pattern", [USER_IS_A_CLIENT, DEVICE_IS_A_CLIENT])
def test_a_client_is_called_a_client(pattern):
    assert not list(found(pattern))


def test_public_functions_and_classes_have_a_docstring():
    asked = [(name, node) for name in EVERY for node in public(tree(name)) if not _is_schema(node)]
    assert not [(name, node.name) for name, node in asked if not ast.get_docstring(node)]


def _is_schema(node: ast.stmt) -> bool:
    """Whether a class only lists the keys of a file, each of which is described by itself."""
    return isinstance(node, ast.ClassDef) and any(
        base in ("BaseModel", "Section", "Part") for base in map(ast.unparse, node.bases)
    )
