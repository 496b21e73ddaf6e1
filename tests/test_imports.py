"""Layering: who may import whom."""

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

import fedmaba
from package_source import EVERY, FILES, SRC, tree, walked

# modules that a server without torch can use
LIGHT = ["__init__", "errors", "rng", "experiment.config", "deploy.server"]
LIGHT += [n for n in EVERY if n.startswith(("strategies.", "data.", "results.", "report.", "cli."))]
LIGHT += [
    name
    for name in EVERY
    if name not in LIGHT
    and "no torch" in "".join(FILES[name].read_text().split('"""')[1:2]).lower()
]


def typing_only(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def statements(node: ast.AST) -> list[ast.AST]:
    """The statements right inside one, and what holds some: imports stand nowhere else."""
    blocks = ("body", "orelse", "finalbody", "handlers", "cases")
    found = (getattr(node, block, None) for block in blocks)
    return [inside for block in found if isinstance(block, list) for inside in block]


@cache  # a tree is asked for by many tests
def imports(module: ast.AST, *, deep: bool) -> set[str]:
    """Modules a file imports; `deep`: also inside functions. Never for type checking only."""
    found: set[str] = set()
    waiting = statements(module)
    while waiting:
        node = waiting.pop()
        if typing_only(node):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            module = node.module or ""
            found.add(module)
            found |= {f"{module}.{a.name}" for a in node.names if module.startswith("fedmaba")}
        if deep or not isinstance(node, ast.FunctionDef):
            waiting += statements(node)
    return found


@cache
def inner(name: str, *, deep: bool = True) -> set[str]:
    """Which of our own modules a module imports, by the short names of FILES."""
    found = {m.removeprefix("fedmaba.") for m in imports(tree(name), deep=deep) if "fedmaba" in m}
    return {m for m in found if m in FILES or f"{m}.__init__" in FILES}


def test_what_needs_no_torch_imports_none():
    seen, left = {}, {name: name for name in LIGHT}  # they, and all modules that come with one
    while left:
        one, first = left.popitem()
        seen[one] = first
        found = imports(tree(one), deep=False)
        assert not {m for m in found if m.split(".")[0] == "torch"}, f"{one}, needed by {first}"
        needed = {m if m in FILES else f"{m}.__init__" for m in inner(one, deep=False)}
        left |= dict.fromkeys(needed - seen.keys() - left.keys(), first)


CONTRACT = {"strategies.base", "strategies.simplex", "strategies.outliers", "errors"}
CONTRACT |= {"strategies.averaging", "strategies.server_optimisers", "strategies.behind"}
CONTRACT |= {"strategies.descent", "strategies.privacy_knob", "strategies.combine", "layer_names"}
FAMILIES = {"strategies.fedper"}  # which others of its kind change
OF_ALL = {"strategies.__init__", "strategies.hyper_parameters", "strategies.deployed"}
OF_ALL |= {"strategies.contract", "strategies.local_work", "strategies.records"}
OF_ALL |= {"strategies.answers", "strategies.elsewhere"}


def test_a_strategy_knows_the_contract_and_some_maths_and_nothing_else():
    for name in EVERY:
        if not name.startswith("strategies.") or name in CONTRACT | OF_ALL:
            continue
        assert inner(name) <= {*CONTRACT, *FAMILIES, "strategies"}, name
        outside = {m.split(".")[0] for m in imports(tree(name), deep=True) if "fedmaba" not in m}
        maths = {"numpy", "dataclasses", "typing", "math", "warnings", "__future__"}
        assert outside <= maths, name


FLOORS = runpy.run_path(str(SRC.parents[1] / "tools" / "reference.py"))["FLOORS"]
ROOMS = [room for rooms in FLOORS.values() for room in rooms.split()]  # from the ground up
# Files of a room that name each other, for types alone: what a round, its parts and its chunks hand
# to one another is described where it is made, and a checkpoint is of a server.
TYPES_ALONE = (
    {"simulation.batch", "simulation.client", "simulation.part", "simulation.work"},
    {"deploy.checkpoint", "deploy.server"},
)
BY_NAME = {"strategies.behind": {"strategies.__init__"}}  # any strategy stands behind, by name


@cache  # only one file differs from test to test
def names(source: str, files: Collection[str] = frozenset(FILES)) -> set[str]:
    """The modules of ours that a file names: by any import, also for types, and by strings.

    A string names a module by its whole name, or by its end where the file also has the front, as
    `f"fedmaba.report.{name}"`; of the front alone the room is known.
    """
    named, fronts, strings = set[str](), set[str](), set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            ends = {f"{node.module}.{alias.name}" for alias in node.names}
            short = {end: end.removeprefix("fedmaba.") for end in ends}
            modules = {e for e, s in short.items() if s in files or f"{s}.__init__" in files}
            named |= modules | ({str(node.module)} if ends > modules else set())
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            fronts.add(str(node.values[0].value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    fronts = {front for front in fronts if re.fullmatch(r"fedmaba\.([a-z_]+\.)*", front)}
    named |= strings | {front + end for front in fronts for end in strings}
    named = {name.removeprefix("fedmaba.") for name in named if name.startswith("fedmaba.")}
    ours = {name if name in files else f"{name}.__init__" for name in named} & {*files}
    return ours | {front.removeprefix("fedmaba.").rstrip(".") for front in fronts} - {""}


def room_of(name: str) -> str:
    return name.split(".")[0]


def arrows_up(named: Mapping[str, set[str]]) -> list[str]:
    """What names a room that stands on its own, or one that is no room."""
    place = {room: i for i, room in enumerate(ROOMS)}
    return [
        f"{name} names {other}"
        for name, others in named.items()
        for other in others
        if place.get(room_of(other), len(ROOMS)) > place[room_of(name)]
    ]


def circle(named: Mapping[str, set[str]], of_types: Mapping[str, set[str]]) -> list[str]:
    """Files that need each other; arrows `of_types` alone do not count inside TYPES_ALONE."""
    together = {name: [some for some in TYPES_ALONE if name in some] for name in named}
    graph = {
        name: {
            other
            for other in others & named.keys() - {name} - BY_NAME.get(name, set())
            if other not in of_types[name] or not any(other in some for some in together[name])
        }
        for name, others in named.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@cache
def without_types(source: str) -> str:
    """A file without what is imported for type checkers alone."""
    module = ast.parse(source)
    module.body = [node for node in module.body if not typing_only(node)]
    return ast.unparse(module)


@pytest.fixture(scope="module")
def package() -> dict[str, str]:
    """The text of every module but the package's own, which names them all."""
    return {n: FILES[n].read_text(encoding="utf-8") for n in EVERY if n != "__init__"}


def test_no_module_names_a_room_above_its_own_and_no_files_need_each_other(package):
    named = {name: names(source) for name, source in package.items()}
    assert arrows_up(named) == []
    certain = {name: names(without_types(source)) for name, source in package.items()}
    assert circle(named, {name: named[name] - certain[name] for name in named}) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("results.groups", "from fedmaba.report import table"),
        ("results.groups", "def f():\n    import fedmaba.report.table"),
        ("results.groups", "if TYPE_CHECKING:\n    from fedmaba.report.table import Column"),
        ("results.groups", "VIEWS = 'fedmaba.report.history_views'"),
        ("results.groups", "def f(x):\n    return import_module(f'fedmaba.report.{x}')"),
        ("experiment.config", "from fedmaba import report"),
        ("strategies.afl", "LAZY = {'a': 'cli'}\nimport_module(f'fedmaba.{x}')"),
    ],
)
def test_the_scan_sees_an_arrow_up(name, line):
    assert arrows_up({name: names(line)})


@pytest.mark.parametrize(
    "line",
    [
        "from fedmaba.report import figures",
        "def f():\n    from fedmaba.report.figures import encode",
        "if TYPE_CHECKING:\n    from fedmaba.report import figures",
        "LATER = ('figures',)\nimport_module(f'fedmaba.report.{x}')",
    ],
)
def test_the_scan_sees_a_circle(line, package):
    planted = {**package, "report.document": package["report.document"] + "\n" + line}
    named = {name: names(source) for name, source in planted.items()}
    certain = {name: names(without_types(source)) for name, source in planted.items()}
    found = circle(named, {name: named[name] - certain[name] for name in named})
    assert "report.document" in found


@pytest.mark.parametrize("name", [n for n in EVERY if n.startswith("simulation.")])
def test_the_engine_knows_no_algorithm_no_file_and_no_terminal(name):
    told = {"answers", "base", "contract", "deployed", "server_optimisers"}
    found = inner(name) - {"strategies", *(f"strategies.{module}" for module in told)}
    assert not {m for m in found if m.startswith(("strategies", "results", "report", "cli"))}
    words = " ".join(
        node.value
        for node in walked(name)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    from fedmaba.strategies import REGISTRY

    names = REGISTRY.keys() - {"local"}  # also an everyday word
    assert not {name for name in names if name in words.lower().split()}
    assert not {n.id for n in walked(name) if isinstance(n, ast.Name)} & {"print"}


def test_few_modules_import_flower():
    found = {n for n in EVERY if "flwr" in str(imports(tree(n), deep=True))}
    adapter = {"flower", "deploy.messages", "deploy.site_app"}
    # the site's guard is in the place of Flower's own program, and a bundle is Flower's to make
    late = {"deploy.masks", "deploy.operate.guard", "deploy.operate.bundle"}
    assert found <= adapter | late
    at_once = {n for n in EVERY if "flwr" in str(imports(tree(n), deep=False))}
    assert at_once == adapter  # the masks are of use only where flwr is
    users = {n for n in EVERY if inner(n) & adapter}
    assert users <= adapter  # and nothing else of the package needs those


def test_one_module_knows_of_other_processes():
    found = {n for n in EVERY if "torch.distributed" in imports(tree(n), deep=True)}
    assert found == {"simulation.distributed"}


def calls(name: str):
    return (node for node in walked(name) if isinstance(node, ast.Call))


@cache  # the calls of a module are looked at for several reasons
def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


# run folders; downloads and exports; a federation of real processes and its files
WRITERS = {"results.files", "results.run_folder", "data.downloads"}
WRITERS |= {n for n in EVERY if n.startswith(("deploy.flower_app.", "deploy.operate."))}
WRITING = re.compile(
    r"(^|\.)(write_text|write_bytes|replace|rename|unlink|mkdir|makedirs|rmdir|rmtree|remove|"
    r"touch|symlink_to|save_file|savefig|savez|savetxt|savez_compressed|tofile|truncate)$"
    r"|^(np|numpy|torch)\.save$|^(json|pickle|toml)\.dump$"
)


def writes(name: str):
    """Calls of a module that look like writing to a disk."""
    for node in calls(name):
        text = called(node)
        if text == "open" or text.endswith(".open"):
            modes = [*node.args, *(k.value for k in node.keywords if k.arg == "mode")]
            strings = {a.value for a in modes if isinstance(a, ast.Constant)}
            if any(isinstance(s, str) and set(s) & set("wax+") and len(s) < 4 for s in strings):
                yield text
        elif WRITING.search(text):
            into = ast.unparse(node.args[0]) if node.args else ""
            if not (text.endswith(".savefig") and into == "stream"):  # into memory
                yield text


def test_the_scan_for_writers_sees_the_writers():
    assert {"open", "os.replace", "path.unlink"} <= set(writes("results.files"))
    assert any("write_bytes" in text for text in writes("data.downloads"))


def test_only_the_record_and_the_data_sets_write_files():
    found = set()
    for name in EVERY:
        for text in writes(name) if name not in WRITERS else ():
            stem, _, last = text.rpartition(".")
            other = last in ("replace", "remove") and stem != "os"  # of strings, dataclasses, lists
            if not other:
                found.add((name, text))
    assert not found


def test_every_public_name_resolves():
    assert len(set(fedmaba.__all__)) == len(fedmaba.__all__)
    for name in fedmaba.__all__:
        assert getattr(fedmaba, name) is not None
    assert set(fedmaba.__all__) <= set(dir(fedmaba))
    assert fedmaba.datasets.load is not None  # as apps written by version 0.1 import it
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fedmaba.nonsense  # noqa: B018


def test_importing_the_package_is_quick_and_light():
    """Neither torch nor NumPy, for strategies NumPy alone; the light half works without torch."""
    code = (
        "import sys, fedmaba; heavy = {'torch', 'numpy', 'pydantic', 'typer'} & set(sys.modules);"
        "assert not heavy, heavy;"
        "fedmaba.FedMABA; light = {'torch', 'pydantic', 'typer', 'rich', 'jinja2'};"
        "assert not light & set(sys.modules), sys.modules;"
        "import fedmaba.results.run_folder, fedmaba.data.federation, fedmaba.cli;"
        "import fedmaba.experiment.config;"
        "fedmaba.load_history, fedmaba.Federation, fedmaba.FedMABA;"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
