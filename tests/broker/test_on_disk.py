"""`docs/reference/on-disk.md` is enough for a stranger: a reader made from it sees what a consumer sees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.broker import stranger
from tests.broker.kit import NOW_MS, HandClock, broker_on, publish, run, send, snapshot
from tests.support.server import ROOT
from waystation.broker.broker import Broker
from waystation.log.batches import batch as batches
from waystation.topics.partitions.partition import log_of

PAGE = ROOT / "docs" / "reference" / "on-disk.md"
TRANSACTIONAL = {"producer_epoch": 0, "attributes": 0x10}


def end(broker: Broker, topic: str, producer_id: int, *, commit: bool) -> None:
    marker = batches.build_marker(producer_id, 0, commit, 0, broker.world.clock.now_ms())
    broker.topics.get(topic).partition(0).append(marker, batches.read_header(marker))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with all that can be in it: codecs, transactions, gaps, a moved start, several segments, a delay."""
    clock = HandClock()

    async def main() -> None:
        async with broker_on(tmp_path / "data", clock) as broker:
            await broker.topics.create("stream", 2, {"segment.bytes": "2048", "index.interval.bytes": "300"})
            await broker.topics.create("keyed", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"})
            await broker.topics.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
            for i in range(60):
                clock.ms = NOW_MS + i
                send(broker, "stream", b"%d" % i * 20, None, key=b"k", codec=i % 5, headers=(("h", b"x"), ("n", None)))
                send(broker, "keyed", None if i % 7 == 3 else b"%d" % i * 20, key=b"k%d" % (i % 5), codec=i % 5)
                send(broker, "stamped", b"v", at=5)
            for number, commit in enumerate((True, False, True)):
                transaction = batches.build(
                    [(b"t", b"txn %d" % number, ())], NOW_MS, producer_id=number, base_sequence=0, **TRANSACTIONAL
                )
                publish(broker, "stream", transaction)
                end(broker, "stream", number, commit=commit)
            publish(
                broker,
                "stream",
                batches.build([(b"t", b"never ended", ())], NOW_MS, producer_id=9, base_sequence=0, **TRANSACTIONAL),
            )
            await broker.topics.get("stream").partition(0).delete_records(31)
            await broker.commit.join()
            await broker.housekeeping.checkpoint()
            await broker.housekeeping.compact()
            await broker.commit.join()
            snapshot(tmp_path / "data", "killed")

    run(main())
    return tmp_path / "data"


def seen_by_us(folder: Path) -> dict[str, list[stranger.Seen]]:
    async def main() -> dict[str, list[stranger.Seen]]:
        async with broker_on(folder) as broker:
            found = {}
            for topic in broker.topics:
                for partition in topic.partitions:
                    log = log_of(partition)
                    aborting = [
                        (e.producer_id, e.first_offset, e.last_offset) for e in log.aborted.overlapping(0, 2**62)
                    ]
                    found[f"{topic.name}/{partition.index}"] = [
                        stranger.Seen(*record)
                        for data, header in log.batches_from(log.start_offset)
                        if not header.control
                        and header.base_offset < log.stable_offset
                        and not any(
                            header.transactional and p == header.producer_id and a <= header.base_offset <= z
                            for p, a, z in aborting
                        )
                        for record in batches.records_of(data, header)
                        if record.offset >= log.start_offset
                    ]
            return found

    return run(main())


@pytest.mark.parametrize("how", ["data", "killed"])
def test_a_reader_made_from_the_page_sees_what_a_consumer_sees(data: Path, how: str) -> None:
    folder = data.with_name(how)
    theirs = {
        f"{name}/{i}": stranger.committed(path / str(i))
        for name, (path, count) in stranger.topics(folder).items()
        for i in range(count)
    }
    assert len(theirs["stream/0"]) > 80
    assert theirs == seen_by_us(folder)


def partitions(data: Path) -> list[Path]:
    return [path / str(i) for path, count in stranger.topics(data).values() for i in range(count)]


def test_indexes_say_what_the_page_says(data: Path) -> None:
    found = 0
    for partition in partitions(data):
        for path in sorted(partition.glob("*.log")):
            base = int(path.stem)
            inside = list(stranger.batches(path))
            if not inside:
                continue
            starts = {(batch.base - base, batch.position) for batch in inside}
            for entry in stranger.index(path.with_suffix(".index")):
                assert entry in starts
                found += 1
            seen = [r for batch in inside if not batch.attributes & 0x20 for r in stranger.records(batch)]
            times = stranger.time_index(path.with_suffix(".timeindex"))
            for timestamp, offset in times:
                assert all(record.timestamp <= timestamp for record in seen if record.offset <= base + offset)
            assert base + times[-1][1] >= inside[-1].last
    assert found > 10


def test_aborted_transactions_snapshots_epochs_and_points_say_what_the_page_says(data: Path) -> None:
    stream = stranger.topics(data)["stream"][0] / "0"
    triples = [triple for path in stream.glob("*.txnindex") for triple in stranger.aborted(path)]
    assert [producer for producer, _, _ in triples] == [1]
    newest = max(stream.glob("*.snapshot"))
    taken = stranger.snapshot(newest)
    assert taken["offset"] == int(newest.stem)
    producers = {row[0]: row for row in taken["producers"]}  # type: ignore[attr-defined]
    assert set(producers) == {0, 1, 2, 9}
    assert producers[9][3] is not None  # its transaction is open
    assert producers[0][3] is None
    assert stranger.epochs(stream)[0][0] == 0
    for folder, clean in ((data, True), (data.with_name("killed"), False)):
        noted = stranger.points(folder)
        assert noted["clean"] is clean
        for name, (path, count) in stranger.topics(folder).items():
            row = path.name.rpartition(".")[2]
            mine = {k: v for k, v in noted["points"].items() if k.startswith(row)}  # type: ignore[attr-defined]
            assert len(mine) == count, name
            if clean:
                for key, (_, segment, position) in mine.items():
                    size = (path / key.rpartition("/")[2] / f"{segment:020d}.log").stat().st_size
                    assert size == position


def test_every_kind_of_file_is_on_the_page(data: Path) -> None:
    text = PAGE.read_text()
    for folder in (data, data.with_name("killed")):
        for path in folder.rglob("*"):
            if path.is_file():
                kind = path.suffix if re.fullmatch(r"\d{20}", path.stem) else path.name
                assert kind in text, path


def test_the_page_ends_with_its_limits() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)[-1] == "Limits"
