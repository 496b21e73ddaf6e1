"""Code of the user's own runs when the user names it, and never because it lies in the folder."""

import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import fedmaba
from fedmaba import cli, user_code
from fedmaba.errors import InputError
from fedmaba.experiment import checks

SRC = str(Path(fedmaba.__file__).parents[1])
STARTED = ["script", "-m"]  # as pip's console script does, and as a module
# `-m` looks for modules in the working folder, so it is the start that may go wrong.
mostly_as_a_module = pytest.mark.parametrize(
    "place", ["-m", pytest.param("script", marks=pytest.mark.slow)], indirect=True
)
SCRIPT = """
import sys
from fedmaba.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
PLANTED = """open({mark!r}, "a").close()\n"""
QUICK = {"model": "softmax", "seeds": 1, "rounds": 2, "minibatch": 20, "device": "cpu"}


@dataclass(frozen=True)
class Power(fedmaba.Strategy):
    """a rule whose name reads like a module's"""

    name: ClassVar[str] = "mine.Power"

    def weigh(self, state, replies):
        return fedmaba.Decision(replies.size / replies.size.sum(), state)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory, tiny_npz):
    out = tmp_path_factory.mktemp("runs") / "run"
    fedmaba.compare(["fedavg", "fedmaba", Power()], data=tiny_npz, out=out, **QUICK)
    return out


@pytest.fixture(scope="module")
def needed():
    """What Python itself imports to start a module, before the package has a say."""
    words = [sys.executable, "-P", "-c", "import runpy, sys; print(*sys.modules)"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


class Place:
    """A folder that somebody filled with modules, and the marks that they leave when imported."""

    def __init__(self, root, spared=()):
        self.folder, self.marks, self.script = root / "sent", root / "marks", root / "bin" / "go.py"
        for path in (self.folder, self.marks, self.script.parent):
            path.mkdir()
        names = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions()}
        names |= {"org", "mine", "sitecustomize", "usercustomize", "fedmaba", "yaml", "readline"}
        # what packages try to import, there or not
        names |= {"IPython", "PIL", "cffi", "colorama", "curio", "defusedxml", "dotenv", "flwr"}
        names |= {
            "email_validator",
            "gnureadline",
            "ipywidgets",
            "java",
            "pyreadline3",
            "simplejson",
        }
        names |= {"mkl", "opt_einsum", "pkg_resources", "shellingham", "trio", "tzdata", "ujson"}
        for name in names - set(spared):
            if name.isidentifier():
                mark = PLANTED.format(mark=str(self.marks / name))
                (self.folder / f"{name}.py").write_text(mark)
        self.script.write_text(SCRIPT)

    def words(self, started, *words):
        how = ["-m", "fedmaba"] if started == "-m" else [str(self.script)]
        return [sys.executable, *how, *map(str, words)]

    def environment(self):
        return {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"} | {"PYTHONPATH": SRC}

    def call(self, started, *words):
        return subprocess.run(
            self.words(started, *words),
            cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def imported(self):
        return sorted(mark.name for mark in self.marks.iterdir())


@pytest.fixture(params=STARTED)
def place(request, tmp_path, run_folder, needed):
    made = Place(tmp_path, {*needed, "fedmaba"} if request.param == "-m" else ())
    made.started = request.param
    shutil.copytree(run_folder, made.folder, dirs_exist_ok=True)
    return made


def reads_only(place, words, code):
    done = place.call(place.started, *words)
    assert done.returncode == code, (words, done.stderr)
    assert "Traceback" not in done.stderr, words
    assert place.imported() == [], words


@mostly_as_a_module
def test_reading_commands_import_nothing_from_the_folder_they_stand_in(place, tmp_path):
    assert len(list(place.folder.glob("*.py"))) > 200
    reads_only(place, ["report", ".", "-o", tmp_path / "page.html"], 0)
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.slow
def test_nor_does_any_other_command_that_reads(place, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, code in [
        (["--help"], 0),
        (["list", "strategies"], 0),
        (["resume", "."], 0),  # finished: nothing is trained
        (["table", "."], 0),
        (["table", ".", "--against", "fedavg", "--to", "latex"], 0),
        (["export", "."], 0),
        (["data", "check", "sample"], 0),
        (["reproduce", "all", "--from", empty, "--out", tmp_path / "drawn"], 0),  # more processes
        (["reproduce", "attacks", "--from", empty, "--only", "mine.Power:a=1"], 2),
    ]:
        reads_only(place, words, code)


@pytest.mark.slow
def test_a_watched_folder_is_only_read(place):
    words = place.words(place.started, "watch", ".")
    with subprocess.Popen(
        words, cwd=place.folder, env=place.environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            url = re.search(r"http://\S+", process.stdout.readline())[0]
            with urllib.request.urlopen(url) as answer:
                assert b"mine.Power" in answer.read()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert place.imported() == []


@pytest.mark.slow
def test_a_run_of_built_in_strategies_imports_nothing_either(place, tiny_npz):
    words = ["compare", "fedavg", "--data", tiny_npz, "--model", "softmax", "--rounds", "1"]
    done = place.call(place.started, *words, "--seeds", "1", "--out", "fresh")
    assert done.returncode == 0, done.stderr
    assert place.imported() == []


# --- named by the user -------------------------------------------------------------------------

MINE = '''
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import nn

import fedmaba
import mine_helper

with Path("marks.txt").open("a") as marks:
    marks.write("mine ")


@dataclass(frozen=True)
class Shy(fedmaba.Strategy):
    """equal weights"""

    name: ClassVar[str] = "mine.Shy"

    def weigh(self, state, replies):
        return fedmaba.Decision(mine_helper.equal(len(replies.client)), state)


def make(shape, classes):
    return nn.Linear(shape[0], classes)
'''
HELPER = "import numpy as np\n\n\ndef equal(n):\n    return np.full(n, 1 / n)\n"
NAMES = ("mine", "mine_helper")


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder with a module of the user's own; path and modules are as before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("mine.py").write_text(MINE)
    Path("mine_helper.py").write_text(HELPER)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def call(monkeypatch, capsys, here):
    def run(*words):
        for name in NAMES:
            sys.modules.pop(name, None)
        monkeypatch.setattr(sys, "argv", ["fedmaba", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


def short(tiny_npz):
    words = ["--data", tiny_npz, "--rounds", "2", "--seeds", "1", "--minibatch", "20"]
    return [*words, "--device", "cpu", "--quiet"]


def test_what_is_named_on_the_command_line_is_found_last_of_all(call, here, tiny_npz):
    assert str(here) not in sys.path
    words = ["compare", "mine.Shy", "fedavg", "--model", "mine:make", *short(tiny_npz)]
    code, out, err = call(*words, "--out", "run")
    assert (code, err) == (0, "")
    assert "mine.Shy" in out
    assert sys.path[-1] == str(here)
    assert "" not in sys.path
    assert call("table", "run")[0] == 0


def test_a_file_that_names_modules_says_which_file_is_imported(call, here, tiny_npz):
    Path("e.toml").write_text('strategies = ["mine.Shy"]\nmodel = "mine:make"\n')
    code, _, err = call("run", "e.toml", *short(tiny_npz))
    file = here / "mine.py"
    assert code == 0
    assert err == f"e.toml imports strategy 'mine.Shy' from {file}, model 'mine:make' from {file}\n"
    Path("plain.toml").write_text('strategies = ["fedavg"]\n')
    assert call("run", "plain.toml", *short(tiny_npz), "--model", "softmax")[2] == ""


def test_resuming_what_names_modules_wants_trust(call, here, tiny_npz):
    words = ["compare", "mine.Shy", "--model", "mine:make", *short(tiny_npz)]
    assert call(*words, "--out", "run")[0] == 0
    Path("run/runs.json").unlink()
    for path in Path("run/clients").iterdir():
        path.unlink()
    Path("marks.txt").unlink()
    for name in NAMES:
        sys.modules.pop(name, None)
    sys.path.remove(str(here))
    code, out, err = call("resume", "run")
    file = here / "mine.py"
    assert (code, out) == (2, "")
    assert err == (
        f"fedmaba: run names code that is not fedmaba's: strategy 'mine.Shy' from {file}, model "
        f"'mine:make' from {file}: look at it, then say fedmaba resume run --trust\n"
    )
    assert not Path("marks.txt").exists()
    assert "mine" not in sys.modules
    assert str(here) not in sys.path
    assert call("table", "run")[2].rstrip().endswith("fedmaba resume run --trust")
    assert call("resume", "run", "--trust", "--quiet")[0] == 0
    assert Path("marks.txt").read_text() == "mine "
    assert Path("run/runs.json").exists()


def test_the_folder_of_the_run_is_never_where_modules_are_looked_for(call, here, tiny_npz):
    words = ["compare", "mine.Shy", "--model", "mine:make", *short(tiny_npz)]
    assert call(*words, "--out", "run")[0] == 0
    Path("run/runs.json").unlink()
    Path("mine.py").rename("run/mine.py")
    sys.path.remove(str(here))
    assert "from nowhere" in call("resume", "run")[2]
    code, _, err = call("resume", "run", "--trust")
    assert code == 2
    assert "No module named 'mine'" in err


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("mine", "mine.py"),
        ("kit.part", "kit/part.py"),
        ("kit", "kit/__init__.py"),
        ("plain.part", "plain/part.py"),
        ("plain", "plain"),
        ("kit.nothing", ""),
        ("nothing.at.all", ""),
        ("mine.inner", ""),
        ("a\0b", ""),
        ("", ""),
    ],
)
def test_where_a_module_lies_is_told_without_importing_it(here, module, file):
    for name in ("kit", "plain"):
        Path(name).mkdir()
        Path(name, "part.py").write_text("raise RuntimeError\n")
    Path("kit/__init__.py").write_text("raise RuntimeError\n")
    told = user_code.say_sources({"it": module})
    assert told == f"it from {here / file if file else 'nowhere'}"
    assert not {"mine", "kit", "plain"} & set(sys.modules)


def test_an_installed_package_comes_before_a_file_of_that_name(here):
    Path("json").mkdir()
    Path("json/decoder.py").write_text("raise RuntimeError\n")
    assert user_code.say_sources({"it": "json.decoder"}).endswith(
        os.path.join("json", "decoder.py")
    )
    assert str(here) not in user_code.say_sources({"it": "json.decoder"})
    user_code.allow_working_folder()
    user_code.allow_working_folder()
    assert sys.path.count(str(here)) == 1


def test_a_working_folder_that_was_removed_holds_no_modules(here, monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    user_code.allow_working_folder()
    assert str(here) not in sys.path
    assert user_code.say_sources({"it": "mine"}) == "it from nowhere"


def test_only_names_of_modules_count_as_such():
    tree = {"strategies": ["fedavg", "fedmaba:alpha=0.5", "kit.part.Rule:a=0.5", 7, "typo"]}
    assert checks.user_modules(tree) == {"strategy 'kit.part.Rule'": "kit.part"}
    assert checks.user_modules({"strategies": "a.B", "model": "c.d:e"}) == {
        "strategy 'a.B'": "a", "model 'c.d:e'": "c.d",
    }  # fmt: skip
    for odd in ({}, {"strategies": None, "model": 3}, {"strategies": {"a": 1}, "model": "mlp"}):
        assert checks.user_modules(odd) == {}


# --- what a module and a factory may do wrong --------------------------------------------------

FACTORIES = """
import torch
from torch import nn


class Lost(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x):
        return self.no_such_layer(x)


def helper():
    return {}["width"]


def key(shape, classes):
    return nn.Linear(helper(), classes)


def attribute(shape, classes):
    return shape.width


def nothing(shape, classes):
    return None


def one(shape):
    return nn.Linear(shape[0], 3)


def narrow(shape, classes):
    return nn.Linear(shape[0], classes - 1)


def scalar(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes), nn.Flatten(0))


def deep(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], classes), nn.Unflatten(1, (1, classes)))


def image(shape, classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(classes))


def huge(shape, classes):
    return nn.Linear(shape[0], 10**16)


def tuple_(shape, classes):
    return nn.LSTM(shape[0], classes)


def returning(give):
    class Returning(nn.Linear):
        def forward(self, x):
            return give(super().forward(x), x)

    return lambda shape, classes: Returning(shape[0], classes)


three_ = returning(lambda out, x: (out, x, x))
turned = returning(lambda out, x: (out, x.T))
counted = returning(lambda out, x: (out, out.argmax(1)))
centred = returning(lambda out, x: (out, x - x.mean(0)))


number = 3
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("factories:key", r"factories\.py, line 16: KeyError: 'width': fix it"),
        ("factories:attribute", "AttributeError: 'Shape' object has no attribute 'width'"),
        ("factories:Lost", r"factories\.py, line 12: AttributeError: .*no_such_layer"),
        ("factories:nothing", "gave a NoneType: return an nn.Module"),
        ("factories:one", r"it must take \(shape, classes\)"),
        ("factories:narrow", "at least 3 outputs"),
        ("factories:scalar", "gives outputs of shape .* for 2 examples: give one entry for each"),
        ("factories:deep", "its last layer must have at least 3 outputs"),
        ("factories:image", r"does not accept inputs of shape \(6,\)"),
        ("factories:huge", "RuntimeError: "),
        ("factories:tuple_", "gives features as tuple: return one tensor, or a pair"),
        ("factories:three_", r"gives outputs as tuple: return one tensor, or a pair"),
        ("factories:turned", r"gives features of shape \(6, 2\) for 2 examples"),
        ("factories:counted", "its features are of int64"),
        ("factories:centred", "its output for an example depends on the others of the minibatch"),
        ("factories:number", r"is no factory: it must take \(shape, classes\)"),
        ("factories:absent", "has no 'absent'"),
        ("torch.nn:Linear", r"model 'Linear' cannot be made of shape=\(6,\), classes=3"),
        ("torch.nn:Conv2d", "'kernel_size': it must take"),
        ("torch:zeros", "zeros"),
        ("builtins:dict", "dict"),
        ("os:getcwd", "getcwd"),
    ],
)
def test_a_factory_of_any_kind_is_one_line(call, here, tiny_npz, name, says):
    Path("factories.py").write_text(FACTORIES)
    code, out, err = call("compare", "fedavg", "--model", name, *short(tiny_npz), "--out", "run")
    assert (code, out) == (2, "")
    assert re.fullmatch("fedmaba: [^\n]+\n", err), err
    assert re.search(says, err), err
    assert not Path("run").exists()
    sys.modules.pop("factories", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys\n\nsys.exit(3)\n", "ends.py, line 3: SystemExit: 3: fix it"),
        ("import argparse\n\nargparse.ArgumentParser().parse_args(['x'])\n", "line 3: SystemExit"),
        ("def f():\n    return 1 / 0\n\n\nf()\n", "ends.py, line 2: ZeroDivisionError: division"),
        ("import no_such_module\n", "needs 'no_such_module'"),
        ("x = [\n", "ends.py, line 1: '[' was never closed: fix it"),
        ("from os import nothing\n", "ends.py, line 1: ImportError: cannot"),
        ("", "module 'ends' has no 'Rule': write package.module"),
        ("raise KeyboardInterrupt\n", ""),
    ],
)
def test_a_module_that_ends_when_it_is_imported_is_one_line(call, here, tiny_npz, text, says):
    Path("ends.py").write_text(text)
    sys.modules.pop("ends", None)
    code, out, err = call("compare", "ends.Rule", *short(tiny_npz))
    assert out == ""
    assert code == (2 if says else 130)
    assert says in err
    assert "Traceback" not in err


RULES = """
from dataclasses import dataclass
from typing import ClassVar

import fedmaba


class Mute(fedmaba.Strategy):
    name = "mute"


class Nameless(fedmaba.Strategy):
    def weigh(self, state, replies):
        return None


@dataclass(frozen=True)
class Post(fedmaba.Strategy):
    name: ClassVar[str] = "post"

    def __post_init__(self):
        raise KeyError("x")

    def weigh(self, state, replies):
        return None


@dataclass(frozen=True)
class Wants(fedmaba.Strategy):
    name: ClassVar[str] = "wants"
    share: float

    def weigh(self, state, replies):
        return None


def plain():
    return None
"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rules.Mute", "has no weigh(): give it one"),
        ("rules.Nameless", "has no name: write name: ClassVar[str] = ..."),
        ("rules.Post", "rules.py, line 22: KeyError: 'x': fix it"),
        ("rules.Wants", "TypeError: Wants.__init__() missing 1 required positional argument"),
        ("rules.plain", "is no class derived from fedmaba.Strategy"),
        ("fedmaba.Strategy", "has no name"),
    ],
)
def test_a_strategy_of_any_kind_is_one_line(call, here, tiny_npz, name, says):
    Path("rules.py").write_text(RULES)
    sys.modules.pop("rules", None)
    code, out, err = call("compare", name, *short(tiny_npz), "--out", "run")
    assert (code, out) == (2, "")
    assert re.fullmatch("fedmaba: [^\n]+\n", err), err
    assert says in err
    assert not Path("run").exists()


def test_in_python_the_cause_is_kept(here, tiny_npz):
    def broken(shape, classes):
        return {}["width"]

    with pytest.raises(InputError, match="KeyError: 'width': fix it") as found:
        fedmaba.compare("fedavg", data=tiny_npz, **{**QUICK, "model": broken})
    assert isinstance(found.value.__cause__, KeyError)


# --- pictures ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_planted_matplotlibrc_starts_no_latex(place, tmp_path):
    rc = "text.usetex: True\ntext.latex.preamble: \\\\input{/etc/hostname}\nfigure.dpi: 17\n"
    (place.folder / "matplotlibrc").write_text(rc)
    out = tmp_path / "a.png"
    done = place.call(place.started, "figure", "rounds", ".", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert place.imported() == []
    plain = tmp_path / "b.png"
    (place.folder / "matplotlibrc").unlink()
    assert place.call(place.started, "figure", "rounds", ".", "-o", plain).returncode == 0
    assert out.read_bytes() == plain.read_bytes()
