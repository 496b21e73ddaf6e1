"""SCAFFOLD, Ditto and local training on Flower: what a site keeps is what the simulator's keeps."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ArrayRecord
from flwr.clientapp.mod import LocalDpMod

from fedmaba.deploy import messages
from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask
from fedmaba.errors import InputError
from fedmaba.flower import client_app
from flower_sites import (
    assert_same,
    first,
    grid_of,
    local_data,
    model_of,
    named,
    served,
    simulated,
)
from test_flower_kept_vectors import kept_file

HALF = {"fraction_train": 0.6, "seed": 3}  # 3 of 5 sites in each round


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(messages, "log", lambda level, text, *rest: lines.append(text % rest))
    return lines


@pytest.mark.parametrize("spec", ["ditto", "moon"])
def test_a_site_whose_first_round_comes_late_begins_as_all_began(spec, fed, tmp_path):
    grid = grid_of(fed, tmp_path)
    served(spec, fed, grid, **HALF)
    asked = [m.content["config"] for m in grid.sent if m.metadata.message_type == "train"]
    late = [task for task in asked if "first-model" in task]
    assert late  # else this test would show nothing
    assert all(task["kept-round"] == 0 and task["server-round"] > 1 for task in late)
    again = grid_of(fed, tmp_path / "alone")
    served("local", fed, again, **HALF)
    assert not any("first-model" in m.content.get("config", {}) for m in again.sent)


def sent_by(answer):
    return {n: a.numpy() for n, a in answer.content.get("arrays", {}).items()}


def test_scaffolds_sites_send_how_their_control_changed_and_nothing_more(fed, tmp_path):
    replies = []

    def watch(message, answer):
        replies.append((sent_by(message), sent_by(answer)))
        return answer

    served("scaffold", fed, grid_of(fed, tmp_path, watch), 1)
    names = {*first(fed), *(f"mean/0/{n}" for n in first(fed))}
    trained = [(asked, sent) for asked, sent in replies if sent]
    assert len(trained) == 5
    assert all(set(asked) == set(sent) == names for asked, sent in trained)
    weights = {n: a.numpy() for n, a in first(fed).items()}
    batch, _ = simulated("scaffold", fed, 1)
    control = batch.progress.memory.columns[0]["c"]
    moved = [
        {n: sent[f"mean/0/{n}"] - asked[f"mean/0/{n}"] for n in weights} for asked, sent in trained
    ]
    # in the first round the control before is 0, so its change is the control
    for c in range(fed.n_clients):
        want = named(batch, control[c])
        found = [all(np.allclose(m[n], want[n], atol=1e-5) for n in m) for m in moved]
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
    strategy, _ = served("scaffold", fed, grid, 1)
    assert strategy.reports[-1]["refused"] == []
    change = [told["sent"][n] - told["asked"][n] for n in told["asked"]]
    assert 0 < sum(float((c.astype(float) ** 2).sum()) for c in change) <= 1.001e-6


def test_sites_report_their_own_models(fed, tmp_path, said):
    strategy, _ = served("ditto:lam=0.1", fed, grid_of(fed, tmp_path), evaluate=True)
    found = simulated("ditto:lam=0.1", fed)[1].evaluations[0]
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
    served(spec, fed, grid_of(fed, tmp_path), 1, **options)
    kept_file(tmp_path).unlink()
    strategy, _ = served(spec, fed, grid_of(fed, tmp_path), 2, **options)
    (line,) = strategy.reports[-1]["refused"]
    assert "node 1000 (site-0): it failed: a reply of this site counted in round 1" in line
    assert any("left out of round 2" in text and "kept vectors are gone" in text for text in said)
    assert "site-0" not in strategy.reports[-1]["sites"]


def test_a_lost_model_starts_anew_and_both_say_so(fed, tmp_path, caplog, said):
    options = {"state": tmp_path / "state"}
    served("ditto", fed, grid_of(fed, tmp_path), 2, **options)
    kept_file(tmp_path).unlink()
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy, result = served("ditto", fed, grid_of(fed, tmp_path), 3, **options)
    assert "its kept vectors are gone, so they start anew" in caplog.text
    assert strategy.reports[-1]["started_anew"] == ["site-0"]
    assert "site-0 lost what it kept, so it started anew in this round" in said
    assert "personal" not in strategy.reports[-1]["sites"]["site-0"]
    assert_same(
        result.arrays, model_of(simulated("ditto", fed)[0])
    )  # what is its own changes nothing for the others


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

    strategy, _ = served("scaffold", fed, grid_of(fed, tmp_path, forget), 1)
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
    strategy, _ = served("scaffold", fed, grid, 1)
    (line,) = [line for line in strategy.reports[-1]["refused"] if "node 1000" in line]
    assert "has no means of kept vectors that fit this site's model" in line
