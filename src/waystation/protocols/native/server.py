"""The native listener: what native clients' connections share. Their sockets are the fronts' (`protocols/front.py`)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from waystation.protocol import MAGIC

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import Entrance
    from waystation.protocols.budget import Budgets
    from waystation.protocols.native.connection import NativeConnection
    from waystation.protocols.native.plain_actions.plain_subscriptions import PlainSubscriptions
    from waystation.protocols.native.session import NativeSession, Send

# What speaks the protocol is imported with the first client of its kind: not every broker has one. That takes 30 to
# 70 ms, so it is done on a thread while the client's bytes wait.


class NativeListener:
    """Made once per broker, for all of its fronts."""

    def __init__(self, broker: Node, budgets: Budgets) -> None:
        self._broker = broker
        self._budgets = budgets
        self._subscriptions: PlainSubscriptions | None = None
        self._numbers = itertools.count(1)
        self._loading: dict[Callable[[], None], asyncio.Task[None]] = {}
        self._loaded: set[Callable[[], None]] = set()

    def prepare(self, first_byte: int) -> asyncio.Task[None] | None:
        """What a connection that begins with this byte has to wait for; None: nothing. If that fails, as it does where
        no file handle is left, those that wait end, and the next one tries again."""
        load = _LOADED_FOR.get(first_byte)
        if load is None or load in self._loaded:
            return None
        if load not in self._loading:
            self._loading[load] = asyncio.get_running_loop().create_task(self._load(load))
        return self._loading[load]

    async def _load(self, load: Callable[[], None]) -> None:
        try:
            await self._broker.world.offload(load)
            self._loaded.add(load)
        finally:
            del self._loading[load]

    def by_first_byte(self, entrance: Entrance) -> Mapping[int, Callable[[Callable[[], None]], NativeConnection]]:
        """What makes a connection that came in there, by the byte that such a client sends first."""
        return {MAGIC[0]: partial(self._frames, entrance), ord("{"): partial(self._json_lines, entrance)}

    def _frames(self, entrance: Entrance, on_closed: Callable[[], None]) -> NativeConnection:
        """A connection that speaks msgpack frames; `on_closed` is called when it is over."""
        from waystation.protocols.native.binary import BinaryTalk
        from waystation.protocols.native.connection import NativeConnection

        talk = partial(BinaryTalk, self._broker, self._name("native"), self._budgets.long_work)
        return NativeConnection(talk, self._budgets, self._broker.world.clock, on_closed, "native", entrance)

    def _json_lines(self, entrance: Entrance, on_closed: Callable[[], None]) -> NativeConnection:
        """A connection that speaks JSON lines."""
        from waystation.protocols.native.connection import NativeConnection
        from waystation.protocols.native.lines import LinesTalk
        from waystation.protocols.native.plain_actions.plain_subscriptions import PlainSubscriptions

        if self._subscriptions is None:
            self._subscriptions = PlainSubscriptions()
        talk = partial(LinesTalk, self._broker, self._name("json"), self._subscriptions, self._budgets.long_work)
        return NativeConnection(talk, self._budgets, self._broker.world.clock, on_closed, "json", entrance)

    def session(self, send: Send) -> NativeSession:
        """A session of a client in this very process."""
        from waystation.protocols.native.session import NativeSession

        session = NativeSession(self._broker, send, self._name("local"))
        session.appear()
        return session

    def _name(self, kind: str) -> str:
        return f"{kind}-{next(self._numbers)}"


def _load_frames() -> None:
    import waystation.protocols.native.binary
    import waystation.protocols.native.connection  # noqa: F401


def _load_json_lines() -> None:
    import waystation.protocols.native.connection
    import waystation.protocols.native.lines
    import waystation.protocols.native.plain_actions.plain_subscriptions  # noqa: F401


_LOADED_FOR = {MAGIC[0]: _load_frames, ord("{"): _load_json_lines}
