"""A site's name belongs to one node: the operator's list, or the first to give it, for good."""

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes

from fedmaba import flower
from fedmaba.deploy import messages
from fedmaba.deploy.site_names import read_sites
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy
from fedmaba.results.state_folder import read_rounds
from flower_grid import LocalGrid, light_app, light_model

KEYS = {c: public_key_to_bytes(generate_key_pairs()[1]) for c in range(5)}


def mark(key: bytes) -> str:
    """The fingerprint that a node with this key is known by."""
    return flower.as_node(NodeInfo(node_id=1, public_key=key)).key


@pytest.fixture
def said(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(messages, "log", lambda level, text, *rest: lines.append(text % rest))
    return lines


def grid_of(sites: dict[int, int], known: dict[int, dict] | None = None) -> LocalGrid:
    """Nodes by id that say they are site-c."""
    grid = LocalGrid({node: light_app(c) for node, c in sites.items()})
    grid.known = known or {}
    return grid


def strategy(least=2, **options) -> FlowerStrategy:
    return FlowerStrategy("fedmaba", min_available_nodes=least, evaluate=False, **options)


def run(strategy: FlowerStrategy, grid: LocalGrid, rounds: int) -> dict:
    """The report of the last round."""
    strategy.start(grid, light_model(), rounds, timeout=5)
    return strategy.reports[-1]


def test_a_key_is_known_by_the_fingerprint_that_openssh_prints(tmp_path):
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", "north"]
    subprocess.run(make, cwd=tmp_path, check=True)
    printed = subprocess.run(
        ["ssh-keygen", "-lf", "north.pub"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout.split()[1]
    key = public_key_to_bytes(load_ssh_public_key((tmp_path / "north.pub").read_bytes()))
    assert mark(key) == printed
    assert read_sites({"north": printed}).listed == {"north": printed}


@pytest.mark.parametrize("away", [False, True])
def test_the_first_node_keeps_a_name_also_while_it_is_away(away, said):
    grid, first = grid_of({10: 0, 11: 1}), strategy()
    run(first, grid, 1)
    if away:
        del grid.apps[11]
        grid.apps[12] = light_app(2)
        run(first, grid, 2)
    grid.apps[5] = light_app(1)  # a smaller node id
    report = run(first, grid, first.server.round + 1)
    assert first.site_names.owners["site-1"] == "node 11"
    assert 5 not in first.asked
    (why,) = [line for line in said if "not let in" in line]
    assert "node 5 is not let in: site 'site-1' belongs to node 11" in why
    assert "list all sites in the file of `sites`, here site-1 = 5" in why
    assert why in report["refused"]
    grid.apps[11] = light_app(1)  # the rightful one is not shut out
    assert "site-1" in run(first, grid, first.server.round + 1)["sites"]


def test_a_name_is_kept_over_a_restart(tmp_path):
    run(strategy(state=tmp_path), grid_of({10: 0, 11: 1}), 1)
    thief = strategy(state=tmp_path, min_train_nodes=1, least=1)
    report = run(thief, grid_of({10: 0, 5: 1}), 2)
    assert list(report["sites"]) == ["site-0"]
    assert "belongs to node 11" in report["refused"][0]
    back = strategy(state=tmp_path)
    assert list(run(back, grid_of({10: 0, 11: 1}), 3)["sites"]) == ["site-0", "site-1"]


def test_a_name_is_kept_over_a_crash_in_the_first_round(tmp_path):
    grid = grid_of({10: 0, 11: 1})

    def die(message, answer):
        if message.metadata.message_type == "train":
            raise SystemExit
        return answer

    grid.spoil = die
    with pytest.raises(SystemExit):
        run(strategy(state=tmp_path), grid, 1)
    report = run(strategy(state=tmp_path, least=1), grid_of({10: 0, 5: 1}), 1)
    assert "site 'site-1' belongs to node 11" in report["refused"][0]
    assert [change["site"] for change in report["names"]] == ["site-0", "site-1"]  # not lost


def test_who_waits_in_vain_is_told_who_was_turned_away(tmp_path):
    run(strategy(state=tmp_path), grid_of({10: 0, 11: 1}), 1)
    thief = strategy(state=tmp_path, wait=0.05)
    with pytest.raises(InputError, match=r"1 sites after .*\(node 5 is not let in: site 'site-1'"):
        run(thief, grid_of({10: 0, 5: 1}), 2)


def test_a_name_given_while_others_are_waited_for_is_kept(tmp_path):
    with pytest.raises(InputError, match=r"1 sites after .*, but 2 are needed: start more"):
        run(strategy(state=tmp_path, wait=0.05), grid_of({11: 1}), 1)
    report = run(strategy(state=tmp_path), grid_of({10: 0, 5: 1, 12: 2}), 1)
    assert "site 'site-1' belongs to node 11" in report["refused"][0]


def test_changes_are_logged_and_recorded(tmp_path, said):
    ran = strategy(state=tmp_path)
    run(ran, grid_of({10: 0, 11: 1}, {10: {"public_key": KEYS[0]}}), 2)
    first, second = read_rounds(tmp_path, 0)
    assert first["names"] == [
        {"site": "site-0", "node": "10", "id": mark(KEYS[0]), "before": None},
        {"site": "site-1", "node": "11", "id": "node 11", "before": None},
    ]
    assert "names" not in second
    assert f"site 'site-0' is {mark(KEYS[0])}" in said


def test_a_key_keeps_its_name_as_another_node():
    """Flower gives a key that is registered again another node id."""
    known = {"public_key": KEYS[1]}
    grid, ran = grid_of({10: 0, 11: 1}, {11: known}), strategy()
    run(ran, grid, 1)
    del grid.apps[11]
    grid.apps[12], grid.known = light_app(1), {12: known}
    assert "site-1" in run(ran, grid, 2)["sites"]
    grid.known = {12: {"public_key": KEYS[2]}}  # the same node id says nothing where there are keys
    assert "site-1" not in run(ran, grid, 3)["sites"]


# the operator's list


def listed(path, **sites) -> str:
    lines = [f'{n.replace("_", "-")} = {v if isinstance(v, int) else repr(v)}' for n, v in
             sites.items()]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_list_says_who_is_who_whoever_comes_first(tmp_path, said):
    file = listed(tmp_path / "sites.toml", site_0=mark(KEYS[0]), site_1=mark(KEYS[1]))
    grid = grid_of({5: 0, 6: 2}, {5: {"public_key": KEYS[3]}, 6: {"public_key": KEYS[2]}})
    grid.apps |= {10: light_app(0), 11: light_app(1)}
    grid.known |= {10: {"public_key": KEYS[0]}, 11: {"public_key": KEYS[1]}}
    ran = strategy(sites=file)
    report = run(ran, grid, 1)
    assert list(report["sites"]) == ["site-0", "site-1"]
    assert set(ran.asked) == {10, 11}
    assert {m.metadata.dst_node_id for m in grid.sent} == {10, 11}  # strangers get no message
    assert f"node 5 is not let in: {mark(KEYS[3])} is not in {file}" in report["refused"][0]
    assert len(report["refused"]) == 2


def test_a_listed_node_that_calls_itself_something_else_does_not_count(tmp_path):
    file = listed(tmp_path / "sites.toml", site_0=10, site_1=11)
    report = run(strategy(sites=file), grid_of({10: 0, 11: 2}), 1)
    assert list(report["sites"]) == ["site-0"]
    assert "it says site 'site-2', but this node is 'site-1'" in report["refused"][0]


def test_a_list_says_how_many_examples_a_site_may_claim():
    known = {10: {"public_key": KEYS[0]}, 11: {"public_key": KEYS[1]}}
    few = {"site-0": {"key": mark(KEYS[0]), "examples": 1}, "site-1": mark(KEYS[1])}
    report = run(strategy(sites=few), grid_of({10: 0, 11: 1}, known), 1)
    assert list(report["sites"]) == ["site-1"]
    assert "it must lie in 1..1" in report["refused"][0]
    few["site-0"]["examples"] = 0
    with pytest.raises(InputError, match="say a count from 1"):
        strategy(sites=few)


def test_a_list_reassigns_a_name(tmp_path, said):
    state = tmp_path / "state"
    run(strategy(state=state), grid_of({10: 0, 11: 1}), 1)
    file = listed(tmp_path / "sites.toml", site_0=10, site_1=12)
    ran = strategy(state=state, sites=file)
    report = run(ran, grid_of({10: 0, 11: 1, 12: 1}), 2)
    assert set(ran.asked) == {10, 12}
    assert report["names"] == [
        {"site": "site-1", "node": "12", "id": "node 12", "before": "node 11"}
    ]
    assert "site 'site-1' is node 12, no longer node 11" in said
    without = strategy(state=state)  # and stays so without the list
    run(without, grid_of({10: 0, 11: 1, 12: 1}), 3)
    assert set(without.asked) == {10, 12}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("north", "Expected '='"),
        ("north = 'abc'", "north = 'abc'"),
        ("north = true", "north = 'True'"),
        ("north = -1", "north = '-1'"),
        ("north.west = 5", "north = "),
        ('"no\\nrth" = 5', r"no\?rth = '5'"),
        ("north = 5\nsouth = 5", "node 5 stands for two sites"),
        ("", "names no site"),
        ("north = 5", "names 1 sites, but min_available_nodes=2"),
    ],
)  # fmt: skip
def test_a_bad_list_is_refused_in_one_line(text, said, tmp_path):
    (tmp_path / "sites.toml").write_text(text)
    with pytest.raises(InputError, match=said) as error:
        strategy(sites=tmp_path / "sites.toml")
    assert str(error.value).isprintable()
    assert "sites.toml" in str(error.value)


def test_a_list_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        strategy(sites=tmp_path / "nowhere.toml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="give a TOML file"):
        strategy(sites=tmp_path / "bytes")


def test_the_list_of_the_docs_is_one(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()
    (block,) = re.findall(r"^```text\n(north = .*?)^```$", page, re.M | re.S)
    (tmp_path / "sites.toml").write_text(block)
    found = read_sites(tmp_path / "sites.toml")
    assert list(found.listed) == ["north", "south", "west"]
    assert found.examples == {"west": 800}


# what the SuperLink's operator registered


def test_a_registered_name_is_the_only_one_a_node_may_give():
    known = {11: {"public_key": KEYS[1], "name": "site-1"}}
    known[5] = {"public_key": KEYS[2], "name": "site-4"}
    grid, ran = grid_of({10: 0, 11: 1, 5: 2}, known), strategy()
    report = run(ran, grid, 1)
    assert list(report["sites"]) == ["site-0", "site-1"]
    assert "it calls itself 'site-2', but is registered as 'site-4'" in report["refused"][0]


def test_an_app_that_answers_no_query_cannot_take_a_name_either():
    """It gives its name with its first reply, which is refused like a greeting."""

    def silent(c: int) -> ClientApp:
        whole, app = light_app(c), ClientApp()
        app.train()(lambda message, context: whole(message, context))
        return app

    grid, ran = grid_of({10: 0, 11: 1}), strategy()
    run(ran, grid, 1)
    del grid.apps[11]
    grid.apps[5] = silent(1)
    report = run(ran, grid, 2)
    assert list(report["sites"]) == ["site-0"]
    assert "site 'site-1' belongs to node 11" in report["refused"][0]
    grid.apps[6] = silent(3)
    assert "site-3" in run(ran, grid, 3)["sites"]
    assert ran.site_names.owners["site-3"] == "node 6"


def test_flowers_own_grid_gives_keys_and_names():
    """What a real SuperLink's state tells of a node is what a name is tied to."""
    from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    state = InMemoryLinkState(NoOpFederationManager(), ObjectStoreFactory().store())
    node = state.create_node("owner", "me", KEYS[0], 30.0, name="north")
    (info,) = state.get_node_info(node_ids=[node])
    who = flower.as_node(info)
    assert (who.number, who.name) == (node, "north")
    assert who.key.startswith("SHA256:")
    bare = state.create_node("owner", "me", bytes(32), 30.0)  # as a simulation makes them
    (info,) = state.get_node_info(node_ids=[bare])
    assert flower.as_node(info).number == bare
    assert flower.as_node(info).key not in ("", who.key)
