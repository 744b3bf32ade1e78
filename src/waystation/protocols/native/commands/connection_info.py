"""How a native session is shown among the connections, and what it is at. Nothing is counted for it: it is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from waystation.broker.access.types import Entrance, Principal
from waystation.observe.connections import ChannelInfo, ConnectionInfo, ConsumerInfo, doing_at

if TYPE_CHECKING:
    from waystation.protocols.native.commands.consumers import NativeConsumer
    from waystation.protocols.native.session import NativeSession

Address = tuple[str, int]
NOWHERE: Address = ("", 0)


class Wire(Protocol):
    """What carries a session, if it is not in this very process."""

    @property
    def peer(self) -> Address: ...

    @property
    def host(self) -> Address: ...

    @property
    def entrance(self) -> Entrance:
        """Of the listener by which it came."""

    @property
    def certificate(self) -> Principal | None:
        """Whom the client's certificate stands for."""

    @property
    def answer_bytes(self) -> int:
        """Of messages in an answer to one who only looks, at this moment."""

    @property
    def others_wait(self) -> bool:
        """Whether other connections wait for small answers: then what is made in one step is to be short."""

    def end(self, reason: str) -> None: ...


def info_of(session: NativeSession, under_way: int) -> ConnectionInfo:
    wire = session.wire
    client: dict[str, Any] = {"name": session.client} if session.client else {}
    client["kind"] = session.name.partition("-")[0]
    channel = _channel(session, under_way)
    transactions = len(session.transactions)
    return ConnectionInfo(
        session.name,
        session.protocol,
        session.login,
        session.namespace,
        NOWHERE if wire is None else wire.peer,
        NOWHERE if wire is None else wire.host,
        session.since_ms,
        "running",
        client,
        channels=[channel],
        doing=doing_at(
            [channel],
            f"{under_way} {'request' if under_way == 1 else 'requests'} under way" if under_way else "",
            f"{transactions} open {'transaction' if transactions == 1 else 'transactions'}" if transactions else "",
        ),
    )


def _channel(session: NativeSession, under_way: int) -> ChannelInfo:
    consumers = [_consumer(consumer) for consumer in session.consumers.values() if consumer.subject]
    return ChannelInfo(
        number=0,
        prefetch=0,
        global_prefetch=0,
        confirms=True,
        transactional=bool(session.transactions),
        unacked=0,
        unconfirmed=under_way,
        published=0,
        delivered=0,
        acked=0,
        consumers=consumers,
    )


def _consumer(consumer: NativeConsumer) -> ConsumerInfo:
    return ConsumerInfo(
        str(consumer.number),
        consumer.subject,
        0,
        consumer.prefetch,
        consumer.acks,
        bool(getattr(consumer.feed, "exclusive", False)),
    )
