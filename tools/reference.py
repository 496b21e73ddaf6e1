"""Write what docs say of the code from the code: python tools/reference.py (a test compares).

That is docs/cli.md, docs/api.md and the list of modules in docs/architecture.md.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import fedmaba
from fedmaba import cli
from fedmaba.experiment import config

DOCS = Path(__file__).parents[1] / "docs"
FLOORS = {  # from the ground up: a module imports what stands before it (a test looks)
    "Ground": "errors stop rng user_code",
    "Algorithms": "strategies",
    "Data": "data",
    "Models as rows": "rows",
    "Simulation": "simulation",
    "Results": "results",
    "Experiments": "experiment",
    "What people see": "report",
    "The paper, reproduced": "reproduction",
    "A real federation": "deploy flower",
    "Command line": "cli __main__",
}


def command_line() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Command line",
        "",
        "Made from the code by `tools/reference.py`. `compare` and `run` also take every option of",
        "an [experiment](experiments.md). Errors are one line and an",
        "[exit code](experiments.md#exit-codes).",
        "",
    ]
    shared = {key.flag for key in config.options()}
    for path, command in _commands(typer.main.get_command(cli.app), "fedmaba"):
        words = [_argument(p) for p in command.params if p.param_type_name == "argument"]
        lines += [f"## {path}", "", (command.help or "").strip(), ""]
        lines += ["```text", " ".join([path, *words, "[OPTIONS]"]), "```", ""]
        options = [p for p in command.params if p.param_type_name == "option"]
        experiment = shared <= {flag for p in options for flag in p.opts}
        hidden = {"--help"} | (shared if experiment else set())
        options = [p for p in options if not hidden & set(p.opts)]
        for p in command.params:
            if p.param_type_name == "argument" and getattr(p, "help", None):
                lines.append(f"- `{_argument(p)}`: {p.help}")
        for p in options:
            lines.append(f"- `{', '.join(p.opts)}`: {_about(p)}")
        if experiment:
            lines.append("- every option of an [experiment](experiments.md)")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _argument(p: Any) -> str:
    return str(p.metavar or p.name.upper())


def _about(p: Any) -> str:
    text = p.help or p.name.replace("_", " ")
    default = p.default
    plain = isinstance(default, int | float | str | Path) and not isinstance(default, bool)
    return f"{text} [{default}]" if plain and "[" not in text else text


def architecture() -> str:
    """docs/architecture.md with its list of modules as they are."""
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- modules -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    return before + begin + "\n" + modules() + "\n" + end + after


def modules() -> str:
    """Every module by its floor, with the first line of what it says of itself."""
    root = Path(fedmaba.__file__).parent
    left = {path.stem for path in root.glob("*.py")} - {"__init__"}
    left |= {path.parent.name for path in root.glob("*/__init__.py")}
    lines = ["| floor | module | |", "| --- | --- | --- |"]
    for floor, names in FLOORS.items():
        for name in names.split():
            left.remove(name)
            paths = sorted((root / name).glob("*.py")) or [root / f"{name}.py"]
            for path in paths:
                text = ast.parse(path.read_text(encoding="utf-8"))
                about = (ast.get_docstring(text) or "").strip().splitlines()[0]
                inside = "" if path.name == "__init__.py" else path.stem
                shown = f"`{name}/{inside}`" if path.parent != root else f"`{name}`"
                lines.append(f"| {floor} | {shown} | {about} |")
                floor = ""
    if left:
        raise SystemExit(f"tools/reference.py: FLOORS lacks {', '.join(sorted(left))}")
    return "\n".join(lines) + "\n"


def python() -> str:
    """Every public name: signature, first words, methods."""
    lines = [
        "# Python",
        "",
        "Made from the code by `tools/reference.py`: what `import fedmaba` offers.",
        "",
    ]
    for name in sorted(sorted(set(fedmaba.__all__) - {"__version__"}), key=str.lower):
        thing = getattr(fedmaba, name)
        lines += [f"## {name}", "", *_entry(name, thing)]
        kind = inspect.isclass(thing) and thing.__base__ is not fedmaba.Strategy
        for method, found in vars(thing).items() if kind else ():
            function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            text = inspect.getdoc(function)
            if method.startswith("_") or not inspect.isfunction(function) or not text:
                continue
            lines.append(f"- `.{method}{_signature(function)}`: {_flat(text)}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _entry(name: str, thing: Any) -> list[str]:
    text = _flat(inspect.getdoc(thing) or "")
    return ["```text", f"{name}{_signature(thing)}", "```", "", text, ""]


def _signature(function: Any) -> str:
    """Arguments without their types, which the code has."""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    bare = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in found.parameters.values()
        if p.name not in ("self", "cls")
    ]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    (DOCS / "cli.md").write_text(command_line(), encoding="utf-8")
    (DOCS / "api.md").write_text(python(), encoding="utf-8")
    (DOCS / "architecture.md").write_text(architecture(), encoding="utf-8")
