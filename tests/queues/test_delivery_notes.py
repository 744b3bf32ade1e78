"""Deliveries noted beside the log: each counts exactly if the log does not have it, whatever is left in the file."""

from __future__ import annotations

import asyncio
import errno

from tests.broker.queue_kit import Inbox, Machine, on_a_machine, put
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault
from waystation.log.batches import batch as batches
from waystation.queues.feed import Verdict
from waystation.queues.shard.commands import HandedOut, decode
from waystation.queues.shard.delivery_notes import MAX_BYTES, NAME, DeliveryNotes
from waystation.topics.partitions.partition import log_of

FOLDER = "/shard"
PATH = f"{FOLDER}/{NAME}"
NOTE_BYTES = 32


def _notes(disk: SimDisk | None = None) -> tuple[SimDisk, DeliveryNotes]:
    disk = disk or SimDisk()
    disk.make_folder(FOLDER)
    return disk, DeliveryNotes(disk, FOLDER)


def test_a_note_counts_if_the_log_reaches_it_and_has_no_command_behind_it() -> None:
    disk, notes = _notes()
    assert notes.missing(0, 10) == {}
    assert notes.write(4, 7, [(0, 3), (9, 1)])
    assert notes.write(5, 8, [(2, 2)])
    assert _notes(disk)[1].missing(0, 5) == {7: [(0, 3), (9, 1)], 8: [(2, 2)]}
    assert _notes(disk)[1].missing(5, 9) == {8: [(2, 2)]}, "the log has the first ones"
    assert _notes(disk)[1].missing(6, 9) == {}
    assert len(disk.content()[PATH]) == 3 * NOTE_BYTES, "nothing of that changes the file"


def test_what_the_log_has_is_written_over_and_what_is_left_of_it_does_not_count() -> None:
    disk, notes = _notes()
    notes.write(4, 7, [(0, 1), (2, 1), (4, 1)])
    notes.logged()
    notes.write(6, 7, [(8, 1)])
    assert len(disk.content()[PATH]) == 3 * NOTE_BYTES
    assert _notes(disk)[1].missing(5, 6) == {7: [(8, 1)]}


def test_notes_from_beyond_the_end_are_erased_for_good_and_the_others_stay() -> None:
    disk, notes = _notes()
    notes.write(4, 7, [(0, 1)])
    notes.write(9, 7, [(5, 1)])  # of a log whose tail a power cut took
    assert _notes(disk)[1].missing(4, 6) == {7: [(0, 1)]}
    disk = disk.power_cut()
    assert _notes(disk)[1].missing(4, 9) == {7: [(0, 1)]}, "the log has grown again, with something else"


def test_a_disk_that_refuses_to_read_or_erase_keeps_no_shard_from_starting() -> None:
    for kind, found in (("read", {}), ("write", {7: [(0, 1)]}), ("rename", {7: [(0, 1)]})):
        disk, notes = _notes()
        notes.write(4, 7, [(0, 1)])
        notes.write(9, 7, [(5, 1)])
        fault = disk.inject(Fault(kind, NAME, errno.EIO))
        assert _notes(disk)[1].missing(4, 6) == found, kind
        fault.times = 0
        assert _notes(disk)[1].missing(4, 6) == {7: [(0, 1)]}, kind


def test_a_torn_note_is_none() -> None:
    disk, notes = _notes()
    notes.write(4, 7, [(0, 1), (2, 1)])
    disk.flip_bit(PATH, NOTE_BYTES + 17)
    assert _notes(disk)[1].missing(0, 9) == {7: [(0, 1)]}
    disk.flip_bit(PATH, 3)
    assert _notes(disk)[1].missing(0, 9) == {}


def test_the_file_has_a_bound_and_a_disk_that_refuses_is_told() -> None:
    disk, notes = _notes()
    runs = [(entry, 1) for entry in range(0, 2000, 2)]
    written = 0
    while notes.write(4, 7, runs):
        written += len(runs) * NOTE_BYTES
    assert written <= MAX_BYTES == 1024 * 1024
    notes.logged()
    fault = disk.inject(Fault("write", NAME, errno.ENOSPC))
    assert not notes.write(5, 7, [(0, 1)])
    fault.times = 0
    assert notes.write(5, 7, [(0, 1)])
    assert _notes(disk)[1].missing(5, 5) == {7: [(0, 1)]}


@on_a_machine
async def test_where_nothing_can_be_noted_beside_the_log_the_log_has_it_at_once(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"one")
    fault = machine.disk.inject(Fault("create", f"/{NAME}", errno.ENOSPC))
    inbox = Inbox(broker, "jobs", credit=5)
    await asyncio.sleep(0.001)
    assert inbox.payloads == [b"one"], "it is delivered nevertheless"
    shard = broker.queues.get("jobs")[0]
    commands = [
        decode(record.value)
        for data, header in log_of(shard.log.partition).batches_from(0)
        for record in batches.records_of(data, header)
        if record.value is not None
    ]
    assert [type(command) for command in commands].count(HandedOut) == 1
    machine.allow(fault)
    await inbox.settle(Verdict.ACK, *inbox.got)
