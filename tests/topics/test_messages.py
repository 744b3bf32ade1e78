"""Messages published to topics by any protocol but Kafka's, and found there again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.broker.kit import NOW_MS, HandClock, broker_on, publish, read, run, send, snapshot, values
from waystation.broker.broker import Broker
from waystation.errors import (
    Invalid,
    InvalidTimestamp,
    NotAllowed,
    NotFound,
    OutOfOrderSequence,
    StorageFailed,
    TooLarge,
    WaystationError,
)
from waystation.log.batches import batch as batches
from waystation.log.batches.partitioning import murmur2, partition_of
from waystation.message import Delivered, Message
from waystation.topics import message_lookup
from waystation.topics.messages import MAX_HISTORY, STICKY_BYTES, Stamp, build_batches
from waystation.topics.partitions.partition import Receipt, log_of


def texts(messages: list[Delivered]) -> list[str]:
    return [one.message.payload.decode() for one in messages]


def test_a_batch_is_one_batch_on_the_disk_and_durable_with_its_receipt(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.messages.ensure("t")
            published = broker.messages.publish("t", [Message(b"m%d" % i) for i in range(1000)])
            assert published.places == [("t", 0, 0)]
            log = broker.topics.get("t").partition(0)
            assert [header.record_count for _, header in log.batches_from(0)] == [1000]
            await broker.durable(*published.receipts)
            assert log.durable_offset == 1000
            assert broker.messages.publish("t", [Message(b"next")]).places == [("t", 0, 1000)]
            assert broker.messages.publish("t", []).places == []
            killed = snapshot(tmp_path / "a", "killed")
        async with broker_on(killed) as broker:
            assert values(broker, "t") == [b"m%d" % i for i in range(1000)] + [b"next"]

    run(main())


def test_keys_go_where_the_java_client_puts_them(tmp_path: Path) -> None:
    """murmur2 of these keys is in the Java client's own tests."""
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 7)
            sent = [Message(b"%d" % i, key=b"key-%d" % (i % 50)) for i in range(200)]
            places = broker.messages.publish("t", sent).places
            assert {index for _, index, _ in places} == {partition_of(m.key or b"", 7) for m in sent}
            for index in range(7):
                there = [record.value for record in read(broker, "t", index)]
                assert there == [m.payload for m in sent if partition_of(m.key or b"", 7) == index]

    run(main())


def test_messages_without_a_key_stay_together_and_then_move_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 3)
            used = []
            for _ in range(12):
                [(_, index, _)] = broker.messages.publish(
                    "t", [Message(bytes(STICKY_BYTES // 4)) for _ in range(2)]
                ).places
                used.append(index)
            assert used[0::2] == used[1::2]  # two publishes fill a partition's share
            assert sorted(used) == [0] * 4 + [1] * 4 + [2] * 4
            assert broker.messages.publish("t", [Message(b"")], 2).places[0][1] == 2
            with pytest.raises(NotFound, match="no partition 3"):
                broker.messages.publish("t", [Message(b"")], 3)

    run(main())


def test_more_than_a_batch_may_hold_becomes_several_in_a_row(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"max.message.bytes": "10000"})
            published = broker.messages.publish("t", [Message(b"%04d" % i + bytes(900)) for i in range(100)])
            assert published.places == [("t", 0, 0)]
            assert [record.offset for record in read(broker, "t")] == list(range(100))
            log = broker.topics.get("t").partition(0)
            assert all(header.size <= 10_000 for _, header in log.batches_from(0))
            assert published.receipts == [Receipt(log, 100)]
            with pytest.raises(TooLarge, match=r"max\.message\.bytes"):
                broker.messages.publish("t", [Message(b"small"), Message(bytes(10_001))])
            assert log.end_offset == 100

    run(main())


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Message(b"", priority=256), Invalid),
        (Message(b"", ttl_ms=0), Invalid),
        (Message(b"", delay_ms=-1), Invalid),
        (Message(b"", headers={"a": object()}), Invalid),
        (Message(b"", timestamp_ms=-7), Invalid),
        (Message(b"", timestamp_ms=NOW_MS + 10_000_000), InvalidTimestamp),
        (Message(bytes(2_000_000)), TooLarge),
    ],
    ids=["priority", "ttl", "delay", "header", "time", "time ahead", "size"],
)
def test_one_message_that_cannot_be_taken_refuses_all_of_them(
    tmp_path: Path, bad: Message, error: type[WaystationError]
) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 4)
            good = [Message(b"", key=b"%d" % i) for i in range(50)]
            with pytest.raises(error):
                broker.messages.publish("t", [*good, bad])
            assert all(log_of(partition).end_offset == 0 for partition in broker.topics.get("t").partitions)

    run(main())


def test_a_compacted_topic_takes_messages_with_keys_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 4, {"cleanup.policy": "compact"})
            with pytest.raises(Invalid, match=r"^key: "):
                broker.messages.publish("t", [*(Message(b"", key=b"%d" % i) for i in range(20)), Message(b"")])
            assert sum(log_of(partition).end_offset for partition in broker.topics.get("t").partitions) == 0
            broker.messages.publish("t", [Message(b"", key=b"k", type="tombstone")])

    run(main())


def test_an_id_is_taken_once_within_the_window_wherever_it_lands(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 5, {"waystation.dedup.window.ms": "10000"})
            for _ in range(3):
                broker.messages.publish("t", [Message(bytes(STICKY_BYTES), id=f"m-{i}") for i in range(20)])
            assert sum(len(read(broker, "t", index)) for index in range(5)) == 20

    run(main())


def test_a_topic_that_is_not_there_is_made_or_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a", num_partitions="3") as broker:
            with pytest.raises(NotFound):
                broker.messages.publish("orders.eu", [Message(b"")])
            made = await asyncio.gather(*(broker.messages.ensure("orders.eu") for _ in range(5)))
            assert {len(topic.partitions) for topic in made} == {3}
            with pytest.raises(Invalid, match="cannot be a topic name"):
                await broker.messages.ensure("no/such")
            await broker.alter_settings({"auto.create.topics.enable": "false"})
            for ask in (broker.messages.ensure("orders.ex"), _later(broker, "orders.ex")):
                with pytest.raises(NotFound, match=r"^there is no topic 'orders.ex'$"):
                    await ask
            with pytest.raises(NotAllowed):
                broker.messages.publish("__consumer_offsets", [Message(b"")])

    run(main())


async def _later(broker: Broker, topic: str) -> None:
    broker.messages.publish(topic, [Message(b"")])


def test_a_delay_needs_somebody_who_keeps_the_message(tmp_path: Path) -> None:
    kept: list[tuple[str, list[bytes], int | None]] = []

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            log = broker.topics.get("t").partition(0)
            broker.messages.delay_to_topic = None
            late = [Message(b"a", delay_ms=5), Message(b"b"), Message(b"c", deliver_at_ms=NOW_MS + 9)]
            with pytest.raises(Invalid, match=r"^delay_ms: "):
                broker.messages.publish("t", late)

            def keep(topic: str, messages: Any, partition: int | None) -> Receipt:
                kept.append((topic, [message.payload for message in messages], partition))
                return Receipt(log, 0)

            broker.messages.delay_to_topic = keep
            published = broker.messages.publish("t", [*late, Message(b"d", deliver_at_ms=NOW_MS - 1)], 0)
            assert kept == [("t", [b"a", b"c"], 0)]
            assert values(broker, "t") == [b"b", b"d"]
            assert len(published.receipts) == 2
            with pytest.raises(Invalid, match=r"^delay_ms: -4"):
                broker.messages.publish("t", [Message(b"", delay_ms=-4)])

    run(main())


def test_a_producer_with_sequences_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"max.message.bytes": "300"})
            stamp = Stamp(900, 0, transactional=False)
            broker.messages.publish("t", [Message(bytes(100)) for _ in range(5)], stamp=stamp)
            broker.messages.publish("t", [Message(bytes(100))], stamp=stamp)
            log = broker.topics.get("t").partition(0)
            assert [header.base_sequence for _, header in log.batches_from(0)] == [0, 2, 4, 5]
            stamp.sequences["t", 0] = 9
            with pytest.raises(OutOfOrderSequence):
                broker.messages.publish("t", [Message(b"")], stamp=stamp)

    run(main())


def test_what_the_disk_refuses_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            log = log_of(broker.topics.get("t").partition(0))
            log.failure = StorageFailed("for a moment")
            with pytest.raises(StorageFailed):
                broker.messages.publish("t", [Message(b"")])
            log.failure = None

    run(main())


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_is_the_last_messages_in_the_order_of_their_times(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 3)
            assert broker.messages.history("t", 5) == []
            for i in range(30):
                clock.ms += 1
                broker.messages.publish("t", [Message(b"%d" % i)], i % 3)
            assert texts(broker.messages.history("t", 7)) == [str(i) for i in range(23, 30)]
            assert texts(broker.messages.history("t", 100)) == [str(i) for i in range(30)]
            assert broker.messages.history("t", 0) == []
            for count in (-1, MAX_HISTORY + 1):
                with pytest.raises(Invalid, match=r"^history: "):
                    broker.messages.history("t", count)
            with pytest.raises(NotFound):
                broker.messages.history("u", 1)

    run(main())


def test_history_looks_past_gaps_markers_and_aborted_transactions(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            broker.messages.publish("t", [Message(b"first"), Message(b"second")])
            for i in range(20):
                tx = await broker.transacting.begin("tx")
                await tx.publish("t", [Message(b"aborted-%d" % i) for _ in range(10)])
                await tx.end(commit=False)
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"committed")])
            await tx.end(commit=True)
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"open")])
            broker.messages.publish("t", [Message(b"behind the open one")])
            assert texts(broker.messages.history("t", 3)) == ["first", "second", "committed"]
            await tx.end(commit=True)
            assert texts(broker.messages.history("t", 2)) == ["open", "behind the open one"]

    run(main())


def test_records_that_do_not_parse_are_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("t", 1, {"waystation.validate.records": "crc"})
            send(broker, "t", b"a")
            header = batches.Header(0, 0, 0, 2, 0, 4, 0, NOW_MS, NOW_MS, -1, -1, -1, 1)
            publish(broker, "t", batches.assemble(header, b"not zstd"))
            send(broker, "t", b"b", codec=4)
            assert texts(broker.messages.history("t", 10)) == ["a", "b"]

    run(main())


# -- finding -----------------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            await broker.topics.create("a-b", 2)
            broker.messages.publish("a-b", [Message(b"0"), Message(b"1"), Message(b"2")], 1)
            found = await broker.messages.find("a-b-1@1")
            assert found is not None
            assert (found.place, found.delivered.message.payload, found.delivered.offset) == ("topic:a-b", b"1", 1)
            assert await broker.messages.find("a-b-1@2", "a-b") is not None
            for missing in ("a-b-1@3", "a-b-0@0", "a-b-2@0", "b-1@1", "a-b-1", "@", "__consumer_offsets-0@0"):
                assert await broker.messages.find(missing) is None
            await broker.topics.get("a-b").partition(1).delete_records(2)
            assert await broker.messages.find("a-b-1@1") is None
            assert await broker.messages.find("a-b-1@2") is not None

    run(main())


def test_a_message_is_found_by_its_id_in_a_topic(tmp_path: Path) -> None:
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "a", clock) as broker:
            await broker.topics.create("t", 3, {"compression.type": "producer"})
            await broker.topics.create("z", 1, {"compression.type": "zstd"})
            for i in range(3000):
                clock.ms += 1
                broker.messages.publish("t", [Message(bytes(1000), id=f"m-{i}", key=b"%d" % i)])
            broker.messages.publish("z", [Message(b"one", id="m-7"), Message(b"m-8"), Message(b"two", id="m-7")])
            found = await broker.messages.find("m-17", "t")
            assert found is not None
            assert found.delivered.message.key == b"17"
            newest = await broker.messages.find("m-7", "z")
            assert newest is not None
            assert newest.delivered.message.payload == b"two"
            assert await broker.messages.find("m-8", "z") is None  # it is in a payload, not an id
            anywhere = await broker.messages.find("m-17")
            assert anywhere is not None
            assert anywhere.place == "topic:t"
            assert await broker.messages.find("m-8") is not None
            assert await broker.messages.find("m-3000") is None
            with pytest.raises(NotFound):
                await broker.messages.find("m-17", "u")

    run(main())


def test_a_search_by_id_that_ended_early_says_how_much_it_has_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_lookup, "FIND_BYTES", 1_000_000)
    monkeypatch.setattr(message_lookup, "ANYWHERE_BYTES", 1_500_000)

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            for topic in ("large", "small"):
                await broker.topics.create(topic, 1)
            broker.messages.publish("small", [Message(b"x", id="in-small")])
            for i in range(50):
                broker.messages.publish("large", [Message(bytes(100_000), id=f"m-{i}")])
            for where in ("large", None):
                assert await broker.messages.find("m-49", where) is not None
                with pytest.raises(NotFound, match=r"newest [12] MiB of .*; [45] MiB .* not searched: search"):
                    await broker.messages.find("m-0", where)
            assert await broker.messages.find("in-small") is not None
            assert await broker.messages.find("m-0", "small") is None

    run(main())


def test_the_loop_goes_on_while_a_message_is_looked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a", waystation_flush="os") as broker:
            await broker.topics.create("t", 1)
            for _ in range(20):
                broker.messages.publish("t", [Message(bytes(100_000)) for _ in range(10)])
            turns = 0
            search = asyncio.ensure_future(broker.messages.find("nowhere", "t"))
            while not search.done():
                turns += 1
                await asyncio.sleep(0)
            assert await search is None
            assert turns > 10

    run(main())


def test_building_batches_of_nothing_gives_nothing() -> None:
    assert build_batches([], NOW_MS, 1000) == []
