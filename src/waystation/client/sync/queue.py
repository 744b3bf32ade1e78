# Generated from src/waystation/client/aio/queue.py by `python -m tests.client.sync_client`; do not edit.
"""A queue, for threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Unpack

from waystation.client import admin
from waystation.client.consuming.looked import Looked
from waystation.client.consuming.subscribing import ConsumeOptions, consume_wanted
from waystation.client.options.payloads import Value
from waystation.client.options.queue_options import QueueOptions
from waystation.client.options.values import MessageOptions, Seconds, milliseconds, with_id
from waystation.client.sending.producing import Guarantee, PutLane
from waystation.client.sending.results import Stored
from waystation.client.sync.message import Message, settle_many
from waystation.client.sync.subscription import Subscription
from waystation.errors import Empty, NotFound
from waystation.protocol import QueueInfo, RedriveAnswer

if TYPE_CHECKING:
    from waystation.client.sync.client import Client


class Queue:
    """A work queue: each message is delivered to one consumer, and deleted when that acks it.

    Returned by `Client.queue`. It is only a handle: there may be any number of them for one queue.
    """

    def __init__(
        self, client: Client, name: str, guarantee: Guarantee, visibility_timeout_ms: int | None = None
    ) -> None:
        self.name = name
        self.guarantee: Guarantee = guarantee
        self._client = client
        self._core = client._core
        self._bridge = client._bridge
        self._visibility_timeout_ms = visibility_timeout_ms

    def __repr__(self) -> str:
        return f"<waystation.Queue {self.name!r}>"

    # -- putting -------------------------------------------------------------------------------------------------------

    def put(self, value: Value, *, wait: Seconds = 0, **options: Unpack[MessageOptions]) -> str:
        """Puts one message and returns its id when it is durable.

        `value` is bytes, text or any JSON value; `options` are those of `MessageOptions`. `wait`: how many
        seconds to wait for room if the queue is full. Raises NotFound, Full, TooLarge, Invalid (naming the option), and
        AlreadyExists for an `id` that was used within the queue's deduplication window.
        """
        message = with_id(self._core.message(value, options), self.guarantee)
        stored: str = self._bridge.send(self._lane(wait), message)
        return stored

    def put_nowait(self, value: Value, **options: Unpack[MessageOptions]) -> Future[str]:
        """Sends one message without waiting; the future has its id when it is durable.

        Blocks only while too much of this client is on its way already (`max_in_flight`).
        """
        return self._bridge.send_nowait(self._lane(0), with_id(self._core.message(value, options), self.guarantee))

    def put_many(self, values: Iterable[Value], *, wait: Seconds = 0, **options: Unpack[MessageOptions]) -> Stored:
        """Puts many messages, with the same options, and returns when all are durable.

        They are sent in batches of up to a thousand; each batch is stored completely or not at all. When one is
        refused, none after it is stored: the error's `stored` says how many messages are, from the first on. Values may
        be messages made by `waystation.message.Message`, where each needs its own options. Duplicates are left out."""
        messages = (with_id(message, self.guarantee) for message in self._core.messages(values, options))
        return Stored.joined(self.name, self._bridge.send_many(self._lane(wait), messages))

    def _lane(self, wait: Seconds) -> PutLane:
        return self._core.put_lane(self.name, milliseconds("wait", wait) or 0 if wait else 0, self.guarantee)

    # -- getting -------------------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None, *, hold: Seconds | None = None) -> Message:
        """Receives one message, waiting up to `timeout` seconds for it (None: forever); raises Empty if none arrived.

            with jobs.get(timeout=5) as message:      # acked on exit, rejected on exception
                work(message.json())
            message = jobs.get()                      # or settle it yourself
            message.ack()

        It is in flight to this client until it is settled, at most for the queue's visibility timeout or `hold`
        seconds."""
        return self._get(timeout, hold)

    def _get(self, timeout: float | None, hold: Seconds | None) -> Message:
        for message in self.get_many(1, timeout, hold=hold):
            return message
        raise Empty(f"no message arrived in queue {self.name!r} within {timeout:g} s")

    def get_message(self, timeout: float | None = 1.0) -> Message | None:
        """Receives one message, or returns None if none arrived within `timeout` seconds."""
        for message in self.get_many(1, timeout):
            return message
        return None

    def get_message_nowait(self) -> Message | None:
        """Receives a message that is ready, or returns None."""
        return self.get_message(0)

    def get_many(self, count: int = 100, timeout: float | None = 0, *, hold: Seconds | None = None) -> list[Message]:
        """Receives up to `count` messages that are ready; waits up to `timeout` seconds for the first."""
        auto_ack = self.guarantee == "at-most-once"
        visibility_timeout_ms = milliseconds("hold", hold)
        messages = self._bridge.run(
            self._core.get(self.name, count, timeout, visibility_timeout_ms=visibility_timeout_ms, auto_ack=auto_ack)
        )
        return [Message(one) for one in messages]

    def consume(self, **options: Unpack[ConsumeOptions]) -> Subscription:
        """A consumer that messages are pushed to.

        for message in jobs.consume(prefetch=50):   # acked when the next one is asked for
            work(message)
        """
        wanted = consume_wanted(self.name, options, self.guarantee)
        return Subscription(self._core, self._bridge, wanted, visibility_timeout_ms=self._visibility_timeout_ms)

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Acks many at once; returns when it is durable."""
        settle_many(messages, "ack")

    def reject_many(self, messages: Iterable[Message], error: str | BaseException | None = None) -> None:
        settle_many(messages, "reject", error)

    # -- looking and keeping order -------------------------------------------------------------------------------------

    def peek(self, count: int = 10, *, after: int = -1, state: admin.State = "any") -> list[Looked]:
        """Reads messages without receiving them. `after`: the `tag` of the last message of the previous page."""
        return self._bridge.run(admin.peek(self._core, self.name, count, after, state))

    def find(self, message_id: str) -> Looked | None:
        """Finds a message of this queue by its id, as it is now."""
        return self._bridge.run(admin.find(self._core, message_id, queue=self.name))

    def cancel(self, message_id: str) -> bool:
        """Deletes a message, usually a delayed one; False if it does not exist or is in flight."""
        return self._bridge.run(admin.cancel(self._core, self.name, message_id))

    def describe(self) -> QueueInfo:
        """Its settings and counts."""
        return self._bridge.run(admin.describe_queue(self._core, self.name))

    def __len__(self) -> int:
        """How many messages it has: ready, delayed and in flight."""
        info = self.describe()
        return info.ready + info.parked + info.held

    def __bool__(self) -> bool:
        return True  # an empty queue is a queue too

    def alter(self, **options: Unpack[QueueOptions]) -> QueueInfo:
        """Changes the settings that are named, for everybody; the others stay as they are. None removes an optional
        one, like `ttl`."""
        return self._bridge.run(admin.alter_queue(self._core, self.name, options))

    def purge(self) -> int:
        """Deletes all messages except those in flight; returns how many."""
        return self._bridge.run(admin.purge(self._core, self.name))

    def delete(self, *, if_empty: bool = False, if_unused: bool = False) -> int:
        """Deletes the queue; returns how many messages were deleted with it."""
        return self._bridge.run(admin.delete_queue(self._core, self.name, if_empty=if_empty, if_unused=if_unused))

    # -- dead letters --------------------------------------------------------------------------------------------------

    def dead_letters(self) -> Queue:
        """The dead-letter queue of this queue, created if it does not exist yet."""
        info = self.describe()
        target = info.settings.dead_letter
        if target is None or target.startswith("topic:"):
            raise NotFound(f"queue {self.name!r} has no dead-letter queue ({target or 'dead messages are deleted'})")
        return self._client.queue(target)

    def redrive(
        self,
        to: str | None = None,
        *,
        filter: str | None = None,
        ids: Sequence[str] = (),
        limit: int = 0,
        rate: float = 0.0,
        dry_run: bool = False,
    ) -> RedriveAnswer:
        """Redrives the dead letters in this queue to where they died, or to the queue `to`, oldest first.

        Only those that `filter` matches, or with these `ids`; at most `limit`; at most `rate` per second. With
        `dry_run` nothing is moved: the answer says what would be.
        """
        return self._bridge.run(
            admin.redrive(self._core, self.name, to=to, filter=filter, rate=rate, limit=limit, dry_run=dry_run, ids=ids)
        )
