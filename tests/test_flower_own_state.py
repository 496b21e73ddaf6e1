"""SCAFFOLD, Ditto and local training on Flower: what a site keeps is what the simulator's keeps."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp.mod import LocalDpMod

from fedmaba.deploy import messages, reply_fetching
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask
from fedmaba.deploy.settings import FederationSettings
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app
from fedmaba.simulation import engine
from flower_sites import CONFIG, assert_same, first, local_data
from plain_loop import one
from test_flower_kept_vectors import grid_of, kept_file

SPECS = (
    "scaffold",
    "scaffold:option=I",
    "ditto:lam=0.1",
    "ditto:lam=0,server=fedmaba",
    "ditto:server=scaffold",
    "local",
    "eagle:lam=3",
    "moon",
)
HALF = {"fraction_train": 0.6, "seed": 3}  # 3 of 5 sites in each round


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.001)


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(messages, "log", lambda level, text, *rest: lines.append(text % rest))
    return lines


def run(spec, fed, grid, rounds=3, **options):
    options = {"min_available_nodes": 5, "evaluate": False, **options}
    strategy = FlowerStrategy(one(spec), **options)
    weights = first(fed, seed=options.get("seed", 0))
    return strategy, strategy.start(grid, weights, rounds, 5, train_config=ConfigRecord(CONFIG))


def simulated(spec, fed, participants=None, rounds=3, seed=0):
    """The simulator's model, what each client keeps, and its own accuracy."""
    plan = engine.Plan(rounds, participants, minibatch=4, eval_every=rounds)
    batch = engine.start([engine.Run(one(spec), seed, fed)], plan, "mlp")
    *_, last = engine.simulate(batch)
    assert not any(batch.progress.diverged)
    at, unpack = batch.progress, batch.rows.layout.unpack
    kept = {
        (name, c): {n: w.numpy() for n, w in unpack(vectors[c]).items()}
        for name, vectors in at.memory.columns[0].items()
        for c in range(fed.n_clients)
    }
    return {n: w.numpy() for n, w in unpack(at.model[0]).items()}, kept, last.evaluations[0]


def kept_by(strategy, folder, c, weights):
    server, local = strategy.server, strategy.settings.strategy.local()
    told = KeptVectorsTask(
        server.federation, server.round + 1, server.last_counted.get(f"site-{c}", 0)
    )
    zeros = {n: np.zeros_like(w) for n, w in weights.items()}
    first = dict.fromkeys(local.keep, zeros) | dict.fromkeys(local.models_kept, weights)
    return KeptVectors(folder / f"kept-{c}", f"site-{c}").load(told, first)


def assert_kept(strategy, folder, kept, weights):
    sites = {c for _, c in kept}
    assert sites
    for c in sites:
        mine = kept_by(strategy, folder, c, weights)
        assert set(mine) == {name for name, _ in kept}
        for name, vector in mine.items():
            for weight, value in vector.items():
                np.testing.assert_allclose(value, kept[name, c][weight], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, HALF], ids=["all sites", "some sites"])
@pytest.mark.parametrize("spec", SPECS)
def test_models_and_what_sites_keep_are_the_simulators(spec, options, fed, tmp_path):
    strategy, result = run(spec, fed, grid_of(fed, tmp_path), **options)
    some = {"participants": 3, "seed": 3} if options else {}
    model, kept, _ = simulated(spec, fed, **some)
    assert_same(result.arrays, model)
    started = {n: a.numpy() for n, a in first(fed, seed=options.get("seed", 0)).items()}
    assert_kept(strategy, tmp_path, kept, started)


@pytest.mark.parametrize("spec", ["ditto", "moon"])
def test_a_site_whose_first_round_comes_late_begins_as_all_began(spec, fed, tmp_path):
    grid = grid_of(fed, tmp_path)
    run(spec, fed, grid, **HALF)
    asked = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    late = [task for task in asked if "first-model" in task]
    assert late  # else this test would show nothing
    assert all(task["kept-round"] == 0 and task["server-round"] > 1 for task in late)
    again = grid_of(fed, tmp_path / "alone")
    run("local", fed, again, **HALF)
    assert not any("first-model" in m.content.get("config", {}) for m in again.sent)


@pytest.mark.parametrize("spec", ["scaffold", "ditto"])
def test_a_server_that_died_repeats_the_round_to_the_same_bits(spec, fed, tmp_path):
    _, whole = run(spec, fed, grid_of(fed, tmp_path / "whole"), **HALF)
    asked = []

    def die(message, answer):
        asked.append(message.metadata.message_type == "train")
        if sum(asked) == 5:
            raise SystemExit  # as if the server's process were gone
        return answer

    options = {"state": tmp_path / "state", **HALF}
    with pytest.raises(SystemExit):
        run(spec, fed, grid_of(fed, tmp_path / "part", die), **options)
    _, result = run(spec, fed, grid_of(fed, tmp_path / "part"), **options)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())


def sent_by(answer):
    return {n: a.numpy() for n, a in answer.content.get("arrays", {}).items()}


def test_a_personal_model_never_leaves_its_site(fed, tmp_path):
    replies = []
    grid = grid_of(fed, tmp_path, lambda _, answer: replies.append(sent_by(answer)) or answer)
    run("ditto", fed, grid)
    names = set(first(fed))
    assert {frozenset(sent) for sent in replies if sent} == {frozenset(names)}
    bodies = [kept_file(tmp_path, c).read_bytes() for c in range(fed.n_clients)]
    large = [a for sent in replies for a in sent.values() if a.size >= 20]
    assert large
    assert not any(a.astype("<f4").tobytes() in body for a in large for body in bodies)


def test_scaffolds_sites_send_how_their_control_changed_and_nothing_more(fed, tmp_path):
    replies = []

    def watch(message, answer):
        replies.append((sent_by(message), sent_by(answer)))
        return answer

    run("scaffold", fed, grid_of(fed, tmp_path, watch), 1)
    names = {*first(fed), *(f"mean/0/{n}" for n in first(fed))}
    trained = [(asked, sent) for asked, sent in replies if sent]
    assert len(trained) == 5
    assert all(set(asked) == set(sent) == names for asked, sent in trained)
    weights = {n: a.numpy() for n, a in first(fed).items()}
    _, kept, _ = simulated("scaffold", fed, rounds=1)
    moved = [
        {n: sent[f"mean/0/{n}"] - asked[f"mean/0/{n}"] for n in weights} for asked, sent in trained
    ]
    # in the first round the control before is 0, so its change is the control
    for c in range(fed.n_clients):
        found = [all(np.allclose(m[n], kept["c", c][n], atol=1e-5) for n in m) for m in moved]
        assert sum(found) == 1


def test_noise_of_a_mod_reaches_all_that_a_site_sends(fed, tmp_path):
    """It is one record of arrays, so Flower's mods clip both changes at once."""
    mod = LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=0.1)
    grid = grid_of(fed, tmp_path)
    grid.apps[1000] = client_app("mlp", local_data(fed, 0), site="site-0", mods=[mod])
    told = {}

    def watch(message, answer):
        if message.metadata.dst_node_id == 1000 and sent_by(answer):
            told.update(asked=sent_by(message), sent=sent_by(answer))
        return answer

    grid.spoil = watch
    strategy, _ = run("scaffold", fed, grid, 1)
    assert strategy.reports[-1]["refused"] == []
    change = [told["sent"][n] - told["asked"][n] for n in told["asked"]]
    assert 0 < sum(float((c.astype(float) ** 2).sum()) for c in change) <= 1.001e-6


def test_sites_report_their_own_models(fed, tmp_path, said):
    strategy, _ = run("ditto:lam=0.1", fed, grid_of(fed, tmp_path), evaluate=True)
    *_, found = simulated("ditto:lam=0.1", fed)
    final = strategy.reports[-1]
    assert set(final["sites"]) == {f"site-{c}" for c in range(5)}
    assert all(0 <= row["personal"] <= 1 for row in final["sites"].values())
    assert "personal" not in strategy.reports[0]["sites"]["site-0"]  # nobody has one yet
    wanted = {f"site-{c}": v for c, v in enumerate(found["personal"].accuracy)}
    lines = [line for line in said if ", own model " in line and "accuracy" in line]
    assert len(lines) == 5
    for line in lines:
        site, own = line.split()[0], float(line.split("own model")[1].rstrip(" %"))
        assert own == pytest.approx(100 * wanted[site], abs=0.06)


@pytest.mark.parametrize("spec", ["scaffold", "feddyn"])
def test_a_lost_vector_that_the_servers_mean_has_is_refused(spec, fed, tmp_path, said):
    options = {"state": tmp_path / "state"}
    run(spec, fed, grid_of(fed, tmp_path), 1, **options)
    kept_file(tmp_path).unlink()
    strategy, _ = run(spec, fed, grid_of(fed, tmp_path), 2, **options)
    (line,) = strategy.reports[-1]["refused"]
    assert "node 1000 (site-0): it failed: a reply of this site counted in round 1" in line
    assert any("left out of round 2" in text and "kept vectors are gone" in text for text in said)
    assert "site-0" not in strategy.reports[-1]["sites"]


def test_the_remedy_for_a_lost_vector_works(fed, tmp_path):
    options = {"state": tmp_path / "state"}
    run("scaffold", fed, grid_of(fed, tmp_path), 1, **options)
    kept_file(tmp_path).unlink()
    grid = grid_of(fed, tmp_path)
    del grid.apps[1000]
    grid.apps[2000] = client_app("mlp", local_data(fed, 0), site="site-0b")
    grid.config[2000] = grid.config[1000]
    strategy, _ = run("scaffold", fed, grid, 2, **options)
    assert strategy.reports[-1]["refused"] == []
    assert "site-0b" in strategy.reports[-1]["sites"]


def test_a_lost_model_starts_anew_and_both_say_so(fed, tmp_path, caplog, said):
    options = {"state": tmp_path / "state"}
    run("ditto", fed, grid_of(fed, tmp_path), 2, **options)
    kept_file(tmp_path).unlink()
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy, result = run("ditto", fed, grid_of(fed, tmp_path), 3, **options)
    assert "its kept vectors are gone, so they start anew" in caplog.text
    assert strategy.reports[-1]["started_anew"] == ["site-0"]
    assert "site-0 lost what it kept, so it started anew in this round" in said
    assert "personal" not in strategy.reports[-1]["sites"]["site-0"]
    model, _, _ = simulated("ditto", fed)
    assert_same(result.arrays, model)  # what is its own changes nothing for the others


def test_a_file_of_another_federation_is_not_used_under_its_name(fed, tmp_path):
    store, one_ = KeptVectors(tmp_path / "kept", "a"), {"w": np.ones(3, np.float32)}
    store.save(KeptVectorsTask("0" * 32, 5, 4), {"h": one_}, {"h": one_})
    (file,) = (tmp_path / "kept").iterdir()
    file.rename(file.with_name(file.name.replace("0" * 32, "1" * 32)))
    with pytest.raises(InputError, match=r"damaged \(it is of another federation\)"):
        store.load(KeptVectorsTask("1" * 32, 6, 5), {"h": one_})


def test_nothing_is_written_or_read_through_a_link(tmp_path):
    store, one_ = KeptVectors(tmp_path / "kept", "a"), {"w": np.ones(3, np.float32)}
    told = KeptVectorsTask("0" * 32, 5, 4)
    (tmp_path / "kept").mkdir()
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    file = tmp_path / "kept" / f"a-{'0' * 32}.vectors"
    file.symlink_to(other)
    with pytest.raises(InputError, match="damaged"):
        store.load(told, {"h": one_})
    store.save(told, {"h": one_}, {"h": one_})
    assert other.read_bytes() == b"mine"
    assert not file.is_symlink()


def test_a_reply_without_the_means_is_left_out(fed, tmp_path):
    def forget(message, answer):
        if message.metadata.dst_node_id == 1000 and sent_by(answer):
            for name in [n for n in answer.content["arrays"] if n.startswith("mean/")]:
                del answer.content["arrays"][name]
        return answer

    strategy, _ = run("scaffold", fed, grid_of(fed, tmp_path, forget), 1)
    (line,) = strategy.reports[-1]["refused"]
    assert "site-0" in line
    assert "arrays missing: mean/0/" in line


def test_a_server_that_sends_no_mean_is_refused_by_the_site(fed, tmp_path):
    grid = grid_of(fed, tmp_path)
    answer = grid.answer

    def forget(message):
        if message.metadata.dst_node_id == 1000 and "arrays" in message.content:
            sent = message.content["arrays"].items()  # the same record goes to all sites
            message.content["arrays"] = ArrayRecord({n: a for n, a in sent if "mean/" not in n})
        return answer(message)

    grid.answer = forget
    strategy, _ = run("scaffold", fed, grid, 1)
    (line,) = [line for line in strategy.reports[-1]["refused"] if "node 1000" in line]
    assert "has no means of kept vectors that fit this site's model" in line


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("scaffold", {"batchnorm": "local"}, "a part of it never leaves them"),
        ("scaffold", {"secure": True}, "asks sites for more than a loss and a change"),
        ("feddyn", {"secure": True}, "asks sites for more than a loss and a change"),
    ],
)
def test_what_cannot_work_is_one_line(spec, options, why):
    from fedmaba.deploy.secure import SecureSum

    options = {k: SecureSum() if k == "secure" else v for k, v in options.items()}
    with pytest.raises(InputError, match=why):
        FederationSettings(one(spec), **options)
    FederationSettings(one("ditto"), **options)  # what stays at the site is no obstacle
