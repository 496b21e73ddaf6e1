"""Vectors that sites keep on Flower: at the site, over restarts, and the simulator's to the bit."""

import json
import logging
import os

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import ConfigRecord

from fedmaba.deploy.kept_vectors import KeptVectors, KeptVectorsTask
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app
from flower_grid import LocalGrid
from flower_sites import (
    CONFIG,
    assert_kept,
    assert_same,
    first,
    grid_of,
    local_data,
    model_of,
    served,
    simulated,
)
from plain_loop import Drifting

ROUNDS = 4
STRATEGY = Drifting()


def run(fed, grid, rounds=ROUNDS, **options):
    return served(STRATEGY, fed, grid, rounds, **options)


def kept_file(folder, c=0):
    (found,) = (folder / f"kept-{c}").glob("*.vectors")
    return found


def same_as_simulator(strategy, result, folder, fed):
    batch, _ = simulated(STRATEGY, fed, ROUNDS)
    assert_same(result.arrays, model_of(batch))
    assert_kept(strategy, folder, batch, model_of(batch))


@pytest.mark.parametrize("died_at", [6, 8, 14])
def test_a_server_that_died_repeats_the_round_with_the_same_vectors(died_at, fed, tmp_path):
    _, whole = run(fed, grid_of(fed, tmp_path / "whole"))
    asked = []

    def die(message, answer):
        if message.metadata.message_type == "train":
            asked.append(message)
            if len(asked) == died_at:
                raise SystemExit  # as if the server's process were gone
        return answer

    # the sites are other processes each time, too: nothing but their folders stays
    state = {"state": tmp_path / "state"}
    with pytest.raises(SystemExit):
        run(fed, grid_of(fed, tmp_path / "part", die), **state)
    strategy, result = run(fed, grid_of(fed, tmp_path / "part"), **state)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(result.arrays[name].numpy(), array.numpy())
    same_as_simulator(strategy, result, tmp_path / "part", fed)


def test_a_message_that_comes_twice_changes_nothing(fed, tmp_path):
    grid = grid_of(fed, tmp_path)
    answer = grid.answer
    grid.answer = lambda message: (answer(message), answer(message))[1]
    strategy, result = run(fed, grid)
    same_as_simulator(strategy, result, tmp_path, fed)


def test_after_a_reply_that_did_not_count_a_site_goes_on_from_the_last_that_did(fed, tmp_path):
    lost = []

    def lose(message, answer):
        if message.metadata.message_type != "train":
            return answer
        if message.metadata.dst_node_id == 1000 and message.content["config"]["server-round"] == 2:
            lost.append(kept_file(tmp_path).read_bytes())
            answer.content["metrics"]["num-examples"] = -1
        return answer

    strategy, _ = run(fed, grid_of(fed, tmp_path, lose), 2)
    assert len(lost) == 1
    assert strategy.server.last_counted == {"site-0": 1} | {f"site-{c}": 2 for c in range(1, 5)}
    weights = {n: a.numpy() for n, a in first(fed).items()}
    assert_kept(strategy, tmp_path, simulated(STRATEGY, fed, 1)[0], weights, sites=[0])


def test_no_kept_vector_leaves_its_site(fed, tmp_path):
    replies = []

    def watch(message, answer):
        replies.append(answer)
        return answer

    grid = grid_of(fed, tmp_path, watch)
    run(fed, grid)
    found = [
        a.numpy() for r in replies if "arrays" in r.content for a in r.content["arrays"].values()
    ]
    assert found
    for c in range(fed.n_clients):
        body = kept_file(tmp_path, c).read_bytes()
        for array in found:
            # biases that have not moved may agree by chance; nothing else does
            assert array.size < 20 or array.astype("<f4").tobytes() not in body
    for message in grid.sent:
        assert list(message.content.get("arrays", {})) in ([], list(first(fed)))


def test_the_files_are_the_sites_alone(fed, tmp_path):
    before = os.umask(0o022)
    try:
        run(fed, grid_of(fed, tmp_path), 1)
    finally:
        os.umask(before)
    assert (tmp_path / "kept-0").stat().st_mode & 0o777 == 0o700
    assert kept_file(tmp_path).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "kept-0").iterdir()] == [kept_file(tmp_path).name]


def test_the_vectors_of_another_federation_are_never_used(fed, tmp_path, caplog):
    run(fed, grid_of(fed, tmp_path))
    with caplog.at_level(logging.INFO, "flwr"):
        _, again = run(fed, grid_of(fed, tmp_path))
    assert_same(again.arrays, model_of(simulated(STRATEGY, fed, ROUNDS)[0]))
    assert "start from zero" in caplog.text
    assert len(list((tmp_path / "kept-0").glob("site-0-*.vectors"))) == 2


def refusals(fed, grid, **options):
    strategy, _ = run(fed, grid, **options)
    return strategy.reports[-1]["refused"]


def test_a_site_without_a_folder_says_so(fed, tmp_path):
    grid = grid_of(fed, tmp_path)
    del grid.config[1000]
    (line,) = refusals(fed, grid, rounds=1)
    assert "site-0" in line
    assert "no folder for them" in line


@pytest.mark.parametrize("harm", ["cut", "changed", "empty", "a folder"])
def test_a_damaged_file_is_one_line_at_its_site(harm, fed, tmp_path):
    options = {"state": tmp_path / "state"}
    run(fed, grid_of(fed, tmp_path), 2, **options)
    file = kept_file(tmp_path)
    body = file.read_bytes()
    file.unlink()
    if harm == "a folder":
        file.mkdir()
    else:
        changed = bytes([body[-1] ^ 1])
        file.write_bytes({"cut": body[:-5], "changed": body[:-1] + changed, "empty": b""}[harm])
    (line,) = refusals(fed, grid_of(fed, tmp_path), rounds=3, **options)
    assert "node 1000 (site-0): it failed: the kept vectors of this site are damaged" in line
    store = KeptVectors(tmp_path / "kept-0", "site-0")
    told = KeptVectorsTask(file.stem.removeprefix("site-0-"), 3, 2)
    with pytest.raises(InputError, match=r"are damaged \(.*delete it: then") as error:
        store.load(told, {"h": {}, "g": {}})
    assert "\n" not in str(error.value)


def test_a_file_that_is_gone_is_said_and_the_site_goes_on(fed, tmp_path, caplog):
    options = {"state": tmp_path / "state"}
    run(fed, grid_of(fed, tmp_path), 2, **options)
    kept_file(tmp_path).unlink()
    with caplog.at_level(logging.WARNING, "flwr"):
        strategy, _ = run(fed, grid_of(fed, tmp_path), 3, **options)
    assert strategy.reports[-1]["refused"] == []
    assert "counted in round 2, but its kept vectors are gone" in caplog.text


ONE = {"w": np.ones(3, np.float32)}


def stored(folder):
    store, told = KeptVectors(folder / "kept", "a"), KeptVectorsTask("0" * 32, 5, 4)
    store.save(told, {"h/x": ONE}, {"h/x": {"w": 2 * ONE["w"]}})
    return store


def test_each_round_is_found_again(tmp_path):
    store = stored(tmp_path)
    for counted, value in ((4, 1), (5, 2), (0, 0)):
        found = store.load(KeptVectorsTask("0" * 32, 6, counted), {"h/x": {"w": 0 * ONE["w"]}})
        np.testing.assert_array_equal(found["h/x"]["w"], np.full(3, value, np.float32))


def test_what_the_file_does_not_hold_is_refused(tmp_path):
    store = stored(tmp_path)
    with pytest.raises(InputError, match="rounds 4 and 5, but the server goes on from round 3"):
        store.load(KeptVectorsTask("0" * 32, 4, 3), {"h/x": ONE})
    for other in {"g": ONE}, {"h/x": {"w": np.ones(4, np.float32)}}:
        with pytest.raises(InputError, match="of another model or strategy"):
            store.load(KeptVectorsTask("0" * 32, 6, 5), other)


@pytest.mark.parametrize(
    "task",
    [
        {},
        {"federation": "../../etc", "server-round": 1, "kept-round": 0},
        {"federation": "0" * 32, "server-round": 1},
        {"federation": "0" * 32, "server-round": 1, "kept-round": -1},
    ],
)
def test_a_message_without_federation_and_rounds_is_refused(task):
    with pytest.raises(InputError, match="use the same version of fedmaba on all hosts"):
        KeptVectorsTask.from_task(task)


def test_a_name_that_is_no_file_name_is_refused(tmp_path):
    with pytest.raises(InputError, match="give a name of letters"):
        KeptVectors(tmp_path, "../a").load(KeptVectorsTask("0" * 32, 1, 0), {"h": ONE})


def test_the_id_of_a_federation_stays_and_old_states_load(fed, tmp_path):
    from fedmaba.results import run_folder
    from fedmaba.results.history import History

    state = tmp_path / "state"
    one, _ = run(fed, grid_of(fed, tmp_path), 1, state=state)
    two, _ = run(fed, grid_of(fed, tmp_path), 2, state=state)
    assert two.server.federation == one.server.federation
    other, _ = run(fed, grid_of(fed, tmp_path), 1, state=tmp_path / "other")
    assert other.server.federation != one.server.federation
    arrays, meta, _ = run_folder.load_checkpoint(state)
    old = {k: v for k, v in meta.items() if k not in ("federation", "last_counted")}
    folder = run_folder.Folder(state)
    folder.lines = meta["lines"]
    folder.save(2, arrays, old, History([]))
    folder.close()
    three, _ = run(fed, grid_of(fed, tmp_path), 3, state=state)
    assert three.server.federation != one.server.federation
    assert three.server.last_counted == {f"site-{c}": 3 for c in range(5)}


def test_a_strategy_that_keeps_nothing_sends_no_id(fed, tmp_path):
    grid = LocalGrid({1: client_app("mlp", local_data(fed, 0), site="a")})
    strategy = FlowerStrategy("fedprox", min_available_nodes=1, evaluate=False)
    strategy.start(grid, first(fed), 1, train_config=ConfigRecord(CONFIG))
    config = grid.sent[-1].content["config"]
    assert not {"federation", "kept-round"} & set(config)
    assert json.loads(config["local"])["prox"] > 0
