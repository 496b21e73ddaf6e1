"""What FlowerStrategy leaves for people and monitors: names of those asked, metrics, the card."""

import json

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord, Error, Message

from fedmaba import flower
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy
from fedmaba.results import state_folder
from flower_grid import LocalGrid, light_app, light_model


def lose_site_2(message: Message, answer: Message) -> Message:
    """Site 2 fails in every training."""
    lost = message.metadata.dst_node_id == 2 and message.metadata.message_type == "train"
    return Message(Error(2, "out of memory"), reply_to=message) if lost else answer


@pytest.fixture
def ran(tmp_path):
    metrics = tmp_path / "fedmaba.prom"
    strategy = FlowerStrategy(
        "fedmaba", state=tmp_path / "state", metrics=metrics, evaluate=False, min_available_nodes=3
    )
    grid = LocalGrid({c: light_app(c) for c in range(3)}, lose_site_2)
    train = ConfigRecord({"epochs": 1, "minibatch": 4})
    strategy.start(grid, light_model(), num_rounds=2, timeout=60, train_config=train)
    return tmp_path


def test_a_state_says_who_was_asked_who_answered_and_why_not(ran):
    state = state_folder.load_state_folder(ran / "state")
    assert state.finished
    assert state.asked == 2
    for line in state.rounds:
        assert line["asked"] == ["site-0", "site-1", "site-2"]
        assert list(line["sites"]) == ["site-0", "site-1"]
        assert line["refused"] == ["node 2 (site-2): it failed: out of memory"]
    told = json.loads((ran / "state" / "about.json").read_text())["federation"]
    assert told["train"] == {"epochs": 1, "minibatch": 4}
    assert told["participation"]["min_available_nodes"] == 3
    assert sorted(state.timing) == [1, 2]
    card = (ran / "state" / "models" / "card.md").read_text()
    assert "| site-2 | 0 of 2 | – |" in card
    assert "no site told any accuracy" in card.lower()


def test_metrics_are_renewed_to_the_end(ran):
    lines = (ran / "fedmaba.prom").read_text().splitlines()
    for line in (
        *("fedmaba_running 0", "fedmaba_rounds 2", "fedmaba_rounds_asked 2"),
        *("fedmaba_sites_asked 3", "fedmaba_sites_answered 2", "fedmaba_replies_refused 1"),
        *('fedmaba_site_answered{site="site-2"} 0', 'fedmaba_site_last_round{site="site-2"} 0'),
    ):
        assert line in lines


def test_a_run_goes_on_where_metrics_cannot_be_written(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(flower, "log_line", lambda level, text: said.append(text))
    (tmp_path / "metrics.prom").mkdir()
    strategy = FlowerStrategy("fedavg", metrics=tmp_path / "metrics.prom", evaluate=False)
    grid = LocalGrid({c: light_app(c) for c in range(2)})
    strategy.start(grid, light_model(), num_rounds=1, timeout=60)
    assert strategy.server.counted == 1
    assert sum("metrics.prom could not be written: Is a directory" in line for line in said) == 3


def test_a_wrong_file_for_metrics_is_refused_before_the_start(tmp_path):
    with pytest.raises(InputError, match=r"end it in \.prom"):
        FlowerStrategy("fedavg", metrics=tmp_path / "metrics.txt")
