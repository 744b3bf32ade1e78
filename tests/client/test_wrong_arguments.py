"""Wrong arguments: each is an error of ours, at once, which names the argument and says what would be right."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import math
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation import Retry, aio, errors
from waystation.client.options.payloads import encode_value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priority": "high"}, r"priority: 'high' is not a whole number"),
        ({"priority": 2.5}, r"priority: 2\.5 is not a whole number"),
        ({"priority": True}, r"priority: True is not a whole number"),
        ({"headers": "x"}, r"headers: 'x' is not a mapping"),
        ({"headers": ["x"]}, r"headers: \['x'\] is not a mapping"),
        ({"headers": {"h": math.nan}}, r"headers: h is nan; use text"),
        ({"headers": {"h": [1, -math.inf]}}, r"headers: h is \[1, -inf\]; use text"),
        ({"headers": {"h": {1}}}, r"headers: h is a set; use text"),
        ({"content_type": 7}, r"content_type: 7 is not text"),
        ({"id": 7}, r"id: 7 is not text"),
        ({"type": b"t"}, r"type: b't' is not text"),
        ({"correlation_id": 7}, r"correlation_id: 7 is not text"),
        ({"reply_to": 7}, r"reply_to: 7 is not text"),
        ({"max_deliveries": "x"}, r"max_deliveries: 'x' is not a whole number"),
        ({"key": 7}, r"key: a int is neither text nor bytes"),
    ],
)
def test_a_message_with_a_wrong_option_is_refused_by_its_name(mq: Any, options: dict[str, Any], said: str) -> None:
    jobs = mq.queue(unique("wrong"))
    for call in (jobs.put, lambda value, **more: mq.publish(unique("wrong"), value, **more)):
        with pytest.raises(errors.Invalid, match=said):
            call("x", **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"overflow": "explode"},
            r"overflow: 'explode' is not one of reject, drop-oldest, dead-letter, reject-dead-letter",
        ),
        ({"overflow": 7}, r"overflow: 7 is not one of reject, "),
        ({"retry": 5}, r"retry: 5 is not a Retry: write Retry\(5\)"),
        ({"retry": Retry("x")}, r"retry\.base: 'x' is neither seconds nor a timedelta"),  # type: ignore[arg-type]
        ({"retry": Retry(factor="x")}, r"retry\.factor: 'x' is not a number"),  # type: ignore[arg-type]
        ({"retry": Retry(jitter=None)}, r"retry\.jitter: None is not a number"),  # type: ignore[arg-type]
        ({"max_deliveries": "x"}, r"max_deliveries: 'x' is not a whole number"),
        ({"max_deliveries": None}, r"max_deliveries: None is not a whole number"),
        ({"max_length": 1.5}, r"max_length: 1\.5 is not a whole number"),
        ({"max_bytes": "1MiB"}, r"max_bytes: '1MiB' is not a whole number"),
        ({"max_priority": "x"}, r"max_priority: 'x' is not a whole number"),
        ({"dead_letter": 7}, r"dead_letter: 7 is not text"),
        ({"dead_letter_exchange": 7}, r"dead_letter_exchange: 7 is not text"),
        ({"single_active": "yes"}, r"single_active: 'yes' is neither True nor False"),
        ({"durable": 0}, r"durable: 0 is neither True nor False"),
        ({"hold": "x"}, r"hold: 'x' is neither seconds nor a timedelta"),
        ({"hold": None}, r"hold: None is neither seconds nor a timedelta"),
        ({"dedup_window": None}, r"dedup_window: None is neither seconds nor a timedelta"),
    ],
)
def test_a_queue_with_a_wrong_option_is_refused_by_its_name(mq: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        mq.queue(unique("wrong"), **options)
    jobs = mq.queue(unique("wrong"))
    with pytest.raises(errors.Invalid, match=said):
        jobs.alter(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prefetch": "x"}, r"prefetch: 'x' is not a whole number"),
        ({"hold": "x"}, r"hold: 'x' is neither seconds"),
        ({"guarantee": "twice"}, r"guarantee: 'twice' is not one of at-most-once, "),
    ],
)
def test_a_consumer_with_a_wrong_option_is_refused_by_its_name(mq: Any, options: dict[str, Any], said: str) -> None:
    jobs = mq.queue(unique("wrong"))
    for call in (jobs.consume, lambda **more: mq.subscribe("t", **more)):
        with pytest.raises(errors.Invalid, match=said):
            call(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group": 5}, r"group: 5 is not text"),
        ({"filter": 5}, r"filter: 5 is not text"),
        ({"group": None, "history": "x"}, r"history: 'x' is not a whole number"),
        ({"group": None, "slow": "never"}, r"slow: 'never' is not one of drop, block"),
        ({"max_deliveries": "x"}, r"max_deliveries: 'x' is not a whole number"),
        ({"dead_letter": 5}, r"dead_letter: 5 is not text"),
        ({"mode": "some"}, r"mode: 'some' is not one of shared, stream, live"),
        ({"start": "now"}, r"start: 'now' is not earliest, latest or a time"),
    ],
)
def test_a_subscription_with_a_wrong_option_is_refused_by_its_name(mq: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        mq.subscribe("t", **{"group": "g", **options})


CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda mq: mq.publish(5, "x"), r"topic: 5 is not text"),
    (lambda mq: mq.publish("t", "x", partition="x"), r"partition: 'x' is not a whole number"),
    (lambda mq: mq.publish("t", "x", acks="some"), r"acks: 'some' is not one of none, written, durable"),
    (lambda mq: mq.create_topic("t", "x"), r"partitions: 'x' is not a whole number"),
    (lambda mq: mq.create_topic("t", settings="x"), r"settings: 'x' is not a mapping"),
    (lambda mq: mq.subscribe(5), r"topics: 5 is neither a name or pattern"),
    (lambda mq: mq.subscribe([5]), r"topics\[0\]: expected `str`"),
    (lambda mq: mq.on("t", concurrency="x"), r"concurrency: 'x' is not a whole number"),
    (lambda mq: mq.respond("t", concurrency=0), r"concurrency: 0 is below 1"),
    (lambda mq: mq.queue(5), r"queue: 5 is not text"),
    (lambda mq: mq.queue("wrong").get(timeout="x"), r"timeout: 'x' is not a number of seconds"),
    (lambda mq: mq.queue("wrong").get_many("x"), r"count: 'x' is not a whole number"),
    (lambda mq: mq.queue("wrong").peek("x"), r"count: 'x' is not a whole number"),
    (lambda mq: mq.queue("wrong").peek(5, state="x"), r"state: 'x' is not one of any, ready, parked, held"),
    (lambda mq: mq.queue("wrong").redrive(limit="x"), r"limit: 'x' is not a whole number"),
    (lambda mq: mq.exchange(5, "direct"), r"exchange: 5 is not text"),
    (lambda mq: mq.exchange("amq.direct", passive=True).bind(5), r"target: 5 is not text"),
    (lambda mq: mq.find(5), r"message_id: 5 is not text"),
    (lambda mq: mq.request("wrong", "x", timeout="x"), r"timeout: 'x' is not a number of seconds"),
]


@pytest.mark.parametrize(("call", "said"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_call_with_a_wrong_argument_is_refused_by_its_name(mq: Any, call: Callable[[Any], Any], said: str) -> None:
    """With a broker in the same process, too, which trusts what it is handed."""
    with pytest.raises(errors.Invalid, match=f"^{said}"):
        call(mq)


def test_a_message_fails_for_a_reason_that_is_text_or_an_exception(mq: Any) -> None:
    jobs = mq.queue(unique("reasons"), dead_letter=(dead := mq.queue(unique("dead"))).name)
    jobs.put_many(["1", "2"])
    message = jobs.get(DEADLINE_S)
    for verdict in (message.reject, message.kill):
        with pytest.raises(errors.Invalid, match="error: 5 is neither text nor an exception"):
            verdict(5)
    message.kill(ValueError("no such customer"))  # it is in flight as before
    assert dead.get(DEADLINE_S).deaths[0]["error"] == "ValueError: no such customer"


def test_connect_with_a_wrong_argument_is_refused_by_its_name() -> None:
    wrong: Any
    for wrong in (5, [5]):
        with pytest.raises(errors.Invalid, match="url: "):
            waystation.connect(wrong)
    wrong = "x"
    with pytest.raises(errors.Invalid, match="timeout: 'x' is not a number of seconds"):
        waystation.connect("127.0.0.1:9092", timeout=wrong)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, "nan"),
        ({"a": [1.0, {"b": math.inf}]}, "inf"),
        ([-math.inf] * 20, "-inf"),
        ({"tags": {"a", "b"}}, "a set"),
        (frozenset([1]), "a frozenset"),
        ([[{1}]], "a set"),
        ({"photo": b"\x89PNG"}, "bytes inside of JSON"),
        ([b"x"], "bytes inside of JSON"),
        ([1, [bytearray(b"x")]], "bytes inside of JSON"),
        ({1: "one"}, "the key 1 "),
        ({"a": {None: 1}}, "str-like"),
        ([{"a": 1}] * 20 + [{2.5: 1}], "the key 2.5 "),
    ],
)
def test_what_json_would_change_is_refused(mq: Any, value: Any, said: str) -> None:
    jobs, topic = mq.queue(unique("changed")), unique("changed")
    calls: list[Callable[[], Any]] = [
        lambda: jobs.put(value),
        lambda: jobs.put_many([value]),
        lambda: mq.publish(topic, value),
        lambda: mq.publish_json(topic, value),
    ]
    for call in calls:
        with pytest.raises(errors.Invalid, match="payload") as caught:
            call()
        assert said in str(caught.value)
    assert jobs.describe().put == 0


@pytest.mark.parametrize(
    ("value", "received"),
    [
        ((1, (2,)), [1, [2]]),
        ({"on": datetime.date(2026, 11, 18)}, {"on": "2026-11-18"}),
        ([uuid.UUID(int=7)], ["00000000-0000-0000-0000-000000000007"]),
        ({"sum": decimal.Decimal("1.50")}, {"sum": "1.50"}),
    ],
)
def test_what_json_has_a_usual_form_for_is_sent_in_that_form(mq: Any, value: Any, received: Any) -> None:
    jobs = mq.queue(unique("forms"))
    jobs.put(value)
    assert jobs.get(DEADLINE_S).value == received


@pytest.mark.parametrize(
    "value", [None, 1.5, [None, 1.0], {"a": None, "b": [1.25, (2,)]}, {"": {}}, [0.1] * 20 + [None]]
)
def test_what_json_can_say_comes_back(value: Any) -> None:
    payload, _ = encode_value(value)
    assert payload


def test_settings_of_an_embedded_broker_may_be_numbers(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"num.partitions": 4, "auto.create.topics.enable": True, "waystation.flush": "os"}
    with waystation.open(tmp_path, settings=settings) as mq:
        mq.publish("orders", 1)
        assert len(mq.describe_topic("orders").partitions) == 4


@pytest.mark.parametrize("value", [None, [1], {}, b"4"])
def test_settings_that_are_nothing_like_it_are_refused_by_name(tmp_path: Path, value: Any) -> None:
    with pytest.raises(errors.Invalid, match=r"num\.partitions"):
        waystation.open(tmp_path, settings={"num.partitions": value})


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(errors.Invalid, match="is a file") as caught:
            waystation.open(path)
        assert str(file) in str(caught.value)
    assert file.read_text() == "mine"

    async def work() -> None:
        with pytest.raises(errors.Invalid, match="is a file"):
            await aio.open(file)

    asyncio.run(work())


@pytest.mark.parametrize("bound", [{"max_length": 3}, {"max_bytes": 4}])
def test_a_batch_that_can_never_fit_says_so(mq: Any, bound: dict[str, int]) -> None:
    jobs = mq.queue(unique("never"), **bound)
    name = next(iter(bound))
    with pytest.raises(errors.Full, match=rf"5 messages .* never fit .*{name} {bound[name]}.*fewer at once") as caught:
        jobs.put_many(["x"] * 5, wait=DEADLINE_S)  # which there is no sense in waiting for
    assert "is full" not in str(caught.value)
    jobs.put_many(["x"] * 3)
    with pytest.raises(errors.Full, match="is full"):
        jobs.put_many(["x"] * 2)


def test_a_verdict_after_the_queue_was_deleted_says_so(mq: Any) -> None:
    jobs = mq.queue(unique("deleted"))
    jobs.put_many(["a", "b", "c"])
    got = jobs.get(timeout=DEADLINE_S)
    with jobs.consume() as feed:
        pushed = feed.get_message(DEADLINE_S)
        jobs.delete()
        for message in (got, pushed):
            with pytest.raises(errors.Conflict, match=f"queue '{jobs.name}' was deleted") as caught:
                message.ack()
            assert "timeout" not in str(caught.value)


def test_a_request_that_nobody_responds_to_says_so(mq: Any) -> None:
    name = unique("nobody")
    with pytest.raises(errors.NotFound, match=f"nobody responds to '{name}'"):
        mq.request(name, "anybody?", timeout=DEADLINE_S)


@pytest.mark.parametrize(("port", "said"), [("http", "HTTP"), ("amqp", "AMQP")])
def test_the_port_of_another_protocol_is_called_by_its_name(server: Server, port: str, said: str) -> None:
    address = server.addresses[port]
    with pytest.raises(errors.ConnectionLost, match=f"{address} speaks {said}, not the native protocol.*9092"):
        waystation.connect(f"waystation://{address}", timeout=DEADLINE_S)


def test_connect_without_an_address_goes_by_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (server.bootstrap, f"waystation://{server.bootstrap}"):
        monkeypatch.setenv("WAYSTATION_SERVER", value)
        with waystation.connect() as mq:
            assert server.bootstrap in repr(mq)

    async def work() -> None:
        async with aio.connect() as mq:
            await mq.ping()

    asyncio.run(work())
    monkeypatch.setenv("WAYSTATION_SERVER", "127.0.0.1:1")
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:  # who says an address means it
        mq.ping()
    with pytest.raises(errors.ConnectionLost, match=r"127\.0\.0\.1:1"):
        waystation.connect()


def test_text_that_is_no_utf_8_is_invalid(mq: Any) -> None:
    """Names of files have such characters."""
    queue, topic = mq.queue(unique("text")), unique("text")
    for put in (queue.put, queue.put_nowait, lambda value: queue.put_many(["a", value])):
        with pytest.raises(errors.Invalid, match=r"payload: '\\udce9' is no character of UTF-8"):
            put("caf\udce9")
    with pytest.raises(errors.Invalid, match=r"payload: '\\udce9'"):
        mq.publish_text(topic, "caf\udce9")
    with pytest.raises(errors.Invalid, match=r"payload: '\\udce9'"):
        queue.put("caf\udce9", type="text")
    with pytest.raises(errors.Invalid, match=r"key: '\\udce9'"):
        mq.publish(topic, "x", key="caf\udce9")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": math.nan}, "timeout: nan is not a number of seconds"),
        ({"timeout": "x"}, "timeout: 'x' is not a number of seconds"),
        ({"timeout": True}, "timeout: True is not a number of seconds"),
        ({"max": 0}, "max: 0 is below 1"),
        ({"max": 1.5}, r"max: 1\.5 is not a whole number"),
    ],
)
def test_a_poll_checks_what_it_is_told(mq: Any, options: dict[str, Any], said: str) -> None:
    with mq.queue(unique("polled")).consume() as consumer, pytest.raises(errors.Invalid, match=said):
        consumer.poll(**options)


@pytest.mark.parametrize("timeout", [math.inf, 1e300, 1e12])
def test_whoever_polls_may_wait_for_ever(mq: Any, timeout: float) -> None:
    queue = mq.queue(unique("polled"))
    with queue.consume() as consumer:
        putting = threading.Timer(0.2, queue.put, ["x"])
        putting.start()
        assert consumer.get_message(timeout).text() == "x"
        putting.join()
