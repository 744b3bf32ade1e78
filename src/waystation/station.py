"""A broker with its listeners, on the event loop that it is started on: what `waystation serve` runs on its main
thread, and `embedded.py` on a thread of your own process.

One that could not start completely leaves nothing behind: no port, no lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from waystation.client.links.address import Address
from waystation.config import BrokerSettings
from waystation.errors import Invalid, Unavailable
from waystation.world.memory_disk import MEMORY

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.open import ClusterPlan
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
