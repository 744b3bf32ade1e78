"""The matrix of permissions: a broker with something of everything in it, and the walk that each row is taken through.

A row is a verb of a protocol's own table, a request, and the rights that it needs, all of them. Every row is asked as
nobody, as a user without a right, with exactly its rights, with all of them but one, as a superuser, and by a user
without a right about things that are not there. What must hold:

- nobody is told to log in; who lacks a right is refused; who has all of them is not, and a superuser is not;
- nothing has happened after a refusal (`Stage.state`);
- a refusal is the same whether the thing exists or not, and names nothing that the request did not name;
- lists have what the user may see, and nothing else;
- the audit log has every refusal, and what a superuser has created, changed or deleted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import msgspec

from waystation.broker.access import Access
from waystation.broker.access.types import OffsetToCommit, Policy
from waystation.broker.broker import Broker
from waystation.catalog import rows
from waystation.client.links.address import Address
from waystation.config import BrokerSettings
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.routing.namespaces import Limits
from waystation.security.api_keys import KIND as API_KEY
from waystation.security.api_keys import ApiKey
from waystation.security.audit import AuditEntry
from waystation.security.credentials import verifiers_of
from waystation.security.principals import Principal
from waystation.security.rules import CLUSTER, Operation, Resource, Rule
from waystation.security.topic_permissions import TopicPermission
from waystation.security.users import User
from waystation.station import Station, plans_of
from waystation.world.memory_disk import MEMORY

SECRET, ABSENT = "secret-", "absent-"
"""How everything in the broker is called, and how what is not there would be."""
PASSWORD = "correct horse"
CHANGING = {"create", "delete", "alter", "alter-configs"}
ALICE, ADMIN, BOB = "alice", "root", "secret-bob"
KEY = "secret-key"
"""The id of an API key of BOB's."""


def right(text: str) -> Rule:
    """`read queue jobs`: about secret-jobs. `describe cluster`. `read queue *`. `write topic orders…`: a prefix."""
    operation, resource, *name = text.split()
    if operation not in get_args(Operation) or resource not in get_args(Resource):
        raise ValueError(text)
    if resource == "cluster":
        return Rule(f"User:{ALICE}", operation, "cluster", CLUSTER)  # type: ignore[arg-type]
    (said,) = name
    found = said if said in ("*", "/") or said.startswith("=") else SECRET + said
    found = found.removeprefix("=")
    match = "prefixed" if found.endswith("…") else "literal"
    return Rule(f"User:{ALICE}", operation, resource, found.removesuffix("…"), match)  # type: ignore[arg-type]


def rights_of(text: str) -> list[Rule]:
    return [right(one.strip()) for one in text.split(";") if one.strip()]


@dataclass(frozen=True, slots=True)
class Row:
    """`rights`: all that it needs, separated by `;`. None of them: every user may. `shows`: rights by which something
    of the broker is in the answer, what the last one names. `fails`: even a superuser gets an error for this
    request, another one."""

    rights: str = ""
    request: Any = None
    shows: str = ""
    fails: bool = False
    anybody: bool = False  # answered before a login, too
    compare: bool = True  # with the answer about what is not there
    either: str = ""  # rights that do in the place of all others
    quiet: bool = False  # the right is asked for, and nothing is changed
    before: str = ""  # a right that what has to be done first needs; it is always there

    @property
    def needed(self) -> list[Rule]:
        return rights_of(self.rights)


class Told(NamedTuple):
    """What came back. `kind`: done, refused (not allowed), nobody (has to log in), failed."""

    kind: str
    text: str


Ask = Callable[["Stage", str | None, str, Row, str], Awaitable[Told]]
"""Sends the request of a row as a user (None: as nobody), with names that begin so."""


class Stage:
    """A broker with listeners, users, and something of everything."""

    def __init__(self, station: Station, broker: Broker) -> None:
        self.station = station
        self.broker = broker
        self.always: list[Rule] = []
        self.audited: list[AuditEntry] = []
        broker.audit._admits = lambda *_: True  # type: ignore[method-assign]  # a matrix is a flood of refusals
        note = broker.audit._note

        def noted(*about: Any, **more: Any) -> None:
            note(*about, **more)
            self.audited.append(msgspec.json.decode(broker.audit._waiting[-1][1], type=AuditEntry))

        broker.audit._note = noted  # type: ignore[method-assign]
        self.addresses = dict(station.addresses)
        self.admin: Access = broker.access(Principal(ADMIN, superuser=True), "/", broker.meters.native)

    async def allow(self, rules: list[Rule]) -> None:
        known = self.broker.permissions.find(lambda rule: rule.principal == f"User:{ALICE}")
        await self.broker.permissions.replace(known, [*self.always, *rules])

    async def prepare(self) -> None:
        """Whatever a verb has changed is as before."""
        broker = self.broker
        for _ in range(10_000):
            if not any(job.state == "running" for job in broker.jobs.latest()):
                break
            await asyncio.sleep(0.001)
        for name in ("secret-new", "aliveness-test"):
            if name in broker.topics:
                await broker.topics.delete(name)
            if name in broker.queues:
                await broker.queues.delete(name)
            if broker.topic_queues.find(name) is not None:
                await broker.topic_queues.delete(name)
            if broker.routing.find(name) is not None:
                await broker.routing.delete_exchange(name)
            if name in broker.namespaces.names():
                await broker.namespaces.delete(name)
            if name in broker.users:
                await broker.users.remove(name)
        if "secret-orders" not in broker.topics:
            await broker.topics.create("secret-orders", 1)
        topic = broker.topics.get("secret-orders").partition(0)
        if topic.end_offset == topic.start_offset:
            published = broker.messages.publish("secret-orders", [Message(b"x", id="secret-id")], None)
            for receipt in published.receipts:
                await broker.durable(receipt)
        for queue, settings in (
            ("secret-dead", QueueSettings()),
            ("secret-jobs", QueueSettings(dead_letter="secret-dead")),
        ):
            if queue not in broker.queues:
                await broker.queues.declare(queue, settings)
            if broker.queues.describe(queue).ready < 1 or broker.queues.find("secret-id", queue) is None:
                await broker.queues.put_durable(queue, [Message(b"x", id="secret-id")])
        if broker.routing.find("secret-events") is None:
            await broker.routing.declare_exchange("secret-events", "direct")
        if not broker.routing.bindings_to("queue:secret-jobs"):
            await broker.routing.bind("secret-events", "queue:secret-jobs", "k")
        if "secret-shop" not in broker.namespaces.names():
            await broker.namespaces.create("secret-shop")
        await broker.namespaces.set_limits("secret-shop", Limits(max_queues=7))
        if not broker.policies.listing():
            await broker.policies.set(Policy("secret-shop", "secret-policy", "^never", {"max-length": 1}))
        offset = OffsetToCommit("secret-orders", 0, 0)
        if not broker.groups.fetch_offsets("secret-group"):
            await broker.groups.commit_offsets("secret-group", [offset])
        if BOB not in broker.users:
            await broker.users.add(BOB, User())
        if broker.api_keys.find(KEY) is None or len(broker.api_keys.listing()) > 1:
            added = dict.fromkeys(broker.api_keys.rows_of(BOB))
            key = ApiKey(BOB, "0" * 64, expires_ms=2**50)
            await broker.follower.change({**added, rows.definition_key(API_KEY, KEY): msgspec.json.encode(key)})
        await broker.permissions.add([Rule(f"User:{BOB}", "read", "namespace", "/")])
        await broker.topic_permissions.set(TopicPermission(BOB, "/", "secret-events", "x", "x"))
        await broker.permissions.remove([Rule(f"User:{BOB}", "read", "topic", "new")])

    def state(self) -> str:
        """All that a verb could have changed."""
        broker = self.broker
        queues = [broker.queues.describe(name) for name in sorted(broker.queues.names("", ""))]
        return "\n".join(
            repr(part)
            for part in (
                [
                    (topic.name, topic.row, [(one.start_offset, one.end_offset) for one in topic.partitions])
                    for topic in broker.topics
                    if not topic.internal
                ],
                [(one.queue, one.ready, one.parked, one.held, one.consumers, one.settings) for one in queues],
                sorted(broker.routing.exchange_names()),
                broker.routing.listing().bindings,
                [(name, broker.namespaces.get(name)) for name in broker.namespaces.names()],
                broker.policies.listing(),
                [(name, broker.users.find(name)) for name in broker.users.names()],
                broker.api_keys.listing(),
                broker.permissions.rules(),
                broker.topic_permissions.listing(),
                broker.quotas.listing(),
                broker.groups.fetch_offsets("secret-group"),
                [one.group_id for one in broker.groups.list_groups()],
                broker.settings.text("log.cleaner.backoff.ms"),
                broker.topic_queues.names(""),
                len(broker.inboxes),
                [job.state for job in broker.jobs.latest()],
            )
        )


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    here = Address("127.0.0.1", 0)
    settings = {"connection.failed.authentication.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    station = Station(MEMORY, BrokerSettings(settings), plans_of(kafka=here, amqp=here, http=here))
    await station.start()
    try:
        broker = station._broker
        if broker is None:
            raise AssertionError("it has started")
        verifiers = verifiers_of(PASSWORD, broker.world.random.token)
        await broker.users.add(ADMIN, User(superuser=True, verifiers=verifiers))
        await broker.users.add(ALICE, User(verifiers=verifiers))
        yield Stage(station, broker)
    finally:
        await station.stop()


class Walk:
    """All rows of a protocol."""

    def __init__(self, ask: Ask, verbs: set[str], rows: Mapping[str, Row]) -> None:
        self._ask = ask
        self._verbs = verbs
        self._rows = rows
        self.wrong: list[str] = []
        self.cases = 0

    async def run(self) -> None:
        known = {verb.partition(" #")[0] for verb in self._rows}  # some have several rows: VERB #WHICH
        self.wrong += [f"{verb}: there is no row that says what it needs" for verb in sorted(self._verbs - known)]
        self.wrong += [f"{verb}: there is no such verb" for verb in sorted(known - self._verbs)]
        async with stage() as found:
            for verb, row in self._rows.items():
                if verb.partition(" #")[0] in self._verbs:
                    await self._walk(found, verb, row)

    async def _case(self, stage: Stage, who: str | None, verb: str, row: Row, names: str = SECRET) -> Told:
        self.cases += 1
        stage.audited.clear()
        told = await self._ask(stage, who, verb.partition(" #")[0], row, names)
        if told.kind == "refused" and who is not None:
            self._expect(stage, verb, who, "refusal", "refused")
        elif any(one.kind == "refusal" for one in stage.audited):
            self.wrong.append(f"{verb}, {who}: {told.kind}, and the audit log says refused: {stage.audited}")
        return told

    def _expect(self, stage: Stage, verb: str, who: str, kind: str, result: str) -> None:
        """The audit log says it of this user, at this address, by this protocol."""
        for one in stage.audited:
            if (one.kind, one.user, one.host) == (kind, f"User:{who}", "127.0.0.1") and one.result == result:
                if one.protocol not in ("http", "native", "amqp") or not one.operation or not one.resource:
                    self.wrong.append(f"{verb}: the audit log says too little: {one}")
                return
        self.wrong.append(f"{verb}, {who}: the audit log has no {kind}: {stage.audited}")

    async def _walk(self, stage: Stage, verb: str, row: Row) -> None:
        stage.always = rights_of(row.before)
        await stage.allow([])
        await stage.prepare()
        before = stage.state()
        told = await self._case(stage, None, verb, row)
        if not row.anybody and told.kind != "nobody":
            self.wrong.append(f"{verb}, nobody: {told}")
        await self._without(stage, verb, row)
        needed = row.needed
        for i, missing in enumerate(needed if len(needed) > 1 else ()):
            await stage.allow([*needed[:i], *needed[i + 1 :]])
            before = _without_rules(stage.state())
            told = await self._case(stage, ALICE, verb, row)
            if told.kind != "refused":
                self.wrong.append(f"{verb}, without {missing.operation} {missing.resource} alone: {told}")
            if _without_rules(stage.state()) != before:
                self.wrong.append(f"{verb}, without {missing.operation} {missing.resource}: it was done")
        for rules, who in [(needed, ALICE), *([(rights_of(row.either), ALICE)] if row.either else []), ([], ADMIN)]:
            await stage.allow(rules)
            await stage.prepare()
            told = await self._case(stage, who, verb, row)
            if told.kind != ("failed" if row.fails else "done"):
                self.wrong.append(f"{verb}, {who} with {row.rights or 'no right'}: {told}")
            if CHANGING & {one.operation for one in needed} and told.kind == "done" and not row.quiet:
                self._expect(stage, verb, who, "change", "ok")
        if row.shows:
            await self._shows(stage, verb, row, told.text)

    async def _without(self, stage: Stage, verb: str, row: Row) -> None:
        before = stage.state()
        told = await self._case(stage, ALICE, verb, row)
        if row.needed and told.kind != "refused":
            self.wrong.append(f"{verb}, without a right: {told}")
        if row.needed and stage.state() != before:
            self.wrong.append(f"{verb}, without a right: it was done")
        if row.shows or row.needed:
            leaked = set(re.findall(rf"{SECRET}\w+", told.text)) - set(re.findall(rf"{SECRET}\w+", f"{verb} {row}"))
            leaked -= _in_path(verb)
            if leaked:
                self.wrong.append(f"{verb}, without a right: it is told of {sorted(leaked)}: {told.text[:300]}")
        if row.needed and row.compare:
            other = await self._case(stage, ALICE, verb, row, ABSENT)
            if (other.kind, other.text.replace(ABSENT, SECRET)) != (told.kind, told.text):
                self.wrong.append(f"{verb}, of what is not there: {other}; of what is: {told}")

    async def _shows(self, stage: Stage, verb: str, row: Row, whole: str) -> None:
        *others, shown = rights_of(row.shows)
        if shown.name not in whole:
            self.wrong.append(f"{verb}: a superuser is not shown {shown.name}: {whole[:300]}")
        await stage.allow([*row.needed, *others, shown])
        told = await self._case(stage, ALICE, verb, row)
        if told.kind != "done" or shown.name not in told.text:
            self.wrong.append(f"{verb}, with {row.shows}: {told.kind} {told.text[:300]}")


def _without_rules(state: str) -> str:
    return "\n".join(line for line in state.splitlines() if not line.startswith("[Rule("))


PATHS = {
    "queue": "jobs", "topic": "orders", "exchange": "events", "id": "id", "group": "group", "namespace": "shop",
    "policy": "policy", "user": "bob", "key": "key", "connection": "connection", "job": "job", "pipeline": "pipeline",
    "source": "events", "destination": "jobs", "channel": "channel",
}  # fmt: skip
"""What the names in paths are of, with SECRET before them."""


def _in_path(verb: str) -> set[str]:
    return {SECRET + PATHS[part] for part in re.findall(r"\{(\w+)\}", verb) if part in PATHS}


def run(walk: Walk) -> None:
    asyncio.run(asyncio.wait_for(walk.run(), 300))
