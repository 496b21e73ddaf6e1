"""Flower's differential privacy: wrappers of the strategy are refused, mods at the sites work."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from flwr.serverapp.strategy import Strategy as FlwrStrategy

from fedmaba.data.datasets import from_arrays
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, initial_arrays
from flower_grid import LocalGrid, light_app, light_model

WRAPPERS = {
    "central, fixed": lambda s, noise: DifferentialPrivacyServerSideFixedClipping(s, noise, 0.1, 3),
    "local, fixed": lambda s, noise: DifferentialPrivacyClientSideFixedClipping(s, noise, 0.1, 3),
    "central, adaptive": lambda s, noise: DifferentialPrivacyServerSideAdaptiveClipping(
        s, noise, 3, clipped_count_stddev=9.0
    ),
    "local, adaptive": lambda s, noise: DifferentialPrivacyClientSideAdaptiveClipping(
        s, noise, 3, clipped_count_stddev=9.0
    ),
}


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("noise", [0.0, 5.0])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_is_refused_before_any_site_is_asked(kind, noise, rounds, tmp_path):
    inner = FlowerStrategy("fedmaba", min_available_nodes=3, state=tmp_path / "state")
    grid = LocalGrid({c + 1: light_app(c) for c in range(3)})
    with pytest.raises(InputError, match=r"differential privacy.*LocalDpMod") as error:
        WRAPPERS[kind](inner, noise).start(grid, light_model(), rounds)
    assert "\n" not in str(error.value)
    assert not grid.sent
    assert not (tmp_path / "state").exists()


def test_flowers_own_loop_is_refused_too():
    """It is what a wrapper runs: arrays that it hands in would not be used."""
    strategy = FlowerStrategy("fedmaba", min_available_nodes=3)
    grid = LocalGrid({c + 1: light_app(c) for c in range(3)})
    with pytest.raises(InputError, match="runs its own rounds"):
        FlwrStrategy.start(strategy, grid, light_model(), 1)
    strategy.start(grid, light_model(), 1)  # its own does
    with pytest.raises(InputError, match="runs its own rounds"):
        strategy.configure_train(2, light_model(), ConfigRecord(), grid)
    with pytest.raises(InputError, match="runs its own rounds"):
        strategy.aggregate_train(2, [])


def sites(mods) -> dict:
    rng = np.random.default_rng(0)
    data = [
        from_arrays(rng.normal(size=(30, 4)), np.arange(30) % 3, name=f"site-{c}") for c in range(3)
    ]
    return {
        c + 1: client_app("softmax", one, site=one.name, mods=mods) for c, one in enumerate(data)
    }


def moved(mods, **config) -> float:
    """How far one round moves the model."""
    strategy = FlowerStrategy("fedavg", min_available_nodes=3)
    first = initial_arrays("softmax", (4,), 3)
    result = strategy.start(
        LocalGrid(sites(mods)), first, 1, train_config=ConfigRecord(config or {"epochs": 1})
    )
    assert len(strategy.reports[0]["sites"]) == 3, strategy.reports
    pairs = ((result.arrays[n].numpy(), first[n].numpy()) for n in first)
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs)))


def test_noise_of_a_mod_at_the_sites_reaches_the_model(monkeypatch):
    monkeypatch.setattr(np.random, "normal", np.random.default_rng(1).normal)
    plain = moved([])
    clipped = moved([LocalDpMod(plain / 10, 0.0, 1.0, 1e-5)])
    noisy = moved([LocalDpMod(plain / 10, 1.0, 1.0, 1e-5)])
    assert clipped == pytest.approx(plain / 10, rel=0.5)
    assert noisy > 3 * plain


def test_a_mod_does_not_touch_the_greeting():
    strategy = FlowerStrategy("fedavg", min_available_nodes=3)
    mods = [LocalDpMod(1.0, 0.0, 1.0, 1e-5)]
    strategy.start(LocalGrid(sites(mods)), initial_arrays("softmax", (4,), 3), 1)
    assert not strategy.nameless
