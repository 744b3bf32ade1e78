"""Names and settings of a broker on a simulated disk: topics that come and go, exchanges, settings, as they were told.

`NameClients` remembers over all lives what was answered; `NameMachine` asks and checks in one of them. What was asked
and not answered may have happened or not; the next start settles it. What was answered is in force at once, and what is
in force is what the catalog says.

Now and then another administrator changes the same topic at the same moment, past this broker and straight in the
catalog, as another node of a cluster would: one of the two wins, and the other is told.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from tests.simulation.disk import SimDisk
from tests.simulation.promises import Promises, expect
from waystation.broker.broker import Broker
from waystation.catalog import rows
from waystation.errors import Conflict, NotFound
from waystation.log.batches import batch as batches
from waystation.topics.partitions.partition import log_of

TOPICS = tuple(f"passing-{number}" for number in range(3))
SETTING = "num.partitions"
OVERRIDE = "max.message.bytes"
EXCHANGES_MOST = 40
TARGET = "topic:table"


@dataclass
class KnownTopic:
    """`there` is None while nobody knows: it was asked for, and there was no answer yet."""

    there: bool | None = False
    partitions: set[int] = field(default_factory=set)
    overrides: set[str | None] = field(default_factory=set)
    promises: Promises = field(default_factory=lambda: Promises("passing"))


class NameClients:
    """Sets hold what a value may be: one if the last change was answered, two if it was not."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.topics = {name: KnownTopic() for name in TOPICS}
        self.exchanges: set[str] = set()
        self.bound: dict[str, set[bool]] = {}  # an exchange, to one topic
        self.setting: set[str | None] = {None}
        self.strays: set[str] = set()  # folders that no catalog knows
        self.asked = 0
        self.contended = 0
        """How many were told that somebody else was faster."""


class NameMachine:
    """One life."""

    def __init__(self, broker: Broker, disk: SimDisk, clients: NameClients, *, faults: bool = False) -> None:
        self.broker = broker
        self.faults = faults
        self.disk = disk
        self.clients = clients
        self.rng = clients.rng

    # -- check -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compares everything with a broker that has just started, and settles what was not known."""
        clients = self.clients
        for name, known in clients.topics.items():
            self._check_topic(name, known)
        lost = clients.exchanges - set(self.broker.routing.exchange_names())
        expect(not lost, f"exchanges that were declared are gone: {sorted(lost)}")
        for name, told in clients.bound.items():
            exchange = self.broker.routing.find(name)
            bound = exchange is not None and bool(exchange.bindings)
            expect(bound in told, f"{name} is bound: {bound}, told was one of {told}")
            clients.bound[name] = {bound}
        found = self.broker.settings.changed.get(SETTING)
        expect(found in clients.setting, f"{SETTING} is {found}, told was one of {clients.setting}")
        clients.setting = {found}
        self._check_folders()
        self.check_catalog()

    def check_catalog(self) -> None:
        """What is in force is what the catalog says; while nobody changes anything."""
        broker, catalog = self.broker, self.broker.catalog
        said = {row.name: row for row in catalog.topics()}
        found = {topic.name: topic.row for topic in broker.topics}
        expect(said == found, f"the catalog has topics {said}, in force are {found}")
        for topic in broker.topics:
            entry = catalog.get(rows.topic_key(topic.id))
            revision = None if entry is None else entry.revision
            expect(topic.revision == revision, f"{topic.name}: known at revision {topic.revision}, is {revision}")
        expect(
            catalog.settings() == broker.settings.changed,
            f"the catalog has settings {catalog.settings()}, in force are {broker.settings.changed}",
        )
        exchanges = {name for name in broker.routing.exchange_names() if name and not name.startswith("amq.")}
        declared = {row.name for row in catalog.exchanges()}
        expect(declared == exchanges, f"the catalog has exchanges {declared}, in force are {exchanges}")
        bindings = {(row.exchange, row.target, row.key) for row in catalog.bindings()}
        bound = {(exchange, target, key) for exchange, target, key, _ in broker.routing.listing().bindings}
        expect(bindings == bound, f"the catalog has bindings {bindings}, in force are {bound}")

    def _check_topic(self, name: str, known: KnownTopic) -> None:
        topic = self.broker.topics.find(name)
        expect(known.there in (None, topic is not None), f"{name}: told {known.there}, found {topic is not None}")
        if topic is None:
            clients = self.clients.topics
            clients[name] = KnownTopic()
            return
        known.there = True
        partitions, override = len(topic.partitions), topic.overrides.get(OVERRIDE)
        expect(partitions in known.partitions, f"{name}: {partitions} partitions, told {known.partitions}")
        expect(override in known.overrides, f"{name}: {OVERRIDE} is {override}, told {known.overrides}")
        known.partitions, known.overrides = {partitions}, {override}
        known.promises.check(log_of(topic.partition(0)))

    def _check_folders(self) -> None:
        """Nothing is left of deleted topics, and a crash makes no folder that the catalog does not know."""
        known = {topic.folder.rpartition("/")[2] for topic in self.broker.topics}
        found = set(self.disk.list(f"{self.broker.root}/topics"))
        aside = set(self.disk.list(f"{self.broker.root}/lost+found"))
        if self.faults:  # what the disk refuses to remove or to move is left until the next start
            expect(found >= known, f"folders {sorted(found)} for topics {sorted(known)}")
        else:
            expect(found == known, f"folders {sorted(found)} for topics {sorted(known)}")
            expect(aside == self.clients.strays, f"set aside: {aside}, unknown to the catalog: {self.clients.strays}")

    # -- work --------------------------------------------------------------------------------------------------------

    async def change_topic(self) -> None:
        name = self.rng.choice(TOPICS)
        known = self.clients.topics[name]
        if known.there is None:  # the disk refused: what there is now counts
            known.there = self.broker.topics.find(name) is not None
            if not known.there:
                known = self.clients.topics[name] = KnownTopic()
        if not known.there:
            await self._create(name, known)
        elif self.rng.random() < 0.3:
            known.there = None
            await self.broker.topics.delete(name)
            if self.disk.powered:
                expect(self.broker.topics.find(name) is None, f"{name}: deleted, and still there")
                self.clients.topics[name] = KnownTopic()
        elif self.rng.random() < 0.5:
            await (self._alter if self.rng.random() < 0.6 else self._contend)(name, known)
        else:
            await self._publish(name, known)

    async def _create(self, name: str, known: KnownTopic) -> None:
        known.there, known.partitions, known.overrides = None, {1}, {None}
        await self.broker.topics.create(name, 1)
        if self.disk.powered:
            known.there = True
            expect(self.broker.topics.find(name) is not None, f"{name}: created, and not there")

    async def _alter(self, name: str, known: KnownTopic) -> None:
        topics = self.broker.topics
        if self.rng.random() < 0.5:
            more = len(topics.get(name).partitions) + 1
            known.partitions.add(more)
            await topics.add_partitions(name, more)
            if self.disk.powered:
                known.partitions = {more}
                expect(len(topics.get(name).partitions) == more, f"{name}: grown to {more}, and has not")
        else:
            value = str(self.rng.randint(100_000, 999_999))
            known.overrides.add(value)
            await topics.alter(name, {OVERRIDE: value})
            if self.disk.powered:
                known.overrides = {value}
                self._expect_override(name, value)

    async def _contend(self, name: str, known: KnownTopic) -> None:
        """Two administrators alter the topic at once, both from what they have read."""
        mine, theirs = (str(self.rng.randint(100_000, 999_999)) for _ in range(2))
        known.overrides |= {mine, theirs}
        outcomes = await asyncio.gather(
            self.broker.topics.alter(name, {OVERRIDE: mine}), self._alter_past(name, theirs), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Conflict):
                raise outcome
        if not self.disk.powered:
            return
        won = [not isinstance(outcome, Conflict) for outcome in outcomes]
        expect(any(won), f"{name}: two altered it, and neither won")
        # Theirs compares with what was there before both: if both won, theirs was first.
        last = mine if won[0] else theirs
        known.overrides = {last}
        self._expect_override(name, last)
        self.clients.contended += won.count(False)

    async def _alter_past(self, name: str, value: str) -> None:
        """As another node does it."""
        world, catalog = self.broker.world, self.broker.catalog
        key = rows.topic_key(self.broker.topics.get(name).id)
        entry = catalog.get(key)
        if entry is None:
            raise NotFound(name)
        row = replace(rows.read_topic(entry.value), overrides={OVERRIDE: value})
        await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))
        revision = await world.offload(catalog.write, {key: rows.encode(row)}, {key: entry.revision})
        await self.broker.follower.applied(revision)

    def _expect_override(self, name: str, value: str) -> None:
        found = self.broker.topics.get(name).overrides.get(OVERRIDE)
        expect(found == value, f"{name}: {OVERRIDE} was set to {value}, in force is {found}")

    async def _publish(self, name: str, known: KnownTopic) -> None:
        partition = self.broker.topics.get(name).partition(0)
        batch = batches.build([(None, self.rng.randbytes(30), ())], self.broker.world.clock.now_ms())
        header = self.broker.publishing.check(partition, batch)
        try:
            appended = self.broker.publishing.append(partition, batch, header)
        finally:
            known.promises.place(bytes(batch))
        await self.broker.commit.durable(log_of(partition), appended.last_offset + 1)
        if self.disk.powered:
            known.promises.promise(bytes(batch))

    async def declare_exchange(self) -> None:
        self.clients.asked += 1
        name = f"exchange-{self.clients.asked % EXCHANGES_MOST}"
        await self.broker.routing.declare_exchange(name, "topic")
        if self.disk.powered:
            self.clients.exchanges.add(name)
            expect(self.broker.routing.find(name) is not None, f"exchange {name} was declared, and is not there")
        await self._bind(name)

    async def _bind(self, exchange: str) -> None:
        """Or unbinds, if it is bound."""
        clients, routing = self.clients, self.broker.routing
        bound = bool(routing.exchange(exchange).bindings)
        expect(bound in clients.bound.get(exchange, {False}), f"{exchange} is bound: {bound}")
        clients.bound[exchange] = {True, False}
        if bound:
            await routing.unbind(exchange, TARGET, "k")
        else:
            await routing.bind(exchange, TARGET, "k")
        if self.disk.powered:
            clients.bound[exchange] = {not bound}
            found = bool(routing.exchange(exchange).bindings)
            expect(found is not bound, f"{exchange}: bound is {found}, told was {not bound}")

    async def change_setting(self) -> None:
        value = str(self.rng.randint(1, 9))
        self.clients.setting.add(value)
        await self.broker.alter_settings({SETTING: value})
        if self.disk.powered:
            self.clients.setting = {value}
            found = self.broker.settings.changed.get(SETTING)
            expect(found == value, f"{SETTING} was set to {value}, in force is {found}")
