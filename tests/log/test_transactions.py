"""Transactions in one log: how far committed readers see, and which ranges were aborted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.kit import Home, run
from tests.log.test_producers import accident as accident
from waystation.errors import ProducerEpochStale
from waystation.log.aborted import Aborted, AbortedTransactions
from waystation.log.batches import batch as batches
from waystation.log.cleaning import retention


def committed(home: Home) -> list[bytes | None]:
    """What a read_committed consumer shows: Kafka's rule, applied to what it is sent."""
    seen: list[bytes | None] = []
    offset = home.log.start_offset
    aborting: set[int] = set()
    while True:
        data = home.log.read(offset, 200, home.log.stable_offset)
        if not data:
            return seen
        aborted = sorted(home.log.aborted_in(offset, data), key=lambda entry: entry.first_offset)
        for at, header in batches.scan(data):
            while aborted and aborted[0].first_offset <= header.last_offset:
                aborting.add(aborted.pop(0).producer_id)
            if header.control:
                aborting.discard(header.producer_id)
            elif not (header.transactional and header.producer_id in aborting):
                seen += [record.value for record in batches.records_of(data[at : at + header.size], header)]
            offset = header.last_offset + 1


def test_committed_readers_stop_before_the_first_open_transaction(
    tmp_path: Path, accident: Callable[[Home], object]
) -> None:
    home = Home(tmp_path)
    home.put(b"plain")
    home.send(1, 0, b"one", txn=True)
    home.send(2, 0, b"two", txn=True)
    home.put(b"plain")
    accident(home)
    assert (home.log.stable_offset, home.log.written_offset) == (1, 4)
    assert committed(home) == [b"plain"]
    home.end(2, commit=True)
    accident(home)
    assert home.log.stable_offset == 1
    home.end(1, commit=False)
    accident(home)
    assert home.log.stable_offset == home.log.end_offset == 6
    assert committed(home) == [b"plain", b"two", b"plain"]


def test_an_aborted_range_is_told_to_who_reads_into_it(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.put(b"plain")
    home.send(1, 0, b"a", txn=True)
    home.send(1, 1, b"b", txn=True)
    home.end(1, commit=False)
    home.put(b"plain")
    accident(home)
    entry = Aborted(1, 1, 3)
    assert home.log.aborted.overlapping(0, 1) == []
    assert home.log.aborted.overlapping(0, 2) == [entry]
    assert home.log.aborted.overlapping(3, 4) == [entry]
    assert home.log.aborted.overlapping(4, 5) == []


def test_a_marker_without_a_transaction_ends_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.end(1, commit=False)
    home.put(b"v")
    home.end(1, commit=True)
    assert home.log.aborted.overlapping(0, 10) == []
    assert home.log.stable_offset == 3


def test_a_marker_with_a_new_epoch_fences_its_producer(tmp_path: Path, accident: Callable[[Home], object]) -> None:
    home = Home(tmp_path)
    home.send(1, 0, b"a", txn=True)
    home.end(1, commit=False, epoch=1)
    accident(home)
    assert home.log.producers.by_id[1].epoch == 1
    with pytest.raises(ProducerEpochStale):
        home.send(1, 1, b"b", txn=True)
    home.send(1, 0, b"b", txn=True, epoch=1)


@given(
    steps=st.lists(
        st.tuples(st.integers(min_value=1, max_value=3), st.sampled_from(["send", "send", "commit", "abort", "plain"])),
        max_size=40,
    ),
    segment_bytes=st.sampled_from([1, 300, 1 << 20]),
    restarts=st.sets(st.integers(min_value=0, max_value=40), max_size=3),
)
def test_committed_readers_see_what_was_committed_and_only_that(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, str]],
    segment_bytes: int,
    restarts: set[int],
) -> None:
    home = Home(tmp_path_factory.mktemp("txn"), segment_bytes=segment_bytes)
    fate: dict[int, str] = {}
    owner: dict[int, list[int]] = {1: [], 2: [], 3: []}
    sequences = dict.fromkeys(owner, 0)
    for number, (producer, what) in enumerate(steps):
        if number in restarts:
            home.kill_and_open() if number % 2 else home.restart()
        if what == "plain":
            fate[home.put(b"%d" % number).base_offset] = "commit"
        elif what == "send":
            offset = home.send(producer, sequences[producer], b"%d" % number, txn=True).base_offset
            sequences[producer] += 1
            owner[producer].append(offset)
        else:
            home.end(producer, commit=what == "commit")
            fate.update(dict.fromkeys(owner[producer], what))
            owner[producer].clear()
    still_open = [offset for offsets in owner.values() for offset in offsets]
    stable = min(still_open, default=home.log.end_offset)
    assert home.log.stable_offset == stable
    values = {record.offset: record.value for record in home.records()}
    assert committed(home) == [values[o] for o in sorted(fate) if fate[o] == "commit" and o < stable]
    home.kill()


def test_an_open_transaction_whose_beginning_was_deleted_does_not_hold_readers_below_the_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.send(1, 0, b"a", txn=True)
    home.fill(5)
    run(retention.remove_before(home.log, 4))
    assert home.log.stable_offset == 4
    assert home.log.read(4, 100, home.log.stable_offset) == b""
    home.end(1, commit=False)
    assert home.log.stable_offset == home.log.end_offset


def test_ranges_of_a_history_that_never_was_hide_nothing(tmp_path: Path) -> None:
    """An abort marker is lost with the power; the transaction is then committed. No old index may bring it back."""
    home = Home(tmp_path)
    home.send(1, 0, b"a", txn=True)
    home.sync()
    home.save_points()
    size = home.log.active.size
    home.end(1, commit=False)
    home.log._write_derived(home.log.active)
    files = home.log.derived.take()
    assert files is not None
    files.save()
    home.kill()
    with home.segment().open("r+b") as file:
        file.truncate(size)
    home.reboot_and_open()
    home.end(1, commit=True)
    for _ in range(2):
        assert committed(home) == [b"a"]
        home.restart()


@given(
    spans=st.lists(
        st.tuples(st.integers(min_value=0, max_value=60), st.integers(min_value=0, max_value=20)), max_size=15
    ),
    first=st.integers(min_value=0, max_value=90),
    length=st.integers(min_value=0, max_value=40),
    dropped=st.integers(min_value=0, max_value=90),
)
def test_overlaps_are_found_among_many(spans: list[tuple[int, int]], first: int, length: int, dropped: int) -> None:
    table = AbortedTransactions()
    entries = sorted({start + size: Aborted(i, start, start + size) for i, (start, size) in enumerate(spans)}.items())
    for _, entry in entries:
        table.add(entry)
    table.drop_before(dropped)
    left = [entry for _, entry in entries if entry.last_offset >= dropped]
    expected = [e for e in left if e.last_offset >= first and e.first_offset < first + length]
    assert table.overlapping(first, first + length) == expected
    between = table.between(first, first + length)
    assert between == [e for e in left if first <= e.last_offset < first + length]
    assert AbortedTransactions.decode(AbortedTransactions.encode(between) + b"torn") == between
