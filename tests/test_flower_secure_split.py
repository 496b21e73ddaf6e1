"""A server that tells sites different lists of who stayed, together with sites of its own.

All of a site is the site's own code: the server here asks it, as a real one does.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")


from fedmaba.deploy import masks, secure, secure_site
from fedmaba.deploy.secure import SecureSum, least_signed
from fedmaba.deploy.secure_round import SecureRound, sum_changes
from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.site_memory import SiteMemory
from fedmaba.deploy.site_rules import SiteRules
from fedmaba.deploy.validation import RawReply, Reply
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, secure_mod
from fedmaba.strategies.base import Decision
from flower_grid import LocalGrid, light_app, light_model, lost, signing_keys
from flower_sites import first, local_data
from test_flower_secure_attacks import as_raw

MOST, SIZE = 10, 30
VICTIM = 0


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return signing_keys(tmp_path_factory.mktemp("keys"), MOST)


def rules_of(keys, c: int, keep) -> SiteRules:
    told = {"peers": str(keys / "sites.toml"), "signing-key": str(keys / f"site-{c}")}
    return SiteRules.of(told | {"keep": str(keep / f"kept-{c}")})


class Splitter:
    """A server up to the masked changes, which it has all; the last sites are its own."""

    def __init__(self, rules, least: int, own: int = 1, seed: int = 0) -> None:
        self.rules, self.sites, self.least = rules, len(rules), least
        self.own = set(range(self.sites - own, self.sites))
        self.change = np.random.default_rng(seed).normal(size=(self.sites, SIZE))
        self.attempt = SecureRound(SecureSum(threshold=least), "round 1 abc", SIZE, set())
        self.memory, keys, proofs = [], [], []
        for rule in rules:
            found = secure_site.asked(self.attempt.first_task(), None)
            told, memory = secure_site.give_keys(found, rule)
            keys.append((told["mask_key"], told["seal_key"]))
            proofs.append({k: told[k] for k in ("signer", "signature") if k in told} or None)
            self.memory.append(memory)
        self.public = [key for key, _ in keys]
        told = {"least": least, "mask_keys": self.public, "seal_keys": [k for _, k in keys]}
        self.dealt = [
            self.ask(secure_site.give_shares, c, told | {"signatures": proofs, "place": c})
            for c in range(self.sites)
        ]
        self.words = []
        self.weights = [1 / self.sites] * self.sites
        for c in range(self.sites):
            sealed = [answer["sealed"][c] for answer in self.dealt]
            text = {"weights": self.weights, "sealed": sealed}
            words, answer, self.memory[c] = secure_site.give_masked(
                read(text), self.memory[c], self.change[c], rules[c]
            )
            assert answer == {}
            self.words.append(words)

    def ask(self, stage, c: int, text):
        answer, self.memory[c] = stage(read(text), self.memory[c], self.rules[c])
        return answer

    def opened(self, lists) -> dict[tuple[int, str], bytes]:
        """What the server gets of secrets, told each site its own `left`: by place and kind.

        Its own sites sign every list, and give all that they have.
        """
        everybody, shares, signed, refused = set(range(self.sites)), {}, {}, []
        told = {c: {"stayed": sorted(everybody - set(left)), "left": sorted(left)}
                for c, left in lists.items()}  # fmt: skip
        honest = [c for c in told if c not in self.own]
        for c in honest:
            try:
                if self.rules[c].peers:
                    signed[c] = self.ask(secure_site.give_agreed, c, told[c])
            except InputError as why:
                refused.append(str(why))
        for c in signed if signed else honest:
            proofs = [signed.get(i) for i in range(self.sites)]
            agreed = bytes.fromhex(self.memory[c]["agreed"])
            for i in self.own:
                proofs[i] = self.rules[i].sign_stayed(agreed, *told[c].values()) or None
            text = told[c] | {"signatures": proofs}
            try:
                answer = secure_site.give_unmask(read(text), self.memory[c], self.rules[c])
            except InputError as why:
                refused.append(str(why))
                continue
            for i, share in answer["shares"].items():
                kind = "own" if int(i) in told[c]["stayed"] else "key"
                shares.setdefault((int(i), kind), []).append(share)
        for c in self.own:
            for i, pair in self.memory[c]["pairs"].items():
                for kind, share in zip(("own", "key"), pair, strict=True):
                    shares.setdefault((int(i), kind), []).append(bytes.fromhex(share))
        self.refused = refused
        return {
            key: masks.join_shares(found[: self.least])
            for key, found in shares.items()
            if len(found) >= self.least
        }

    def without_masks(self, stayed, secrets) -> np.ndarray:
        """The sum over some sites, without the masks that these secrets open."""
        agreed = bytes.fromhex(self.memory[VICTIM]["agreed"])
        total, size = np.zeros(SIZE + 1, np.uint32), SIZE + 1
        private = {}
        for i in range(self.sites):
            if (i, "key") in secrets:
                key = masks.seed_key(secrets[i, "key"], b"fedmaba key")
                private[i] = masks.unseal(key, self.dealt[i]["sealed_key"])
        for c in stayed:
            total = total + self.words[c] - masks.own_mask(secrets[c, "own"], agreed, size)
            for i in set(range(self.sites)) - set(stayed):
                one = (private[i], self.public[c]) if i in private else (private[c], self.public[i])
                mask = masks.pair_mask(masks.agree(*one), agreed, size)
                total = total - mask if c < i else total + mask
        return total.view(np.int32)[:-1] * self.attempt.rule.step * self.sites


def read(text) -> dict:
    return json.loads(secure.write_message(text))


def split_lists(sites: int, least: int, own: int) -> dict[int, list[int]]:
    """For half of the sites the victim stayed, for the others it left."""
    honest = sites - own
    stay = max(1, min(least - own, honest - 1))
    return {c: [] if c < stay else [VICTIM] for c in range(honest)}


CASES = [
    pytest.param(n, t, marks=[pytest.mark.slow] * (n > 5), id=f"{t} of {n}")
    for n in range(3, MOST + 1)
    for t in range(n // 2 + 1, n + 1)
]


@pytest.mark.parametrize(("sites", "least"), CASES)
def test_a_server_with_one_site_reads_no_change_by_two_lists(sites, least, keys, tmp_path):
    """Without `peers` it does, exactly where twice the threshold is at most one more than sites."""
    lists, open_ = split_lists(sites, least, 1), 2 * least <= sites + 1
    server = Splitter([SiteRules()] * sites, least)
    secrets = server.opened(lists)
    both = {(VICTIM, "own"), (VICTIM, "key")} <= secrets.keys()
    assert both == open_ == (least < least_signed(sites))
    if both:
        found = server.without_masks([VICTIM], secrets)
        np.testing.assert_allclose(found, server.change[VICTIM], atol=1e-5)

    rules = [rules_of(keys, c, tmp_path) for c in range(sites)]
    if open_:
        why = f"{least} are too few where sites sign.*{least_signed(sites)} must stay"
        with pytest.raises(InputError, match=why):
            Splitter(rules, least)
        return
    server = Splitter(rules, least)
    assert not {(VICTIM, "own"), (VICTIM, "key")} <= server.opened(lists).keys()
    groups = [sum(left == other for left in lists.values()) for other in ([], [VICTIM])]
    refused = sum(many for many in groups if many + 1 < least)
    assert len(server.refused) == refused > 0


def told_by_docs() -> list[tuple[int, int, int]]:
    """Sites, threshold and harmless sites of the server, as docs/secure.md has them."""
    text = (Path(__file__).parents[1] / "docs" / "secure.md").read_text()
    text = text.split("## What a server and its own sites can learn")[1]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    found = [tuple(map(int, row)) for row in rows]
    assert all(n - t == away for n, t, away, _ in found)
    return [(n, t, own) for n, t, _, own in found]


def test_the_docs_say_how_many_own_sites_help_a_server(keys, tmp_path):
    rows = told_by_docs()
    assert len(rows) > 5
    for n, t, own in rows:
        assert own == min(2 * t - n - 1, t - 2)
    for n, t, own in [row for row in rows if row[0] in (4, 5, 6)]:
        for more in (0, 1):
            k = own + more
            place = tmp_path / f"{n}-{t}-{k}"
            server = Splitter([rules_of(keys, c, place) for c in range(n)], t, k)
            secrets = server.opened(split_lists(n, t, k))
            both = {(VICTIM, "own"), (VICTIM, "key")} <= secrets.keys()
            assert both == (2 * t <= n + k)
            assert both <= bool(more)


@pytest.mark.parametrize(("sites", "least"), [(7, 5), (10, 6)])
def test_lists_that_differ_open_no_sum_of_fewer_sites_than_agreed(sites, least, keys, tmp_path):
    """Each list names enough sites; together they would open the sum of fewer, or of one."""
    gone = list(range(1, sites - 1))  # all honest sites but the victim, as far as shares go
    lists, given = {c: [] for c in range(sites - 1)}, dict.fromkeys(gone, 1)  # its own site's
    for i in gone:
        for c in sorted(lists, key=lambda c: len(lists[c])):
            if c != i and len(lists[c]) < sites - least and given[i] < least:
                lists[c].append(i)
                given[i] += 1
    gone = {i for i, many in given.items() if many >= least}
    rest = [i for i in range(sites) if i not in gone]
    assert len(rest) < least

    server = Splitter([SiteRules()] * sites, least)
    secrets = server.opened(lists)
    assert {(i, "own") for i in rest} <= secrets.keys()
    found = server.without_masks(rest, secrets)
    np.testing.assert_allclose(found, server.change[rest].sum(0), atol=1e-4)

    server = Splitter([rules_of(keys, c, tmp_path) for c in range(sites)], least)
    assert server.opened(lists) == {}
    assert len(server.refused) == sites - 1
    assert "have signed this list of who stayed" in server.refused[0]


def honest_round(rules, spoil=None):
    """A round of an honest server with these sites; what left, and the sum."""
    attempt = SecureRound(SecureSum(), "round 1 abc", SIZE, set())
    memory, replies = {}, []
    change = np.random.default_rng(3).normal(size=(len(rules), SIZE))
    for c, rule in enumerate(rules):
        told, memory[f"s{c}"] = secure_site.give_keys(json.loads(attempt.first_task()), rule)
        attempt.take_keys(f"s{c}", secure.write_message(told))
        replies.append(Reply(c, f"s{c}", {}, 1))

    def exchange(texts):
        answers = {}
        for site, text in texts.items():
            found, c, arrays = secure_site.asked(text, memory[site]), int(site[1:]), {}
            if found["stage"] == "mask":
                words, told, memory[site] = secure_site.give_masked(
                    found, memory[site], change[c], rules[c]
                )
                arrays = {"masked": as_raw(words)}
            elif found["stage"] == "unmask":
                told = secure_site.give_unmask(found, memory[site], rules[c])
            else:
                stage = {"shares": secure_site.give_shares, "agree": secure_site.give_agreed}
                told, memory[site] = stage[found["stage"]](found, memory[site], rules[c])
            told = read(told)
            if spoil is None or spoil(site, found["stage"], told):
                words_ = {"site": site, "secure": json.dumps(told)}
                answers[site] = RawReply(c, attempt.attempt, arrays, {}, words_)
        return answers

    coef = lambda replies: Decision(np.full(len(replies), 1 / len(replies)), {})  # noqa: E731
    summed, refused = sum_changes(attempt, replies, coef, exchange)
    stayed = [int(site[1:]) for site in summed.stayed]
    np.testing.assert_allclose(summed.move(), change[stayed].mean(0), atol=1e-5)
    return summed.stayed, refused


def test_sites_that_sign_sum_and_one_that_leaves_or_signs_wrongly_is_named(keys, tmp_path):
    rules = [rules_of(keys, c, tmp_path) for c in range(7)]
    stayed, refused = honest_round(rules)
    assert (len(stayed), refused) == (7, [])

    def spoil(site, stage, told):
        if (site, stage) == ("s3", "agree"):
            told["signature"] = told["signature"][:40] + "AAAA" + told["signature"][44:]
        return (site, stage) != ("s5", "mask")

    rules = [rules_of(keys, c, tmp_path / "again") for c in range(7)]
    stayed, refused = honest_round(rules, spoil)
    assert "s5" not in stayed
    assert refused == [
        "s5: left in stage mask of the secure sum: no answer",
        "s3: left in stage agree of the secure sum: it did not sign the list of who stayed with "
        "the key of before",
    ]


def test_a_site_signs_one_list_and_unmasks_by_no_other(keys, tmp_path):
    server = Splitter([rules_of(keys, c, tmp_path) for c in range(5)], 4)
    server.ask(secure_site.give_agreed, 0, {"stayed": [0, 1, 2, 3, 4], "left": []})
    told = {"stayed": [0, 1, 2, 3], "left": [4], "signatures": [None] * 5}
    with pytest.raises(InputError, match="it named others that stayed before"):
        secure_site.give_unmask(told, server.memory[0], server.rules[0])
    skipped = {"stage": "unmask", "attempt": server.attempt.attempt, **told}
    skipped = secure_site.asked(json.dumps(skipped), server.memory[1])
    with pytest.raises(InputError, match="0 sites have signed this list"):
        secure_site.give_unmask(skipped, server.memory[1], server.rules[1])


# two sums of one round


def test_a_site_helps_to_open_one_sum_of_a_round(tmp_path):
    memory, weights = SiteMemory(tmp_path), [0.5, 0.25, 0.25]
    memory.check_sum("round 1 a x", weights)
    memory.open_sum("round 1 a x", weights, [0, 1, 2])
    memory.check_sum("round 1 a y", weights)  # the same sum again shows nothing new
    memory.open_sum("round 1 a y", weights, [0, 1, 2])
    with pytest.raises(InputError, match=r"with other weights, or of other sites.*remove ") as told:
        memory.check_sum("round 1 a z", [0.5, 0.5])
    with pytest.raises(InputError, match="remove "):
        memory.open_sum("round 1 a z", weights, [0, 1])
    memory.check_sum("round 2 b x", [0.5, 0.5])
    for mark in (tmp_path / "secure-sums").iterdir():
        assert str(tmp_path) in str(told.value)
        mark.unlink()
    memory.check_sum("round 1 a z", [0.5, 0.5])


def test_a_server_killed_after_a_sum_was_opened_gets_no_other_sum_of_the_round(
    tmp_path, monkeypatch
):
    """Before, the difference of the two sums was the share of the site that came later."""
    without_site_4 = lost([96], "mask")
    grid = LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(5)}, without_site_4)
    grid.config = {node: {"keep": str(tmp_path / str(node))} for node in grid.apps}

    def start():
        strategy = FlowerStrategy(
            "fedavg", secure=SecureSum(), state=tmp_path / "state",
            min_available_nodes=5, grace=0, evaluate=False,
        )  # fmt: skip
        return strategy, lambda: strategy.start(grid, light_model(), 1, timeout=3)

    strategy, run = start()
    with monkeypatch.context() as patched:
        patched.setattr(FederationServer, "finish_round", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run()
    strategy.server.close()
    grid.spoil = None
    strategy, run = start()
    with pytest.raises(InputError, match=r"failed 5 times.*1 of 5 sites answered in stage unmask"):
        run()
    strategy, run = start()
    grid.spoil = without_site_4  # the same sites as before: the same sum
    run()
    assert strategy.reports[0]["secure"]["summed"] == 4


# how often a site takes part


def test_a_site_counts_its_rounds_and_refuses_more_whatever_the_server_forgets(tmp_path, fed):
    def run(state, rounds):
        apps = {
            c + 1: client_app(
                "mlp", local_data(fed, c), site=f"s{c}", keep=tmp_path / "kept", most_rounds=3
            )
            for c in range(2)
        }
        strategy = FlowerStrategy("fedavg", min_available_nodes=2, state=state, evaluate=False)
        strategy.start(LocalGrid(apps), first(fed), rounds, timeout=3)

    run(tmp_path / "one", 2)
    run(tmp_path / "two", 1)  # another state: a server that forgot
    with pytest.raises(InputError, match="taken part in 3 rounds, and most_rounds=3"):
        run(tmp_path / "three", 1)
    with pytest.raises(InputError, match="give keep, a folder"):
        SiteRules(most_rounds=3).take_round("north")
    for wrong in (0, 1.5, "x", True):
        with pytest.raises(InputError, match=r"most_rounds=.*whole number from 1 on"):
            SiteRules.of({"most-rounds": wrong})
