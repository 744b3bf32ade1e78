"""What a queue can do, shown with nothing but a socket and JSON."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for


def _wait_until(lines: JsonLines, queue: str, counts: tuple[int, int, int]) -> None:
    wait_for(lambda: lines.counts(queue) == counts, f"{queue} has {counts} messages ready, delayed and in flight")


# -- Q1 ----------------------------------------------------------------------------------------------------------------


def test_a_queue_is_made_described_listed_peeked_purged_and_deleted(lines: JsonLines) -> None:
    queue = lines.queue(unique("q1"), max_deliveries=3)
    assert lines.put(queue, "a", "b", "c") == {"first": 0, "count": 3, "duplicates": []}
    info = lines.ask("describe_queue", queue=queue)
    assert (info["ready"], info["put"], info["settings"]["max_deliveries"]) == (3, 3, 3)
    assert [found["queue"] for found in lines.ask("list_queues", prefix=queue)] == [queue]
    peeked = lines.ask("peek", queue=queue, count=2)
    assert [(each["state"], each["message"]["payload"]) for each in peeked] == [("ready", "a"), ("ready", "b")]
    rest = lines.ask("peek", queue=queue, after=peeked[-1]["message"]["tag"])
    assert [each["message"]["payload"] for each in rest] == ["c"]
    assert lines.counts(queue) == (3, 0, 0)
    assert lines.ask("purge_queue", queue=queue) == 3
    assert lines.ask("delete_queue", queue=queue) == 0
    assert lines.refusal("describe_queue", queue=queue).kind == "NotFound"


def test_declaring_alike_is_fine_and_otherwise_is_a_conflict(lines: JsonLines) -> None:
    queue = lines.queue(unique("q1"), hold_ms=5000)
    lines.queue(queue, hold_ms=5000)
    lines.ask("declare_queue", queue=queue)
    refused = lines.refusal("declare_queue", queue=queue, settings={"hold_ms": 6000})
    assert refused.kind == "Conflict"
    assert "hold_ms" in refused.text
    lines.ask("declare_queue", queue=queue, settings={"hold_ms": 6000}, alter=True)
    assert lines.ask("describe_queue", queue=queue)["settings"]["hold_ms"] == 6000
    lines.ask("declare_queue", queue=queue, settings={"ttl_ms": 50}, alter=True)  # what is not named stays
    settings = lines.ask("describe_queue", queue=queue)["settings"]
    assert (settings["hold_ms"], settings["ttl_ms"]) == (6000, 50)
    whole = {"settings": {"ttl_ms": 50}, "alter": True, "only": ["ttl_ms", "hold_ms"]}
    lines.ask("declare_queue", queue=queue, **whole)
    settings = lines.ask("describe_queue", queue=queue)["settings"]
    assert (settings["hold_ms"], settings["ttl_ms"]) == (30_000, 50)
    wrong = lines.refusal("declare_queue", queue=queue, settings={}, alter=True, only=["colour"])
    assert (wrong.kind, "colour" in wrong.text) == ("Invalid", True)
    assert lines.refusal("declare_queue", queue=unique("none"), passive=True).kind == "NotFound"


def test_an_unknown_queue_names_near_ones(lines: JsonLines) -> None:
    queue = lines.queue(unique("invoices"))
    actions: dict[str, dict[str, Any]] = {
        "put": {"message": {"payload": "x"}},
        "get": {},
        "consume_queue": {"consumer": 1},
    }
    for action, fields in actions.items():
        refused = lines.refusal(action, queue=queue + "s", **fields)
        assert refused.kind == "NotFound"
        assert repr(queue) in refused.text


def test_an_exclusive_queue_goes_with_its_connection(server: Server, lines: JsonLines) -> None:
    name = unique("mine")
    with JsonLines(server.bootstrap) as owner:
        owner.queue(name, exclusive=True)
        assert lines.refusal("get", queue=name).kind == "NotAllowed"
    wait_for(lambda: lines.try_ask("describe_queue", queue=name)["status"] == "error", "the queue is gone")


def test_an_auto_delete_queue_goes_with_its_last_consumer(server: Server, lines: JsonLines) -> None:
    queue = lines.queue(unique("auto"), auto_delete=True)
    with JsonLines(server.bootstrap) as consumer:
        consumer.ask("consume_queue", consumer=1, queue=queue)
        assert lines.ask("describe_queue", queue=queue)["consumers"] == 1
    wait_for(lambda: lines.try_ask("describe_queue", queue=queue)["status"] == "error", "the queue is gone")


def test_an_expiring_queue_goes_when_nobody_uses_it(lines: JsonLines) -> None:
    queue = lines.queue(unique("expiring"), expires_ms=200)
    wait_for(lambda: lines.try_ask("delete_queue", queue=queue)["status"] == "error" or None, "the queue is gone")


def test_a_consumer_is_told_that_its_queue_is_gone(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q1"))
    lines.ask("consume_queue", consumer=4, queue=queue, credit=10)
    other.ask("delete_queue", queue=queue)
    push = lines.push()
    assert (push["push"], push["consumer"], push["error_type"]) == ("ceased", 4, "NotFound")
    assert queue in push["error"]
    assert lines.refusal("cease", consumer=4).kind == "NotFound"


# -- Q2 ----------------------------------------------------------------------------------------------------------------


def test_messages_are_pushed_as_far_as_credit_goes(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q2"))
    lines.put(queue, *"abcde")
    lines.ask("consume_queue", consumer=1, queue=queue, credit=2)
    assert [message["payload"] for message in lines.delivered(2)] == ["a", "b"]
    _wait_until(other, queue, (3, 0, 2))
    lines.send("credit", consumer=1, count=10)
    assert lines.answer() == {"status": "success"}
    assert [message["payload"] for message in lines.delivered(3)] == ["c", "d", "e"]
    other.put(queue, "f")  # nobody polls
    assert [message["payload"] for message in lines.delivered(1)] == ["f"]


def test_competing_consumers_share_and_prefetch_holds_them_back(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q2"))
    lines.ask("consume_queue", consumer=1, queue=queue, credit=100, prefetch=2)
    other.ask("consume_queue", consumer=1, queue=queue, credit=100, prefetch=2)
    lines.put(queue, *map(str, range(10)))
    mine, theirs = lines.delivered(2), other.delivered(2)
    assert len({message["payload"] for message in mine + theirs}) == 4
    assert lines.counts(queue) == (6, 0, 4)
    lines.ask("settle", consumer=1, tags=[mine[0]["tag"]])
    lines.delivered(1)
    assert lines.counts(queue) == (5, 0, 4)


def test_an_exclusive_consumer_is_alone(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q2"))
    lines.ask("consume_queue", consumer=1, queue=queue, exclusive=True)
    assert other.refusal("consume_queue", consumer=1, queue=queue).kind == "Conflict"


# -- Q3 ----------------------------------------------------------------------------------------------------------------


def test_ack_reject_and_release(lines: JsonLines) -> None:
    queue = lines.queue(unique("q3"), retry_base_ms=0)
    lines.put(queue, "a", "b", "c")
    a, b, c = lines.get(queue, 3)
    assert lines.counts(queue) == (0, 0, 3)
    lines.settle(a)
    lines.settle(b, "reject")
    lines.settle(c, "release", delay_ms=60_000)
    assert lines.counts(queue) == (1, 1, 0)
    (again,) = lines.get(queue, 10)
    assert (again["payload"], again["deliveries"]) == ("b", 2)


def test_acks_in_batches(lines: JsonLines) -> None:
    queue = lines.queue(unique("q3"))
    lines.put(queue, *map(str, range(100)))
    messages = lines.get(queue, 100)
    runs = [[messages[0]["tag"], 60], [messages[60]["tag"], 40]]
    assert lines.ask("settle", consumer=messages[0]["consumer"], runs=runs) == {"unknown": []}
    assert lines.counts(queue) == (0, 0, 0)


def test_an_ack_of_what_is_not_held_is_a_conflict(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q3"))
    lines.put(queue, "a", "b")
    a, b = lines.get(queue, 2)
    lines.settle(a)
    for consumer, tags in ((a["consumer"], [a["tag"]]), (a["consumer"], [9999])):
        assert lines.refusal("settle", consumer=consumer, tags=tags).kind == "Conflict"
    answer = lines.ask("settle", consumer=b["consumer"], tags=[a["tag"], b["tag"]])
    assert answer == {"unknown": [[a["tag"], 1]]}
    assert other.refusal("settle", consumer=-1, tags=[0]).kind == "NotFound"
    assert lines.refusal("settle", consumer=b["consumer"], runs=[[0, 0]]).kind == "Invalid"
    assert lines.refusal("settle", consumer=b["consumer"], runs=[[-5, 1]]).kind == "Invalid"


def test_a_hold_runs_out_unless_it_is_touched(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q3"))
    lines.put(queue, "a", "b")
    kept, left = lines.get(queue, 2, hold_ms=400)
    lines.ask("touch", consumer=kept["consumer"], tags=[kept["tag"]], hold_ms=60_000)
    (again,) = other.get(queue, 10, wait_ms=20_000)
    assert (again["payload"], again["deliveries"]) == (left["payload"], 2)
    lines.settle(kept)
    assert lines.refusal("settle", consumer=left["consumer"], tags=[left["tag"]]).kind == "Conflict"
    assert lines.refusal("touch", consumer=left["consumer"], tags=[left["tag"]]).kind == "Conflict"


def test_what_a_lost_connection_held_goes_to_others(server: Server, lines: JsonLines) -> None:
    queue = lines.queue(unique("q3"))
    lines.put(queue, "a")
    with JsonLines(server.bootstrap) as doomed:
        assert len(doomed.get(queue)) == 1
    (again,) = lines.get(queue, wait_ms=20_000)
    assert again["deliveries"] == 2


# -- Q4, Q5 ------------------------------------------------------------------------------------------------------------


def _dead_letter_pair(lines: JsonLines, **settings: Any) -> tuple[str, str]:
    dead = lines.queue(unique("dead"))
    return lines.queue(unique("q4"), dead_letter=dead, **settings), dead


def test_retries_back_off_and_end_in_the_dead_letter_queue(lines: JsonLines) -> None:
    queue, dead = _dead_letter_pair(lines, max_deliveries=2, retry_base_ms=200)
    lines.put(queue, {"payload": "bad", "id": "the-id", "headers": {"k": "v"}})
    (first,) = lines.get(queue)
    lines.settle(first, "reject", error="it does not fit")
    assert lines.counts(queue) == (0, 1, 0)
    (second,) = lines.get(queue, wait_ms=20_000)
    assert second["deliveries"] == 2
    lines.settle(second, "reject", error="it still does not fit")
    (letter,) = lines.get(dead, wait_ms=20_000)
    assert (letter["payload"], letter["id"], letter["headers"]["k"]) == ("bad", "the-id", "v")
    story = str(letter["headers"]["x-death"])
    assert "delivery-limit" in story
    assert queue in story
    assert "it still does not fit" in story


def test_killed_is_dead_at_once(lines: JsonLines) -> None:
    queue, dead = _dead_letter_pair(lines, max_deliveries=10)
    lines.put(queue, "bad")
    lines.settle(lines.get(queue)[0], "kill", error="no use")
    (letter,) = lines.get(dead, wait_ms=20_000)
    assert "rejected" in str(letter["headers"]["x-death"])


def test_dead_letters_are_seen_filtered_and_sent_back(lines: JsonLines) -> None:
    queue, dead = _dead_letter_pair(lines, max_deliveries=1)
    lines.put(queue, *({"payload": str(i), "headers": {"n": i}} for i in range(6)))
    for message in lines.get(queue, 6):
        lines.settle(message, "reject")
    _wait_until(lines, dead, (6, 0, 0))
    dry = lines.ask("redrive", queue=dead, filter="headers.n >= 4", dry_run=True)
    assert (dry["matched"], dry["moved"]) == (2, 0)
    assert lines.counts(dead) == (6, 0, 0)
    moved = lines.ask("redrive", queue=dead, filter="headers.n >= 4")
    assert (moved["matched"], moved["moved"]) == (2, 2)
    assert sorted(lines.get_payloads(queue)) == ["4", "5"]
    _wait_until(lines, dead, (4, 0, 0))
    assert lines.refusal("redrive", queue=dead, filter="headers.n >=").kind in ("Invalid", "FilterSyntax")


# -- Q6, Q7, Q8, Q9 ----------------------------------------------------------------------------------------------------


def test_higher_priorities_first_and_fifo_within_one(lines: JsonLines) -> None:
    queue = lines.queue(unique("q6"))
    for i, priority in enumerate([0, 9, 5, 9, 0, 5]):
        lines.put(queue, {"payload": str(i), "priority": priority})
    assert lines.get_payloads(queue) == ["1", "3", "2", "5", "0", "4"]


def test_delayed_messages_come_when_they_are_due(lines: JsonLines) -> None:
    queue = lines.queue(unique("q7"))
    now_ms = int(time.time() * 1000)
    lines.put(queue, {"payload": "later", "delay_ms": 300}, {"payload": "at", "deliver_at_ms": now_ms + 600})
    assert lines.get(queue) == []
    assert lines.counts(queue) == (0, 2, 0)
    (first,) = lines.get(queue, wait_ms=20_000)
    assert first["payload"] == "later"
    assert time.time() * 1000 >= first["taken_ms"] + 300
    (second,) = lines.get(queue, wait_ms=20_000)
    assert second["payload"] == "at"
    assert time.time() * 1000 >= now_ms + 600


def test_a_delayed_message_can_be_cancelled(lines: JsonLines) -> None:
    queue = lines.queue(unique("q7"))
    lines.put(queue, {"payload": "never", "id": "c-1", "delay_ms": 10**10})
    assert lines.ask("cancel", queue=queue, message_id="c-1") is True
    assert lines.ask("cancel", queue=queue, message_id="c-1") is False
    assert lines.counts(queue) == (0, 0, 0)


def test_expired_messages_are_never_delivered(lines: JsonLines) -> None:
    queue, dead = _dead_letter_pair(lines)
    lines.put(queue, {"payload": "short", "ttl_ms": 100}, {"payload": "long", "ttl_ms": 10**9})
    (letter,) = lines.get(dead, wait_ms=20_000)
    assert letter["payload"] == "short"
    assert "expired" in str(letter["headers"]["x-death"])
    assert lines.get_payloads(queue) == ["long"]


def test_a_queue_has_a_ttl_too(lines: JsonLines) -> None:
    queue = lines.queue(unique("q8"), ttl_ms=100)
    lines.put(queue, "short")
    _wait_until(lines, queue, (0, 0, 0))
    assert lines.get(queue) == []


def test_a_full_queue_refuses_and_nothing_is_stored(lines: JsonLines) -> None:
    queue = lines.queue(unique("q9"), max_length=3)
    lines.put(queue, "a", "b")
    refused = lines.refusal("put", queue=queue, messages=[{"payload": "c"}, {"payload": "d"}])
    assert refused.kind == "Full"
    assert "max_length" in refused.text
    assert lines.counts(queue) == (2, 0, 0)
    by_bytes = lines.queue(unique("q9"), max_bytes=10)
    assert lines.refusal("put", queue=by_bytes, message={"payload": "x" * 11}).kind == "Full"


def test_a_publisher_can_wait_for_room(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("q9"), max_length=1)
    lines.put(queue, "first")
    for payload in ("second", "third"):
        lines.send("put", queue=queue, message={"payload": payload}, wait_ms=60_000)
    for payload in ("first", "second", "third"):
        (message,) = other.get(queue, wait_ms=20_000)
        assert message["payload"] == payload
        other.settle(message)
    assert [lines.answer()["status"] for _ in range(2)] == ["success", "success"]
    lines.put(queue, "x")
    refused = lines.refusal("put", queue=queue, message={"payload": "y"}, wait_ms=50)
    assert refused.kind == "Full"


def test_the_oldest_can_make_room(lines: JsonLines) -> None:
    queue = lines.queue(unique("q9"), max_length=2, overflow="drop-oldest")
    lines.put(queue, "a")
    lines.put(queue, "b")
    lines.put(queue, "c")
    assert lines.get_payloads(queue) == ["b", "c"]


# -- getting -----------------------------------------------------------------------------------------------------------


def test_get_waits_and_is_woken(lines: JsonLines, other: JsonLines) -> None:
    queue = lines.queue(unique("get"))
    assert lines.get(queue) == []
    lines.send("get", queue=queue, count=5, wait_ms=60_000)
    wait_for(lambda: other.ask("describe_queue", queue=queue)["consumers"] == 1, "it waits")
    other.put(queue, "a")
    assert [message["payload"] for message in lines.answer()["value"]["messages"]] == ["a"]


def test_get_with_auto_ack_leaves_nothing(lines: JsonLines) -> None:
    queue = lines.queue(unique("get"))
    lines.put(queue, "a")
    assert lines.get_payloads(queue, auto_ack=True) == ["a"]
    assert lines.counts(queue) == (0, 0, 0)


@pytest.mark.parametrize("fields", [{"count": 0}, {"count": 10**9}, {"hold_ms": 0}])
def test_get_refuses_what_makes_no_sense(lines: JsonLines, fields: dict[str, int]) -> None:
    queue = lines.queue(unique("get"))
    refused = lines.refusal("get", queue=queue, **fields)
    assert refused.kind == "Invalid"
    assert next(iter(fields)) in refused.text


def test_get_of_much_stops_before_the_answer_is_too_large(lines: JsonLines) -> None:
    queue = lines.queue(unique("get"))
    for _ in range(3):
        lines.put(queue, *["x" * 900_000] * 6)
    sizes = []
    while got := lines.get(queue, 100):
        sizes.append(len(got))
    assert sum(sizes) == 18
    assert len(sizes) > 1


def test_a_queue_that_was_deleted_and_made_again_can_be_got_from(lines: JsonLines) -> None:
    queue = lines.queue(unique("get"))
    lines.put(queue, "old")
    assert lines.get_payloads(queue) == ["old"]
    lines.ask("delete_queue", queue=queue)
    assert lines.refusal("get", queue=queue).kind == "NotFound"
    lines.queue(queue)
    lines.put(queue, "new")
    assert lines.get_payloads(queue) == ["new"]
