"""Two drawings of the site, made from the code: the rooms of the package, and a round.

Each is one SVG in a page, narrow enough for a telephone, in the page's own colours.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import fedmaba

ROOT = Path(fedmaba.__file__).parent
WIDTH, ROW, PAD, NAMES = 480, 34, 10, 140  # pixels; NAMES is where rooms begin
STEP = 2 * ROW + 8


def rooms(floors: Mapping[str, str]) -> str:
    """The rooms floor by floor, the ground last: each imports only what lies below it."""
    shapes = []
    for at, (floor, names) in enumerate(reversed(floors.items())):
        y = at * ROW
        shapes.append(_text(PAD, y + 21, floor))
        x = NAMES
        for name in names.split():
            wide = 8 * len(name) + 8
            shapes += [_box(x, y + 3, wide, ROW - 6), _text(x + 5, y + 21, name, code=True)]
            x += wide + 5
    return _svg("The rooms of the package; each imports only from floors below it", shapes)


def one_round() -> str:
    """The steps of `play_round`, in order, with what each says of itself."""
    tree = ast.parse((ROOT / "simulation" / "round.py").read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    shapes = []
    for at, call in enumerate(_calls(functions["play_round"])):
        y = STEP * at
        shapes.append(_box(1, y + 1, WIDTH - 2, STEP - 14))
        if at:
            shapes.append(_text(WIDTH // 2, y - 1, "↓"))
        words = [a.value for a in call.args if isinstance(a, ast.Constant)]
        title = " ".join([_name(call), *map(str, words)])
        shapes.append(_text(PAD, y + 19, title, code=True))
        for k, line in enumerate(_wrapped(_about(_name(call), functions), 66)[:2]):
            shapes.append(_text(PAD, y + 37 + 15 * k, line))
    return _svg("A round, step by step", shapes)


def _calls(function: ast.FunctionDef) -> list[ast.Call]:
    """The outermost call of each statement."""
    values = (getattr(statement, "value", None) for statement in function.body)
    return [value for value in values if isinstance(value, ast.Call)]


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def _about(name: str, functions: Mapping[str, ast.FunctionDef]) -> str:
    """The first line of what a function of the round, or of its record, says of itself."""
    if name not in functions:
        other = ast.parse((ROOT / "simulation" / "work.py").read_text(encoding="utf-8"))
        functions = {node.name: node for node in other.body if isinstance(node, ast.FunctionDef)}
    return (ast.get_docstring(functions[name]) or "").splitlines()[0]


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _text(x: int, y: int, words: str, *, code: bool = False) -> str:
    style = f'font-family="{"monospace" if code else "inherit"}" font-size="13" fill="currentColor"'
    return f'<text x="{x}" y="{y}" {style}>{html.escape(words)}</text>'


def _box(x: int, y: int, wide: int, high: int) -> str:
    place = f'x="{x}" y="{y}" width="{wide}" height="{high}" rx="4"'
    return f'<rect {place} fill="currentColor" fill-opacity="0.07"/>'


def _svg(title: str, shapes: Sequence[str]) -> str:
    height = max(int(shape.split(' y="')[1].split('"')[0]) for shape in shapes if ' y="' in shape)
    head = (
        f'<svg viewBox="0 0 {WIDTH} {height + 16}" role="img" style="max-width:640px;width:100%">'
    )
    return f"{head}<title>{title}</title>{''.join(shapes)}</svg>\n"
