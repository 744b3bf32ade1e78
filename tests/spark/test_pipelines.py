"""Pipelines on real Spark: what steps do, what is remembered, what is told, and what goes wrong in one sentence."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import waystation
from tests.spark.pipeline_kit import ORDERS, Kit, orders
from tests.spark.topic_reading import read_topic
from tests.spark.versions_kit import since_42
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import Unavailable
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.checking import check_pipeline
from waystation.spark.pipelines.file.problems import PipelineFailed, PipelineInvalid
from waystation.spark.pipelines.running import Ears, run_pipeline
from waystation.spark.pipelines.status.registry import ask_to_stop, connect_any, find_pipeline

if TYPE_CHECKING:
    pass


def by(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows)


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_filter_sql_and_aggregate(kit: Kit) -> None:
    kit.parquet("orders", orders(300))
    text = f"""{ORDERS}
[step.big]
from = "orders"
filter = "amount >= 100"
select = ["kind", "amount * 2 AS double"]

[step.per_kind]
sql = "SELECT kind, count(*) AS n FROM big GROUP BY kind"

[step.all]
from = "big"
aggregate = {{ total = "sum(double)" }}

[sink.counts]
from = "per_kind"
memory = "counts"
mode = "complete"

[sink.totals]
from = "all"
memory = "totals"
mode = "complete"
"""
    assert kit.run(text, "counts", "totals") == "finished"
    assert by(kit.tables["counts"], "kind", "n") == [("a", 66), ("b", 67), ("c", 67)]
    assert kit.tables["totals"] == [{"total": sum(range(100, 300)) * 2.0}]


def test_watermark_window_dedup_and_join(kit: Kit) -> None:
    kit.parquet("orders", [*orders(600), *orders(10)])
    kit.parquet("kinds", [{"kind": "a", "word": "apple"}, {"kind": "b", "word": "bread"}])
    text = f"""{ORDERS}watermark = {{ column = "at", delay = "1m" }}

[source.kinds]
parquet = "kinds"
static = true

[step.unique]
from = "orders"
dedup = {{ columns = ["id"], within_watermark = true }}

[step.named]
from = "unique"
join = {{ with = "kinds", on = "kind" }}

[step.minutes]
from = "named"
window = {{ column = "at", size = "1 minute" }}
group = "word"
aggregate = {{ n = "count(*)" }}
select = ["window.start AS minute", "word", "n"]

[sink.out]
from = "minutes"
memory = "minutes"
mode = "append"
"""
    kit.run(text, "minutes")
    found = kit.tables["minutes"]
    assert {row["word"] for row in found} == {"apple", "bread"}
    assert all(row["n"] == 20 for row in found), "each once, although ten came twice"


def test_python_functions_travel_to_the_workers(kit: Kit) -> None:
    kit.parquet("orders", orders(50))
    (kit.folder / "words.py").write_text("WORDS = {'a': 'apple'}\n")
    (kit.folder / "own.py").write_text(
        "import words\n"
        "from pyspark.sql.functions import udf\n"
        "@udf('string')\n"
        "def spell(kind):\n"
        "    return words.WORDS.get(kind, '?')\n"
        "def spelled(frame, other):\n"
        "    return frame.withColumn('word', spell('kind')).join(other, 'kind')\n"
    )
    kit.parquet("kinds", [{"kind": "a", "price": 3}])
    text = f"""{ORDERS}
[source.kinds]
parquet = "kinds"
static = true

[step.spelled]
from = ["orders", "kinds"]
python = "own.py:spelled"

[sink.out]
from = "spelled"
memory = "spelled"
"""
    kit.run(text, "spelled")
    assert {(row["word"], row["price"]) for row in kit.tables["spelled"]} == {("apple", 3)}
    assert len(kit.tables["spelled"]) == 17


def test_a_stateful_processor_keeps_a_state_for_each_group(kit: Kit) -> None:
    (kit.folder / "own.py").write_text(
        "from pyspark.sql import Row\n"
        "from pyspark.sql.streaming.stateful_processor import StatefulProcessor\n"
        "class Count(StatefulProcessor):\n"
        "    def init(self, handle):\n"
        "        self.seen = handle.getValueState('seen', 'n INT')\n"
        "    def handleInputRows(self, key, rows, timers):\n"
        "        before = self.seen.get()[0] if self.seen.exists() else 0\n"
        "        n = before + sum(1 for _ in rows)\n"
        "        self.seen.update((n,))\n"
        "        yield Row(kind=key[0], n=n)\n"
        "    def close(self):\n"
        "        pass\n"
    )
    text = f"""{ORDERS}
[step.counts]
from = "orders"
stateful = {{ processor = "own.py:Count", group = "kind", output = "kind STRING, n INT", mode = "update" }}

[sink.out]
from = "counts"
parquet = "out"
"""
    import pyarrow.parquet as pq

    text = text.replace('mode = "update"', 'mode = "append"')
    kit.parquet("orders", orders(30), "0.parquet")
    kit.run(text)
    kit.parquet("orders", orders(30, 30), "1.parquet")
    kit.run(text)
    rows = pq.read_table(kit.folder / "out").to_pylist()
    assert by(rows, "kind", "n") == [(kind, n) for kind in "abc" for n in (10, 20)], "the state outlived the first run"


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_a_second_run_goes_on_where_the_first_ended(kit: Kit) -> None:
    import pyarrow.parquet as pq

    text = f'{ORDERS}\n[sink.out]\nfrom = "orders"\nparquet = "out"\npartition_by = "kind"\n'
    kit.parquet("orders", orders(10), "0.parquet")
    kit.run(text)
    kit.parquet("orders", orders(10, 10), "1.parquet")
    kit.run(text)
    rows = pq.read_table(kit.folder / "out").to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(20))
    assert sorted(p.name for p in (kit.folder / "out").glob("kind=*")) == ["kind=a", "kind=b", "kind=c"]


def test_static_tables_are_written_once(kit: Kit) -> None:
    import pyarrow.parquet as pq

    kit.parquet("orders", orders(10))
    text = '[source.orders]\nparquet = "orders"\nstatic = true\n[sink.out]\nfrom = "orders"\nparquet = "out"\n'
    assert kit.run(text) == "finished"
    assert pq.read_table(kit.folder / "out").num_rows == 10


# -- check -------------------------------------------------------------------------------------------------------------


def test_check_finds_what_spark_would_not_run(kit: Kit) -> None:
    (kit.folder / "own.py").write_text("def nothing(frame):\n    return None\n")
    file = kit.write(f"""{ORDERS}
[step.good]
from = "orders"
filter = "amount > 1"

[step.column]
from = "orders"
filter = "amuont > 1"

[step.query]
sql = '''
SELECT kind,
       amont
FROM good
'''

[step.table]
sql = "SELECT * FROM goood"

[step.syntax]
sql = '''
SELECT kind
FRM good g h
'''

[step.after]
from = "column"
filter = "also_wrong > 1"

[step.counts]
from = "good"
group = "kind"
aggregate = {{ n = "count(*)" }}

[step.function]
from = "good"
python = "own.py:nothing"

[sink.one]
from = "counts"
console = true
mode = "append"

[sink.two]
from = "good"
parquet = "out"
partition_by = "kidn"

[sink.three]
from = "good"
console = true
""")
    lines = file.read_text().splitlines()
    found = {lines[problem.line - 1]: problem.text for problem in check_pipeline(file)}
    assert "there is no column `amuont` here" in found['filter = "amuont > 1"']
    assert "`amont`" in found["       amont"], "the line of the query, not of the step"
    assert "did you mean 'good'" in found['sql = "SELECT * FROM goood"']
    assert "FRM good g h" in found
    assert "watermark" in found['mode = "append"']
    assert "has to return a DataFrame" in found['python = "own.py:nothing"']
    assert "did you mean 'kind'" in found['partition_by = "kidn"']
    assert len(found) == 7, found
    assert not (kit.folder / ".waystation").exists(), "nothing is left behind"


def test_check_asks_the_broker_for_topics_and_queues(kit: Kit, server: Server, mq: waystation.Client) -> None:
    topic = unique("orders")
    mq.create_topic(topic, 1)
    file = kit.write(f"""servers = "{server.bootstrap}"
[source.good]
topics = "{topic}"
schema = "id BIGINT"
[source.gone]
topics = ["{topic}", "{topic}s"]
[source.jobs]
queue = "no-such-queue"
[step.ids]
sql = "SELECT value.idd FROM good"
[sink.out]
from = "good"
topic = "no-such-topic"
""")
    lines = file.read_text().splitlines()
    found = {lines[problem.line - 1]: problem.text for problem in check_pipeline(file)}
    assert f"did you mean '{topic}'" in found[f'topics = ["{topic}", "{topic}s"]']
    assert "waystation queues create no-such-queue" in found['queue = "no-such-queue"']
    assert 'topic = "no-such-topic"' not in found, "it is created, as for every publisher"
    with Server(kit.folder / "strict", settings={"auto.create.topics.enable": "false"}) as strict:
        told = [problem.text for problem in check_pipeline(file, servers=strict.bootstrap)]
    assert any("waystation topics create no-such-topic" in text for text in told), told
    assert "idd" in found['sql = "SELECT value.idd FROM good"']


# -- topics ------------------------------------------------------------------------------------------------------------


@since_42
@pytest.mark.quick
def test_a_topic_is_read_and_progress_is_told(kit: Kit, server: Server, mq: waystation.Client) -> None:
    topic, name = unique("orders"), unique("told")
    mq.create_topic(topic, 2)
    mq.publish_many(topic, [{"id": n, "kind": "abc"[n % 3]} for n in range(100)])
    text = f"""name = "{name}"
servers = "{server.bootstrap}"
[source.orders]
topics = "{topic}"
schema = "id BIGINT, kind STRING"
maxRowsPerTrigger = 30
[step.kinds]
sql = "SELECT value.kind, count(*) AS n FROM orders GROUP BY value.kind"
[sink.out]
from = "kinds"
memory = "kinds"
mode = "complete"
"""
    kit.run(text, "kinds", progress=True)
    assert by(kit.tables["kinds"], "kind", "n") == [("a", 34), ("b", 33), ("c", 33)]
    state = last_word(server, name)
    assert (state.phase, state.bounded) == ("finished", True)
    (sink,) = state.sinks
    assert (sink.rows_read, sink.rows_to_do, sink.phase) == (100, 100, "finished")
    assert sink.batch >= 1
    assert 3 * sink.batch <= sink.rows <= 3 * (sink.batch + 1), (
        "each batch writes all rows again, as the mode is complete"
    )
    assert sink.state_rows == 3


def last_word(server: Server, name: str) -> PipelineState:
    with connect_any(server.bootstrap) as connection:
        return find_pipeline(connection, name)


def test_a_running_pipeline_stops_when_it_is_asked_through_the_broker(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    topic, name = unique("orders"), unique("asked")
    mq.create_topic(topic, 1)
    mq.publish(topic, {"id": 1})
    read = kit.read(
        f"""name = "{name}"
servers = "{server.bootstrap}"
trigger = "100ms"
[source.orders]
topics = "{topic}"
[sink.out]
from = "orders"
console = true
""",
        progress=True,
    )
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(run_pipeline(read, ears=Ears(note=kit.notes.append))))
    thread.start()
    try:
        state = wait_for(lambda: told(server, name), "the pipeline to run and read", within_s=120)
        assert state.seen() == "running"
        with connect_any(server.bootstrap) as connection:
            ask_to_stop(connection, state)
        thread.join(60)
        assert ended == ["stopped"]
        assert last_word(server, name).phase == "stopped"
    finally:
        thread.join(60)


def told(server: Server, name: str) -> PipelineState | None:
    try:
        state = last_word(server, name)
    except waystation.errors.NotFound:
        return None
    return state if state.rows > 0 else None


def test_topic_to_topic(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, target = unique("in"), unique("out")
    mq.create_topic(source, 2)
    mq.create_topic(target, 2)
    mq.publish_many(source, [{"id": n, "amount": n} for n in range(50)])
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
schema = "id BIGINT, amount DOUBLE"
[step.doubled]
from = "orders"
select = ["value.id", "value.amount * 2 AS amount"]
[sink.out]
from = "doubled"
topic = "{target}"
key = "id"
"""
    kit.run(text)
    kit.run(text)  # there is nothing new
    messages = read_topic(server, target, 2)
    assert sorted((int(key), json.loads(value)) for key, value in messages) == [
        (n, {"id": n, "amount": n * 2.0}) for n in range(50)
    ]


def test_a_static_table_goes_to_a_topic_once_by_its_txn_id(kit: Kit, server: Server, mq: waystation.Client) -> None:
    target = unique("out")
    mq.create_topic(target, 1)
    kit.parquet("orders", orders(20))
    text = f"""servers = "{server.bootstrap}"
[source.orders]
parquet = "orders"
static = true
[sink.out]
from = "orders"
topic = "{target}"
key = "id"
txnId = "{unique("load")}"
"""
    kit.run(text, progress=True)
    assert [sink.rows for sink in last_word(server, "one").sinks] == [20]
    kit.run(text, progress=True)
    assert [sink.rows for sink in last_word(server, "one").sinks] == [0], "it was written before"
    found = read_topic(server, target, 1)
    assert sorted(int(key) for key, _ in found) == list(range(20))


@since_42
def test_queue_to_queue(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, target = unique("jobs"), unique("done")
    jobs, done = mq.queue(source), mq.queue(target)
    jobs.put_many([{"id": n} for n in range(20)])
    text = f"""servers = "{server.bootstrap}"
[source.jobs]
queue = "{source}"
[step.big]
from = "jobs"
filter = "cast(get_json_object(cast(value AS STRING), '$.id') AS INT) >= 10"
select = ["value", "5 AS priority"]
[sink.out]
from = "big"
queue = "{target}"
"""
    kit.run(text)
    kit.run(text)  # what the first took is acked when the second asks for more
    found = done.peek(100)
    assert sorted(message.json()["id"] for message in found) == list(range(10, 20))
    assert {message.priority for message in found} == {5}
    wait_for(lambda: not jobs.peek(1), "the queue that was read to be empty")


@since_42
@pytest.mark.quick
def test_two_sinks_of_one_queue_are_written_in_one_commit(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, good, bad = unique("jobs"), unique("good"), unique("bad")
    jobs, rejected = mq.queue(source), mq.queue(bad)
    mq.create_topic(good, partitions=2)
    jobs.put_many([{"id": n} if n % 5 else "no JSON" for n in range(200)])
    text = f"""servers = "{server.bootstrap}"
[source.jobs]
queue = "{source}"
schema = "id INT"
maxRowsPerTrigger = 40
[step.good]
sql = "SELECT cast(value.id AS STRING) AS key, to_json(value) AS value FROM jobs WHERE value IS NOT NULL"
[step.bad]
from = "jobs"
filter = "value IS NULL"
select = ["coalesce(_corrupt, cast('' AS BINARY)) AS value", "map('why', 'no JSON') AS headers"]
[sink.good]
from = "good"
topic = "{good}"
[sink.bad]
from = "bad"
queue = "{bad}"
"""
    kit.run(text, progress=True)
    told = {sink.sink: (sink.rows, sink.malformed, sink.phase) for sink in last_word(server, "one").sinks}
    assert told == {"good": (160, 40, "finished"), "bad": (40, 40, "finished")}
    kit.run(text)  # what the first took is acked when the second asks for more
    assert sorted(int(key) for key, _ in read_topic(server, good, 2)) == [n for n in range(200) if n % 5]
    found = rejected.peek(1000)
    assert [(message.text(), message.headers) for message in found] == [("no JSON", {"why": "no JSON"})] * 40
    wait_for(lambda: not jobs.peek(1), "the queue that was read to be empty")
    assert [path.name for path in (kit.folder / ".waystation" / "one" / "sinks").iterdir()] == ["good"]


# -- what goes wrong ---------------------------------------------------------------------------------------------------


def test_a_function_that_fails_is_one_sentence_and_the_trace_is_in_the_log(kit: Kit) -> None:
    kit.parquet("orders", orders(5))
    (kit.folder / "own.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "@udf('string')\n"
        "def fail(kind):\n"
        "    raise ValueError(f'no such kind: {kind}')\n"
        "def work(frame):\n"
        "    return frame.withColumn('x', fail('kind'))\n"
    )
    text = f"""{ORDERS}
[step.work]
from = "orders"
python = "own.py:work"
[sink.out]
from = "work"
memory = "never"
"""
    with pytest.raises(PipelineFailed) as caught:
        kit.run(text)
    said = str(caught.value)
    assert "sink 'out': ValueError: no such kind: a" in said
    assert "\n" not in said
    log = kit.folder / ".waystation" / "one" / "pipeline.log"
    assert str(log) in said
    assert "Traceback" in log.read_text()


def test_a_missing_topic_is_one_sentence_with_what_to_do(kit: Kit, server: Server) -> None:
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "not-there"
[sink.out]
from = "orders"
memory = "never"
"""
    with pytest.raises((PipelineFailed, PipelineInvalid)) as caught:
        kit.run(text)
    assert "not-there" in str(caught.value)
    assert "waystation topics create" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_targets_are_made_or_missed_at_the_start(kit: Kit, server: Server, mq: waystation.Client) -> None:
    source, target = unique("quiet"), unique("made")
    mq.create_topic(source, 1)
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{source}"
[sink.out]
from = "orders"
topic = "{target}"
"""
    assert kit.run(text) == "finished"
    assert target in [topic.topic for topic in mq.topics()], "no row has come, and it is there"
    with pytest.raises(PipelineInvalid, match=r"one.toml:8: .*waystation queues create not-there"):
        kit.run(text.replace(f'topic = "{target}"', 'queue = "not-there"'))


def test_a_broker_that_is_down_is_told_and_waited_for(kit: Kit) -> None:
    text = 'servers = "127.0.0.1:1"\n[source.o]\ntopics = "a"\n[sink.out]\nfrom = "o"\nconsole = true\n'
    with pytest.raises(Unavailable, match=r"no server answers at 127.0.0.1:1"):
        kit.run(text, wait_s=0.1)
    assert "trying again" in kit.notes[0]


def test_a_broker_that_goes_away_is_told_and_the_pipeline_goes_on(kit: Kit, tmp_path: Path) -> None:
    with Server(tmp_path / "own") as broker:
        with waystation.connect(broker.bootstrap) as mq:
            for topic in ("in", "out"):
                mq.create_topic(topic, 1)
            mq.publish_many("in", [f"{n}" for n in range(10)])
        read = kit.read(
            f"""name = "patient"
servers = "{broker.bootstrap}"
trigger = "200ms"
[source.numbers]
topics = "in"
[sink.out]
from = "numbers"
topic = "out"
""",
            progress=True,
        )
        stop = threading.Event()
        ended: list[str] = []
        ears = Ears(note=kit.notes.append, should_stop=stop.is_set)
        thread = threading.Thread(target=lambda: ended.append(run_pipeline(read, ears=ears)))
        thread.start()
        try:
            wait_for(lambda: len(read_topic(broker, "out", 1)) == 10, "the first rows", within_s=120)
            broker.kill()
            wait_for(lambda: any("is away" in note for note in kit.notes), "the message", within_s=60)
            broker.restart()
            with waystation.connect(broker.bootstrap) as mq:
                mq.publish_many("in", [f"{n}" for n in range(10, 20)])
            wait_for(lambda: len(read_topic(broker, "out", 1)) >= 20, "the other rows", within_s=120)
            assert any("is back" in note for note in kit.notes)
        finally:
            stop.set()
            thread.join(60)
        assert ended == ["stopped"]
        values = sorted(int(value) for _, value in read_topic(broker, "out", 1))
    assert values == list(range(20)), "each once"


def test_an_unknown_column_is_told_with_its_line_when_it_runs(kit: Kit) -> None:
    kit.parquet("orders", orders(5))
    text = f'{ORDERS}\n[step.x]\nfrom = "orders"\nfilter = "amuont > 1"\n[sink.out]\nfrom = "x"\nmemory = "never"\n'
    with pytest.raises(PipelineInvalid, match=r"one.toml:\d+: there is no column `amuont` here"):
        kit.run(text)
