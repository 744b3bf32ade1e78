"""The transaction APIs of the Kafka protocol, asked through bytes in every version that is advertised."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.protocols.kafka.admin_kit import LISTENER, Desk, versions
from waystation.errors import NotLeader, StorageFailed, WaystationError
from waystation.groups.machines.calls import FetchedOffset
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.batches import batch as batches
from waystation.log.log import Log
from waystation.protocols.kafka.coordinators import transactions
from waystation.protocols.kafka.records import produce
from waystation.protocols.kafka.requests.codec import decode_request, encode_response
from waystation.protocols.kafka.requests.registry import Call
from waystation.topics.partitions.partition import log_of
from waystation.transactions.errors import ConcurrentTransactions, CoordinatorAway
from waystation.transactions.machine import Producer

MINUTE = timedelta(minutes=1)
INIT = versions("init_producer_id")
ADD = versions("add_partitions_to_txn")
OFFSETS = versions("add_offsets_to_txn")
COMMIT_OFFSETS = versions("txn_offset_commit")
END = versions("end_txn")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, {})
    made.create("a", partitions=2)
    yield made
    made.close()


def start(desk: Desk, name: str | None = "shop", version: int = 4, **more: Any) -> Producer:
    answer = desk.ask("init_producer_id", version, transactional_id=name, transaction_timeout=MINUTE, **more)
    assert answer.error_code is ErrorCode.none
    return Producer(answer.producer_id, answer.producer_epoch)


def add(desk: Desk, producer: Producer, partitions: dict[str, list[int]], version: int = 3, **more: Any) -> Any:
    """Error codes by (topic, partition)."""
    topics = [{"name": topic, "partitions": indexes} for topic, indexes in partitions.items()]
    one = {
        "transactional_id": "shop",
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "topics": topics,
        **more,
    }
    old = {f"v3_and_below_{key}": value for key, value in one.items()}
    answer = desk.ask("add_partitions_to_txn", version, transactions=[one], **old)
    if version >= 4:
        assert [result.transactional_id for result in answer.results_by_transaction] == ["shop"]
        results = answer.results_by_transaction[0].topic_results
    else:
        results = answer.results_by_topic_v3_and_below
    return {
        (topic.name, result.partition_index): result.partition_error_code
        for topic in results
        for result in topic.results_by_partition
    }


def end(desk: Desk, producer: Producer, commit: bool, version: int = 3) -> Any:
    return desk.ask(
        "end_txn",
        version,
        transactional_id="shop",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


@pytest.mark.parametrize("version", END)
def test_a_leader_that_changes_while_a_transaction_ends_is_nothing_that_a_client_gives_up_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})

    async def spread(*_: object) -> bool:
        raise NotLeader("a-0 has no leader now")

    monkeypatch.setattr(desk.broker.markers, "spread", spread)
    assert end(desk, producer, True, version).error_code is ErrorCode.coordinator_not_available
    monkeypatch.undo()
    assert end(desk, producer, True, version).error_code in (ErrorCode.none, ErrorCode.concurrent_transactions)


def stored_log(desk: Desk, topic: str, partition: int) -> Log:
    return log_of(desk.broker.topics.get(topic).partition(partition))


def write(desk: Desk, producer: Producer, topic: str = "a", partition: int = 0, sequence: int = 0) -> None:
    data = batches.build(
        [(b"k", b"v", ())],
        desk.broker.world.clock.now_ms(),
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=batches.TRANSACTIONAL,
    )

    async def append() -> None:
        assert desk.broker.transactions.check_produce("shop", *producer, topic, partition)
        desk.broker.topics.get(topic).partition(partition).append(data, batches.read_header(data))

    desk.run(append())


@pytest.mark.parametrize("version", INIT)
def test_a_producer_gets_an_id_in_every_version(desk: Desk, version: int) -> None:
    loose = [start(desk, None, version) for _ in range(3)]
    assert len({producer.producer_id for producer in loose}) == 3
    first = start(desk, "shop", version)
    assert start(desk, "shop", version) == Producer(first.producer_id, first.epoch + 1)


@pytest.mark.parametrize("version", INIT)
def test_what_init_producer_id_refuses(desk: Desk, version: int) -> None:
    def code(name: str | None = "shop", timeout: timedelta = MINUTE, **more: Any) -> ErrorCode:
        answer = desk.ask("init_producer_id", version, transactional_id=name, transaction_timeout=timeout, **more)
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        assert isinstance(answer.error_code, ErrorCode)
        return answer.error_code

    assert code(timeout=timedelta(days=1)) is ErrorCode.invalid_transaction_timeout
    assert code(name="") is ErrorCode.invalid_request
    stale = start(desk, "shop", version)
    start(desk, "shop", version)
    if version >= 3:
        fenced = ErrorCode.producer_fenced if version >= 4 else ErrorCode.invalid_producer_epoch
        assert code(producer_id=stale.producer_id, producer_epoch=stale.epoch) is fenced
        assert code(producer_id=stale.producer_id, producer_epoch=-1) is ErrorCode.invalid_request
    if version >= 6:
        assert code(enable2_pc=True) is ErrorCode.transactional_id_authorization_failed
        assert code(keep_prepared_txn=True) is ErrorCode.unsupported_version


@pytest.mark.parametrize("version", ADD)
def test_partitions_join_in_every_version(desk: Desk, version: int) -> None:
    producer = start(desk)
    none = ErrorCode.none
    assert add(desk, producer, {"a": [0, 1]}, version) == {("a", 0): none, ("a", 1): none}
    write(desk, producer)
    unknown, skipped = ErrorCode.unknown_topic_or_partition, ErrorCode.operation_not_attempted
    assert add(desk, producer, {"a": [0, 2], "b": [0]}, version) == {
        ("a", 0): skipped,
        ("a", 2): unknown,
        ("b", 0): unknown,
    }
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    start(desk)
    assert add(desk, producer, {"a": [0]}, version) == {("a", 0): fenced}
    stranger = Producer(10**12, 0)
    assert add(desk, stranger, {"a": [0]}, version) == {("a", 0): ErrorCode.invalid_producer_id_mapping}


@pytest.mark.parametrize("version", [4, 5])
def test_membership_can_be_verified_without_joining(desk: Desk, version: int) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})
    absent = ErrorCode.transaction_abortable if version >= 5 else ErrorCode.invalid_txn_state
    found = add(desk, producer, {"a": [0, 1]}, version, verify_only=True)
    assert found == {("a", 0): ErrorCode.none, ("a", 1): absent}
    assert add(desk, producer, {"a": [1]}, version, verify_only=True) == {("a", 1): absent}, "it did not join"


@pytest.mark.parametrize("version", END)
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_in_every_version(desk: Desk, version: int, commit: bool) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0, 1]})
    write(desk, producer)
    log = stored_log(desk, "a", 0)
    assert log.stable_offset == 0
    answer = end(desk, producer, commit, version)
    assert answer.error_code is ErrorCode.none
    assert log.stable_offset == log.end_offset == 2
    if version >= 5:
        assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, producer.epoch + 1)
    again = end(desk, producer, commit, version)
    assert again.error_code is ErrorCode.none, "repeated"
    other = end(desk, producer, not commit, version)
    abortable = version >= 5 and not commit
    assert other.error_code is (ErrorCode.transaction_abortable if abortable else ErrorCode.invalid_txn_state)


@pytest.mark.parametrize("version", END)
def test_a_fenced_producer_ends_nothing(desk: Desk, version: int) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})
    start(desk)
    fenced = ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch
    assert end(desk, producer, True, version).error_code is fenced


@pytest.mark.parametrize("version", END)
def test_a_disk_that_refuses_asks_the_client_to_come_back(
    desk: Desk, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})

    def refuse(*_: object) -> None:
        raise StorageFailed("no space left")

    monkeypatch.setattr(desk.broker.topics.get("__transaction_state").partition(0), "append", refuse)
    assert end(desk, producer, True, version).error_code is ErrorCode.coordinator_not_available


def commit_offsets(desk: Desk, producer: Producer, version: int, topic: str = "a") -> list[ErrorCode]:
    answer = desk.ask(
        "txn_offset_commit",
        version,
        transactional_id="shop",
        group_id="readers",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=-1,
        topics=[{"name": topic, "partitions": [{"partition_index": 1, "committed_offset": 7}]}],
    )
    assert [topic.name for topic in answer.topics] == [topic]
    return [partition.error_code for partition in answer.topics[0].partitions]


def committed(desk: Desk) -> list[FetchedOffset]:
    return desk.broker.groups.fetch_offsets("readers")


@pytest.mark.parametrize("version", COMMIT_OFFSETS)
@pytest.mark.parametrize("add_version", OFFSETS)
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_end_with_their_transaction(desk: Desk, version: int, add_version: int, commit: bool) -> None:
    producer = start(desk)
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    if version < 5:
        refused = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
        assert commit_offsets(desk, producer, version) == [refused]
        joined = desk.ask("add_offsets_to_txn", add_version, transactional_id="shop", group_id="readers", **ids)
        assert joined.error_code is ErrorCode.none
    assert commit_offsets(desk, producer, version) == [ErrorCode.none]
    assert commit_offsets(desk, producer, version, "nowhere") == [ErrorCode.unknown_topic_or_partition]
    assert not any(found.offset == 7 for found in committed(desk))
    assert end(desk, producer, commit, 5 if version >= 5 else 3).error_code is ErrorCode.none
    assert [found.offset for found in committed(desk) if found.offset >= 0] == ([7] if commit else [])


@pytest.mark.parametrize("version", OFFSETS)
def test_a_fenced_producer_commits_no_offsets(desk: Desk, version: int) -> None:
    producer = start(desk)
    start(desk)
    ids = {"producer_id": producer.producer_id, "producer_epoch": producer.epoch}
    joined = desk.ask("add_offsets_to_txn", version, transactional_id="shop", group_id="readers", **ids)
    assert joined.error_code is (ErrorCode.producer_fenced if version >= 2 else ErrorCode.invalid_producer_epoch)
    assert commit_offsets(desk, producer, 5) == [ErrorCode.invalid_producer_epoch]


def test_transactions_are_described(desk: Desk) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0, 1]})
    answer = desk.ask("describe_transactions", 0, transactional_ids=["shop", "nobody", ""])
    shop, nobody, empty = answer.transaction_states
    assert (shop.error_code, shop.transaction_state, shop.producer_id) == (
        ErrorCode.none,
        "Ongoing",
        producer.producer_id,
    )
    assert [(topic.topic, topic.partitions) for topic in shop.topics] == [("a", (0, 1))]
    assert shop.transaction_timeout == MINUTE
    assert shop.transaction_start_time.timestamp() > 0
    assert nobody.error_code is ErrorCode.transactional_id_not_found
    assert empty.error_code is ErrorCode.invalid_request


def test_an_id_without_a_transaction_has_no_start_time(desk: Desk) -> None:
    """Kafka writes -1 for it, which kio's reader will not take: hence by hand."""
    start(desk)
    request = decode_request("describe_transactions", 0, b"\x02\x05shop\x00")
    call = Call("describe_transactions", 0, request, desk.broker, desk.access, None, "", LISTENER)
    answer = encode_response("describe_transactions", 0, transactions.describe_transactions(call))
    assert b"\x06Empty" + struct.pack(">iq", 60_000, -1) in answer


@pytest.mark.parametrize("version", versions("list_transactions"))
def test_transactions_are_listed(desk: Desk, version: int) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})
    start(desk, "other")

    def names(**filters: Any) -> list[str]:
        answer = desk.ask("list_transactions", version, **filters)
        assert answer.error_code is ErrorCode.none
        return sorted(state.transactional_id for state in answer.transaction_states)

    assert names() == ["other", "shop"]
    assert names(state_filters=["Ongoing"]) == ["shop"]
    assert names(producer_id_filters=[producer.producer_id]) == ["shop"]
    answer = desk.ask("list_transactions", version, state_filters=["Sideways"])
    assert answer.unknown_state_filters == ("Sideways",)
    if version >= 1:
        assert names(duration_filter=3_600_000) == []
    if version >= 2:
        assert names(transactional_id_pattern="o.*r") == ["other"]
        broken = desk.ask("list_transactions", version, transactional_id_pattern="((")
        assert broken.error_code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("version", versions("write_txn_markers"))
def test_an_operator_finds_and_ends_a_hanging_transaction(desk: Desk, version: int) -> None:
    producer = start(desk)
    add(desk, producer, {"a": [0]})
    write(desk, producer)
    topics = [{"name": "a", "partition_indexes": [0, 9]}]
    answer = desk.ask("describe_producers", 0, topics=topics)
    found, missing = answer.topics[0].partitions
    (active,) = found.active_producers
    assert (active.producer_id, active.current_txn_start_offset) == (producer.producer_id, 0)
    assert missing.error_code is ErrorCode.unknown_topic_or_partition

    marker = {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": topics,
    }
    answer = desk.ask("write_txn_markers", version, markers=[marker])
    codes = [partition.error_code for partition in answer.markers[0].topics[0].partitions]
    assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    log = stored_log(desk, "a", 0)
    assert log.stable_offset == log.end_offset == log.durable_offset == 2
    answer = desk.ask("describe_producers", 0, topics=topics)
    assert answer.topics[0].partitions[0].active_producers[0].current_txn_start_offset == -1


@pytest.mark.parametrize(
    "error", [CoordinatorAway("it dies"), NotCoordinator("moved"), ConcurrentTransactions("reads")]
)
def test_a_producer_sends_again_what_its_coordinator_cannot_say_now(desk: Desk, error: WaystationError) -> None:
    """Whatever the coordinator has to do first: only this code has all producers repeat the batch."""
    assert produce._code(desk.access, error) is ErrorCode.not_enough_replicas
