"""`waystation export` and `import`: out of a broker and in again, byte for byte."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import waystation
from tests.cli.kit import Cli, QuickCli
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.cli.terminal.progress import Progress
from waystation.cli.transfer.export import _save
from waystation.cli.transfer.row_files import open_writer
from waystation.cli.transfer.rows import Row, TopicRow
from waystation.client.records.publishing import OutgoingRecord, RecordPublisher
from waystation.errors import Unavailable
from waystation.message import Message

RECORDS = [
    OutgoingRecord(b"plain", b"key", (), 0, 1_700_000_000_000),
    OutgoingRecord(None, b"deleted", (), 1, 1_700_000_000_005),
    OutgoingRecord(b"", b"", (("twice", b"1"), ("twice", None), ("bytes", b"\xff\xfe")), 2, 1_600_000_000_000),
    OutgoingRecord(b"\x00\xff\xfe", b"\xff", (), 0, 1_700_000_000_001),
    OutgoingRecord("grüße\n".encode(), None, (("é", b""),), 0, 1_500_000_000_000),
]


def publish(server: str, topic: str, records: list[OutgoingRecord]) -> None:
    with waystation.connect(server) as mq:
        publisher = RecordPublisher(mq, topic)
        for record in records:
            publisher.publish(record)
        publisher.flush()


def content(quick: QuickCli, topic: str) -> list[Any]:
    """All of it but the topic's name and the offsets' place in it, by partition."""
    found = quick("consume", topic, "--json").objects
    for one in found:
        one.pop("topic")
    return sorted(found, key=lambda one: (one["partition"], one["offset"]))


@pytest.fixture
def filled(quick: QuickCli, topic: str) -> str:
    quick("topics", "create", topic, "--partitions", "3")
    publish(quick.server, topic, RECORDS)
    return topic


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_topic_comes_back_byte_for_byte(quick: QuickCli, filled: str, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = str(tmp_path / f"all.{form}")
    done = quick("export", filled, "--out", path, "--json").json
    assert (done["topic"], done["count"], done["format"], done["bytes"]) == (filled, 5, form, os.path.getsize(path))
    copy = f"{filled}-{form}"
    quick("topics", "create", copy, "--partitions", "3")
    back = quick("import", path, "--to", copy, "--keep-timestamps", "--keep-partitions", "--json").json
    assert (back["topic"], back["count"]) == (copy, 5)
    assert content(quick, copy) == content(quick, filled)
    assert os.listdir(tmp_path) == [f"all.{form}"]


def test_without_keeping_times_are_new_and_keys_choose(quick: QuickCli, filled: str, tmp_path: Path) -> None:
    path = str(tmp_path / "all.jsonl")
    quick("export", filled, "--out", path)
    copy = f"{filled}-copy"
    assert f"imported 5 messages of {path} into {copy}" in quick("import", path, "--to", copy).text
    assert min(one["timestamp"] for one in content(quick, copy)) > 1_700_000_000_005


def test_a_part_of_a_topic_can_be_said(quick: QuickCli, filled: str) -> None:
    def exported(*words: str) -> list[tuple[int, int]]:
        return sorted((one["partition"], one["offset"]) for one in quick("export", filled, *words).objects)

    assert exported() == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    assert exported("--partition", "0", "--from", "1") == [(0, 1), (0, 2)]
    assert exported("--from", "1", "--to", "2") == [(0, 1)]
    assert exported("--partition", "0", "--partition", "1", "--to", "1") == [(0, 0), (1, 0)]
    assert exported("--from", "-1", "--partition", "0") == [(0, 2)]
    assert len(exported("--count", "2")) == 2
    assert exported("--from", "latest") == []


def test_what_export_prints_publish_reads(quick: QuickCli, filled: str) -> None:
    lines = quick("export", filled).out
    quick("publish", f"{filled}-p", "--input", "json", stdin=lines)
    values = sorted(str(one["value"]) for one in content(quick, f"{filled}-p"))
    assert values == sorted(str(one["value"]) for one in content(quick, filled))


def test_a_compacted_copy_of_a_large_topic(quick: QuickCli, topic: str, tmp_path: Path) -> None:
    """More than a block and a batch, so that nothing is cut between them."""
    quick("topics", "create", topic, f"{topic}-copy", "--partitions", "2")
    records = [
        OutgoingRecord(b"%d" % n + b"x" * (n % 300), b"%d" % (n % 97), (), n % 2, 10**12 + n) for n in range(3500)
    ]
    publish(quick.server, topic, records)
    path = str(tmp_path / "all.jsonl")
    quick("export", topic, "--out", path)
    quick("import", path, "--to", f"{topic}-copy", "--keep-timestamps", "--keep-partitions")
    assert content(quick, f"{topic}-copy") == content(quick, topic)


# -- queues ------------------------------------------------------------------------------------------------------------

MESSAGES = [
    Message(payload=b"plain"),
    Message(payload=b"\xff\x00", id="a-1", key=b"\xfe", priority=7,
            headers={"n": 3, "b": b"\xff", "l": [1, {"x": None}], "deep": [b"\xff", datetime(2026, 3, 1, tzinfo=UTC)]}),
    Message(payload=b"later", delay_ms=3_600_000, ttl_ms=86_400_000, max_deliveries=3, content_type="text/plain"),
    Message(payload=b"", correlation_id="c", reply_to="r", type="t", timestamp_ms=5, exchange="", routing_key="k",
            content_encoding="gzip", delivery_mode=2, user_id="u", app_id="a"),
]  # fmt: skip


def own(quick: QuickCli, queue: str) -> list[Message]:
    with waystation.connect(quick.server) as mq:
        return [looked.delivered.message for looked in mq.queue(queue, passive=True).peek(1000)]


@pytest.fixture
def full(quick: QuickCli, queue: str) -> str:
    quick("queues", "create", queue, f"{queue}-copy")
    with waystation.connect(quick.server) as mq:
        mq.queue(queue).put_many(MESSAGES)
    return queue


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_queue_comes_back_byte_for_byte_and_nothing_is_taken(
    quick: QuickCli, full: str, tmp_path: Path, form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    path = str(tmp_path / f"all.{form}")
    before = own(quick, full)
    assert before == MESSAGES
    assert quick("export", "--queue", full, "--out", path, "--json").json["count"] == 4
    assert own(quick, full) == before
    quick("import", path, "--queue", f"{full}-copy")
    assert own(quick, f"{full}-copy") == before


def test_draining_takes_what_is_ready_and_says_what_stays(quick: QuickCli, full: str, tmp_path: Path) -> None:
    path = tmp_path / "drained.jsonl"
    done = quick("export", "--queue", full, "--drain", "--out", str(path))
    assert f"exported 3 messages of {full}" in done.text
    assert "1 delayed" in done.err
    assert [message.payload for message in own(quick, full)] == [b"later"]
    assert len(path.read_bytes().splitlines()) == 3
    assert "exists already" in quick("export", "--queue", full, "--drain", "--out", str(path), code=1).err
    quick("import", str(path), "--queue", f"{full}-copy")
    assert sorted(m.payload for m in own(quick, f"{full}-copy")) == sorted([b"plain", b"\xff\x00", b""])


def test_draining_can_be_bounded(quick: QuickCli, full: str, tmp_path: Path) -> None:
    quick("export", "--queue", full, "--drain", "--count", "1", "--out", str(tmp_path / "one"), "--json")
    assert len(own(quick, full)) == 3


def test_kept_times_are_absolute(quick: QuickCli, full: str, tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    quick("export", "--queue", full, "--out", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (parked,) = (one for one in lines if one["state"] == "parked")
    parked["taken_ms"] -= 86_400_000 * 2  # its time to live is over
    path.write_text("\n".join(json.dumps(one) for one in lines))
    done = quick("import", str(path), "--queue", f"{full}-copy", "--keep-timestamps", "--json").json
    assert (done["count"], done["expired"]) == (3, 1)


def test_ids_that_were_used_are_left_out(quick: QuickCli, full: str, tmp_path: Path) -> None:
    quick("queues", "create", f"{full}-dedup", "--dedup-window", "1h")
    path = str(tmp_path / "all.jsonl")
    quick("export", "--queue", full, "--out", path)
    assert quick("import", path, "--queue", f"{full}-dedup", "--json").json["duplicates"] == 0
    again = quick("import", path, "--queue", f"{full}-dedup", "--json").json
    assert (again["count"], again["duplicates"]) == (3, 1)


def test_what_was_exported_can_cross(quick: QuickCli, filled: str, full: str, tmp_path: Path) -> None:
    records, messages = str(tmp_path / "topic"), str(tmp_path / "queue")
    quick("export", filled, "--out", records)
    quick("export", "--queue", full, "--out", messages)
    quick("import", records, "--queue", f"{full}-copy", "--keep-timestamps")
    crossed = own(quick, f"{full}-copy")
    assert sorted(m.payload for m in crossed) == sorted(record.value or b"" for record in RECORDS)
    assert {m.timestamp_ms for m in crossed} == {record.timestamp_ms for record in RECORDS}
    quick("import", messages, "--to", f"{filled}-copy")
    values = [one["value"] for one in content(quick, f"{filled}-copy")]
    assert sorted(values) == sorted(["plain", "/wA=", "later", ""])


# -- when something is wrong -------------------------------------------------------------------------------------------


def lines_of(count: int) -> list[bytes]:
    return [b'{"value": "%d"}' % number for number in range(count)]


def test_a_wrong_line_stops_it_and_it_can_go_on_behind(quick: QuickCli, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = lines_of(2500)
    path.write_bytes(b"\n".join([*lines[:1200], b"nonsense", *lines[1200:]]))
    done = quick("import", str(path), "--to", topic, code=1)
    assert "line 1201" in done.err
    assert "1200 messages stored; --skip 1200 continues" in done.err
    assert quick("import", str(path), "--to", topic, "--skip", "1201", "--json").json["count"] == 1300
    assert sorted(int(value) for value in quick("consume", topic).lines) == list(range(2500))


def test_a_full_queue_says_how_many_are_stored(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--max-length", "1500")
    done = quick("import", "-", "--queue", queue, stdin=b"\n".join(lines_of(3000)), code=1)
    assert "1000 messages stored, and of the next 1000 perhaps some; --skip 1000" in done.err
    assert len(own(quick, queue)) == 1000


def test_the_rate_is_kept_in_blocks(quick: QuickCli, topic: str) -> None:
    done = quick("import", "-", "--to", topic, "--rate", "400/s", stdin=b"\n".join(lines_of(150)))
    assert "imported 150 messages" in done.text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export",), "give a topic or --queue"),
        (("export", "t", "--queue", "q"), "give a topic or --queue"),
        (("export", "t", "--drain", "--out", "f"), "--drain is for queues"),
        (("export", "--queue", "q", "--drain"), "--drain needs --out"),
        (("export", "--queue", "q", "--drain", "--out", "f", "--overwrite"), "never writes over"),
        (("export", "--queue", "q", "--drain", "--out", "f.parquet"), "JSON lines"),
        (("export", "--queue", "q", "--from", "earliest"), "are for topics"),
        (("export", "no-such-topic"), "no-such-topic"),
        (("export", "--queue", "no-such-queue"), "no-such-queue"),
        (("import", "no-such-file", "--to", "t"), "no-such-file"),
        (("import", "f"), "say where to"),
        (("import", "f", "--to", "t", "--queue", "q"), "say where to"),
        (("import", "f", "--queue", "q", "--keep-partitions"), "for topics"),
        (("import", os.devnull, "--to", "no-such-topic", "--keep-partitions"), "topics create"),
        (("import", "-", "--format", "parquet", "--to", "t"), "standard input"),
    ],
)
def test_a_wrong_wish_is_explained(quick: QuickCli, words: tuple[str, ...], said: str) -> None:
    assert said in quick(*words, code=1).err


def test_parquet_to_standard_output_and_a_strange_parquet_file(quick: QuickCli, filled: str, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    assert "--out" in quick("export", filled, "--format", "parquet", code=1).err
    strange = str(tmp_path / "strange.parquet")
    pyarrow.parquet.write_table(pa.table({"value": [b"x"]}), strange)
    assert "not written by `waystation export`" in quick("import", strange, "--to", filled, code=1).err


def test_a_machine_without_pyarrow_is_told(
    quick: QuickCli, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = quick("export", filled, "--out", str(tmp_path / "x.parquet"), code=1)
    assert "pip install pyarrow" in done.err
    assert list(tmp_path.iterdir()) == []


def test_progress_is_said_where_it_is_asked_for(cli: Cli, topic: str) -> None:
    """Not at a terminal and without --progress, nothing is said."""
    done = cli("import", "-", "--to", topic, stdin=b"\n".join(lines_of(10)))
    assert done.err == ""


def test_an_interrupted_import_says_where_to_go_on(cli: Cli, quick: QuickCli, topic: str) -> None:
    quick("topics", "create", topic)
    process = cli.start("import", "-", "--to", topic)
    try:
        if process.stdin is None:
            raise AssertionError("it has no input")
        process.stdin.write(b"\n".join(lines_of(1500)))
        process.stdin.flush()
        wait_for(lambda: len(quick("consume", topic).lines) == 1000, "the first block is stored")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in err
    # A reader sees messages a moment before the answer that they are stored reaches who sent them.
    unsure = b"0 messages stored, and of the next 1000 perhaps some; --skip 0 continues after them"
    assert b"1000 messages stored; --skip 1000 continues after them" in err or unsure in err


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_an_export_that_did_not_finish_leaves_no_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "all.jsonl"
    writer = open_writer(str(path), "jsonl", TopicRow, overwrite=False, keep=False)
    interrupt = SimpleNamespace(came=False)

    def rows() -> Iterator[Row]:
        for number in range(1500):
            yield TopicRow(topic="t", partition=0, offset=number, timestamp_ms=0, key=None, value=b"x")
        if how == "failed":
            raise Unavailable("the broker is gone")
        interrupt.came = True

    progress = Progress("t", quiet=True)
    if how == "failed":
        with pytest.raises(Unavailable):
            _save(rows(), writer, progress, interrupt)  # type: ignore[arg-type]
    else:
        _save(rows(), writer, progress, interrupt)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_says_little_is_as_any_message(quick: QuickCli, topic: str) -> None:
    quick("topics", "create", topic, "--partitions", "2")
    lines = b'{"value": "a"}\n{"value": "b", "partition": 1, "timestamp": 5}\n'
    quick("import", "-", "--to", topic, "--keep-timestamps", "--keep-partitions", stdin=lines)
    first, second = sorted(content(quick, topic), key=lambda one: str(one["value"]))
    assert first["timestamp"] > 1_700_000_000_000
    assert (second["partition"], second["timestamp"]) == (1, 5)


def test_rows_are_what_they_say() -> None:
    row = TopicRow(topic="t", partition=1, offset=2, timestamp_ms=3, key=None, value=None)
    assert row.as_record(keep_timestamp=False, keep_partition=False) == OutgoingRecord(None)
