"""The server's side of a secure sum: one attempt of a round, message by message. No torch.

Each stage is `ask` (a text for each site that is still there) and `take` (one site's answer, which
may be refused). A site whose answer is missing or refused has left. What is left of the sites must
be at least the threshold after each stage, else the attempt has failed and the round is repeated.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.deploy import masks, secure, signatures
from fedmaba.deploy.secure import STAGES, MaskedWords, SecureSum
from fedmaba.deploy.validation import (
    Limits,
    RawArray,
    RawReply,
    Refused,
    Reply,
    printable,
    read_array,
    site_name,
)
from fedmaba.errors import InputError
from fedmaba.strategies.base import Decision

MASKED = "masked"  # the one array of a reply


class AttemptFailed(Exception):
    """Why the round must be repeated, in one line; `guilty` are sites to leave out then."""

    def __init__(self, why: str, guilty: Sequence[str] = (), lines: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.guilty, self.lines = list(guilty), list(lines)  # `lines`: about sites that left


@dataclass(frozen=True)
class SecureResult:
    """The sum of a round, and the weights behind it."""

    rule: SecureSum
    decision: Decision
    shares: Mapping[str, float]  #    of the weight: those of all that were to be in the sum
    total: float  #                   the sum of their coefficients
    stayed: Sequence[str]  #          whose changes are in the sum
    steps: NDArray[np.int64]  #       (P,) the sum
    clipped: int  #                   how many of these changes were scaled down

    @property
    def factor(self) -> float:
        """Of the sum, so that the weights of those that stayed sum to `total`."""
        return self.total / sum(self.shares[site] for site in self.stayed)

    def move(self) -> NDArray[np.float64]:
        """(P,) what is added to the model."""
        return np.asarray(self.factor * (self.steps * self.rule.step), np.float64)

    def weights(self) -> dict[str, float]:
        """The coefficient that each change has in the end."""
        return {site: self.factor * self.shares[site] for site in self.stayed}

    @property
    def largest(self) -> float:
        """The part of the weight in the sum that one site holds, at most."""
        return secure.largest_part([self.shares[site] for site in self.stayed])

    def to_json(self) -> dict[str, Any]:
        left = [site for site in self.shares if site not in self.stayed]
        told = {"summed": len(self.stayed), "left": left, "clipped": self.clipped}
        return told | {"largest": self.largest}


class SecureRound:
    """One attempt. Sites are known by name here, and by their place in `sites` to one another."""

    def __init__(
        self,
        rule: SecureSum,
        round_id: str,
        size: int,
        seen: set[bytes],  # public keys of before
        losses: Mapping[str, float] | None = None,  # what sites do with their losses, if anything
    ) -> None:
        self.rule, self.size, self.seen, self.losses = rule, size, seen, dict(losses or {})
        self.attempt = f"{round_id} {secrets.token_hex(16)}"
        self.stage = "keys"
        self.sites: list[str] = []  # in the order of their places
        self.there: list[str] = []  # who is still there
        self.least = 2
        self.keys: dict[str, tuple[bytes, bytes]] = {}  # for masks, for sealing
        self.proofs: dict[str, dict[str, bytes]] = {}  # that keys are a site's: sites check them
        self.weights: list[float | None] = []
        self.dealt: dict[str, dict[str, Any]] = {}  # what each site sent in stage `shares`
        self.accused: Counter[str] = Counter()
        self.sum: MaskedWords = np.zeros(size + 1, np.uint32)
        self.agreed: dict[str, dict[str, bytes]] = {}  # that sites were told who stayed
        self.shares: dict[str, list[bytes]] = {}  # of the secret of each site that is asked for
        self.stayed: list[str] = []  # whose masked change is in the sum
        self.left: list[str] = []  # who was to be in the sum, and is not

    @property
    def most_text(self) -> int:
        """The longest answer that is read."""
        return secure.TEXT_BYTES_PER_SITE * (len(self.sites) + 2)

    @property
    def signed(self) -> bool:
        """Whether sites sign what they say, for other sites."""
        return any(self.proofs.values())

    def agreement(self) -> bytes:
        """The hash of all that sites must have been told alike, before they know who stayed."""
        keys = [self.keys[s][0] for s in self.sites]
        return secure.agreement(self.attempt, self.rule.to_json(), self.least, keys, self.weights)

    def first_task(self) -> str:
        """What every site is asked first."""
        rule = {**self.rule.to_json(), **self.losses}  # a site that knows no such key refuses
        told = {"stage": "keys", "attempt": self.attempt, "rule": rule}
        return secure.write_message(told)

    def take_keys(self, site: str, text: object) -> None:
        """The public keys of a site: points of the curve that nobody sent before."""
        found = secure.read_message(text, self.most_text)
        pair = tuple(
            secure.read_bytes(found.get(name), name, masks.PUBLIC_BYTES)
            for name in ("mask_key", "seal_key")
        )
        proof = signatures.read_proof(found)
        for key in pair:
            masks.load_public_key(key)
            if key in self.seen:
                raise Refused(
                    "it sent a public key that was sent before: each attempt needs new ones"
                )
            self.seen.add(key)
        self.keys[site], self.proofs[site] = (pair[0], pair[1]), proof

    def begin(self, sites: Sequence[str]) -> None:
        """Fix who takes part, in which order, and how many must stay."""
        self.sites = self.there = list(sites)
        try:
            self.least = self.rule.least(len(sites), self.signed)
        except InputError as why:
            raise AttemptFailed(str(why)) from None

    def ask(self) -> dict[str, str]:
        """Go on to the next stage: what each site that is still there is told."""
        if self.stage != "keys":
            self.require_enough()
        self.stage = STAGES[STAGES.index(self.stage) + 1]
        if self.stage == "agree" and not self.signed:
            self.stage = "unmask"
        told: dict[str, Any] = {"stage": self.stage, "attempt": self.attempt}
        asked, self.there = self.there, []
        if self.stage == "shares":
            told["least"] = self.least
            told["mask_keys"] = [self.keys[s][0] for s in self.sites]
            told["seal_keys"] = [self.keys[s][1] for s in self.sites]
            if self.signed:
                told["signatures"] = [self.proofs.get(s) or None for s in self.sites]
            return {s: secure.write_message({**told, "place": self.sites.index(s)}) for s in asked}
        if self.stage == "mask":
            told["weights"] = self.weights
            places = self._places(asked)
            return {
                s: secure.write_message({**told, "sealed": self._sealed(places, s)}) for s in asked
            }
        if self.stage == "agree" or not self.signed:
            there = dict(zip(self.sites, self.weights, strict=True))
            self.stayed = list(asked)
            self.left = [s for s, w in there.items() if w is not None and s not in asked]
        told |= {"stayed": self._places(self.stayed), "left": self._places(self.left)}
        if self.stage == "unmask" and self.signed:
            told["signatures"] = [self.agreed.get(s) or None for s in self.sites]
        return {s: secure.write_message(told) for s in asked}

    def _places(self, sites: Sequence[str]) -> list[int]:
        return [self.sites.index(site) for site in sites]

    def set_weights(self, weights: Sequence[float]) -> None:
        """The share of each site that is still there, in their order."""
        given = dict(zip(self.there, weights, strict=True))
        self.weights = [given.get(site) for site in self.sites]

    def take_shares(self, site: str, text: object) -> None:
        """The sealed shares of a site, and the hashes by which they are known later."""
        found, sites = secure.read_message(text, self.most_text), len(self.sites)
        sealed = secure.read_list(found.get("sealed"), "sealed", sites)
        place = self.sites.index(site)
        tokens = [
            None if i == place else secure.read_bytes(token, "a sealed share")
            for i, token in enumerate(sealed)
        ]
        hashes = [
            [secure.read_bytes(h, "a hash", 32) for h in secure.read_list(pair, "a pair", 2)]
            for pair in secure.read_list(found.get("share_hashes"), "share_hashes", sites)
        ]
        self.dealt[site] = {
            "sealed": tokens,
            "hashes": hashes,
            "own_hash": secure.read_bytes(found.get("own_hash"), "own_hash", 32),
            "sealed_key": secure.read_bytes(found.get("sealed_key"), "sealed_key"),
        }
        self.there.append(site)

    def take_masked(self, site: str, sent: RawArray | None, text: object) -> None:
        """Add the masked change of a site to the sum."""
        found = secure.read_message(text, self.most_text)
        if "bad" in found:
            places = secure.read_places(found["bad"], "bad", len(self.sites))
            names = [self.sites[i] for i in places]
            self.accused.update(names)
            raise Refused(f"it could not open the shares of {', '.join(names)}")
        if sent is None:
            raise Refused("it sent no masked change")
        like = np.zeros(self.size + 1, np.uint32)
        words = read_array(MASKED, sent, like, Limits())
        if secure.looks_unmasked(words, self.rule):
            raise Refused("it sent numbers without masks: they are not used")
        self.sum = self.sum + words
        self.there.append(site)

    def take_agreed(self, site: str, text: object) -> None:
        """A site's signature of who stayed, with the key that it signed its keys with."""
        proof = signatures.read_proof(secure.read_message(text, self.most_text))
        stayed, left = self._places(self.stayed), self._places(self.left)
        signed = signatures.stayed_text(self.agreement(), stayed, left)
        same = proof.get("signer") == self.proofs[site].get("signer")
        if not same or (proof and not signatures.signer_of(signed, proof)):
            raise Refused("it did not sign the list of who stayed with the key of before")
        self.agreed[site] = proof
        self.there.append(site)

    def take_unmask(self, site: str, text: object) -> None:
        """Shares of the secrets that are needed: each must be the one that its owner dealt."""
        found = secure.read_message(text, self.most_text).get("shares")
        place, given = self.sites.index(site), {}
        for other in (*self.stayed, *self.left):
            i = self.sites.index(other)
            value = found.get(str(i)) if isinstance(found, dict) else None
            share = secure.read_bytes(value, f"the share of {other}", masks.SHARE_BYTES)
            if masks.hashed(share) != self.dealt[other]["hashes"][place][other in self.left]:
                raise Refused(f"it sent a wrong share of {other}'s secret")
            given[other] = share
        for other, share in given.items():
            self.shares.setdefault(other, []).append(share)
        self.there.append(site)

    def result(self) -> tuple[NDArray[np.int64], int]:
        """(P,) the sum of those that stayed, in steps, and how many clipped their change."""
        self.require_enough()
        told = self.agreement()
        total, size = self.sum, self.size + 1
        for site in self.stayed:
            seed = self._secret(site)
            if masks.hashed(seed) != self.dealt[site]["own_hash"]:
                raise self._dealt_wrong(site)
            total = total - masks.own_mask(seed, told, size)
        for site in self.left:
            secret, place = self._private_key(site), self.sites.index(site)
            for other in self.stayed:
                shared = masks.agree(secret, self.keys[other][0])
                mask = masks.pair_mask(shared, told, size)
                total = total - mask if self.sites.index(other) < place else total + mask
        try:
            return secure.from_words(total, len(self.stayed), self.rule)
        except Refused as why:
            raise AttemptFailed(str(why)) from None

    def _secret(self, site: str) -> bytes:
        try:
            return masks.join_shares(self.shares[site][: self.least])
        except Refused:
            raise self._dealt_wrong(site) from None

    def _private_key(self, site: str) -> bytes:
        """The private key of the masks of a site that left."""
        key = masks.seed_key(self._secret(site), b"fedmaba key")
        try:
            secret = masks.unseal(key, self.dealt[site]["sealed_key"])
            if masks.public_key(secret) != self.keys[site][0]:
                raise Refused("another key")
        except Refused:
            raise self._dealt_wrong(site) from None
        return secret

    def _dealt_wrong(self, site: str) -> AttemptFailed:
        return AttemptFailed(f"{site} gave out shares that do not fit its secret", [site])

    def _sealed(self, senders: Sequence[int], receiver: str) -> list[bytes | None]:
        place = self.sites.index(receiver)
        sent: list[bytes | None] = [None] * len(self.sites)
        for i in senders:
            sent[i] = self.dealt[self.sites[i]]["sealed"][place]
        return sent

    def require_enough(self) -> None:
        """Raise AttemptFailed if fewer sites are left than the threshold."""
        if len(self.there) >= self.least:
            return
        guilty = [site for site, many in self.accused.items() if many >= self.least]
        said = f", and {', '.join(guilty)} sent shares that do not open" if guilty else ""
        raise AttemptFailed(
            f"{len(self.there)} of {len(self.sites)} sites answered in stage {self.stage}: "
            f"{self.least} are needed{said}",
            guilty,
        )


Exchange = Callable[[Mapping[str, str]], Mapping[str, RawReply]]  # texts and replies by site


def sum_changes(
    attempt: SecureRound,
    replies: Sequence[Reply],  # of stage `keys`, in the order of the sites
    decide: Callable[[Sequence[Reply]], Decision],
    exchange: Exchange,
) -> tuple[SecureResult, list[str]]:
    """The stages after the first: the sum, and a line about each site that left.

    Raises AttemptFailed when too few sites are left.
    """
    refused: list[str] = []

    def stage(take: Callable[[str, RawReply], None]) -> None:
        texts = attempt.ask()
        answers = exchange(texts)
        for site in texts:
            raw = answers.get(site)
            try:
                if raw is None:
                    raise Refused("no answer")
                _check(raw, site, attempt.attempt)
                take(site, raw)
            except Refused as why:
                refused.append(f"{site}: left in stage {attempt.stage} of the secure sum: {why}")

    def said(raw: RawReply) -> object:
        return raw.words.get("secure")

    try:
        attempt.begin([r.site for r in replies])
        stage(lambda site, raw: attempt.take_shares(site, said(raw)))
        there = [r for r in replies if r.site in attempt.there]
        attempt.require_enough()
        decision = decide(there)
        shares, total = secure.shares_of_weight(decision.coef)
        attempt.set_weights(shares.tolist())
        _require_spread(attempt)
        stage(lambda site, raw: attempt.take_masked(site, raw.arrays.get(MASKED), said(raw)))
        attempt.require_enough()
        # before anybody unmasks: an opened sum cannot be closed again
        secure.check_held(_there(attempt))
        secure.check_largest(_there(attempt), attempt.rule.most_share)
        if attempt.signed:
            stage(lambda site, raw: attempt.take_agreed(site, said(raw)))
        stage(lambda site, raw: attempt.take_unmask(site, said(raw)))
        steps, clipped = attempt.result()
    except Refused as why:
        raise AttemptFailed(str(why), lines=refused) from None
    except AttemptFailed as failed:
        failed.lines = refused
        raise
    by_site = dict(zip([r.site for r in there], shares.tolist(), strict=True))
    stayed = attempt.stayed
    return SecureResult(attempt.rule, decision, by_site, total, stayed, steps, clipped), refused


def _there(attempt: SecureRound) -> list[float]:
    """The shares of the weight of the sites that are still there."""
    by_site = dict(zip(attempt.sites, attempt.weights, strict=True))
    return [by_site[site] or 0.0 for site in attempt.there]


def _require_spread(attempt: SecureRound) -> None:
    """End the run where one site is to hold too much: a repeat would weigh them the same."""
    try:
        secure.check_largest(_there(attempt), attempt.rule.most_share)
    except Refused as why:
        where = " ".join(attempt.attempt.split()[:2])  # the round
        raise InputError(f"{where}: no site was asked for its change: {why}") from None


def _check(raw: RawReply, site: str, attempt: str) -> None:
    """Whether a reply is this site's to this attempt; else Refused."""
    if raw.error is not None:
        raise Refused(f"it failed: {printable(raw.error, 200)}")
    if raw.round_id != attempt:
        raise Refused(f"it answers {printable(raw.round_id)!r}, but this is another attempt")
    if site_name(raw.words) != site:
        raise Refused(f"it says site {printable(raw.words.get('site'))!r}")
