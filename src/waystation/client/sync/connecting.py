"""`waystation.connect`: a client of a broker elsewhere, with a thread of its own for the network."""

from __future__ import annotations

from collections.abc import Sequence

from waystation.client.core import Core
from waystation.client.links.link import Dial
from waystation.client.links.login import LoginSource
from waystation.client.links.loops import close_at_exit, loop_factory
from waystation.client.links.servers import Server, parse_servers
from waystation.client.links.socket_link import socket_dials
from waystation.client.options.values import MessageOptions, Seconds, message_defaults
from waystation.client.sending.budget import DEFAULT_IN_FLIGHT_BYTES, ThreadBudget
from waystation.client.sending.producing import Guarantee
from waystation.client.sync.bridge import Bridge, LoopThread
from waystation.client.sync.client import Client
from waystation.errors import Invalid

AT_EXIT_S = 5.0
"""How long a program that ends waits for its handlers."""


class AtExit:
    """Lives as long as its client, and closes it when the program ends, without waiting for handlers for ever."""

    def __init__(self, client: Client) -> None:
        self._client = client
        close_at_exit(self)

    def close(self) -> None:
        self._client.close(AT_EXIT_S)


class RemoteClient(Client):
    """A client that owns its thread."""

    def __init__(self, core: Core, bridge: Bridge, thread: LoopThread, url: str) -> None:
        super().__init__(core, bridge)
        self.url = url
        self._thread = thread
        self._at_exit = AtExit(self)

    def _end(self) -> None:
        self._bridge.end()
        self._thread.stop()

    def __repr__(self) -> str:
        return f"<waystation.Client {self.url}{' closed' if self.closed else ''}>"


def connect(
    url: str | Sequence[str] | None,
    *,
    name: str | None = None,
    connections: int = 1,
    guarantee: Guarantee = "at-least-once",
    timeout: float = 30.0,
    wait: float = 0.0,
    max_in_flight: int = DEFAULT_IN_FLIGHT_BYTES,
    default_priority: int | None = None,
    default_ttl: Seconds | None = None,
) -> Client:
    """See `waystation.connect`."""
    servers = parse_servers(url)
    return connect_to(
        servers,
        credentials=servers[0].credentials,
        name=name,
        connections=connections,
        guarantee=guarantee,
        timeout=timeout,
        wait=wait,
        max_in_flight=max_in_flight,
        defaults=message_defaults(default_priority, default_ttl),
    )


def connect_to(
    servers: Sequence[Server],
    *,
    credentials: LoginSource | None,
    name: str | None = None,
    connections: int = 1,
    guarantee: Guarantee = "at-least-once",
    timeout: float = 30.0,
    wait: float = 0.0,
    max_in_flight: int = DEFAULT_IN_FLIGHT_BYTES,
    defaults: MessageOptions | None = None,
) -> Client:
    """The same, for who knows the servers otherwise than by an address that is written down."""
    dials = socket_dials(servers, timeout)
    if connections < 1:
        raise Invalid(f"connections: {connections} is below 1")
    thread = LoopThread(loop_factory(), "waystation-client")
    bridge = Bridge(thread.loop, thread.ident, ThreadBudget(max_in_flight))
    try:
        core = bridge.run(
            make_core(
                dials,
                bridge,
                name,
                guarantee,
                timeout,
                wait,
                connections=connections,
                defaults=defaults,
                credentials=credentials,
            )
        )
    except BaseException:
        thread.stop()
        raise
    return RemoteClient(core, bridge, thread, f"waystation://{','.join(map(str, servers))}")


async def make_core(
    dials: Sequence[Dial],
    bridge: Bridge,
    name: str | None,
    guarantee: Guarantee,
    timeout: float,
    wait: float = 0.0,
    *,
    connections: int = 1,
    defaults: MessageOptions | None = None,
    credentials: LoginSource | None = None,
) -> Core:
    """A core that is connected, on the bridge's loop."""
    core = Core(
        dials,
        budget=bridge.budget,
        soon=bridge.soon,
        name=name,
        connections=connections,
        guarantee=guarantee,
        timeout_s=timeout,
        defaults=defaults,
        credentials=credentials,
    )
    await core.open(wait)
    return core
