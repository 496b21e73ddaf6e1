"""Names and sentences of the package: one meaning per name, everyday words, a docstring each."""

import ast
import re
from collections import defaultdict
from functools import cache

import pytest

from package_source import EVERY, tree, walked

# The same kind of thing in each module, and called as module.name(...).
SAME_KIND = {
    "Block",  #        one block of the layers of the module's model
    "Inputs",  #       what a model reads, as arrays of NumPy or as tensors of torch
    "MAGIC",  #        the first bytes of the module's kind of file
    "REGISTRY",  #     what a user can name, by its name: strategies or models
    "REMEDY",  #       what to do about the errors of the module's files, in words
    "WORDS",  #        what a user may type for the setting that the module is about
    "check",  #        what is wrong with the thing that the module is about
    "differences",  #  each row's differences to one row, as a table
    "document",  #     the module's page, as title, text and tables
    "errors",  #       what the module's tracker raises
    "from_arrays",  #  the module's record, from arrays
    "load_history",  # of a run folder, and of whatever holds runs
    "open_run",  #     the module's tracker, for one run
}
# Names that stand for two things, each with the reason why it stays.
TWO_MEANINGS = {
    "Shape": "what users see: what a model factory gets, and how a learning rate changes",
    "draw": "everyday English for both: the participants of a round, and a figure",
    "rounds": "what users type and see: the kind of a figure, and rounds.csv",
    "summary": "what users see: summary.csv, and the table of a history",
    "sweep": "what users type: the kind of a target, and the figure that it shows",
    "table": "what users type: the kind of a target, and History.table()",
    "variance": "what users type: the kind of a figure, and the number that it shows",
    "weights": "what users type and see: the kind of a figure, and weights.csv",
}
# Numbers of the random generator, which CUDA kernels and torch need as types of their own.
SAME_NUMBER = {"GOLDEN", "FIRST", "SECOND"}
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


def assigned(module: ast.Module):
    """The public constants and aliases of a module, each with the text of its definition."""
    for node in module.body:
        if isinstance(node, ast.Assign):
            names, value = [n for t in node.targets for n in ast.walk(t)], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            names, value = [node.target], node.value
        else:
            continue
        for name in names:
            if isinstance(name, ast.Name) and not name.id.startswith("_"):
                yield name.id, value


def named_for_users(name: str, node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a name is what users type: a command, or a section of an experiment file."""
    if name == "__main__" or name.startswith("cli."):
        return isinstance(node, ast.FunctionDef)
    return name == "experiment.config" and isinstance(node, ast.ClassDef) and _is_schema(node)


def meanings() -> dict[str, dict[str, str]]:
    """By public name: each definition of its own, with the module where it stands.

    The same type twice is one meaning, and so is another module's name under the same name. A plain
    number or text may be the same by chance.
    """
    homes = defaultdict(dict)
    for name in EVERY:
        for node in public(tree(name)):
            if not named_for_users(name, node):
                homes[node.name][f"defined in {name}"] = name
        for word, value in assigned(tree(name)):
            text = ast.unparse(value)
            if isinstance(value, ast.Constant):
                text = f"{text} in {name}"
            if not (isinstance(value, ast.Attribute) and value.attr == word):
                homes[word][text] = name
    return homes


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
    twice = {
        name: sorted({*where.values()}) for name, where in meanings().items() if len(where) > 1
    }
    twice = {name: where for name, where in twice.items() if len(where) > 1}
    known = {*SAME_KIND, *SAME_NUMBER, *TWO_MEANINGS}
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
