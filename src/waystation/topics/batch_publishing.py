"""Record batches that a client has built itself, into a topic: what the native protocol's bulk publishers send.

The client encodes once and the broker stores what it gets as it is, as with a Kafka producer. But the producer's name
on a batch (id, epoch, sequence, the transactional bit) is the broker's to write: a client that could write it would
have to count as the broker does, and could pass for somebody else. Everything is checked before the first batch is
appended.

On the loop's thread; called by transactions and the native protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.errors import InvalidRecord
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import NO_PRODUCER, TRANSACTIONAL, Header
from waystation.topics.messages import PublishReceipts, Stamp
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.publishing import Publishing
from waystation.topics.topics import Topic

Placed = tuple[int, bytearray]
"""A partition, and one record batch for it."""


Checked = tuple[Partition, bytearray, Header]


async def check_batches(publishing: Publishing, topic: Topic, placed: Sequence[Placed]) -> list[Checked]:
    """The batches, if all of them can be taken. What is large is opened on a thread."""
    checked: list[Checked] = []
    for index, batch in placed:
        partition = topic.partition(index)
        partition.check_in_sync()
        header = await publishing.checked(partition, batch)
        if header.producer_id != NO_PRODUCER or header.transactional:
            raise InvalidRecord(
                "batches: a batch of this command carries no producer id and no transactional bit: those are the "
                "broker's to write"
            )
        checked.append((partition, batch, header))
    return checked


def append_batches(publishing: Publishing, checked: Sequence[Checked], stamp: Stamp | None = None) -> PublishReceipts:
    """Appends them; they are written when this returns, and durable when the receipts are."""
    places: dict[int, tuple[str, int, int]] = {}
    receipts: dict[int, Receipt] = {}
    for partition, batch, header in checked:
        topic = partition.topic.name
        if stamp is not None:
            sequence = stamp.sequences.get((topic, partition.index), 0)
            attributes = header.attributes | (TRANSACTIONAL if stamp.transactional else 0)
            batches.sign(batch, attributes, stamp.producer_id, stamp.producer_epoch, sequence)
            header = batches.read_header(batch)
        appended = publishing.append(partition, batch, header)
        if stamp is not None:
            stamp.sequences[topic, partition.index] = (header.last_sequence + 1) & 0x7FFFFFFF
        places.setdefault(partition.index, (topic, partition.index, appended.base_offset))
        receipts[partition.index] = Receipt(partition, appended.last_offset + 1)
    return PublishReceipts(list(places.values()), list(receipts.values()))
