"""The exchanges of a virtual host: declared, bound and deleted by RabbitMQ's rules.

What must hold: an exchange that is there is the one that a declaration asks for, or the declaration is refused (406)
with the first difference. Each method returns when the change is durable, or raises an AmqpError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from waystation.broker.access.types import EXCHANGE, EXCHANGE_KINDS, ExchangeSettings
from waystation.errors import Conflict, NotFound, WaystationError
from waystation.vhosts.arguments import inequivalent, type_of
from waystation.vhosts.vhost import RESERVED_PREFIX, Vhost, named_exchange, table
from waystation.wire.amqp.errors import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError

ALTERNATE = "alternate-exchange"
DELAYED, DELAYED_TYPE = "x-delayed-message", "x-delayed-type"


class VhostExchanges:
    """One owner's."""

    __slots__ = ("_vhost",)

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost

    def check(self, given: str) -> None:
        """404 unless it is there."""
        self._vhost.exchange(named_exchange(given))

    async def declare(
        self,
        given: str,
        kind: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
    ) -> None:
        name = named_exchange(given)
        said = table(arguments)
        alternate = self._alternate(name, kind, said)
        asked = ExchangeSettings(kind, alternate, durable, auto_delete, internal, said)
        vhost = self._vhost
        present = vhost.find_exchange(name)
        if present is not None:
            self._check_same(name, present, asked)
            return
        if name.startswith(RESERVED_PREFIX):
            raise vhost.reserved("exchange", name)
        try:
            await vhost.access.declare_exchange(
                vhost.full(name),
                kind,
                alternate,
                durable=durable,
                auto_delete=auto_delete,
                internal=internal,
                arguments=said,
            )
        except WaystationError as error:
            present = vhost.find_exchange(name)
            if present is not None:  # another was faster
                self._check_same(name, present, asked)
            raise vhost.refused(error) from error

    def _alternate(self, name: str, kind: str, arguments: dict[str, Any]) -> str | None:
        """The alternate exchange that is asked for, by its full name; 406 if type or arguments make no sense."""
        if kind not in EXCHANGE_KINDS:
            raise AmqpError(PRECONDITION_FAILED, f"unknown exchange type '{kind}'")
        inner = arguments.get(DELAYED_TYPE)
        if kind == DELAYED and (not isinstance(inner, str) or inner == DELAYED or inner not in EXCHANGE_KINDS):
            raise AmqpError(
                PRECONDITION_FAILED, f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
            )
        alternate = arguments.get(ALTERNATE)
        if ALTERNATE in arguments and not isinstance(alternate, str):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid type '{type_of(alternate)}' for arg '{ALTERNATE}' in {self._vhost.where(name, EXCHANGE)}",
            )
        return None if alternate is None else self._vhost.full(alternate)

    def _check_same(self, name: str, present: ExchangeSettings, asked: ExchangeSettings) -> None:
        where = self._vhost.where(name, EXCHANGE)
        for word, field in (
            ("type", "kind"),
            ("durable", "durable"),
            ("auto_delete", "auto_delete"),
            ("internal", "internal"),
        ):
            there, wanted = getattr(present, field), getattr(asked, field)
            if there != wanted:
                raise inequivalent(word, where, wanted, there)
        if present.kind == DELAYED:
            there, wanted = present.arguments.get(DELAYED_TYPE), asked.arguments.get(DELAYED_TYPE)
            if there != wanted:
                raise inequivalent(DELAYED_TYPE, where, wanted, there)
        if present.alternate != asked.alternate:
            there, wanted = (
                None if one is None else self._vhost.names.local(one) for one in (present.alternate, asked.alternate)
            )
            raise inequivalent(ALTERNATE, where, wanted, there)

    async def delete(self, given: str, *, if_unused: bool = False) -> None:
        name = named_exchange(given)
        vhost = self._vhost
        where = vhost.where(name, EXCHANGE)
        if name.startswith(RESERVED_PREFIX):
            raise AmqpError(ACCESS_REFUSED, f"deletion of system {where} not allowed")
        try:
            await vhost.access.delete_exchange(vhost.full(name), if_unused)
        except NotFound:
            pass  # as RabbitMQ: what is not there needs no deletion
        except Conflict as error:
            raise AmqpError(PRECONDITION_FAILED, f"{where} in use") from error
        except WaystationError as error:
            raise vhost.refused(error) from error

    async def bind(self, source: str, destination: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Messages of the source go to the destination too, which is an exchange."""
        source, destination = named_exchange(source), named_exchange(destination)
        self._vhost.exchange(source)
        self._vhost.exchange(destination)
        await self._vhost.bind(source, self._target(destination), key, arguments)

    async def unbind(self, source: str, destination: str, key: str, arguments: Mapping[str, Any] | None = None) -> None:
        source, destination = named_exchange(source), named_exchange(destination)
        await self._vhost.unbind(source, self._target(destination), key, arguments)

    def _target(self, destination: str) -> str:
        return f"{EXCHANGE}:{self._vhost.full(destination)}"
