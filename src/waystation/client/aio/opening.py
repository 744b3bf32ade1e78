"""Something that takes a moment to open, and can be awaited, entered or iterated, whichever reads best.

mq = await aio.connect(url)
async with aio.connect(url) as mq: ...
async for message in mq.subscribe("orders.*"): ...
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class Enterable(Protocol):
    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None, /
    ) -> None: ...


class AsyncSource(Enterable, Protocol):
    def __aiter__(self) -> AsyncIterator[Any]: ...


T = TypeVar("T", bound=Enterable)
M = TypeVar("M")


class Opening(Generic[T]):
    """Await it for the thing itself, or enter it to have it closed at the end. Use it once."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._work.__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._work
        await self._opened.__aenter__()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.__aexit__(kind, error, at)
