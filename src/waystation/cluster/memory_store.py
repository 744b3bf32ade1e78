"""A cluster's store in memory: for simulations, tests, and several brokers in one process.

It behaves as etcd does, its bad days included, on request. One `MemoryStore` is the store itself: it outlives the
brokers, and leases run out by the clock that it is given. Nothing here waits or has a timer: a lease that is due runs
out at the next call that anybody makes, or at `expire`. Each broker has a `MemoryFace` of it (`store.face()`), where
that broker's bad days are made: calls without an answer, answers lost after the write was made, writes that are made
later than their author gave up, watches that are late.

Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TypeVar

import msgspec

from waystation.catalog.catalog import CatalogEntry, Snapshot, Update, Watch
from waystation.catalog.memory import MemoryCatalog
from waystation.cluster.store import Store, check_size
from waystation.errors import NotFound, StoreUnavailable, WaystationError
from waystation.world.clock import Clock

T = TypeVar("T")


class _Lease(msgspec.Struct):
    ttl_s: float
    deadline_s: float
    keys: set[str] = msgspec.field(default_factory=set)


class MemoryStore(Store):
    """What all brokers share. A broker that needs no faults may use it as it is."""

    def __init__(self, clock: Clock, cluster_id: str = "waystation-in-memory01") -> None:
        self._clock = clock
        self._catalog = MemoryCatalog(cluster_id)
        self._lock = threading.RLock()
        self._leases: dict[int, _Lease] = {}
        self._lease_of: dict[str, int] = {}  # by key
        self._last_lease = 0

    def face(self) -> MemoryFace:
        """For one broker; a broker that restarts may take a new one."""
        return MemoryFace(self)

    # -- leases -----------------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        with self._lock:
            self.expire()
            self._last_lease += 1
            self._leases[self._last_lease] = _Lease(ttl_s, self._clock.monotonic() + ttl_s)
            return self._last_lease

    def keep_alive(self, lease: int) -> bool:
        with self._lock:
            self.expire()
            found = self._leases.get(lease)
            if found is None:
                return False
            found.deadline_s = self._clock.monotonic() + found.ttl_s
            return True

    def revoke(self, lease: int) -> None:
        """Also what a test calls to have a lease lost early."""
        with self._lock:
            found = self._leases.pop(lease, None)
            if found is not None:
                for key in found.keys:
                    del self._lease_of[key]
                self._catalog.write(dict.fromkeys(sorted(found.keys)))

    def expire(self) -> None:
        """Leases that are due run out."""
        with self._lock:
            now = self._clock.monotonic()
            for lease in [lease for lease, found in self._leases.items() if found.deadline_s <= now]:
                self.revoke(lease)

    def next_expiry_s(self) -> float | None:
        """When the next lease is due, by the clock that was handed in: for a simulation that lets time pass."""
        with self._lock:
            return min((found.deadline_s for found in self._leases.values()), default=None)

    # -- entries ----------------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        return self._catalog.cluster_id()

    def revision(self) -> int:
        with self._lock:
            self.expire()
            return self._catalog.revision()

    def get(self, key: str) -> CatalogEntry | None:
        with self._lock:
            self.expire()
            return self._catalog.get(key)

    def read(self, prefix: str = "") -> Snapshot:
        with self._lock:
            self.expire()
            return self._catalog.read(prefix)

    def write(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, int] | None = None,
        *,
        lease: int | None = None,
    ) -> int:
        check_size(changes, expected or {})
        with self._lock:
            self.expire()
            if lease is not None and lease not in self._leases:
                raise NotFound(f"the lease {lease} has run out; ask for a new one")
            revision = self._catalog.write(changes, expected)
            for key, value in changes.items():
                self._attach(key, None if value is None else lease)
            return revision

    def _attach(self, key: str, lease: int | None) -> None:
        """A key is under the lease that it was last put with, or under none."""
        before = self._lease_of.pop(key, None)
        if before is not None:
            self._leases[before].keys.discard(key)
        if lease is not None:
            self._lease_of[key] = lease
            self._leases[lease].keys.add(key)

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        return self._catalog.watch(after, wake)

    def compact(self, revision: int | None = None) -> None:
        """Forgets the updates up to a revision, all by default: watches that have not taken them get Compacted."""
        self._catalog.history.compact(self._catalog.revision() if revision is None else revision)

    def close(self) -> None:
        pass


class Fate(Enum):
    """What becomes of a call."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"  # it never reached the store
    ANSWER_LOST = "answer lost"  # it was done, but its author does not know
    LATE = "late"  # it is on its way when its author gives up, and is done at `deliver_late`


class MemoryFace(Store):
    """The store as one broker sees it. `fate` is asked for each call by its name (`write`, `read`, `keep_alive`, …);
    a simulation sets it to draw lots."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.fate: Callable[[str], Fate] = _answered
        self._lock = threading.Lock()
        self._cut = False
        self._watches_paused = False
        self._watches: list[_FaceWatch] = []
        self._late: list[Callable[[], object]] = []
        self._leases: list[int] = []

    # -- faults -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """No answers and no news until `restore`."""
        self._cut = True

    def restore(self) -> None:
        self._cut = False
        self._wake()

    def pause_watches(self) -> None:
        """Its watches give nothing until `resume_watches`, though calls are answered."""
        self._watches_paused = True

    def resume_watches(self) -> None:
        self._watches_paused = False
        self._wake()

    def lose_leases(self) -> None:
        """The leases that it was granted run out now, kept alive or not."""
        for lease in self._leases:
            self.store.revoke(lease)

    @property
    def late(self) -> int:
        """How many calls are on their way."""
        return len(self._late)

    def deliver_late(self) -> None:
        """The oldest call that is on its way arrives; nobody hears what became of it."""
        if self._late:
            try:
                self._late.pop(0)()
            except WaystationError:
                pass

    # -- calls ------------------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        return self.store.cluster_id()

    def revision(self) -> int:
        return self._call("revision", self.store.revision)

    def get(self, key: str) -> CatalogEntry | None:
        return self._call("get", lambda: self.store.get(key))

    def read(self, prefix: str = "") -> Snapshot:
        return self._call("read", lambda: self.store.read(prefix))

    def write(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, int] | None = None,
        *,
        lease: int | None = None,
    ) -> int:
        made, compared = dict(changes), dict(expected or {})
        return self._call("write", lambda: self.store.write(made, compared, lease=lease))

    def grant(self, ttl_s: float) -> int:
        def granted() -> int:
            lease = self.store.grant(ttl_s)
            self._leases.append(lease)
            return lease

        return self._call("grant", granted)

    def keep_alive(self, lease: int) -> bool:
        return self._call("keep_alive", lambda: self.store.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        self._call("revoke", lambda: self.store.revoke(lease))

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        watch = _FaceWatch(self, self.store.watch(after, wake), wake)
        with self._lock:
            self._watches.append(watch)
        return watch

    def forget(self, watch: _FaceWatch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    @property
    def silent(self) -> bool:
        return self._cut or self._watches_paused

    def close(self) -> None:
        """The store and the leases stay: a broker that ends properly revokes its lease itself."""

    def _call(self, name: str, call: Callable[[], T]) -> T:
        fate = Fate.UNANSWERED if self._cut else self.fate(name)
        if fate is Fate.LATE:
            self._late.append(call)
        elif fate is not Fate.UNANSWERED:
            try:
                answer = call()
            except WaystationError:
                if fate is Fate.ANSWERED:
                    raise
            else:
                if fate is Fate.ANSWERED:
                    return answer
        raise StoreUnavailable(f"the cluster's store gave no answer ({name})")

    def _wake(self) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.wake()


class _FaceWatch(Watch):
    def __init__(self, face: MemoryFace, watch: Watch, wake: Callable[[], None]) -> None:
        self._face = face
        self._watch = watch
        self.wake = wake

    def take(self) -> list[Update]:
        return [] if self._face.silent else self._watch.take()

    def close(self) -> None:
        self._watch.close()
        self._face.forget(self)


def _answered(name: str) -> Fate:
    return Fate.ANSWERED
