"""Sites of a real federation train by the same optimisers, schedules and images as simulated."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from fedmaba.data.datasets import from_arrays
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, initial_arrays
from fedmaba.simulation import engine
from flower_grid import LocalGrid
from flower_sites import CONFIG, assert_same, first, grid_of, model_of, served, simulated

# A large epsilon, as without it Adam makes much of the last bits of gradients that are near 0.
ADAM = {"optimiser": "adam", "beta1": 0.8, "epsilon": 0.1, "weight-decay": 0.01, "clip": 0.5}
CASES = {
    "adam": (
        ADAM,
        {},
        {"optimiser": engine.Optimiser(0, 0.01, "adam", 0.8, epsilon=0.1, clip=0.5)},
    ),
    "nesterov": (
        {"optimiser": "nesterov", "momentum": 0.5},
        {},
        {"optimiser": engine.Optimiser(0.5, optimiser="nesterov")},
    ),
    "schedules": (
        {"step-schedule": "warmup:2,cosine", "epochs": 2},
        {"schedule": "cosine"},
        {"step_schedule": "warmup:2,cosine", "epochs": 2, "schedule": "cosine"},
    ),
    "images": ({"augment": "flip,crop:2"}, {}, {"augment": "flip,crop:2"}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_federation_trains_as_its_simulation(name, fed):
    config, options, plan = CASES[name]
    rule, more = "fedprox:mu=0.1", {"lr": 0.05, **options}
    flower, result = served(rule, fed, grid_of(fed), config=CONFIG | config, evaluate=True, **more)
    batch, _ = simulated(rule, fed, lr=0.05, **plan)
    assert_same(result.arrays, model_of(batch))
    assert [r["lr"] for r in flower.reports] == [batch.plan.lr_in_round(t) for t in range(3)]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"optimiser": "adagrad"}, "unknown optimiser 'adagrad'"),
        ({"momentum": "much"}, "momentum='much'"),
        ({"optimiser": "adam", "momentum": 0.9}, "momentum=0.9: adam has none"),
        ({"clip": -1.0}, "clip=-1.0"),
        ({"step-schedule": "linear"}, "step-schedule='linear'"),
        ({"augment": "turn"}, "augment='turn'"),
    ],
)
def test_settings_that_no_site_could_follow_are_refused_before_any_is_asked(config, said, fed):
    strategy = FlowerStrategy("fedavg", min_available_nodes=5)
    with pytest.raises(InputError, match=said):
        strategy.start(grid_of(fed), first(fed), 1, train_config=ConfigRecord(config))


def test_a_state_is_gone_on_with_by_its_own_schedule(fed, tmp_path):
    def begun(rounds, folder="state", **options):
        strategy = FlowerStrategy(
            "fedavg", min_available_nodes=5, state=tmp_path / folder, evaluate=False, **options
        )
        train = ConfigRecord(CONFIG)
        strategy.start(grid_of(fed), first(fed), rounds, train_config=train)
        return strategy

    begun(2, schedule="cosine")
    with pytest.raises(InputError, match="was begun with rounds=2, but this run has 4"):
        begun(4, schedule="cosine")
    with pytest.raises(InputError, match="was begun with schedule=cosine, but this run has None"):
        begun(4)
    longer = begun(2, "other", schedule="warmup:2")
    assert [r["lr"] for r in longer.reports] == pytest.approx([0.05, 0.1])
    assert len(begun(3, "other", schedule="warmup:2").reports) == 1  # no end is part of it
    with pytest.raises(InputError, match="leave one out"):
        FlowerStrategy("fedavg", schedule="cosine", lr_decay=0.5)


def test_a_site_without_images_says_so(make_federation):
    fed = make_federation(shape=(6,))
    strategy = FlowerStrategy("fedavg", min_available_nodes=5)
    train = ConfigRecord({**CONFIG, "augment": "flip"})
    with pytest.raises(InputError, match="no reply"):
        strategy.start(grid_of(fed), first(fed), 1, train_config=train)
    said = " ".join(strategy.reports[0]["refused"])
    assert "it failed" in said
    assert np.char.count(said, "node") == 5


@pytest.mark.parametrize("task", ["classify", "sequence"])
def test_sites_that_lack_some_characters_train_one_model(task):
    """The number of characters is the federation's; a site may have seen fewer."""
    letters = np.random.default_rng(0).integers(5, size=(12, 9))
    letters[0] = 6  # which the first site alone has
    apps = {}
    for site in range(2):
        own = letters[6 * site : 6 * site + 6]
        y = own[:, 1:] if task == "sequence" else own[:, -1]
        data = replace(from_arrays(own[:, :-1], y, task=task), n_train=6)
        apps[site + 1] = client_app("lstm", data, site=f"site-{site}", classes=7)
    strategy = FlowerStrategy("fedavg", min_available_nodes=2, evaluate=False)
    first_model = initial_arrays("lstm", (8,), 7, task=task)
    train = ConfigRecord({"minibatch": 3, "optimiser": "adam", "clip": 1.0})
    result = strategy.start(LocalGrid(apps), first_model, 1, train_config=train)
    assert not strategy.reports[0]["refused"]
    assert result.arrays["embedding.weight"].numpy().shape == (7, 8)
