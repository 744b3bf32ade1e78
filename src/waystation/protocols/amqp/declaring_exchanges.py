"""Exchanges as AMQP clients declare, bind and delete them. A part of `Declaring`, which see."""

from __future__ import annotations

from typing import Any

from pamqp import commands

from waystation.errors import Conflict, NotFound, WaystationError
from waystation.routing.binding import EXCHANGE
from waystation.routing.exchange import ExchangeSettings
from waystation.routing.table import KINDS
from waystation.vhosts.arguments import inequivalent, type_of
from waystation.vhosts.vhost import RESERVED_PREFIX, Channel, Things, table
from waystation.wire.amqp.errors import ACCESS_REFUSED, PRECONDITION_FAILED, AmqpError

ALTERNATE = "alternate-exchange"
DELAYED, DELAYED_TYPE = "x-delayed-message", "x-delayed-type"


class ExchangeDeclaring(Things):
    """One connection's."""

    async def exchange_declare(
        self, channel: Channel, method: commands.Exchange.Declare
    ) -> commands.Exchange.DeclareOk:
        name = self._not_default(method.exchange)
        if method.passive:
            self._exchange(name)
            return commands.Exchange.DeclareOk()
        arguments = table(method.arguments)
        asked = self._asked(name, method, arguments)
        present = self._find_exchange(name)
        if present is not None:
            self._check_same(name, present, asked)
            return commands.Exchange.DeclareOk()
        if name.startswith(RESERVED_PREFIX):
            raise self._reserved("exchange", name)
        try:
            await self._broker.routing.declare_exchange(
                self._full(name),
                asked.kind,
                asked.alternate,
                durable=asked.durable,
                auto_delete=asked.auto_delete,
                internal=asked.internal,
                arguments=arguments,
            )
        except WaystationError as error:
            present = self._find_exchange(name)
            if present is not None:  # another was faster
                self._check_same(name, present, asked)
            raise self._refused(error) from error
        return commands.Exchange.DeclareOk()

    def _asked(self, name: str, method: commands.Exchange.Declare, arguments: dict[str, Any]) -> ExchangeSettings:
        kind = method.exchange_type
        if kind not in KINDS:
            raise AmqpError(PRECONDITION_FAILED, f"unknown exchange type '{kind}'")
        inner = arguments.get(DELAYED_TYPE)
        if kind == DELAYED and (not isinstance(inner, str) or inner == DELAYED or inner not in KINDS):
            raise AmqpError(
                PRECONDITION_FAILED, f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type"
            )
        alternate = arguments.get(ALTERNATE)
        if ALTERNATE in arguments and not isinstance(alternate, str):
            raise AmqpError(
                PRECONDITION_FAILED,
                f"invalid type '{type_of(alternate)}' for arg '{ALTERNATE}' in {self._where(name, EXCHANGE)}",
            )
        return ExchangeSettings(
            kind,
            None if alternate is None else self._full(alternate),
            bool(method.durable),
            bool(method.auto_delete),
            bool(method.internal),
            arguments,
        )

    def _check_same(self, name: str, present: ExchangeSettings, asked: ExchangeSettings) -> None:
        where = self._where(name, EXCHANGE)
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
                None if one is None else self._names.local(one) for one in (present.alternate, asked.alternate)
            )
            raise inequivalent(ALTERNATE, where, wanted, there)

    async def exchange_delete(self, channel: Channel, method: commands.Exchange.Delete) -> commands.Exchange.DeleteOk:
        name = self._not_default(method.exchange)
        where = self._where(name, EXCHANGE)
        if name.startswith(RESERVED_PREFIX):
            raise AmqpError(ACCESS_REFUSED, f"deletion of system {where} not allowed")
        try:
            await self._broker.routing.delete_exchange(self._full(name), bool(method.if_unused))
        except NotFound:
            pass  # as RabbitMQ: what is not there needs no deletion
        except Conflict as error:
            raise AmqpError(PRECONDITION_FAILED, f"{where} in use") from error
        except WaystationError as error:
            raise self._refused(error) from error
        return commands.Exchange.DeleteOk()

    async def exchange_bind(self, channel: Channel, method: commands.Exchange.Bind) -> commands.Exchange.BindOk:
        source, destination = self._not_default(method.source), self._not_default(method.destination)
        self._exchange(source)
        self._exchange(destination)
        target = f"{EXCHANGE}:{self._full(destination)}"
        await self._bind(source, target, method.routing_key, method.arguments)
        return commands.Exchange.BindOk()

    async def exchange_unbind(self, channel: Channel, method: commands.Exchange.Unbind) -> commands.Exchange.UnbindOk:
        source, destination = self._not_default(method.source), self._not_default(method.destination)
        target = f"{EXCHANGE}:{self._full(destination)}"
        await self._unbind(source, target, method.routing_key, method.arguments)
        return commands.Exchange.UnbindOk()
