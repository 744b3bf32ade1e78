"""A broker with its listeners, on the event loop that it is started on: what `waystation serve` runs on its main
thread, and `embedded.py` on a thread of your own process.

One that could not start completely leaves nothing behind: no port, no lock.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from waystation.client.links.address import Address
from waystation.config import BrokerSettings
from waystation.errors import Invalid, Unavailable
from waystation.observe.events import event_logger
from waystation.security.entrance import Entrance, ListenerTerms
from waystation.security.tls_files import NO_OWN, OwnFiles, files_of
from waystation.world.memory_disk import MEMORY

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.open import ClusterPlan
    from waystation.cluster.decisions.state import Address as NodeAddress
    from waystation.pipeline_runner import FolderRunner
    from waystation.protocols.budget import Budgets
    from waystation.protocols.front import Front
    from waystation.protocols.management.api import Management
    from waystation.protocols.native.server import NativeListener
    from waystation.security.tls import Tls
    from waystation.security.tls_files import TlsFiles
    from waystation.world import World
    from waystation.world.listener import Encryption

logger = event_logger("waystation.tls")

KAFKA_PORT = 9092
AMQP_PORT = 5672
AMQPS_PORT = 5671
HTTP_PORT = 8080

SPELLED = {"kafka": "Kafka", "amqp": "AMQP", "amqps": "AMQPS", "http": "HTTP"}
TLS_CHECK_S = 5.0
"""Between two looks whether the files of the certificates have changed."""


class AddressTaken(Unavailable):
    """A listener cannot listen where it was told to."""


class ListenerPlan(msgspec.Struct, frozen=True):
    """One address at which a protocol is to be spoken."""

    protocol: str
    """kafka (and the native protocol), amqp or http."""
    address: Address
    tls: str = ""
    """`on`, `off` or `both`, told apart by the first byte; empty: as the settings say."""
    terms: ListenerTerms = ListenerTerms("kafka")
    own: OwnFiles = NO_OWN


def plans_of(**addresses: Address | None) -> tuple[ListenerPlan, ...]:
    """Listeners with nothing but an address, by protocol; None: that protocol is not spoken."""
    return tuple(
        ListenerPlan(name, address, terms=ListenerTerms(name))
        for name, address in addresses.items()
        if address is not None
    )


class Station:
    """A broker and its listeners, started and stopped together."""

    def __init__(
        self,
        data: str,
        settings: BrokerSettings,
        listeners: Iterable[ListenerPlan],
        *,
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
        self._plans = tuple(listeners)
        self._insecure = insecure  # other machines may reach a broker that asks nobody who they are
        self._tls: dict[str, Tls] = {}  # of the listeners that speak TLS, by name
        self._certificates: dict[TlsFiles, Tls] = {}
        self._tls_watch: asyncio.Task[None] | None = None
        self._pipelines = pipelines
        self._runner: FolderRunner | None = None
        self._broker: Broker | None = None
        self._listeners: list[OpenListener] = []
        self.native: NativeListener | None = None  # also the way in for clients in this process
        self.addresses: dict[str, str] = {}
        """Where it listens, by the names of the listeners."""

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
        if not self._insecure and any(not plan.address.loopback for plan in self._plans):
            self._broker.authenticator.seal()
        budgets = Budgets(self._broker.settings, self._broker.world.clock)
        self.native = NativeListener(self._broker, budgets)
        try:
            told: dict[str, NodeAddress] = {}
            for plan in self._plans:
                listener = self._listener(self._broker, budgets, self.native, plan)
                self._listeners.append(listener)
                found = await _listen(listener, plan)
                self.addresses[plan.terms.name] = str(found)
                told[plan.terms.name] = _told(plan.terms, found)
            await self._broker.join(told)
        except BaseException:
            await self.stop()
            raise
        if self._certificates:
            self._tls_watch = asyncio.get_running_loop().create_task(self._watch_tls(self._broker))

    def _listener(self, broker: Broker, budgets: Budgets, native: NativeListener, plan: ListenerPlan) -> OpenListener:
        entrance, encryption = Entrance(broker.authenticator, plan.terms), self._encryption(plan)
        if plan.protocol == "kafka":
            return _front(broker, budgets, native, entrance, plan.address, encryption)
        if plan.protocol == "amqp":
            from waystation.protocols.amqp.server import AmqpListener

            return AmqpListener(broker, budgets, entrance, plan.address.host, plan.address.port, encryption)
        from waystation.protocols.http.server import HttpListener

        mounts = {"/api/": partial(_management, broker, self._listening)}
        return HttpListener(broker, budgets, entrance, plan.address.host, plan.address.port, mounts, encryption)

    def _listening(self) -> list[tuple[str, int]]:
        """The open listeners by protocol and port; one that speaks TLS and plain text is there twice."""
        found: list[tuple[str, int]] = []
        for plan in self._plans:
            address = self.addresses.get(plan.terms.name)
            if address is None:
                continue
            port = int(address.rpartition(":")[2])
            encryption = self._encryption(plan)
            if encryption is None or encryption.plain:
                found.append((plan.protocol, port))
            if encryption is not None:
                found.append((f"{plan.protocol}/ssl", port))
        return found

    def _encryption(self, plan: ListenerPlan) -> Encryption | None:
        tls = self._tls.get(plan.terms.name)
        if tls is None:
            return None
        from waystation.security.tls import TlsOfListener

        return TlsOfListener(tls, plain=plan.tls == "both" if plan.tls else self._settings.flag("tls.plain"))

    def _load_tls(self) -> None:
        """Before the data folder is touched: a certificate that cannot be used is a mistake of whoever starts it."""
        common = files_of(self._settings)
        if common is not None:
            self._certificate(common)  # whether a listener uses it or not
        for plan in self._plans:
            if plan.tls == "off":
                continue
            name = plan.terms.name
            try:
                files = files_of(self._settings, plan.own)
                tls = None if files is None else self._certificate(files)
            except Invalid as error:
                raise Invalid(f"listener {name!r}: {error}") from None
            if tls is not None:
                self._tls[name] = tls
            elif plan.tls:
                raise Invalid(
                    f"listener {name!r} needs a certificate for TLS; set tls.certificate and tls.key, or its own"
                )

    def _certificate(self, files: TlsFiles) -> Tls:
        from waystation.security.tls import Tls

        if files not in self._certificates:
            self._certificates[files] = Tls(files)
        return self._certificates[files]

    @property
    def encrypted(self) -> Collection[str]:
        """The names of the listeners that speak TLS."""
        return self._tls.keys()

    @property
    def logins(self) -> bool:
        """Whether every client has to log in."""
        return self._broker is not None and self._broker.authenticator.required

    @property
    def certified(self) -> bool:
        """Whether certificates are loaded, which can be loaded again: also where no listener uses them."""
        return bool(self._certificates)

    async def reload_tls(self) -> bool:
        """Loads the certificates again, for connections from now on. False: some cannot be used, the old ones stay."""
        return await self._reload(list(self._certificates.values()))

    async def _reload(self, some: Iterable[Tls]) -> bool:
        broker = self._broker
        return broker is not None and all([await self._renew(tls.reload, broker) for tls in some])

    async def _renew(self, step: Callable[[], bool], broker: Broker) -> bool:
        """A step with one certificate. What fails there keeps no other back, nor the next look at all of them."""
        try:
            return await broker.world.offload(step)
        except Exception as error:
            logger.error("tls.not_reloaded", "the certificates in use stay: {error}", error=repr(error))
            return False

    async def _watch_tls(self, broker: Broker) -> None:
        while True:
            await asyncio.sleep(TLS_CHECK_S)
            await self._reload([tls for tls in self._certificates.values() if await self._renew(tls.changed, broker)])

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
        listeners, self._listeners = self._listeners, []
        broker, self._broker = self._broker, None
        try:
            for listener in listeners:
                await listener.stop()
        finally:
            if broker is not None:
                await broker.stop()

    def _near(self) -> str | None:
        """Where a process on this machine finds the Kafka listener."""
        address = self.addresses.get("kafka")
        return None if address is None else address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


class OpenListener(Protocol):
    """A listener of any protocol."""

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address, with the port that was taken where 0 was asked for."""

    async def stop(self) -> None:
        """Closes it and every connection."""


def _told(terms: ListenerTerms, listening: Address) -> NodeAddress:
    """Where a node can be reached, as other nodes are told."""
    from waystation.cluster.decisions.state import Address as NodeAddress

    return NodeAddress(terms.advertised_host or listening.host, terms.advertised_port or listening.port)


def _front(
    broker: Broker,
    budgets: Budgets,
    native: NativeListener,
    entrance: Entrance,
    address: Address,
    encryption: Encryption | None,
) -> Front:
    """A port that Kafka and the native protocol share."""
    from waystation.protocols.front import Front
    from waystation.protocols.kafka.server import KafkaListener

    kafka = KafkaListener(broker, budgets, entrance)
    return Front(
        address.host,
        address.port,
        broker.settings,
        broker.world.clock,
        broker.admission.gate("kafka").enter,
        kafka.connection,
        native.by_first_byte(entrance),
        encryption,
        lambda: entrance.required,
        native.prepare,
    )


def _management(broker: Broker, listening: Callable[[], list[tuple[str, int]]]) -> Management:
    """RabbitMQ's management API: loaded when somebody asks for it, since it takes a tenth of a second."""
    from waystation.protocols.management.api import Management

    return Management(broker, listening)


async def _listen(listener: OpenListener, plan: ListenerPlan) -> Address:
    try:
        host, port = await listener.start()
    except OSError as error:
        name = plan.terms.name
        what = f"the {SPELLED[name]} protocol" if name in SPELLED else f"listener {name!r}"
        raise AddressTaken(
            f"{what} cannot listen at {plan.address}: {_why(error)}; choose another address (port 0 takes a free one)"
        ) from None
    return Address(host, port)


def _why(error: OSError) -> str:
    import errno

    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    # asyncio wraps the reason in a sentence of its own; the system's words are enough.
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
