"""The broker inside your own process: the same one that `waystation serve` runs, on a thread of its own.

`Station` is a broker with its doors, on the event loop that it is started on; the command line runs one on its main
thread. `BrokerThread` runs one on a background thread; `waystation.open` (in `inprocess.py`) gives it a client. Both
keep the promise that a broker which could not start completely leaves nothing behind: no port, no lock, no thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from waystation.client.links.address import Address, parse_address
from waystation.client.links.forks import let_go, tell_after_fork
from waystation.client.links.local_link import OpenSession, local_dial
from waystation.client.links.loops import close_at_exit, loop_factory
from waystation.config import BrokerSettings
from waystation.errors import Invalid, InvalidSetting, Unavailable, WaystationError
from waystation.world.memory_disk import MEMORY

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.open import ClusterPlan
    from waystation.client.links.link import Dial
    from waystation.cluster.decisions.state import Address as NodeAddress
    from waystation.pipeline_runner import FolderRunner
    from waystation.protocols.amqp.server import AmqpListener
    from waystation.protocols.budget import Budgets
    from waystation.protocols.front import Front
    from waystation.protocols.http.server import HttpListener
    from waystation.protocols.management.api import Management
    from waystation.protocols.native.server import NativeListener
    from waystation.security.tls import Tls
    from waystation.world import World
    from waystation.world.listener import Encryption

KAFKA_PORT = 9092
AMQP_PORT = 5672
AMQPS_PORT = 5671
HTTP_PORT = 8080

TLS_CHECK_S = 5.0
"""Between two looks whether the files of the certificates have changed."""

Setting = str | int | float
"""A broker setting as a program says it; booleans are whole numbers to Python."""


class AddressTaken(Unavailable):
    """A listener cannot listen where it was told to."""


class Station:
    """A broker and its listeners, started and stopped together."""

    def __init__(
        self,
        data: str,
        settings: BrokerSettings,
        *,
        kafka: Address | None,
        amqp: Address | None = None,
        amqps: Address | None = None,
        http: Address | None = None,
        pipelines: str | None = None,
        world: World | None = None,
        cluster: ClusterPlan | None = None,
        insecure: bool = False,
    ) -> None:
        """`cluster`: of which it is a node; None: it is alone."""
        self.data = data
        self._cluster = cluster
        self.on_fenced: Callable[[], None] | None = None
        """Called when another process has started under this node's id: this one leads nothing any more, and has to
        stop."""
        self._world = world
        self._settings = settings
        self._kafka = kafka
        self._amqp = amqp
        self._amqps = amqps
        self._http = http
        self._insecure = insecure  # other machines may reach a broker that asks nobody who they are
        self._tls: Tls | None = None
        self._tls_watch: asyncio.Task[None] | None = None
        self._pipelines = pipelines
        self._runner: FolderRunner | None = None
        self._broker: Broker | None = None
        self._front: Front | None = None
        self._amqp_door: AmqpListener | None = None
        self._amqps_door: AmqpListener | None = None
        self._http_door: HttpListener | None = None
        self.native: NativeListener | None = None  # also the way in for clients in this process
        self.addresses: dict[str, str] = {}

    async def start(self) -> None:
        """Opens the data folder, then the listeners: whoever can connect can be served."""
        from waystation.broker.open import open_broker, open_node
        from waystation.protocols.budget import Budgets
        from waystation.protocols.native.server import NativeListener

        self._load_tls()
        if self._pipelines is not None:
            if self.data == MEMORY:
                raise Invalid("pipelines: what they print is kept in the data folder, and this broker has none")
            from waystation.pipeline_runner import FolderRunner

            self._runner = FolderRunner(self._pipelines, self.data, self._near)
        if self._cluster is None:
            self._broker = await open_broker(self.data, self._settings, self._world)
        else:
            self._broker = await open_node(self.data, self._settings, self._cluster)
            if self._broker.member is not None:
                self._broker.member.membership.on_fenced = self.on_fenced
        self._broker.pipeline_runner = self._runner
        if not self._insecure and any(address is not None and not address.loopback for address in self._all):
            self._broker.authenticator.seal()
        budgets = Budgets(self._broker.settings, self._broker.world.clock)
        self.native = NativeListener(self._broker, budgets)
        try:
            if self._kafka is not None:
                self._front = _front(self._broker, budgets, self.native, self._kafka, self._tls)
                self.addresses["kafka"] = str(await _listen(self._front, self._kafka, "Kafka"))
            if self._amqp is not None:
                from waystation.protocols.amqp.server import AmqpListener

                self._amqp_door = AmqpListener(self._broker, budgets, self._amqp.host, self._amqp.port, self._tls)
                self.addresses["amqp"] = str(await _listen(self._amqp_door, self._amqp, "AMQP"))
            if self._amqps is not None and self._tls is not None:
                from waystation.protocols.amqp.server import AmqpListener
                from waystation.security.tls import TlsOnly

                self._amqps_door = AmqpListener(
                    self._broker, budgets, self._amqps.host, self._amqps.port, TlsOnly(self._tls)
                )
                self.addresses["amqps"] = str(await _listen(self._amqps_door, self._amqps, "AMQPS"))
            if self._http is not None:
                from waystation.protocols.http.server import HttpListener

                mounts = {"/api/": partial(_management, self._broker)}
                self._http_door = HttpListener(
                    self._broker, budgets, self._http.host, self._http.port, mounts, self._tls
                )
                self.addresses["http"] = str(await _listen(self._http_door, self._http, "HTTP"))
            await self._broker.join(_told(self.addresses))
        except BaseException:
            await self.stop()
            raise
        if self._tls is not None:
            self._tls_watch = asyncio.get_running_loop().create_task(self._watch_tls(self._tls, self._broker))

    @property
    def _all(self) -> tuple[Address | None, ...]:
        return self._kafka, self._amqp, self._amqps, self._http

    def _load_tls(self) -> None:
        """Before the data folder is touched: a certificate that cannot be used is a mistake of whoever starts it."""
        if self._settings.text("tls.certificate") or self._settings.text("tls.client-ca"):
            from waystation.security.tls import tls_of

            self._tls = tls_of(self._settings)
        if self._amqps is not None and self._tls is None:
            raise Invalid(f"amqps={self._amqps}: it needs a certificate; set tls.certificate and tls.key")

    @property
    def tls(self) -> Tls | None:
        return self._tls

    async def reload_tls(self) -> bool:
        """Loads the certificates again, for connections from now on. False: they cannot be used, the old ones stay."""
        if self._tls is None or self._broker is None:
            return False
        return await self._broker.world.offload(self._tls.reload)

    async def _watch_tls(self, tls: Tls, broker: Broker) -> None:
        while True:
            await asyncio.sleep(TLS_CHECK_S)
            if await broker.world.offload(tls.changed):
                await self.reload_tls()

    async def stop(self) -> None:
        """Ends the pipelines that it runs, closes the listeners, then the broker, which flushes all that it has."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()  # while the listeners are open: what they did last is told
        if self._broker is not None and self._broker.member is not None:
            await self._broker.member.hand_over()  # while the listeners are open: clients hear who leads now
        self.addresses.clear()
        watch, self._tls_watch = self._tls_watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        found = (self._front, self._amqp_door, self._amqps_door, self._http_door)
        doors = [door for door in found if door is not None]
        self._front = self._amqp_door = self._amqps_door = self._http_door = None
        broker, self._broker = self._broker, None
        try:
            for door in doors:
                await door.stop()
        finally:
            if broker is not None:
                await broker.stop()

    def _near(self) -> str | None:
        """Where a process on this machine finds the Kafka listener."""
        address = self.addresses.get("kafka")
        return None if address is None else address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def _told(addresses: Mapping[str, str]) -> dict[str, NodeAddress]:
    """Where a node listens, as other nodes are told."""
    from waystation.cluster.decisions.state import Address as NodeAddress

    found: dict[str, NodeAddress] = {}
    for name, text in addresses.items():
        host, _, port = text.rpartition(":")
        found[name] = NodeAddress(host.strip("[]"), int(port))
    return found


def _front(
    broker: Broker, budgets: Budgets, native: NativeListener, address: Address, encryption: Encryption | None
) -> Front:
    """The port that Kafka and the native protocol share."""
    from waystation.protocols.front import Front
    from waystation.protocols.kafka.server import KafkaListener

    kafka = KafkaListener(broker, budgets)
    clock = broker.world.clock
    enter = broker.admission.gate("kafka").enter
    welcomes = native.by_first_byte
    return Front(
        address.host,
        address.port,
        broker.settings,
        clock,
        enter,
        kafka.connection,
        welcomes,
        encryption,
        lambda: broker.authenticator.required,
    )


def _management(broker: Broker) -> Management:
    """RabbitMQ's management API: loaded when somebody asks for it, since it takes a tenth of a second."""
    from waystation.protocols.management.api import Management

    return Management(broker)


async def _listen(door: Front | AmqpListener | HttpListener, wanted: Address, name: str) -> Address:
    try:
        host, port = await door.start()
    except OSError as error:
        raise AddressTaken(
            f"the {name} protocol cannot listen at {wanted}: {_why(error)};"
            " choose another address (port 0 takes a free one)"
        ) from None
    return Address(host, port)


def _why(error: OSError) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    # asyncio wraps the reason in a sentence of its own; the system's words are enough.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


class BrokerThread:
    """A running broker on a thread of its own: what `waystation.open` puts its client on.

    A process that ends without `close` is closed on the way out; one that is killed loses nothing that it acknowledged.
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
            kafka=_door_address("kafka", kafka),
            amqp=_door_address("amqp", amqp),
            http=_door_address("http", http),
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


def _door_address(door: str, text: str) -> Address | None:
    if text == "off":
        return None
    address = parse_address(text, default_port=0)
    if not address.loopback:
        raise Invalid(
            f"{door}={text!r}: an embedded broker listens on this machine only; `waystation serve` can do more"
        )
    return address
