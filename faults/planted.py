"""Modules planted where a user stands: no command that reads a folder may run one of them.

Real processes, as a user starts them: the console script, `python -m fedmaba`, `python -P -m
fedmaba`. A planted module leaves a file behind as soon as it is imported. With `python -m`, Python
puts the working folder first before any line of ours runs: `fedmaba` itself and the few modules
that Python needs to find it are planted for the other two only.
"""

from __future__ import annotations

import functools
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.faults import kinds
from tools.faults.cases import Case, play
from tools.faults.common import Say, Tally

KINDS = (*kinds.RUNS, "server", "archive", "named")
MORE = (  # what something tries to import, there or not, beside the standard library
    "org", "numpy", "torch", "matplotlib", "jinja2", "markupsafe", "pydantic", "pydantic_core",
    "typing_extensions", "annotated_types", "typer", "click", "rich", "shellingham", "safetensors",
    "pygments", "fedmaba", "sitecustomize", "usercustomize", "mine", "readline", "gnureadline",
    "pyreadline3", "colorama", "ipywidgets", "IPython", "defusedxml", "PIL", "pyparsing", "cycler",
    "kiwisolver", "fontTools", "dateutil", "packaging", "six", "contourpy", "tensorboard", "flwr",
    "scipy", "pandas", "tzdata", "_pydatetime", "simplejson", "ujson", "email_validator", "dotenv",
    "opt_einsum", "triton", "java", "threadpoolctl", "mkl", "win32api", "_winapi", "msvcrt", "nt",
    "markdown_it", "mdurl", "trio", "curio", "cffi", "yaml", "toml", "tomli", "pkg_resources",
)  # fmt: skip
BODY = """
import os
open(os.path.join({folder!r}, "RAN-" + {name!r}), "w").close()
class Made: pass
"""
LISTS = ("strategies", "datasets", "models", "partitions", "attacks", "figures", "targets")


def templates(root: Path) -> None:
    kinds.make(root, [kind for kind in KINDS if kind != "named"])
    shutil.copytree(root / "half", root / "named")
    toml = root / "named" / "run" / "experiment.toml"
    text = toml.read_text().replace('model = "softmax"', 'model = "mine:Made"')
    toml.write_text(text.replace('"fedmaba"', '"fedmaba", "org:Made"'))


def campaign(count: int, seed: int, say: Say) -> Tally:
    """Planted modules are never imported."""
    return play("planted", cases(seed), count, seed, say, templates)


def cases(seed: int) -> Iterator[Case]:
    """Every command in every way to start it, in the folder and beside it, without end."""
    rng = random.Random(seed)
    while True:
        found = []
        for kind in KINDS:
            shown = "half" if kind == "named" else kind
            for words in [*kinds.commands(shown, rng), ("list", rng.choice(LISTS))]:
                if words[0] in ("server", "compare"):
                    continue
                for fresh in ("script", "module", "safe"):
                    found.append((kind, words, fresh))
        rng.shuffle(found)
        for kind, words, fresh in found:
            inside = rng.random() < 0.6
            told = tuple("." if w == "run" else w for w in words) if inside else words
            told = tuple(f"../{w}" if inside and w.startswith("out") else w for w in told)
            spoil = functools.partial(_spoil, fresh, rng.random() < 0.3)
            where = "run" if inside else "."
            yield Case(f"planted modules in {where}", kind, told, spoil, fresh=fresh, cwd=where)


def names(fresh: str) -> list[str]:
    """Of modules to plant; built-in and frozen ones cannot be replaced by a file."""
    found = {*sys.stdlib_module_names, *MORE} - set(sys.builtin_module_names)
    return sorted(found - (_before() if fresh == "module" else set()))


@functools.cache
def _before() -> set[str]:
    """Modules that `python -m fedmaba` imports before it comes to fedmaba's first line."""
    command = [sys.executable, "-I", "-c", "import runpy, sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"fedmaba", *(name.partition(".")[0] for name in done.stdout.split())}


def _spoil(fresh: str, packages: bool, folder: Path) -> None:
    for where in (folder, folder / "run", folder / "run" / "checkpoint"):
        if not where.is_dir():
            continue
        for name in names(fresh):
            body = BODY.format(folder=str(folder), name=name)
            if packages:
                (where / name).mkdir(exist_ok=True)
                (where / name / "__init__.py").write_text(body)
                (where / name / "__main__.py").write_text(body)
            else:
                (where / f"{name}.py").write_text(body)
        (where / "evil.pth").write_text("import mine\n")
        (where / "matplotlibrc").write_text("backend: module://mine\n")
        (where / "pyvenv.cfg").write_text("home = .\n")
