"""A site's side of a secure sum: it answers one message at a time. No torch.

Between messages its secrets are in a `memory` of JSON values, which the site keeps and nobody else
sees. A site takes part in one attempt of a round at a time, masks once, signs one list of who
stayed, and unmasks once: from the shares of two answers the server could learn a single change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmaba.deploy import masks, secure
from fedmaba.deploy.secure import STAGES, MaskedWords, SecureSum
from fedmaba.deploy.site_rules import SiteRules
from fedmaba.deploy.validation import Refused, printable
from fedmaba.errors import InputError
from fedmaba.privacy import secret_noise
from fedmaba.privacy.mechanism import noised_losses

Memory = dict[str, Any]
PLACE_BYTES = 4
NO_RULES = SiteRules()
# what a site tells besides its loss, if that has noise
NUMBERS_IN_CLEAR = ("num-examples", "started-anew")


def asked(text: object, memory: Memory | None) -> dict[str, Any]:
    """What the server asks for: it must be the next stage of the attempt that is under way."""
    try:
        found = secure.read_message(text, secure.MOST_TEXT_BYTES)
    except Refused as why:
        raise InputError(f"the server's message: {why}: use one version of fedmaba") from None
    stage, attempt = found.get("stage"), found.get("attempt")
    if stage not in STAGES or not isinstance(attempt, str):
        raise InputError(f"the server asks for {printable(stage)!r}: use one version of fedmaba")
    if stage == "keys":
        return found
    if memory is None or memory["attempt"] != attempt:
        raise InputError("the server goes on with a secure sum that this site does not know")
    after = STAGES[STAGES.index(memory["stage"]) + 1]
    skips = (after, stage) == ("agree", "unmask")  # where nobody signs; `give_unmask` looks
    if stage != after and not skips:
        raise InputError(f"the server asks for {stage!r}, but {after!r} comes next")
    return found


def give_keys(
    found: Mapping[str, Any], rules: SiteRules = NO_RULES
) -> tuple[dict[str, Any], Memory]:
    """The first answer: two new public keys, signed where this site has a key to sign with."""
    rule, _ = _rule(found.get("rule"))
    (mask_secret, mask_public), (seal_secret, seal_public) = masks.new_key(), masks.new_key()
    memory: Memory = {"attempt": found["attempt"], "stage": "keys", "rule": rule.to_json()}
    memory |= {"mask": mask_secret.hex(), "seal": seal_secret.hex()}
    proof = rules.signed(found["attempt"], (mask_public, seal_public))
    return {"mask_key": mask_public, "seal_key": seal_public, **proof}, memory


def give_shares(
    found: Mapping[str, Any], memory: Memory, rules: SiteRules = NO_RULES
) -> tuple[dict[str, Any], Memory]:
    """The second answer: for each other site, a sealed share of each of two new secrets.

    `own` makes the site's own mask, `key` opens the private key of its masks with others. The
    server learns `own` of sites that stay, or `key` of sites that leave, but never both.
    """
    with _server_errors():
        place, least, mask_keys, seal_keys = _roster(found, memory)
        pairs_of_keys = list(zip(mask_keys, seal_keys, strict=True))
        proofs = found.get("signatures")
        signers = rules.check_peers(memory["attempt"], pairs_of_keys, proofs, least)
    sites = len(mask_keys)
    own, key = masks.new_seed(), masks.new_seed()
    secret, seal_secret = bytes.fromhex(memory["mask"]), bytes.fromhex(memory["seal"])
    pairs = list(
        zip(masks.split_seed(own, least, sites), masks.split_seed(key, least, sites), strict=True)
    )
    sealed: list[bytes | None] = []
    for i, (pair, public) in enumerate(zip(pairs, seal_keys, strict=True)):
        text = b"".join([_place(place), _place(i), *pair])
        sealed.append(None if i == place else masks.seal(masks.agree(seal_secret, public), text))
    answer = {
        "sealed": sealed,
        "share_hashes": [[masks.hashed(share) for share in pair] for pair in pairs],
        "own_hash": masks.hashed(own),
        "sealed_key": masks.seal(masks.seed_key(key, b"fedmaba key"), secret),
    }
    after: Memory = {"stage": "shares", "place": place, "least": least, "own": own.hex()}
    after["signers"] = signers
    after |= {"mask_keys": [k.hex() for k in mask_keys], "seal_keys": [k.hex() for k in seal_keys]}
    return answer, memory | after | {"pairs": {str(place): [s.hex() for s in pairs[place]]}}


def give_masked(
    found: Mapping[str, Any], memory: Memory, change: NDArray[Any], rules: SiteRules = NO_RULES
) -> tuple[MaskedWords | None, dict[str, Any], Memory]:
    """The third answer: the masked change, or the places whose shares cannot be opened."""
    place, least, sites = memory["place"], memory["least"], len(memory["mask_keys"])
    with _server_errors():
        weights = secure.read_shares_of_weight(found.get("weights"), sites, least)
        tokens = secure.read_list(found.get("sealed"), "sealed", sites)
        mine = weights[place]
        if mine is None:
            raise Refused("this site is not in the sum")
        rule = SecureSum(**memory["rule"])
        rules.check_shares([w for w in weights if w is not None], rule.most_share)
    rules.memory.check_sum(memory["attempt"], [*weights, *memory["signers"]])
    pairs, bad = dict(memory["pairs"]), []
    for i, weight in enumerate(weights):
        if weight is not None and i != place:
            try:
                pairs[str(i)] = [share.hex() for share in _open(tokens[i], i, memory)]
            except Refused:
                bad.append(i)
    if bad:
        return None, {"bad": bad}, memory | {"stage": "mask", "pairs": {}}
    words = secure.to_words(*secure.quantise(change, mine, rule)).copy()
    keys = [bytes.fromhex(key) for key in memory["mask_keys"]]
    told = secure.agreement(memory["attempt"], memory["rule"], least, keys, weights)
    words += masks.own_mask(bytes.fromhex(memory["own"]), told, len(words))
    for i, weight in enumerate(weights):
        if weight is not None and i != place:
            shared = masks.agree(bytes.fromhex(memory["mask"]), keys[i])
            mask = masks.pair_mask(shared, told, len(words))
            words = words + mask if place < i else words - mask
    after = {"attempt": memory["attempt"], "stage": "mask", "place": place, "least": least}
    after |= {"weights": weights, "most_share": rule.most_share}
    after |= {"agreed": told.hex(), "signers": memory["signers"]}
    return words, {}, after | {"pairs": pairs, "sites": sites}


def give_agreed(
    found: Mapping[str, Any], memory: Memory, rules: SiteRules = NO_RULES
) -> tuple[dict[str, Any], Memory]:
    """The answer to who stayed: a signature of this one list."""
    stayed, left = _who_stayed(found, memory, rules)
    proof = rules.sign_stayed(bytes.fromhex(memory["agreed"]), stayed, left)
    return proof, memory | {"stage": "agree", "stayed": stayed}


def give_unmask(
    found: Mapping[str, Any], memory: Memory, rules: SiteRules = NO_RULES
) -> dict[str, Any]:
    """The last answer: shares of `own` for who stayed, and of `key` for who left."""
    stayed, left = _who_stayed(found, memory, rules)
    with _server_errors():
        if memory.get("stayed", stayed) != stayed:
            raise Refused("it named others that stayed before")
        agreed, proofs = bytes.fromhex(memory["agreed"]), found.get("signatures")
        rules.check_stayed(agreed, stayed, left, memory["signers"], proofs, memory["least"])
    owners = [*memory["weights"], *memory["signers"]]
    rules.memory.open_sum(memory["attempt"], owners, stayed)
    pairs = memory["pairs"]
    told = {str(i): pairs[str(i)][0] for i in stayed} | {str(i): pairs[str(i)][1] for i in left}
    return {"shares": {i: bytes.fromhex(share) for i, share in told.items()}}


def _who_stayed(
    found: Mapping[str, Any], memory: Memory, rules: SiteRules
) -> tuple[list[int], list[int]]:
    """The places of who stayed and who left: all that were to be in the sum, and enough."""
    if "sites" not in memory:
        raise InputError("this site masked nothing, so it unmasks nothing")
    with _server_errors():
        sites = memory["sites"]
        stayed = secure.read_places(found.get("stayed"), "stayed", sites)
        left = secure.read_places(found.get("left"), "left", sites)
        if set(stayed) & set(left) or {*map(str, stayed), *map(str, left)} != set(memory["pairs"]):
            raise Refused("who stayed and who left must be those who were to be in the sum")
        if len(stayed) < memory["least"] or memory["place"] not in stayed:
            raise Refused(
                f"{len(stayed)} sites stayed: {memory['least']} are agreed, with this one"
            )
        held = [memory["weights"][i] for i in stayed]
        secure.check_held(held)
        rules.check_shares(held, memory["most_share"])
    return stayed, left


def noise_numbers(found: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a site tells with noise on its loss; None where the server asks for no noise.

    Its loss is bounded, noised and bounded again, and its scores stay here: they have no noise.
    """
    _, losses = _rule(found.get("rule"))
    if losses is None:
        return None
    told = {name: value for name, value in numbers.items() if name in NUMBERS_IN_CLEAR}
    most, deviation = losses
    if deviation > 0 and isinstance(numbers.get("loss"), int | float):
        noise = deviation * secret_noise.normals(1)
        told["loss"] = float(noised_losses(np.array([numbers["loss"]], float), most, noise)[0])
    return told


def _rule(value: object) -> tuple[SecureSum, tuple[float, float] | None]:
    """The settings that the server named, checked as the operator's are.

    Besides those of the sum: the largest loss and the noise on it, None where it stays as it is.
    """
    if not isinstance(value, dict):
        raise InputError("the server names no settings of secure sums")
    sums = {name: v for name, v in value.items() if name not in ("loss", "loss_noise")}
    try:
        rule = SecureSum(**sums)
    except TypeError:
        raise InputError("the server names no settings of secure sums") from None
    if len(sums) == len(value):
        return rule, None
    told = [value.get(name) for name in ("loss", "loss_noise")]
    found = [float(v) for v in told if isinstance(v, int | float) and 0 <= v < math.inf]
    if len(found) < len(told) or found[0] == 0:
        raise InputError("the server names no bound and noise of losses: use one version")
    return rule, (found[0], found[1])


def _roster(found: Mapping[str, Any], memory: Memory) -> tuple[int, int, list[bytes], list[bytes]]:
    """This site's place, the threshold and the public keys of all, checked; else Refused."""
    place, least = found.get("place"), found.get("least")
    first = found.get("mask_keys")
    sites = len(first) if isinstance(first, list) else 0
    if type(place) is not int or not 0 <= place < sites or type(least) is not int:
        raise Refused("it names no place and threshold")
    why = secure.wrong_threshold(least, sites)
    if why:
        raise Refused(f"of {sites} sites, {why}")
    mask_keys, seal_keys = (
        [
            secure.read_bytes(key, "a public key", masks.PUBLIC_BYTES)
            for key in secure.read_list(found.get(name), name, sites)
        ]
        for name in ("mask_keys", "seal_keys")
    )
    every = mask_keys + seal_keys
    if len(set(every)) < len(every):
        raise Refused("two public keys are the same")
    own = (bytes.fromhex(memory["mask"]), bytes.fromhex(memory["seal"]))
    if (mask_keys[place], seal_keys[place]) != tuple(map(masks.public_key, own)):
        raise Refused("the public keys at this site's place are not its own")
    for key in every:
        masks.load_public_key(key)
    return place, least, mask_keys, seal_keys


def _open(token: object, sender: int, memory: Memory) -> tuple[bytes, bytes]:
    """The two shares that another site sealed for this one, or Refused."""
    sealed = secure.read_bytes(token, "a sealed share", most=secure.TEXT_BYTES_PER_SITE)
    public = bytes.fromhex(memory["seal_keys"][sender])
    text = masks.unseal(masks.agree(bytes.fromhex(memory["seal"]), public), sealed)
    head = _place(sender) + _place(memory["place"])
    size = masks.SHARE_BYTES
    if not text.startswith(head) or len(text) != len(head) + 2 * size:
        raise Refused("a sealed share is for somebody else")
    return text[len(head) : -size], text[-size:]


def _place(i: int) -> bytes:
    return i.to_bytes(PLACE_BYTES, "big")


@contextmanager
def _server_errors() -> Iterator[None]:
    """Says that what was refused is the server's message."""
    try:
        yield
    except Refused as error:
        raise InputError(f"the server's message for a secure sum: {error}") from None


def flat_change(trained: Mapping[str, NDArray[Any]], start: Mapping[str, NDArray[Any]]) -> Any:
    """(P,) trained minus received weights, in the server's order and type."""
    kind = np.result_type(np.float32, *(array.dtype for array in start.values()))
    return np.concatenate(
        [trained[name].ravel().astype(kind) - a.ravel().astype(kind) for name, a in start.items()]
    )
