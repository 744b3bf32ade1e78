"""A link to a broker in this process: commands are handed over as they are, nothing is encoded.

The broker's loop and the client's may be one or two. Either way nothing is called from inside another call: what
passes is queued and taken by the other side in its next turn, all of it at once, so that crossing between threads costs
one wake-up per batch and neither side meets the other half-way through a change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from waystation.client.links.link import Dial, Ear, Link
from waystation.errors import ConnectionLost
from waystation.protocol import Answer, Ceased, Command, Deliver, Failure, Outgoing

T = TypeVar("T")


class BrokerSession(Protocol):
    """The broker's side of a connection, as the native protocol has it; on the broker's loop."""

    def handle_all(self, commands: Sequence[Any]) -> object: ...

    def close(self) -> None: ...


OpenSession = Callable[[Callable[[Outgoing], None]], BrokerSession]
"""Makes a session that sends by the given callable. Called on the broker's loop."""


def local_dial(open_session: OpenSession, home: asyncio.AbstractEventLoop) -> Dial:
    """Opens links to the broker that lives on the loop `home`."""

    async def dial(ear: Ear) -> Link:
        if home.is_closed():
            raise ConnectionLost("the broker in this process is closed")
        return LocalLink(ear, open_session, home)

    return dial


class Chute(Generic[T]):
    """Things fall in on any thread and come out on the loop's, in order, as many at once as there are."""

    def __init__(self, loop: asyncio.AbstractEventLoop, take: Callable[[list[T]], None], *, same_thread: bool) -> None:
        self._schedule = loop.call_soon if same_thread else loop.call_soon_threadsafe
        self._take = take
        self._items: deque[T] = deque()
        self._scheduled = False

    def put(self, item: T) -> None:
        self._items.append(item)
        # First append, then look; `_drain` first clears, then takes: whatever the threads do, nothing is left behind.
        if not self._scheduled:
            self._scheduled = True
            try:
                self._schedule(self._drain)
            except RuntimeError:  # that loop is closed: nobody is there to take it
                self._items.clear()

    def _drain(self) -> None:
        self._scheduled = False
        items = self._items
        batch: list[T] = []
        while items:
            batch.append(items.popleft())
        if batch:
            self._take(batch)


class LocalLink:
    """A `Link` to a session in this process."""

    peer = "this process"
    remote = False
    busy = False

    def __init__(self, ear: Ear, open_session: OpenSession, home: asyncio.AbstractEventLoop) -> None:
        here = asyncio.get_running_loop()
        self._ear = ear
        self._over = False
        self._open_session = open_session
        self._session: BrokerSession | None = None
        self._in: Chute[Outgoing] = Chute(here, self._hear, same_thread=here is home)
        self._out: Chute[Command | None] = Chute(home, self._speak, same_thread=here is home)

    def send(self, command: Command) -> None:
        if not self._over:
            self._out.put(command)

    def read(self, value: Any, kind: Any) -> Any:
        return msgspec.convert(value, kind)

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._out.put(None)

    def forked(self) -> None:
        self._over = True

    def _speak(self, commands: list[Command | None]) -> None:
        """On the broker's loop."""
        last = commands[-1] is None
        if last:
            commands.pop()
        if self._session is None and commands:
            self._session = self._open_session(self._in.put)
        if self._session is not None:
            self._session.handle_all(commands)
            if last:
                self._session.close()

    def _hear(self, items: list[Outgoing]) -> None:
        """On the client's loop."""
        for item in items:
            if self._over:
                return
            self._dispatch(item)

    def _dispatch(self, item: Outgoing) -> None:
        if isinstance(item, Answer):
            self._ear.answered(item.id, item.value)
        elif isinstance(item, Deliver):
            self._ear.delivered(item.consumer, item.messages)
        elif isinstance(item, Failure):
            self._ear.failed(item.id, item.error, item.text)
        elif isinstance(item, Ceased):
            self._ear.ceased(item.consumer, item.error, item.text)
