"""Which method of a client's is handled where: one table, by the names of the specification.

A handler gets the session, the channel and the method, and returns the answer, or something to wait for, or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.access.types import INBOX_PREFIX
from waystation.protocols.amqp import consuming, getting, settling, transactions
from waystation.protocols.amqp.consuming import REPLY_TO
from waystation.wire.amqp.errors import NOT_FOUND, AmqpError

if TYPE_CHECKING:
    from waystation.protocols.amqp.channel import Channel
    from waystation.protocols.amqp.session import AmqpSession

Handler = Callable[["AmqpSession", "Channel", Any], Awaitable[Frame | None] | Frame | None]


def _flow(session: AmqpSession, channel: Channel, method: commands.Channel.Flow) -> Frame:
    channel.active = bool(method.active)
    for consumer in channel.consumers.values():
        if method.active:
            session.hungry[consumer] = None
        else:
            consumer.pause()
    session.to_flush()
    return commands.Channel.FlowOk(channel.active)


def _queue_declare(session: AmqpSession, channel: Channel, method: commands.Queue.Declare) -> Awaitable[Frame] | Frame:
    if method.queue == REPLY_TO or method.queue.startswith(INBOX_PREFIX):
        # Whoever is to reply asks whether somebody still waits for it, passively or not: nothing is made by it.
        if method.queue != REPLY_TO and not session.access.inboxes.is_open(method.queue):
            raise AmqpError(NOT_FOUND, f"no queue '{method.queue}' in vhost '{session.names.vhost}'")
        return commands.Queue.DeclareOk(method.queue, 0, 1)
    return session.declaring.queue_declare(channel, method)


def _nothing(session: AmqpSession, channel: Channel, method: Frame) -> None:
    """An answer of the client's that needs none."""


HANDLERS: dict[str, Handler] = {
    "Channel.Flow": _flow,
    "Channel.FlowOk": _nothing,
    "Channel.CloseOk": _nothing,
    "Exchange.Declare": lambda session, channel, method: session.declaring.exchange_declare(channel, method),
    "Exchange.Delete": lambda session, channel, method: session.declaring.exchange_delete(channel, method),
    "Exchange.Bind": lambda session, channel, method: session.declaring.exchange_bind(channel, method),
    "Exchange.Unbind": lambda session, channel, method: session.declaring.exchange_unbind(channel, method),
    "Queue.Declare": _queue_declare,
    "Queue.Bind": lambda session, channel, method: session.declaring.queue_bind(channel, method),
    "Queue.Unbind": lambda session, channel, method: session.declaring.queue_unbind(channel, method),
    "Queue.Purge": lambda session, channel, method: session.declaring.queue_purge(channel, method),
    "Queue.Delete": lambda session, channel, method: session.declaring.queue_delete(channel, method),
    "Basic.Qos": consuming.qos,
    "Basic.Consume": consuming.consume,
    "Basic.Cancel": consuming.cancel,
    "Basic.CancelOk": _nothing,
    "Basic.Get": getting.get,
    "Basic.Nack": settling.nack,
    "Basic.Reject": settling.reject,
    "Basic.Recover": settling.recover,
    "Basic.RecoverAsync": settling.recover_async,
    "Confirm.Select": transactions.confirm_select,
    "Tx.Select": transactions.select,
    "Tx.Commit": transactions.commit,
    "Tx.Rollback": transactions.rollback,
}
