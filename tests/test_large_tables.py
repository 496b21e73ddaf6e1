"""A large table loads within its limits of time and memory."""

import runpy
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "tables.py"


@pytest.mark.slow
def test_a_hundred_thousand_rows_of_a_thousand_clients():
    """CPU seconds, as other work on the machine does not count there."""
    seconds, megabytes, told = runpy.run_path(str(BENCHMARK))["measure"]()
    assert "inputs (99992, 128)" in told
    assert seconds < 10
    assert megabytes < 1000
