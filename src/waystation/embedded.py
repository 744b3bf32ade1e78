"""The broker inside your own process: the same one that `waystation serve` runs, on a thread of its own.

`Station` is a broker with its doors, on the event loop that it is started on; the command line runs one on its main
thread. `EmbeddedBroker` runs one on a background thread and is what `waystation.open` returns. Both keep the promise
that a broker which could not start completely leaves nothing behind: no port, no lock, no thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING

from waystation.client.address import Address, parse_address
from waystation.config import BrokerSettings
from waystation.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.doors.kafka.server import KafkaDoor

KAFKA_PORT = 9092
MEMORY = ":memory:"


class AddressTaken(Unavailable):
    """A door cannot listen where it was told to."""


class Station:
    """A broker and its doors, started and stopped together."""

    def __init__(self, data: str, settings: BrokerSettings, *, kafka: Address | None) -> None:
        self.data = data
        self._settings = settings
        self._kafka = kafka
        self._broker: Broker | None = None
        self._door: KafkaDoor | None = None
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        """Opens the data folder, then the doors: whoever can connect can be served."""
        from waystation.broker.open import open_broker
        from waystation.doors.kafka.server import KafkaDoor

        self._broker = await open_broker(self.data, self._settings)
        try:
            if self._kafka is not None:
                self._door = KafkaDoor(self._broker, self._kafka.host, self._kafka.port)
                self.addresses["kafka"] = str(await _listen(self._door, self._kafka))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Closes the doors, then the broker, which flushes all that it has."""
        self.addresses.clear()
        door, self._door = self._door, None
        broker, self._broker = self._broker, None
        try:
            if door is not None:
                await door.stop()
        finally:
            if broker is not None:
                await broker.stop()


async def _listen(door: KafkaDoor, wanted: Address) -> Address:
    try:
        host, port = await door.start()
    except OSError as error:
        raise AddressTaken(
            f"the Kafka door cannot listen at {wanted}: {_why(error)}; choose another address (port 0 takes a free one)"
        ) from None
    return Address(host, port)


def _why(error: OSError) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    # asyncio wraps the reason in a sentence of its own; the system's words are enough.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, where it installs."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class EmbeddedBroker:
    """A running broker. Use it as a context manager, or call `close`.

    A process that ends without `close` is closed on the way out; one that is killed loses nothing that it acknowledged.
    """

    def __init__(self, path: str | os.PathLike[str], settings: Mapping[str, str] | None, kafka: str) -> None:
        values = dict(settings or {})
        self._memory = _MemoryFolder() if os.fspath(path) == MEMORY else None
        if self._memory is not None:
            values.setdefault("waystation.flush", "os")  # nothing is to survive, so nothing needs to wait for the disk
        self.data = os.fspath(path) if self._memory is None else self._memory.path
        self.kafka = ""
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        try:
            self._start(Station(self.data, BrokerSettings(values), kafka=_door_address(kafka)))
        except BaseException:
            self._clean()
            raise

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"kafka={self.kafka!r}" if self._thread is not None else "closed"
        return f"<waystation.EmbeddedBroker data={self.data!r} {state}>"

    def close(self) -> None:
        """Stops the broker and waits for it; fine if it is closed already."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._clean()

    def _start(self, station: Station) -> None:
        started: Future[None] = Future()
        thread = threading.Thread(target=self._run, args=(station, started), name="waystation", daemon=True)
        thread.start()
        try:
            started.result()
        except BaseException:
            thread.join()
            raise
        self._thread = thread
        self.kafka = station.addresses.get("kafka", "")
        _close_at_exit(self)

    def _run(self, station: Station, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._live(station, started))

    async def _live(self, station: Station, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await station.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        await self._stop.wait()
        await station.stop()

    def _clean(self) -> None:
        if self._memory is not None:
            self._memory.remove()


class _MemoryFolder:
    """Stands in for memory: a temporary folder that goes with the broker."""

    def __init__(self) -> None:
        import tempfile

        self.path = tempfile.mkdtemp(prefix="waystation-")

    def remove(self) -> None:
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)


def _door_address(text: str) -> Address | None:
    if text == "off":
        return None
    address = parse_address(text, default_port=0)
    if not address.loopback:
        raise Invalid(
            f"kafka={text!r}: an embedded broker listens on this machine only; `waystation serve` can do more"
        )
    return address


def _close_at_exit(broker: EmbeddedBroker) -> None:
    """Closes a forgotten broker while threads still work.

    `atexit` comes too late: by then Python has shut every thread pool, and the broker could not flush. Python's own
    pools use this same hook, which has no public name.
    """
    from weakref import ref

    weak = ref(broker)

    def close() -> None:
        alive = weak()
        if alive is not None:
            alive.close()

    register: Callable[[Callable[[], None]], object] | None = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(close)
