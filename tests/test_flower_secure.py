"""Secure sums on Flower, in one process: the plain run's numbers, drop-outs, and mistakes."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Message, RecordDict

from fedmaba import flower
from fedmaba.deploy import secure
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, SecureSum, client_app, secure_mod
from fedmaba.strategies import REGISTRY, parse
from flower_grid import LocalGrid, light_app, light_model, lost, stage_of
from flower_sites import local_data

ROUNDS, SITES = 3, 5
# not on Flower at all
SIMULATED = ["scaffold", "ditto", "local", "fairfed", "fedeba", "mifa", "fedmdfg"]
SIMULATED += ["fedebaplus", "scaffpd"]
KEEPING = ["feddyn", "fednova", "eagle"]  # sites keep something, or say how many steps they took
OTHERS = [name for name, kind in REGISTRY.items() if kind().needs().changes != "none"]
OTHERS.remove("fedmdfg")
RULES = ["median", "trimmed"]  # which sums cannot say, see test_flower_simulated
ASKING = ["fedvarp", "maxfl", "feddgga"]  # for a mean of vectors, or for other losses
SUMMED = [name for name in REGISTRY if name not in SIMULATED + KEEPING + OTHERS + RULES + ASKING]
SUMMED += ["fedmaba:loss_at=mean", "fedmaba:loss_at=end,eta_s=2", "term:normalise=reference"]


def grid_of(count: int = SITES, spoil=None) -> LocalGrid:
    return LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(count)}, spoil)


def run(spec="fedmaba", grid=None, rounds=ROUNDS, model=None, rule=None, **options):
    """A secure run, and its strategy."""
    options = {"min_available_nodes": SITES, "grace": 0, "evaluate": False, **options}
    strategy = FlowerStrategy(spec, secure=rule or SecureSum(threshold=3), **options)
    return strategy.start(grid or grid_of(), model or light_model(), rounds, timeout=3), strategy


def plain(spec="fedmaba", rounds=ROUNDS):
    strategy = FlowerStrategy(spec, min_available_nodes=SITES, evaluate=False)
    grid = LocalGrid({100 - c: light_app(c) for c in range(SITES)})
    return strategy.start(grid, light_model(), rounds, timeout=3), strategy


def failing(sites, stage, **how):
    return lost([100 - c for c in sites], stage, **how)


@pytest.mark.parametrize("spec", SUMMED)
def test_a_secure_run_gives_the_plain_runs_model(spec):
    rule = SecureSum(threshold=3)
    secured, strategy = run(spec, rule=rule)
    expected, other = plain(spec)
    got, want = (result.arrays["w"].numpy() for result in (secured, expected))
    np.testing.assert_allclose(got, want, rtol=0, atol=2 * ROUNDS * SITES * rule.step + 1e-6)
    for mine, theirs in zip(strategy.reports, other.reports, strict=True):
        assert mine["refused"] == []
        weights = [row["weight"] for row in mine["sites"].values()]
        largest = pytest.approx(max(weights) / sum(weights))
        assert mine["secure"] == {"summed": SITES, "left": [], "clipped": 0, "largest": largest}
        for site, row in theirs["sites"].items():
            assert mine["sites"][site]["weight"] == pytest.approx(row["weight"], abs=1e-6)
    for name, value in other.server.state.items():
        np.testing.assert_allclose(strategy.server.state[name], value, atol=1e-6)


@pytest.mark.parametrize("gone", [[], [1], [0, 3]])
def test_the_sum_is_that_of_the_quantised_changes_bit_for_bit(gone, monkeypatch):
    """Float64 sums of what the sites masked, of those that stayed: the same bits."""
    rule, masked, results = SecureSum(threshold=3, bits=20), [], []
    quantise = secure.quantise

    def noted(change, share, rule):
        numbers, clipped = quantise(change, share, rule)
        masked.append((numbers * rule.step, share))
        return numbers, clipped

    monkeypatch.setattr(secure, "quantise", noted)
    sum_changes = flower.secure_round.sum_changes
    monkeypatch.setattr(
        flower.secure_round,
        "sum_changes",
        lambda *args: results.append(sum_changes(*args)) or results[-1],
    )
    run(grid=grid_of(spoil=failing(gone, "mask")), rounds=1, rule=rule, grace=0)
    ((summed, _),) = results
    assert list(summed.stayed) == [f"site-{c}" for c in range(SITES) if c not in gone]
    by_share = {share: values for values, share in masked}
    expected = sum(by_share[summed.shares[site]] for site in summed.stayed)
    assert expected.dtype == np.float64
    np.testing.assert_array_equal(summed.steps * rule.step, expected)
    assert np.abs(expected).max() > 0
    assert sum(summed.weights().values()) == pytest.approx(1.0)


@pytest.mark.parametrize("gone", [[2], [2, 4]])
@pytest.mark.parametrize("stage", ["shares", "mask", "unmask"])
def test_sites_that_drop_out_do_not_lose_the_round(stage, gone):
    silent = stage == "mask" and gone == [2]
    result, strategy = run("fedavg", grid_of(spoil=failing(gone, stage, silent=silent)))
    kept = [c for c in range(SITES) if c not in gone or stage == "unmask"]
    w = np.zeros(50)
    for _ in range(ROUNDS):
        share = np.array([10 + c for c in kept]) / sum(10 + c for c in kept)
        w = w - 0.1 * (w - share @ kept)
    np.testing.assert_allclose(result.arrays["w"].numpy(), w, rtol=0, atol=1e-5)
    for report in strategy.reports:
        assert report["secure"]["summed"] == len(kept)
        assert len(report["refused"]) == len(gone)
        assert all(f"left in stage {stage} of the secure sum" in line for line in report["refused"])
        weighed = [site for site, row in report["sites"].items() if row["weight"] is not None]
        assert weighed == [f"site-{c}" for c in kept]


def test_below_the_threshold_the_round_is_repeated():
    spoil = failing(range(SITES), "mask", times=3)
    result, strategy = run(grid=grid_of(spoil=spoil))
    expected, _ = plain()
    np.testing.assert_allclose(result.arrays["w"].numpy(), expected.arrays["w"].numpy(), atol=1e-5)
    assert [report["round"] for report in strategy.reports] == [1, 2, 3]
    (again,) = [line for line in strategy.reports[0]["refused"] if "repeated" in line]
    assert again == "round 1 is repeated: 2 of 5 sites answered in stage mask: 3 are needed"
    assert strategy.reports[1]["refused"] == []


@pytest.mark.parametrize("spec", OTHERS)
def test_strategies_that_need_single_changes_are_refused_with_the_reason(spec):
    with pytest.raises(InputError, match=r"(norm or by its inner products|by a rule).*hide"):
        FlowerStrategy(spec, secure=SecureSum())
    assert parse(spec)[0].needs().changes != "none"


@pytest.mark.parametrize("spec", [*KEEPING, *ASKING])
def test_strategies_that_ask_sites_for_more_are_refused(spec):
    with pytest.raises(InputError, match=r"more than a loss and a change.*leave out secure"):
        FlowerStrategy(spec, secure=SecureSum())


def test_a_change_beyond_the_clip_is_scaled_to_it_and_counted():
    result, strategy = run("fedavg", rounds=1, rule=SecureSum(threshold=3, clip=1.0))
    changes = [0.1 * np.full(50, float(c)) for c in range(SITES)]
    changes = [d * min(1, 1 / max(np.linalg.norm(d), 1e-9)) for d in changes]
    want = sum((10 + c) / 60 * d for c, d in enumerate(changes))
    np.testing.assert_allclose(result.arrays["w"].numpy(), want, atol=1e-6)
    assert strategy.reports[0]["secure"]["clipped"] == 3  # 2 * 0.1 * sqrt(50) is above 1


def test_a_state_folder_goes_on_secure_and_never_plain(tmp_path):
    whole, _ = run()
    run(rounds=2, state=tmp_path / "state")
    result, _ = run(state=tmp_path / "state")
    np.testing.assert_array_equal(result.arrays["w"].numpy(), whole.arrays["w"].numpy())
    with pytest.raises(InputError, match="was begun with secure="):
        FlowerStrategy("fedmaba", state=tmp_path / "state").start(grid_of(), light_model(), 4)


def test_models_with_running_statistics_are_refused():
    model = light_model()
    model["bn.running_mean"] = light_model()["w"]
    with pytest.raises(
        InputError, match=r"running statistics.*bn\.running_mean.*batchnorm='group'"
    ):
        run(model=model)


# sites and servers that do not agree


def test_a_site_for_secure_sums_never_sends_its_model_to_a_plain_server():
    strategy = FlowerStrategy("fedavg", min_available_nodes=SITES)
    with pytest.raises(InputError, match="this site takes part in secure sums alone"):
        strategy.start(grid_of(), light_model(), 1, timeout=3)


def test_a_plain_site_takes_no_part_in_a_secure_round(fed):
    grid = grid_of()
    data = local_data(fed, 0)
    grid.apps[7] = client_app("mlp", data, site="plain")
    _, strategy = run(grid=grid, rounds=1, min_available_nodes=6)
    (line,) = strategy.reports[0]["refused"]
    assert "node 7 (plain)" in line
    assert "client_app(secure=True)" in line
    assert strategy.reports[0]["secure"]["summed"] == SITES


def test_a_site_that_sends_its_model_in_plain_is_left_out():
    grid = grid_of()
    grid.apps[96] = light_app(4)  # an app of its own, which knows no secure sums
    _, strategy = run(grid=grid, rounds=1)
    (line,) = strategy.reports[0]["refused"]
    assert line.startswith("node 96 (site-4): ")
    assert "not of this model: w" in line


def test_no_secret_is_left_when_a_round_is_over():
    grid = grid_of()
    run(grid=grid)
    assert all(not state for state in grid.states.values())


def test_a_site_answers_each_stage_once():
    grid = grid_of()
    seen: dict[str, Message] = {}

    def note(message, answer):
        if message.metadata.dst_node_id == 100:
            seen.setdefault(stage_of(message), message)
        return answer

    grid.spoil = note
    run(grid=grid, rounds=1)
    for stage in ("shares", "mask", "unmask"):
        again = grid.answer(Message(RecordDict(dict(seen[stage].content)), 100, "train"))
        assert again.has_error()
        assert "does not know" in again.error.reason
