"""What the README, the docs and the examples show runs as shown."""

import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from fedmaba import cli, config

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(text: str, kind: str) -> list[str]:
    return [body for name, body in BLOCK.findall(text) if name == kind]


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_readme_python_runs(number, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(blocks(README, "python")[number])
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"fedavg +\d", capsys.readouterr().out)


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT / "examples").glob("*.py")))
def test_example_runs_and_is_short(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    runpy.run_path(str(path), run_name="__main__")
    assert re.search(r"fedavg +\d", capsys.readouterr().out)


def commands() -> list[str]:
    texts = [README, *(p.read_text() for p in sorted((ROOT / "docs").rglob("*.md")))]
    shell = "\n".join(b for text in texts for b in blocks(text, "sh")).replace("\\\n", " ")
    lines = [line.split("#")[0].strip() for line in shell.splitlines()]
    return [line for line in lines if line.startswith("fedmaba ")]


def test_commands_of_the_docs_are_understood(tmp_path, monkeypatch, capsys):
    """Every `fedmaba ...` line: run where it is quick, else parsed as far as the experiment."""
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(cli, "_run", lambda asked, *rest: seen.append(asked))
    assert len(commands()) >= 6
    for line in commands():
        words = shlex.split(line)
        if words[1] == "table" or (words[1] == "data" and "sample" not in words):
            continue
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, (line, capsys.readouterr().err)
    assert [asked.train.rounds for asked in seen] == [200]


def test_experiment_of_the_docs_is_whole():
    text = (ROOT / "docs" / "experiments.md").read_text()
    (toml,) = blocks(text, "toml")
    assert config.build(tomllib.loads(toml)).data.clients == 20
    for key in config.options():
        assert f"| `{key.name}` | `{key.flag}` |" in text, key.name


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
