"""Exchanges and bindings: declared at run time, remembered in the catalog, and what a publish through them does.

The table in memory is what routes; the catalog has what of it survives a restart (durable exchanges, and bindings
between what is durable). A change is in the catalog before it is in the table. The bindings of a queue or a topic that
is deleted leave the table at once and the catalog a little later; those that a crash leaves there in between are
dropped at the next start, since their target is gone.

On the loop's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from waystation.broker.changes import Changes
from waystation.catalog import BindingRow, Catalog, ExchangeRow
from waystation.errors import Conflict, Full, NotAllowed, NotFound, WaystationError
from waystation.message import Message
from waystation.protocol import PublishAnswer, QueueInfo, RoutingInfo
from waystation.queues.feed import Receipt
from waystation.routing.binding import (
    EXCHANGE,
    QUEUE,
    TOPIC,
    Binding,
    canonical_arguments,
    check_key,
    read_arguments,
    split_target,
)
from waystation.routing.exchange import Exchange, ExchangeSettings
from waystation.routing.subject import Subject
from waystation.routing.table import (
    PREDECLARED,
    RESERVED_PREFIX,
    Removal,
    RoutingTable,
    check_exchange_name,
    make_exchange,
)
from waystation.world import World

logger = logging.getLogger("waystation.routing")

MAX_EXCHANGES = 100_000
MAX_BINDINGS = 1_000_000
"""A binding costs about a kilobyte of memory."""


class Put(Protocol):
    @property
    def receipt(self) -> Receipt | None: ...


class Queues(Protocol):
    """What routing asks of the queues."""

    def __contains__(self, name: object) -> bool: ...

    def describe(self, name: str) -> QueueInfo: ...

    def put(self, name: str, messages: Sequence[Message]) -> Put: ...


class Published(Protocol):
    @property
    def places(self) -> list[tuple[str, int, int]]: ...

    @property
    def receipts(self) -> list[Receipt]: ...


class Messages(Protocol):
    """What routing asks of the topics' messages."""

    async def ensure(self, topic: str) -> object: ...

    def publish(self, topic: str, messages: Sequence[Message]) -> Published: ...


class Kept(Protocol):
    def __call__(self, *receipts: Receipt | None) -> Awaitable[None]: ...


class Routed(NamedTuple):
    """Where messages went, and what to wait for until they are durable."""

    places: list[tuple[str, int, int]]  # (topic, partition, first offset)
    queues: list[str]
    receipts: list[Receipt]


class Routing:
    """One per broker."""

    def __init__(
        self,
        catalog: Catalog,
        world: World,
        queues: Queues,
        messages: Messages,
        topics: Container[str],
        kept: Kept,
    ) -> None:
        self._catalog = catalog
        self._world = world
        self._queues = queues
        self._messages = messages
        self._topics = topics
        self._kept = kept
        self._table = RoutingTable(queues.__contains__)
        self._changes = Changes()
        self._departed: list[tuple[Binding, Receipt | None]] = []

    def load(self) -> None:
        """Reads the catalog. Blocks: before the doors open, when queues and topics are known."""
        for row in self._catalog.exchanges():
            settings = ExchangeSettings(
                row.kind, row.alternate, True, row.auto_delete, row.internal, read_arguments(row.arguments)
            )
            self._table.add_exchange(make_exchange(row.name, settings))
        stale = [row for row in self._catalog.bindings() if not self._load_binding(row)]
        if stale:
            logger.info("bindings whose target is gone are dropped: count=%d", len(stale))
            self._catalog.delete_routes([], stale)

    def _load_binding(self, row: BindingRow) -> bool:
        """Whether the catalog shall keep it."""
        exchange = self._table.find(row.exchange)
        if exchange is None or not self._exists(row.target):
            return False
        binding = Binding(row.exchange, row.target, row.key, read_arguments(row.arguments), row.arguments)
        try:
            self._table.add_binding(binding)
        except WaystationError as error:  # taken by an older version, refused by this one
            reason = str(error).partition("\n")[0]
            logger.warning("a binding is not used: exchange=%r target=%r: %s", row.exchange, row.target, reason)
        return True

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    # -- exchanges --------------------------------------------------------------------------------------------------

    async def declare_exchange(
        self,
        name: str,
        kind: str = "direct",
        alternate: str | None = None,
        passive: bool = False,
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """An exchange of this name and kind, made if it is not there. One that differs is a Conflict.

        An `alternate` need not exist yet; as long as it does not, what would go there goes nowhere.
        """
        if passive:
            self._table.get(name)
            return
        settings = ExchangeSettings(kind, alternate, durable, auto_delete, internal, dict(arguments or {}))
        await self._changes.to_the_end(self._declare(name, settings))

    async def _declare(self, name: str, settings: ExchangeSettings) -> None:
        present = self._table.find(name)
        if present is not None:
            _check_same(present, settings)
            return
        check_exchange_name(name)
        if settings.alternate:
            check_exchange_name(settings.alternate)
        if name.startswith(RESERVED_PREFIX):
            raise NotAllowed(f"exchange: names that begin with {RESERVED_PREFIX!r} are the broker's own; not {name!r}")
        if len(self._table) >= MAX_EXCHANGES:
            raise Full(f"there are {MAX_EXCHANGES} exchanges already; delete one to make room for {name!r}")
        exchange = make_exchange(name, settings)
        canonical = canonical_arguments(settings.arguments)
        if settings.durable:
            row = ExchangeRow(
                name, settings.kind, settings.alternate, settings.auto_delete, settings.internal, canonical
            )
            await self._world.offload(self._catalog.save_exchange, row)
        self._table.add_exchange(exchange)

    async def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        """Its bindings go with it, those to it included."""
        await self._changes.to_the_end(self._delete(name, if_unused))

    async def _delete(self, name: str, if_unused: bool) -> None:
        exchange = self._table.get(name)
        if not name or name in PREDECLARED:
            raise NotAllowed(f"exchange {name!r} is the broker's own and cannot be deleted")
        if if_unused and exchange.bindings:
            raise Conflict(f"exchange {name!r} is in use: it has {len(exchange.bindings)} bindings")
        await self._remove(self._table.plan([exchange], []))

    async def _remove(self, removal: Removal) -> None:
        names = [exchange.name for exchange in removal.exchanges if exchange.settings.durable]
        rows = [_row(binding) for binding in removal.bindings if binding.durable]
        if names or rows:
            await self._world.offload(self._catalog.delete_routes, names, rows)
        self._table.apply(removal)

    # -- bindings ---------------------------------------------------------------------------------------------------

    async def bind(self, exchange: str, target: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        """Binds `queue:NAME`, `topic:NAME` or `exchange:NAME`; nothing happens if it is bound like this already."""
        await self._changes.to_the_end(self._bind(exchange, target, key, dict(arguments or {})))

    async def _bind(self, name: str, target: str, key: str, arguments: dict[str, Any]) -> None:
        exchange = self._bindable(name)
        check_key(key)
        durable = await self._check_target(target) and exchange.settings.durable
        canonical = canonical_arguments(arguments)
        # As they will be read after a restart: no tuple now that is a list then.
        binding = Binding(name, target, key, read_arguments(canonical), canonical, durable)
        exchange.check(key, binding.arguments)
        if binding.identity in exchange.bindings:
            return
        if self._table.binding_count >= MAX_BINDINGS:
            raise Full(f"there are {MAX_BINDINGS} bindings already; unbind some to make room")
        if durable:
            await self._world.offload(self._catalog.save_binding, _row(binding))
        if not self._exists(target):  # it was deleted while we waited, and its bindings with it
            if durable:
                await self._world.offload(self._catalog.delete_routes, [], [_row(binding)])
            raise NotFound(f"{target!r} was deleted while it was bound to exchange {name!r}")
        self._table.add_binding(binding)

    async def unbind(self, exchange: str, target: str, key: str = "", arguments: dict[str, Any] | None = None) -> bool:
        """Whether there was such a binding. An auto-delete exchange goes with its last one."""
        return await self._changes.to_the_end(self._unbind(exchange, target, key, dict(arguments or {})))

    async def _unbind(self, name: str, target: str, key: str, arguments: dict[str, Any]) -> bool:
        exchange = self._bindable(name)
        split_target(target)
        binding = exchange.bindings.get((target, key, canonical_arguments(arguments)))
        if binding is None:
            return False
        await self._remove(self._table.plan([], [binding]))
        return True

    def _bindable(self, name: str) -> Exchange:
        if not name:
            raise NotAllowed("the default exchange has no bindings of its own: every queue is reached by its name")
        return self._table.get(name)

    async def _check_target(self, target: str) -> bool:
        """Raises NotFound unless the target is there (a topic may be made); whether it survives a restart."""
        kind, name = split_target(target)
        if kind == QUEUE:
            return not self._queues.describe(name).settings.exclusive
        if kind == EXCHANGE:
            return self._bindable(name).settings.durable
        topic = await self._messages.ensure(name)
        if getattr(topic, "internal", False):
            raise NotAllowed(f"topic {name!r} is the broker's own and cannot be bound")
        return True

    def _exists(self, target: str) -> bool:
        kind, name = split_target(target)
        if kind == EXCHANGE:
            return bool(name) and self._table.find(name) is not None
        return name in (self._queues if kind == QUEUE else self._topics)

    # -- targets that go --------------------------------------------------------------------------------------------

    def on_queue_deleted(self, name: str, receipt: Receipt | None = None) -> None:
        """Its bindings leave the table now, and the catalog when the deletion itself is durable (`receipt`)."""
        self._depart([f"{QUEUE}:{name}"], receipt)

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        self._depart([f"{TOPIC}:{name}" for name in names], None)

    def _depart(self, targets: list[str], receipt: Receipt | None) -> None:
        going = [binding for target in targets for binding in self._table.bindings_to(target)]
        for binding in going:
            self._table.remove_binding(binding)
        # Many queues may go at once, with a connection: one task for all of them.
        if going and not self._departed:
            self._changes.begin(self._forget_departed())
        self._departed += [(binding, receipt) for binding in going]

    async def _forget_departed(self) -> None:
        departed, self._departed = self._departed, []
        try:
            await self._kept(*{receipt for _, receipt in departed})
            # What was bound again since, to a new target of the same name, is in the catalog under the same row.
            gone = [binding for binding, _ in departed if not self._table.has_like(binding)]
            await self._remove(self._table.plan_departed(gone))
        except WaystationError as error:
            logger.warning("bindings of deleted targets stay in the catalog until the next start: %s", error)

    # -- messages ---------------------------------------------------------------------------------------------------

    def route(self, exchange: str, message: Message, routing_key: str = "") -> list[str]:
        """Where such a message would go: `queue:NAME` and `topic:NAME`, each once."""
        check_key(routing_key)
        return self._table.route(exchange, Subject(message, routing_key=routing_key))[0]

    async def publish(
        self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False
    ) -> PublishAnswer:
        """To every target that matches; returns when all of them have it durably. See `put`."""
        routed = self.put(exchange, routing_key, messages, mandatory=mandatory)
        await self._kept(*routed.receipts)
        return PublishAnswer(routed.places, routed.queues)

    def put(self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False) -> Routed:
        """The same without the wait: what was put is durable when the receipts are.

        `mandatory`: NotFound, and nothing is stored, if one of the messages matches no binding. A target that refuses
        (a full queue, for instance) keeps no other target from taking its messages; then the first refusal is raised.
        """
        shares = self._shares(exchange, routing_key, messages, mandatory)
        routed = Routed([], [], [])
        refusal: WaystationError | None = None
        for target, share in shares.items():
            try:
                self._put(target, share, routed)
            except NotFound:
                continue  # deleted a moment ago; its bindings are about to go
            except WaystationError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return routed

    def _shares(
        self, name: str, routing_key: str, messages: Sequence[Message], mandatory: bool
    ) -> dict[str, Sequence[Message]]:
        """Which messages go to which target."""
        check_key(routing_key)
        if self._table.get(name).settings.internal:
            raise NotAllowed(f"exchange {name!r} is internal: it gets messages from other exchanges alone")
        shares: dict[str, list[Message]] = {}
        for message in messages:
            targets, reads_messages = self._table.route(name, Subject(message, routing_key=routing_key))
            if mandatory and not targets:
                raise NotFound(
                    f"no binding of exchange {name!r} matches the routing key {routing_key!r}; nothing was stored"
                )
            if not reads_messages:  # then they all go the same way
                return dict.fromkeys(targets, messages)
            for target in targets:
                shares.setdefault(target, []).append(message)
        return dict(shares)

    def _put(self, target: str, messages: Sequence[Message], routed: Routed) -> None:
        kind, _, name = target.partition(":")
        if kind == QUEUE:
            receipt = self._queues.put(name, messages).receipt
            routed.queues.append(name)
            if receipt is not None:
                routed.receipts.append(receipt)
            return
        published = self._messages.publish(name, messages)
        routed.places.extend(published.places)
        routed.receipts.extend(published.receipts)

    # -- looking ----------------------------------------------------------------------------------------------------

    def listing(self, name: str | None = None) -> RoutingInfo:
        """All exchanges, or this one, and all their bindings but the default exchange's."""
        exchanges = [self._table.get(name)] if name is not None else list(self._table)
        exchanges.sort(key=lambda exchange: exchange.name)
        return RoutingInfo(
            [(exchange.name, exchange.settings.kind, exchange.settings.alternate) for exchange in exchanges],
            [
                (binding.exchange, binding.target, binding.key, binding.arguments)
                for exchange in exchanges
                for binding in exchange.bindings.values()
            ],
        )

    def describe(self, name: str) -> ExchangeSettings:
        return self._table.get(name).settings


def _row(binding: Binding) -> BindingRow:
    return BindingRow(binding.exchange, binding.target, binding.key, binding.canonical)


def _check_same(present: Exchange, settings: ExchangeSettings) -> None:
    """Everything but the arguments has to be as it is: those are the declarer's notes."""
    if present.settings == settings:
        return
    for field in ("kind", "alternate", "durable", "auto_delete", "internal"):
        there, asked = getattr(present.settings, field), getattr(settings, field)
        if there != asked:
            raise Conflict(
                f"exchange {present.name!r} is there with {field} {there!r}, not {asked!r};"
                " declare it as it is, or delete it first"
            )
