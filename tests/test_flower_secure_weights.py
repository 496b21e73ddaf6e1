"""Who holds the weight of a secure sum: what is told, and what server and sites refuse."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Message, RecordDict

from fedmaba.deploy import round_log, secure, secure_site
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.secure_round import SecureRound
from fedmaba.deploy.settings import FederationSettings, require_same_terms
from fedmaba.deploy.site_memory import ANSWERS, SiteMemory
from fedmaba.deploy.site_rules import SiteRules
from fedmaba.errors import InputError, SaveFailed
from fedmaba.flower import FlowerStrategy, client_app, secure_mod
from fedmaba.report import data, federation, model_card
from fedmaba.strategies.afl import AFL
from fedmaba.strategies.base import Decision
from flower_grid import LocalGrid, light_app, light_model, lost, stage_of

SITES = 5


@dataclass(frozen=True)
class Given(AFL):
    """gives these weights"""

    name: ClassVar[str] = "given"
    given: tuple[float, ...] = (1.0,)

    def weigh(self, state, replies):
        coef = np.array([self.given[c % len(self.given)] for c in replies.client], float)
        return Decision(coef / coef.sum(), state)


def grid_of(spoil=None, **config) -> LocalGrid:
    grid = LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(SITES)}, spoil)
    grid.config = dict.fromkeys(grid.apps, config)
    return grid


def run(weights, grid=None, rounds=1, state=None, **rule):
    strategy = FlowerStrategy(
        Given(given=tuple(weights)),
        secure=SecureSum(threshold=3, **rule),
        min_available_nodes=SITES,
        grace=0,
        evaluate=False,
        state=state,
    )
    strategy.start(grid or grid_of(), light_model(), rounds, timeout=3)
    return strategy


def lost_and_seen(node, stage, seen):
    """One node fails in a stage; `seen` notes all stages."""
    fails = lost([node], stage)

    def spoil(message, answer):
        seen.append(stage_of(message))
        return fails(message, answer)

    return spoil


def test_a_site_that_holds_all_weight_is_told_of_on_page_table_card_and_log(tmp_path):
    grid = grid_of(**{"most-share": 1.0})
    strategy = run([1, 0, 0, 0, 0], grid, state=tmp_path / "state", most_share=1.0)
    (report,) = strategy.reports
    assert report["secure"]["largest"] == 1.0
    words = "one site holds 100.0% of the weight: the sum is nearly its change"
    assert any(words in line for line in round_log.round_lines(report))
    source = data.load_run_folder(tmp_path / "state")
    told = " ".join(federation.how_far(source.federation))
    assert words in told
    assert "In 1 of 1 rounds one site held at least 90% of the weight" in told
    assert "saw no single one" not in told + model_card.card_text(source)
    assert "the sum is nearly its change" in model_card.card_text(source)


def test_where_weight_is_spread_the_page_says_that_no_change_was_seen(tmp_path):
    run([1, 2, 3, 2, 1], state=tmp_path / "state")
    state = data.load_run_folder(tmp_path / "state").federation
    assert "Secure sum of 5 changes: the server saw no single one." in federation.how_far(state)
    old = {"sites": state.rounds[0]["sites"], "secure": {"summed": 5}}
    assert federation.heaviest_site(old) == pytest.approx(1 / 3)  # of a folder of before


def test_the_server_refuses_a_sum_of_one_site_before_anybody_sends_a_change():
    seen: list[str] = []
    with pytest.raises(InputError, match=r"round 1: no site was asked.*would hold 92\.0%") as error:
        run([23, 0.5, 0.5, 0.5, 0.5], grid_of(lost_and_seen(0, "", seen)), most_share=0.9)
    assert "\n" not in str(error.value)
    assert set(seen) == {"", "keys", "shares"}
    run([1, 1, 1, 1, 1], most_share=0.9)


def test_a_share_that_grows_as_others_leave_is_refused_before_anybody_unmasks():
    seen: list[str] = []
    with pytest.raises(InputError, match=r"failed 5 times.*would hold 73"):
        run([8, 1, 1, 8, 0.9], grid_of(lost_and_seen(97, "mask", seen)), most_share=0.7)
    assert "mask" in seen
    assert "unmask" not in seen


def test_where_the_heavy_site_leaves_nobody_unmasks():
    """Else the sum, and that of the repeat with all sites, would differ by its change."""
    seen: list[str] = []
    grid = grid_of(lost_and_seen(100, "mask", seen), **{"most-share": 1.0})
    with pytest.raises(InputError, match=r"failed 5 times.*the sites that stayed hold 0\.04 of"):
        run([96, 1, 1, 1, 1], grid, most_share=1.0)
    assert "mask" in seen
    assert "unmask" not in seen


@pytest.mark.parametrize("share", [0, -1, 1.1, "much", None, True, float("nan")])
def test_shares_that_are_none_are_refused(share):
    makes = [SecureSum, lambda most_share: SiteRules.of({"most-share": most_share})]
    for make in makes[: 1 + (share is not None)]:  # a node is told no None
        with pytest.raises(InputError, match=r"most_share=.*above 0 and up to 1"):
            make(most_share=share)


def test_unless_somebody_says_so_no_site_holds_nearly_all_of_the_weight(tmp_path):
    with pytest.raises(InputError, match=r"would hold 92\.0% of the weight.*most_share=0\.9"):
        run([23, 0.5, 0.5, 0.5, 0.5])
    with pytest.raises(InputError, match=r"failed 5 times.*in stage mask"):
        run([23, 0.5, 0.5, 0.5, 0.5], most_share=1.0)  # the sites hold to their own share
    grid = grid_of(**{"most-share": 1.0})
    assert run([23, 0.5, 0.5, 0.5, 0.5], grid, most_share=1.0).reports[0]["secure"]["summed"] == 5


def test_a_state_of_an_earlier_version_that_named_no_share_allows_every_one():
    before = FederationSettings(AFL(), secure=SecureSum(most_share=1.0)).to_json()
    del before["secure"]["most_share"]
    mine = FederationSettings(AFL(), secure=SecureSum(most_share=1.0))
    require_same_terms("it", before, mine)
    with pytest.raises(InputError, match="was begun with secure="):
        require_same_terms("it", before, FederationSettings(AFL(), secure=SecureSum()))


# a lying server


def talk(weights, rules, told_share=1.0):
    """A server that asks sites for their masked changes, and what they answer or say."""
    rule = SecureSum(threshold=3, most_share=told_share)
    attempt, memories = SecureRound(rule, "round", 20, set()), {}
    for c in range(SITES):
        told, memories[f"s{c}"] = secure_site.give_keys(json.loads(attempt.first_task()), rules)
        attempt.take_keys(f"s{c}", secure.write_message(told))
    attempt.begin(list(memories))
    for site, text in attempt.ask().items():
        told, memories[site] = secure_site.give_shares(json.loads(text), memories[site], rules)
        attempt.take_shares(site, secure.write_message(told))
    attempt.set_weights(weights)
    for site, text in attempt.ask().items():
        _, _, memories[site] = secure_site.give_masked(
            json.loads(text), memories[site], np.ones(20), rules
        )
    return memories


@pytest.mark.parametrize("rules", [SiteRules.of({"most-share": 0.9}), SiteRules(most_share=1.0)])
def test_a_site_masks_nothing_for_a_sum_that_is_one_sites_change(rules):
    with pytest.raises(InputError, match=r"would hold 100\.0% of the weight"):
        talk([1, 0, 0, 0, 0], rules, 1.0 if rules.most_share < 1 else 0.9)
    talk([0.2] * 5, rules)


def test_a_site_unmasks_nothing_where_those_who_stayed_hold_too_little_or_one_too_much():
    memories = talk([0.6, 0.1, 0.1, 0.1, 0.1], SiteRules())
    told = {"stayed": [0, 1, 2], "left": [3, 4]}
    with pytest.raises(InputError, match=r"would hold 75\.0%"):
        secure_site.give_unmask(told, memories["s0"], SiteRules(most_share=0.7))
    assert secure_site.give_unmask(told, memories["s0"], SiteRules(most_share=0.8))
    memories = talk([0.96, 0.01, 0.01, 0.01, 0.01], SiteRules(most_share=1.0))
    with pytest.raises(InputError, match=r"hold 0\.04 of the weight"):
        secure_site.give_unmask({"stayed": [1, 2, 3, 4], "left": [0]}, memories["s1"])


# two messages at once


def test_a_site_with_a_folder_answers_each_stage_once_also_to_messages_at_once(tmp_path):
    """As if Flower handled both at a time: each gets a copy of what the site remembers."""
    seen: dict[str, tuple[Message, RecordDict]] = {}
    grid = grid_of(keep=str(tmp_path))

    def answer(message, plain=grid.answer):
        if message.metadata.dst_node_id == 100:
            state = RecordDict(dict(grid.states.get(100, {})))
            seen.setdefault(stage_of(message), (message, state))
        return plain(message)

    grid.answer = answer
    run([1] * 5, grid)
    assert len(os.listdir(tmp_path / ANSWERS)) == 2 * SITES
    for stage in ("mask", "unmask"):
        message, before = seen[stage]
        grid.states[100] = before  # as it was when the first message came
        again = grid.answer(Message(RecordDict(dict(message.content)), 100, "train"))
        assert again.has_error()
        assert f"has answered stage '{stage}' of this secure sum already" in again.error.reason


def test_of_many_at_once_one_may_answer(tmp_path):
    memory = SiteMemory(tmp_path)

    def attempt(_):
        try:
            memory.answer_once("attempt", 0, "unmask")
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(40))) == 1
    (mark,) = (tmp_path / ANSWERS).iterdir()
    os.utime(mark, (0, 0))
    memory.forget_old_marks()
    assert not list((tmp_path / ANSWERS).iterdir())
    SiteMemory().answer_once("attempt", 0, "unmask")  # without a folder nothing is kept
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveFailed, match=r"folder `keep` that it can write in"):
        SiteMemory(tmp_path / "file").answer_once("attempt", 0, "mask")


def test_the_app_of_a_site_takes_its_own_share():
    with pytest.raises(InputError, match=r"add secure=True"):
        client_app("mlp", lambda context: None, most_share=0.9)
