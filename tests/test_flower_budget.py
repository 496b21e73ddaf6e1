"""A private federation whose sites have spent their privacy ends early, and its record says why."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord, Error, Message

from fedmaba.cli.messages import tell_unfinished
from fedmaba.deploy import reply_fetching, secure
from fedmaba.flower import FlowerStrategy, SecureSum, secure_mod
from fedmaba.privacy import accounting
from fedmaba.report import data, federation
from flower_grid import LocalGrid, light_app

SITES = 4
SAID = (
    "ended after round 1 of 2, because the privacy budget is spent: too few sites may still be "
    "asked"
)


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Of a secure run of two rounds, whose first one was repeated: nothing is left to spend."""
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *_: 0.7)
    monkeypatch.setattr(accounting, "spent_epsilon", lambda _, rounds, delta: float(rounds))
    monkeypatch.setattr(accounting, "accountant_in_words", lambda: "by hand")
    left = [3]

    def leave_once(message, answer):
        record = message.content.get("config", {})
        stage = secure.read_message(record["secure"], 10**7)["stage"] if "secure" in record else ""
        if stage == "mask" and left[0]:
            left[0] -= 1
            return Message(Error(2, "killed"), reply_to=message)
        return answer

    run(tmp_path / "s", leave_once)
    return tmp_path / "s"


def run(state, spoil=None) -> None:
    grid = LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(SITES)}, spoil)
    strategy = FlowerStrategy(
        "fedmaba",
        state=state,
        evaluate=False,
        min_available_nodes=SITES,
        grace=0,
        dp={"epsilon": 8.0, "clip": 0.5, "loss": 2.0},
        secure=SecureSum(threshold=2 / 3),
    )
    strategy.start(grid, ArrayRecord({"w": Array(np.zeros(40, np.float32))}), 2, timeout=3)


def test_a_run_that_its_budget_ended_says_so_and_is_finished(state, capsys):
    source = data.load_run_folder(state)
    assert source.finished
    assert federation.how_far(source.federation)[0].startswith("Round 1 of 2")
    tell_unfinished(state)
    told = capsys.readouterr().err
    assert told.splitlines()[0] == SAID
    assert "unfinished" not in told
    card = (state / "models" / "card.md").read_text()
    assert f"{SAID[0].upper()}{SAID[1:]}." in card
    assert "nfinished" not in card


def test_a_server_killed_before_it_wrote_the_models_has_not_finished(state):
    (state / "models" / "last.safetensors").unlink()
    source = data.load_run_folder(state)
    assert not source.finished
    assert source.federation.notes()[0].startswith("unfinished, saved up to round 1 of 2: run it")
    run(state)  # asks nobody, and writes the models
    assert data.load_run_folder(state).federation.notes()[0] == SAID


def test_an_end_that_is_not_of_the_last_round_counts_for_nothing(state):
    told = json.loads((state / "privacy.json").read_text())
    assert told["ended"] == 1
    (state / "privacy.json").write_text(json.dumps({**told, "ended": 0}))
    assert (
        data.load_run_folder(state)
        .federation.notes()[0]
        .startswith("unfinished, saved up to round 1 of 2")
    )
