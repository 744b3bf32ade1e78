"""A small blocking client of the broker's Kafka port: what exists, where partitions begin and end, and their bytes.

Spark's Python workers are plain processes that read one thing at a time, so this is sockets and `struct`, no loop.
Record batches come out as the bytes they are stored as; `decoding` opens them.

What goes wrong on the way to the broker (it is down, it restarts, a leader moved) is tried again, with a line in the
log of what is being waited for, until `retry_s` is over; then ConnectionLost says so. Everything asked here may be
asked twice. For the readers of this package; not for several threads at once.
"""

from __future__ import annotations

import os
import ssl
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from waystation.errors import NotAllowed, NotAuthenticated, UnknownTopic, WaystationError
from waystation.spark.links.native_link import NativeLink
from waystation.spark.links.retrying import patiently
from waystation.spark.links.servers import Servers
from waystation.spark.links.sockets import receive_all
from waystation.spark.options import Partition
from waystation.spark.reading.decoding import PADDING
from waystation.spark.reading.fetch_wire import (
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    MOVED,
    NOT_ALLOWED,
    OFFSET_COMMIT,
    OFFSET_OUT_OF_RANGE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    TOPIC_DELETED,
    VERSIONS,
    WRITE,
    Address,
    Fetch,
    FetchedPartition,
    Moved,
    Topic,
    read_authenticate,
    read_codes,
    read_coordinator,
    read_fetch,
    read_handshake,
    read_metadata,
    read_offsets,
    write_authenticate,
    write_commit,
    write_fetch,
    write_handshake,
    write_list_offsets,
    write_metadata,
)
from waystation.wire.kafka_types import write_string

T = TypeVar("T")

SESSION_SHARE = 0.8
"""Of the lifetime of a login, if it has one: after that a connection that is needed is opened again."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024

_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_CORRELATION = struct.Struct(">i")


class FetchConnection:
    """One socket to one broker, logged in: questions out, answers in, in the same order."""

    def __init__(self, servers: Servers, address: Address) -> None:
        self.address = address
        self._servers = servers
        self._last = 0
        self._waiting: list[tuple[int, int]] = []
        self._answered = False
        self._until = float("inf")
        self._socket = servers.open(address)
        try:
            self._log_in()
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self) -> None:
        terms = self._servers.login
        if terms is None:
            return
        login, began = terms.exchange(), time.monotonic()
        self.send(SASL_HANDSHAKE, write_handshake(terms.mechanism))
        error, offered = read_handshake(self.receive())
        if error:
            raise self._servers.refused(
                self.address, f"{terms.mechanism} is not offered; there is {', '.join(offered) or 'no login'}"
            )
        said, lifetime_ms = self._authenticate(login.first())
        if said:  # a challenge: of SCRAM, or of a broker that does not like a token and says why
            said, lifetime_ms = self._authenticate(login.answer(said))
        try:
            login.finish(said)
        except NotAuthenticated as error:
            raise self._servers.refused(self.address, str(error)) from None
        if lifetime_ms:
            self._until = began + lifetime_ms / 1000 * SESSION_SHARE

    def _authenticate(self, data: bytes) -> tuple[bytes, int]:
        self.send(SASL_AUTHENTICATE, write_authenticate(data))
        error, why, said, lifetime_ms = read_authenticate(self.receive())
        if error:
            raise self._servers.refused(self.address, why)
        return said, lifetime_ms

    @property
    def stale(self) -> bool:
        """Whether its login is about to run out, and nothing is under way."""
        return not self._waiting and time.monotonic() >= self._until

    @property
    def pending(self) -> int:
        """Questions whose answers were not taken yet."""
        return len(self._waiting)

    def send(self, api: int, body: bytes | bytearray) -> None:
        self._last = (self._last + 1) & 0x7FFFFFFF
        version = VERSIONS[api]
        name = b"waystation-spark"
        head = _HEAD.pack(api, version, self._last, len(name)) + name + (b"\0" if api == METADATA else b"")
        self._waiting.append((api, self._last))
        try:
            self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
        except (ssl.SSLError, ConnectionError) as error:
            if self._answered:
                raise
            raise self._unanswered(error) from None

    def receive(self) -> bytearray:
        """The body of the next answer, and PADDING bytes behind it."""
        try:
            answer = self._receive()
        except (ssl.SSLError, ConnectionError) as error:
            if self._answered:
                raise
            raise self._unanswered(error) from None
        self._answered = True
        return answer

    def _unanswered(self, error: OSError) -> Exception:
        """A broker that wants a login hangs up on Kafka clients without one. The native protocol, on the same port,
        says why."""
        try:
            NativeLink(self._servers, self.address, "spark").close()
        except (OSError, NotAuthenticated) as said:
            return said if isinstance(said, NotAuthenticated) else error
        return error

    def _receive(self) -> bytearray:
        api, wanted = self._waiting.pop(0)
        (size,) = _SIZE.unpack(self._take(bytearray(_SIZE.size)))
        if not _CORRELATION.size <= size <= MAX_ANSWER_BYTES:
            raise ConnectionError(f"an answer of {size} bytes is none of the Kafka protocol's")
        (correlation,) = _CORRELATION.unpack(self._take(bytearray(_CORRELATION.size)))
        if correlation != wanted:
            raise ConnectionError("an answer to something else came")
        body = bytearray(size - _CORRELATION.size + PADDING)
        self._take(memoryview(body)[: size - _CORRELATION.size])
        return body[1:] if api == METADATA else body  # the tagged fields of the answer's head, of which there are none

    def _take(self, into: bytearray | memoryview) -> bytearray | memoryview:
        receive_all(self._socket, into)
        return into

    def close(self) -> None:
        self._socket.close()


class Cluster:
    """The brokers, as seen from this process."""

    def __init__(self, servers: Servers, retry_s: float) -> None:
        self._servers = servers
        self._retry_s = retry_s
        self.retries = 0
        """Questions that had to be asked again."""
        self._connections: dict[Address, FetchConnection] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[Partition, int] = {}
        self._coordinators: dict[str, Address] = {}

    # -- what exists ------------------------------------------------------------------------------------------------

    def topics(self, names: Iterable[str] | None = None) -> dict[str, Topic]:
        """The topics of these names that exist; all of them without names."""
        body = write_metadata(names)
        return self._patiently(lambda: self._metadata(self._ask(self._any(), METADATA, body)))

    def may_write(self, topic: str) -> bool | None:
        """Whether this client may write to a topic; None: it is not told, or there is no such topic."""
        body = write_metadata([topic], operations=True)
        found = self._patiently(lambda: self._metadata(self._ask(self._any(), METADATA, body)))
        told = found[topic].operations if topic in found else None
        return None if told is None else bool(told & WRITE)

    def _metadata(self, answer: bytearray) -> dict[str, Topic]:
        brokers, topics = read_metadata(answer)
        self._brokers.update(brokers)
        for topic in topics.values():
            for index, leader in topic.leaders.items():
                self._leaders[topic.name, index] = leader
        return topics

    def _leader(self, partition: Partition) -> Address:
        """Where to ask for a partition; any broker knows that there is no such partition."""
        if partition not in self._leaders:
            self._metadata(self._ask(self._any(), METADATA, write_metadata([partition[0]])))
        address = self._brokers.get(self._leaders.get(partition, -1))
        return self._any() if address is None else address

    # -- where partitions begin and end -----------------------------------------------------------------------------

    def offsets(self, wanted: Mapping[Partition, int], committed: bool) -> dict[Partition, int]:
        """By partition: the offset at a time in ms, EARLIEST or LATEST; -1 where no record is that young.

        A partition that does not exist is not in the answer.
        """
        if not wanted:
            return {}
        return self._patiently(lambda: self._offsets(wanted, committed))

    def _offsets(self, wanted: Mapping[Partition, int], committed: bool) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for address, partitions in self._by_leader(wanted).items():
            body = write_list_offsets({one: wanted[one] for one in partitions}, committed)
            for partition, (error, offset) in read_offsets(self._ask(address, LIST_OFFSETS, body)).items():
                if error in TOPIC_DELETED:
                    continue
                _check(error, partition)
                found[partition] = offset
        return found

    # -- records ----------------------------------------------------------------------------------------------------

    def fetch(self, fetch: Fetch) -> dict[Partition, FetchedPartition]:
        """What there is; waits if there is nothing. Errors are in the answers."""
        return self._patiently(lambda: self._fetch(fetch))

    def _fetch(self, fetch: Fetch) -> dict[Partition, FetchedPartition]:
        self.drop_unanswered()
        groups = self._by_leader(fetch.positions)
        for address, partitions in groups.items():
            self._connection(address).send(FETCH, write_fetch(fetch, partitions))
        found: dict[Partition, FetchedPartition] = {}
        for address in groups:
            found.update(read_fetch(self._connection(address).receive()))
        for partition, answer in found.items():
            if answer.error and answer.error not in TOPIC_DELETED and answer.error != OFFSET_OUT_OF_RANGE:
                _check(answer.error, partition)
        return found

    def try_fetch(self, fetch: Fetch) -> dict[Partition, FetchedPartition]:
        """The same, asked once: for what one can do without."""
        try:
            return self._fetch(fetch)
        except (OSError, Moved):
            self.forget()
            raise

    def ahead(self, fetch: Fetch) -> Ahead:
        """Asks now; the answer is taken later."""
        return Ahead(self, fetch)

    # -- progress ---------------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Publishes a group's offsets from outside the group; the error codes by partition."""
        return self._patiently(lambda: self._commit(group, offsets))

    def _commit(self, group: str, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        if group not in self._coordinators:
            out = bytearray()
            write_string(out, group, False)
            out += b"\0"
            self._coordinators[group] = read_coordinator(self._ask(self._any(), FIND_COORDINATOR, out))
        answer = self._ask(self._coordinators[group], OFFSET_COMMIT, write_commit(group, offsets))
        codes = read_codes(answer)
        for partition, code in codes.items():
            if code in MOVED:
                _check(code, partition)
        return codes

    # -- asking -----------------------------------------------------------------------------------------------------

    def _ask(self, address: Address, api: int, body: bytes | bytearray) -> bytearray:
        self.drop_unanswered()
        connection = self._connection(address)
        connection.send(api, body)
        return connection.receive()

    def _connection(self, address: Address) -> FetchConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.stale:
            self._connections.pop(address).close()
            connection = None
        if connection is None:
            connection = self._connections[address] = FetchConnection(self._servers, address)
        return connection

    def _any(self) -> Address:
        """A broker that answers: one that we are connected to, else the first of the servers that can be reached."""
        for address in self._connections:
            return address
        refused: OSError | None = None
        for address in self._servers.addresses:
            try:
                self._connection(address)
                return address
            except OSError as error:
                refused = error
        raise refused or ConnectionError("no servers were given")

    def _by_leader(self, partitions: Iterable[Partition]) -> dict[Address, list[Partition]]:
        found: dict[Address, list[Partition]] = {}
        for partition in partitions:
            found.setdefault(self._leader(partition), []).append(partition)
        return found

    def _patiently(self, ask: Callable[[], T]) -> T:
        return patiently(ask, self._servers, self._retry_s, away=(OSError, Moved), forget=self._retry)

    def _retry(self) -> None:
        self.retries += 1
        self.forget()

    @property
    def name(self) -> str:
        return str(self._servers)

    @property
    def unseen(self) -> str:
        """What else may be the matter with a topic that is not there: whom it is hidden from is not told of it."""
        if self._servers.anonymous:
            return ""
        return (
            f", or {self._servers.whom} may not see it (`waystation acls add --user NAME --allow read --topic TOPIC`)"
        )

    def forget(self) -> None:
        """Drops all connections, and with them what was asked and not answered, and what was known of the brokers."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._brokers.clear()
        self._leaders.clear()
        self._coordinators.clear()

    def drop_unanswered(self) -> None:
        """Closes connections on which answers are still to come that nobody will take."""
        for address, connection in list(self._connections.items()):
            if connection.pending:
                connection.close()
                del self._connections[address]


class Ahead:
    """A fetch that was sent before its answer is needed, so that broker and reader work at the same time."""

    def __init__(self, cluster: Cluster, fetch: Fetch) -> None:
        self._cluster = cluster
        self._fetch = fetch
        self._connection: FetchConnection | None = None
        try:
            (address,) = cluster._by_leader(fetch.positions)
            connection = cluster._connection(address)
            connection.send(FETCH, write_fetch(fetch, fetch.positions))
            self._connection = connection
        except (OSError, Moved):
            cluster.forget()  # the patient way says what is wrong

    def take(self) -> dict[Partition, FetchedPartition]:
        if self._connection is not None:
            try:
                found = read_fetch(self._connection.receive())
                if all(
                    not a.error or a.error in TOPIC_DELETED or a.error == OFFSET_OUT_OF_RANGE for a in found.values()
                ):
                    return found
            except OSError:
                pass
            self._cluster.forget()
        return self._cluster.fetch(self._fetch)


_clusters: dict[tuple[int, Servers], Cluster] = {}
"""Spark uses a Python worker for task after task and rebuilds everything else: only a module keeps connections. By
process id, since workers are forked."""


def cluster_at(servers: Servers, retry_s: float) -> Cluster:
    """This process's connections to these servers."""
    key = (os.getpid(), servers)
    cluster = _clusters.get(key)
    if cluster is None:
        cluster = _clusters[key] = Cluster(servers, retry_s)
    cluster._retry_s = retry_s
    return cluster


def _check(error: int, partition: Partition) -> None:
    if not error:
        return
    what = f"topic {partition[0]!r} partition {partition[1]}"
    if error in TOPIC_DELETED:
        raise UnknownTopic(f"{what} does not exist")
    if error in MOVED:
        raise Moved(f"{what}: Kafka error {error}")
    if error in NOT_ALLOWED:
        raise NotAllowed(
            f"{what} may not be read by this user; an administrator allows it: `waystation acls add --user NAME --allow"
            f" read --topic {partition[0]}`"
        )
    raise WaystationError(f"{what}: the broker refused with Kafka error {error}")
