"""Every test on Flower is run by some target of the Makefile."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NET = "tests/test_flower_secure_net.py"


def files_of(target: str) -> set[str]:
    """The test files that a target names, without running it."""
    words = ["make", "-n", target, "FLOWER_VENV=build/none"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found = {word for word in done.stdout.split() if word.startswith("tests/test_flower")}
    return {str(p.relative_to(ROOT)) for word in found for p in ROOT.glob(word)}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_each_test_on_flower_has_a_target_slow_or_not():
    every = {f"tests/{p.name}" for p in (ROOT / "tests").glob("test_flower*.py")}
    assert files_of("test-flower") == every
    assert files_of("test-flower-slow") == every - {NET}
    assert files_of("test-flower-net") == {NET}
