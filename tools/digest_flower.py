"""Rounds on Flower inside this process: what sites answer, what the server decides, what it keeps.

Sites are fedmaba's own ClientApps behind a grid of calls, as in the tests of Flower. What is random
from one run to the next (masks, names of a federation) is left out; secret noise is keyed instead.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from digest_world import federation, image_norms, norms, one, small, squares, table
from flwr.app import ConfigRecord

from fedmaba import strategies
from fedmaba.data.dataset import Dataset
from fedmaba.deploy import reply_fetching
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, SecureSum, client_app, initial_arrays
from fedmaba.privacy import secret_noise
from flower_grid import LocalGrid

Arrays = dict[str, Any]
SOME = {"fraction_train": 0.6, "seed": 3}  # 4 of 6 sites in each round


@dataclass(frozen=True)
class Federated:
    """A strategy, and how its rounds are played."""

    spec: str
    fed: str = "images"
    model: Any = small
    options: dict[str, Any] = field(default_factory=dict)  # of the server's strategy
    site: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    batchnorm: str | None = None
    rounds: tuple[int, ...] = (4,)  # more than one: the server ends, and another goes on
    dies: int = 0  #                       after so many answers the first server is gone
    lost: tuple[int, int] | None = None  # the answer of this site in this round does not arrive
    evaluate: bool = False
    twice: bool = False  #                 whether every message comes twice
    refused: bool = False

    @property
    def secure(self) -> bool:
        """Whether sites mask what they send."""
        return "secure" in self.options


SITES_KEEP = (
    "scaffold",
    "feddyn",
    "mifa",
    "ditto",
    "local",
    "eagle",
    "fednova",
    "fedvarp",
    "maxfl",
    "pfedme",
    "apfl",
    "fedala",
)


def cases() -> dict[str, Federated]:
    """Every case on Flower, by its name."""
    simulated = ("fairfed", "fedeba", "fedebaplus", "scaffpd", "fedmdfg")
    found = {n: Federated(n, refused=n in simulated) for n in strategies.REGISTRY}
    found |= {f"{name} of some sites": Federated(name, options=SOME) for name in SITES_KEEP}
    for what in ("mean", "end", "norms", "gram", "layers", "past", "past_layers", "prox", "bent",
                 "kept", "kept_late", "prox_kept", "means", "means_late", "server_adds", "own_late",
                 "only_late", "own_kept", "own_prox", "own_bent", "full_batch", "bent_full_batch",
                 "past_own"):  # fmt: skip
        found[f"asks {what}"] = Federated(f"?{what}", options=SOME)
    for choice in ("average", "local", "frozen", "group"):
        for what in ("mean", "kept_late", "own_late"):
            how: dict[str, Any] = {"model": norms, "batchnorm": choice, "evaluate": True}
            found[f"batchnorm {choice} x {what}"] = Federated(f"?{what}", **how)
    images: dict[str, Any] = {"model": image_norms, "batchnorm": "local"}
    found["batchnorm local of images"] = Federated("fedmaba:loss_at=end", **images)
    tasks = {
        "momentum": {"optimiser": "nesterov", "momentum": 0.6, "weight-decay": 0.01, "epochs": 2},
        "adam": {"optimiser": "adam", "epsilon": 0.1, "clip": 0.5},
        "schedules": {"step-schedule": "warmup:2,cosine", "steps": 5},
        "augment": {"augment": "flip,crop:2"},
    }
    for name, task in tasks.items():
        for spec in ("fedmaba:loss_at=mean", "scaffold", "fednova"):
            found[f"{name} x {spec}"] = Federated(spec, task=task)
    for spec in ("fedavg", "fedmaba", "afl", "ditto:lam=0.3", "?mean", "fedadam", "?kept"):
        dp = {"dp": "epsilon=8,clip=0.05,loss=1.5", **SOME}
        found[f"dp x {spec}"] = Federated(spec, options=dp, refused=spec == "?kept")
    secure = {"secure": SecureSum(threshold=4)}
    for spec in ("fedmaba", "fedavgm", "propfair", "?mean", "?own", "scaffold"):
        refused = spec == "scaffold"
        found[f"secure x {spec}"] = Federated(spec, options=secure, refused=refused)
    both = {**secure, "dp": "epsilon=8,clip=0.05,loss=1.5"}
    found["secure x dp"] = Federated("fedmaba", options=both)
    noised = {**secure, "losses": "noised:epsilon=2,loss=5"}
    found["secure x noised losses"] = Federated("fedmaba", options=noised)
    for spec in ("fedfv:tau=3", "fedyogi", "scaffold", "eagle", "feddyn", "?own_kept"):
        found[f"resumed {spec}"] = Federated(spec, rounds=(2, 5), options=SOME)
        found[f"lost x {spec}"] = Federated(spec, lost=(2, 2))
        found[f"twice x {spec}"] = Federated(spec, twice=True)
        found[f"died x {spec}"] = Federated(spec, rounds=(4, 4), dies=9)
    found["died x batchnorm local"] = Federated("?kept_late", **images, rounds=(3, 3), dies=8)
    found["resumed batchnorm local"] = Federated("?kept_late", **images, rounds=(2, 4))
    found["scores"] = Federated("ditto", evaluate=True, options={"deploy": "ema:0.5"})
    found["regress"] = Federated("?own_late", "regress", table, evaluate=True)
    found["own loss"] = Federated("fedmaba:loss_at=mean", site={"loss": squares})
    return found


def results(case: Federated) -> Arrays:
    """All numbers of the rounds on Flower, by name."""
    keyed = partial(mock.patch.object, secret_noise, "normals")
    fast = mock.patch.object(reply_fetching, "POLL_SECONDS", 0.001)
    out: Arrays = {}
    with fast, keyed(_normals), tempfile.TemporaryDirectory() as folder:
        try:
            for start, rounds in enumerate(case.rounds):  # nothing but folders stays between them
                with suppress(SystemExit) if case.dies and not start else nullcontext():
                    _play(case, Path(folder), start, rounds, out)
        except InputError as why:
            if not case.refused:
                raise
            return {"refused": np.frombuffer(str(why).encode(), np.uint8)}
    return out


def _normals(many: int) -> Any:
    """In place of secret noise: the same numbers whoever asks, and whenever."""
    return np.random.default_rng(many).standard_normal(many)


def _play(case: Federated, folder: Path, start: int, rounds: int, out: Arrays) -> None:
    """Rounds up to this one, of a server and of sites that find what is in the folder."""
    data, choice = federation(case.fed).data, case.batchnorm or "refuse"
    first = initial_arrays(case.model, data.shape, data.target.outputs, 0, batchnorm=choice)
    served = FlowerStrategy(
        one(case.spec),
        **{"min_available_nodes": 6, "lr": 0.2, "grace": 0, **case.options},
        state=folder / "state",
        batchnorm=case.batchnorm,
        evaluate=case.evaluate,
    )
    grid = _grid(case, folder, start, out)
    task = ConfigRecord({"minibatch": 4, **case.task})
    result = served.start(grid, first, rounds, 60, train_config=task)
    for report in served.reports:
        at = f"{start}/round {report['round']}"
        told = {f"{at}/info/{name}": v for name, v in report["info"].items()}
        for site, row in report["sites"].items():
            told |= {f"{at}/{site}/{name}": v for name, v in row.items()}
        out |= {name: v for name, v in told.items() if v is not None}
    out |= {f"{start}/model/{name}": a.numpy() for name, a in result.arrays.items()}
    out |= {f"{start}/deployed/{name}": a.numpy() for name, a in served.deployed.items()}
    scores = result.evaluate_metrics_clientapp
    out |= {f"{start}/scores/{name}": v for t in scores for name, v in scores[t].items()}


def _grid(case: Federated, folder: Path, start: int, out: Arrays) -> LocalGrid:
    """Sites with folders of their own; every answer that reaches the server is noted."""
    fed, apps, config = federation(case.fed), {}, {}
    for c in range(fed.n_clients):
        train, test, data = fed.train.of(c), fed.test.of(c), fed.data
        rows = np.concatenate([train, test])
        own = Dataset("own", data.x[rows], data.y[rows], len(train), data.classes, task=data.task)
        site = {"batchnorm": case.batchnorm or "refuse", "secure": case.secure, **case.site}
        apps[1000 - 7 * c] = client_app(case.model, own, site=f"site-{c}", **site)
        config[1000 - 7 * c] = {"keep": str(folder / f"kept-{c}")}
    answers: Counter[str] = Counter()

    def noted(message: Any, answer: Any) -> Any:
        kind, site = message.metadata.message_type, (1000 - message.metadata.dst_node_id) // 7
        if kind == "query" or answer.has_error():
            return answer
        if start < (case.dies > 0):
            answers["all"] += 1
            if answers["all"] == case.dies:
                raise SystemExit  # as if its process were gone
            return answer
        answers[f"{kind} {site}"] += 1
        place = f"{start}/{kind} {site}/{answers[f'{kind} {site}']}"
        for name, record in () if case.secure else answer.content.items():  # else they are masks
            values = {n: v.numpy() if hasattr(v, "numpy") else v for n, v in record.items()}
            told = {n: v for n, v in values.items() if not isinstance(v, str)}
            out.update({f"{place}/{name}/{n}": v for n, v in told.items()})
        if (site, answers[f"{kind} {site}"]) == case.lost:
            answer.content["metrics"]["num-examples"] = -1  # no such reply counts
        return answer

    grid = LocalGrid(apps, noted)
    grid.config = config
    if case.twice:
        answer = grid.answer
        grid.answer = lambda message: (answer(message), answer(message))[1]  # type: ignore[method-assign]
    return grid
