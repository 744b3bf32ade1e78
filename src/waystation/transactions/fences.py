"""Runs whose work was given up: nothing may begin under their transactional ids any more.

A job stages under ids `NAME/RUN.PART`, from many tasks. When it fails, whoever led it aborts all that is open under
`NAME/RUN.`; but a task that has not heard of it may begin after that, and what it stages stays open, in the way of
readers, until its time runs out. So the run is *fenced* first, by a record beside the transactions of its ids:

    key:   version i16 · length u16 · prefix
    value: version i16 (0) · fenced at i64 (epoch ms)

Invariant: a fence is in force before the open transactions are looked for, and durable before anybody is told. Used by
the coordinator, on the event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from waystation.errors import Corrupt, Invalid, NewerFormat
from waystation.log.state import StateLog
from waystation.transactions.decision_records import decode_name_key, encode_name_key
from waystation.transactions.errors import ProducerFenced
from waystation.transactions.settings import FENCES_KEPT_MS, MAX_FENCES, MAX_ID_BYTES
from waystation.world.clock import Clock

FENCE_KEY_VERSION = 0x5002

_VALUE = struct.Struct(">hq")


class Fences:
    """The runs that are fenced, by the prefix of their transactional ids."""

    def __init__(self, clock: Clock, log_of: Callable[[str], StateLog]) -> None:
        """`log_of` says where the state of a transactional id is, or raises NotCoordinator."""
        self._clock = clock
        self._log_of = log_of
        self._fenced: dict[str, tuple[int, StateLog]] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._fenced)

    def add(self, prefix: str) -> StateLog:
        """In force from now on; durable when what was appended to the log is. Raises Invalid, and StorageFailed, and
        then nothing is fenced."""
        if prefix != _run_of(prefix) or len(prefix.encode()) > MAX_ID_BYTES:
            raise Invalid(f"prefix: {prefix[:100]!r} cannot be fenced: it has to be NAME/RUN. with the dot at its end")
        log, now_ms = self._log_of(prefix), self._clock.now_ms()
        log.append([encode_fence(prefix, now_ms)])
        self._fenced.pop(prefix, None)
        self._fenced[prefix] = (now_ms, log)
        if len(self._fenced) > MAX_FENCES:
            self._forget(next(iter(self._fenced)))
        return log

    def check(self, transactional_id: str) -> None:
        """Raises ProducerFenced if nothing may begin under this id."""
        if self._fenced and _run_of(transactional_id) in self._fenced:
            raise ProducerFenced(
                f"the job of {transactional_id!r} was given up: nothing can be written for it any more"
            )

    def recover(self, fences: Mapping[str, int], log: StateLog) -> None:
        """What a state log says."""
        for prefix, fenced_ms in sorted(fences.items(), key=lambda fence: fence[1]):
            self._fenced[prefix] = (fenced_ms, log)

    def drop(self, partition: int) -> None:
        """Another broker coordinates the transactions of a state log."""
        for prefix in [prefix for prefix, (_, log) in self._fenced.items() if log.partition == partition]:
            del self._fenced[prefix]

    def expire(self) -> None:
        """Forgets those whose tasks have ended long ago."""
        oldest_ms = self._clock.now_ms() - FENCES_KEPT_MS
        for prefix in [prefix for prefix, (fenced_ms, _) in self._fenced.items() if fenced_ms <= oldest_ms]:
            self._forget(prefix)

    def _forget(self, prefix: str) -> None:
        self._fenced[prefix][1].append([(encode_fence_key(prefix), None)])
        del self._fenced[prefix]


def _run_of(transactional_id: str) -> str | None:
    """`NAME/RUN.` of `NAME/RUN.PART`."""
    name, slash, rest = transactional_id.rpartition("/")
    run, dot, _ = rest.partition(".")
    return f"{name}/{run}." if name and slash and run and dot else None


def encode_fence_key(prefix: str) -> bytes:
    return encode_name_key(FENCE_KEY_VERSION, prefix)


def encode_fence(prefix: str, fenced_ms: int) -> tuple[bytes, bytes]:
    """The record: key and value."""
    return encode_fence_key(prefix), _VALUE.pack(0, fenced_ms)


def decode_fence_key(key: bytes) -> str | None:
    """The prefix, or None if this is a key of another kind."""
    return decode_name_key(FENCE_KEY_VERSION, key, "fence")


def decode_fence(prefix: str, value: bytes) -> int:
    """When it was fenced."""
    try:
        version, fenced_ms = _VALUE.unpack(value)
    except struct.error as error:
        raise Corrupt(f"the fence of {prefix!r} does not decode: {error}") from error
    if version != 0:
        raise NewerFormat(f"the fence of {prefix!r} has version {version}; known is 0")
    return int(fenced_ms)
