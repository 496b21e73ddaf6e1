"""State folders of federations, written by the server's own code. No flwr and no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmaba.deploy import records
from fedmaba.deploy.scores import score_spread
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings, Participation, one_strategy
from fedmaba.deploy.validation import Reply

MODEL = {"w": np.ones(4, np.float32)}
NAMES = ("north", "south", "west")
LATE = "node 7 (west): no answer within 90 seconds, when 2 of 3 had answered"


def server(
    folder: Path, strategy: str = "fedmaba:alpha=0.8", rounds: int = 3, **more
) -> FederationServer:
    """A server that has begun, as FlowerStrategy.start begins it."""
    settings = FederationSettings(one_strategy(strategy), rounds=rounds, **more)
    made = FederationServer(settings, MODEL, folder)
    rule = Participation(1.0, 1, 2, 0.5, 60.0)
    train = {"epochs": 1, "minibatch": 20}
    records.write_about(made.folder, settings, made.size, rule, train, 3600.0)
    return made


def reply(c: int, t: int, score: float | None = None, kind: str = "accuracy") -> Reply:
    """The reply of site c in round t."""
    told = {} if score is None else {kind: score}
    return Reply(c, NAMES[c], {"w": np.full(4, 1 + 0.1 * c, "f4")}, 10 + c, 1.0 + c / t, **told)


def accuracy(c: int, t: int) -> float:
    return round(0.5 + 0.1 * c + 0.01 * t, 3)


def play(made: FederationServer, rounds: int = 3, kind: str | None = "accuracy") -> None:
    """Rounds in which all sites answer, but west misses the second."""
    for _ in range(rounds):
        t = made.round + 1
        there = [c for c in range(3) if (c, t) != (2, 2)]
        said = [reply(c, t, None if kind is None else accuracy(c, t), kind or "") for c in there]
        made.finish_round(said, [LATE] if t == 2 else [], asked=NAMES)


def end(made: FederationServer, scores: dict[str, float] | None = None) -> None:
    """The end of a federation, as FlowerStrategy.start ends it; without scores, not evaluated."""
    if scores is not None:
        line = {"round": made.round, "deployed": dict(sorted(scores.items()))}
        made.save([line | score_spread(scores.values(), ())])
    made.write_models()
    made.close()


def finished(folder: Path, **more) -> Path:
    """A federation of three rounds that has ended."""
    made = server(folder, **more)
    play(made)
    end(made, {"north": 0.5, "south": 0.7, "west": 0.9})
    return folder
