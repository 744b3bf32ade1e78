"""What hot paths count into: plain integers, added to once per batch, frame or call, never per message.

Protocols and the core add; whoever shows the figures reads, and nobody resets anything: a counter begins at zero with
its broker and only grows. The number of different names is bounded: calls and errors by what a protocol has (and by
`MOST_NAMES`, should one be able to invent some).

Constructed once per broker (`broker.meters`); on the loop's thread only. Knows nothing of the broker.
"""

from __future__ import annotations

from collections.abc import Iterator

from waystation.observe.busiest import Busiest
from waystation.observe.connections import PROTOCOLS
from waystation.observe.histogram import BYTES, COUNTS, SECONDS, Histogram
from waystation.observe.rates import Rates

MOST_NAMES = 200
"""Of calls, and of kinds of errors, of one protocol; what comes then is called `other`."""
MOST_LABELS = 100
"""Topics, and queues, that have figures of their own: the busiest ones."""
OTHER = "other"


class ProtocolMeter:
    """What comes and goes by one protocol."""

    __slots__ = (
        "acked", "calls", "delivered", "delivered_bytes", "errors", "name", "published", "published_bytes", "rejected",
        "released", "throttled",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.published = 0
        self.published_bytes = 0
        self.delivered = 0
        self.delivered_bytes = 0
        self.acked = 0
        self.rejected = 0
        self.released = 0
        self.throttled = 0  # times that a client had to wait for a quota
        self.calls: dict[str, Histogram] = {}
        self.errors: dict[str, int] = {}

    def call(self, name: str) -> Histogram:
        """The times of a call; who calls often keeps it."""
        found = self.calls.get(name)
        if found is None:
            if len(self.calls) >= MOST_NAMES:
                name = OTHER
            found = self.calls.setdefault(name, Histogram(SECONDS))
        return found

    def failed(self, kind: str) -> None:
        """A request was answered with an error."""
        if kind not in self.errors and len(self.errors) >= MOST_NAMES:
            kind = OTHER
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def settled(self, verdict: str, count: int) -> None:
        """A consumer's verdict (`ack`, `reject`, `kill`, `release`) on so many messages in flight to it."""
        if verdict == "ack":
            self.acked += count
        elif verdict == "release":
            self.released += count
        else:
            self.rejected += count

    @property
    def requests(self) -> int:
        return sum(histogram.count for histogram in self.calls.values())

    @property
    def failures(self) -> int:
        return sum(self.errors.values())


class CommitMeter:
    """What the group commit does: how long a sync takes, and how much it is shared."""

    __slots__ = ("appends", "bytes", "failures", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(SECONDS)
        self.appends = Histogram(COUNTS)
        self.bytes = Histogram(BYTES)
        self.failures = 0


class DeathMeter:
    """Messages that died in queues and shared subscriptions, by reason: `kept` for their target, or `dropped`."""

    __slots__ = ("dropped", "kept")

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.dropped: dict[str, int] = {}

    def add(self, reason: str, count: int, *, kept: bool) -> None:
        counts = self.kept if kept else self.dropped
        counts[reason] = counts.get(reason, 0) + count

    @property
    def total(self) -> int:
        return sum(self.kept.values()) + sum(self.dropped.values())


class LoginMeter:
    """Logins, by protocol."""

    __slots__ = ("failures", "successes")

    def __init__(self) -> None:
        self.successes: dict[str, int] = dict.fromkeys(PROTOCOLS, 0)
        self.failures: dict[str, int] = dict.fromkeys(PROTOCOLS, 0)

    def succeeded(self, protocol: str) -> None:
        self.successes[protocol] += 1

    def failed(self, protocol: str) -> None:
        self.failures[protocol] += 1


class ClusterMeter:
    """Of a node in a cluster, as the leader of partitions."""

    def __init__(self) -> None:
        self.led = 0  # partitions that it began to lead
        self.shrunk = 0  # in-sync sets of those that it led
        self.grown = 0


class Meters:
    """Everything that is counted."""

    def __init__(self) -> None:
        self.kafka = ProtocolMeter("kafka")
        self.native = ProtocolMeter("native")
        self.amqp = ProtocolMeter("amqp")
        self.http = ProtocolMeter("http")
        self.commit = CommitMeter()
        self.deaths = DeathMeter()
        self.logins = LoginMeter()
        self.cluster = ClusterMeter()
        self.dropped = 0  # offsets that live subscribers missed: they did not keep up
        self.loop_delay = Histogram(SECONDS)
        self.rates = Rates()
        self.topics = Busiest(MOST_LABELS, width=3)  # published, published bytes, delivered
        self.queues = Busiest(MOST_LABELS, width=4)  # put, delivered, acked, dead

    @property
    def protocols(self) -> Iterator[ProtocolMeter]:
        yield self.kafka
        yield self.native
        yield self.amqp
        yield self.http

    def of(self, protocol: str) -> ProtocolMeter:
        found: ProtocolMeter = getattr(self, protocol)
        return found
