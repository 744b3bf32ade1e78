"""Quotas, as Kafka's clients are told of them: the answer says for how long the client is to wait, and its connection
is not read for that time (KIP-219), whether it knows of that or not.

`Throttle` is a connection's. A connection that has waited is asked about again: what others of the same user have taken
meanwhile counts, too. `Timed` counts the work of an answer that takes its time, step by step.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waystation.broker.access import Access

LONGEST_S = 60.0
"""Between two looks at whether the connection still has to wait: a quota that was removed is noticed by then."""
MAX_TOLD_MS = 2**31 - 1
FEW_S = 0.001
"""Less is not worth a turn."""


def told_ms(wait_s: float) -> int:
    """As an answer says it: never less than it is."""
    return min(MAX_TOLD_MS, -int(-wait_s * 1000 // 1)) if wait_s else 0


def with_throttle(response: Any, wait_s: float) -> Any:
    """A response that says so, if it has a word for it."""
    if not wait_s or not hasattr(response, "throttle_time"):
        return response
    return dataclasses.replace(response, throttle_time=timedelta(milliseconds=told_ms(wait_s)))


class Throttle:
    """Whether a connection is muted. `read_on` is called when it is not any more."""

    __slots__ = ("_read_on", "_timer", "_wait_s")

    def __init__(self, read_on: Callable[[], None]) -> None:
        self._read_on = read_on
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s: Callable[[], float] = float

    @property
    def muted(self) -> bool:
        return self._timer is not None

    def look(self, access: Access) -> bool:
        """Mutes the connection if its client has to wait. True: it was not muted before."""
        self._wait_s = access.wait_s
        return self._timer is None and self._mute()

    def _mute(self) -> bool:
        wait_s = self._wait_s()
        if wait_s > FEW_S:
            self._timer = asyncio.get_running_loop().call_later(min(wait_s, LONGEST_S), self._again)
            return True
        return False

    def _again(self) -> None:
        self._timer = None
        if not self._mute():
            self._read_on()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Timed:
    """An awaitable whose steps are timed: `worked` is told how long each took."""

    __slots__ = ("_inner", "_now_s", "_worked")

    def __init__(self, inner: Awaitable[Any], now_s: Callable[[], float], worked: Callable[[float], None]) -> None:
        self._inner = inner
        self._now_s = now_s
        self._worked = worked

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        send, value = steps.send, None
        while True:
            began_s = self._now_s()
            try:
                awaited = send(value)
            except StopIteration as end:
                return end.value
            finally:
                self._worked(self._now_s() - began_s)
            try:
                value = yield awaited
                send = steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                value, send = error, steps.throw
