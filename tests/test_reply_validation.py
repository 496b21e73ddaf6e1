"""The server of a real federation, without Flower: hostile replies, joins, restarts.

Every kind of hostile reply stands beside four honest ones, under six strategies: it must be left
out with a line that says why, and the model must be what the honest ones make of it.
"""

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from fedmaba.deploy.server import FederationServer
from fedmaba.deploy.settings import FederationSettings
from fedmaba.deploy.site_names import Node, SiteNames
from fedmaba.deploy.validation import (
    Limits,
    RawArray,
    RawReply,
    Refused,
    Reply,
    ReplyValidator,
    printable,
    read_array,
    some_names,
)
from fedmaba.errors import Busy, InputError
from fedmaba.results import run_folder
from fedmaba.results.state_folder import read_rounds
from fedmaba.strategies import REGISTRY, parse
from fedmaba.strategies.base import Decision

STRATEGIES = ["fedavg", "qffl:q=1", "afl", "term", "fedfv", "fedmaba:alpha=0.8"]
# test_flower_simulated has those that sites can play
ELSEWHERE = {"scaffold", "ditto", "local", "fairfed", "fednova", "fedeba", "mifa", "fedmdfg"}
ELSEWHERE |= {"eagle", "fedvarp", "maxfl", "feddgga", "pfedme", "apfl", "fedala"}
ELSEWHERE |= {"fedebaplus", "scaffpd"}
ON_FLOWER = [name for name in REGISTRY if name not in ELSEWHERE]
RNG = np.random.default_rng(0)
MODEL = {
    "0.weight": RNG.standard_normal((3, 4)).astype(np.float32),
    "0.bias": RNG.standard_normal(3).astype(np.float32),
    "1.running_var": np.ones(3, np.float32),
    "1.num_batches_tracked": np.array(0, np.int64),
}
LIAR = 7  # the node that is hostile


def npy(array) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def sent(array) -> RawArray:
    return RawArray(str(array.dtype), array.shape, "numpy.ndarray", npy(array))


def model_of(seed: int) -> dict:
    rng = np.random.default_rng(seed)
    moved = {n: a + 0.1 * rng.standard_normal(a.shape).astype(np.float32) for n, a in MODEL.items()}
    moved["1.running_var"] = np.abs(moved["1.running_var"])
    moved["1.num_batches_tracked"] = np.array(5, np.int64)
    return moved


def raw_reply(node: int, round_id: str, **change) -> RawReply:
    arrays = {name: sent(a) for name, a in model_of(node).items()}
    numbers = {"num-examples": 10 * node, "loss": 0.5 + 0.1 * node, "accuracy": 0.5}
    whole = RawReply(node, round_id, arrays, numbers, {"site": f"site-{node}"})
    return replace(whole, **change)


def with_array(name: str, new: RawArray):
    """A reply in which one array is another."""
    return lambda o: replace(o, arrays={**o.arrays, name: new})


def with_number(key: str, value):
    return lambda o: replace(o, numbers={**o.numbers, key: value})


def with_site(value):
    return lambda o: replace(o, words={"site": value})


def filled(value, shape=(3, 4), dtype=np.float32) -> RawArray:
    array = np.zeros(shape, dtype)
    array.flat[0] = value
    return sent(array)


def bytes_as(data: bytes) -> RawArray:
    """An array that says it is the right one, with other bytes."""
    return RawArray("float32", (3, 4), "numpy.ndarray", data)


def evil_header(text: str) -> bytes:
    body = text.encode()
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body + b"\0" * 48


GOOD = npy(MODEL["0.weight"])
W = "0.weight"
HOSTILE = {
    # the model: values
    "nan": with_array(W, filled(np.nan)),
    "infinity": with_array(W, filled(np.inf)),
    "huge value": with_array(W, filled(1e30)),
    "nan in a statistic": with_array("1.running_var", filled(np.nan, (3,))),
    "negative variance": with_array("1.running_var", filled(-1.0, (3,))),
    "negative counter": with_array("1.num_batches_tracked", sent(np.array(-1))),
    "counter at its end": with_array("1.num_batches_tracked", sent(np.array(2**63 - 1))),
    # the model: names, shapes, dtypes
    "array missing": lambda o: replace(o, arrays={k: v for k, v in o.arrays.items() if k != W}),
    "array too many": with_array("backdoor", filled(1.0)),
    "no arrays": lambda o: replace(o, arrays={}),
    "shape that broadcasts": with_array(W, sent(np.zeros((1, 4), np.float32))),
    "shape transposed": with_array(W, sent(np.zeros((4, 3), np.float32))),
    "double": with_array(W, sent(np.zeros((3, 4)))),
    "complex": with_array(W, sent(np.zeros((3, 4), np.complex64))),
    "big-endian": with_array(W, bytes_as(npy(MODEL[W].astype(">f4")))),
    # the model: bytes
    "huge payload": with_array(W, bytes_as(GOOD + b"\0" * 1_000_000)),
    "trailing bytes": with_array(W, bytes_as(GOOD + b"\0")),
    "truncated": with_array(W, bytes_as(GOOD[:-1])),
    "header only": with_array(W, bytes_as(GOOD[:10])),
    "noise": with_array(W, bytes_as(b"\x93NUMPY\x01\x00" + bytes(range(256)))),
    "pickle": with_array(W, bytes_as(b"\x80\x04cos\nsystem\n(S'true'\ntR.")),
    "object header": with_array(
        W, bytes_as(evil_header("{'descr': '|O', 'fortran_order': False, 'shape': (3, 4), }"))
    ),
    "header asks for a petabyte": with_array(
        W, bytes_as(evil_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 48,), }"))
    ),
    "header nested deep": with_array(W, bytes_as(evil_header("(" * 4000))),
    "other serialisation": with_array(W, RawArray("float32", (3, 4), "pickle", GOOD)),
    "lying shape": with_array(W, RawArray("float32", (3, 4), "numpy.ndarray", npy(np.zeros(12)))),
    "negative shape": with_array(W, RawArray("float32", (-3, 4), "numpy.ndarray", GOOD)),
    # the loss
    "loss nan": with_number("loss", math.nan),
    "loss negative": with_number("loss", -1.0),
    "loss huge": with_number("loss", 1e9),
    "loss a list": with_number("loss", [1.0]),
    "loss true": with_number("loss", True),
    "loss missing": lambda o: replace(o, numbers={"num-examples": 70}),
    # the count
    "count zero": with_number("num-examples", 0),
    "count huge": with_number("num-examples", 10**12),
    "count beyond any float": with_number("num-examples", 10**400),
    "count a fraction": with_number("num-examples", 70.5),
    "count nan": with_number("num-examples", math.nan),
    "count true": with_number("num-examples", True),
    "count missing": lambda o: replace(o, numbers={"loss": 1.0}),
    "accuracy above one": with_number("accuracy", 2.0),
    # who and when
    "another's name": with_site("site-1"),
    "no name": with_site(None),
    "empty name": with_site(""),
    "path as name": with_site("../../etc/passwd"),
    "name of control characters": with_site("a\n\x1b[31mroot"),
    "long name": with_site("a" * 100_000),
    "a number as name": with_site(7),
    "stale round": lambda o: replace(o, round_id="round 0 0123456789abcdef"),
    "no round": lambda o: replace(o, round_id=""),
    "nobody asked": lambda o: replace(o, node=99),
    "app failed": lambda o: replace(o, error="Traceback\n  boom"),
}  # fmt: skip
CASES = [(kind, spec) for kind in HOSTILE for spec in STRATEGIES]
CASES.remove(("loss missing", "fedavg"))  # which needs none


def server_of(spec: str, folder=None) -> FederationServer:
    server = FederationServer(FederationSettings(parse(spec)[0]), MODEL, folder)
    server.join(f"site-{n}" for n in (1, 2, 3, 4, LIAR))
    return server


def round_of(server: FederationServer, raw_replies) -> dict:
    """One round as the Flower side drives it."""
    asked = {n: f"site-{n}" for n in (1, 2, 3, 4, LIAR)}
    needs = server.settings.strategy.needs().loss != "none"
    validator = ReplyValidator(server.model, server.round_id(), asked, needs_loss=needs)
    return server.finish_round(*validator.validate(raw_replies))


def honest(server: FederationServer) -> list[RawReply]:
    return [raw_reply(n, server.round_id()) for n in (1, 2, 3, 4)]


# The reply is left out before a strategy sees it: each kind for two of them, some kinds for all.
SOME = ("loss missing", "stale round", "nobody asked")
QUICK = [c for c in CASES if c[0] in SOME or c[1] in ("fedavg", "fedmaba")]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_a_hostile_reply_is_left_out_and_changes_nothing(kind, spec):
    attacked, alone = server_of(spec), server_of(spec)
    for _ in range(2):  # the second round starts from what the first one left
        bad = HOSTILE[kind](raw_reply(LIAR, attacked.round_id()))
        report = round_of(attacked, [bad, *honest(attacked)])
        round_of(alone, honest(alone))
        assert len(report["refused"]) == 1
        (why,) = report["refused"]
        assert why.startswith(f"node {99 if kind == 'nobody asked' else LIAR}")
        assert len(why) < 400
        assert why.isprintable()
        assert list(report["sites"]) == ["site-1", "site-2", "site-3", "site-4"]
    for name, value in alone.model.items():
        assert np.isfinite(value).all()
        np.testing.assert_array_equal(attacked.model[name], value)
    for name, value in alone.state.items():
        np.testing.assert_array_equal(attacked.state[name], value)
    assert attacked.round == 2


@pytest.mark.parametrize("spec", STRATEGIES)
def test_one_reply_each(spec):
    twice, once = server_of(spec), server_of(spec)
    report = round_of(twice, [*honest(twice), *honest(twice)])
    round_of(once, honest(once))
    assert [why.split(": ")[1] for why in report["refused"]] == [
        "it answered this round already"
    ] * 4
    np.testing.assert_array_equal(twice.model[W], once.model[W])


def test_two_new_nodes_of_one_name_are_one_site():
    names = SiteNames()
    for node, site in ((3, "site-3"), (4, "away")):
        names.assign(Node(node), site)
    asked = {1: None, 2: None, 3: "site-3"}
    validator = ReplyValidator(
        MODEL, "m", asked, lambda n, site: names.check(Node(n), site), needs_loss=False
    )
    same = [raw_reply(n, "m", words={"site": "twin"}) for n in (1, 2)]
    theirs = [
        raw_reply(1, "m", words={"site": "away"}),
        raw_reply(2, "m", words={"site": "site-3"}),
    ]
    theirs.append(raw_reply(3, "m"))
    for arrived in (same, same[::-1]):
        replies, refused = validator.validate(arrived)
        assert [r.node for r in replies] == [1]
        assert "already" in refused[0]
    replies, refused = validator.validate(theirs)
    assert [r.node for r in replies] == [3]
    assert all("belongs to node" in why for why in refused)
    assert len(refused) == 2


def test_random_damage_never_gets_in():
    """Any bytes in place of an array are refused or are exactly an array of this shape."""
    rng = np.random.default_rng(1)
    like, accepted = MODEL[W], 0
    for _ in range(3000):
        data = bytearray(GOOD)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(len(data))] = rng.integers(256)
        data = bytes(data[: rng.integers(1, len(data) + 1)]) if rng.random() < 0.3 else bytes(data)
        try:
            values = read_array(W, bytes_as(data), like, Limits())
        except Refused:
            continue
        accepted += 1
        assert values.shape == like.shape
        assert values.dtype == like.dtype
        assert np.isfinite(values).all()
    assert accepted  # a flipped bit of a weight is no error of form


def test_fortran_order_and_empty_arrays_are_read():
    array = np.asfortranarray(RNG.standard_normal((3, 4)).astype(np.float32))
    np.testing.assert_array_equal(read_array(W, sent(array), MODEL[W], Limits()), array)
    empty = np.zeros((0, 4), np.float32)
    assert read_array("e", sent(empty), empty, Limits()).shape == (0, 4)
    lone = np.array(3.0, np.float32)
    assert read_array("s", sent(lone), lone, Limits()) == 3.0


def test_bytes_beyond_a_model_are_refused_before_any_is_read(monkeypatch):
    monkeypatch.setattr("fedmaba.deploy.validation.read_array", None)
    padded = {n: s._replace(data=s.data + bytes(5000)) for n, s in raw_reply(1, "m").arrays.items()}
    with pytest.raises(Refused, match="this model takes at most"):
        ReplyValidator(MODEL, "m", {1: "site-1"}).check(raw_reply(1, "m", arrays=padded))


def test_a_line_stays_a_line():
    assert printable("a\nb\x00") == "a?b?"
    assert printable("x" * 100) == "x" * 100
    assert printable("x" * 10**6) == "x" * 100 + "..."
    assert printable(10**10000) == "a huge number"
    assert some_names("dcba") == "a, b, c and 1 more"
    assert some_names("cab") == "a, b, c"


@pytest.mark.parametrize(
    ("key", "inside", "outside"),
    [
        ("loss", (0, 1000.0), (-1e-9, 1000.001)),
        ("num-examples", (1, 1_000_000), (0, 1_000_001)),
        ("accuracy", (0.0, 1.0), (-1e-9, 1.001)),
    ],
)
def test_a_number_on_a_limit_passes_and_the_next_does_not(key, inside, outside):
    validator = ReplyValidator(MODEL, "m", {1: "site-1"})
    for value in inside:
        reply = validator.check(with_number(key, value)(raw_reply(1, "m")))
        assert {"num-examples": reply.count}.get(key, getattr(reply, key, None)) == value
    for value in outside:
        with pytest.raises(Refused, match=f"{key} is"):
            validator.check(with_number(key, value)(raw_reply(1, "m")))


def test_an_entry_on_a_limit_passes_and_the_next_does_not():
    above = float(np.nextafter(np.float32(1e6), np.float32(2e6)))
    for sign in (1, -1):
        assert read_array(W, filled(sign * 1e6), MODEL[W], Limits())[0, 0] == sign * 1e6
        with pytest.raises(Refused, match="beyond"):
            read_array(W, filled(sign * above), MODEL[W], Limits())
    counter, like = "1.num_batches_tracked", MODEL["1.num_batches_tracked"]
    assert read_array(counter, sent(np.array(2**53)), like, Limits()) == 2**53  # a count, no weight
    with pytest.raises(Refused, match="beyond"):
        read_array(counter, sent(np.array(2**53 + 1)), like, Limits())


def test_limits_are_the_operators_own():
    validator = ReplyValidator(
        MODEL, "m", {1: "site-1"}, limits=Limits(loss=(-5.0, 5.0), count=9, weight=1.0)
    )
    with pytest.raises(Refused, match=r"1\.\.9"):
        validator.check(raw_reply(1, "m"))
    nine = {"num-examples": 9, "loss": -3.0}
    with pytest.raises(Refused, match="beyond 1"):
        validator.check(raw_reply(1, "m", numbers=nine))


# the server


def replies_of(server: FederationServer, nodes=(1, 2, 3, 4)) -> list[Reply]:
    return [
        Reply(n, f"site-{n}", model_of(n + 10 * server.round), 10 * n, 0.5 + 0.1 * n) for n in nodes
    ]


@pytest.mark.parametrize("spec", [*ON_FLOWER, "fedfv:tau=2", "term:normalise=reference"])
def test_a_server_that_starts_again_goes_on_with_the_same_numbers(spec, tmp_path):
    whole = server_of(spec)
    for _ in range(5):
        whole.finish_round(replies_of(whole))
    for _ in range(5):  # a new process for each round
        part = server_of(spec, tmp_path / "state")
        part.finish_round(replies_of(part))
        part.folder.close()
    again = server_of(spec, tmp_path / "state")
    again.folder.close()
    assert again.round == whole.round == 5
    assert again.sites == whole.sites
    for a, b in ((again.model, whole.model), (again.deployed, whole.deployed)):
        for name, value in b.items():
            np.testing.assert_array_equal(a[name], value)
    for name, value in whole.state.items():
        np.testing.assert_array_equal(again.state[name], value)
    np.testing.assert_array_equal(again.past.change, whole.past.change)
    assert [r["round"] for r in read_rounds(tmp_path / "state", 0)] == [1, 2, 3, 4, 5]


def test_a_damaged_state_falls_back_one_round(tmp_path):
    server = server_of("fedmaba", tmp_path)
    for _ in range(3):
        server.finish_round(replies_of(server))
    server.folder.close()
    newest = run_folder.checkpoints(tmp_path)[0]
    newest.write_bytes(newest.read_bytes()[:-1])
    again = server_of("fedmaba", tmp_path)
    again.folder.close()
    assert again.round == 2


def test_a_state_folder_belongs_to_one_run_at_a_time(tmp_path):
    server = server_of("fedmaba", tmp_path)
    server.finish_round(replies_of(server))
    with pytest.raises(Busy, match="in use by"):
        server_of("fedmaba", tmp_path)
    server.folder.close()
    with pytest.raises(InputError, match="begun with strategy=fedmaba, but this run has afl"):
        server_of("afl", tmp_path)


def test_a_state_folder_of_another_model_is_refused(tmp_path):
    server = server_of("fedavg", tmp_path)
    server.finish_round(replies_of(server))
    server.folder.close()
    turned = {name: value.T for name, value in MODEL.items()}  # as many numbers
    for other in ({"0.weight": np.zeros((2, 2), np.float32)}, turned):
        with pytest.raises(InputError, match="another model"):
            FederationServer(FederationSettings(parse("fedavg")[0]), other, tmp_path)


def test_a_strategy_whose_state_cannot_be_saved_moves_no_model(monkeypatch):
    server = server_of("fedavg")
    before = server.model["0.weight"].copy()
    odd = Decision(np.full(4, 0.2), {"seen": {1, 2}})
    monkeypatch.setattr(type(server.settings.strategy), "weigh", lambda *_: odd)
    with pytest.raises(InputError, match="fedavg: state 'seen' is of type set"):
        server.finish_round(replies_of(server))
    assert np.array_equal(server.model["0.weight"], before)


def test_a_half_precision_model_never_becomes_infinite():
    server = FederationServer(
        FederationSettings(parse("fedmaba:eta_s=3")[0]), {"w": np.full(2, 3e4, np.float16)}
    )
    server.join(["a"])
    report = server.finish_round([Reply(1, "a", {"w": np.full(2, 6e4, np.float16)}, 5, 1.0)])
    assert "would not be finite" in report["refused"][0]
    assert server.model["w"].tolist() == server.deployed["w"].tolist() == [3e4, 3e4]


def test_lines_that_were_taken_away_leave_no_gap(tmp_path):
    server = server_of("fedavg", tmp_path)
    server.finish_round(replies_of(server))
    server.folder.close()
    (tmp_path / "rounds.jsonl").unlink()
    again = server_of("fedavg", tmp_path)
    again.finish_round(replies_of(again))
    again.folder.close()
    assert [row["round"] for row in read_rounds(tmp_path, 0)] == [2]


def test_only_those_present_are_drawn_and_the_draw_is_seeded():
    server = FederationServer(FederationSettings(parse("fedavg")[0], seed=5), MODEL)
    server.join(map(str, range(10)))
    here = [str(i) for i in range(9)]
    first = server.draw(here, 0.5, 1)
    assert first == server.draw(reversed(here), 0.5, 1)
    assert len(first) == 4
    assert "9" not in first
    assert server.draw(here, 0.01, 2) == server.draw(here, 2 / 9, 1)
    assert server.draw([], 0.5, 1) == []


def test_a_server_that_starts_again_keeps_the_order_of_the_arrays(tmp_path):
    """A client of Flower's may know them by place alone."""
    model = {f"{i * 7 % 10}": np.full((2, 2), i, np.float32) for i in range(10)}
    for _ in range(3):
        server = FederationServer(FederationSettings(parse("fedavg")[0]), model, tmp_path)
        for held in (server.model, server.deployed):
            assert list(held) == list(model)
            assert [float(a[0, 0]) for a in held.values()] == list(range(10))
        server.finish_round([Reply(n, f"site-{n}", dict(server.model), 3) for n in (1, 2)])
        server.folder.close()


def test_running_statistics_are_averaged_by_size_and_do_not_weigh():
    plain = {n: a for n, a in MODEL.items() if n.startswith("0.")}
    for spec in ("qffl:q=1", "fedmgda", "fedfv"):
        with_stats = FederationServer(FederationSettings(parse(spec)[0]), MODEL)
        without = FederationServer(FederationSettings(parse(spec)[0]), plain)
        replies = replies_of(with_stats)
        with_stats.finish_round(replies)
        without.finish_round([replace(r, model={n: r.model[n] for n in plain}) for r in replies])
        for name in plain:
            np.testing.assert_array_equal(with_stats.model[name], without.model[name])
        share = np.array([r.count for r in replies]) / sum(r.count for r in replies)
        mean = sum(s * r.model["1.running_var"] for s, r in zip(share, replies, strict=True))
        np.testing.assert_allclose(with_stats.model["1.running_var"], mean, rtol=1e-6)
        assert with_stats.model["1.num_batches_tracked"] == 5


def test_bad_terms_are_refused():
    for bad in ({"lr": 0.0}, {"lr": math.nan}, {"lr_decay": 2.0}, {"deploy": "nonsense"}):
        with pytest.raises(InputError):
            FederationSettings(parse("fedavg")[0], **bad)
    with pytest.raises(InputError, match="no weights"):
        FederationServer(FederationSettings(parse("fedavg")[0]), {"n": np.array(3)})
