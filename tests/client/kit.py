"""One face for four clients: sync and asyncio, of a server process and of a broker in this one.

Tests are written once, as a thread would use the client. For asyncio a proxy runs every call on a loop of its own and
awaits what it gives; `for`, `with` and decorators become their asyncio forms. So what is tested is the real thing.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from tests.support.waiting import DEADLINE_S
from waystation.client.links.loops import loop_factory


class LoopOnThread:
    """Where the asyncio clients of the tests live."""

    def __init__(self) -> None:
        self.loop = loop_factory()()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        async def work() -> Any:
            result = function(*arguments, **options)
            return await result if inspect.isawaitable(result) and not asyncio.isfuture(result) else result

        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(2 * DEADLINE_S)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Proxy:
    """An object of the asyncio client, as a thread sees it."""

    def __init__(self, thing: Any, home: LoopOnThread) -> None:
        self._thing = thing
        self._home = home

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._caller(found) if callable(found) and not isinstance(found, type) else self._wrap(found)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_thing", "_home"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._thing, name, value)

    def _caller(self, found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            plain = [self._plain(argument) for argument in arguments]
            named = {name: self._plain(value) for name, value in options.items()}
            return self._wrap(self._home.call(found, *plain, **named))

        call.behind = found  # type: ignore[attr-defined]
        return call

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, list):
            return [Proxy._plain(item) for item in value]
        if inspect.isfunction(value):
            return getattr(value, "behind", value)
        return value._thing if isinstance(value, Proxy) else value

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(item) for item in value]
        if type(value).__module__.startswith("waystation.client.aio"):
            return Proxy(value, self._home)
        if inspect.isfunction(value):  # a decorator
            return self._caller(value)
        if asyncio.isfuture(value):
            return _Pending(value, self)
        return value

    def __enter__(self) -> Any:
        return self._wrap(self._home.call(self._thing.__aenter__))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._home.call(self._thing.__aexit__, kind, error, at)

    def __iter__(self) -> Iterator[Any]:
        loop = self._home.call(self._thing.__aiter__)
        while True:
            try:
                message = self._home.call(loop.__anext__)
            except StopAsyncIteration:
                return
            yield self._wrap(message)

    def __repr__(self) -> str:
        return repr(self._thing)


class _Pending:
    """An asyncio future, as a thread sees it."""

    def __init__(self, future: asyncio.Future[Any], proxy: Proxy) -> None:
        self._future = future
        self._proxy = proxy

    def result(self) -> Any:
        async def wait() -> Any:
            return await self._future

        return self._proxy._wrap(self._proxy._home.call(wait))
