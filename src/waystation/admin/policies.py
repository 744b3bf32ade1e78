"""The policies of a broker: kept in the catalog, and put in force on every queue, stream and exchange that they match.

Of several policies that match, the one of the highest priority is in force, alone. What is in force is written into a
queue's settings like any other change of them, so a replay agrees with what was; of an exchange and of a stream it is
remembered in memory and found again at the start. A change is written to the catalog, and is in force when the catalog
has told it (`apply`), whoever wrote it, and everything it matches was looked through. A broker that dies in between,
with a million queues to go through, finishes the work after its next start.

On the loop's thread only. Protocols set and delete policies; queues, topics and routing ask what is in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from waystation.admin.policy_rules import Policy, check_known, check_policy, under, under_stream, without_effect
from waystation.catalog import ABSENT, Catalog, Update, rows
from waystation.catalog.changes import ChangeQueue
from waystation.catalog.follower import CatalogFollower
from waystation.errors import (
    Conflict,
    Full,
    Invalid,
    NotFound,
    RevisionConflict,
    StorageFailed,
    TooLarge,
    WaystationError,
)
from waystation.observe.events import event_logger
from waystation.queues.names import INTERNAL_PREFIX
from waystation.queues.settings import QueueSettings
from waystation.routing.namespace_names import DEFAULT, prefix_of, topic_prefix_of
from waystation.topics.partitions.partition import Receipt
from waystation.topics.topics import Topic
from waystation.world import World

logger = event_logger("waystation.policies")

KIND = "policy"
MAX_POLICIES = 1_000
MAX_POLICY_BYTES = 16 * 1024
"""RabbitMQ's settings without effect are remembered as they come."""
WRITTEN_AT_ONCE = 100
"""In one transaction of the catalog."""
SLICE = 200
"""Names that are read at once."""
EXCHANGES_AT_ONCE = 20
STREAMS_AT_ONCE = 20
TURN_S = 0.005
"""Then the loop has its turn: some patterns take a thousand times as long as others."""
KEPT_AT_ONCE = 5_000
"""Changes that are written before the disk is waited for."""

_decoder = msgspec.msgpack.Decoder(Policy)


class Queues(Protocol):
    """What policies ask of the queues."""

    effective: Callable[[str, QueueSettings], QueueSettings]

    def known(self, name: str) -> object | None: ...

    def subscribe_leads(self, callback: Callable[[], None]) -> None: ...

    def names(self, prefix: str = "", after: str = "") -> Iterable[str]: ...

    def govern(self, name: str) -> Receipt | None: ...


class Routing(Protocol):
    """What policies ask of the exchanges."""

    alternate_by_policy: Callable[[str], tuple[str, str | None] | None]

    def exchange_names(self) -> list[str]: ...

    def govern(self, names: Iterable[str]) -> None: ...


class Topics(Protocol):
    """What policies ask of the topics."""

    by_policy: Callable[[str], Mapping[str, str]]

    def __iter__(self) -> Iterator[Topic]: ...

    def get(self, name: str) -> Topic: ...

    def refresh(self, topic: Topic) -> None: ...


class Namespaces(Protocol):
    def __contains__(self, name: object) -> bool: ...

    def of(self, full_name: str) -> str: ...

    def of_topic(self, topic: str) -> str: ...

    def local(self, full_name: str) -> str: ...


class AwaitDurable(Protocol):
    def __call__(self, *receipts: Receipt | None) -> Awaitable[None]: ...


class Policies:
    """One per broker: a part that follows the catalog."""

    prefixes: tuple[str, ...] = (rows.definitions_of(KIND),)

    def __init__(
        self,
        catalog: Catalog,
        follower: CatalogFollower,
        world: World,
        queues: Queues,
        topics: Topics,
        routing: Routing,
        namespaces: Namespaces,
        kept: AwaitDurable,
    ) -> None:
        self._catalog = catalog
        self._follower = follower
        self._world = world
        self._queues = queues
        self._topics = topics
        self._routing = routing
        self._namespaces = namespaces
        self._kept = kept
        self._known: dict[tuple[str, str], Policy] = {}
        self._in_order: dict[str, list[Policy]] = {}  # by namespace, the one that wins first
        self._revisions: dict[tuple[str, str], int] = {}
        self._changes = ChangeQueue()
        self._looking: dict[str, asyncio.Future[None]] = {}  # what a namespace's last change waits for
        self._to_do: set[str] = set()  # namespaces whose queues have to be looked through
        self._waiting: list[asyncio.Future[None]] = []
        self._work: asyncio.Task[None] | None = None

    # -- finding ------------------------------------------------------------------------------------------------------

    def listing(self, namespace: str | None = None) -> list[Policy]:
        """In the order of namespaces and names."""
        found = sorted(self._known.items())
        return [policy for (where, _), policy in found if namespace is None or where == namespace]

    def find(self, namespace: str, name: str) -> Policy | None:
        return self._known.get((namespace, name))

    def of_queue(self, full_name: str, queue_type: str | None) -> Policy | None:
        """The one in force on a queue of this name."""
        namespace, local = self._split(full_name)
        for policy in self._in_order.get(namespace, ()):
            if policy.for_queues(queue_type) and policy.matches(local):
                return policy
        return None

    def of_stream(self, topic: str) -> Policy | None:
        """The one in force on a stream, which is a topic of this name."""
        namespace = self._namespaces.of_topic(topic)
        local = topic.removeprefix(topic_prefix_of(namespace))
        for policy in self._in_order.get(namespace, ()):
            if policy.for_streams and policy.matches(local):
                return policy
        return None

    def of_exchange(self, full_name: str) -> Policy | None:
        namespace, local = self._split(full_name)
        for policy in self._in_order.get(namespace, ()):
            if policy.for_exchanges and policy.matches(local):
                return policy
        return None

    def effective(self, full_name: str, settings: QueueSettings) -> QueueSettings:
        """What is in force on a queue that was declared with these settings."""
        if not self._known or full_name.startswith(INTERNAL_PREFIX):
            return settings
        policy = self.of_queue(full_name, settings.queue_type)
        return settings if policy is None else under(policy, settings, prefix_of(policy.namespace))

    def of_stream_settings(self, topic: str) -> dict[str, str]:
        """What is in force on a stream in the place of the topic's own settings."""
        policy = self.of_stream(topic) if self._known else None
        return {} if policy is None else under_stream(policy, self._topics.get(topic).overrides)

    def alternate(self, full_name: str) -> tuple[str, str | None] | None:
        """The policy in force on an exchange, and the alternate exchange that it names."""
        policy = self.of_exchange(full_name) if self._known and full_name else None
        if policy is None:
            return None
        name = policy.definition.get("alternate-exchange")
        return policy.name, prefix_of(policy.namespace) + name if name else None

    def _split(self, full_name: str) -> tuple[str, str]:
        return self._namespaces.of(full_name), self._namespaces.local(full_name)

    # -- changes ------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Reads the catalog. Blocks: before the listeners open, when queues and exchanges are known."""
        for key, entry in self._catalog.read(rows.definitions_of(KIND)).entries.items():
            self._take(key, entry.value, entry.revision)
        self._sort()
        self._queues.effective = self.effective
        self._topics.by_policy = self.of_stream_settings
        self._routing.alternate_by_policy = self.alternate
        self._routing.govern(self._routing.exchange_names())

    def start(self) -> None:
        """Finishes what the last run left undone, and does the same for queues whose shard is led later."""
        self._queues.subscribe_leads(self._look_through_all)
        self._look_through_all()

    def _look_through_all(self) -> None:
        self._look_through([DEFAULT])

    async def stop(self) -> None:
        await self._changes.settle()
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def set(self, policy: Policy) -> bool:
        """Makes it, or replaces the one of its name; True if it was made. Returns when it is in force everywhere."""
        check_known(policy)
        self._check(policy)
        [made] = await self._changes.to_the_end(self._save([policy]))
        await self._in_force([policy.namespace])
        return made

    async def set_all(self, policies: Iterable[Policy]) -> None:
        """Many of them, and one look through the queues. They come from another broker: settings of its plugins, or of
        a later version of it, are remembered, and have no effect."""
        wanted = [self._check(policy) for policy in policies]
        for begin in range(0, len(wanted), WRITTEN_AT_ONCE):
            await self._changes.to_the_end(self._save(wanted[begin : begin + WRITTEN_AT_ONCE]))
        await self._in_force({policy.namespace for policy in wanted})

    def _check(self, policy: Policy) -> Policy:
        """`/` has no prefix that keeps the exchanges of others apart, which its makers of policies may not send to."""
        check_policy(policy)
        for setting in ("dead-letter-exchange", "alternate-exchange"):
            name = policy.definition.get(setting)
            if name and self._namespaces.of(prefix_of(policy.namespace) + name) != policy.namespace:
                raise Invalid(
                    f"{setting}: {name!r} is not in namespace {policy.namespace!r}, which the policy is about"
                )
        return policy

    async def delete(self, namespace: str, name: str) -> None:
        """Returns when everything has again what was declared, or what another policy says."""
        await self._changes.to_the_end(self._forget([(namespace, name)]))
        await self._in_force([namespace])

    async def delete_all(self, namespace: str) -> None:
        """The namespace goes: its queues and exchanges are not looked at."""
        keys = [key for key in self._known if key[0] == namespace]
        for begin in range(0, len(keys), WRITTEN_AT_ONCE):
            await self._changes.to_the_end(self._forget(keys[begin : begin + WRITTEN_AT_ONCE]))

    async def _save(self, policies: Sequence[Policy]) -> list[bool]:
        """Whether each of them is new."""
        made = [(policy.namespace, policy.name) not in self._known for policy in policies]
        if len(self._known) + made.count(True) > MAX_POLICIES:
            raise Full(f"there are {MAX_POLICIES} policies already; delete one to make room for {policies[-1].name!r}")
        values = {(policy.namespace, policy.name): msgspec.msgpack.encode(policy) for policy in policies}
        for (_, name), value in values.items():
            if len(value) > MAX_POLICY_BYTES:
                raise TooLarge(f"policy {name!r} has {len(value)} bytes; the most is {MAX_POLICY_BYTES}")
        await self._write(values)
        for policy in policies:
            if ignored := without_effect(policy):
                logger.warning(
                    "policy.without_effect",
                    "policy {policy} of namespace {namespace} is stored; {settings} of it have no effect here",
                    policy=policy.name,
                    namespace=policy.namespace,
                    settings=", ".join(ignored),
                )
        return made

    async def _forget(self, keys: list[tuple[str, str]]) -> None:
        for namespace, name in keys:
            if (namespace, name) not in self._known:
                raise NotFound(f"there is no policy {name[:255]!r} in namespace {namespace[:255]!r}")
        await self._write(dict.fromkeys(keys))

    async def _write(self, values: Mapping[tuple[str, str], bytes | None]) -> None:
        changes = {_key(*pair): value for pair, value in values.items()}
        expected = {_key(*pair): self._revisions.get(pair, ABSENT) for pair in values}
        try:
            await self._follower.change(changes, expected)
        except RevisionConflict as error:
            names = ", ".join(repr(name) for _, name in values)
            raise Conflict(
                f"policy {names}: somebody else changed it at the same time; look, then try again"
            ) from error

    # -- following the catalog ----------------------------------------------------------------------------------------

    def known_keys(self) -> Iterable[str]:
        return [_key(*pair) for pair in self._revisions]

    async def apply(self, update: Update) -> None:
        changed = {_split_key(key)[0] for key, value in update.changes if self._take(key, value, update.revision)}
        self._sort()
        for namespace in changed:
            if namespace in self._namespaces:
                self._looking[namespace] = self._look_through([namespace])
            else:
                self._looking.pop(namespace, None)  # it is being deleted, and all that is in it

    def _take(self, key: str, value: bytes | None, revision: int) -> bool:
        """Whether that is new."""
        pair = _split_key(key)
        if value is None:
            self._known.pop(pair, None)
            return self._revisions.pop(pair, None) is not None
        if self._revisions.get(pair, ABSENT) >= revision:
            return False
        self._revisions[pair] = revision
        try:
            self._known[pair] = check_policy(_decoder.decode(value))
        except (msgspec.DecodeError, WaystationError) as error:  # taken by another version, refused by this one
            logger.warning("policy.unusable", "policy {policy} is not used: {error}", policy=key, error=error)
            self._known.pop(pair, None)
        return True

    async def _in_force(self, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            looking = self._looking.get(namespace)
            if looking is not None:
                await asyncio.shield(looking)

    def _sort(self) -> None:
        self._in_order = {}
        for _, policy in sorted(self._known.items(), key=lambda item: (-item[1].priority, item[0])):
            self._in_order.setdefault(policy.namespace, []).append(policy)

    # -- putting in force ---------------------------------------------------------------------------------------------

    def _look_through(self, namespaces: Iterable[str]) -> asyncio.Future[None]:
        """Done when every queue of these has the policy that matches it now. Many that ask at once share the work."""
        self._to_do.update(namespaces)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda future: future.cancelled() or future.exception())  # whether or not it is awaited
        self._waiting.append(done)
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._look())
        return done

    async def _look(self) -> None:
        while self._to_do:
            namespaces, self._to_do = self._to_do, set()
            waiting, self._waiting = self._waiting, []
            try:
                for namespace in sorted(namespaces):
                    await self._look_at(namespace)
            except WaystationError as error:
                logger.warning(
                    "policy.partly_applied",
                    "policies are not in force on every queue until the next start: {error}",
                    error=error,
                )
                _tell(waiting, StorageFailed(f"the policy is stored, but not applied to every queue: {error}"))
            finally:
                _tell(waiting, None)

    async def _look_at(self, namespace: str) -> None:
        prefix = prefix_of(namespace)
        exchanges = iter([name for name in self._routing.exchange_names() if name.startswith(prefix)])
        while names := list(islice(exchanges, EXCHANGES_AT_ONCE)):
            self._routing.govern(names)
            await asyncio.sleep(0)
        await self._look_at_streams(namespace)
        after = ""
        written: list[Receipt] = []
        while page := list(islice(self._queues.names(prefix, after), SLICE)):
            await self._govern(page, written)
            after = page[-1]
            if len(written) >= KEPT_AT_ONCE:
                await self._kept(*reversed(written))  # no faster than the disk
                written.clear()
        await self._kept(*reversed(written))

    async def _look_at_streams(self, namespace: str) -> None:
        prefix = topic_prefix_of(namespace)
        streams = iter([topic for topic in self._topics if topic.settings.stream and topic.name.startswith(prefix)])
        while some := list(islice(streams, STREAMS_AT_ONCE)):
            for topic in some:
                self._topics.refresh(topic)
            await asyncio.sleep(0)

    async def _govern(self, names: list[str], written: list[Receipt]) -> None:
        now_s = self._world.clock.monotonic
        began_s = now_s()
        for name in names:
            receipt = self._queues.govern(name) if self._queues.known(name) is not None else None
            if receipt is not None:
                written.append(receipt)
            if now_s() - began_s > TURN_S:
                await asyncio.sleep(0)
                began_s = now_s()
        await asyncio.sleep(0)


def _tell(waiting: list[asyncio.Future[None]], error: Exception | None) -> None:
    for done in waiting:
        if done.done():
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


def _key(namespace: str, name: str) -> str:
    """Unlike any other pair's: the slash of a namespace is written otherwise."""
    from urllib.parse import quote  # 2 ms to load, which a start without policies need not pay

    return rows.definition_key(KIND, f"{quote(namespace, safe='')}/{name}")


def _split_key(key: str) -> tuple[str, str]:
    from urllib.parse import unquote  # as above

    namespace, _, name = rows.definition_name(KIND, key).partition("/")
    return unquote(namespace), name
