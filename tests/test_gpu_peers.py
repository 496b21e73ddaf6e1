"""The comparison with other simulators on a GPU: its jobs, and what it does where one fails."""

import json
import time

import numpy as np
import pytest
import torch
from benchmarks import gpu_peers
from benchmarks.gpu_peers import gpu_common


@pytest.mark.parametrize("name", [*gpu_peers.WAYS, *gpu_peers.PUBLISHED])
def test_model_of_each_job_takes_its_examples(name, tmp_path):
    gpu_common.write(name, True, tmp_path)
    it = gpu_common.job(name, True)
    x, y = gpu_common.read(name, tmp_path)
    assert len(x) == len(y) == it.clients * it.each + it.tested
    out = gpu_common.model(name).eval()(torch.from_numpy(np.array(x[:2])))
    assert out.shape == (2, *y.shape[1:], it.classes)


def script_of(text, folder, monkeypatch):
    (folder / "gpu_tried_.py").write_text(text)
    monkeypatch.setattr(gpu_peers, "HERE", folder)
    return gpu_peers.Script("tried", [])


def test_rate_of_processes_that_play_at_once_is_their_sum(tmp_path, monkeypatch):
    said = json.dumps({"per_second": 3.0, "rounds": 2})
    text = f"print('{{}}', flush=True)\nif input() == '2': print('''{said}''', flush=True)\ninput()"
    scripts = [script_of(text, tmp_path, monkeypatch) for _ in range(2)]
    until = time.perf_counter() + 20
    try:
        assert [script.answer(until) for script in scripts] == [{}, {}]
        assert gpu_peers.turn(scripts, 2, until) == (6.0, 4)
    finally:
        for script in scripts:
            script.stop()


@pytest.mark.parametrize(
    ("text", "seconds", "why"),
    [
        ("raise SystemExit('no such GPU')", 20, "no such GPU"),
        ("import time; time.sleep(99)", 0, "no answer in time"),
    ],
)
def test_script_that_cannot_go_on_says_why(text, seconds, why, tmp_path, monkeypatch):
    script = script_of(text, tmp_path, monkeypatch)
    assert gpu_peers.turn([script], 2, time.perf_counter() + seconds) == why
    assert script.process.poll() is not None


def test_simulator_that_did_not_run_is_told_beside_ours():
    row = {"peer": "pfl", "version": "0.6.0", "way": "one process", "not_run": "no such GPU"}
    row |= {"ours": 2.0, "ours_before": 1.0, "ours_after": 3.0}
    assert (
        gpu_peers.told(row) == "pfl 0.6.0, one process: not run: no such GPU, ours 2.0/s (1.0, 3.0)"
    )
