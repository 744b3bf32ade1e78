"""`Access`: what a protocol's session holds of the broker, bound to a principal and a namespace.

Every verb asks whether the principal may (`security/permissions.py`), before it has any effect. For publishing there is
more, once for every protocol, before anything is stored:

- is there room: while a resource alarm or a limit of the namespace is on, a publish is refused (ResourceAlarm). A
  protocol that blocks its publishers instead says `waits=True` and asks `alarm`. What such a client has sent before
  it was blocked is stored;
- are enough replicas in sync, where durability is promised (`Partition.check_in_sync`);
- is the topic there, or to be created on first use.

What was taken is metered here, too, and waiting until it is durable goes through `durable` and `when_durable`.

What the broker does by itself (dead letters, delayed messages, staged commits of what was taken) does not come through
here: it was admitted when it was published. On the loop's thread only; the face costs one call per batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar
from uuid import UUID

from msgspec.structs import replace

from waystation.broker.access.messaging.groups import GroupAccess
from waystation.broker.access.messaging.inboxes import InboxAccess
from waystation.broker.access.messaging.open_consumers import Question, ask
from waystation.broker.access.messaging.reading import ReadingAccess
from waystation.broker.access.messaging.shares import ShareAccess
from waystation.broker.access.messaging.subscriptions import SubscriptionAccess
from waystation.broker.access.messaging.topics import TopicAccess
from waystation.broker.access.messaging.transactions import TransactionAccess
from waystation.broker.access.messaging.used import Used
from waystation.cluster.replica_placement import BY_DEFAULT, WantedReplicas
from waystation.errors import (
    DeletionDisabled,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    ResourceAlarm,
    WaystationError,
    without_frames,
)
from waystation.log.batches.batch import Header, read_header
from waystation.log.log import Appended
from waystation.message import Message, Run
from waystation.protocol import (
    EntriesAnswer,
    Found,
    Peeked,
    PublishAnswer,
    PutAnswer,
    QueueInfo,
    RedriveAnswer,
    RoutingInfo,
)
from waystation.queues.delayed import QUEUE as DELAYED
from waystation.queues.delayed import as_sent
from waystation.queues.feed import Deliver
from waystation.queues.inspection import PEEKED_BYTES, read_entries
from waystation.queues.settings import DEAD_LETTER_FIELDS, QueueSettings, declared, undecided, with_changes
from waystation.queues.shard.queue_feed import Getter, OnEnd, QueueFeed
from waystation.queues.shard.queue_reader import QueueReader
from waystation.queues.shard.shard import PutEach, PutEachOutcome, PutOutcome, PutResult
from waystation.routing.exchanges.exchange import ExchangeSettings
from waystation.routing.namespace_names import DEFAULT, NamespaceNames, prefix_of
from waystation.routing.resolving import ResolvedRoute
from waystation.security.permissions import Resource
from waystation.security.principals import Principal
from waystation.security.whereabouts import dead_letter_target_of, target_of
from waystation.topics.batch_publishing import Placed, append_batches, check_batches
from waystation.topics.dedup import DEDUP_MS, DEDUP_SETTING
from waystation.topics.messages import PublishReceipts
from waystation.topics.partitions.durability import Failures, Told
from waystation.topics.partitions.partition import Receipt
from waystation.transactions.transacting import Tx, check_not_own

if TYPE_CHECKING:
    from waystation.broker.access.administration.client_quotas import QuotaAccess
    from waystation.broker.access.administration.cluster import ClusterAccess
    from waystation.broker.access.administration.delegation import DelegationAccess
    from waystation.broker.access.administration.namespaces import NamespaceAccess
    from waystation.broker.access.administration.placement import PlacementAccess
    from waystation.broker.access.administration.policies import PolicyAccess
    from waystation.broker.access.administration.rules import RuleAccess
    from waystation.broker.access.administration.users import UserAccess
    from waystation.broker.access.administration.views import ViewAccess
    from waystation.broker.access.messaging.exchanges import ExchangeAccess
    from waystation.broker.access.messaging.queue_figures import QueueFigureAccess
    from waystation.broker.access.messaging.staged import StagedAccess
    from waystation.broker.access.messaging.stream_queues import StreamQueueAccess
    from waystation.broker.access.messaging.topic_queues import TopicQueueAccess
    from waystation.broker.broker import Broker
    from waystation.cluster.view import ClusterView
    from waystation.health.resource_alarms import ResourceAlarms
    from waystation.observe.meters import ProtocolMeter
    from waystation.routing.namespaces import Namespaces
    from waystation.topics.partitions.partition import Partition
    from waystation.topics.topics import Topic


T = TypeVar("T")


MOST_REMEMBERED = 1_000
"""Topics, queues and exchanges that a session remembers it may write to."""


_NEVER = (-1, -1)
_NOTHING: set[tuple[Resource, str]] = set()


class KnownQueue(NamedTuple):
    """A queue as it is now, to one who wants to use it."""

    settings: QueueSettings
    locked: bool  # it is exclusive to another connection


class RouteTable(Protocol):
    """Where messages go, for publishers that remember what they were told (`Access.resolve`)."""

    version: int
    """Another one: what is remembered may be wrong by now."""

    def route_all(
        self, exchange: str, routing_keys: Sequence[str], message: Message
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(queues, topics) of one message, where the answer of `resolve` depends on it."""


class Access:
    """Made by `Broker.access`."""

    __slots__ = (
        "_alarms", "_allowed", "_asked_at", "_broker", "_groups", "_namespaces", "_permissions", "_reading",
        "_shares", "_subscriptions", "_topics", "_transactions", "_used", "check_batch", "check_batch_here",
        "checked_batch", "client_id", "meter", "names", "namespace", "principal", "quotas", "waits",
    )  # fmt: skip

    def __init__(
        self, broker: Broker, principal: Principal, namespace: str, meter: ProtocolMeter, *, waits: bool = False
    ) -> None:
        self._broker = broker
        self._alarms: ResourceAlarms = broker.resource_alarms
        self._permissions = broker.permissions
        self.principal = principal
        self.namespace = namespace
        self.meter = meter
        self.waits = waits
        self.names = NamespaceNames(namespace)
        self._namespaces: Namespaces = broker.namespaces
        self.quotas = broker.quotas
        """Whether there are any (`on`): while there are none, nobody has to wait for one."""
        self.client_id = ""  # what the client calls itself; the protocol says so
        self._used: Used | None = None
        self._asked_at = _NEVER
        self._allowed: set[tuple[Resource, str]] = _NOTHING  # not changed: another one is made for the first
        # The check of a batch that `append` takes, as it is: it is called for each.
        self.check_batch = broker.publishing.check
        self.check_batch_here = broker.publishing.check_here
        self.checked_batch = broker.publishing.checked
        # Families of verbs that are asked for in a hurry; a session that does not use one does not have it.
        self._groups: GroupAccess | None = None
        self._reading: ReadingAccess | None = None
        self._shares: ShareAccess | None = None
        self._subscriptions: SubscriptionAccess | None = None
        self._topics: TopicAccess | None = None
        self._transactions: TransactionAccess | None = None

    @property
    def view(self) -> ClusterView:
        """Which nodes live and who leads what: nobody could be served without it, so nobody is asked. Of a topic that
        the principal does not see, it has to be told nothing."""
        return self._broker.view

    # -- may it, is there room --------------------------------------------------------------------------------------

    @property
    def alarm(self) -> str | None:
        """Why publishers of the namespace have to wait; None: they need not."""
        return self._alarms.reason(self.namespace)

    def admit_queue(self, queue: str) -> None:
        """Raises what a publish to the queue would be refused with before the queue is asked."""
        self._may_write("queue", queue)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of(queue), f"queue {queue!r}")

    def admit_topic(self, topic: str) -> None:
        self._may_write("topic", topic)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of_topic(topic), f"topic {topic!r}")

    def admit_exchange(self, exchange: str) -> None:
        self._may_write("exchange", exchange)
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of(exchange), f"exchange {exchange!r}")

    def _may_write(self, resource: Resource, name: str) -> None:
        """Raises if the principal may not. A publisher that was allowed is asked about again when rules, users or
        namespaces have changed: it asks for every batch, and looking through rules takes microseconds."""
        now = (self._permissions.version, self._namespaces.version)
        if now == self._asked_at and (resource, name) in self._allowed:
            return
        self._permissions.check(self.principal, "write", resource, name)
        if now != self._asked_at or len(self._allowed) >= MOST_REMEMBERED:
            self._asked_at = now
            self._allowed = set()
        self._allowed.add((resource, name))

    def check_key(self, way: Literal["write", "read"], exchange: str, key: str) -> None:
        """Raises NotAllowed where a topic permission of the user does not let it use this routing key."""
        broker = self._broker
        if not broker.topic_permissions or not self._permissions.enforced:
            return
        found = broker.routing.find(exchange)
        if found is None or found.settings.kind != "topic" or self._permissions.is_superuser(self.principal):
            return
        namespace, local = broker.namespaces.of(exchange), broker.namespaces.local(exchange)
        if not broker.topic_permissions.allows(self.principal.name, namespace, local, way, key):
            self._permissions.tell_refusal(self.principal, way, "exchange", exchange)
            raise NotAllowed(
                f"{self.principal} may not {way} with routing key {key[:255]!r} in exchange {local!r}", "exchange"
            )

    def admit_default(self, key: str) -> bool:
        """For one who publishes to the default exchange of the namespace: raises unless it may write to that exchange,
        or to what the key names. Returns whether that is a queue."""
        broker, permissions = self._broker, self._permissions
        queue, topic = self.names.full(key), self.names.topic(key)
        there = queue in broker.queues
        namespace = broker.namespaces.of(queue)
        if not permissions.allows(self.principal, "write", "exchange", prefix_of(namespace)):
            to_topic = not there and topic in broker.topics
            if not (to_topic and permissions.allows(self.principal, "write", "topic", topic)):
                # In the same words whatever there is: a refusal does not tell that the key names a topic.
                permissions.check(self.principal, "write", "queue", queue)
                if to_topic:
                    permissions.check(self.principal, "write", "topic", topic)
        if self._alarms.on and not self.waits:
            self._check_room(namespace, f"queue {queue!r}")
        return there

    def _check_room(self, namespace: str, what: str) -> None:
        reason = self._alarms.reason(namespace)
        if reason is not None:
            raise ResourceAlarm(f"{what} accepts no messages now: {reason}. Publish again later")

    async def _changing(self, operation: str, resource: str, name: str, work: Awaitable[T], detail: str = "") -> T:
        """Awaits a change, and notes in the audit log how it ended."""
        return await self._broker.audit.change(self.principal, operation, resource, name, work, detail)

    def sees_queue(self, queue: str) -> bool:
        """Whether the principal may see it, if it is there; it is not refused anything by being asked."""
        return self._sees("queue", queue)

    def _sees(self, resource: Resource, name: str) -> bool:
        """Lists leave out what the principal may not see."""
        return self._permissions.allows(self.principal, "describe", resource, name)

    def told(self, error: WaystationError) -> str:
        """An error's text for the client: of what is not there, with the names that are nearly it and that the
        principal may see."""
        if not isinstance(error, NotFound) or not error.kind:
            return str(error)
        from waystation.broker.access.near_names import nearly

        return f"{error}{nearly(self._broker, self.principal, error)}"

    # -- queues -----------------------------------------------------------------------------------------------------

    def put(self, queue: str, messages: Sequence[Message]) -> PutResult:
        """Messages to a queue; they are durable when the receipt is."""
        self.admit_queue(queue)
        result = self._broker.queues.put(queue, messages)
        self.count(result.count, result.bytes)
        return result

    def put_several(self, puts: Sequence[tuple[str, Sequence[Message]]]) -> list[PutOutcome]:
        """Puts to several queues that came together, and what became of each, in order; one that is refused harms no
        other. What a full queue refuses is no dead letter yet: `put` it again, unless it waits for room."""
        admitted, refused = _admitted(puts, self.admit_queue)
        if not admitted:
            return list(refused.values())
        outcomes: dict[int, PutOutcome] = {**refused}
        for step in self._broker.queues.put_several([puts[index] for index in admitted]):
            for at, outcome in step.items():
                outcomes[admitted[at]] = outcome
                if isinstance(outcome, PutResult):
                    self.count(outcome.count, outcome.bytes)
        return [outcomes[index] for index in range(len(puts))]

    async def put_durable(self, queue: str, messages: Sequence[Message], *, wait_ms: int = 0) -> PutAnswer:
        """The same, and waits: for room in a full queue, for so long, and until they are durable."""
        self.admit_queue(queue)
        result = await self._broker.queues.put_when_room(queue, messages, wait_ms=wait_ms)
        self.count(result.count, result.bytes)  # as `put` does: who asks for a quota meanwhile is not to find it unused
        await self.durable(result.receipt)
        return PutAnswer(result.first, result.count, result.duplicates)

    async def declare_queue(
        self,
        queue: str,
        settings: QueueSettings | None = None,
        *,
        passive: bool = False,
        alter: bool = False,
        only: Collection[str] | None = None,
        owner: str | None = None,
    ) -> QueueInfo:
        """A queue of this name, created if it is not there (`passive`: it has to be); durable when this returns.
        `alter`: settings that differ are changed, those in `only` (None: all of them)."""
        check = self._permissions.check
        check(self.principal, "describe" if passive and not alter else "create", "queue", queue)
        queues = self._broker.queues
        if settings is not None and not (passive and not alter):
            target = self._dead_letters_said(queue, settings, only if alter else None)
            if target is not None:
                # What is in the queue can be had there, too.
                check(self.principal, "read", "queue", queue)
                check(self.principal, "write", *target)
        there = passive or queues.known(queue) is not None
        work = queues.declare(queue, settings, passive=passive, alter=alter, only=only, owner=owner)
        if alter or not there:
            return await self._changing("alter" if there else "create", "queue", queue, work)
        return await work

    def _dead_letters_said(
        self, queue: str, settings: QueueSettings, only: Collection[str] | None
    ) -> tuple[Resource, str] | None:
        """Where dead letters of a queue will go by what is said of them; None: nothing is. Who says a routing key alone
        says so of the exchange that is declared already, or that a policy names."""
        queues = self._broker.queues
        known = queues.known(queue)
        wanted = undecided(settings)
        if only is not None and known is not None:
            if not DEAD_LETTER_FIELDS.intersection(only):
                return None
            wanted = with_changes(declared(known[1].settings), settings, only)
        if wanted.dead_letter_key is not None:
            wanted = queues.effective(queue, wanted)
        return _dead_letters_of(wanted) if wanted.keeps_dead else None

    async def delete_queue(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Returns how many messages were deleted with it."""
        self._permissions.check(self.principal, "delete", "queue", queue)
        work = self._broker.queues.delete(queue, if_empty=if_empty, if_unused=if_unused)
        return await self._changing("delete", "queue", queue, work)

    async def purge_queue(self, queue: str) -> int:
        """Deletes what is not in flight; returns how many messages that were."""
        self._permissions.check(self.principal, "read", "queue", queue)
        return await self._changing("purge", "queue", queue, self._broker.queues.purge(queue))

    def describe_queue(self, queue: str) -> QueueInfo:
        self._permissions.check(self.principal, "describe", "queue", queue)
        return self._broker.queues.describe(queue)

    def list_queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[QueueInfo]:
        """Those that the principal may see, in the order of their names, from behind `after` on. Fewer than `limit`:
        there are no more."""
        return self._broker.queues.list(prefix, after, limit, lambda name: self._sees("queue", name))

    def peek(
        self, queue: str, count: int, after: int = -1, state: str = "any", max_bytes: int = PEEKED_BYTES
    ) -> list[Peeked]:
        """Messages as they are, oldest first: as many as have `max_bytes`, or one."""
        self._permissions.check(self.principal, "read", "queue", queue)
        found = self._broker.queues.peek(queue, count, after, state, max_bytes)
        self.count_shown(len(found), sum(len(one.delivered.message.payload) for one in found))
        return found

    def find_queued(self, message_id: str, queue: str | None = None) -> Found | None:
        """A message of a queue by its id: its own, or QUEUE#TAG. If no queue is named, also one that is delayed to a
        topic."""
        if queue is None and self.principal.within:
            self._permissions.check_under(self.principal, "read", "queue", self.names.prefix)
        else:
            self._permissions.check(self.principal, "read", "queue", queue or "*")
        if queue is not None:
            return self._broker.queues.find(message_id, queue)
        names = self._within
        found = self._broker.queues.find(message_id, None, names.prefix)
        if found is None and names.prefix:  # by its place, as those inside say it; or it is delayed to a topic
            found = self._broker.queues.find(names.full(message_id), None, names.prefix)
            if found is None and DELAYED in self._broker.queues:
                found = self._broker.queues.find(message_id, DELAYED)
        sent = None if found is None else as_sent(found)
        return sent if sent is not None and self._reaches(sent.place) else None

    def _reaches(self, place: str) -> bool:
        """Whether what was found there is where the principal is, which was asked about as a whole."""
        kind, _, name = place.partition(":")
        return self._holds_topic(name) if kind == "topic" else name.startswith(self._within.prefix)

    def _holds_topic(self, topic: str) -> bool:
        """Whether a topic is where the principal is. The names of those in `shop.eu` begin as those in `shop` do."""
        within = self.principal.within
        return not within or self._namespaces.of_topic(topic) == within

    async def cancel(self, queue: str, message_id: str) -> bool:
        """Deletes a message that is not in flight; False if there is none."""
        self._permissions.check(self.principal, "read", "queue", queue)
        return await self._broker.queues.cancel(queue, message_id)

    async def redrive(
        self,
        queue: str,
        *,
        to: str | None = None,
        filter: str | None = None,
        rate: float = 0.0,
        limit: int = 0,
        dry_run: bool = False,
        message_ids: Sequence[str] = (),
        progress: Callable[[RedriveAnswer], None] | None = None,
    ) -> RedriveAnswer:
        """Moves dead letters back to where they came from, as far as the principal may send messages there, or to `to`.
        `progress` is called between two transactions, and ends it by raising."""
        from waystation.admin.sight import PrincipalSight

        self._permissions.check(self.principal, "read", "queue", queue)
        if to is not None:
            self._permissions.check(self.principal, "write", *dead_letter_target_of(to))
        return await self._broker.queues.redrive(
            queue,
            to=to,
            filter=filter,
            rate=rate,
            limit=limit,
            dry_run=dry_run,
            message_ids=message_ids,
            progress=progress,
            may_go_to=PrincipalSight(self._permissions, self.principal, self._broker.world.clock).may_redrive_to,
        )

    @property
    def _within(self) -> NamespaceNames:
        """With the prefixes of all that the principal can reach."""
        return NamespaceNames(self.principal.within or DEFAULT)

    def check_consume(self, queue: str) -> None:
        """Raises if the principal may not consume from the queue: for who puts something into it first."""
        self._permissions.check(self.principal, "read", "queue", queue)

    def consume(
        self,
        queue: str,
        consumer: str,
        deliver: Deliver,
        *,
        on_end: OnEnd,
        prefetch: int = 0,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        exclusive: bool = False,
        owner: str | None = None,
        priority: int = 0,
    ) -> QueueFeed:
        """A consumer of the queue; it gets messages with its first credit."""
        questions = (Question("read", "queue", queue),)
        ask(self._permissions, self.principal, questions[0])
        feed = self._broker.queues.open_feed(
            queue,
            consumer,
            deliver,
            on_end=on_end,
            prefetch=prefetch,
            visibility_timeout_ms=visibility_timeout_ms,
            auto_ack=auto_ack,
            exclusive=exclusive,
            owner=owner,
            priority=priority,
        )
        self._broker.open_consumers.add(feed, self.principal, questions)
        return feed

    def getter(
        self,
        queue: str,
        owner: str,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
        *,
        silent: bool = False,
    ) -> Getter:
        """A consumer that asks for messages. `silent`: it is no consumer to anybody else, and does not wait."""
        questions = (Question("read", "queue", queue),)
        ask(self._permissions, self.principal, questions[0])
        getter = self._broker.queues.getter(queue, owner, visibility_timeout_ms, auto_ack, silent=silent)
        self._broker.open_consumers.add(getter, self.principal, questions)
        return getter

    def open_reader(self, queue: str, consumer: str, *, on_end: OnEnd, owner: str | None = None) -> QueueReader:
        """Who reads the queue alone and by entry numbers."""
        questions = (Question("read", "queue", queue),)
        ask(self._permissions, self.principal, questions[0])
        reader = self._broker.queues.open_reader(queue, consumer, on_end=on_end, owner=owner)
        self._broker.open_consumers.add(reader, self.principal, questions)
        return reader

    def read_entries(self, queue: str, runs: Sequence[Run], count: int, max_bytes: int) -> EntriesAnswer:
        """The messages of these runs that are there: `count`, or as many as have `max_bytes`, or one. Metered."""
        self._permissions.check(self.principal, "read", "queue", queue)
        answer = read_entries(*self._broker.queues.of_users(queue), runs, count, max_bytes)
        self.count_delivered(len(answer.messages), sum(len(delivered.message.payload) for delivered in answer.messages))
        return answer

    def queue_exists(self, queue: str) -> bool:
        self._permissions.check(self.principal, "describe", "queue", queue)
        return queue in self._broker.queues

    def release_owner(self, owner: str) -> None:
        """A session ends, and its exclusive queues with it. Not asked: it may always end."""
        self._broker.queues.release_owner(owner)

    # -- topics -----------------------------------------------------------------------------------------------------

    async def topic_to_publish(self, topic: str, *, deduplicates: bool = False) -> Topic:
        """The topic, for one who is about to publish to it; created if it is not there and topics are created on first
        use, but not for what would be refused. `deduplicates`: then with a window in which it knows the ids of
        messages."""
        self.admit_topic(topic)
        settings = {DEDUP_SETTING: str(DEDUP_MS)} if deduplicates else None
        if topic not in self._broker.topics:
            self.topics.ask_create(topic)
            self.mutate(self._broker.settings.integer("num.partitions"))
            return await self._changing("create", "topic", topic, self._broker.messages.ensure(topic, settings))
        return await self._broker.messages.ensure(topic, settings)

    async def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        settings: Mapping[str, str] | None = None,
        replicas: WantedReplicas = BY_DEFAULT,
    ) -> Topic:
        """A new topic; `partitions` are `num.partitions` where they are not said."""
        self.topics.ask_create(topic)
        count = self._broker.settings.integer("num.partitions") if partitions is None else partitions
        if self.quotas.on:  # what cannot be is not waited for
            self._broker.topics.check_new(topic, count, settings or {}, replicas)
        self.mutate(count)
        work = self._broker.topics.create(topic, count, settings, replicas)
        return await self._changing("create", "topic", topic, work, f"{count} partitions")

    async def delete_topic(self, topic: str) -> None:
        """With all that is in it; DeletionDisabled where topics are not to be deleted."""
        self._permissions.check(self.principal, "delete", "topic", topic)
        if not self._broker.settings.flag("delete.topic.enable"):
            raise DeletionDisabled(f"topic {topic!r} cannot be deleted: the broker has delete.topic.enable=false")
        there = self._broker.topics.find(topic)
        self.mutate(0 if there is None else len(there.partitions))
        await self._changing("delete", "topic", topic, self._broker.topics.delete(topic))

    async def find_stored(self, message_id: str, topic: str | None = None) -> Found | None:
        """A message of a topic by its place, TOPIC-PARTITION@OFFSET, or by its own id: in a topic, or in all of them.
        None: there is none. NotFound: there was too much to search."""
        if topic is None and self.principal.within:
            self._permissions.check_under(self.principal, "read", "topic", self.names.topic_prefix, beneath=False)
        else:
            self._permissions.check(self.principal, "read", "topic", topic or "*")
        if topic is not None:
            return await self._broker.messages.find(message_id, topic)
        names = self._within
        if names.topic_prefix:  # by its place, as those inside say it
            found = await self._broker.messages.find(names.topic(message_id), None, self._holds_topic)
            if found is not None:
                return found
        return await self._broker.messages.find(message_id, None, self._holds_topic)

    def publish(
        self, topic: str, messages: Sequence[Message], partition: int | None = None, *, promised: bool = True
    ) -> PublishReceipts:
        """Messages to a topic; they are durable when the receipts are. `promised`: somebody will be told so."""
        self.admit_topic(topic)
        published = self._broker.messages.publish(topic, messages, partition, promised=promised)
        self.count(len(messages) - len(published.duplicates), published.bytes)
        return published

    async def publish_batches(self, topic: str, placed: Sequence[Placed]) -> PublishReceipts:
        """Record batches that the client has built, each for its partition."""
        target = await self.topic_to_publish(topic)
        checked = await check_batches(self._broker.publishing, target, placed)
        published = append_batches(self._broker.publishing, checked)
        self.count(sum(header.record_count for _, _, header in checked), sum(len(batch) for _, batch, _ in checked))
        return published

    def partition(self, topic: str | UUID, index: int) -> Partition:
        """By the name or id of its topic, for who is about to `append` to it."""
        if isinstance(topic, str):
            self._permissions.check(self.principal, "write", "topic", topic)
            return self._broker.topics.partition(topic, index)
        partition = self._broker.topics.partition(topic, index)
        self._permissions.check(self.principal, "write", "topic", partition.topic.row.name)
        return partition

    def append(
        self, partition: Partition, batch: bytearray | memoryview, header: Header, *, promised: bool
    ) -> Appended:
        """One record batch that `check_batch` has passed."""
        topic = partition.topic
        self.admit_topic(topic.name)
        if promised:
            partition.check_in_sync()
        appended = self._broker.publishing.append(partition, batch, header)
        if not appended.duplicate:
            self.count(appended.last_offset - appended.base_offset + 1, len(batch))
        return appended

    # -- exchanges --------------------------------------------------------------------------------------------------

    async def publish_through(
        self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False
    ) -> PublishAnswer:
        """Messages to whatever the exchange routes them to; durable there when this returns."""
        if exchange:
            self.admit_exchange(exchange)
            self.check_key("write", exchange, routing_key)
        else:
            queue_is_there = self.admit_default(routing_key)
            routing_key = self.names.full(routing_key) if queue_is_there else self.names.topic(routing_key)
        answer = await self._broker.routing.publish(exchange, routing_key, messages, mandatory=mandatory)
        self.count(len(messages), sum(len(message.payload) for message in messages))
        return self._without_hidden(answer)

    def _without_hidden(self, answer: PublishAnswer) -> PublishAnswer:
        """Who may write to an exchange need not see what it leads to, and is not told the names of that then."""
        queues = [queue for queue in answer.queues if self._sees("queue", queue)]
        places = [place for place in answer.places if self._sees("topic", place[0])]
        if (len(queues), len(places)) == (len(answer.queues), len(answer.places)):
            return answer
        return replace(answer, queues=queues, places=places)

    async def declare_exchange(
        self,
        exchange: str,
        kind: str = "direct",
        alternate: str | None = None,
        passive: bool = False,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """An exchange of this name, created if it is not there (`passive`: it has to be); if it is `durable`, the
        catalog has it when this returns."""
        self._permissions.check(self.principal, "describe" if passive else "create", "exchange", exchange)
        if alternate is not None and not passive:  # as RabbitMQ: what comes to the exchange can be had there, too
            self._permissions.check(self.principal, "read", "exchange", exchange)
            self._permissions.check(self.principal, "write", "exchange", alternate)
        work = self._broker.routing.declare_exchange(
            exchange,
            kind,
            alternate,
            passive,
            durable=durable,
            auto_delete=auto_delete,
            internal=internal,
            arguments=arguments,
        )
        there = passive or self._broker.routing.find(exchange) is not None
        await (work if there else self._changing("create", "exchange", exchange, work, kind))

    async def delete_exchange(self, exchange: str, if_unused: bool = False) -> None:
        self._permissions.check(self.principal, "delete", "exchange", exchange)
        work = self._broker.routing.delete_exchange(exchange, if_unused=if_unused)
        await self._changing("delete", "exchange", exchange, work)

    async def bind(self, exchange: str, target: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        """Messages of the exchange that match go to the target from now on."""
        self._ask_binding(exchange, target)
        self.check_key("read", exchange, key)
        resource, name = target_of(target)
        if resource == "topic":
            self.topics.ask_use(name)
        await self._broker.routing.bind(exchange, target, key, arguments)

    async def unbind(self, exchange: str, target: str, key: str = "", arguments: dict[str, Any] | None = None) -> bool:
        """False if there is no such binding."""
        self._ask_binding(exchange, target)
        return await self._broker.routing.unbind(exchange, target, key, arguments)

    def _ask_binding(self, exchange: str, target: str) -> None:
        """As RabbitMQ: what is in the exchange is read, and the target is written to."""
        self._permissions.check(self.principal, "read", "exchange", exchange)
        self._permissions.check(self.principal, "write", *target_of(target))

    def describe_exchange(self, exchange: str) -> ExchangeSettings:
        self._permissions.check(self.principal, "describe", "exchange", exchange)
        return self._broker.routing.describe(exchange)

    def list_routing(self) -> RoutingInfo:
        """The exchanges that the principal may see, and those of their bindings whose target it may see, too."""
        found = self._broker.routing.listing()
        seen = {name for name, _, _ in found.exchanges if self._sees("exchange", name)}
        return RoutingInfo(
            [exchange for exchange in found.exchanges if exchange[0] in seen],
            [binding for binding in found.bindings if binding[0] in seen and self._sees(*target_of(binding[1]))],
        )

    def route(self, exchange: str, message: Message, routing_key: str = "") -> list[str]:
        """Where the message would go, of what the principal may see; nothing is sent."""
        self._permissions.check(self.principal, "describe", "exchange", exchange)
        found = self._broker.routing.route(exchange, message, routing_key)
        return [target for target in found if self._sees(*target_of(target))]

    # -- virtual hosts: what AMQP and RabbitMQ's management API ask for ------------------------------------------------

    def holds(self, name: str) -> bool:
        """Whether a queue or exchange of this name, as those in the namespace say it, is in the namespace: `/` has no
        prefix that keeps what is in others apart. About names alone, whatever there is."""
        return self._broker.namespaces.holds(self.names, name)

    def namespace_of(self, name: str) -> str:
        """Of a queue or exchange, by its full name."""
        return self._broker.namespaces.of(name)

    def namespace_of_topic(self, topic: str) -> str:
        return self._broker.namespaces.of_topic(topic)

    def look_up_queue(self, queue: str, owner: str | None = None) -> KnownQueue:
        """A queue that is not the broker's own, and whether `owner` may use it. NotFound, NotAllowed."""
        self._permissions.check(self.principal, "describe", "queue", queue)
        _, found = self._broker.queues.of_users(queue)
        locked = found.settings.exclusive and found.owner is not None and found.owner != owner
        return KnownQueue(found.settings, locked)

    def resolve(self, exchange: str, routing_key: str) -> ResolvedRoute:
        """Where messages with this key go, for one who is about to publish: NotFound for an unknown exchange,
        NotAllowed for an internal one. To be asked again when the version of `route_table` is another."""
        if exchange:
            self.admit_exchange(exchange)
            self.check_key("write", exchange, routing_key)
        else:
            self.admit_default(routing_key)
        return self._broker.routing.resolve(exchange, routing_key)

    @property
    def route_table(self) -> RouteTable:
        return self._broker.routing

    async def durable(self, *receipts: Receipt | None) -> None:
        """Returns when all are durable; raises StorageFailed if one never will be."""
        await self._broker.durability.wait(*receipts)

    def when_durable(self, receipts: Sequence[Receipt | None], told: Told) -> None:
        """Calls `told` once: with None when all are durable, with the failure of the first that never will be."""
        self._broker.durability.when_durable(receipts, told)

    def when_each_durable(self, receipts: Sequence[Receipt], told: Callable[[Failures], None]) -> None:
        """Calls `told` once, when every receipt is durable or never will be: with the failures of those."""
        self._broker.durability.when_each_durable(receipts, told)

    def durable_soon(self) -> None:
        """Something was written that has no answer, such as an AMQP client's ack: it is durable in a moment all the
        same."""
        self._broker.durability.soon()

    def subscribe_alarms(self, callback: Callable[[str, str | None], None]) -> Callable[[], None]:
        """`callback` gets a namespace and why its publishers have to wait (None: they need not any more), whenever that
        changes: for protocols that block publishers. Returns how to end it."""
        return self._alarms.subscribe(callback)

    # -- by protocols that meter what they publish themselves (`count`), since it goes to several or in other bytes ----

    def put_each(self, queue: str, messages: Sequence[Message]) -> PutEach:
        """Each message by itself: those that the queue refuses are told, the others are taken."""
        self.admit_queue(queue)
        return self._broker.queues.put_each(queue, messages)

    def put_same(self, queues: Sequence[str], messages: Sequence[Message]) -> Iterator[tuple[Sequence[str], Receipt]]:
        """The same messages to several queues, stored once for each shard."""
        for queue in queues:
            self.admit_queue(queue)
        return self._broker.queues.put_same(queues, messages)

    def publish_each(
        self, topic: str, messages: Sequence[Message], partition: int | None = None, *, promised: bool
    ) -> PublishReceipts:
        """The topic's share of what was routed."""
        self.admit_topic(topic)
        return self._broker.messages.publish(topic, messages, partition, promised=promised)

    # -- by protocols that have asked `resolve` where messages go, in the same turn -----------------------------------

    def put_routed(self, queue: str, messages: Sequence[Message]) -> PutEach:
        """`put_each`, of what an exchange has routed."""
        self._check_routed(queue)
        return self._broker.queues.put_each(queue, messages)

    def put_several_routed(
        self, puts: Sequence[tuple[str, Sequence[Message]]]
    ) -> Iterator[Mapping[int, PutEachOutcome]]:
        """`put_routed` to several queues, step by step: stored together for each shard. Gives after each step what
        became of which, by index; one that is refused harms no other."""
        admitted, refused = _admitted(puts, self._check_routed)
        if refused:
            yield refused
        for step in self._broker.queues.put_each_several([puts[index] for index in admitted]):
            yield {admitted[at]: outcome for at, outcome in step.items()}

    def put_same_routed(
        self, queues: Sequence[str], messages: Sequence[Message]
    ) -> Iterator[tuple[Sequence[str], Receipt]]:
        """`put_same`, of what an exchange has routed."""
        for queue in queues:
            self._check_routed(queue)
        return self._broker.queues.put_same(queues, messages)

    def publish_routed(self, topic: str, messages: Sequence[Message], *, promised: bool) -> PublishReceipts:
        """`publish_each`, of what an exchange has routed."""
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of_topic(topic), f"topic {topic!r}")
        return self._broker.messages.publish(topic, messages, None, promised=promised)

    async def begin_routed(self, transactional_id: str, timeout_ms: int = 60_000) -> Tx:
        """A transaction under a name of the broker's own, for what was routed and asked about before."""
        return await self._broker.transacting.begin(transactional_id, timeout_ms)

    def _check_routed(self, queue: str) -> None:
        if self._alarms.on and not self.waits:
            self._check_room(self._broker.namespaces.of(queue), f"queue {queue!r}")

    def count(self, messages: int, size: int) -> None:
        """So much was published."""
        self.meter.published += messages
        self.meter.published_bytes += size
        if self.quotas.on:
            self._use().publish(messages, size)

    def count_delivered(self, messages: int, size: int) -> None:
        """So much was given to a consumer or reader."""
        self.meter.delivered += messages
        self.meter.delivered_bytes += size
        if self.quotas.on:
            self._use().consume(messages, size)

    def count_shown(self, messages: int, size: int) -> None:
        """So much was read by somebody who does not consume it: no delivery, but quotas limit it like one."""
        if self.quotas.on:
            self._use().consume(messages, size)

    def count_batches(self, placed: Sequence[Placed]) -> None:
        """These record batches were published, which were checked."""
        self.count(sum(read_header(batch).record_count for _, batch in placed), sum(len(batch) for _, batch in placed))

    # -- quotas -----------------------------------------------------------------------------------------------------

    def _use(self) -> Used:
        if self._used is None or not self._used.is_of(self.client_id):
            self._used = Used(self.quotas, self.principal, self.client_id, self.namespace)
        return self._used

    def worked(self, seconds: float) -> None:
        """The broker has worked for this session for so long."""
        if self.quotas.on:
            self._use().work(seconds)

    def publish_wait_s(self) -> float:
        """For how long the session has to wait since it has published too much; 0.0: it need not."""
        return self._use().publish_wait_s() if self.quotas.on else 0.0

    def consume_wait_s(self) -> float:
        """The same of one who has read too much."""
        return self._use().consume_wait_s() if self.quotas.on else 0.0

    def request_wait_s(self) -> float:
        """The same of one who has asked for too much work."""
        return self._use().request_wait_s() if self.quotas.on else 0.0

    def wait_s(self) -> float:
        """The longest of these."""
        return max(self.publish_wait_s(), self.consume_wait_s()) if self.quotas.on else 0.0

    def check_publish_quota(self, most_s: float) -> None:
        """For a protocol that does not keep its publishers waiting for longer than that: QuotaExceeded."""
        self._check_wait("publishes", self.publish_wait_s(), most_s)

    def check_consume_quota(self, most_s: float) -> None:
        """The same of those who read."""
        self._check_wait("consumes", self.consume_wait_s(), most_s)

    def _check_wait(self, does: str, wait_s: float, most_s: float) -> None:
        if wait_s > most_s:
            raise QuotaExceeded(
                f"{self.principal.name} {does} faster than its quota allows; try again in {wait_s:.0f} s", wait_s
            )

    def mutate(self, partitions: int) -> None:
        """So many partitions are about to be created or deleted: QuotaExceeded if that were too fast."""
        if self.quotas.on:
            self._use().mutate(partitions)

    # -- transactions -----------------------------------------------------------------------------------------------

    async def begin(self, transactional_id: str, timeout_ms: int = 60_000) -> Tx:
        """A transaction; what is published in it is asked about as it is published, and metered by who publishes."""
        self._permissions.check(self.principal, "write", "transactional-id", transactional_id)
        return await self._broker.transacting.begin(transactional_id, timeout_ms, gate=self)

    async def begin_named(self, transactional_id: str, timeout_ms: int) -> Tx:
        """The same under a name that a client chose, which is none of the broker's own."""
        check_not_own(transactional_id)
        return await self.begin(transactional_id, timeout_ms)

    # -- families of verbs ------------------------------------------------------------------------------------------

    # Constructed for who asks: ten thousand idle connections would hold as many of each, 56 bytes a
    # piece. Those that a start does not need are loaded by then, too.

    @property
    def cluster(self) -> ClusterAccess:
        from waystation.broker.access.administration.cluster import ClusterAccess

        return ClusterAccess(self._broker, self.principal)

    @property
    def exchanges(self) -> ExchangeAccess:
        from waystation.broker.access.messaging.exchanges import ExchangeAccess

        return ExchangeAccess(self._broker, self.principal)

    @property
    def groups(self) -> GroupAccess:
        if self._groups is None:
            self._groups = GroupAccess(self._broker, self.principal)
        return self._groups

    @property
    def inboxes(self) -> InboxAccess:
        return InboxAccess(self._broker, self.principal)

    @property
    def namespaces(self) -> NamespaceAccess:
        from waystation.broker.access.administration.namespaces import NamespaceAccess

        return NamespaceAccess(self._broker, self.principal)

    @property
    def placement(self) -> PlacementAccess:
        from waystation.broker.access.administration.placement import PlacementAccess

        return PlacementAccess(self._broker, self.principal)

    @property
    def policies(self) -> PolicyAccess:
        from waystation.broker.access.administration.policies import PolicyAccess

        return PolicyAccess(self._broker, self.principal)

    @property
    def queue_figures(self) -> QueueFigureAccess:
        from waystation.broker.access.messaging.queue_figures import QueueFigureAccess

        return QueueFigureAccess(self._broker, self.principal)

    @property
    def client_quotas(self) -> QuotaAccess:
        from waystation.broker.access.administration.client_quotas import QuotaAccess

        return QuotaAccess(self._broker, self.principal)

    @property
    def reading(self) -> ReadingAccess:
        if self._reading is None:
            self._reading = ReadingAccess(
                self._broker, self.principal, self.meter, self.count_delivered, self.count_shown
            )
        return self._reading

    @property
    def rules(self) -> RuleAccess:
        from waystation.broker.access.administration.rules import RuleAccess

        return RuleAccess(self._broker, self.principal)

    @property
    def shares(self) -> ShareAccess:
        if self._shares is None:
            self._shares = ShareAccess(self._broker, self.principal)
        return self._shares

    @property
    def staged(self) -> StagedAccess:
        from waystation.broker.access.messaging.staged import StagedAccess

        return StagedAccess(self._broker, self.principal)

    @property
    def stream_queues(self) -> StreamQueueAccess:
        from waystation.broker.access.messaging.stream_queues import StreamQueueAccess

        return StreamQueueAccess(self._broker, self.principal)

    @property
    def subscriptions(self) -> SubscriptionAccess:
        if self._subscriptions is None:
            self._subscriptions = SubscriptionAccess(self._broker, self.principal)
        return self._subscriptions

    @property
    def topic_queues(self) -> TopicQueueAccess:
        from waystation.broker.access.messaging.topic_queues import TopicQueueAccess

        return TopicQueueAccess(self._broker, self.principal, self.topics.ask_use)

    @property
    def topics(self) -> TopicAccess:
        if self._topics is None:
            self._topics = TopicAccess(self._broker, self.principal, self.mutate)
        return self._topics

    @property
    def transactions(self) -> TransactionAccess:
        if self._transactions is None:
            self._transactions = TransactionAccess(self._broker, self.principal)
        return self._transactions

    @property
    def delegation(self) -> DelegationAccess:
        from waystation.broker.access.administration.delegation import DelegationAccess

        return DelegationAccess(self._broker, self.principal)

    @property
    def users(self) -> UserAccess:
        from waystation.broker.access.administration.users import UserAccess

        return UserAccess(self._broker, self.principal)

    @property
    def views(self) -> ViewAccess:
        from waystation.broker.access.administration.views import ViewAccess

        return ViewAccess(self._broker, self.principal, self.mutate)


def _admitted(
    puts: Sequence[tuple[str, Sequence[Message]]], admit: Callable[[str], None]
) -> tuple[list[int], dict[int, WaystationError]]:
    """The indexes of puts that are admitted, and why others are not."""
    admitted: list[int] = []
    refused: dict[int, WaystationError] = {}
    for index, (queue, _) in enumerate(puts):
        try:
            admit(queue)
        except WaystationError as error:
            refused[index] = without_frames(error)
        else:
            admitted.append(index)
    return admitted, refused


def _dead_letters_of(settings: QueueSettings) -> tuple[Resource, str]:
    """Where dead letters go, as permissions call it."""
    if settings.dead_letter_exchange is not None:
        return "exchange", settings.dead_letter_exchange
    return dead_letter_target_of(settings.dead_letter or "")
