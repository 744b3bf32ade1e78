"""The broker inside your own process: the same one that `waystation serve` runs, on a thread of its own.

`waystation.open` (in `inprocess.py`) gives it a client. One that could not start completely leaves no thread behind.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from waystation.client.links.address import Address, parse_address
from waystation.client.links.forks import let_go, tell_after_fork
from waystation.client.links.local_link import OpenSession, local_dial
from waystation.client.links.loops import close_at_exit, loop_factory
from waystation.config import BrokerSettings
from waystation.errors import Invalid, InvalidSetting, Unavailable, WaystationError
from waystation.station import Station, plans_of

if TYPE_CHECKING:
    from waystation.client.links.link import Dial

Setting = str | int | float
"""A broker setting as a program says it; booleans are whole numbers to Python."""


class BrokerThread:
    """A running broker on a thread of its own: what `waystation.open` puts its client on.

    If the process exits without `close`, the broker is closed at exit; if it is killed, nothing that was
    acknowledged is lost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        settings: Mapping[str, Setting] | None,
        kafka: str,
        http: str = "off",
        amqp: str = "off",
    ) -> None:
        values = {name: _setting_text(name, value) for name, value in (settings or {}).items()}
        self.data = os.fspath(path)
        self.addresses: dict[str, str] = {}
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._open_session: OpenSession | None = None
        station = Station(
            self.data,
            BrokerSettings(values),
            plans_of(
                kafka=_listener_address("kafka", kafka),
                amqp=_listener_address("amqp", amqp),
                http=_listener_address("http", http),
            ),
        )
        self._start(station)

    @property
    def running(self) -> bool:
        return self._thread is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The broker's own; nothing on it may block."""
        if self._loop is None:
            raise Unavailable("the broker is not running")
        return self._loop

    @property
    def thread_id(self) -> int:
        return 0 if self._thread is None else self._thread.ident or 0

    def dial(self) -> Dial:
        """The way in for clients in this process, on whatever loop they live."""
        if self._open_session is None:
            raise Unavailable("the broker is not running")
        return local_dial(self._open_session, self.loop)

    def close(self) -> None:
        """Stops the broker and waits for it; fine if it is closed already."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()

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
        self.addresses = dict(station.addresses)
        if station.native is not None:
            self._open_session = station.native.session
        close_at_exit(self)
        tell_after_fork(self)

    def forked(self, error: WaystationError) -> None:
        """In a forked child there is no broker: the folder and the ports are the parent's alone."""
        from waystation.broker.broker import LOCK_FILE

        ports = {parse_address(address, default_port=0).port for address in self.addresses.values()}
        for descriptor in _descriptors():
            if _is_served(descriptor, ports) or _is_file(descriptor, f"{self.data}/{LOCK_FILE}"):
                let_go(descriptor)
        self._thread = self._loop = self._open_session = None
        self.addresses = {}

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


def _descriptors() -> list[int]:
    """All of this process; none where the system does not list them."""
    try:
        return [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return []


def _is_served(descriptor: int, ports: set[int]) -> bool:
    """Whether it is a socket that listens at one of these ports, or one that was accepted there."""
    import socket
    import stat

    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return False
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            name = copy.getsockname()
            return copy.family in (socket.AF_INET, socket.AF_INET6) and name[1] in ports
    except OSError:
        return False


def _is_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def _setting_text(name: str, value: object) -> str:
    """As a config file would have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidSetting(f"{name}: {value!r:.60} is neither text nor a number")


def _listener_address(listener: str, text: str) -> Address | None:
    if text == "off":
        return None
    address = parse_address(text, default_port=0)
    if not address.loopback:
        raise Invalid(
            f"{listener}={text!r}: an embedded broker listens on this machine only; `waystation serve` can do more"
        )
    return address
