"""Topics record by record: what is copied is the same, and whoever copies always knows how far it is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client import admin
from waystation.client.records.calls import Calls
from waystation.client.records.group_reading import GroupReader
from waystation.client.records.offsets import offsets_at, resolve
from waystation.client.records.publishing import BatchLocation, OutgoingRecord, RecordPublisher
from waystation.client.records.reading import RecordReader
from waystation.client.sync.client import Client
from waystation.errors import ConnectionLost, NotFound, TooLarge, UnknownTopic


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("records"), settings={"group.consumer.heartbeat.interval.ms": 200}) as server:
        yield server


@pytest.fixture
def mq(server: Server) -> Iterator[Client]:
    with waystation.connect(server.bootstrap) as client:
        yield client


@pytest.fixture
def topic(mq: Client) -> str:
    name = unique("records")
    mq.create_topic(name, 2)
    return name


def publish(mq: Client, topic: str, *records: OutgoingRecord) -> None:
    publish_all(RecordPublisher(mq, topic), records)


def publish_all(publisher: RecordPublisher, records: Iterable[OutgoingRecord]) -> None:
    for record in records:
        publisher.publish(record)
    publisher.flush()


def test_a_record_comes_out_as_it_went_in(mq: Client, topic: str) -> None:
    headers = (("twice", b"1"), ("twice", None), ("bytes", b"\xff"), ("x-priority", b"none of ours"))
    records = [
        OutgoingRecord(b"value", b"key", headers, 1, 1_700_000_000_000),
        OutgoingRecord(None, b"key", (), 1, 1_600_000_000_000),
        OutgoingRecord(b"", b"", (), 1),
    ]
    publish(mq, topic, *records)
    reader = RecordReader(mq)
    reader.assign({(topic, 1): 0})
    found = [incoming.record for incoming in reader.poll(0)]
    assert [(one.key, one.value, one.headers) for one in found] == [(r.key, r.value, r.headers) for r in records]
    assert [one.timestamp for one in found][:2] == [1_700_000_000_000, 1_600_000_000_000]
    assert reader.positions == {(topic, 1): 3}


def test_a_reader_whose_records_were_removed_goes_on_with_the_first_there_is(mq: Client, topic: str) -> None:
    publish(mq, topic, *(OutgoingRecord(b"%d" % n, partition=0) for n in range(5)))
    mq.act("delete-records", topic=topic, partition=0, before_offset=3)
    reader = RecordReader(mq)
    for begin in (0, 99):
        reader.assign({(topic, 0): begin})
        found = [one.record.offset for _ in range(2) for one in reader.poll(0)]
        assert found == [3, 4]


def test_a_position_is_found_in_each_partition(mq: Client, topic: str) -> None:
    publish(mq, topic, *(OutgoingRecord(b"x", partition=n % 2, timestamp_ms=1_000 * n) for n in range(1, 7)))
    assert resolve(mq, "@3000", [(topic, 0), (topic, 1)]) == {(topic, 0): 1, (topic, 1): 1}
    assert [tuple(bounds) for bounds in offsets_at(mq, topic, "-1").values()] == [(2, 0, 3, 3), (2, 0, 3, 3)]
    with pytest.raises(NotFound):
        offsets_at(mq, "not-there")


@pytest.mark.parametrize("wait", [True, False])
def test_after_a_refusal_it_is_known_how_many_are_safe(mq: Client, topic: str, wait: bool) -> None:
    placed: list[BatchLocation] = []
    publisher = RecordPublisher(mq, topic, wait=wait, on_placed=placed.append)
    sizes = [200_000] * 50 + [2_000_000] + [200_000] * 49
    with pytest.raises(TooLarge):
        publish_all(publisher, [OutgoingRecord(bytes(size), partition=0) for size in sizes])
    assert publisher.acknowledged == 50 == sum(one.count for one in placed)
    assert [one.base_offset for one in placed] == list(range(50))
    with pytest.raises(UnknownTopic, match="no partition 7"):
        publisher.publish(OutgoingRecord(b"", partition=7))


def test_a_topic_is_made_where_that_is_asked_for(mq: Client) -> None:
    name = unique("records")
    with pytest.raises(NotFound):
        RecordPublisher(mq, name)
    publisher = RecordPublisher(mq, name, create=True)
    publisher.publish(OutgoingRecord(b"x"))
    publisher.flush()
    assert publisher.acknowledged == 1


def test_what_is_asked_while_the_broker_is_away_fails_and_is_not_sent_later(tmp_path: Path) -> None:
    with Server(tmp_path) as server, waystation.connect(server.bootstrap) as mq:
        mq.create_topic("t", 1)
        publisher, reader = RecordPublisher(mq, "t"), RecordReader(mq)
        reader.assign({("t", 0): 0})
        publisher.publish(OutgoingRecord(b"safe"))
        publisher.flush()
        server.stop()
        wait_for(lambda: not mq._core.main.up, "the client has noticed")
        publisher.publish(OutgoingRecord(b"lost"))
        with pytest.raises(ConnectionLost):
            publisher.flush()
        with pytest.raises(ConnectionLost):
            list(reader.poll(0))
        server.start()
        wait_for(lambda: mq._core.main.up, "the client is connected again")
        assert [one.record.value for one in reader.poll(0)] == [b"safe"]
        assert publisher.acknowledged == 1


def read_until(reader: GroupReader, last: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []

    def look() -> bool:
        found.extend(one.record.value for one in reader.poll(100))
        return last in found

    wait_for(look, f"{last!r} is read")
    return found


@pytest.mark.parametrize(
    ("committed", "moved_to", "expected"),
    [
        (False, None, [b"2", b"3"]),  # nothing was committed yet
        (True, None, [b"2", b"3"]),
        (True, 0, [b"0", b"1", b"2", b"3"]),  # somebody moved the group back
        (True, 3, [b"3"]),  # another member was further
    ],
)
def test_a_member_that_lost_its_connection_goes_on_where_it_was_unless_the_group_is_elsewhere(
    server: Server, mq: Client, topic: str, committed: bool, moved_to: int | None, expected: list[bytes]
) -> None:
    group = unique("g")
    publish(mq, topic, OutgoingRecord(b"0", partition=0), OutgoingRecord(b"1", partition=0))
    with waystation.connect(server.bootstrap, name=group) as client:
        reader = GroupReader(client, group, [topic], "earliest")
        reader._commit_due += 1000
        read_until(reader, b"1")
        if committed:
            reader.commit()
        (connection,) = mq.view("connections", search=group)["connections"]
        mq.end_connection(connection["name"], "to see what becomes of its member")
        with pytest.raises(ConnectionLost):
            wait_for(lambda: list(reader.poll(100)), "it has noticed")
        wait_for(lambda: reader.connected, "there is another connection")
        if moved_to is not None:
            calls = Calls(mq)
            wait_for(lambda: not mq.view("group", group=group)["members"], "its member has left")
            calls.run(admin.commit_offsets(calls.core, group, [(topic, 0, moved_to)]))
        publish(mq, topic, OutgoingRecord(b"2", partition=0), OutgoingRecord(b"3", partition=0))
        reader.resume()
        assert read_until(reader, b"3") == expected
        reader.close()


def test_members_hand_partitions_over_and_every_record_is_read_once(server: Server, mq: Client) -> None:
    topic, group = unique("records"), unique("g")
    mq.create_topic(topic, 4)
    seen: list[bytes] = []
    stop = threading.Event()
    failed: list[BaseException] = []

    def member(enough: threading.Event) -> None:
        try:
            with waystation.connect(server.bootstrap) as client:
                reader = GroupReader(client, group, [topic], "earliest")
                while not enough.is_set():
                    seen.extend(one.record.value or b"" for one in reader.poll(50))
                reader.close()
        except BaseException as error:
            failed.append(error)
            raise

    passing = threading.Event()
    threads = [threading.Thread(target=member, args=(until,)) for until in (stop, passing, stop)]
    threads[0].start()
    for n in range(300):
        publish(mq, topic, OutgoingRecord(b"%d" % n, partition=n % 4))
        if n == 100:
            threads[1].start()
        if n == 200:
            passing.set()
            threads[2].start()
    wait_for(lambda: len(seen) >= 300 or bool(failed), "all of them are read")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(map(int, seen)) == list(range(300))
