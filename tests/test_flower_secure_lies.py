"""Secure sums against a server that lies: what it can learn, and what sites refuse."""

import json
import subprocess

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from fedmaba.deploy import masks, secure, secure_site
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.secure_round import SecureRound
from fedmaba.deploy.site_names import key_fingerprint
from fedmaba.deploy.site_rules import SiteRules
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, client_app, secure_mod
from flower_grid import LocalGrid, light_app, light_model, signing_keys

SITES, SIZE = 5, 30


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return signing_keys(tmp_path_factory.mktemp("keys"), SITES)


def rules_of(keys, c: int, **more) -> SiteRules:
    told = {"peers": str(keys / "sites.toml"), "signing-key": str(keys / f"site-{c}")}
    told["keep"] = str(keys / f"kept-{c}")
    return SiteRules.of(told | more)


class LyingServer:
    """It tells every site the true mask keys, and its own keys in place of all seal keys."""

    def __init__(self, changes, rules) -> None:
        self.changes, self.rules = changes, rules
        self.attempt = SecureRound(SecureSum(threshold=4), "round", SIZE, set())
        self.mine = [masks.new_key() for _ in changes]  # in the place of each site's seal key
        self.memories, self.keys, self.proofs = [], [], []
        for rule in rules:
            found = secure_site.asked(self.attempt.first_task(), None)
            told, memory = secure_site.give_keys(found, rule)
            self.keys.append((told["mask_key"], told["seal_key"]))
            proof = {k: told[k] for k in ("signer", "signature") if k in told}
            self.proofs.append(proof or None)
            self.memories.append(memory)
        self.shares: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.sealed_key: list[bytes] = []

    def keys_for(self, c: int) -> list[bytes]:
        """The seal keys that one site is told: its own is the true one, which it checks."""
        return [self.keys[i][1] if i == c else self.mine[i][1] for i in range(len(self.keys))]

    def give_shares(self) -> None:
        """Let all sites deal their shares, and open each."""
        for c, memory in enumerate(self.memories):
            told = {"place": c, "least": 4, "mask_keys": [k[0] for k in self.keys]}
            told |= {"seal_keys": self.keys_for(c), "signatures": self.proofs}
            text = json.loads(secure.write_message(told))
            answer, self.memories[c] = secure_site.give_shares(text, memory, self.rules[c])
            self.sealed_key.append(answer["sealed_key"])
            for i, token in enumerate(answer["sealed"]):
                if token is not None:
                    key = masks.agree(self.mine[i][0], self.keys[c][1])
                    text = masks.unseal(key, token)[-2 * masks.SHARE_BYTES :]
                    self.shares[c, i] = text[: masks.SHARE_BYTES], text[masks.SHARE_BYTES :]

    def resealed(self, sender: int, receiver: int) -> bytes | None:
        """A share as if its sender had sealed it."""
        if sender == receiver:
            return None
        places = [i.to_bytes(4, "big") for i in (sender, receiver)]
        key = masks.agree(self.mine[sender][0], self.keys[receiver][1])
        return masks.seal(key, b"".join([*places, *self.shares[sender, receiver]]))

    def read_change(self, victim: int) -> np.ndarray:
        """The change of one site, from its masked numbers and the shares of its secrets."""
        count = len(self.keys)
        weights = [1 / count] * count
        told = {"weights": weights, "sealed": [self.resealed(i, victim) for i in range(count)]}
        text = json.loads(secure.write_message(told))
        memory, change = self.memories[victim], self.changes[victim]
        words, answer, _ = secure_site.give_masked(text, memory, change)
        assert answer == {}  # nothing looked wrong to the site
        parts = [self.shares[victim, i] for i in range(count) if i != victim]
        own = masks.join_shares([one for one, _ in parts][:4])
        opened = masks.join_shares([other for _, other in parts][:4])
        secret = masks.unseal(masks.seed_key(opened, b"fedmaba key"), self.sealed_key[victim])
        rule, public = memory["rule"], [k[0] for k in self.keys]
        agreed = secure.agreement(memory["attempt"], rule, 4, public, weights)
        words = words - masks.own_mask(own, agreed, len(words))
        for i in range(count):
            if i != victim:
                mask = masks.pair_mask(masks.agree(secret, public[i]), agreed, len(words))
                words = words - mask if victim < i else words + mask
        return words.view(np.int32)[:-1] * SecureSum().step * count


def test_without_peers_a_server_that_exchanges_seal_keys_reads_a_change():
    """The limit that docs/threat-model.md names: only keys that are signed are safe from it."""
    changes = np.random.default_rng(1).normal(size=(SITES, SIZE))
    server = LyingServer(changes, [SiteRules()] * SITES)
    server.give_shares()
    np.testing.assert_allclose(server.read_change(2), changes[2], atol=1e-5)


def test_with_peers_no_site_seals_for_keys_that_were_exchanged(keys):
    changes = np.random.default_rng(1).normal(size=(SITES, SIZE))
    server = LyingServer(changes, [rules_of(keys, c) for c in range(SITES)])
    with pytest.raises(InputError, match="they were exchanged on their way") as error:
        server.give_shares()
    assert "\n" not in str(error.value)
    assert server.shares == {}


def lies(keys):
    """What a server tells site 0 in stage `shares`, and a change of it."""
    rules = [rules_of(keys, c) for c in range(SITES)]
    server = LyingServer(np.zeros((SITES, SIZE)), rules)
    told = {"place": 0, "least": 4, "signatures": server.proofs}
    told |= {"mask_keys": [k[0] for k in server.keys], "seal_keys": [k[1] for k in server.keys]}
    return server, rules, json.loads(secure.write_message(told))


def test_a_site_with_peers_takes_signatures_of_the_others_alone(keys, tmp_path):
    server, rules, told = lies(keys)
    secure_site.give_shares(told, server.memories[0], rules[0])  # nobody lies
    proofs = told["signatures"]
    stranger = SiteRules.of({"signing-key": str(tmp_path / "key")})
    made = ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(made, check=True)
    signed = json.loads(
        secure.write_message(stranger.signed(server.attempt.attempt, server.keys[4]))
    )
    again = json.loads(
        secure.write_message(rules[3].signed(server.attempt.attempt, server.keys[4]))
    )
    other = json.loads(secure.write_message(rules[4].signed("another attempt", server.keys[4])))
    for bad, why in (
        (None, "must be a list of 5"),
        ([*proofs[:4], None], "the keys at place 4 are not signed: each site needs a signing-key"),
        ([*proofs[:4], signed], "not in .*sites.toml: a stranger takes part"),
        ([*proofs[:4], again], "places 3 and 4 are both site-3"),
        ([*proofs[:4], other], "does not fit its keys"),
        ([*proofs[:4], {"signer": "AAAA", "signature": "AAAA"}], "does not fit its keys"),
        ([*proofs[:4], {"signer": 7}], "must be base64"),
    ):
        with pytest.raises(InputError, match=why) as error:
            secure_site.give_shares(told | {"signatures": bad}, server.memories[0], rules[0])
        assert "\n" not in str(error.value)


def test_sites_with_peers_sum_as_others_do(keys):
    config = {"peers": str(keys / "sites.toml")}
    grid = LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(SITES)})
    options = {"min_available_nodes": SITES, "grace": 0, "evaluate": False}
    grid.config = {
        100 - c: config | {"signing-key": str(keys / f"site-{c}"), "keep": str(keys / f"kept-{c}")}
        for c in range(SITES)
    }
    strategy = FlowerStrategy("fedavg", secure=SecureSum(), **options)  # 0.6 of 5 becomes 4
    result = strategy.start(grid, light_model(), 1, timeout=3)
    assert strategy.reports[0]["refused"] == []
    want = 0.1 * sum((10 + c) * c for c in range(SITES)) / sum(10 + c for c in range(SITES))
    np.testing.assert_allclose(result.arrays["w"].numpy(), want, atol=1e-6)
    strategy = FlowerStrategy("fedavg", secure=SecureSum(threshold=3), **options)
    with pytest.raises(InputError, match=r"3 are too few where sites sign.*4 must stay"):
        strategy.start(grid, light_model(), 1, timeout=3)

    del grid.config[97]["signing-key"], grid.config[97]["peers"]  # one site signs nothing
    strategy = FlowerStrategy("fedavg", secure=SecureSum(), **options)
    with pytest.raises(InputError, match="failed 5 times") as error:
        strategy.start(grid, light_model(), 1, timeout=3)
    assert "1 of 5 sites answered in stage shares" in str(error.value)


def test_lists_and_keys_that_cannot_be_used_are_refused_in_one_line(keys, tmp_path):
    (tmp_path / "numbers.toml").write_text("north = 17\n")
    (tmp_path / "bad").write_text("no key\n")
    key = str(keys / "site-0")
    for config, why in (
        ({"peers": str(keys / "sites.toml")}, "no key to sign its own keys with"),
        ({"peers": str(keys / "sites.toml"), "signing-key": key}, "no folder to remember"),
        ({"peers": str(tmp_path / "numbers.toml"), "signing-key": key}, "write SHA256"),
        ({"peers": str(tmp_path / "none.toml"), "signing-key": key}, "No such file"),
    ):
        with pytest.raises(InputError, match=why) as error:
            SiteRules.of(config)
        assert "\n" not in str(error.value)
    for path, why in (("bad", "holds no key without a password"), ("none", "No such file")):
        with pytest.raises(InputError, match=why):
            SiteRules.of({"signing-key": str(tmp_path / path)}).signed("a", (b"1", b"2"))
    with pytest.raises(InputError, match="add secure=True"):
        client_app("mlp", lambda context: None, peers=str(keys / "sites.toml"))


def test_the_fingerprint_of_a_signer_is_that_of_its_registered_key(keys):
    from cryptography.hazmat.primitives import serialization

    public = serialization.load_ssh_public_key((keys / "site-1.pub").read_bytes())
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    assert rules_of(keys, 1).peers[key_fingerprint(public.public_bytes(*form))] == "site-1"
