"""The front: shows each connection to its protocol by the first byte, and sends away those who are too many or
silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from waystation.client.links.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.health.admission import Admission
from waystation.protocols.front import Front, Prepare
from waystation.world import UnlimitedHandles
from waystation.world.listener import Enter


class FakeClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


class Echo(asyncio.BufferedProtocol):
    """A guest that says its protocol's name before all that it hears. Its buffer is small, so that much comes in
    pieces."""

    def __init__(self, name: bytes, clock: FakeClock, gone: Callable[[], None]) -> None:
        self._name = name
        self._gone = gone
        self._buffer = bytearray(7)
        self._transport: asyncio.Transport | None = None
        self.last_active = clock.monotonic()
        self.logs_in = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(self._name)  # type: ignore[union-attr]

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport is not None:
            self._transport.write(bytes(self._buffer[:nbytes]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _enter(settings: BrokerSettings, clock: FakeClock) -> Enter:
    return Admission(settings, UnlimitedHandles(), clock).gate("kafka").enter


@asynccontextmanager
async def _open(
    clock: FakeClock, prepare: Prepare = lambda first_byte: None, **settings: str
) -> AsyncIterator[tuple[Front, str, int]]:
    values = BrokerSettings({name.replace("_", "."): value for name, value in settings.items()})
    enter = _enter(values, clock)
    front = Front(
        "127.0.0.1",
        0,
        values,
        clock,
        enter,
        lambda gone: Echo(b"K:", clock, gone),
        {0xD7: lambda gone: Echo(b"N:", clock, gone), ord("{"): lambda gone: Echo(b"J:", clock, gone)},
        prepare=prepare,
    )
    host, port = await front.start()
    try:
        yield front, host, port
    finally:
        await front.stop()


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
@pytest.mark.parametrize(
    ("sent", "protocol"),
    [(b"\xd7WS1 and more", b"N:"), (b'{"a"', b"J:"), (b"\x00\x00\x00\x12kafka", b"K:"), (b"x", b"K:")],
)
def test_the_first_byte_decides(factory: Callable[[], asyncio.AbstractEventLoop], sent: bytes, protocol: bytes) -> None:
    async def story() -> None:
        async with _open(FakeClock()) as (_, host, port):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            assert await reader.readexactly(len(sent) + 2) == protocol + sent
            writer.write(b"later " * 5000)  # what comes after the first read takes the straight way
            assert await reader.readexactly(30_000) == b"later " * 5000
            writer.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, loop_factory()])
def test_who_has_to_wait_for_its_protocol_is_not_read_on_and_others_are_served(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        preparing: dict[int, asyncio.Future[None]] = {0xD7: asyncio.Future(), ord("{"): asyncio.Future()}
        asked = asyncio.Semaphore(0)

        def prepare(first_byte: int) -> asyncio.Future[None] | None:
            asked.release()
            return preparing.get(first_byte)

        async with _open(FakeClock(), prepare) as (_, host, port):
            connections = [await asyncio.open_connection(host, port) for _ in range(4)]
            (waits, to_wait), (gone, to_gone), (fails, to_fails), (other, to_other) = connections
            much = b"\xd7" + b"x" * 1_000_000
            to_wait.write(much)
            to_gone.write(b"\xd7")
            to_fails.write(b"{")
            to_other.write(b"kafka")
            assert await other.readexactly(7) == b"K:kafka"
            for _ in connections:
                await asked.acquire()
            to_gone.transport.abort()
            preparing.pop(ord("{")).set_exception(OSError("no file handle is left"))
            assert await fails.read() == b"", "it ends, and no other does"
            preparing.pop(0xD7).set_result(None)
            assert await waits.readexactly(2 + len(much)) == b"N:" + much
            again, to_again = await asyncio.open_connection(host, port)
            to_again.write(b"{")
            assert await again.readexactly(3) == b"J:{"
            assert await gone.read() == b""
            for _, writer in connections:
                writer.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(story(), 60))


def test_one_too_many_is_sent_away_and_a_place_becomes_free() -> None:
    async def story() -> None:
        async with _open(FakeClock(), max_connections="2") as (_, host, port):
            first = await asyncio.open_connection(host, port)
            second = await asyncio.open_connection(host, port)
            first[1].write(b"{")
            assert await first[0].readexactly(3) == b"J:{"
            third = await asyncio.open_connection(host, port)
            assert await third[0].read() == b""
            first[1].close()
            second[1].close()
            async with asyncio.timeout(30):
                while True:
                    again = await asyncio.open_connection(host, port)
                    again[1].write(b"x")
                    if await again[0].read(3):
                        break

    asyncio.run(story())


def test_the_silent_are_closed_whether_they_spoke_or_not() -> None:
    async def story() -> None:
        clock = FakeClock()
        async with _open(clock, connections_max_idle_ms="60000") as (front, host, port):
            spoke = await asyncio.open_connection(host, port)
            spoke[1].write(b"{")
            await spoke[0].readexactly(3)
            silent = await asyncio.open_connection(host, port)
            silent_too = await asyncio.open_connection(host, port)
            silent_too[1].write(b"x")
            await silent_too[0].readexactly(3)
            clock.now += 61
            fresh = await asyncio.open_connection(host, port)
            fresh[1].write(b"x")
            await fresh[0].readexactly(3)
            front._close_idle()
            for reader, _ in (spoke, silent, silent_too):
                assert await reader.read() == b""
            fresh[1].write(b"still")
            assert await fresh[0].readexactly(5) == b"still"

    asyncio.run(story())


def test_a_guest_that_does_not_read_does_not_hold_up_the_end() -> None:
    class Talker(Echo):
        def buffer_updated(self, nbytes: int) -> None:
            if self._transport is not None:
                self._transport.write(b"x" * 50_000_000)

    async def story() -> None:
        gone: list[bool] = []
        clock = FakeClock()
        settings = BrokerSettings({})
        front = Front("127.0.0.1", 0, settings, clock, _enter(settings, clock), _noting(clock, gone), {})
        host, port = await front.start()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"talk")
        async with asyncio.timeout(30):
            await reader.readexactly(100)  # the rest is more than any buffer on the way takes
            await front.stop()
        assert gone == [True]
        writer.close()

    def _noting(clock: FakeClock, gone: list[bool]) -> Callable[[Callable[[], None]], Talker]:
        def welcome(told: Callable[[], None]) -> Talker:
            def both() -> None:
                gone.append(True)
                told()

            return Talker(b"", clock, both)

        return welcome

    asyncio.run(story())
