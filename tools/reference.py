"""Say what the code is, from the code.

    python tools/reference.py                 write what type checkers read (a test compares)
    python tools/reference.py command_line    print a block of the site, see BLOCKS

What type checkers read are the public names, __init__.pyi, and the typed keywords of
`fedmaba.compare`, experiment/keywords.py. The blocks go into docs/cli.md, docs/api.md,
docs/architecture.md and docs/experiments.md when the site is built (tools/site_pages.py).
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

import fedmaba
from fedmaba import cli
from fedmaba.experiment import config, laboratory, sweep

sys.path.append(str(Path(__file__).parents[1]))

from tools import drawings

FLOORS = {  # from the ground up: a module imports what stands before it (a test looks)
    "Ground": "errors stop rng user_code layer_names",
    "Algorithms": "strategies",
    "Privacy": "privacy",
    "Data": "data",
    "Who takes part": "selection turnout",
    "Models as rows": "rows",
    "Simulation": "simulation",
    "Results": "results adapters",
    "Experiments": "experiment",
    "What people see": "report",
    "Python calls": "calls",
    "A real federation": "deploy flower",
    "Command line": "cli __main__",
}
API = Path(__file__).with_name("api.toml")
SOURCE = Path(fedmaba.__file__).parent
TYPES = {  # names of types in the signatures below that are not classes of this page
    "FloatArray, IntArray": "NumPy arrays of float64 and int64; `(m,)` is one number for each of m",
    "State": "a dict of such arrays by name",
    "Factory": "a function of (input shape, number of classes) that returns an `nn.Module`",
    "LossFn, MetricFn": "functions of (outputs, targets) that return a number for each example",
    "Unit": "how scores are shown: percent or plain",
}
INNER = {  # methods that fedmaba calls itself, or that Flower calls
    "History": ("add",),
    "RunHistory": ("arrays",),
    "Federation": ("check",),
    "Local": ("to_json", "from_json"),
    "Objective": ("form", "own"),
    "FlowerStrategy": (
        "__init__",
        "summary",
        "configure_train",
        "aggregate_train",
        "configure_evaluate",
        "aggregate_evaluate",
    ),
}


def command_line() -> str:
    """Every command with its arguments and options."""
    lines = [
        "`compare` and `run` also take every option of an [experiment](experiments.md). Errors are",
        "one line and an [exit code](experiments.md#exit-codes).",
        "",
    ]
    shared = {key.flag for key in config.options()}
    for path, command in _commands(typer.main.get_command(cli.app), "fedmaba"):
        if path == "fedmaba reproduce":  # which passes its words on
            command = typer.main.get_command(laboratory.enter("command").app)
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
                lines.append(_module(floor, path, root))
                floor = ""
    if left:
        raise SystemExit(f"tools/reference.py: FLOORS lacks {', '.join(sorted(left))}")
    floor, place = "The paper, in `experiments/`", Path(str(laboratory.folder()))
    for path in sorted((place / "laboratory").glob("*.py")):
        lines.append(_module(floor, path, place))
        floor = ""
    return "\n".join(lines) + "\n"


def _module(floor: str, path: Path, root: Path) -> str:
    """A row of the list: a module, and the first line of what it says of itself."""
    about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    shown = path.relative_to(root).with_suffix("").as_posix().removesuffix("__init__")
    return f"| {floor} | `{shown}` | {about.strip().splitlines()[0]} |"


def python() -> str:
    """Every public name by what one wants to do: signature, parameters, methods, an example."""
    groups = tomllib.loads(API.read_text(encoding="utf-8"))["group"]
    _all_there(groups)
    lines = [
        "What `import fedmaba` offers, by what you want to do. Every example runs as it stands.",
        "",
        "| to | use |",
        "|---|---|",
    ]
    for group in groups:
        links = [f"[`{name}`](#{_anchor(name)})" for name in group["entry"] if "." not in name]
        lines.append(f"| [{group['title']}](#{_anchor(group['title'])}) | {', '.join(links)} |")
    lines += ["", "Names of types in the signatures:", ""]
    lines += [f"- `{name.replace(', ', '`, `')}`: {about}" for name, about in TYPES.items()] + [""]
    for group in groups:
        lines += [f"## {group['title']}", "", group["about"].strip(), ""]
        for name, words in group["entry"].items():
            lines += _entry(name, words, group)
    return "\n".join(lines).rstrip() + "\n"


def _all_there(groups: list[dict[str, Any]]) -> None:
    """Refuse groups that lack a public name, or have one that is none."""
    flower = ast.parse((SOURCE / "flower.py").read_text(encoding="utf-8"))
    offered = {*fedmaba.__all__, *_constant(flower, "__all__")} - {"__version__"}
    named = {name for group in groups for name in group["entry"] if "." not in name}
    if offered != named:
        raise SystemExit(f"tools/api.toml: other names than __all__: {sorted(offered ^ named)}")


def _constant(tree: ast.Module, name: str) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return list(ast.literal_eval(node.value))
    raise SystemExit(f"tools/reference.py: no {name}")


def _entry(name: str, words: dict[str, Any], group: dict[str, Any]) -> list[str]:
    """One public name, or one method of a class that has parameters to explain."""
    owner, _, method = name.partition(".")
    file = SOURCE / words["file"] if "file" in words else Path(_source(getattr(fedmaba, owner)))
    tree = ast.parse(file.read_text(encoding="utf-8"))
    thing = next(node for node in tree.body if getattr(node, "name", "") == owner)
    inside = _methods(thing) if isinstance(thing, ast.ClassDef) else {}
    node = inside[method] if method else thing
    params = _fields(node, tree) if isinstance(node, ast.ClassDef) else _arguments(node)
    told = words.get("params", {})
    if list(told) != [p.name for p in params]:
        there = ", ".join(p.name for p in params)
        raise SystemExit(f"tools/api.toml: {name} wants lines for, in order: {there}")
    about = words.get("about") or _first(ast.get_docstring(node) or "")
    lines = [f"{'####' if method else '###'} {name}", "", about, ""]
    home = group.get("module", "fedmaba")
    lines += ["```py", _call(f"{home}.{name}", params, node, tree), "```", ""]
    lines += [f"- `{p.name}`{p.range}: {told[p.name]}" for p in params] + [""] * bool(params)
    if not params and isinstance(node, ast.ClassDef) and "page" in words:
        lines += ["It has no parameters.", ""]
    if isinstance(node, ast.FunctionDef):
        told = words.get("returns") or f"`{_type(node.returns, tree)}`."
        lines += [f"Returns {told}", ""]
    elif "page" not in words:
        lines += _bullets(name, inside, tree)
    if "page" in words:
        lines += [f"Formulas and measurements: [{name}](algorithms/{words['page']}.md).", ""]
    if "example" in words:
        lines += ["```python", words["example"].strip(), "```", ""]
    if "prints" in words:
        lines += ["```text", words["prints"], "```", ""]
    return lines


def _bullets(owner: str, methods: dict[str, ast.FunctionDef], tree: ast.Module) -> list[str]:
    """Methods and properties of a class that have no entry of their own."""
    listed = tomllib.loads(API.read_text(encoding="utf-8"))["group"]
    own = {name for group in listed for name in group["entry"]}
    lines = []
    for name, node in methods.items():
        text = _first(ast.get_docstring(node) or "")
        if f"{owner}.{name}" in own or not text or name in INNER.get(owner, ()):
            continue
        plain = any(ast.unparse(d) in ("property", "cached_property") for d in node.decorator_list)
        arguments = ", ".join(_spelled(p.text, tree) for p in _arguments(node))
        head = name if plain else f"{name}({arguments})"
        lines.append(f"- `.{head}` → `{_type(node.returns, tree)}`: {text}")
    return ["Methods and properties:", "", *lines, ""] if lines else []


class Parameter(NamedTuple):
    """A parameter or field as a signature shows it."""

    name: str
    text: str
    range: str = ""
    last: bool = False  # given by name alone


def _methods(owner: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    public = (n for n in owner.body if isinstance(n, ast.FunctionDef))
    return {n.name: n for n in public if not n.name.startswith("_") or n.name == "__init__"}


def _fields(owner: ast.ClassDef, tree: ast.Module) -> list[Parameter]:
    """The parameters of a class: those of __init__, or its fields and its parents'."""
    methods = _methods(owner)
    if "__init__" in methods:
        return _arguments(methods["__init__"])
    out = [field for base in owner.bases for field in _fields_of_parent(ast.unparse(base), tree)]
    for node in owner.body:
        if not isinstance(node, ast.AnnAssign):
            continue
        name, kind = ast.unparse(node.target), ast.unparse(node.annotation)
        if kind.startswith("ClassVar") or name.startswith("_"):
            continue
        default, limits = _default(node.value)
        last = "kw_only=True" in ast.unparse(node)
        out.append(Parameter(name, f"{name}: {kind}{default and f' = {default}'}", limits, last))
    return sorted({p.name: p for p in out}.values(), key=lambda p: p.last)  # the last word counts


def _fields_of_parent(name: str, tree: ast.Module) -> list[Parameter]:
    """The fields of a parent in this file or in another file of strategies."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return _fields(node, tree)
        if isinstance(node, ast.ImportFrom) and name in {n.name for n in node.names}:
            where = str(node.module)
            if where.startswith("fedmaba.strategies.") and where != "fedmaba.strategies.base":
                other = SOURCE / f"{where.removeprefix('fedmaba.').replace('.', '/')}.py"
                return _fields_of_parent(name, ast.parse(other.read_text(encoding="utf-8")))
    return []


def _default(value: ast.expr | None) -> tuple[str, str]:
    """A field's default as it is meant, and the range that `param` gives it."""
    if not isinstance(value, ast.Call):
        return ("" if value is None else ast.unparse(value)), ""
    given = {k.arg: ast.unparse(k.value) for k in value.keywords}
    if ast.unparse(value.func) == "field":
        if "default" in given:
            return given["default"], ""
        return given["default_factory"].replace("dict", "{}").replace("list", "[]"), ""
    low, high, above = (given.get(key) for key in ("low", "high", "above"))
    words = f"{low} to {high}" if low and high else f"above {above}" if above else f"{low} or more"
    return ast.unparse(value.args[0]), f" ({words})"


def _arguments(node: ast.FunctionDef) -> list[Parameter]:
    """Parameters without self, as written; the star before keyword-only ones is in `_call`."""
    found, out = node.args, []
    plain = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(plain) - len(found.defaults)) + found.defaults
    pairs = [*zip(plain, defaults, strict=True)]
    pairs += [*zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    for arg, default in pairs:
        if arg.arg not in ("self", "cls"):
            kind = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
            out.append(
                Parameter(
                    arg.arg, f"{arg.arg}{kind}{f' = {ast.unparse(default)}' if default else ''}"
                )
            )
    if found.kwarg:
        kind = f": {ast.unparse(found.kwarg.annotation)}" if found.kwarg.annotation else ""
        out.append(Parameter(found.kwarg.arg, f"**{found.kwarg.arg}{kind}"))
    return out


def _call(name: str, params: list[Parameter], node: ast.AST, tree: ast.Module) -> str:
    """The signature, on one line where it fits."""
    function = node
    if isinstance(node, ast.ClassDef):
        function = _methods(node).get("__init__", node)
    words = [_spelled(p.text, tree) for p in params]
    if isinstance(function, ast.FunctionDef) and function.args.kwonlyargs:
        first = function.args.kwonlyargs[0].arg
        words.insert([p.name for p in params].index(first), "*")
    end = f" -> {_type(node.returns, tree)}" if isinstance(node, ast.FunctionDef) else ""
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= 92:
        return line
    return "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){end}"])


def _type(kind: ast.expr | None, tree: ast.Module) -> str:
    return "None" if kind is None else _spelled(ast.unparse(kind), tree)


def _spelled(text: str, tree: ast.Module) -> str:
    """Types with the choices that stand behind a name, and without the modules they are from."""
    near = [SOURCE.parent / f"{n.module.replace('.', '/')}.py" for n in tree.body if _ours(n)]
    trees = [tree, *(ast.parse(file.read_text("utf-8")) for file in near if file.is_file())]
    for node in (node for one in trees for node in one.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Literal["):
            name = ast.unparse(node.targets[0])
            text = re.sub(rf"(: |^){name}\b", lambda m: m[1] + ast.unparse(node.value), text)  # noqa: B023
    text = re.sub(r"\b(?:datasets|models|np)\.(?=[A-Z])", "", text)
    text = text.replace("NDArray[np.int64]", "IntArray")
    return re.sub(r"'([^']*)'", r'"\1"', text)


def _ours(node: ast.AST) -> bool:
    """Whether names are imported from a module of the package."""
    return isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedmaba.")


def _source(thing: Any) -> str:
    return str(inspect.getsourcefile(thing))


def _first(text: str) -> str:
    """The first paragraph of a docstring, as a sentence."""
    flat = re.sub(r"\s+", " ", text.split("\n\n")[0]).strip()
    return flat and flat[0].upper() + flat[1:].rstrip(".") + "."


def _anchor(head: str) -> str:
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).lower())


STUB = SOURCE / "__init__.pyi"


def stub() -> str:
    """The public names, imported from where they are defined."""
    lines = ["# Made from __init__.py by `tools/reference.py`, for type checkers.", ""]
    for module, names in fedmaba._NAMES.items():
        lines += [f"from fedmaba.{module} import {name} as {name}" for name in names.split()]
    return "\n".join([*lines, "", "__version__: str"]) + "\n"


KEYWORDS = SOURCE / "experiment" / "keywords.py"
OF_THE_CALL = ("data", "model", "metric", "init", "out")  # `compare` names these itself
ALSO = {"as_text": "float", "fraction": "str", "listed": "str", "_seeds": "str"}  # other forms
ALSO["pairs_of_text"] = "str | dict[str, float]"


def keywords() -> str:
    """The options of an experiment as keywords that type checkers know."""
    lines = []
    for section, key in _keys(config.Experiment):
        if key.argument in OF_THE_CALL:
            continue
        kinds = _kinds(section.model_fields[key.path[-1]].annotation)
        found = section.__pydantic_decorators__.field_validators.values()
        before = [v.func.__name__ for v in found if key.path[-1] in v.info.fields]
        kinds += [ALSO[name] for name in before if name in ALSO]
        ordered = sorted(dict.fromkeys(kinds), key=lambda text: text == "None")
        told = " | ".join(ordered)
        one = key.name in sweep.ONE_VALUE or key.name == "seeds"  # a list of which is one value
        lines.append(f"    {key.argument}: {told if one else f'OneOrMore[{told}]'}")
    return KEYWORDS_HEAD + "\n".join(lines) + "\n"


KEYWORDS_HEAD = '''"""The options that `fedmaba.compare` takes as keywords, typed for type checkers.

Made from experiment/config.py by `tools/reference.py`. No torch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict, TypeVar

T = TypeVar("T")
OneOrMore: TypeAlias = T | list[T]  # several values: an experiment for each


class Options(TypedDict, total=False):
    """Every option of an experiment that is no parameter of `compare` by itself."""

'''


def _keys(section: Any) -> Iterator[tuple[Any, config.Key]]:
    """Every option with the section that declares it."""
    found = {key.path: key for key in config.options()}
    for path, key in found.items():
        owner = section
        for part in path[:-1]:
            owner = type(owner.model_fields[part].default)
        yield owner, key


def _kinds(kind: Any) -> list[str]:
    """The types of a union, as they are written."""
    if get_origin(kind) in (Union, UnionType):
        return [text for one in get_args(kind) for text in _kinds(one)]
    if get_origin(kind) is Literal:
        return ["Literal[" + ", ".join(f'"{value}"' for value in get_args(kind)) + "]"]
    if kind is type(None):
        return ["None"]
    if isinstance(kind, type) and issubclass(kind, config.Section):
        return []  # its keys, as `pairs_of_text` says
    return [str(kind) if get_args(kind) else kind.__name__]


def options() -> str:
    """Every key of an experiment with its option, its default and what it means."""
    rows = ["| key | option | default | meaning |", "|---|---|---|---|"]
    for key in config.options():
        default = "" if key.default is None else f"`{key.default}`"
        rows.append(f"| `{key.name}` | `{key.flag}` | {default} | {key.text} |")
    return "\n".join(rows) + "\n"


BLOCKS = {
    "command_line": command_line,
    "python": python,
    "modules": modules,
    "options": options,
    "rooms": lambda: drawings.rooms(FLOORS),
    "round": drawings.one_round,
}

if __name__ == "__main__":
    if sys.argv[1:]:
        print(BLOCKS[sys.argv[1]](), end="")
    else:
        STUB.write_text(stub(), encoding="utf-8")
        KEYWORDS.write_text(keywords(), encoding="utf-8")
