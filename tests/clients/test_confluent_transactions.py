"""Transactions with confluent-kafka: all or nothing, exactly once, and a zombie cannot write."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as TP
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

COMMITTED = {"isolation.level": "read_committed"}
UNCOMMITTED = {"isolation.level": "read_uncommitted"}


def transactional(bootstrap: str, name: str | None = None, config: kit.Config | None = None) -> Producer:
    """A transactional producer that is ready to begin."""
    base = {"transactional.id": name or unique("tx"), "transaction.timeout.ms": 20_000, "message.timeout.ms": 20_000}
    client = kit.producer(bootstrap, {**base, **(config or {})})
    client.init_transactions(DEADLINE_S)
    return client


def write(client: Producer, topic: str, values: Iterable[bytes], partition: int = 0) -> None:
    """Produce inside the running transaction and see it stored."""
    reports = kit.Deliveries()
    for value in values:
        kit.send(client, topic, value, partition=partition, on_delivery=reports)
    kit.flush(client)
    assert not reports.bad


def test_committed_transaction_appears_whole_in_every_partition(bootstrap: str, new_topic: NewTopicCall) -> None:
    one, two = new_topic(), new_topic(partitions=2)
    client = transactional(bootstrap)
    client.begin_transaction()
    write(client, one, kit.numbered(10))
    write(client, two, kit.numbered(5), partition=0)
    write(client, two, kit.numbered(7), partition=1)
    client.commit_transaction(DEADLINE_S)
    assert len(kit.read_all(bootstrap, one, COMMITTED)) == 10
    assert len(kit.read_all(bootstrap, two, COMMITTED)) == 12


def test_open_transaction_is_invisible_to_read_committed_and_blocks_what_follows(
    bootstrap: str, new_topic: NewTopicCall
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, [b"before"])
    client = transactional(bootstrap)
    client.begin_transaction()
    write(client, topic, [b"inside"])
    kit.produce(bootstrap, topic, [b"after"])
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"before"]
    assert kit.values(kit.read_all(bootstrap, topic, UNCOMMITTED)) == [b"before", b"inside", b"after"]
    client.commit_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"before", b"inside", b"after"]


def test_aborted_data_is_invisible_to_read_committed(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    client = transactional(bootstrap)
    expected = []
    for n in range(20):
        client.begin_transaction()
        write(client, topic, [b"%02d-%d" % (n, part) for part in range(3)])
        if n % 3 == 0:
            client.abort_transaction(DEADLINE_S)
        else:
            client.commit_transaction(DEADLINE_S)
            expected += [b"%02d-%d" % (n, part) for part in range(3)]
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == expected
    assert len(kit.read_all(bootstrap, topic, UNCOMMITTED)) == 60


def test_interleaved_transactions_are_told_apart(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kept, dropped = transactional(bootstrap), transactional(bootstrap)
    kept.begin_transaction()
    dropped.begin_transaction()
    for n in range(5):
        write(kept, topic, [b"kept-%d" % n])
        write(dropped, topic, [b"dropped-%d" % n])
    dropped.abort_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == []
    kept.commit_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"kept-%d" % n for n in range(5)]


def test_waiting_reader_gets_the_messages_when_the_transaction_commits(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    reader = kit.consumer(bootstrap, None, {**COMMITTED, "fetch.wait.max.ms": 20_000})
    reader.assign([TP(topic, 0, 0)])
    client = transactional(bootstrap)
    client.begin_transaction()
    write(client, topic, [b"patience"])
    assert reader.poll(0.5) is None
    client.commit_transaction(DEADLINE_S)
    assert kit.values(kit.take(reader, 1, within_s=15)) == [b"patience"]
    reader.close()


def test_second_producer_with_the_same_id_fences_the_first(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, name = new_topic(), unique("tx")
    zombie = transactional(bootstrap, name)
    zombie.begin_transaction()
    write(zombie, topic, [b"left behind"])
    heir = transactional(bootstrap, name)
    heir.begin_transaction()
    write(heir, topic, [b"by the heir"])
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(DEADLINE_S)
    assert kit.code_of(refused.value) in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    heir.commit_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"by the heir"]


def test_zombie_cannot_write_after_it_was_fenced(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, name = new_topic(), unique("tx")
    zombie = transactional(bootstrap, name)
    zombie.begin_transaction()
    write(zombie, topic, [b"left behind"])
    heir = transactional(bootstrap, name)
    zombie.produce(topic, b"too late", partition=0)
    with pytest.raises(KafkaException) as refused:
        kit.flush(zombie)  # the client raises a fatal error instead of calling a delivery callback
    assert kit.code_of(refused.value) == KafkaError._FENCED
    heir.begin_transaction()
    write(heir, topic, [b"heir"])
    heir.commit_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"heir"]
    assert kit.values(kit.read_all(bootstrap, topic, UNCOMMITTED)) == [b"left behind", b"heir"]


def test_transaction_that_is_never_ended_is_aborted_by_its_timeout(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    config = {"transaction.timeout.ms": 1500, "message.timeout.ms": 1400}
    forgotten = transactional(bootstrap, None, config)
    forgotten.begin_transaction()
    write(forgotten, topic, [b"forgotten"])
    kit.produce(bootstrap, topic, [b"behind it"])
    wait_for(
        lambda: kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"behind it"],
        "the forgotten transaction no longer holds up readers",
        every_s=0.3,
    )
    with pytest.raises(KafkaException):
        forgotten.commit_transaction(DEADLINE_S)


def test_offsets_of_an_aborted_transaction_do_not_move_the_group(
    bootstrap: str, new_topic: NewTopicCall, admin: AdminClient, group: str
) -> None:
    source, sink = new_topic(), new_topic()
    kit.produce(bootstrap, source, kit.numbered(10))
    reader = kit.consumer(bootstrap, group)
    reader.subscribe([source])
    kit.take(reader, 10)
    client = transactional(bootstrap)
    for offset, finish in ((5, "commit"), (10, "abort")):
        client.begin_transaction()
        write(client, sink, [b"up to %d" % offset])
        client.send_offsets_to_transaction([TP(source, 0, offset)], reader.consumer_group_metadata(), DEADLINE_S)
        (client.commit_transaction if finish == "commit" else client.abort_transaction)(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, sink, COMMITTED)) == [b"up to 5"]
    asked = ConsumerGroupTopicPartitions(group, [TP(source, 0)])
    held = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(DEADLINE_S)
    assert held.topic_partitions[0].offset == 5
    assert reader.committed([TP(source, 0)], timeout=DEADLINE_S)[0].offset == 5
    reader.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_transform_produce_is_exactly_once_through_aborts_and_a_crash(
    bootstrap: str, new_topic: NewTopicCall, group: str, protocol: str
) -> None:
    """Every input gives exactly one output, although transactions abort and a worker vanishes in the middle of one."""
    source, sink = new_topic(partitions=2), new_topic(partitions=2)
    for partition in (0, 1):
        kit.produce(bootstrap, source, [b"%d-%04d" % (partition, n) for n in range(150)], partition=partition)
    worker = Worker(bootstrap, group, source, sink, protocol, name=unique("tx"))
    for turn in range(4):
        worker.turn(abort=turn % 2 == 1)
    worker.vanish()  # offsets and output of an open transaction are left behind; its heir fences it
    worker = worker.heir()
    done: set[bytes] = set()
    turn = 0
    while len(done) < 300:
        turn += 1
        assert turn < 200, f"only {len(done)} of 300 came out"
        worker.turn(abort=turn % 4 == 0)
        done = (
            {value or b"" for value in kit.values(kit.read_all(bootstrap, sink, COMMITTED))} if turn % 4 == 1 else done
        )
    worker.close()
    out = kit.read_all(bootstrap, sink, COMMITTED)
    assert len(out) == 300, "something came out twice"
    for partition in (0, 1):
        mine = [message.value() for message in out if message.partition() == partition]
        assert mine == [b"%d-%04d!" % (partition, n) for n in range(150)]


class Worker:
    """Reads, adds an exclamation mark, writes: offsets and output in one transaction."""

    def __init__(self, bootstrap: str, group: str, source: str, sink: str, protocol: str, *, name: str) -> None:
        self._order = (bootstrap, group, source, sink, protocol)
        self._name = name
        self._sink = sink
        timing = {} if protocol == "consumer" else {"session.timeout.ms": kit.SESSION_MS}
        self._reader: Consumer = kit.consumer(bootstrap, group, {**COMMITTED, "group.protocol": protocol, **timing})
        self._reader.subscribe([source])
        self._writer = transactional(bootstrap, name)

    def turn(self, *, abort: bool = False) -> None:
        """One transaction over up to 40 messages, committed or aborted (and then read again)."""
        batch = [message for message in self._reader.consume(40, 0.3) if message.error() is None]
        if not batch:
            return
        self._transform(batch)
        if not abort:
            self._writer.commit_transaction(DEADLINE_S)
            return
        self._writer.abort_transaction(DEADLINE_S)
        first: dict[int, int] = {}
        for message in batch:
            first.setdefault(message.partition() or 0, message.offset() or 0)
        for partition, offset in first.items():
            self._reader.seek(TP(str(batch[0].topic()), partition, offset))

    def vanish(self) -> None:
        """Do the work of a transaction, but never end it. Only the reader says goodbye (to save session time)."""
        batch = kit.take(self._reader, 10)
        self._transform(batch)
        self._reader.close()

    def heir(self) -> Worker:
        """The next worker under the same transactional id."""
        return Worker(*self._order, name=self._name)

    def close(self) -> None:
        self._reader.close()

    def _transform(self, batch: list[Message]) -> None:
        self._writer.begin_transaction()
        ends: dict[int, int] = {}
        for message in batch:
            partition = message.partition() or 0
            self._writer.produce(self._sink, (message.value() or b"") + b"!", partition=partition)
            ends[partition] = (message.offset() or 0) + 1
        kit.flush(self._writer)
        offsets = [TP(str(batch[0].topic()), partition, end) for partition, end in ends.items()]
        self._writer.send_offsets_to_transaction(offsets, self._reader.consumer_group_metadata(), DEADLINE_S)


def test_empty_transactions_and_many_in_a_row_work(bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    client = transactional(bootstrap)
    for n in range(30):
        client.begin_transaction()
        if n % 2:
            client.produce(topic, b"%d" % n)
        client.commit_transaction(DEADLINE_S)
    assert kit.values(kit.read_all(bootstrap, topic, COMMITTED)) == [b"%d" % n for n in range(1, 30, 2)]


def test_timeout_longer_than_the_broker_allows_is_refused(bootstrap: str) -> None:
    with pytest.raises(KafkaException) as refused:
        transactional(bootstrap, None, {"transaction.timeout.ms": 2_000_000_000, "message.timeout.ms": 1000})
    assert kit.code_of(refused.value) == KafkaError.INVALID_TRANSACTION_TIMEOUT
