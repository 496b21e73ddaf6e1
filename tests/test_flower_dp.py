"""Differential privacy on Flower, in one process: clipping, noise, and the count of what is spent.

Needs no accountant, except where it says so.
"""

import json
import os
from statistics import NormalDist

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

from fedmaba import FedAvg, flower, strategies
from fedmaba.deploy.settings import FederationSettings, read_dp, read_losses
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, SecureSum, secure_mod
from fedmaba.privacy import accounting, secret_noise
from fedmaba.privacy.mechanism import Privacy, clip_rows
from fedmaba.report import data, federation, run_setup
from fedmaba.report.table import privacy_note
from flower_grid import LocalGrid, light_app, lost, stage_of

SITES, SIZE, ROUNDS = 4, 4000, 3
DP = {"epsilon": 8.0, "clip": 0.5, "loss": 2.0}


@pytest.fixture
def counted(monkeypatch):
    """In place of the accountant: a noise multiplier of 0.7, and epsilon is the rounds."""
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *_: 0.7)
    monkeypatch.setattr(accounting, "spent_epsilon", lambda _, rounds, delta: float(rounds))
    monkeypatch.setattr(accounting, "accountant_in_words", lambda: "by hand")


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(secret_noise, "normals", lambda many: np.zeros(many))


def model() -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))})


def grid_of(mods=(), spoil=None, count=SITES) -> LocalGrid:
    return LocalGrid({100 - c: light_app(c, mods) for c in range(count)}, spoil)


def run(state, spec="fedmaba", rounds=ROUNDS, grid=None, **options):
    """A private run in which the server sees each change, and its strategy."""
    options = {"min_available_nodes": SITES, "grace": 0, "dp": DP, **options}
    strategy = FlowerStrategy(spec, state=state, evaluate=False, **options)
    return strategy.start(grid or grid_of(), model(), rounds, timeout=3), strategy


def run_secure(state, spec="fedmaba", spoil=None, rule=None, **options):
    rule, grid = rule or SecureSum(threshold=2.0 / 3), grid_of([secure_mod], spoil)
    return run(state, spec, grid=grid, secure=rule, **options)


def ledger(state) -> dict:
    return json.loads((state / "privacy.json").read_text())["taken"]


# --- noise ---------------------------------------------------------------------------------------


def test_secret_noise_is_normal_and_never_the_same():
    many = 2**18 + 1  # more than are drawn at a time
    drawn = secret_noise.normals(many)
    assert drawn.shape == (many,)
    for cut in np.linspace(-3, 3, 13):
        share = NormalDist().cdf(cut)
        assert abs((drawn < cut).mean() - share) < 6 * (share * (1 - share) / many) ** 0.5
    assert abs(drawn.std() - 1) < 6 * (2 * many) ** -0.5
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 6 * many**-0.5
    assert not np.isin(drawn[:1000], secret_noise.normals(1000)).any()
    assert secret_noise.normals(0).shape == (0,)


def test_secret_noise_takes_every_bit_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr(os, "urandom", lambda n: asked.append(n) or bytes(n))
    same = secret_noise.normals(10)
    assert asked == [4 * 8 * 10]
    assert (same[0] == same).sum() > 1


def test_a_noised_sum_lies_on_a_grid_that_does_not_depend_on_it():
    total = np.random.default_rng(0).normal(size=5000)
    deviation = 0.03
    grid = 2.0**-46  # 0.03 is between 2**-6 and 2**-5
    out = secret_noise.add(total, deviation)
    assert np.array_equal(out / grid, np.rint(out / grid))
    assert (out - total).std() == pytest.approx(deviation, rel=0.05)


def test_changes_are_shortened_to_the_bound_and_those_within_it_keep_their_bits():
    rows = np.array([[3, 4, 0], [0.3, 0.4, 0], [np.nan, 1, 1], [np.inf, 0, 0]], np.float32)
    before = rows.copy()
    clip_rows(rows, 2.0)
    np.testing.assert_allclose(rows[0], [1.2, 1.6, 0], rtol=1e-6)
    assert np.array_equal(rows[1], before[1])
    assert not rows[2:].any()


# --- a round -------------------------------------------------------------------------------------


def clipped(c: int, w: float = 0.0) -> np.ndarray:
    """What a light site contributes: its change, shortened to the clip."""
    change = np.full(SIZE, -0.1 * (w - c))
    return change * min(1.0, DP["clip"] / max(1e-30, np.linalg.norm(change)))


@pytest.mark.parametrize("secure_sums", [False, True])
@pytest.mark.parametrize("spec", ["fedavg", "fedmaba", "afl"])
def test_a_round_adds_the_clipped_weighted_sum_and_the_noise(spec, secure_sums, tmp_path, counted):
    start = run_secure if secure_sums else run
    result, strategy = start(tmp_path / "s", spec, rounds=1)
    report = strategy.reports[0]
    weights = [report["sites"][f"site-{c}"]["weight"] for c in range(SITES)]
    clean = sum(w * clipped(c) for c, w in enumerate(weights))
    noise = result.arrays["w"].numpy() - clean
    said = report["privacy"]["noise on the sum"]
    assert noise.std() == pytest.approx(said, rel=0.06)
    assert abs(noise.mean()) < 4 * said / SIZE**0.5
    bound = strategy.settings.strategy.max_weight(SITES, 13 / 46)
    losses = spec != "fedavg"
    multiplier = 0.7 / (0.9**0.5 if losses else 1.0)
    rounding = strategy.settings.secure.step * SIZE**0.5 if secure_sums else 0.0
    assert said == pytest.approx(multiplier * (2 * DP["clip"] * bound + rounding))
    assert report["privacy"]["largest weight"] == pytest.approx(bound)
    assert (report["privacy"]["noise on losses"] > 0) == losses
    assert report["info"]["dp_epsilon"] == 1.0
    assert report["info"]["dp_delta"] == 1e-5


@pytest.mark.parametrize("secure_sums", [False, True])
def test_losses_are_noised_before_the_strategy_and_the_record_see_them(
    secure_sums, tmp_path, counted
):
    """The losses of the light sites are 0, 1, 4 and 9, bounded to 2."""
    seen = []

    class Told(strategies.FedMABA):
        name = "told"

        def weigh(self, state, replies):
            seen.append((replies.loss.copy(), replies.loss_noise))
            return super().weigh(state, replies)

    start = run_secure if secure_sums else run
    _, strategy = start(tmp_path / "s", Told(), rounds=1, dp={**DP, "loss_share": 0.99})
    loss, noise = seen[-1]  # those before are made up, to try the strategy
    assert noise == pytest.approx(0.7 / 0.99**0.5 * 2.0)
    assert loss.min() >= 0
    assert loss.max() <= 2.0
    assert not np.isclose(loss, [0, 1, 2, 2]).all()
    recorded = [row["loss"] for row in strategy.reports[0]["sites"].values()]
    assert recorded == loss.tolist()
    told = (tmp_path / "s" / "rounds.jsonl").read_text()
    assert "9.0" not in told


def test_the_record_says_which_generator_and_whom_sites_trust(tmp_path, counted):
    run(tmp_path / "plain", rounds=1)
    run_secure(tmp_path / "secure", rounds=1)
    told = {}
    for name in ("plain", "secure"):
        about = json.loads((tmp_path / name / "about.json").read_text())
        told[name] = about["privacy"]["fedmaba"]
        assert "os.urandom" in told[name]["generator"]
        assert told[name]["epsilon"] == 8.0
    assert "sees each change" in told["plain"]["trusted"]
    assert "sees the sum" in told["secure"]["trusted"]


def test_with_secure_sums_no_score_leaves_a_site_and_none_is_asked_for(tmp_path, counted, fed):
    from flwr.app import ConfigRecord

    from flower_sites import CONFIG, first, local_data

    scores = []

    def spoil(message, answer):
        for record in answer.content.metric_records.values():
            scores.extend(k for k in record if k in ("accuracy", "loss"))
        return answer

    for secure_sums in (False, True):
        scores.clear()
        apps = {
            c + 1: flower.client_app("mlp", local_data(fed, c), site=f"s{c}", secure=secure_sums)
            for c in range(fed.n_clients)
        }
        rule = SecureSum() if secure_sums else None
        strategy = FlowerStrategy(
            "fedmaba", min_available_nodes=5, dp=DP, secure=rule, state=tmp_path / str(secure_sums)
        )
        strategy.start(LocalGrid(apps, spoil), first(fed), 1, train_config=ConfigRecord(CONFIG))
        assert scores.count("loss") == 5
        assert scores.count("accuracy") == (0 if secure_sums else 10)  # in the round, at the end


@pytest.mark.parametrize("secure_sums", [False, True])
def test_values_that_are_not_finite_leave_nobody_out(secure_sums, tmp_path, counted, no_noise):
    """Who takes part must not depend on data: such a change is none, such a loss the largest."""

    def broken(c):
        app = ClientApp()

        def train(message, context):
            new = ArrayRecord({"w": Array(np.full(SIZE, np.nan, np.float32))})
            numbers = {"num-examples": 10 + c, "loss": float("nan")}
            return flower.reply(message, new, numbers, f"site-{c}")

        app.train(mods=[secure_mod] if secure_sums else [])(train)
        app.query()(lambda message, context: flower.reply(message, None, {}, f"site-{c}"))
        return app

    grid = grid_of([secure_mod] if secure_sums else [])
    grid.apps[98] = broken(2)
    more = {"secure": SecureSum()} if secure_sums else {}
    result, strategy = run(tmp_path / "s", grid=grid, rounds=1, **more)
    report = strategy.reports[0]
    assert report["refused"] == []
    assert report["sites"]["site-2"]["loss"] == 2.0
    weight = [report["sites"][f"site-{c}"]["weight"] for c in range(SITES)]
    want = sum(w * clipped(c) for c, w in enumerate(weight) if c != 2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), want, atol=1e-6)


def test_a_lying_loss_beyond_the_bound_is_refused_where_sites_add_the_noise(tmp_path, counted):
    def spoil(message, answer):
        if message.metadata.dst_node_id == 99 and stage_of(message) == "keys":
            answer.content["metrics"]["loss"] = 50.0
        return answer

    _, strategy = run_secure(tmp_path / "s", spoil=spoil, rounds=1)
    (line,) = strategy.reports[0]["refused"]
    assert "(site-1): loss is 50.0: it must be finite and lie in 0..2" in line


def test_weights_of_sites_that_drop_out_make_the_noise_larger(tmp_path, counted):
    spoil = lost([97], "mask")
    _, strategy = run_secure(tmp_path / "s", "fedavg", spoil=spoil, rounds=1)
    found = strategy.reports[0]["privacy"]["largest weight"]
    assert found == pytest.approx(13 / 46 / (33 / 46))  # scaled up by what site-3 held


# --- what is spent -------------------------------------------------------------------------------


def test_each_round_is_counted_for_the_sites_that_were_in_it(tmp_path, counted):
    state = tmp_path / "s"
    _, strategy = run(state, fraction_train=0.5, rounds=6)
    count = dict.fromkeys((f"site-{c}" for c in range(SITES)), 0)
    for report in strategy.reports:
        for site in report["sites"]:
            count[site] += 1
        assert report["info"]["dp_epsilon"] == max(count.values())
    assert ledger(state) == {site: many for site, many in count.items() if many}
    assert 3 <= max(count.values()) < 6


@pytest.mark.parametrize("where", ["append_lines", "save"])
def test_a_server_that_is_killed_counts_the_round_again(where, tmp_path, counted, monkeypatch):
    from fedmaba.results.run_folder import Folder

    state, usual = tmp_path / "s", getattr(Folder, where)
    calls = []

    def killed(self, *args, **more):
        calls.append(where)
        if len(calls) == 4:  # names are saved before the first round
            raise KeyboardInterrupt
        return usual(self, *args, **more)

    monkeypatch.setattr(Folder, where, killed)
    with pytest.raises(KeyboardInterrupt):
        run(state, rounds=4)
    monkeypatch.setattr(Folder, where, usual)
    before = ledger(state)["site-0"]
    done = len((state / "rounds.jsonl").read_text().splitlines())
    assert before == 3
    _, strategy = run(state, rounds=4)
    assert strategy.reports[0]["round"] == 3
    assert done in (2, 3)
    assert strategy.reports[0]["info"]["dp_epsilon"] == 4.0
    # the fourth round would be a fifth release
    assert [r["round"] for r in strategy.reports] == [3]
    assert ledger(state) == {f"site-{c}": 4 for c in range(SITES)}
    assert (state / "models" / "last.safetensors").exists()


def test_where_sites_add_noise_they_are_counted_before_they_are_asked(tmp_path, counted):
    state, at = tmp_path / "s", []

    def spoil(message, answer):
        if stage_of(message) == "keys":
            at.append(ledger(state)[f"site-{100 - message.metadata.dst_node_id}"])
        return answer

    run_secure(state, spoil=spoil, rounds=2)
    assert at == [1] * SITES + [2] * SITES


def test_a_secure_round_that_is_repeated_is_counted_again(tmp_path, counted, caplog):
    spoil, state = lost(range(97, 101), "mask", times=3), tmp_path / "s"
    _, strategy = run_secure(state, spoil=spoil, rounds=2)
    assert strategy.reports[0]["info"]["dp_epsilon"] == 2.0
    assert len(strategy.reports) == 1  # the noise was made for two
    assert ledger(state) == {f"site-{c}": 2 for c in range(SITES)}


def test_a_state_does_not_forget_what_is_spent(tmp_path, counted):
    state = tmp_path / "s"
    run(state, rounds=2)
    with pytest.raises(InputError, match=r"was begun with rounds=2, but this run has 5"):
        run(state, rounds=5)
    with pytest.raises(InputError, match="was begun with dp="):
        run(state, rounds=2, dp={**DP, "epsilon": 9.0})
    with pytest.raises(InputError, match="was begun with "):
        run(state, rounds=2, dp=None)
    kept = (state / "privacy.json").read_text()
    (state / "privacy.json").write_text(kept.replace(": 2", ": 1"))
    with pytest.raises(InputError, match=r"privacy\.json counts less than the checkpoint.*restore"):
        run(state, rounds=2)
    (state / "privacy.json").unlink()
    with pytest.raises(InputError, match="counts less than the checkpoint"):
        run(state, rounds=2)
    (state / "privacy.json").write_text("{")
    with pytest.raises(InputError, match=r"privacy\.json"):
        run(state, rounds=2)


@pytest.mark.parametrize("start", [run, run_secure])
@pytest.mark.parametrize("kept", [0, 1])
def test_lines_of_rounds_count_where_the_other_files_are_gone_or_old(
    start, kept, tmp_path, counted
):
    """Before, such a run began at 0, although rounds.jsonl beside it showed the rounds."""
    state = tmp_path / "s"
    start(state, rounds=3)
    for file in sorted((state / "checkpoint").iterdir()):
        file.unlink()
    told = json.loads((state / "privacy.json").read_text())
    (state / "privacy.json").unlink()
    if kept:  # an older copy
        old = {**told, "taken": dict.fromkeys(told["taken"], kept)}
        (state / "privacy.json").write_text(json.dumps(old))
    lines = (state / "rounds.jsonl").read_bytes()
    with pytest.raises(InputError, match=rf"counts less than rounds\.jsonl.*{kept} of 3 rounds"):
        start(state, rounds=3)
    assert (state / "rounds.jsonl").read_bytes() == lines
    (state / "rounds.jsonl").write_text('{"round": -1}\n')
    with pytest.raises(InputError, match=r"rounds\.jsonl cannot be read.*choose another"):
        start(state, rounds=3)
    (state / "rounds.jsonl").write_bytes(lines)
    (state / "privacy.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"no reply counted|No reply"):
        start(state, rounds=3)  # all is spent: nobody is asked any more


def test_other_noise_is_refused_also_before_the_first_checkpoint(tmp_path, counted, monkeypatch):
    state = tmp_path / "s"
    run(state, rounds=1)
    for file in (state / "checkpoint").iterdir():
        file.unlink()
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *_: 0.6)
    with pytest.raises(InputError, match=r"counts rounds with the noise.*version of dp-accounting"):
        run(state, rounds=1)


def test_table_and_page_show_what_is_spent(tmp_path, counted):
    run(tmp_path / "s")
    source = data.load_run_folder(tmp_path / "s")
    note = privacy_note(source.history.runs)
    assert note == "privacy of a client (its data replaced): epsilon spent 3, at delta 1e-05"
    assert any("epsilon 3 " in line for line in federation.how_far(source.federation))
    facts = dict(run_setup.setup_of(source)["facts"])
    assert "os.urandom" in facts["privacy: generator"]
    from fedmaba.report import page_data

    assert note[1:] in json.dumps(page_data.tree([source]))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("qffl", "dp: qffl is refused: it weighs by norms"),
        ("fedfv", "dp: fedfv is refused: it weighs by inner products"),
        ("fednova", r"dp: fednova is refused: it does not say how large .* \(max_weight\)"),
        ("feddyn", "dp: feddyn is refused: its clients keep vectors"),
    ],
)
def test_strategies_that_cannot_be_private_are_refused_with_the_reason(spec, why, tmp_path):
    with pytest.raises(InputError, match=why):
        FlowerStrategy(spec, dp="epsilon=8", state=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_weight_above_the_bound_ends_the_run(tmp_path, counted):
    class Bold(FedAvg):
        name = "bold"

        def max_weight(self, n, share=1.0):
            return 0.2

    for start, name in ((run, "a"), (run_secure, "b")):
        with pytest.raises(InputError, match=r"bold, round 1: weigh\(\) gave the weight 0\.28"):
            start(tmp_path / name, Bold(), rounds=1)


def test_a_private_run_needs_a_state_folder(counted):
    with pytest.raises(InputError, match=r"counted in the state folder.*give state"):
        run(None)


def test_models_with_running_statistics_are_refused(tmp_path, counted):
    both = model()
    both["bn.running_mean"] = both["w"]
    strategy = FlowerStrategy("fedavg", dp=DP, state=tmp_path / "s")
    with pytest.raises(
        InputError, match=r"dp: noise is for weights, .*running statistics.*'group'"
    ):
        strategy.start(grid_of(), both, 1)
    assert not (tmp_path / "s").exists()


def test_a_node_without_a_name_is_not_let_in(tmp_path, counted):
    grid = grid_of()
    app = ClientApp()
    app.train()(lambda message, context: None)
    grid.apps[7] = app
    _, strategy = run(tmp_path / "s", grid=grid, rounds=2)
    told = [line for report in strategy.reports for line in report["refused"]]
    assert told == ["node 7 is not let in: its app gives no name, under which privacy is counted"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("epsilon=-1", "epsilon"),
        ("epsilon", "epsilon=8,delta"),
        ({"epsilon": 8, "clips": 1}, "clips"),
        ("clip=1", "epsilon"),
    ],
)
def test_a_wrong_promise_is_refused(value, why):
    with pytest.raises(InputError, match=why):
        FlowerStrategy("fedavg", dp=value)


def test_a_promise_is_read_as_that_of_a_simulation():
    want = Privacy(8.0, 1e-6, 2.0)
    for value in ("epsilon=8,delta=1e-6,clip=2", {"epsilon": 8, "delta": 1e-6, "clip": 2}, want):
        assert read_dp(value) == want
    assert read_dp("") is read_dp(None) is read_dp("epsilon=inf") is None


def test_a_new_app_has_the_promise_in_its_settings(tmp_path):
    import tomllib

    from fedmaba.deploy.flower_app.new import new

    for name, secure_sums, dp in (("a", True, "epsilon=8, clip=0.5"), ("b", False, "")):
        new(tmp_path / name, secure_sums, dp)
        told = tomllib.loads((tmp_path / name / "pyproject.toml").read_text())
        settings = told["tool"]["flwr"]["app"]["config"]
        client = (tmp_path / name / "fairapp" / "client_app.py").read_text()
        assert settings["secure"] is ("secure=True" in client) is secure_sums
        assert settings["dp"] == dp.replace(" ", "")
        assert settings["evaluate"] is not secure_sums
        assert ("privacy" in told["project"]["dependencies"][0]) == bool(dp)
        rule = SecureSum(*(settings[k] for k in ("threshold", "clip", "bits", "most-share")))
        rule = rule if settings["secure"] else None
        losses = settings["losses"]
        made = FlowerStrategy(settings["strategy"], secure=rule, dp=settings["dp"], losses=losses)
        assert made.settings.dp == (Privacy(8.0, clip=0.5) if dp else None)
    with pytest.raises(InputError, match="epsilon"):
        new(tmp_path / "c", dp="epsilon=0")
    assert not (tmp_path / "c").exists()


def test_secure_sums_clip_as_dp_says():
    made = FlowerStrategy("fedavg", dp="epsilon=8,clip=0.25", secure=SecureSum())
    assert made.settings.secure.clip == 0.25
    with pytest.raises(InputError, match=r"dp has clip=1 and secure clip=5.*dp alone"):
        FlowerStrategy("fedavg", dp="epsilon=8", secure=SecureSum(clip=5.0))


# --- losses alone --------------------------------------------------------------------------------


def test_noised_losses_leave_the_sum_as_it_is(tmp_path, counted):
    state = tmp_path / "s"
    losses = "noised:epsilon=2,loss=2"
    rule = SecureSum(clip=100.0)
    result, strategy = run_secure(state, rule=rule, dp=None, losses=losses, rounds=1)
    report = strategy.reports[0]
    weights = [report["sites"][f"site-{c}"]["weight"] for c in range(SITES)]
    want = sum(w * np.full(SIZE, 0.1 * c) for c, w in enumerate(weights))
    np.testing.assert_allclose(result.arrays["w"].numpy(), want, atol=2e-5)
    assert report["privacy"]["noise on losses"] == pytest.approx(0.7 * 2.0)
    assert report["privacy"]["noise on the sum"] == 0.0
    told = [row["loss"] for row in report["sites"].values()]
    assert max(told) <= 2.0
    assert not np.isclose(told, [0, 1, 2, 2]).all()
    assert report["info"]["losses_epsilon"] == 1.0
    assert "dp_epsilon" not in report["info"]  # nothing is promised about the model
    assert privacy_note(data.load_run_folder(state).history.runs) == ""
    told = federation.how_far(data.load_run_folder(state).federation)
    assert (
        "Spent on losses by the busiest site: epsilon 1 at delta 1e-05. This is about losses "
        "alone: the model has no noise."
    ) in told
    assert not any("losses_epsilon" in line for line in told)
    assert ledger(state) == {f"site-{c}": 1 for c in range(SITES)}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"losses": "noised"}, r"without secure sums the server sees each site's model"),
        ({"losses": "noised", "secure": SecureSum(), "dp": "epsilon=8"}, "dp adds noise to"),
        ({"losses": "loud"}, "losses='loud': say seen, noised"),
        ({"losses": "noised:clip=2", "secure": SecureSum()}, "'clip' is none of epsilon"),
        ({"losses": "noised:epsilon=inf", "secure": SecureSum()}, "say losses='seen'"),
        ({"losses": "noised:epsilon", "secure": SecureSum()}, "write each key once"),
    ],
)
def test_wrong_settings_of_losses_are_refused(options, why):
    with pytest.raises(InputError, match=why):
        FlowerStrategy("fedmaba", **options)


def test_noised_losses_without_losses_are_refused():
    with pytest.raises(InputError, match="fedavg asks for no losses"):
        FlowerStrategy("fedavg", losses="noised", secure=SecureSum())
    assert read_losses("noised") == Privacy(8.0, loss_share=1.0)
    assert read_losses("seen") is read_losses("") is None


# --- by the accountant ---------------------------------------------------------------------------


@pytest.mark.parametrize("losses", ["", "noised:epsilon=2"])
def test_what_is_spent_is_what_dp_accounting_says(losses, tmp_path):
    dp = pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
    asked = {"losses": losses, "dp": None} if losses else {"dp": "epsilon=2"}
    _, strategy = run_secure(tmp_path / "s", **asked)
    multipliers = strategy.server.private.mechanism.releases
    assert len(multipliers) == (1 if losses else 2)
    relation = dp.NeighboringRelation.REPLACE_ONE
    name = "losses_epsilon" if losses else "dp_epsilon"
    for report in strategy.reports:
        accountant = dp.rdp.RdpAccountant(neighboring_relation=relation)
        for _ in range(report["round"]):
            for z in multipliers:
                accountant.compose(dp.GaussianDpEvent(z))
        want = accountant.get_epsilon(1e-5)
        assert report["info"][name] == pytest.approx(want, rel=1e-9)
    assert 1.99 < strategy.reports[-1]["info"][name] <= 2.0


def test_without_the_accountant_a_line_says_how_to_get_it(tmp_path, monkeypatch):
    import sys

    accounting.noise_multiplier.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install 'fedmaba\[privacy\]'"):
        run(tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_settings_without_rounds_make_no_noise():
    from fedmaba.deploy import private

    settings = FederationSettings(FedAvg(), dp=Privacy(8.0))
    with pytest.raises(InputError, match="give num_rounds"):
        private.private_rounds(settings)
