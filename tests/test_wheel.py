"""The wheel in an empty environment without PyTorch: strategies work, the rest names its need."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """
import importlib.util, sys
import numpy as np
import fedmaba
assert importlib.util.find_spec("torch") is None
rule = fedmaba.FedMABA(alpha=0.8)
replies = fedmaba.Replies(0, 0.1, 3, np.arange(3), np.full(3, 50), np.array([0.1, 0.5, 2.0]))
coef, state, info = rule.weigh(rule.init(3), replies)
assert abs(coef.sum() - 1) < 1e-12 and coef.argmax() == 2, coef
assert len(fedmaba.parse("fedmaba:alpha=[0.5,0.8]")) == 2
assert len(fedmaba.Federation.make("sample", "shards:2", 20).train.size) == 20
assert fedmaba.Federation.make("heart", "given", test="local").n_clients == 4
"""


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_the_wheel_works_without_torch(tmp_path):
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT)
    done = run(*build)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "empty")
    bin_ = tmp_path / "empty" / "bin"
    done = run(bin_ / "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    if done.returncode:
        pytest.skip(f"no package index within reach: {done.stderr.strip().splitlines()[-1]}")
    done = run(bin_ / "python", "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert "fedmaba" in run(bin_ / "fedmaba", "list", "strategies").stdout
    done = run(bin_ / "fedmaba", "reproduce", "claims", "--from", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "experiments/" in done.stderr
    done = run(bin_ / "fedmaba", "compare", "fedavg", "--out", tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install '.[sim]'" in done.stderr
    assert not (tmp_path / "run").exists()
