"""The command behind the table of hostile sites under secure sums in benchmarks/results."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")
ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_server():
    command = [sys.executable, "benchmarks/secure_attacks.py", "--rounds", "1"]
    found = subprocess.run(
        [*command, "--only", "update=-1e9"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    head, _, plain, honest, own = found.stdout.splitlines()
    assert head.count("`") == 6
    assert plain.count("(left out)") == 3  # the server checks values
    assert len(re.findall(r"\(0\.\d\d\)", honest)) == 3  # the site's app clips them
    assert own.count("the run ends") == 3  # nobody does


def test_the_table_has_the_rows_of_the_command():
    page = (ROOT / "benchmarks" / "results" / "secure-attacks.md").read_text()
    text = (ROOT / "benchmarks" / "secure_attacks.py").read_text()
    listed = ast.literal_eval(re.search(r"^ATTACKS = (\[.*\])$", text, re.M)[1])
    assert len(listed) == 7
    for attack in listed:
        name = f"`{attack}`" if attack else "nobody"
        assert f"| {name} | plain |" in page
        assert f"| {name} | secure |" in page
