"""Deliveries that are not in the shard's log yet, in a file beside it: a broker that is killed still counts them.

A delivery is written to the log with the next command, since a batch of its own would cost more than the delivery.
Until then its note is here, written before the message leaves: one small write into the page cache (1 us; a batch takes
25), never synced. So `kill -9` forgets no delivery; a power cut may forget those since the last group commit.

    notes of 32 bytes, little-endian: u64 offset · u64 queue · u64 first entry · u32 count · u32 CRC-32C of the former

`offset` is where the log ended then. Every command that is written later, outside of a transaction, takes all notes
along. So a note counts exactly if the log reaches up to its offset and has no such command from there on. That alone
decides, for each note by itself: what is left over from earlier needs no erasing, and the next notes are written over
it. A note from beyond the log's end speaks of what a power cut took; those are erased before the log gets there again.

In an encrypted folder a note is 68 bytes: the first 28 of these, sealed (`encryption/key_ring.py`). The tag is the
checksum then. A file may have both kinds, from before and after encryption was turned on: each is found by its
checksum.

Only the shard's log uses this, on the loop's thread.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from waystation.encryption.key_ring import OVERHEAD, DataKey, KeyRing
from waystation.errors import Corrupt
from waystation.message import Run
from waystation.observe.events import event_logger
from waystation.wire.crc32c import crc32c
from waystation.world.disk import Disk, File

logger = event_logger("waystation.queues")

NAME = "deliveries"
MAX_BYTES = 1024 * 1024
"""Far more than what waits for the log at any time, unless the log takes nothing."""
_NOTE = struct.Struct("<QQQI")
_CRC = struct.Struct("<I")
_SIZE = _NOTE.size + _CRC.size
_SEALED_SIZE = _NOTE.size + OVERHEAD
_ASSOCIATED = b"waystation: a delivery"


class DeliveryNotes:
    """One shard's. Opened with the first note."""

    __slots__ = ("_disk", "_file", "_key", "_keys", "_path", "_position", "_refused")

    def __init__(self, disk: Disk, folder: str, keys: KeyRing | None = None) -> None:
        self._disk = disk
        self._keys = keys
        self._key: DataKey | None = None
        self._path = f"{folder}/{NAME}"
        self._file: File | None = None
        self._position = 0
        self._refused = False

    def write(self, offset: int, queue: int, runs: Sequence[Run]) -> bool:
        """Notes deliveries; False if the disk refuses, or there are too many."""
        notes = bytearray()
        for first, count in runs:
            note = _NOTE.pack(offset, queue, first, count)
            if self._keys is None:
                notes += note
                notes += _CRC.pack(crc32c(note))
            else:
                notes += self._sealed(note)
        if self._position + len(notes) > MAX_BYTES:
            return False
        try:
            if self._file is None:
                self._file = self._disk.open(self._path, create=True)
            self._file.write([notes], self._position)
        except OSError as error:
            if not self._refused:
                logger.warning(
                    "deliveries.not_noted",
                    "deliveries cannot be noted beside the log: {file}: {error}",
                    file=self._path,
                    error=error,
                )
            self._refused = True
            return False
        self._refused = False
        self._position += len(notes)
        return True

    def _sealed(self, note: bytes) -> bytes:
        if self._keys is None:
            raise RuntimeError("there are no keys to seal a note with")
        if self._key is None:
            self._key = self._keys.new_data_key()
        return b"".join(self._key.seal(note, _ASSOCIATED))

    def logged(self) -> None:
        """The log has all of them."""
        self._position = 0

    def missing(self, from_offset: int, end_offset: int) -> dict[int, list[Run]]:
        """By queue, what was delivered and is not in the log, which has no command from `from_offset` on, and ends at
        `end_offset`. Blocks."""
        found: dict[int, list[Run]] = {}
        counting, beyond = bytearray(), False
        try:
            for note, (offset, queue, first, count) in self._notes_of(self._disk.read_file(self._path) or b""):
                if from_offset <= offset <= end_offset:
                    found.setdefault(queue, []).append((first, count))
                    counting += note
                beyond = beyond or offset > end_offset
            if beyond:
                self._disk.replace_file(self._path, bytes(counting))
        except OSError as error:
            logger.error(
                "deliveries.not_read",
                "the last deliveries before the start may not be counted: {file}: {error}",
                file=self._path,
                error=error,
            )
        return found

    def _notes_of(self, data: bytes) -> Iterator[tuple[bytes, tuple[int, int, int, int]]]:
        """Each note that is whole: its bytes, and what they say."""
        if self._keys is not None:
            for at in range(0, len(data) - _SEALED_SIZE + 1, _SEALED_SIZE):
                sealed = data[at : at + _SEALED_SIZE]
                try:
                    yield sealed, _NOTE.unpack(self._keys.open(sealed, _ASSOCIATED))
                except Corrupt:
                    continue
        for note, content in _plain_notes_of(data):
            yield note if self._keys is None else self._sealed(note[: _NOTE.size]), content

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain_notes_of(data: bytes) -> Iterator[tuple[bytes, tuple[int, int, int, int]]]:
    """Each note that is whole: its bytes, and what they say."""
    for at in range(0, len(data) - _SIZE + 1, _SIZE):
        note = data[at : at + _SIZE]
        if _CRC.unpack_from(note, _NOTE.size)[0] == crc32c(note[: _NOTE.size]):
            yield note, _NOTE.unpack_from(note)
