"""Follows what is written in etcd under a prefix: one thread, and the latest updates for those who watch.

What must hold: a watch gives every revision after the one that it was asked from, whole and in order, or Compacted. So
a stream that breaks is taken up at the next revision, at any endpoint; and where etcd does not have that any more, or
has gone back (a backup was restored), all watches get Compacted, and the thread ends until somebody watches again.

A stream that is silent may be dead: after a while without a line, its endpoint has to answer a linearizable read, which
a member that hangs, or is cut off from the others, cannot.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from waystation.catalog.catalog import CatalogChange, Update, Watch
from waystation.catalog.history import UpdateHistory
from waystation.cluster.address import shown
from waystation.cluster.decisions.state import Address
from waystation.cluster.etcd.connection import Connection
from waystation.cluster.etcd.gateway import OUT_OF_RANGE, EtcdRefused, Gateway
from waystation.cluster.etcd.messages import (
    CreateWatch,
    RangeAnswer,
    RangeRequest,
    WatchEvent,
    Watching,
    WatchLine,
    WatchResult,
    decode,
)
from waystation.errors import NotAllowed, StoreUnavailable
from waystation.observe.events import event_logger

logger = event_logger("waystation.cluster")

IDLE_S = 2.0
"""Without a line: then the endpoint is asked whether it is there."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0

KeyOf = Callable[[bytes], str | None]
"""The key of an entry, as the catalog has it; None for what is the store's own."""


class Watcher:
    """One per store. Any thread."""

    def __init__(self, gateway: Gateway, begin: bytes, end: bytes, probe: bytes, key_of: KeyOf) -> None:
        """Watches the keys from `begin` to before `end`; `probe` is one that can be read to see that etcd is there."""
        self._gateway = gateway
        self._range = (begin, end)
        self._probe = probe
        self._key_of = key_of
        self._lock = threading.Lock()
        self._following: _Following | None = None

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        with self._lock:
            if self._following is None or self._following.ended:
                self._following = _Following(self._gateway, self._range, self._probe, self._key_of, after)
                self._following.start()
            return self._following.history.watch(after, wake)

    def close(self) -> None:
        with self._lock:
            if self._following is not None:
                self._following.stop()


class _Following:
    """From a revision on, until etcd does not have the next one."""

    def __init__(self, gateway: Gateway, keys: tuple[bytes, bytes], probe: bytes, key_of: KeyOf, after: int) -> None:
        self.history = UpdateHistory(after)
        self.ended = False
        self._gateway = gateway
        self._range = keys
        self._probe = probe
        self._key_of = key_of
        self._last = after  # the revision up to which it has everything
        self._etcd_id = 0
        self._stopped = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="etcd-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        connection = self._connection
        if connection is not None:
            connection.close()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            endpoint = self._gateway.endpoints()[0]
            before = self._last
            try:
                self._follow(endpoint)
            except _HistoryLost as lost:
                self._end(str(lost))
                return
            except (OSError, ValueError, StoreUnavailable, NotAllowed, _Broken) as error:
                if not self._stopped.is_set():
                    logger.warning(
                        "cluster.watch_interrupted",
                        "the watch of the cluster's store at {endpoint} is interrupted: {error}",
                        endpoint=shown(endpoint),
                        error=error,
                    )
            pause_s = _FIRST_PAUSE_S if self._last > before else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._stopped.wait(pause_s)

    def _end(self, reason: str) -> None:
        logger.warning(
            "cluster.watch_lost",
            "the cluster's store does not have everything after revision {revision}; all of it is read again: {reason}",
            revision=self._last,
            reason=reason,
        )
        self.ended = True
        self.history.compact(sys.maxsize)

    def _follow(self, endpoint: Address) -> None:
        # Before the stream, since it goes with the token that this was answered with.
        self._ask(endpoint, 0)
        with self._gateway.stream(endpoint) as connection:
            self._connection = connection
            if self._stopped.is_set():
                return
            request = Watching(CreateWatch(*self._range, self._last + 1))
            for line in self._gateway.lines(connection, "/v3/watch", request, IDLE_S):
                if line is None:
                    self._ask(endpoint, 0)
                elif line:
                    self._take(endpoint, _read(line))
        raise _Broken("the stream has ended")

    def _take(self, endpoint: Address, result: WatchResult) -> None:
        if result.compact_revision:
            raise _HistoryLost(f"compacted up to revision {result.compact_revision}")
        if result.canceled:
            raise _Broken(result.cancel_reason or "canceled")
        if result.created:
            self._check(endpoint, result)
        self._add(result.events)

    def _check(self, endpoint: Address, result: WatchResult) -> None:
        """That the stream begins where it should. The last revision that we have must be readable: if it is ahead of
        what etcd has, etcd has gone back, and would be silent until it got there. And if it is just behind what was
        compacted, etcd accepts the watch, but a deletion in the first revision would be missing."""
        if self._etcd_id not in (0, result.header.cluster_id):
            raise _HistoryLost("this is another etcd cluster than before")
        self._etcd_id = result.header.cluster_id
        if self._last:
            self._ask(endpoint, self._last)

    def _ask(self, endpoint: Address, revision: int) -> None:
        try:
            self._gateway.ask_at(
                endpoint, "/v3/kv/range", RangeRequest(self._probe, revision=revision, keys_only=True), RangeAnswer
            )
        except EtcdRefused as refused:
            if refused.code == OUT_OF_RANGE:
                raise _HistoryLost(refused.text) from refused
            raise _Broken(refused.text) from refused

    def _add(self, events: Sequence[WatchEvent]) -> None:
        for revision, group in groupby(events, key=lambda event: event.kv.mod_revision):
            changes = [
                CatalogChange(key, None if event.type == "DELETE" else event.kv.value)
                for event in group
                if (key := self._key_of(event.kv.key)) is not None
            ]
            if revision > self._last:
                self._last = revision
                self.history.add(Update(revision, tuple(changes)))


class _HistoryLost(Exception):
    pass


class _Broken(Exception):
    pass


def _read(line: bytes) -> WatchResult:
    try:
        read = decode(line, WatchLine)
    except msgspec.DecodeError as error:
        raise _Broken(f"a line that cannot be read ({error})") from error
    if read.result is None:
        raise _Broken(read.error.message if read.error is not None else "a line without a result")
    return read.result
