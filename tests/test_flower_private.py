"""What a server writes about its sites is for its own account, whatever the umask."""

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.flower import FlowerStrategy
from flower_grid import LocalGrid, light_app, light_model


@pytest.fixture
def open_umask():
    before = os.umask(0o022)
    yield
    assert os.umask(before) == 0o022, "the umask of the process was changed for good"


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")
    }


def test_the_state_of_a_server_is_its_accounts_alone(tmp_path, open_umask):
    state = tmp_path / "state"
    strategy = FlowerStrategy("fedmaba", min_available_nodes=3, state=state, evaluate=False)
    strategy.start(LocalGrid({c + 1: light_app(c) for c in range(3)}), light_model(), num_rounds=2)
    found = modes(tmp_path)
    assert {"state", "state/rounds.jsonl", "state/models/last.safetensors"} <= set(found)
    assert not {name: oct(mode) for name, mode in found.items() if mode & 0o077}


def test_a_folder_that_is_there_keeps_its_mode(tmp_path, open_umask):
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    strategy = FlowerStrategy("fedavg", min_available_nodes=3, state=state, evaluate=False)
    strategy.start(LocalGrid({c + 1: light_app(c) for c in range(3)}), light_model(), num_rounds=1)
    assert state.stat().st_mode & 0o777 == 0o755
    assert modes(state)["rounds.jsonl"] == 0o600
