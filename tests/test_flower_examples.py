"""The Flower examples of the page on Python run where flwr is installed."""

import re
import runpy

import pytest

from tools import reference

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

BLOCKS = {
    name: code
    for name, code in re.findall(
        r"^### (\w+)\n(?:(?!^### ).*\n)*?```python\n((?:(?!```).*\n)+)```$",
        reference.python(),
        re.MULTILINE,
    )
    if "flwr" in code
}


@pytest.mark.parametrize("name", BLOCKS)
def test_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "block.py"
    script.write_text(BLOCKS[name], encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")


def test_every_name_has_an_example():
    from fedmaba import flower

    assert set(BLOCKS) == set(flower.__all__)
