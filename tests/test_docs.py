"""What the README, the docs and the examples show runs as shown."""

import ast
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import typer

import federations
import fedmaba
import pages as result_pages
from fedmaba import cli, strategies
from fedmaba.cli import commands as command_line
from fedmaba.cli import running
from fedmaba.data import published_files
from fedmaba.deploy.flower_app import check, serve
from fedmaba.experiment import config
from fedmaba.report import watch
from laboratory import command, display, targets
from tools import reference, site_pages, speed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


@pytest.fixture(autouse=True)
def no_other_strategies():
    """What a page registers is gone after it."""
    with mock.patch.dict(strategies.REGISTRY):
        yield


KEPT: dict = {}


@pytest.fixture(autouse=True)
def files_read_once(monkeypatch):
    """All pages speak of the same few sets; how their files are read is tested elsewhere."""
    real = published_files.read_arrays

    def read(spec, found, inputs):
        if (spec.name, inputs) not in KEPT:
            KEPT[spec.name, inputs] = real(spec, found, inputs)
        x, y, n_train = KEPT[spec.name, inputs]
        return x.copy(), y.copy(), n_train

    monkeypatch.setattr(published_files, "read_arrays", read)


def blocks(text: str, kind: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text) if name == kind]


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_readme_python_runs(number, small_sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(blocks(README, "python")[number])
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"fedavg +\d", capsys.readouterr().out)


EXAMPLES = sorted(p.stem for p in (ROOT / "examples").glob("*.py"))


LONG = ("adapters", "liars", "own_model")  # ten seconds and more


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in LONG else n
        for n in EXAMPLES
        if not n.startswith("theory")
    ],
)
def test_example_runs(name, small_sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "examples" / f"{name}.py"
    runpy.run_path(str(path), run_name="__main__")
    assert re.search(r"fedavg +\d", capsys.readouterr().out)


TEXTS = {  # every page, with what the code says of itself as on the site
    path: site_pages.with_code(path.read_text()) for path in sorted((ROOT / "docs").rglob("*.md"))
}
PAGES = {
    f"{path.relative_to(ROOT)} {number}": body
    for path, text in TEXTS.items()
    for number, body in enumerate(blocks(text, "python"))
}


PRINTING = re.compile(r"^```python\n((?:(?!```)[^\n]*\n)+)```\n\n```text\n(.*?)^```$", re.M | re.S)
SHOWN = {  # what a page says that a block prints: the text right below it
    code: text for page in TEXTS.values() for code, text in PRINTING.findall(page)
}


@pytest.mark.slow  # README's blocks run with the usual tests
@pytest.mark.parametrize("name", PAGES)
def test_python_of_the_docs_runs(name, request, tmp_path, monkeypatch, capsys):
    if "flwr" in PAGES[name]:  # parts of an app, which only a real federation runs
        compile(PAGES[name], name, "exec")
        return
    if "dp=" in PAGES[name]:
        pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    if PAGES[name] not in SHOWN:
        request.getfixturevalue("small_sample")
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(PAGES[name])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed
    assert SHOWN.get(PAGES[name], printed) == printed


def test_the_notebook_runs_headless(small_sample, tmp_path, monkeypatch, capsys):
    """Its cells in order, as a kernel would; what a cell ends with can show itself."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    names, shown = {"__name__": "__main__"}, []
    for number, cell in enumerate(c for c in cells if c["cell_type"] == "code"):
        assert cell["outputs"] == []
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            for form in ("_repr_html_", "_repr_png_"):
                if (show := getattr(value, form, None)) is not None:
                    shown.append((number, form, bool(show())))
    assert (0, "_repr_html_", True) in shown
    assert (1, "_repr_png_", True) in shown
    assert (2, "_repr_png_", True) in shown
    assert "is served worst" in capsys.readouterr().out


def test_what_type_checkers_read_is_that_of_the_code():
    for name in ("keywords", "stub"):
        file = getattr(reference, name.upper())
        text = file.read_text(encoding="utf-8")
        made = getattr(reference, name)()
        assert text == made, f"{file.name} is old: run python tools/reference.py"


def test_speeds_of_the_readme_are_those_of_the_measurements():
    assert speed.filled(README) == README, "README.md is old: run python tools/speed.py"


def test_generated_blocks_can_be_made_and_are_not_kept():
    found = [block for path in TEXTS for block in site_pages.BLOCK.findall(path.read_text())]
    assert len(found) > 40
    assert {words for kind, words in found if kind == "code"} == set(reference.BLOCKS)
    shown = {words for kind, words in found if kind == "speed"}
    assert shown == set(speed.TABLES) - {"brief"}  # which the README has
    assert all(site_pages.quick("speed", name) for name in shown)
    assert {words for kind, words in found if kind == "made"} == set(result_pages.TABLES)
    assert {words.split()[0] for kind, words in found if kind == "reproduce"} <= set(
        targets.names()
    )
    assert not [path.name for path, text in TEXTS.items() if "<!-- end -->" in text]


def test_a_page_gets_its_blocks():
    text = "# T\n\n<!-- made x --><em>Here: <code>y</code></em>\n\nrest\n"
    assert site_pages.filled(text, {("made", "x"): "| table |\n"}) == "# T\n\n| table |\n\n\nrest\n"
    assert site_pages.filled(text, {}) == text
    bar = r'<nav class="md-nav md-nav--secondary"><span>\(\eta_s &lt; 1\)</span></nav><p>\(a\)</p>'
    shown = site_pages.on_post_page(bar)
    assert shown == bar.replace(
        r"<span>\(\eta_s &lt; 1\)", r'<span><span class="arithmatex">\(\eta_s &lt; 1\)</span>'
    )


def commands() -> list[str]:
    names = ("hospitals", "schools", "text")
    whole = {f"tutorial-{name}.md" for name in names}  # run as they stand by their tests
    texts = [README, *(text for path, text in TEXTS.items() if path.name not in whole)]
    shell = "\n".join(b for text in texts for b in blocks(text, "sh")).replace("\\\n", " ")
    lines = [re.split("#| > ", line)[0].strip() for line in shell.splitlines()]
    return [line for line in lines if line.startswith("fedmaba ")]


def test_commands_of_the_docs_are_understood(small_sample, tmp_path, monkeypatch, capsys):
    """Every `fedmaba ...` line: run where it is quick, else parsed as far as the experiment."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(running, "_run", lambda asked, *rest: seen.extend(asked))
    shown = []
    monkeypatch.setattr(command, "_reproduce", lambda *rest: None)
    monkeypatch.setattr(
        display, "show_and_write_target", lambda target, *rest: shown.append(target.name)
    )
    # the folder all pages speak of, so that what reads it can run
    rng = np.random.default_rng(0)
    x, owner = rng.normal(size=(90, 3)), np.repeat([0, 1, 2], 30)
    y = (x.sum(1) > owner - 1).astype(int)
    mine = fedmaba.Federation.from_arrays(x, y, owner)
    fedmaba.compare(
        ["fedavg", "fedmaba"], data=mine, model="softmax", rounds=4, eval_every=2, seeds=2,
        out="runs/first",
    )  # fmt: skip
    stored = Path("experiments") / "results"  # of reproduced targets, as in a clone
    (tmp_path / stored).mkdir(parents=True)
    for path in (ROOT / stored).glob("figure2-alpha.*.npz"):
        (tmp_path / stored / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(watch.Server, "serve_forever", lambda server: None)
    # the server of a federation: its files, and a door that is well
    (tmp_path / "keys").mkdir()
    for name in ("server.pem", "server.key", "ca.pem"):
        (tmp_path / "keys" / name).touch()
    federations.finished(tmp_path / "fair-state")
    well = check.Findings("server", check.Answer(401, "", check.STRANGER), [])
    monkeypatch.setattr(check, "check", lambda where, ca: well)
    monkeypatch.setattr(serve, "serve", lambda folder: 0)
    assert len(commands()) >= 6
    for line in dict.fromkeys(commands()):
        words = shlex.split(line)
        if words[1] == "data" and "sample" not in words:
            continue
        if words[1] == "privacy" and find_spec("dp_accounting") is None:
            continue
        if words[1] == "flower" and words[2] not in ("new", "proxy", "serve", "check"):
            flower = typer.main.get_command(command_line.app).commands["flower"]
            flower.commands[words[2]].make_context(words[2], words[3:])
            continue  # tests/test_flower_operated.py runs them
        if words[1] == "challenge":  # experiments/tests/test_challenge.py runs it
            typer.main.get_command(command.challenge_app).make_context(words[1], words[2:])
            continue
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, (line, capsys.readouterr().err)
    assert {30, 24, 12} <= {asked.train.rounds for asked in seen}
    assert "table2-fashion-mnist" in shown


def test_the_version_is_the_same_everywhere():
    version = fedmaba.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == version
    for page in (README, (ROOT / "docs" / "install.md").read_text()):
        assert set(re.findall(r"fedmaba-(\S+?)-py3", page)) == {version}


def test_experiment_of_the_docs_is_whole():
    text = (ROOT / "docs" / "experiments.md").read_text()
    (toml,) = blocks(text, "toml")
    assert config.build(tomllib.loads(toml)).data.clients == 20


FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)([^$\n]+?)(?<=\S)\$", re.S)


def formulas() -> list[tuple[str, str]]:
    """Page and LaTeX of every formula, without what stands in code."""
    found = []
    for path, page in TEXTS.items():
        text = re.sub(r"^ *```.*?^ *```$|`[^`\n]*`", "", page, flags=re.M | re.S)
        found += [(path.name, block or line) for block, line in FORMULA.findall(text)]
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_formulas_are_latex_that_the_site_can_draw():
    script = """
        const katex = require(process.argv[1])
        for (const [page, tex] of JSON.parse(require("fs").readFileSync(0))) {
          try { katex.renderToString(tex, {strict: "error"}) }
          catch (error) { console.log(page, error.message) }
        }"""
    katex = ROOT / "docs" / "assets" / "katex" / "katex.min.js"
    done = subprocess.run(
        ["node", "-e", script, str(katex)],
        input=json.dumps(formulas()), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == ""


def test_the_site_fetches_nothing_from_elsewhere():
    text = (ROOT / "mkdocs.yml").read_text()
    assert "http" not in text
    for name in re.findall(r"- (\S+\.(?:css|js))\b", text):
        assert (ROOT / "docs" / name).is_file(), name
    style = ROOT / "docs" / "assets" / "katex" / "katex.min.css"
    fonts = re.findall(r"url\((\S+?\.woff2)\)", style.read_text())
    assert fonts
    assert all((style.parent / font).is_file() for font in fonts)


def test_links_lead_somewhere():
    for path, text in {ROOT / "README.md": README, **TEXTS}.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (path.parent / target).exists(), (path.name, target)


def heads(path: Path) -> set[str]:
    """Anchors of a page, as GitHub and the site make them of its headings."""
    text = TEXTS[path.resolve()] if path.resolve() in TEXTS else path.read_text()
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    plain = (re.sub(r"[^\w\s-]", "", head).lower() for head in re.findall(r"^#+ (.+)$", text, re.M))
    return {re.sub(r"\s+", "-", head.strip()) for head in plain}


def test_anchors_are_headings():
    seen = 0
    for path, text in {ROOT / "README.md": README, **TEXTS}.items():
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text):
            assert anchor in heads(path.parent / target if target else path), (path.name, anchor)
            seen += 1
    assert seen > 20


def test_files_that_pages_name_are_there():
    named = re.compile(
        r"`((?:tests|tools|faults|src|docs|benchmarks|examples|experiments)/[\w./*-]+)"
    )
    found = {(path.name, name) for path, text in TEXTS.items() for name in named.findall(text)}
    assert len(found) > 30
    missing = {name for _, name in found if not [*ROOT.glob(name)]}
    assert missing == {"src/fedmaba/strategies/mine.py", "docs/algorithms/mine.md"}  # the reader's


def test_pages_count_the_algorithms_beside_fedmaba():
    others = len(
        strategies.REGISTRY.keys() - {"fedmaba", "local"}
    )  # clients that train alone are no algorithm
    assert f"[{others} other algorithms]" in (ROOT / "README.md").read_text()
    assert f"and {others} others to compare" in (ROOT / "docs/index.md").read_text()
