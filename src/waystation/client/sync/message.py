# Generated from src/waystation/client/aio/message.py by `python -m tests.client.sync_client`; do not edit.
"""A received message, for threads."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Unpack

from waystation.client.consuming.received import Received, judged, reason, reply_command
from waystation.client.consuming.settler import Say, Verdict
from waystation.client.links.connection import Ignored
from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions, Seconds, make_message, milliseconds
from waystation.client.sync.bridge import gathered


class Message(Received):
    """A message, in flight to this client until it is settled (acked, rejected, released or dead-lettered).

    with jobs.get(timeout=5) as message:        # acked on exit, rejected on exception
        work(message.json())
    """

    __slots__ = ()

    def ack(self, *, wait: bool = True) -> None:
        """Acknowledges it. Returns when that is durable; with `wait=False` at once, and it is sent with the next
        ones."""
        if self._judge("ack"):
            if wait:
                self._say("ack")
            else:
                self._settler.ack(self._delivered)

    def reject(self, error: str | BaseException | None = None, *, wait: bool = True) -> None:
        """Reports a failure: it is retried by the queue's retry policy, until it is dead. `error` is stored in its
        failure history."""
        text = reason(error)
        if self._judge("reject"):
            self._say("reject", error=text, wait=wait)

    def release(self, delay: Seconds | None = None, *, wait: bool = True) -> None:
        """Requeues it for any consumer, at once or after `delay` seconds. This does not count as a failure."""
        delay_ms = milliseconds("delay", delay)
        if self._judge("release"):
            self._say("release", delay_ms=delay_ms, wait=wait)

    def kill(self, error: str | BaseException | None = None, *, wait: bool = True) -> None:
        """Dead-letters it at once, without another retry."""
        text = reason(error)
        if self._judge("kill"):
            self._say("kill", error=text, wait=wait)

    def touch(self, seconds: Seconds | None = None) -> None:
        """Extends the visibility timeout: by the queue's again, or to `seconds` from now."""
        if not self._settler.settles:
            return
        settler, tag, deliveries = self._settler, self._delivered.tag, self._delivered.deliveries
        waiter: Future[Any] = Future()
        visibility_timeout_ms = milliseconds("seconds", seconds)
        settler.soon(
            lambda: settler.touch([(tag, 1)], visibility_timeout_ms, settler.known((tag,), waiter), deliveries)
        )
        waiter.result()

    def reply(self, value: Value, **options: Unpack[MessageOptions]) -> bool:
        """Replies to a request; False if nobody waits for the reply any more."""
        command, kind = reply_command(self, make_message(value, options))
        connection = self._settler.connection
        waiter: Future[Any] = Future()
        self._settler.soon(lambda: connection.request(command, kind, waiter))
        return waiter.result() is not False

    def _say(
        self, verdict: Verdict, *, delay_ms: int | None = None, error: str | None = None, wait: bool = True
    ) -> None:
        tags, deliveries = (self._delivered.tag,), self._delivered.deliveries
        if not wait:
            self._settler.say(Say(tags, verdict, delay_ms, error, Ignored(), deliveries))
            return
        waiter: Future[None] = Future()
        self._settler.say(Say(tags, verdict, delay_ms, error, waiter, deliveries))
        waiter.result()

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._verdict is not None or not self._settler.settles:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.reject(error)
        else:
            self.release(wait=False)  # cancelled, or Ctrl-C: no fault of the message


def settle_many(messages: Iterable[Message], verdict: Verdict, error: str | BaseException | None = None) -> None:
    """A verdict on many messages, in as few frames as can be; returns when all of it is durable."""
    text = reason(error)
    waiters: list[Future[None]] = []
    for (settler, deliveries), tags in judged(messages, verdict).items():
        waiters.append(Future())
        settler.say(Say(tags, verdict, None, text, waiters[-1], deliveries))
    gathered(waiters)
