"""What becomes of rows that are not fit for their table: dead letters, expectations, unknown destinations."""

from __future__ import annotations

import datetime
import json
import urllib.request
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import waystation
from tests.spark.pipeline_kit import START, Kit, orders
from tests.spark.topic_reading import read_messages, read_topic
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.cli.pipelines.pipeline_view import show
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.checking import check_pipeline
from waystation.spark.pipelines.file.problems import PipelineFailed
from waystation.spark.pipelines.status.registry import connect_any, find_pipeline

if TYPE_CHECKING:
    pass


def last_word(server: Server, name: str = "one") -> PipelineState:
    with connect_any(server.bootstrap) as connection:
        return find_pipeline(connection, name)


# -- malformed values --------------------------------------------------------------------------------------------------


def test_values_that_do_not_fit_go_to_the_dead_letter_topic_as_they_came(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("orders"), unique("paid"), unique("orders-dead")
    mq.create_topic(source, 1)
    values = [{"id": n, "amount": n * 1.5 if n % 10 else "ten euros"} for n in range(100)]
    for n, value in enumerate(values):
        mq.publish(source, value, key=str(n), headers={"trace": f"t{n}"})
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT, amount DOUBLE"
maxRowsPerTrigger = 30
dead_letter = "{dead}"
[step.paid]
from = "orders"
select = ["value.id", "value.amount"]
[sink.out]
from = "paid"
topic = "{target}"
key = "id"
"""
    kit.run(text, progress=True)
    state = last_word(server)
    told = {one.sink: (one.rows_read, one.rows, one.malformed, one.dead_letters) for one in state.sinks}
    assert told == {"out": (100, 90, 10, 0), "orders.dead_letter": (100, 10, 10, 10)}
    assert [source.rows for one in state.sinks for source in one.sources] == [100, 100], "read for both, counted once"
    assert "10 dead letters" in show(state)
    kit.run(text)  # there is nothing new
    assert sorted(json.loads(value)["id"] for _, value in read_topic(server, target, 1)) == [
        n for n in range(100) if n % 10
    ], "no row of nulls reached the steps"
    letters = read_messages(server, dead, 1)
    assert [(letter.key, letter.value) for letter in letters] == [
        (str(n).encode(), json.dumps(values[n], separators=(",", ":")).encode()) for n in range(0, 100, 10)
    ]
    headers = dict(letters[3].headers)
    assert headers["trace"] == b"t30"
    assert headers["x-dead-letter-reason"] == b"malformed"
    assert b"id:bigint,amount:double" in (headers["x-dead-letter-error"] or b"")
    assert (headers["x-dead-letter-topic"], headers["x-dead-letter-partition"]) == (source.encode(), b"0")
    assert headers["x-dead-letter-offset"] == b"30"
    assert (headers["x-dead-letter-pipeline"], headers["x-dead-letter-table"]) == (b"one", b"orders")
    assert [path.name for path in (kit.folder / ".waystation" / "one" / "sinks").iterdir()] == ["out"], "one commit"


def test_malformed_messages_of_a_queue_are_acked_when_they_are_dead_letters(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("jobs"), unique("done"), unique("jobs-dead")
    jobs, rejected = mq.queue(source), mq.queue(dead)
    jobs.put_many([{"id": n} if n % 4 else {"id": f"number {n}"} for n in range(80)])
    text = f"""servers = "{server.bootstrap}"
[source.jobs]
queue = "{source}"
schema = "id INT"
maxRowsPerTrigger = 30
dead_letter = {{ queue = "{dead}" }}
[sink.out]
from = "jobs"
topic = "{target}"
guarantee = "exactly-once"
"""
    kit.run(text)
    kit.run(text)  # what the first took is acked when the second asks for more
    assert sorted(json.loads(value)["id"] for _, value in read_topic(server, target, 1)) == [
        n for n in range(80) if n % 4
    ]
    letters = rejected.peek(100)
    assert sorted(letter.json()["id"] for letter in letters) == sorted(f"number {n}" for n in range(0, 80, 4))
    assert {letter.headers["x-dead-letter-queue"] for letter in letters} == {source}
    wait_for(lambda: not jobs.peek(1), "the queue that was read to be empty")


def test_dead_letters_beside_a_sink_of_files_are_a_query_of_their_own(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    import pyarrow.parquet as pq

    source, dead = unique("orders"), unique("orders-dead")
    mq.create_topic(source, 2)
    mq.publish_many(source, [{"id": n} if n % 5 else ["no object"] for n in range(50)])
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT"
select = ["value.id"]
dead_letter = {{ topic = "{dead}" }}
[sink.out]
from = "orders"
parquet = "out"
"""
    kit.run(text)
    kit.run(text)
    rows = pq.read_table(kit.folder / "out").to_pylist()
    assert sorted(row["id"] for row in rows) == [n for n in range(50) if n % 5]
    assert [letter.value for letter in read_messages(server, dead, 1)] == [b'["no object"]'] * 10


def test_dead_letters_are_part_of_a_query_with_windows(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, target, dead = unique("orders"), unique("minutes"), unique("orders-dead")
    mq.create_topic(source, 1)
    for minute in (0, 0, 1, 1, 1, 30):
        mq.publish(source, {"id": minute}, timestamp=START + datetime.timedelta(minutes=minute))
        mq.publish(source, "no JSON", timestamp=START + datetime.timedelta(minutes=minute))
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT"
watermark = {{ column = "timestamp", delay = "1 minute" }}
dead_letter = "{dead}"
[step.minutes]
from = "orders"
window = {{ column = "timestamp", size = "1 minute" }}
aggregate = {{ n = "count(*)" }}
expect = {{ several = "n > 2" }}
[sink.minutes]
from = "minutes"
topic = "{target}"
"""
    kit.run(text, progress=True)
    state = last_word(server)
    assert {sink.sink: sink.rows for sink in state.sinks} == {"minutes": 2, "orders.dead_letter": 6}
    assert [(one.passed, one.failed) for one in state.expectations] == [(1, 1)]
    assert sorted(json.loads(value)["n"] for _, value in read_topic(server, target, 1)) == [2, 3]
    assert [letter.value for letter in read_messages(server, dead, 1)] == [b"no JSON"] * 6
    mq.publish(source, {"id": 90}, timestamp=START + datetime.timedelta(minutes=90))
    kit.run(text)
    assert sorted(json.loads(value)["n"] for _, value in read_topic(server, target, 1)) == [1, 2, 3], (
        "its state is kept"
    )


# -- expectations ------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_rows_that_fail_an_expectation_are_counted_dropped_or_dead_letters(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("orders"), unique("paid"), unique("paid-dead")
    mq.create_topic(source, 2)
    rows = [
        {"id": n, "amount": -1.0 if n % 10 == 0 else n, "country": None if n % 25 == 0 else "NO", "test": n % 20 == 1}
        for n in range(100)
    ]
    mq.publish_many(source, [*rows, "no JSON"])
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT, amount DOUBLE, country STRING, test BOOLEAN"
maxRowsPerTrigger = 40
dead_letter = "{dead}"
expect = {{ even = "value.id % 2 = 0" }}
[step.paid]
from = "orders"
select = ["value.id AS number", "value.amount", "value.country", "value.test", "headers", "topic"]
dead_letter = "{dead}"
[step.paid.expect]
large = "amount >= 50"
positive = {{ rule = "amount > 0", on_fail = "dead_letter" }}
known = {{ rule = "country = 'NO'", on_fail = "dead_letter" }}
real = {{ rule = "NOT test", on_fail = "drop" }}
[sink.out]
from = "paid"
topic = "{target}"
value = "to_json(struct(number, amount))"
[sink.again]
from = "paid"
topic = "{target}-2"
value = "to_json(struct(number, amount))"
"""
    kit.run(text, progress=True)
    state = last_word(server)
    told = {f"{one.table}.{one.expectation}": (one.passed, one.failed, one.on_fail) for one in state.expectations}
    assert told == {
        "orders.even": (50, 50, "warn"),
        "paid.large": (45, 55, "warn"),
        "paid.positive": (90, 10, "dead_letter"),
        "paid.known": (96, 4, "dead_letter"),
        "paid.real": (95, 5, "drop"),
    }, "each once, although two queries read the table"
    assert "expectation paid.positive (dead_letter): 90 passed, 10 failed" in show(state)
    good = [n for n in range(100) if n % 10 and n % 25 and n % 20 != 1]
    for topic in (target, f"{target}-2"):
        assert sorted(json.loads(value)["number"] for _, value in read_topic(server, topic, 1)) == good
    letters = read_messages(server, dead, 1)
    by_reason = [dict(letter.headers)["x-dead-letter-reason"] for letter in letters]
    assert (by_reason.count(b"malformed"), by_reason.count(b"expectation")) == (1, 12)
    rejected = {
        json.loads(letter.value or b"")["number"]: dict(letter.headers)
        for letter in letters
        if dict(letter.headers)["x-dead-letter-reason"] == b"expectation"
    }
    assert sorted(rejected) == sorted({*range(0, 100, 10), 25, 75})
    assert rejected[50]["x-dead-letter-error"] == b"failed positive: amount > 0, known: country = 'NO'"
    assert rejected[25]["x-dead-letter-error"] == b"failed known: country = 'NO'", "NULL is not true"
    assert rejected[25]["x-dead-letter-topic"] == source.encode()
    labels = '{expectation="positive",pipeline="one",result="failed",table="paid"}'
    wait_for(lambda: f"waystation_pipeline_expectation_rows_total{labels} 10.0" in metrics(server), "the metrics")
    labels = '{pipeline="one",sink="paid.dead_letter"}'
    assert f"waystation_pipeline_sink_dead_letters_total{labels} 12.0" in metrics(server)


def metrics(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def test_an_expectation_that_must_not_fail_ends_the_pipeline_and_nothing_of_the_batch_is_written(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target, dead = unique("orders"), unique("paid"), unique("dead")
    jobs = mq.queue(source)
    mq.create_topic(target, 1)
    mq.create_topic(dead, 1)
    jobs.put_many([{"id": n, "amount": n - 17} for n in range(40)])
    text = f"""servers = "{server.bootstrap}"
[source.orders]
queue = "{source}"
schema = "id BIGINT, amount DOUBLE"
[step.paid]
from = "orders"
filter = "value.amount <> 0"
select = ["100 / value.amount AS share", "value.id AS number"]
dead_letter = "{dead}"
[step.paid.expect]
sane = {{ rule = "share > -100", on_fail = "fail" }}
small = {{ rule = "share < 1", on_fail = "dead_letter" }}
[sink.out]
from = "paid"
topic = "{target}"
"""
    with pytest.raises(PipelineFailed) as caught:
        kit.run(text, progress=True)
    said = str(caught.value)
    assert "expectation 'sane' of 'paid' failed: share > -100 is not true for the row" in said
    assert '"number":16' in said
    assert "expectation 'sane'" in (last_word(server).error or "")
    assert read_topic(server, target, 1) == read_topic(server, dead, 1) == []
    wait_for(lambda: len(jobs.peek(100)) == 40, "all messages to be in the queue again", within_s=60)
    kit.run(text.replace("-100", "-101"))
    assert len(read_topic(server, target, 1)) + len(read_topic(server, dead, 1)) == 39


def test_check_names_the_line_of_a_wrong_rule(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source = unique("orders")
    mq.create_topic(source, 1)
    file = kit.write(f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT"
select = ["value.id"]
[source.orders.expect]
column = "idd > 0"
number = "id + 1"
total = "sum(id) > 0"
syntax = {{ rule = "id >", on_fail = "drop" }}
[step.counts]
from = "orders"
aggregate = {{ n = "count(*)" }}
dead_letter = "{source}-dead"
expect = {{ some = {{ rule = "n > 1", on_fail = "dead_letter" }} }}
[sink.out]
from = "counts"
topic = "{source}-counts"
mode = "complete"
""")
    lines = file.read_text().splitlines()

    def found() -> dict[str, str]:
        return {lines[problem.line - 1]: problem.text for problem in check_pipeline(file)}

    told = found()
    assert "there is no column `idd` here" in told['column = "idd > 0"']
    assert "no condition: it is bigint, not boolean" in told['number = "id + 1"']
    assert "sum(id)" in told['total = "sum(id) > 0"']
    assert "yntax error" in told['syntax = { rule = "id >", on_fail = "drop" }']
    assert len(told) == 4, told
    file.write_text("\n".join("" if line in told else line for line in lines))
    ((line, text),) = found().items()
    assert line.startswith("dead_letter"), line
    assert "watermark" in text, "rows of an aggregate without a watermark are never final"


def test_expectations_of_a_table_that_is_no_stream_are_counted(kit: Kit, server: Server, mq: waystation.Client) -> None:
    import pyarrow.parquet as pq

    dead = unique("orders-dead")
    kit.parquet("orders", orders(30))
    text = f"""servers = "{server.bootstrap}"
[source.orders]
parquet = "orders"
static = true
[step.big]
from = "orders"
dead_letter = "{dead}"
expect = {{ big = {{ rule = "amount >= 10", on_fail = "dead_letter" }}, known = "kind = 'a'" }}
[sink.out]
from = "big"
parquet = "out"
"""
    kit.run(text, progress=True)
    state = last_word(server)
    assert [(one.expectation, one.passed, one.failed) for one in state.expectations] == [
        ("big", 20, 10),
        ("known", 10, 20),
    ]
    assert {sink.sink: (sink.rows, sink.dead_letters) for sink in state.sinks} == {
        "out": (20, 0),
        "big.dead_letter": (10, 10),
    }
    assert pq.read_table(kit.folder / "out").num_rows == 20
    assert sorted(json.loads(letter.value or b"")["id"] for letter in read_messages(server, dead, 1)) == list(range(10))


# -- destinations of rows ----------------------------------------------------------------------------------------------

ROUTED = """
[source.orders]
topics = "{source}"
schema = "id BIGINT, topic STRING, queue STRING"
[step.routed]
from = "orders"
select = ["value.id", "value.topic", "value.queue"]
[sink.out]
from = "routed"
key = "id"
destinations = ["topic", "queue"]
"""


def test_each_row_goes_to_the_topic_or_queue_that_it_names(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, target, dead = unique("orders"), unique("copy"), unique("nowhere")
    mq.create_topic(source, 1)
    review = mq.queue(f"{target}-review")
    named: list[dict[str, str]] = [
        {"topic": f"{target}-a"},
        {"topic": f"{target}-b"},
        {"queue": f"{target}-review"},
        {"queue": f"{target}-missing"},
        {"topic": "no topic/at all"},
        {},
        {"topic": f"{target}-a", "queue": f"{target}-review"},
    ]
    mq.publish_many(source, [{"id": n, **named[n % 7]} for n in range(70)])
    text = f'servers = "{server.bootstrap}"\n{ROUTED.format(source=source)}dead_letter = "{dead}"\n'
    assert check_pipeline(kit.write(text)) == []
    kit.run(text, progress=True)
    kit.run(text)  # there is nothing new
    for place, topic in enumerate((f"{target}-a", f"{target}-b")):
        found = [(int(key), json.loads(value)) for key, value in read_topic(server, topic, 1)]
        assert sorted(found, key=lambda one: one[0]) == [(n, {"id": n}) for n in range(place, 70, 7)]
    assert sorted(message.json()["id"] for message in review.peek(100)) == list(range(2, 70, 7))
    letters = {int(letter.key or b""): dict(letter.headers) for letter in read_messages(server, dead, 1)}
    assert sorted(letters) == [n for n in range(70) if n % 7 > 2]
    assert {letter["x-dead-letter-reason"] for letter in letters.values()} == {b"destination"}
    errors = [(letters[n]["x-dead-letter-error"] or b"").decode() for n in (3, 4, 5, 6)]
    wanted = (f"{target}-missing", "no topic/at all", "neither a topic nor", "and a queue")
    assert all(says in error for error, says in zip(errors, wanted, strict=True)), errors
    told = [(sink.kind, sink.rows_read, sink.rows, sink.dead_letters) for sink in last_word(server).sinks]
    assert told == [("destinations", 70, 70, 40)]


def test_a_row_without_a_destination_is_an_error_where_there_is_no_dead_letter(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    source, target = unique("orders"), unique("copy")
    mq.create_topic(source, 1)
    mq.create_topic(target, 1)
    mq.publish_many(source, [{"id": 1, "topic": target}, {"id": 2, "queue": f"{target}-missing"}])
    text = f'servers = "{server.bootstrap}"\n{ROUTED.format(source=source)}'
    with pytest.raises(PipelineFailed, match=f"queue '?{target}-missing"):
        kit.run(text)
    assert read_topic(server, target, 1) == [], "nothing of the batch is written"
    created = mq.queue(f"{target}-missing")
    mq.publish_many(source, [{"id": 3}, {"id": 4, "topic": target}])
    with pytest.raises(PipelineFailed, match="1 rows have no topic; filter them out"):
        kit.run(text)
    assert [message.json() for message in created.peek(10)] == [{"id": 2}]
    assert read_topic(server, target, 1) == [(b"1", b'{"id":1}')], "the batch that failed, when its queue was there"


def test_check_explains_destinations(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source = unique("orders")
    mq.create_topic(source, 1)
    text = f'servers = "{server.bootstrap}"\n{ROUTED.format(source=source)}dead_letter = {{ queue = "gone" }}\n'
    file = kit.write(text.replace(', "value.queue"]', "]"))
    told = {file.read_text().splitlines()[one.line - 1]: one.text for one in check_pipeline(file)}
    assert "there is no column 'queue'" in told['destinations = ["topic", "queue"]']
    assert "waystation queues create gone" in told['dead_letter = { queue = "gone" }']
