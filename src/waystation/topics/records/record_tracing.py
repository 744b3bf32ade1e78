"""Record batches that may have messages to trace: those in whose bytes the word `traceparent` occurs.

What is compressed is not opened for that: a batch goes through the broker as it is, and a word in it cannot be
seen from outside. Called only where the broker traces; on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator

from waystation.errors import InvalidRecord
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.observe.spans import Traced
from waystation.observe.traceparent import HEADER, STATE_HEADER, read_parent
from waystation.observe.tracing import MOST_AT_ONCE

_WORD = HEADER.encode()
_ID = "x-message-id"


def traced_in(batch: bytes | bytearray | memoryview, header: Header) -> list[Traced]:
    """The messages of one batch that ask to be traced, a few more at most than may be traced at once."""
    if header.codec or header.control:
        return []
    content = bytes(batch) if isinstance(batch, memoryview) else batch  # copied: a view cannot be searched
    if content.find(_WORD) < 0:
        return []
    found: list[Traced] = []
    try:
        for traced in _traced(batch, header):
            found.append(traced)
            if len(found) > MOST_AT_ONCE:
                break
    except InvalidRecord:  # who reads them will see; the broker does not open what it takes in
        pass
    return found


def traced_from(data: bytes, offset: int) -> list[Traced]:
    """The same for stored batches, one behind the other, from an offset on."""
    found: list[Traced] = []
    if data.find(_WORD) < 0:
        return found
    for position, header in batches.scan(data):
        if header.last_offset >= offset and data.find(_WORD, position, position + header.size) >= 0:
            found += [one for one in traced_in(data[position : position + header.size], header) if one.offset >= offset]
        if len(found) > MOST_AT_ONCE:
            break
    return found


def _traced(batch: bytes | bytearray | memoryview, header: Header) -> Iterator[Traced]:
    for record in batches.records_of(batch, header):
        values = dict(record.headers)
        if HEADER in values:
            parent = read_parent(values[HEADER], values.get(STATE_HEADER))
            if parent is not None:
                yield Traced(parent, _id(values.get(_ID)), len(record.value or b""), record.offset)


def _id(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
