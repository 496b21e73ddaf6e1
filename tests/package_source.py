"""The modules of the package as texts and syntax trees, read when a test first asks."""

import ast
from functools import cache
from pathlib import Path

import fedmaba

SRC = Path(fedmaba.__file__).parent
FILES = {".".join(path.relative_to(SRC).with_suffix("").parts): path for path in SRC.rglob("*.py")}
EVERY = sorted(FILES)


@cache
def tree(name: str) -> ast.Module:
    """The syntax tree of a module, by its name without the package's."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


@cache
def walked(name: str) -> list[ast.AST]:
    """Every node of a module."""
    return list(ast.walk(tree(name)))
