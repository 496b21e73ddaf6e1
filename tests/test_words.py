"""Names and sentences of the package: one meaning per name, everyday words, a docstring each."""

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from package_source import EVERY, tree, walked

# Commands are named as the functions that do the work, and sections of an experiment file as users
# write them.
NAMED_FOR_USERS = ("__main__", "cli.", "experiment.config")
# The same kind of thing in each module, and called as module.name(...).
SAME_KIND = {
    "load_history",  # of a run folder, and of whatever holds runs
    "Block",  #        one block of the layers of the module's model
    "check",  #        what is wrong with the thing that the module is about
    "differences",  #  each row's differences to one row, as a table
    "errors",  #       what the module's tracker raises
    "open_run",  #     the module's tracker, for one run
    "document",  #     the module's page, as title, text and tables
    "from_arrays",  #  the module's record, from arrays
    "load",  #         the module's record, from a file
    "of",  #           what the module makes, of a history in memory
    "write",  #        the module's content, to a file
}
# Names that stand for two things, each with the reason why it stays.
TWO_MEANINGS = {
    "draw": "everyday English for both: the participants of a round, and a figure",
    "rounds": "what users type and see: the kind of a figure, and rounds.csv",
    "summary": "what users see: summary.csv, and the table of a history",
    "sweep": "what users type: the kind of a target, and the figure that it shows",
    "table": "what users type: the kind of a target, and History.table()",
    "variance": "what users type: the kind of a figure, and the number that it shows",
    "weights": "what users type and see: the kind of a figure, and weights.csv",
}
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


def test_a_public_name_has_one_meaning():
    homes = defaultdict(list)
    for name in EVERY:
        if not name.startswith(NAMED_FOR_USERS):
            for node in public(tree(name)):
                homes[node.name].append(name)
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    known = {*SAME_KIND, *TWO_MEANINGS}
    assert not {name: where for name, where in twice.items() if name not in known}, "rename one"
    assert not known - set(twice), "these have one meaning now: take them off the list"


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
