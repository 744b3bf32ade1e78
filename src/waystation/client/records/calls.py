"""Requests about records, from a thread: one that is asked while the connection is lost fails at once.

The client would keep it until there is a connection again. Whoever copies records has to know how far they are, so
nothing is sent twice here and nothing later than it was asked.
"""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from waystation.client.sync.client import Client
from waystation.errors import ConnectionLost

T = TypeVar("T")


class Calls:
    """Of one client. `core` is for the functions of `admin`, which this runs."""

    def __init__(self, client: Client) -> None:
        self.core = client._core
        self._bridge = client._bridge

    @property
    def up(self) -> bool:
        """Whether there is a connection now."""
        return self.core.main.up

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Asks, in the order of the calls."""
        if not self.core.main.up:
            work.close()
            raise ConnectionLost("the connection to the broker is lost")
        return self._bridge.start(work)

    def wait(self, future: Future[T]) -> T:
        return self._bridge.wait(future)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Asks and waits for the answer."""
        return self.wait(self.start(work))
