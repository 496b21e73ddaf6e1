"""The paper's laboratory is a program of its own: where it is found, and what is said elsewhere."""

import ast
import json
from importlib import metadata
from types import SimpleNamespace

import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.experiment import laboratory
from package_source import EVERY, walked

DOOR = "experiment.laboratory"


def test_only_the_door_names_the_laboratory():
    for name in (n for n in EVERY if n != DOOR):
        for node in walked(name):
            imported = [a.name for a in getattr(node, "names", ()) if isinstance(a, ast.alias)]
            imported.append(getattr(node, "module", "") or "")
            assert not [m for m in imported if m.split(".")[0] == "laboratory"] or (
                isinstance(node, ast.ImportFrom) and node.module == "fedmaba.experiment"
            ), name
            text = node.value if isinstance(node, ast.Constant) else ""
            assert not (isinstance(text, str) and text.startswith("laboratory.")), name


@pytest.fixture
def elsewhere(monkeypatch):
    monkeypatch.setattr(laboratory, "folder", lambda: None)


@pytest.mark.parametrize(
    "words",
    [
        ["reproduce"],
        ["reproduce", "--help"],
        ["reproduce", "all", "--quick", "--seeds", "2"],
        ["list", "targets"],
        ["list", "targets", "--json"],
        ["table", "a.npz"],
        ["table", "a.npz", "--by", "client"],
        ["report", "a.npz", "-o", "page.html"],
        ["export", "a.npz"],
    ],
    ids=" ".join,
)
def test_elsewhere_one_line_says_where_it_is(words, elsewhere, call):
    open("a.npz", "wb").close()
    answer = call(*words)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert "from a clone" in answer.err
    assert "experiments/" in answer.err


def test_elsewhere_a_target_is_a_folder_like_any_other(elsewhere, refused, tmp_path):
    assert "is no run folder" in refused("report", tmp_path / "attacks", "-o", "page.html")
    with pytest.raises(InputError, match="attacks"):
        fedmaba.load_history(tmp_path / "attacks")


@pytest.mark.parametrize(
    ("url", "there"), [("file://{}", True), ("https://x{}", False), ("{}", False), (None, False)]
)
def test_a_clone_that_pip_installed_from_is_found(url, there, tmp_path, monkeypatch):
    clone = tmp_path / "my clone"
    (clone / "experiments" / "laboratory").mkdir(parents=True)
    note = url and json.dumps({"url": url.format(str(clone).replace(" ", "%20")), "dir_info": {}})
    told = SimpleNamespace(read_text={"direct_url.json": note}.get)
    monkeypatch.setattr(metadata, "distribution", lambda name: told)
    monkeypatch.setattr(laboratory, "__file__", "/usr/lib/site-packages/fedmaba/experiment/x.py")
    laboratory.folder.cache_clear()
    try:
        assert laboratory.folder() == (clone / "experiments" if there else None)
    finally:
        laboratory.folder.cache_clear()
