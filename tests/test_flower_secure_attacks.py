"""Secure sums against those who cheat, and what the server can learn from what it receives."""

import base64
import itertools
import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedmaba.deploy import masks, secure, secure_site
from fedmaba.deploy.secure import SecureSum
from fedmaba.deploy.secure_round import SecureRound, sum_changes
from fedmaba.deploy.validation import NPY, RawArray, RawReply, Reply
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, secure_mod
from fedmaba.strategies.base import Decision
from flower_grid import LocalGrid, light_app, light_model, stage_of

SITES = 5
CHEAT = 97  # the node of site-3


def cheated(stage, change, rounds=1, nodes=(CHEAT,), times=99):
    """A run in which some sites' answers of a stage are changed; its reports and model."""
    left = [times]

    def spoil(message, answer):
        if message.metadata.dst_node_id in nodes and stage_of(message) == stage and left[0]:
            left[0] -= 1
            text = json.loads(answer.content["config"]["secure"])
            sent = answer.content.get("arrays", {})
            arrays = {name: array.numpy() for name, array in sent.items()}
            change(text, arrays, message)
            records = dict(answer.content.metric_records)
            if arrays:
                records["arrays"] = ArrayRecord({n: Array(a) for n, a in arrays.items()})
            words = {**answer.content["config"], "secure": json.dumps(text)}
            return Message(RecordDict({**records, "config": ConfigRecord(words)}), reply_to=message)
        return answer

    grid = LocalGrid({100 - c: light_app(c, [secure_mod]) for c in range(SITES)}, spoil)
    options = {"min_available_nodes": SITES, "grace": 0, "evaluate": False}
    strategy = FlowerStrategy("fedavg", secure=SecureSum(threshold=3), **options)
    result = strategy.start(grid, light_model(), rounds, timeout=3)
    return strategy.reports, result.arrays["w"].numpy()


def expected(kept) -> float:
    """Where the model stands after one round of these sites."""
    return 0.1 * sum((10 + c) * c for c in kept) / sum(10 + c for c in kept)


def swap(value: str) -> str:
    """Another text of base64, of the same length."""
    return value[:8] + ("A" if value[8] != "A" else "B") + value[9:]


def test_a_wrong_share_is_refused_and_its_sender_named():
    def wrong(text, arrays, message):
        text["shares"]["1"] = swap(text["shares"]["1"])

    (report,), model = cheated("unmask", wrong)
    (line,) = report["refused"]
    assert line == (
        "site-3: left in stage unmask of the secure sum: it sent a wrong share of site-1's secret"
    )
    np.testing.assert_allclose(model, expected(range(SITES)), atol=1e-6)  # the round goes on


def test_a_replayed_public_key_is_refused():
    kept: list[dict] = []

    def replay(text, arrays, message):
        kept.append(dict(text))
        text |= kept[0]

    reports, _ = cheated("keys", replay, rounds=2)
    assert reports[0]["refused"] == []
    (line,) = reports[1]["refused"]
    assert "(site-3): it sent a public key that was sent before" in line
    assert reports[1]["secure"]["summed"] == SITES - 1


def test_the_public_key_of_another_site_is_refused():
    seen: list[str] = []

    def foreign(text, arrays, message):
        if message.metadata.dst_node_id == 100:
            seen.append(text["mask_key"])
        else:
            text["mask_key"] = seen[0]

    (report,), model = cheated("keys", foreign, nodes=(100, CHEAT))
    (line,) = report["refused"]
    assert "(site-3): it sent a public key that was sent before" in line
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


def test_a_key_that_is_no_point_of_the_curve_is_refused():
    def broken(text, arrays, message):
        text["seal_key"] = "A" * 64 + "AA=="

    (report,), model = cheated("keys", broken)
    (line,) = report["refused"]
    assert "P-384" in line or "bytes" in line
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


def test_a_site_that_sends_its_numbers_without_masks_is_refused():
    def bare(text, arrays, message):
        arrays["masked"] = secure.to_words(np.arange(50) * 1000, False)

    (report,), model = cheated("mask", bare)
    (line,) = report["refused"]
    assert line == (
        "site-3: left in stage mask of the secure sum: it sent numbers without masks: "
        "they are not used"
    )
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


def test_masks_that_do_not_fit_make_the_round_repeat():
    def noise(text, arrays, message):
        arrays["masked"] = np.random.default_rng(1).integers(0, 2**32, 51, np.uint32)

    (report,), model = cheated("mask", noise, times=1)
    (line,) = report["refused"]
    assert "round 1 is repeated: the sum lies outside" in line
    np.testing.assert_allclose(model, expected(range(SITES)), atol=1e-6)


def test_a_site_that_deals_shares_nobody_can_open_is_left_out_of_the_repeat():
    def spoiled(text, arrays, message):
        text["sealed"] = [token and swap(token) for token in text["sealed"]]

    (report,), model = cheated("shares", spoiled)
    (again,) = [line for line in report["refused"] if "repeated" in line]
    assert "and site-3 sent shares that do not open" in again
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


def test_a_site_that_deals_shares_of_another_secret_is_named_and_left_out():
    def other(text, arrays, message):
        text["own_hash"] = swap(text["own_hash"])

    (report,), model = cheated("shares", other)
    (again,) = report["refused"]
    assert again == "round 1 is repeated: site-3 gave out shares that do not fit its secret"
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


@pytest.mark.parametrize(
    "stage",
    [*(pytest.param(s, marks=pytest.mark.slow) for s in ("keys", "shares")), "mask", "unmask"],
)
def test_no_answer_of_a_site_ends_the_run(stage):
    """Each value of an answer is replaced by nonsense in turn."""
    names: list[str] = ["bad"] if stage == "mask" else []
    cheated(stage, lambda text, arrays, message: names.extend(text))
    assert names
    for name, junk in itertools.product(sorted(set(names)), (None, {"x": [1]})):

        def nonsense(text, arrays, message, name=name, junk=junk):
            text[name] = junk

        (report,), _ = cheated(stage, nonsense)
        assert any("site-3" in line for line in report["refused"])


@pytest.mark.parametrize("junk", [np.zeros(51), np.zeros(50, np.uint32), np.zeros((51, 1), "u4")])
def test_a_masked_change_of_another_form_is_refused(junk):
    def other(text, arrays, message):
        arrays["masked"] = junk

    (report,), model = cheated("mask", other)
    (line,) = report["refused"]
    assert "but the model has uint32 (51,)" in line
    np.testing.assert_allclose(model, expected([0, 1, 2, 4]), atol=1e-6)


# the server's lies to a site


def talk(count=3, least=2):
    """Sites that have dealt their shares: what each was told and remembers."""
    rule = SecureSum(threshold=least)
    attempt = SecureRound(rule, "round", 20, set())
    memories = {}
    for c in range(count):
        told, memory = secure_site.give_keys(secure_site.asked(attempt.first_task(), None))
        attempt.take_keys(f"s{c}", secure.write_message(told))
        memories[f"s{c}"] = memory
    attempt.begin(list(memories))
    return attempt, memories


def test_a_site_refuses_keys_that_were_exchanged_or_repeated():
    attempt, memories = talk()
    texts = {site: json.loads(text) for site, text in attempt.ask().items()}
    own = texts["s0"]
    for change in (
        {"mask_keys": [own["mask_keys"][i] for i in (1, 0, 2)]},
        {"mask_keys": [own["mask_keys"][i] for i in (0, 1, 1)]},
        {"place": 1},
        {"place": 7},
        {"least": 1},
        {"least": 4},
        {"seal_keys": own["seal_keys"][:2]},
        {"mask_keys": [own["mask_keys"][0], *["A" * 64 + "AA=="] * 2]},
    ):
        with pytest.raises(InputError, match="the server's message for a secure sum") as error:
            secure_site.give_shares(own | change, memories["s0"])
        assert "\n" not in str(error.value)
    secure_site.give_shares(own, memories["s0"])


def masked(attempt, memories, weights=None):
    """Go on to the masked changes; `weights` may be told to the sites one by one."""
    for site, text in attempt.ask().items():
        told, memories[site] = secure_site.give_shares(json.loads(text), memories[site])
        attempt.take_shares(site, secure.write_message(told))
    attempt.set_weights([1 / len(memories)] * len(memories))
    for number, (site, text) in enumerate(attempt.ask().items()):
        told = json.loads(text)
        if weights is not None:
            told["weights"] = weights[number]
        words, _, memories[site] = secure_site.give_masked(told, memories[site], np.ones(20))
        attempt.sum = attempt.sum + words
        attempt.there.append(site)


def test_a_site_never_gives_both_shares_of_one_site():
    attempt, memories = talk()
    masked(attempt, memories)
    good = json.loads(attempt.ask()["s0"])
    for stayed, left in (
        ([0, 1, 2], [1]),
        ([0, 1], [1, 2]),
        ([0, 1], []),
        ([0], [1, 2]),
        ([1, 2], [0]),
        ([0, 1, 2], [3]),
    ):
        with pytest.raises(InputError, match="the server's message for a secure sum"):
            secure_site.give_unmask(good | {"stayed": stayed, "left": left}, memories["s0"])
    assert set(secure_site.give_unmask(good, memories["s0"])["shares"]) == {"0", "1", "2"}


def test_weights_that_differ_from_site_to_site_give_the_server_nothing():
    """A server that tells one site that it nearly alone counts, and others the same, gets noise."""
    alone = [[0.9, 0.1, 0.0], [1 / 3] * 3, [1 / 3] * 3]
    for weights in (None, alone):
        attempt, memories = talk()
        masked(attempt, memories, weights)
        for site, text in attempt.ask().items():
            told = secure_site.give_unmask(json.loads(text), memories[site])
            attempt.take_unmask(site, secure.write_message(told))
        if weights is None:
            assert np.abs(attempt.result()[0] * attempt.rule.step - 1).max() < 1e-6
        else:
            with pytest.raises(Exception, match="outside what"):
                attempt.result()


# secrecy


def decoded(value) -> bytes:
    """All bytes in a text of a site, whatever it is made of."""
    if isinstance(value, dict):
        return b"".join(decoded(inner) for inner in value.values())
    if isinstance(value, list):
        return b"".join(map(decoded, value))
    return base64.b64decode(value) if isinstance(value, str) else b""


class Seen:
    """What the server receives in a round, and what it can open of it."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}  # masked changes, also one that comes too late
        self.opened: dict[str, np.ndarray] = {}  # the same without masks that the server knows
        self.texts: dict[tuple[str, str], bytes] = {}  # by site and by what it is


def received(count, changes, gone=""):
    """What the server sees of a round, and the sum; the masked change of `gone` comes too late."""
    rule = SecureSum(threshold=0.6, clip=20.0)  # no change is clipped: their norms are near 8
    attempt = SecureRound(rule, "round", changes.shape[1], set())
    memories, replies, seen, own, secret = {}, [], Seen(), {}, {}

    def note(site, told):
        for name, value in json.loads(secure.write_message(told)).items():
            seen.texts[site, name] = decoded(value)

    for c in range(count):
        site = f"s{c}"
        told, memories[site] = secure_site.give_keys(secure_site.asked(attempt.first_task(), None))
        secret[site] = bytes.fromhex(memories[site]["mask"])
        note(site, told)
        attempt.take_keys(site, secure.write_message(told))
        replies.append(Reply(c, site, {}, 1))

    def exchange(texts):
        answers = {}
        for site, text in texts.items():
            found, memory, arrays = json.loads(text), memories[site], {}
            if found["stage"] == "shares":
                told, memories[site] = secure_site.give_shares(found, memory)
                own[site] = bytes.fromhex(memories[site]["own"])
            elif found["stage"] == "mask":
                change = changes[int(site[1:])]
                words, told, memories[site] = secure_site.give_masked(found, memory, change)
                seen.arrays[site] = words
                arrays = {"masked": as_raw(words)}
            else:
                told = secure_site.give_unmask(found, memory)
            note(site, told)
            words_ = {"site": site, "secure": secure.write_message(told)}
            if not (site == gone and found["stage"] == "mask"):
                answers[site] = RawReply(0, attempt.attempt, arrays, {}, words_)
        return answers

    coef = np.full(count, 1 / count)
    summed, refused = sum_changes(attempt, replies, lambda r: Decision(coef, {}), exchange)
    assert [line.split(":")[0] for line in refused] == [gone] * bool(gone)
    keys = [attempt.keys[s][0] for s in attempt.sites]
    asked = rule.to_json()
    told = secure.agreement(attempt.attempt, asked, attempt.least, keys, attempt.weights)
    for site, words in seen.arrays.items():
        size = len(words)
        if site != gone:  # the server learns its own mask, and the private key of `gone`
            words = words - masks.own_mask(own[site], told, size)
        for other in set(attempt.sites) - {site}:
            if gone in (site, other):
                shared = masks.agree(secret[gone], attempt.keys[other if site == gone else site][0])
                mask = masks.pair_mask(shared, told, size)
                first = attempt.sites.index(site) < attempt.sites.index(other)
                words = words - mask if first else words + mask
        seen.opened[site] = words
    return seen, summed


def as_raw(words) -> RawArray:
    """An array as Flower brings it."""
    header = f"{{'descr': '<u4', 'fortran_order': False, 'shape': {words.shape}, }}"
    data = NPY + len(header).to_bytes(2, "little") + header.encode() + words.tobytes()
    return RawArray("uint32", words.shape, "numpy.ndarray", data)


def alike(changes, numbers) -> np.ndarray:
    """(sites,) z-scores: how much numbers are like each change; normal where they know nothing."""
    size, z = changes.shape[1], np.zeros(len(changes))
    parts = [numbers[i : i + size] for i in range(0, len(numbers), size)]
    for part in parts:
        seen = np.pad(part.astype(float), (0, size - len(part)))
        z += changes @ (seen / max(np.linalg.norm(seen), 1e-9))
    return z / np.sqrt(len(parts))


def scores_of_rounds(rounds: int, gone="", count: int = 4, size: int = 60):
    """z-scores of every change with sums over subsets of sites, and with all texts, by name."""
    rng = np.random.default_rng(5)
    stayed = tuple(c for c in range(count) if f"s{c}" != gone)
    subsets = [s for k in range(1, count + 1) for s in itertools.combinations(range(count), k)]
    subsets.remove(stayed)  # their sum is the result
    z: dict[object, np.ndarray] = {}
    whole = []
    for _ in range(rounds):
        changes = rng.normal(size=(count, size))
        seen, summed = received(count, changes, gone)
        for subset in subsets:
            for name in ("arrays", "opened"):
                words = sum(getattr(seen, name)[f"s{c}"] for c in subset).astype(np.uint32)
                found = alike(changes, words[:-1].view(np.int32))
                if gone or name == "opened" or len(subset) < count:
                    z[name, subset] = z.get((name, subset), 0) + found
        for key, text in seen.texts.items():
            for kind in (np.uint8, np.dtype("<u4")):
                if len(text) >= 4:
                    numbers = np.frombuffer(text[: len(text) // 4 * 4], kind).astype(float)
                    numbers -= numbers.mean()
                    z[key, str(kind)] = z.get((key, str(kind)), 0) + alike(changes, numbers)
        want = changes[list(stayed)].mean(0)
        whole.append(np.corrcoef(summed.move(), want)[0, 1])
    return {key: value / np.sqrt(rounds) for key, value in z.items()}, np.array(whole)


@pytest.mark.parametrize("gone", ["", "s1"])
@pytest.mark.parametrize("rounds", [12, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_that_the_server_receives_is_like_a_sites_change(rounds, gone):
    """No array, no sum of those of some sites, also without the masks that the server knows, and
    no text: keys, sealed shares, hashes, unmasking. The sum of all that stayed is exact.
    """
    found, whole = scores_of_rounds(rounds, gone)
    names = {key[0][1] for key in found if isinstance(key[0], tuple)}
    assert names == {
        *("mask_key", "seal_key", "sealed", "share_hashes", "own_hash", "sealed_key", "shares")
    }
    subsets = [key for key in found if key[0] in ("arrays", "opened")]
    assert len(subsets) == 2 * 14
    scores = np.array(list(found.values()))
    assert np.abs(scores).max() < 5  # some 300 numbers, each normal: above by chance in 0.02 %
    assert scores.std() == pytest.approx(1, abs=0.4)
    assert whole.min() > 1 - 1e-9


@pytest.mark.parametrize("leak", ["masks", "text"])
def test_the_measure_of_secrecy_sees_what_is_not_hidden(leak, monkeypatch):
    if leak == "masks":
        monkeypatch.setattr(masks, "own_mask", lambda seed, told, size: np.zeros(size, np.uint32))
        monkeypatch.setattr(masks, "pair_mask", lambda key, told, size: np.zeros(size, np.uint32))
        monkeypatch.setattr(secure, "looks_unmasked", lambda words, rule: False)
    else:  # a site that adds its change to its last text, in bytes
        give, change = secure_site.give_masked, []

        def noted(found, memory, own):
            change.append(own)
            return give(found, memory, own)

        def unmask(found, memory, usual=secure_site.give_unmask):
            own = np.clip(change[-1] * 40 + 128, 0, 255).astype(np.uint8).tobytes()
            return usual(found, memory) | {"note": own}

        monkeypatch.setattr(secure_site, "give_masked", noted)
        monkeypatch.setattr(secure_site, "give_unmask", unmask)
    found, _ = scores_of_rounds(3)
    assert max(np.abs(value).max() for value in found.values()) > 8
