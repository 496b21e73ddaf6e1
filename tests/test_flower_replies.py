"""Replies that are slow, late, huge or missing: they cost their sender the round, nobody else."""

import json
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is an extra: make test-flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedmaba import flower
from fedmaba.deploy import messages, reply_fetching, validation
from fedmaba.errors import InputError
from fedmaba.flower import FlowerStrategy, load_arrays
from fedmaba.results.state_folder import read_rounds
from flower_grid import LocalGrid, light_app, light_model
from flower_link import Link, http_grid

EVERYONE = {100 + c: light_app(c) for c in range(5)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(reply_fetching, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reply_fetching, "LAST_FETCH_SECONDS", 0.3)


@pytest.fixture
def said(monkeypatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(messages, "log", lambda level, text, *rest: lines.append(text % rest))
    return lines


def run(grid, rounds=1, timeout=60.0, **options):
    """A strategy after some rounds, and how many seconds they took."""
    strategy = FlowerStrategy("fedmaba", min_available_nodes=5, evaluate=False, **options)
    begin = time.monotonic()
    strategy.start(grid, light_model(), rounds, timeout=timeout)
    return strategy, time.monotonic() - begin


class Unlocked(LocalGrid):
    """A grid whose nodes may take their time with a reply to training, each for itself."""

    def __init__(self, slow: dict[int, float]) -> None:
        super().__init__(EVERYONE)
        self.slow = slow

    def pull_messages(self, message_ids):
        (message,) = message_ids
        about = self.waiting[message].metadata
        if about.message_type == "train":
            time.sleep(self.slow.get(about.dst_node_id, 0.0))
        return super().pull_messages(message_ids)


# slow ones


def test_a_slow_reply_does_not_silence_punctual_ones():
    """Its fetching takes longer than the round; four others are there from the beginning."""
    strategy, seconds = run(Unlocked({100: 3.0}), timeout=0.5)
    (report,) = strategy.reports
    assert list(report["sites"]) == ["site-1", "site-2", "site-3", "site-4"]
    assert report["refused"] == ["node 100 (site-0): it failed: no answer within 0.5 seconds"]
    assert seconds < 2.5


def test_a_reply_on_its_way_at_the_deadline_is_waited_for():
    strategy, _ = run(Unlocked({100: 0.6}), timeout=0.4)
    assert len(strategy.reports[0]["sites"]) == 5


def test_there_is_a_look_after_the_deadline(monkeypatch):
    """Replies arrive between the last look in time and the deadline."""
    begin = time.monotonic()
    grid = LocalGrid(EVERYONE)
    answer = grid.answer
    later = {}

    def late(message):
        if message.metadata.message_type == "train":
            sent = later.setdefault("sent", time.monotonic())
            if time.monotonic() < sent + 0.05:
                return None
        return answer(message)

    grid.answer = late
    monkeypatch.setattr(
        reply_fetching, "POLL_SECONDS", 0.5
    )  # the next look would be long after the deadline
    strategy, _ = run(grid, timeout=0.2)
    assert len(strategy.reports[0]["sites"]) == 5
    assert time.monotonic() - begin > 0.2


# hung ones


def silent(*nodes):
    return lambda message, answer: (
        None
        if message.metadata.dst_node_id in nodes and message.metadata.message_type == "train"
        else answer
    )


def test_a_hung_site_is_named_and_no_longer_waited_for(said):
    grid = LocalGrid(EVERYONE, silent(103))
    strategy, seconds = run(grid, rounds=3, timeout=3600, grace=0.2)
    assert seconds < 20
    for report in strategy.reports:
        assert list(report["sites"]) == ["site-0", "site-1", "site-2", "site-4"]
        (why,) = report["refused"]
        assert why.startswith("node 103 (site-3): it failed: no answer within 0 seconds, when 4 of")
    assert sum("left out of round" in line and "(site-3)" in line for line in said) == 3


@pytest.mark.parametrize(
    ("asked", "min_replies", "quorum"),
    [(5, 0.5, 3), (4, 0.5, 2), (1, 0.5, 1), (5, 1.0, 5), (5, 1, 1), (5, 3, 3), (10, 0.3, 3)],
)
def test_how_many_are_enough(asked, min_replies, quorum):
    assert FlowerStrategy("fedavg", min_replies=min_replies).participation.quorum(asked) == quorum


def test_with_too_few_answers_the_whole_time_is_waited():
    grid = LocalGrid(EVERYONE, silent(102, 103, 104))
    _, seconds = run(grid, timeout=1.0, grace=0.0)
    assert seconds > 1.0
    _, seconds = run(LocalGrid(EVERYONE, silent(103)), timeout=1.0, grace=0.0, min_replies=1.0)
    assert seconds > 1.0


def test_slower_sites_have_their_time_after_the_quick_ones():
    """Up to three times as slow is not late, whatever the grace."""
    grid = Unlocked({100: 0.4, 101: 0.4, 102: 0.4, 103: 0.4, 104: 0.8})
    strategy, _ = run(grid, grace=0.0)
    assert len(strategy.reports[0]["sites"]) == 5


def test_sites_that_fail_at_once_do_not_hurry_the_others():
    def spoil(message, answer):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id < 104:
            raise ValueError("no reply at all")
        return answer

    class Failing(Unlocked):
        def answer(self, message):
            self.spoil = spoil
            return super().answer(message)

    strategy, _ = run(Failing({104: 0.5}), grace=0.0)
    assert list(strategy.reports[0]["sites"]) == ["site-4"]


# nobody


def test_a_run_in_which_nobody_ever_counted_fails_and_writes_no_model(tmp_path):
    def spoil(message, answer):
        if message.metadata.message_type == "train":
            answer.content["metrics"]["loss"] = float("nan")
        return answer

    grid = LocalGrid(EVERYONE, spoil)
    for _ in range(2):  # and once more when it is only started again
        with pytest.raises(InputError) as error:
            run(grid, rounds=2, state=tmp_path)
        text = str(error.value)
        assert "no reply counted in 2 rounds" in text
        assert "node 100 (site-0): loss is nan" in text
        assert "and 2 more" in text
        assert "\n" not in text
    assert not (tmp_path / "models").exists()
    grid.spoil = None  # what was wrong is corrected
    run(grid, rounds=3, state=tmp_path)
    assert load_arrays(tmp_path / "models" / "last.safetensors")["w"].numpy().any()
    assert len(read_rounds(tmp_path, 0)) == 3


def test_a_round_without_a_reply_between_others_is_no_failure():
    grid = LocalGrid(EVERYONE)
    grid.spoil = lambda m, a: None if "round 2 " in m.metadata.group_id else a
    strategy, _ = run(grid, rounds=3, timeout=0.3)
    assert [len(report["sites"]) for report in strategy.reports] == [5, 0, 5]


# huge ones


def with_arrays(count):
    many = ArrayRecord({f"a{i}": Array(np.full(1, i, np.float32)) for i in range(count)})
    return lambda reply: rebuilt(reply, arrays=many)


def with_numbers(numbers):
    def spoil(reply):
        return rebuilt(reply, metrics=MetricRecord({**reply.content["metrics"], **numbers}))

    return spoil


def with_words(words):
    def spoil(reply):
        return rebuilt(reply, config=ConfigRecord({**reply.content["config"], **words}))

    return spoil


def rebuilt(reply, **records):
    for name, value in records.items():
        reply.content[name] = value
    return reply


HUGE = {
    "arrays": (with_arrays(3000), "it sent 3000 arrays: this model has 1"),
    "numbers": (with_numbers({f"m{i}": 0.0 for i in range(5000)}), "it sent 5002 numbers"),
    "a list": (with_numbers({"more": [0.0] * 5000}), "it sent 5003 numbers"),
    "words": (with_words({f"w{i}": "x" for i in range(5000)}), "it sent 5001 words"),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_huge_reply_is_left_out_before_it_is_read(kind):
    spoil, said = HUGE[kind]

    def one(message, answer):
        first = message.metadata.dst_node_id == 100
        return spoil(answer) if first and message.metadata.message_type == "train" else answer

    strategy, _ = run(LocalGrid(EVERYONE, one))
    (why,) = strategy.reports[0]["refused"]
    assert why.startswith(f"node 100 (site-0): it failed: {said}")
    assert len(strategy.reports[0]["sites"]) == 4


def test_a_huge_greeting_is_turned_away(said):
    grid = LocalGrid(EVERYONE)

    def spoil(message, answer):
        if message.metadata.dst_node_id == 100 and message.metadata.message_type == "query":
            answer.content["arrays"] = ArrayRecord(
                {f"a{i}": Array(np.zeros(1, np.float32)) for i in range(9)}
            )
        return answer

    grid.spoil = spoil
    strategy = FlowerStrategy("fedavg", min_available_nodes=4, evaluate=False)
    strategy.start(grid, light_model(), 1)
    assert "node 100 is not let in: it sent 9 arrays: this model has 1" in said
    assert 100 not in strategy.asked


# with flwr's own grid, messages and trees


def over_http(spoil=None):
    def one(reply):
        return spoil(reply) if spoil and reply.content["config"]["site"] == "site-0" else reply

    link = Link(EVERYONE, one)
    strategy, _ = run(http_grid(link))
    return strategy.reports[0], link


def test_honest_replies_pass_flwrs_own_grid():
    report, link = over_http()
    assert list(report["sites"]) == [f"site-{c}" for c in range(5)]
    assert not report["refused"]
    assert link.fetched


def test_a_reply_of_three_thousand_arrays_is_never_fetched():
    honest = len(over_http()[1].fetched)
    report, link = over_http(with_arrays(3000))
    assert report["refused"] == [
        "node 100 (site-0): it failed: it comes in more than 18 parts, so none is fetched"
    ]
    assert len(report["sites"]) == 4
    assert len(link.fetched) < honest


@pytest.mark.parametrize("kind", ["numbers", "a list", "words"])
def test_records_of_many_entries_are_not_decoded(kind, monkeypatch):
    spoil = {
        "numbers": with_numbers({f"m{i}": 0.0 for i in range(9000)}),
        "a list": with_numbers({"more": [0.5] * 9000}),
        "words": with_words({f"w{i}": "x" for i in range(9000)}),
    }[kind]
    report, _ = over_http(spoil)
    (why,) = report["refused"]
    assert "a part of it has" in why
    assert "at most 65536 are read" in why
    assert len(report["sites"]) == 4


def test_one_piece_named_many_times_does_not_fill_the_memory():
    """An array is sent in pieces, and may name the same piece again and again."""

    class Bomb(Link):
        def PullObject(self, request):
            found = super().PullObject(request)
            content = found.object_content
            if content.startswith(b"Array ") and self.node_of(request) == 100:
                head, _, body = content.partition(b"\x00")
                about = json.loads(body)
                about["arraychunk_ids"] = [0] * 3000
                new = json.dumps(about).encode()
                words = head.decode().split(" ")
                found.object_content = f"{words[0]} {words[1]} {len(new)}".encode() + b"\x00" + new
            return found

        def answer(self, message_id):
            node = self.asked[message_id]
            reply, tree = super().answer(message_id)
            self.owner = {**getattr(self, "owner", {}), **dict.fromkeys(ids(tree), node)}
            return reply, tree

        def node_of(self, request):
            return self.owner.get(request.object_id)

    def ids(tree):
        return [tree.object_id, *(i for child in tree.children for i in ids(child))]

    strategy, _ = run(http_grid(Bomb(EVERYONE)))
    (why,) = strategy.reports[0]["refused"]
    assert why == "node 100 (site-0): it failed: an array of it has more than 18 pieces"


def test_a_large_model_is_no_huge_reply():
    """Flower cuts an array every 5 MB, and a client may cut finer."""
    model = {"w": np.zeros(4_000_000, np.float32), "b": np.zeros(3, np.float32)}
    reply = Message(RecordDict({"arrays": flower.array_record(model)}), 1, "train")
    pieces = sum(len(array.slice_array()) for array in reply.content["arrays"].values())
    assert pieces + 2 + 3 <= validation.max_parts(model)


def test_no_log_line_is_broken_or_coloured_by_what_it_names(said, tmp_path):
    ugly = "a\x1b[31mb\nc\u202e"

    def fails(message, answer):
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 100:
            return Message(Error(2, ugly), reply_to=message)
        return answer

    for rounds in (1, 2):
        run(LocalGrid(EVERYONE, fails), rounds, state=tmp_path / ugly)
    assert any(line.startswith("going on after round 1") for line in said)
    assert any("it failed: a?[31mb?c?" in line for line in said)
    assert not [line for line in said if not line.isprintable()]
