"""The plain actions: publish, subscribe, unsubscribe, consume, ack, reject, stats (docs/reference/json-lines.md).

They are a translation to the command set, done by the connection's session. A subscription is a member of the shared
subscription of its consumer's name: it gets every message of its topics once, keeps its position when the consumer is
away, and is given again what is not acknowledged. `consume` answers with what is waiting. Subscriptions are known to
all connections, so that a consumer which connects again goes on without subscribing again.

Nothing here touches bytes; the JSON-lines talk gives it decoded lines and takes its answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid, NotFound
from waystation.message import Delivered
from waystation.message_json import id_of
from waystation.protocol import (
    Answer,
    AnyCommand,
    Cease,
    Ceased,
    Credit,
    Deliver,
    Failure,
    Publish,
    Settle,
)
from waystation.protocols.native.plain_actions.plain_message import from_plain, to_plain
from waystation.protocols.native.plain_actions.plain_subscriptions import (
    MAX_IN_FLIGHT,
    PlainSubscription,
    PlainSubscriptions,
    check_fields,
    count_of,
    text_of,
)

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

MAX_MESSAGES = 10_000
GRACE_MS = 20
"""A consume that finds nothing waits so long: what is stored needs a few turns of the loop to get here."""

Fill = Callable[[dict[str, Any]], None]
Told = Callable[[Answer | Failure], None]
Ask = Callable[[AnyCommand, Told], None]


FIELDS: dict[str, tuple[str, ...]] = {
    "publish": ("message",),
    "subscribe": ("subscription",),
    "unsubscribe": ("subscription_id",),
    "consume": ("consumer_id", "max_messages", "wait_ms"),
    "ack": ("consumer_id", "message_id"),
    "reject": ("consumer_id", "message_id", "reason"),
    "stats": (),
}
"""What each action has, beside `action` and `id`."""


class Member:
    """A subscription in use by this connection."""

    __slots__ = ("consumer", "number", "opened", "subscription")

    def __init__(self, number: int, subscription: PlainSubscription, consumer: PlainConsumer) -> None:
        self.number = number
        self.subscription = subscription
        self.consumer = consumer
        self.opened = False


class PendingConsume:
    """A `consume` that is not answered yet."""

    __slots__ = ("count", "fill", "over", "timer")

    def __init__(self, count: int, fill: Fill) -> None:
        self.count = count
        self.fill = fill
        self.over = False
        self.timer: asyncio.TimerHandle | None = None


class PlainConsumer:
    """A consumer id, as this connection knows it."""

    __slots__ = ("done", "in_flight", "members", "waiting", "wanting")

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}  # by subscription
        self.waiting: deque[tuple[Member, Delivered]] = deque()  # delivered to us, not yet asked for
        self.wanting: deque[PendingConsume] = deque()
        self.in_flight: dict[str, tuple[Member, int]] = {}  # message id → to whom, under which tag
        self.done: dict[str, None] = {}  # ids that were acknowledged by being delivered


class PlainActions:
    """One per connection."""

    def __init__(self, session: NativeSession, subscriptions: PlainSubscriptions, ask: Ask) -> None:
        self._session = session
        self._subscriptions = subscriptions
        self._ask = ask
        self._consumers: dict[str, PlainConsumer] = {}
        self._members: dict[int, Member] = {}
        self._number = 0
        self.actions: dict[str, Callable[[dict[str, Any], Fill], None]] = {
            "publish": self._publish,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "consume": self._consume,
            "ack": self._ack,
            "reject": self._reject,
            "stats": self._stats,
        }

    @property
    def _owner(self) -> str:
        return self._session.access.principal.name

    def perform(self, action: str, line: dict[str, Any], fill: Fill) -> None:
        """Does what the line says; raises Invalid, naming the field."""
        check_fields(line, ("action", "id", *FIELDS[action]), action)
        self.actions[action](line, fill)

    # -- the actions --------------------------------------------------------------------------------------------------

    def _publish(self, line: dict[str, Any], fill: Fill) -> None:
        if "message" not in line:
            raise Invalid("Missing required field: 'message'")
        topic, message = from_plain(line["message"], self._session.broker.world.clock.now_ms())

        def told(outgoing: Answer | Failure) -> None:
            if isinstance(outgoing, Failure):
                fill(_failed(outgoing))
                return
            answer = {"status": "success", "error": None, "message_id": message.id}
            for place, partition, offset in outgoing.value.places:
                answer.update(topic=place, partition=partition, offset=offset)
                if message.id is None:
                    answer["message_id"] = f"{place}-{partition}@{offset}"
            fill(answer)

        self._ask(Publish(topic=topic, messages=[message]), told)

    def _subscribe(self, line: dict[str, Any], fill: Fill) -> None:
        if "subscription" not in line:
            raise Invalid("Missing required field: 'subscription'")
        subscription = PlainSubscription(line["subscription"], self._owner)

        def opened(failure: Failure | None) -> None:
            if failure is None:
                fill({"status": "success", "error": None})
            else:
                self._subscriptions.remove(subscription.owner, subscription.id)
                fill(_failed(failure))

        self._subscriptions.add(subscription)
        self._open(subscription, opened)

    def _unsubscribe(self, line: dict[str, Any], fill: Fill) -> None:
        id = text_of(line, "subscription_id")
        if self._subscriptions.remove(self._owner, id) is None:
            raise NotFound(f"there is no subscription {id!r}")
        fill({"status": "success", "error": None})

    def _consume(self, line: dict[str, Any], fill: Fill) -> None:
        consumer_id = text_of(line, "consumer_id")
        count = count_of(line, "max_messages", 10, MAX_MESSAGES)
        wait_ms = count_of(line, "wait_ms", 0, 3_600_000, lowest=0)
        subscriptions = self._subscriptions.of(self._owner, consumer_id)
        if not subscriptions:
            fill({"status": "success", "messages": []})  # no error: nothing is subscribed to
            return
        consumer = self._consumer(consumer_id)
        for subscription in subscriptions:
            if subscription.id not in consumer.members:
                self._open(subscription, lambda failure: None)
        wanting = PendingConsume(count, fill)
        consumer.wanting.append(wanting)
        wait_s = max(wait_ms, GRACE_MS) / 1000
        wanting.timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_up, consumer, wanting)
        self._serve(consumer)

    def _ack(self, line: dict[str, Any], fill: Fill) -> None:
        self._settle(line, fill, "ack")

    def _reject(self, line: dict[str, Any], fill: Fill) -> None:
        self._settle(line, fill, "reject")

    def _settle(self, line: dict[str, Any], fill: Fill, verdict: Any) -> None:
        consumer_id = text_of(line, "consumer_id")
        message_id = text_of(line, "message_id")
        consumer = self._consumers.get(consumer_id)
        known = consumer.in_flight.pop(message_id, None) if consumer is not None else None
        if consumer is not None and known is None and message_id in consumer.done:
            del consumer.done[message_id]
            if verdict == "ack":
                fill({"status": "success", "error": None})
                return
        if known is None:
            fill(_not_in_flight(message_id, consumer_id))
            return
        error = line.get("reason")
        member, tag = known

        def told(outgoing: Answer | Failure) -> None:
            if isinstance(outgoing, Failure):
                fill(_failed(outgoing))
            elif outgoing.value.unknown:
                fill(_not_in_flight(message_id, consumer_id))
            else:
                fill({"status": "success", "error": None})

        self._ask(
            Settle(
                consumer=member.number,
                runs=[(tag, 1)],
                verdict=verdict,
                error=error[:1000] if isinstance(error, str) else None,
            ),
            told,
        )

    def _stats(self, line: dict[str, Any], fill: Fill) -> None:
        stats = self._session.access.views.stats()
        stats["total_subscriptions"] += self._subscriptions.idle
        stats["active_consumers"] += self._subscriptions.consumers
        spoken = self._session.spoken
        fill({"status": "success", "stats": stats if spoken is None else spoken.told(stats)})

    # -- members ------------------------------------------------------------------------------------------------------

    def _consumer(self, consumer_id: str) -> PlainConsumer:
        return self._consumers.setdefault(consumer_id, PlainConsumer())

    def _open(self, subscription: PlainSubscription, opened: Callable[[Failure | None], None]) -> None:
        consumer = self._consumer(subscription.consumer_id)
        self._number += 1
        member = Member(PLAIN_NUMBERS + self._number, subscription, consumer)
        consumer.members[subscription.id] = member
        self._members[member.number] = member
        subscription.users.add(self)

        def told(outgoing: Answer | Failure) -> None:
            if isinstance(outgoing, Failure):
                self._forget(member)
                opened(outgoing)
                return
            member.opened = True
            opened(None)
            self._serve(consumer)

        self._ask(subscription.command(member.number), told)

    def drop(self, subscription: PlainSubscription) -> None:
        """The subscription is over; what is in flight under it is for others."""
        consumer = self._consumers.get(subscription.consumer_id)
        member = consumer.members.get(subscription.id) if consumer is not None else None
        if member is not None:
            self._forget(member)
            self._ask(Cease(consumer=member.number), lambda outgoing: None)

    def _forget(self, member: Member) -> None:
        member.subscription.users.discard(self)
        self._members.pop(member.number, None)
        consumer = member.consumer
        if consumer.members.get(member.subscription.id) is member:
            del consumer.members[member.subscription.id]
        consumer.waiting = deque(each for each in consumer.waiting if each[0] is not member)

    def close(self) -> None:
        for member in list(self._members.values()):
            member.subscription.users.discard(self)
        for consumer in self._consumers.values():
            for wanting in consumer.wanting:
                if wanting.timer is not None:
                    wanting.timer.cancel()

    # -- messages -----------------------------------------------------------------------------------------------------

    def receive(self, outgoing: Deliver | Ceased) -> bool:
        """Whether it was for a consumer of these actions."""
        member = self._members.get(outgoing.consumer)
        if member is None:
            return outgoing.consumer > PLAIN_NUMBERS
        if isinstance(outgoing, Ceased):
            self._forget(member)
        else:
            member.consumer.waiting += [(member, delivered) for delivered in outgoing.messages]
            self._serve(member.consumer)
        return True

    def _serve(self, consumer: PlainConsumer) -> None:
        """Answers whoever can be answered, and asks for what is still wanted."""
        while consumer.wanting:
            wanting = consumer.wanting[0]
            messages = self._take(consumer, wanting.count)
            if not messages and not wanting.over:
                break
            consumer.wanting.popleft()
            if wanting.timer is not None:
                wanting.timer.cancel()
            wanting.fill({"status": "success", "messages": messages})
        wanted = sum(wanting.count for wanting in consumer.wanting)
        for member in consumer.members.values():
            known = self._session.consumers.get(member.number)
            if known is not None and member.opened:
                known.take_back()
                if wanted:
                    self._session.handle(Credit(consumer=member.number, count=wanted))

    def _time_is_up(self, consumer: PlainConsumer, wanting: PendingConsume) -> None:
        wanting.over = True
        self._serve(consumer)

    def _take(self, consumer: PlainConsumer, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        now_ms = self._session.broker.world.clock.now_ms()
        while consumer.waiting and len(found) < count:
            member, delivered = consumer.waiting.popleft()
            message_id = id_of(delivered) or ""
            expires_ms = delivered.message.expires_at_ms(delivered.taken_ms)
            if expires_ms is not None and expires_ms <= now_ms:
                self._session.handle(Settle(consumer=member.number, runs=[(delivered.tag, 1)]))
                continue
            if member.subscription.auto_ack:
                _remember(consumer.done, message_id, None)
            else:
                feed = self._session.consumer(member.number).feed
                if feed is None or feed.touch([(delivered.tag, 1)]):
                    continue  # it waited here for too long and is not ours any more
                _remember(consumer.in_flight, message_id, (member, delivered.tag))
            found.append(to_plain(delivered))
        return found


PLAIN_NUMBERS = 2**40
"""Consumers of these actions have numbers above this; a client that uses such a number itself is refused."""


def _remember(where: dict[str, Any], id: str, what: Any) -> None:
    where.pop(id, None)
    where[id] = what
    if len(where) > MAX_IN_FLIGHT:
        del where[next(iter(where))]


def _failed(failure: Failure) -> dict[str, Any]:
    return {"status": "error", "error": failure.text, "error_type": failure.error}


def _not_in_flight(message_id: str, consumer_id: str) -> dict[str, Any]:
    return {
        "status": "error",
        "error": f"message {message_id!r} is not in flight at consumer {consumer_id!r} on this connection: it was"
        " settled already, its visibility timeout ended, or it was never delivered here",
        "error_type": "Conflict",
    }
