"""The beginning of a connection: start, the client's credentials, tune, open.

While a broker has no users there is one, `guest`, with the password that RabbitMQ gives it: such a broker listens on
this machine only, unless it was told that the network keeps others out. EXTERNAL then means that somebody on this
machine is there, who is guest as well. The first user ends that: then credentials are the authenticator's affair.
"""

from __future__ import annotations

from typing import Any

from pamqp import commands

from waystation.protocols.amqp.engine import FRAME_MAX, MAX_CHANNELS
from waystation.protocols.amqp.frames import MIN_FRAME_MAX
from waystation.version import RABBITMQ_VERSION, __version__
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_ALLOWED, SYNTAX_ERROR, AmqpError
from waystation.wire.amqp.tables import decode_table

USER = PASSWORD = "guest"
HEARTBEAT_S = 60
MECHANISMS = "PLAIN AMQPLAIN EXTERNAL"

CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def start(cluster: str, mechanisms: str) -> commands.Connection.Start:
    """What the server says of itself. `product` and `version` say whose clients it is made for."""
    return commands.Connection.Start(
        0,
        9,
        {
            "capabilities": dict(CAPABILITIES),
            "cluster_name": cluster,
            "product": "RabbitMQ",
            "version": RABBITMQ_VERSION,
            "platform": f"Waystation {__version__}",
            "information": "Waystation speaks RabbitMQ's AMQP 0-9-1",
        },
        mechanisms,
        "en_US",
    )


def guest_of(mechanism: str, response: bytes) -> str:
    """Who the client is while there are no users; 403 if it may not be."""
    if mechanism == "EXTERNAL":
        return USER
    if mechanism == "PLAIN":
        parts = response.split(b"\x00")
        if len(parts) != 3:
            raise refused(mechanism)
        found = parts[1], parts[2]
    elif mechanism == "AMQPLAIN":
        try:
            table = decode_table(response, 0, len(response))
        except AmqpError as error:
            raise refused(mechanism) from error
        found = _bytes(table.get("LOGIN")), _bytes(table.get("PASSWORD"))
    else:
        raise unknown_mechanism(mechanism, MECHANISMS)
    if found != (USER.encode(), PASSWORD.encode()):
        raise refused(mechanism)
    return USER


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""


def unknown_mechanism(mechanism: str, offered: str) -> AmqpError:
    return AmqpError(ACCESS_REFUSED, f"{mechanism[:60]!r} is no mechanism here; there are {offered}", hard=True)


def refused(mechanism: str) -> AmqpError:
    return AmqpError(
        ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
        hard=True,
    )


def tune() -> commands.Connection.Tune:
    return commands.Connection.Tune(MAX_CHANNELS, FRAME_MAX, HEARTBEAT_S)


def tuned(method: commands.Connection.TuneOk) -> tuple[int, int, int]:
    """(frame_max, channel_max, heartbeat in s) that both sides can live with. 0 is: no limit of the client's."""
    frame_max = method.frame_max or FRAME_MAX
    if frame_max < MIN_FRAME_MAX:
        raise AmqpError(
            NOT_ALLOWED, f"negotiated frame_max = {frame_max} is lower than the minimum allowed value (4096)"
        )
    if frame_max > FRAME_MAX:
        raise AmqpError(
            NOT_ALLOWED, f"negotiated frame_max = {frame_max} is higher than the maximum allowed value ({FRAME_MAX})"
        )
    if method.channel_max > MAX_CHANNELS:
        raise AmqpError(
            NOT_ALLOWED,
            f"negotiated channel_max = {method.channel_max} is higher than the maximum allowed value ({MAX_CHANNELS})",
        )
    if method.heartbeat < 0:
        raise AmqpError(SYNTAX_ERROR, "a heartbeat below zero")
    return frame_max, method.channel_max or MAX_CHANNELS, method.heartbeat
