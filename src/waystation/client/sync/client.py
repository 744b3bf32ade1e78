# Generated from src/waystation/client/aio/client.py by `python -m tests.client.sync_client`; do not edit.
"""The client for threads: one face for a broker far away and one in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar, Unpack, cast
from uuid import uuid4

from waystation.client import admin
from waystation.client.consuming.feeding import Unsettled
from waystation.client.consuming.looked import Looked
from waystation.client.consuming.settler import Settler
from waystation.client.consuming.subscribing import (
    ConsumeOptions,
    SubscribeOptions,
    check_concurrency,
    consume_wanted,
    responder_queue,
    split_on,
    subscribe_wanted,
)
from waystation.client.core import Core
from waystation.client.links.forks import tell_after_fork
from waystation.client.options.payloads import JSON, TEXT, Value, encode_json, encode_text
from waystation.client.options.queue_options import QueueOptions
from waystation.client.options.values import MessageOptions, OrderedOptions, Seconds, milliseconds, ordered, with_id
from waystation.client.sending.producing import Acks, Guarantee, chosen
from waystation.client.sending.results import Published
from waystation.client.sync.bridge import Bridge
from waystation.client.sync.exchange import Exchange
from waystation.client.sync.handlers import Handlers
from waystation.client.sync.handling import responder
from waystation.client.sync.message import Message
from waystation.client.sync.queue import Queue
from waystation.client.sync.subscription import Subscription
from waystation.client.sync.transaction import Transaction
from waystation.client.transacting import Tx, WorkerIds
from waystation.errors import Invalid
from waystation.message import Message as Outgoing
from waystation.protocol import Publish, QueueInfo, RoutingInfo, StagedTransaction, TopicInfo

F = TypeVar("F", bound=Callable[..., Any])


class Client:
    """A connection to a broker. `waystation.connect` and `waystation.open` make them; close it at the end.

    Any number of threads may use it at once; what they send together travels together. It has a thread of its own for
    the network, on which none of your code runs, but for the callbacks of futures.
    """

    def __init__(self, core: Core, bridge: Bridge) -> None:
        self._core = core
        self._bridge = bridge
        self._handlers = Handlers()
        tell_after_fork(core, bridge)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self, timeout: float | None = None) -> None:
        """Lets handlers finish their messages, sends what is buffered, and closes. Does nothing if it is already
        closed.

        Handlers that need longer than `timeout` seconds are not waited for: their messages in flight are redelivered to
        others.
        """
        if self.closed:
            return
        for handler in self._handlers.all():
            self.off(handler, timeout)
        self._bridge.over.set()
        try:
            self._bridge.run(self._core.close())
        finally:
            self._end()

    def _end(self) -> None:
        """What this client was made of besides."""

    @property
    def closed(self) -> bool:
        return self._bridge.over.is_set()

    def run(self) -> None:
        """Waits while handlers work, until Ctrl-C or until another thread closes the client."""
        try:
            self._bridge.rest()
        finally:
            self.close()

    def flush(self) -> None:
        """Waits until everything that was sent without waiting is durable, acknowledgements included."""
        self._bridge.run(self._core.flush())

    # -- topics --------------------------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        partition: int | None = None,
        acks: Acks | None = None,
        guarantee: Guarantee | None = None,
        **options: Unpack[MessageOptions],
    ) -> Published:
        """Publishes one message to a topic, which is created if it does not exist; returns when the message is durable.

        `value` is bytes, text or any JSON value; `options` are those of `MessageOptions`. `acks`: wait
        until it is `"durable"` (the default), `"written"`, or for nothing (`"none"`). `guarantee` is the
        delivery guarantee: `"at-most-once"` sends once and never retries; `"at-least-once"` retries after a lost
        connection; `"exactly-once"` does so with an id, which a topic with a deduplication window stores once. A topic
        without one is a Conflict; one that is created by this has a window of ten minutes.
        """
        shape, guarantee = self._shape(topic, partition, acks, guarantee)
        return self._publish(shape, [with_id(self._core.message(value, options), guarantee)], guarantee)

    def publish_json(self, topic: str, value: Any, **options: Any) -> Published:
        """Publishes JSON, whatever the value is (a text becomes a JSON string)."""
        return self.publish(topic, encode_json(value), **{"content_type": JSON, **options})

    def publish_text(self, topic: str, text: str, **options: Any) -> Published:
        return self.publish(topic, encode_text("payload", text), **{"content_type": TEXT, **options})

    def publish_many(
        self,
        topic: str,
        values: Iterable[Value],
        *,
        partition: int | None = None,
        acks: Acks | None = None,
        guarantee: Guarantee | None = None,
        **options: Unpack[MessageOptions],
    ) -> Published:
        """Publishes many messages, with the same options, and returns when all are durable.

        They are sent in batches of up to a thousand; each batch is stored completely or not at all. When one is
        refused, none after it is stored: the error's `stored` says how many messages are, from the first on. Values may
        be messages made by `waystation.message.Message`, where each needs its own options."""
        shape, guarantee = self._shape(topic, partition, acks, guarantee)
        messages = (with_id(message, guarantee) for message in self._core.messages(values, options))
        return self._publish(shape, messages, guarantee)

    def send_ordered(
        self,
        topic: str,
        key: str | bytes,
        values: Iterable[Value],
        *,
        guarantee: Guarantee | None = None,
        **options: Unpack[OrderedOptions],
    ) -> Published:
        """Publishes messages of one key in their order, and returns when all are durable.

        All of them are appended to the key's partition in this order, up to the first that is refused: the
        error's `stored` says how many are stored. After a lost connection the messages that were not acknowledged are
        sent again, in their order; with `"exactly-once"` none of them is stored twice.
        """
        shape, guarantee = self._shape(topic, None, "durable", guarantee)
        given = self._core.messages(values, cast(MessageOptions, options))
        messages = (with_id(message, guarantee) for message in ordered(key, given))
        return self._publish(shape, messages, guarantee)

    def publish_nowait(
        self, topic: str, value: Value, *, partition: int | None = None, **options: Unpack[MessageOptions]
    ) -> Future[Published]:
        """Publishes without waiting; the future is done when it is durable.

        Blocks only while too much of this client is on its way already (`max_in_flight`).
        """
        shape, guarantee = self._shape(topic, partition, None, None)
        message = with_id(self._core.message(value, options), guarantee)
        return self._bridge.send_nowait(self._core.publish_lane(shape, guarantee), message)

    def _shape(
        self, topic: str, partition: int | None, acks: Acks | None, guarantee: Guarantee | None
    ) -> tuple[Publish, Guarantee]:
        wanted = chosen(guarantee, self._core.guarantee)
        acks = acks or ("none" if wanted == "at-most-once" else "durable")
        once = wanted == "exactly-once"
        if once and acks == "none":
            raise Invalid("acks: exactly-once needs the broker's answer; leave acks out, or publish at-most-once")
        return Publish(messages=[], topic=topic, partition=partition, acks=acks, once=once), wanted

    def _publish(self, shape: Publish, messages: Iterable[Outgoing], guarantee: Guarantee | None = None) -> Published:
        lane = self._core.publish_lane(shape, guarantee or self._core.guarantee)
        return Published.joined(self._bridge.send_many(lane, messages))

    def subscribe(self, patterns: str | Sequence[str], **options: Unpack[SubscribeOptions]) -> Subscription:
        """Subscribes to topics by name or pattern: `*` is one word, `#` any number of them, words are between dots.

        Without a `group` it is live: messages from now on, no position, no acks. With a group, its members share the
        messages, and the broker stores what they acked. Await it, enter it, or iterate over it:

            for message in mq.subscribe("orders.*", group="billing"):   # acked when the next one is asked for
                ...
        """
        wanted = subscribe_wanted(patterns, options, self._core.guarantee)
        return Subscription(self._core, self._bridge, wanted)

    def create_topic(
        self,
        topic: str,
        partitions: int | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        max_size: int | None = None,
        replication_factor: int | None = None,
    ) -> TopicInfo:
        """Creates a topic; settings by their dotted names: `{"retention.ms": 60000}`. `max_size`: how many messages a
        partition retains, the newest. `replication_factor`: in a cluster, on how many nodes each partition is; if it is
        not said, on three, or on all if there are fewer."""
        return self._bridge.run(
            admin.create_topic(self._core, topic, partitions, settings or {}, max_size, replication_factor)
        )

    def delete_topic(self, topic: str) -> None:
        self._bridge.run(admin.delete_topic(self._core, topic))

    def describe_topic(self, topic: str, *, create: bool = False) -> TopicInfo:
        """Its partitions (start offset, end offset, bytes), settings and subscribers. `create`: if it is not there, it
        is created first, as for a publisher, where the broker's `auto.create.topics.enable` is on."""
        return self._bridge.run(admin.describe_topic(self._core, topic, create=create))

    def topics(self, pattern: str = "#") -> list[TopicInfo]:
        return self._bridge.run(admin.list_topics(self._core, pattern))

    def commit_offsets(self, group: str, offsets: Sequence[tuple[str, int, int]]) -> None:
        """Sets a consumer group's offsets: (topic, partition, the next offset to read)."""
        self._bridge.run(admin.commit_offsets(self._core, group, offsets))

    # -- queues --------------------------------------------------------------------------------------------------------

    def queue(
        self,
        name: str,
        *,
        passive: bool = False,
        guarantee: Guarantee | None = None,
        **options: Unpack[QueueOptions],
    ) -> Queue:
        """Opens a queue, and creates it if it does not exist. Without options it is opened with any settings; options
        that differ from those of an existing queue raise Conflict (`Queue.alter` changes them). `passive`: raises
        NotFound instead of creating it.

        `guarantee="exactly-once"` gives every message an id, and a new queue a deduplication window of ten minutes, so
        that a message that is sent again after a lost connection is stored once.
        """
        wanted = chosen(guarantee, self._core.guarantee)
        info = self._bridge.run(admin.declare_for(self._core, name, options, wanted, passive=passive))
        return Queue(self, name, wanted, info.settings.hold_ms)

    def queues(self, prefix: str = "") -> list[QueueInfo]:
        return self._bridge.run(admin.list_queues(self._core, prefix))

    # -- handlers ------------------------------------------------------------------------------------------------------

    def on(
        self,
        patterns: str | Sequence[str] | None = None,
        *,
        queue: str | Queue | None = None,
        concurrency: int = 1,
        **options: Any,
    ) -> Callable[[F], F]:
        """Calls a function for every message of topics, or of a queue, on `concurrency` threads.

            @mq.on("orders.#", group="audit", concurrency=4)
            def audit(message): ...

        The message is acked when the function returns, and rejected, with the error's text, when it raises or returns
        False; the consumer continues. With `guarantee="exactly-once"` the function gets a transaction as well, in which
        the message is acked: `def work(message, tx)`. Options are those of `subscribe` or `Queue.consume`.
        """
        split_on(patterns, queue)
        check_concurrency(concurrency)
        if patterns is not None:
            wanted = subscribe_wanted(patterns, cast(SubscribeOptions, options), self._core.guarantee)
        else:
            name = queue.name if isinstance(queue, Queue) else str(queue)
            wanted = consume_wanted(name, cast(ConsumeOptions, options), self._core.guarantee)

        def register(handler: F) -> F:
            work = self._in_transactions(handler) if wanted.transactional else handler
            self._handlers.add(handler, Subscription(self._core, self._bridge, wanted), work, concurrency)
            return handler

        return register

    def _in_transactions(self, handler: Callable[..., Any]) -> Callable[[Message], None]:
        ids = WorkerIds(f"{self._core.name}/{getattr(handler, '__qualname__', 'handler')}/{uuid4().hex[:12]}")

        def work(message: Message) -> None:
            with ids.one() as transactional_id, self.transaction(transactional_id) as tx:
                handler(message, tx)
                if message.settled is None:
                    tx.ack(message)

        return work

    def respond(self, name: str, *, concurrency: int = 1, **options: Unpack[ConsumeOptions]) -> Callable[[F], F]:
        """Answers requests: what the function returns is the reply to `request(name, …)`.

            @mq.respond("sum")
            def total(message):
                return sum(message.json())

        Requests wait in a queue of that name, so several responders share them. If the function raises, the
        requester gets RequestFailed with the error's text.
        """
        check_concurrency(concurrency)

        def register(handler: F) -> F:
            wanted = consume_wanted(name, options, "at-least-once")
            opening = Subscription(self._core, self._bridge, wanted, before=responder_queue(name))
            self._handlers.add(handler, opening, responder(handler), concurrency)
            return handler

        return register

    def off(self, handler: Callable[..., Any], timeout: float | None = None) -> None:
        """Removes a handler; waits up to `timeout` seconds until it has finished its messages."""
        self._handlers.remove(handler, timeout)

    # -- request and reply ---------------------------------------------------------------------------------------------

    def request(
        self, name: str, value: Value, *, timeout: float = 10.0, topic: bool = False, **options: Unpack[MessageOptions]
    ) -> Message:
        """Sends a request to the responders of `name`, and returns the reply.

        Raises NotFound if nobody responds to it, RequestTimeout if no reply came within `timeout` seconds (the request
        expires then) and RequestFailed if the responder failed. `topic`: the request is published to a topic instead,
        and the first reply is returned.
        """
        if topic:
            lane: Any = self._core.publish_lane(self._shape(name, None, "written", "at-most-once")[0], "at-most-once")
        else:
            lane = self._core.put_lane(name, 0, "at-most-once")
        message = self._core.message(value, {"ttl": None, **options})  # else it lives as long as somebody waits
        delivered = self._bridge.run(self._core.request(lane, repr(name), message, timeout))
        return Message(Unsettled(delivered, Settler(self._core.main, 0, soon=self._core.soon, settles=False)))

    # -- transactions, routing, and the rest ---------------------------------------------------------------------------

    def transaction(self, transactional_id: str, *, timeout: Seconds = 60) -> Transaction:
        """Publishes, puts, acks and offsets that happen together or not at all; see `Transaction`."""
        return Transaction(Tx(self._core, transactional_id, milliseconds("timeout", timeout) or 60_000), self._bridge)

    def commit_staged(
        self, name: str, sequence: int, staged: Sequence[StagedTransaction], *, abandon: str = ""
    ) -> bool:
        """Commits transactions that were staged (`Transaction.stage`), all of them by one durable record, or none.
        Their ids are `name/PART`, where PART has no slash.

        `sequence` grows under a `name`: one that is not above the last one committed is fenced: this returns False, and
        what was staged for it is aborted. Repeating the same request is harmless. Afterwards, whatever else is open
        with a transactional id that begins with `abandon` is aborted. Conflict: one of them is not open any more, and
        nothing was committed."""
        return self._bridge.run(admin.commit_staged(self._core, name, sequence, staged, abandon))

    def abort_staged(self, staged: Sequence[StagedTransaction] = (), *, prefix: str = "", fence: bool = False) -> int:
        """Aborts staged transactions, and all open ones whose id begins with `prefix`; never what was committed.

        `fence`: no transaction can begin under the prefix any more, so that a late task cannot stage
        anything. The ids of a run are then `NAME/RUN.PART`, and the prefix is `NAME/RUN.`. It is remembered for a week.
        """
        return self._bridge.run(admin.abort_staged(self._core, staged, prefix, fence))

    def staged_position(self, name: str) -> int | None:
        """The last sequence that was committed under a name."""
        return self._bridge.run(admin.staged_position(self._core, name))

    def publish_batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None:
        """Publishes record batches (Kafka's version 2) that you have built, each to its partition; durable on
        return."""
        self._bridge.run(admin.publish_batches(self._core, topic, batches))

    def exchange(
        self,
        name: str,
        kind: str = "direct",
        *,
        alternate: str | None = None,
        passive: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> Exchange:
        """Opens an exchange, and creates it if it does not exist: direct, fanout, topic, headers, filter,
        x-consistent-hash, …"""
        self._bridge.run(
            admin.declare_exchange(self._core, name, kind, alternate, passive=passive, arguments=arguments)
        )
        return Exchange(self, name, None if passive else kind)

    def routing(self) -> RoutingInfo:
        """All exchanges and bindings."""
        return self._bridge.run(admin.list_routing(self._core))

    def find(self, message_id: str, *, topic: str | None = None) -> Looked | None:
        """Finds a message by its id in any queue or topic; None if there is none. Topics have no index of ids: the
        newest 64 MiB of each partition of `topic`, or 256 MiB of all topics, are searched, and NotFound says if that
        was not all."""
        return self._bridge.run(admin.find(self._core, message_id, topic=topic))

    def stats(self) -> dict[str, Any]:
        """Counts and counters of the broker."""
        return self._bridge.run(admin.stats(self._core))

    def view(self, what: str, **query: Any) -> dict[str, Any]:
        """A page of the broker's administration, as the HTTP API answers it: `view("overview")`, `view("connections",
        door="kafka")`, `view("group", group="billing")`. The page of the native protocol lists what there is."""
        return self._bridge.run(admin.view(self._core, what, query))

    def act(self, what: str, **query: Any) -> dict[str, Any] | None:
        """Runs an administrative action of the HTTP API by its name: `act("reset-group", group="billing",
        to="earliest")`."""
        return self._bridge.run(admin.act(self._core, what, query))

    def end_connection(self, name: str, reason: str = "") -> None:
        """Makes the broker close a connection, by the name in `view("connections")`."""
        self._bridge.run(admin.end_connection(self._core, name, reason))

    def alter_settings(self, settings: Mapping[str, Any]) -> None:
        """Changes settings of the running broker; None resets one to its default. They survive a restart."""
        self._bridge.run(admin.alter_settings(self._core, settings))

    def ping(self) -> float:
        """Sends a ping to the broker; returns the round trip in seconds."""
        start = time.monotonic()
        self._bridge.run(admin.ping(self._core))
        return time.monotonic() - start
