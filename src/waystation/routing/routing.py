"""Exchanges and bindings: declared at run time, remembered in the catalog, and what a publish through them does.

The table in memory is what routes; the catalog has what of it survives a restart (durable exchanges, and bindings
between what is durable). Such a change is written to the catalog, and made in the table when the catalog tells it
(`apply`), whoever wrote it; what does not survive a restart is changed in the table alone. The bindings of a queue or a
topic that is deleted leave the table at once and the catalog a little later; those that a crash leaves there in between
are dropped at the next start, since their target is deleted.

An exchange with more bindings than one write of the catalog may have is deleted in several: the first one deletes the
exchange itself, and from then on it is deleted for every broker. Bindings that are left of it mean nothing (orphans).
Whoever deletes it deletes them next; if it dies, they are deleted at the next start of any broker, or by the one that
makes an exchange of that name again, before it does: they must not come back with it.

On the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from waystation.catalog import ABSENT, BindingRow, Catalog, ExchangeRow, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.catalog.follower import CatalogFollower
from waystation.cluster.store import MOST_CHANGES
from waystation.errors import Conflict, Full, NotAllowed, NotFound, NotLeader, RevisionConflict, WaystationError
from waystation.message import Message
from waystation.observe.events import event_logger
from waystation.protocol import PublishAnswer, RoutingInfo
from waystation.routing.distributing import AwaitDurable, Distributor, Messages, Queues, Routed
from waystation.routing.exchanges.binding import (
    EXCHANGE,
    QUEUE,
    TOPIC,
    Binding,
    canonical_arguments,
    check_key,
    read_arguments,
    split_target,
)
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject
from waystation.routing.namespace_names import local_name, topic_of_full_name
from waystation.routing.resolving import ResolvedRoute, Resolver
from waystation.routing.table import (
    PREDECLARED,
    RESERVED_PREFIX,
    Removal,
    RoutingTable,
    check_exchange_name,
    make_exchange,
)
from waystation.topics.partitions.partition import Receipt

logger = event_logger("waystation.routing")

T = TypeVar("T")

EXCHANGE_TARGET = f"{EXCHANGE}:"
INTERNAL_PREFIX = "__"
"""Topics of the broker's own begin like this: the default exchange does not lead there."""
MAX_EXCHANGES = 100_000
MAX_BINDINGS = 1_000_000
"""A binding costs about a kilobyte of memory."""


class Routing:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.EXCHANGES, rows.BINDINGS)

    def __init__(
        self,
        catalog: Catalog,
        follower: CatalogFollower,
        queues: Queues,
        messages: Messages,
        topics: Container[str],
        kept: AwaitDurable,
    ) -> None:
        self._catalog = catalog
        self._follower = follower
        self._queues = queues
        self._messages = messages
        self._topics = topics
        self._kept = kept
        self.version = 0
        """Grows with every change that can alter a route: of bindings and exchanges, of queues and topics that are
        created or deleted. Who remembers an answer of `resolve` asks again when it is another."""
        self.alternate_by_policy: Callable[[str], tuple[str, str | None] | None] = lambda name: None
        """The policy in force on an exchange, and the alternate exchange that it names."""
        self._fixed = set(PREDECLARED)
        self._table = RoutingTable(queues.__contains__, self._topic_of)
        self._resolver = Resolver(self._table)
        self._distributing = Distributor(self._resolver, queues, messages, kept)
        self._revisions: dict[str, int] = {}  # of the exchanges that are in the catalog
        self._changes = ChangeQueue()
        self._departed: list[tuple[Binding, Receipt | None]] = []
        self._orphans: dict[str, None] = {}  # keys of bindings in the catalog from or to exchanges that were deleted

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open, when queues and topics are known."""
        for entry in self._catalog.read(rows.EXCHANGES).entries.values():
            self._take_exchange(rows.read_exchange(entry.value), entry.revision)
        stale = [row for row in self._catalog.bindings() if not self._take_binding(row)]
        if stale:
            logger.info("bindings.dropped", "bindings whose target was deleted are dropped: {count}", count=len(stale))
            for some in _portions(stale, MOST_CHANGES):
                self._catalog.delete_routes([], some)
        self._changed()

    async def settle(self) -> None:
        """Returns when no change is under way: before the broker stops."""
        await self._changes.settle()

    # -- following the catalog --------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        for exchange in self._table:
            if exchange.name in self._revisions:
                yield rows.exchange_key(exchange.name)
            for binding in exchange.bindings.values():
                if binding.durable:
                    yield rows.binding_key(_row(binding))

    async def apply(self, update: Update) -> None:
        for key, value in update.changes:
            if key.startswith(rows.BINDINGS):
                if value is None:
                    self._drop_binding(key)
                elif not self._take_binding(rows.read_binding(value)):
                    self._orphans[key] = None
            elif value is None:
                self._drop_exchange(rows.exchange_name(key))
            else:
                row = rows.read_exchange(value)
                self._take_exchange(row, update.revision)
                self.govern([row.name])
        for key, value in update.changes:
            if value is None:
                self._orphans.pop(key, None)
        self._changed()

    def _take_exchange(self, row: ExchangeRow, revision: int) -> None:
        settings = ExchangeSettings(
            row.kind, row.alternate, True, row.auto_delete, row.internal, read_arguments(row.arguments)
        )
        present = self._table.find(row.name)
        self._revisions[row.name] = revision
        if present is not None and present.settings == settings:
            return
        try:
            exchange = make_exchange(row.name, settings)
        except WaystationError as error:  # taken by another version, refused by this one
            logger.warning(
                "exchange.unusable", "exchange {exchange} is not used: {error}", exchange=row.name, error=error
            )
            return
        if present is not None:
            self._table.apply(self._table.plan([present], []))
        self._table.add_exchange(exchange)

    def _drop_exchange(self, name: str) -> None:
        exchange = self._table.find(name)
        if self._revisions.pop(name, None) is not None and exchange is not None:
            around = self._table.plan([exchange], [])
            self._orphans.update((rows.binding_key(_row(one)), None) for one in around.bindings if one.durable)
            self._table.apply(around)

    def _take_binding(self, row: BindingRow) -> bool:
        """Whether the catalog shall keep it."""
        exchange = self._table.find(row.exchange)
        if exchange is None or not self._exists(row.target):
            return False
        if (row.target, row.key, row.arguments) in exchange.bindings:
            return True
        binding = Binding(row.exchange, row.target, row.key, read_arguments(row.arguments), row.arguments)
        try:
            self._table.add_binding(binding)
        except WaystationError as error:  # taken by an older version, refused by this one
            reason = str(error).partition("\n")[0]
            logger.warning(
                "binding.unusable",
                "a binding of {exchange} to {target} is not used: {reason}",
                exchange=row.exchange,
                target=row.target,
                reason=reason,
            )
        return True

    def _drop_binding(self, key: str) -> None:
        exchange, target, routing_key = rows.binding_parts(key)
        for binding in self._table.bindings_to(target):
            # The arguments are in the key as a digest only.
            same = binding.durable and binding.exchange == exchange and binding.key == routing_key
            if same and rows.binding_key(_row(binding)) == key:
                self._table.remove_binding(binding)

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
        if name.startswith(RESERVED_PREFIX) or local_name(name).startswith(RESERVED_PREFIX):
            raise NotAllowed(f"exchange: names that begin with {RESERVED_PREFIX!r} are the broker's own; not {name!r}")
        if len(self._table) >= MAX_EXCHANGES:
            raise Full(f"there are {MAX_EXCHANGES} exchanges already; delete one to make room for {name!r}")
        exchange = make_exchange(name, settings)
        canonical = canonical_arguments(settings.arguments)
        if settings.durable:
            row = ExchangeRow(
                name, settings.kind, settings.alternate, settings.auto_delete, settings.internal, canonical
            )
            await self._delete_orphans(name)
            await self._write_exchange(row, settings)
            return
        self._table.add_exchange(exchange)
        self.govern([name])

    async def _write_exchange(self, row: ExchangeRow, settings: ExchangeSettings) -> None:
        key = rows.exchange_key(row.name)
        try:
            await self._follower.change({key: rows.encode(row)}, {key: ABSENT})
        except RevisionConflict:  # somebody else was faster: fine if it was the same
            await self._follower.catch_up()
            _check_same(self._table.get(row.name), settings)

    async def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        """Its bindings go with it, those to it included."""
        await self._changes.to_the_end(self._delete(name, if_unused))

    async def _delete(self, name: str, if_unused: bool) -> None:
        exchange = self._table.get(name)
        if not name or name in self._fixed:
            raise NotAllowed(f"exchange {name!r} is the broker's own and cannot be deleted")
        if if_unused and exchange.bindings:
            raise Conflict(f"exchange {name!r} is in use: it has {len(exchange.bindings)} bindings")
        await self._remove(self._table.plan([exchange], []))

    async def _remove(self, removal: Removal) -> None:
        names = [exchange.name for exchange in removal.exchanges if exchange.settings.durable]
        bindings = [_row(binding) for binding in removal.bindings if binding.durable]
        changes = rows.routes_deleted(names, bindings)
        if len(changes) <= MOST_CHANGES:
            if changes:
                await self._compare_and_change(changes, names)
        else:
            for some in _portions(names, MOST_CHANGES):
                await self._compare_and_change(rows.routes_deleted(some, []), some)
            await self._delete_bindings([rows.binding_key(row) for row in bindings], set(names))
        self._table.apply(removal)  # the rest of it: what is not in the catalog
        self._changed()

    async def _delete_bindings(self, keys: Iterable[str], deleted: Container[str]) -> None:
        """Of targets that were deleted, and of these exchanges as long as there are none of their names again: whoever
        made one has deleted what was left."""
        by_exchanges: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            absent = tuple(sorted({name for name in _ends(key) if name in deleted}))
            by_exchanges.setdefault(absent, []).append(key)
        for absent, those in by_exchanges.items():
            for some in _portions(those, MOST_CHANGES - len(absent)):
                try:
                    await self._follower.change(
                        dict.fromkeys(some), {rows.exchange_key(name): ABSENT for name in absent}
                    )
                except RevisionConflict:
                    break

    async def _delete_orphans(self, name: str) -> None:
        """What is left in the catalog of an exchange of this name that was there before."""
        mine = [key for key in self._orphans if name in _ends(key)]
        if mine:
            await self._delete_bindings(mine, {name})

    async def _compare_and_change(self, changes: Mapping[str, bytes | None], exchanges: Iterable[str]) -> None:
        """Writes, if these exchanges are still those that we know."""
        known = {name: self._revisions[name] for name in exchanges if name in self._revisions}
        try:
            await self._follower.change(changes, {rows.exchange_key(name): known[name] for name in known})
        except RevisionConflict as error:
            raise Conflict(
                f"exchange {', '.join(map(repr, known))}: somebody else changed it at the same time; look, then try"
                " again"
            ) from error

    # -- policies ---------------------------------------------------------------------------------------------------

    def exchange_names(self) -> list[str]:
        return [exchange.name for exchange in self._table]

    def govern(self, names: Iterable[str]) -> None:
        """Brings exchanges under the policies that match them now."""
        for exchange in filter(None, map(self._table.find, names)):
            exchange.policy, alternate = self.alternate_by_policy(exchange.name) or (None, None)
            exchange.alternate = alternate if exchange.settings.alternate is None else exchange.settings.alternate
        self._changed()

    # -- namespaces -------------------------------------------------------------------------------------------------

    def use_local_names(self, local: Callable[[str], str]) -> None:
        """What an exchange or queue is called inside its namespace: as messages shall say it."""
        self._distributing.local = local

    def add_namespace(self, prefix: str) -> None:
        """The exchanges that are always there, under this prefix too."""
        for name, kind in PREDECLARED.items():
            if self._table.find(prefix + name) is None:
                self._table.add_exchange(make_exchange(prefix + name, ExchangeSettings(kind)))
            self._fixed.add(prefix + name)
        self.govern([prefix + name for name in PREDECLARED])

    def forget_namespace(self, prefix: str) -> None:
        """What `add_namespace` has added, and what is not in the catalog: the rest goes as the catalog says."""
        going = [
            exchange
            for exchange in self._table
            if exchange.name.startswith(prefix) and exchange.name not in self._revisions
        ]
        self._fixed.difference_update(exchange.name for exchange in going)
        self._table.apply(self._table.plan(going, []))
        self._changed()

    async def remove_namespace(self, prefix: str) -> None:
        """All exchanges under this prefix, with their bindings."""
        await self._changes.to_the_end(self._remove_namespace(prefix))

    async def _remove_namespace(self, prefix: str) -> None:
        going = [exchange for exchange in self._table if exchange.name.startswith(prefix)]
        self._fixed.difference_update(exchange.name for exchange in going)
        await self._remove(self._table.plan(going, []))

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
        if not durable:
            self._table.add_binding(binding)
            self._changed()
            return
        row = _row(binding)
        await self._compare_and_change({rows.binding_key(row): rows.encode(row)}, [name])
        if not self._exists(target):  # it was deleted while we waited, and its bindings with it
            await self._follower.change(rows.routes_deleted([], [row]))
            raise NotFound(f"{target!r} was deleted while it was bound to exchange {name!r}")

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
            raise NotAllowed("the default exchange has no bindings of its own: queues and topics are reached by name")
        return self._table.get(name)

    async def _check_target(self, target: str) -> bool:
        """Raises NotFound unless the target is there (a topic may be made); whether it survives a restart."""
        kind, name = split_target(target)
        if kind == QUEUE:
            settings = self._queues.describe(name).settings
            return settings.durable and not settings.exclusive
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
        if kind != QUEUE:
            return name in self._topics
        try:
            return name in self._queues
        except NotLeader:
            return True  # the broker that leads its shard knows; a binding is not dropped because this one does not

    def _topic_of(self, key: str) -> str | None:
        """The topic that a routing key to the default exchange names."""
        if key.startswith(INTERNAL_PREFIX):
            return None
        name = topic_of_full_name(key) if "/" in key else key
        return name if name in self._topics else None

    # -- targets that come and go -----------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Exchanges or bindings have."""
        self.version += 1
        self._resolver.forget()

    def on_names_changed(self, *_: object) -> None:
        """Queues or topics came or went: the default exchange has new ways."""
        self.version += 1

    def on_queue_deleted(self, name: str, receipt: Receipt | None = None) -> None:
        """Its bindings leave the table now, and the catalog when the deletion itself is durable (`receipt`)."""
        self._depart([f"{QUEUE}:{name}"], receipt)

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        self._depart([f"{TOPIC}:{name}" for name in names], None)

    def _depart(self, targets: list[str], receipt: Receipt | None) -> None:
        self.version += 1
        going = [binding for target in targets for binding in self._table.bindings_to(target)]
        if not going:
            return
        for binding in going:
            self._table.remove_binding(binding)
        self._resolver.forget()
        # Many queues may go at once, with a connection: one task for all of them.
        if not self._departed:
            self._changes.begin(self._forget_departed())
        self._departed += [(binding, receipt) for binding in going]

    async def _forget_departed(self) -> None:
        departed, self._departed = self._departed, []
        try:
            await self._kept(*dict.fromkeys(receipt for _, receipt in departed))
            # What was bound again since, to a new target of the same name, is in the catalog under the same row.
            unbound = [binding for binding, _ in departed if not self._table.has_like(binding)]
            await self._remove(self._table.plan_departed(unbound))
        except WaystationError as error:
            logger.warning(
                "bindings.left",
                "bindings of deleted targets stay in the catalog until the next start: {error}",
                error=error,
            )

    # -- messages ---------------------------------------------------------------------------------------------------

    def route(self, exchange: str, message: Message, routing_key: str = "") -> list[str]:
        """Where such a message would go: `queue:NAME` and `topic:NAME`, each once."""
        check_key(routing_key)
        return self._table.walk(exchange, [Subject(message, routing_key=routing_key)]).targets

    def resolve(self, exchange: str, routing_key: str) -> ResolvedRoute:
        """Where messages with this key go, remembered. NotFound for an unknown exchange, NotAllowed for an internal
        one. If the answer says that it depends on the message, ask `route_all`."""
        return self._resolver.resolve(exchange, routing_key)

    def route_all(
        self, exchange: str, routing_keys: Sequence[str], message: Message
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(queues, topics) of one message with one or more routing keys, each once."""
        return self._resolver.route_all(exchange, routing_keys, message)

    async def publish(
        self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False
    ) -> PublishAnswer:
        """To every target that matches; returns when all of them have it durably. See `put`."""
        return await self._distributing.publish(exchange, routing_key, messages, mandatory=mandatory)

    def put(self, exchange: str, routing_key: str, messages: Sequence[Message], *, mandatory: bool = False) -> Routed:
        """The same without the wait: see `Distributor.put`."""
        return self._distributing.put(exchange, routing_key, messages, mandatory=mandatory)

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

    def count_exchanges(self) -> int:
        return len(self._table)

    def describe(self, name: str) -> ExchangeSettings:
        return self._table.get(name).settings

    def exchange(self, name: str) -> Exchange:
        """To be looked at, not changed."""
        return self._table.get(name)

    def find(self, name: str) -> Exchange | None:
        """The same, or None."""
        return self._table.find(name)

    def bindings_to(self, target: str) -> list[Binding]:
        return self._table.bindings_to(target)

    @property
    def binding_count(self) -> int:
        return self._table.binding_count


def _ends(key: str) -> tuple[str, str]:
    """The exchange that a binding is from, and the one that it is to, or again the first."""
    source, target, _ = rows.binding_parts(key)
    return source, target.removeprefix(EXCHANGE_TARGET) if target.startswith(EXCHANGE_TARGET) else source


def _portions(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), most):
        yield items[at : at + most]


def _row(binding: Binding) -> BindingRow:
    return BindingRow(binding.exchange, binding.target, binding.key, binding.canonical)


def _check_same(present: Exchange, settings: ExchangeSettings) -> None:
    """Everything has to be as it is, but for the arguments that mean nothing to the kind: the declarer's notes."""
    for name in present.reads_arguments:
        there, asked = present.settings.arguments.get(name), settings.arguments.get(name)
        if present.settings.kind == settings.kind and there != asked:
            raise Conflict(
                f"exchange {present.name!r} is there with {name} {there!r}, not {asked!r};"
                " declare it as it is, or delete it first"
            )
    if present.settings == settings:
        return
    for field in ("kind", "alternate", "durable", "auto_delete", "internal"):
        there, asked = getattr(present.settings, field), getattr(settings, field)
        if there != asked:
            raise Conflict(
                f"exchange {present.name!r} is there with {field} {there!r}, not {asked!r};"
                " declare it as it is, or delete it first"
            )
