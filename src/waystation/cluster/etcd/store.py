"""A cluster's store in etcd: `Store` in the words of etcd v3.

Everything is under a prefix, so that clusters can share one etcd. Entries have the catalog's keys behind it; two keys
are the store's own: `.cluster` says which cluster this is, and `.barrier` is written to have a revision that every
watch reaches. etcd counts one revision for all prefixes, so the revision of an answer may be one that is never told to
those who watch this prefix, and a broker that waited for it would wait forever.

Writes are never sent twice: without an answer, whether they were made is not known (StoreUnavailable). Any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from waystation.catalog.catalog import ABSENT, CatalogEntry, Snapshot, Watch
from waystation.cluster.address import EtcdAddress
from waystation.cluster.etcd.gateway import INVALID_ARGUMENT, NOT_FOUND, OUT_OF_RANGE, EtcdRefused, Gateway
from waystation.cluster.etcd.messages import (
    Compare,
    DeleteRange,
    EmptyResponse,
    KeepAlive,
    KeepAliveAnswer,
    LeaseAnswer,
    LeaseGrant,
    Operation,
    Put,
    PutAnswer,
    RangeAnswer,
    RangeRequest,
    Txn,
    TxnAnswer,
)
from waystation.cluster.etcd.watcher import Watcher
from waystation.cluster.store import Store, check_size
from waystation.errors import Corrupt, NewerFormat, NotFound, RevisionConflict, StoreUnavailable, TooLarge

FORMAT = 1
"""Of what is under the prefix."""

_PAGE = 2_000
"""Entries in one answer of a read."""

_CLUSTER = ".cluster"
_BARRIER = ".barrier"


class ClusterMark(msgspec.Struct, frozen=True):
    """The value of `.cluster`."""

    id: str
    format: int


class EtcdStore(Store):
    """Finds out at once which cluster it is, or says so in a prefix that has none yet: StoreUnavailable, NotAllowed,
    NewerFormat. One per node."""

    def __init__(self, address: EtcdAddress, first_id: str) -> None:
        """`first_id`: the cluster's id, if this is the first who opens it."""
        self._root = f"{address.prefix}/".encode()
        self._gateway = Gateway(address)
        self._watcher = Watcher(
            self._gateway, self._root, _after_all(self._root), self._etcd_key(_CLUSTER), self._key_of
        )
        try:
            self._cluster_id = self._find_cluster(first_id)
        except BaseException:
            self._gateway.close()
            raise

    def _find_cluster(self, first_id: str) -> str:
        key = self._etcd_key(_CLUSTER)
        mark = msgspec.json.encode(ClusterMark(first_id, FORMAT))
        # Sent again if need be: whoever was first, what is there afterwards counts.
        self._gateway.ask(
            "/v3/kv/txn",
            Txn((Compare(key, ABSENT),), (Operation(request_put=Put(key, mark)),)),
            TxnAnswer,
            repeatable=True,
        )
        found = self._range(RangeRequest(key)).kvs
        try:
            there = msgspec.json.decode(found[0].value, type=ClusterMark)
        except (IndexError, msgspec.DecodeError) as error:
            raise Corrupt(
                f"the key {key.decode()} in etcd does not say which cluster this is; is the prefix right?"
            ) from error
        if there.format > FORMAT:
            raise NewerFormat(
                f"the cluster {there.id} was written by a newer version (format {there.format}, this one knows"
                f" {FORMAT}); nothing was changed. Upgrade this node"
            )
        return there.id

    def cluster_id(self) -> str:
        return self._cluster_id

    def close(self) -> None:
        self._watcher.close()
        self._gateway.close()

    # -- reading ----------------------------------------------------------------------------------------------------

    def revision(self) -> int:
        """Of a write that it makes for this: it comes after all that are made already, and every watch reaches it."""
        answer = self._gateway.ask("/v3/kv/put", Put(self._etcd_key(_BARRIER)), PutAnswer, repeatable=True)
        return answer.header.revision

    def get(self, key: str) -> CatalogEntry | None:
        found = self._range(RangeRequest(self._etcd_key(key))).kvs
        return CatalogEntry(found[0].value, found[0].mod_revision) if found else None

    def read(self, prefix: str = "") -> Snapshot:
        while True:
            try:
                return self._read(self._etcd_key(prefix))
            except EtcdRefused as refused:
                if refused.code != OUT_OF_RANGE:  # else compacted between two pages: from the beginning
                    raise StoreUnavailable(f"etcd refuses to be read: {refused.text}") from refused

    def _read(self, begin: bytes) -> Snapshot:
        """At one revision, in pages. Raises Refused."""
        end, revision = _after_all(begin), 0
        entries: dict[str, CatalogEntry] = {}
        while True:
            page = self._gateway.ask(
                "/v3/kv/range", RangeRequest(begin, end, limit=_PAGE, revision=revision), RangeAnswer, repeatable=True
            )
            revision = revision or page.header.revision
            for found in page.kvs:
                key = self._key_of(found.key)
                if key is not None:
                    entries[key] = CatalogEntry(found.value, found.mod_revision)
            if not page.more:
                return Snapshot(revision, entries)
            begin = page.kvs[-1].key + b"\0"

    def _range(self, request: RangeRequest) -> RangeAnswer:
        try:
            return self._gateway.ask("/v3/kv/range", request, RangeAnswer, repeatable=True)
        except EtcdRefused as refused:
            raise StoreUnavailable(f"etcd refuses to be read: {refused.text}") from refused

    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        return self._watcher.watch(after, wake)

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, int] | None = None,
        *,
        lease: int | None = None,
    ) -> int:
        expected = expected or {}
        check_size(changes, expected)
        if not changes and not expected:
            return self.revision()
        request = Txn(
            tuple(Compare(self._etcd_key(key), revision) for key, revision in expected.items()),
            tuple(self._change(key, value, lease) for key, value in changes.items()),
            tuple(Operation(request_range=RangeRequest(self._etcd_key(key), keys_only=True)) for key in expected),
        )
        try:
            answer = self._gateway.ask("/v3/kv/txn", request, TxnAnswer, repeatable=False)
        except EtcdRefused as refused:
            raise _why_not(refused, lease) from refused
        if not answer.succeeded:
            raise self._conflict(expected, answer)
        deleted = (done.response_delete_range for done in answer.responses)
        if any(value is not None for value in changes.values()) or any(done and done.deleted for done in deleted):
            return answer.header.revision
        return self.revision()  # nothing was changed, so nobody is told of this revision

    def _change(self, key: str, value: bytes | None, lease: int | None) -> Operation:
        if value is None:
            return Operation(request_delete_range=DeleteRange(self._etcd_key(key)))
        return Operation(request_put=Put(self._etcd_key(key), value, lease or 0))

    def _conflict(self, expected: Mapping[str, int], answer: TxnAnswer) -> RevisionConflict:
        for (key, revision), done in zip(expected.items(), answer.responses, strict=False):
            found = done.response_range.kvs if done.response_range is not None else ()
            there = found[0].mod_revision if found else ABSENT
            if there != revision:
                return RevisionConflict(
                    f"{key[:100]!r} was changed by somebody else (revision {there}, not {revision}); look again, then"
                    " repeat the change"
                )
        return RevisionConflict("somebody else changed this in the meantime; look again, then repeat the change")

    # -- leases -----------------------------------------------------------------------------------------------------

    def grant(self, ttl_s: float) -> int:
        """In whole seconds, and 2 at least: etcd has no shorter ones."""
        request = LeaseGrant(max(1, math.ceil(ttl_s)))
        try:
            return self._gateway.ask("/v3/lease/grant", request, LeaseAnswer, repeatable=True).ID
        except EtcdRefused as refused:
            raise StoreUnavailable(f"etcd refuses to grant a lease: {refused.text}") from refused

    def keep_alive(self, lease: int) -> bool:
        try:
            answer = self._gateway.ask("/v3/lease/keepalive", KeepAlive(lease), KeepAliveAnswer, repeatable=True)
        except EtcdRefused as refused:
            if refused.code == NOT_FOUND:
                return False
            raise StoreUnavailable(f"etcd refuses to keep a lease alive: {refused.text}") from refused
        return answer.result.TTL > 0

    def revoke(self, lease: int) -> None:
        try:
            self._gateway.ask("/v3/lease/revoke", KeepAlive(lease), EmptyResponse, repeatable=True)
        except EtcdRefused as refused:
            if refused.code != NOT_FOUND:
                raise StoreUnavailable(f"etcd refuses to revoke a lease: {refused.text}") from refused

    # -- keys -------------------------------------------------------------------------------------------------------

    def _etcd_key(self, key: str) -> bytes:
        return self._root + key.encode()

    def _key_of(self, etcd_key: bytes) -> str | None:
        key = etcd_key.removeprefix(self._root).decode()
        return None if key in (_CLUSTER, _BARRIER) else key


def _after_all(prefix: bytes) -> bytes:
    """The first key that does not begin with this; UTF-8 has no byte 0xff, so there is one."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _why_not(refused: EtcdRefused, lease: int | None) -> Exception:
    if refused.code == NOT_FOUND:
        return NotFound(f"the lease {lease} has run out; ask for a new one")
    if refused.code == INVALID_ARGUMENT and ("too many operations" in refused.text or "too large" in refused.text):
        return TooLarge(
            f"etcd does not take a write of this size: {refused.text}; make fewer or smaller changes at a time, or"
            " raise --max-txn-ops or --max-request-bytes of etcd"
        )
    return StoreUnavailable(f"etcd refuses a write: {refused.text}")
