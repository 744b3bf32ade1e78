"""PLAIN (RFC 4616): the name and the password, in one message. And AMQPLAIN, which is the same in an AMQP table."""

from __future__ import annotations

from waystation.security.sasl.exchange import Directory, Failed, Outcome
from waystation.wire.amqp.errors import AmqpError
from waystation.wire.amqp.tables import decode_table

OVER = "the exchange is over"


class PlainExchange:
    """One message: `AUTHZID NUL NAME NUL PASSWORD`."""

    mechanism = "PLAIN"
    blocking = True

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._over = False

    def step(self, data: bytes) -> Outcome:
        if self._over:
            return Failed(OVER)
        self._over = True
        parts = data.split(b"\0")
        if len(parts) != 3:
            return Failed("the message is not NUL NAME NUL PASSWORD")
        try:
            acting, name = parts[0].decode(), parts[1].decode()
        except UnicodeDecodeError:
            return Failed("the name is not UTF-8")
        if acting not in ("", name):
            return Failed(f"acting as {acting[:60]!r} is not offered", name)
        return self._directory.check(name, parts[2])


class AmqplainExchange:
    """One message: a table with LOGIN and PASSWORD."""

    mechanism = "AMQPLAIN"
    blocking = True

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._over = False

    def step(self, data: bytes) -> Outcome:
        if self._over:
            return Failed(OVER)
        self._over = True
        try:
            table = decode_table(data, 0, len(data))
        except AmqpError:
            return Failed("the message is no table")
        name, password = _bytes(table.get("LOGIN")), _bytes(table.get("PASSWORD"))
        try:
            return self._directory.check(name.decode(), password)
        except UnicodeDecodeError:
            return Failed("the name is not UTF-8")


def _bytes(value: object) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value if isinstance(value, bytes) else b""
