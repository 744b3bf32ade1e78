"""The requests that are answered one by one: what each of them asks of the broker.

`HANDLERS` is the whole list. A handler returns what is answered, or something to await for it; what it raises becomes
the Failure. There is no rule of messaging here, only the broker's calls. Called by the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.access.types import WantedReplicas
from waystation.errors import Invalid, NotAuthenticated
from waystation.protocol import (
    VERSION,
    AbortStaged,
    Act,
    AlterSettings,
    AskNode,
    Authenticate,
    AwaitRecords,
    Begin,
    Bind,
    Cancel,
    Cease,
    ClaimEntries,
    CommitOffsets,
    CommitStaged,
    Consume,
    CreateTopic,
    Credit,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteTopic,
    DescribeQueue,
    DescribeTopic,
    End,
    EndConnection,
    Find,
    Found,
    Get,
    GroupAssignment,
    Hello,
    HelloAnswer,
    JoinGroup,
    ListQueues,
    ListRouting,
    ListTopics,
    OpenInbox,
    OpenReader,
    Peek,
    Peeked,
    Ping,
    PublishBatches,
    PurgeQueue,
    QueueInfo,
    ReadBatches,
    ReadEntries,
    Redrive,
    RedriveAnswer,
    Reply,
    Route,
    RoutingInfo,
    Stage,
    StagedPosition,
    Stats,
    Subscribe,
    TopicInfo,
    Touch,
    Unbind,
    View,
)
from waystation.protocols.native.commands import consuming, reading, records, staging
from waystation.protocols.native.commands.login import LOG_IN, greeting
from waystation.protocols.native.commands.turns import UNANSWERED

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

MAX_LISTED = 10_000
LISTED_AT_ONCE = 1_000
"""Queues that are described in one step: about a millisecond."""
MAX_PEEKED = 1_000
MAX_TRANSACTIONAL_ID = 255

# -- the connection ----------------------------------------------------------------------------------------------------


def hello(session: NativeSession, command: Hello) -> HelloAnswer | Awaitable[HelloAnswer]:
    if not 1 <= command.version <= VERSION:
        raise Invalid(f"version: {command.version} is not spoken here; the newest is {VERSION}")
    session.client = session.access.client_id = command.client[:255]
    if command.mechanism or command.user:
        return session.log_in(command)
    if session.guarded:
        raise NotAuthenticated(LOG_IN)
    return greeting(session)


def authenticate(session: NativeSession, command: Authenticate) -> HelloAnswer | Awaitable[HelloAnswer]:
    return session.log_in(command)


def ping(session: NativeSession, command: Ping) -> None:
    return None


def ask_node(session: NativeSession, command: AskNode) -> Awaitable[bytes]:
    return session.access.cluster.answer_node(command.request, session.name)


def stats(session: NativeSession, command: Stats) -> dict[str, Any]:
    return session.access.views.stats()


# -- queues ------------------------------------------------------------------------------------------------------------


def declare_queue(session: NativeSession, command: DeclareQueue) -> Awaitable[QueueInfo]:
    return session.access.declare_queue(
        command.queue,
        command.settings,
        passive=command.passive,
        alter=command.alter,
        only=command.only,
        owner=session.name,
    )


def delete_queue(session: NativeSession, command: DeleteQueue) -> Awaitable[int]:
    return session.access.delete_queue(command.queue, if_empty=command.if_empty, if_unused=command.if_unused)


def purge_queue(session: NativeSession, command: PurgeQueue) -> Awaitable[int]:
    return session.access.purge_queue(command.queue)


def describe_queue(session: NativeSession, command: DescribeQueue) -> QueueInfo:
    return session.access.describe_queue(command.queue)


async def list_queues(session: NativeSession, command: ListQueues) -> list[QueueInfo]:
    """In slices, with a turn of the loop for everybody else in between."""
    limit = _between("limit", command.limit, MAX_LISTED)
    found: list[QueueInfo] = []
    after = command.after
    while True:
        wanted = min(LISTED_AT_ONCE, limit - len(found))
        page = session.access.list_queues(command.prefix, after, wanted)
        found += page
        if len(page) < wanted or len(found) == limit:
            return found
        after = page[-1].queue
        await asyncio.sleep(0)


def peek(session: NativeSession, command: Peek) -> list[Peeked]:
    count = _between("count", command.count, MAX_PEEKED)
    return session.access.peek(command.queue, count, command.after, command.state, session.answer_bytes)


async def find(session: NativeSession, command: Find) -> Found | None:
    access = session.access
    if command.queue is not None:
        return access.find_queued(command.message_id, command.queue)
    found = access.find_queued(command.message_id) if command.topic is None else None
    return found or await access.find_stored(command.message_id, command.topic)


def cancel(session: NativeSession, command: Cancel) -> Awaitable[bool]:
    return session.access.cancel(command.queue, command.message_id)


def redrive(session: NativeSession, command: Redrive) -> Awaitable[RedriveAnswer]:
    return session.access.redrive(
        command.queue,
        to=command.to,
        filter=command.filter,
        rate=command.rate,
        limit=command.limit,
        dry_run=command.dry_run,
        message_ids=command.message_ids,
    )


# -- topics and routing ------------------------------------------------------------------------------------------------


async def create_topic(session: NativeSession, command: CreateTopic) -> TopicInfo:
    session.access.reading.find(command.topic)  # refused before it is made: the answer describes it
    replicas = WantedReplicas(command.replication_factor)
    await session.access.create_topic(command.topic, command.partitions, command.settings, replicas)
    return session.access.reading.describe(command.topic)


def delete_topic(session: NativeSession, command: DeleteTopic) -> Awaitable[None]:
    return session.access.delete_topic(command.topic)


def describe_topic(session: NativeSession, command: DescribeTopic) -> TopicInfo | Awaitable[TopicInfo]:
    if command.create and session.access.reading.find(command.topic) is None:
        return _describe_new(session, command.topic)
    return session.access.reading.describe(command.topic)


async def _describe_new(session: NativeSession, topic: str) -> TopicInfo:
    await session.access.topics.ensure(topic)
    return session.access.reading.describe(topic)


def list_topics(session: NativeSession, command: ListTopics) -> list[TopicInfo]:
    return session.access.reading.matching(command.pattern)


def declare_exchange(session: NativeSession, command: DeclareExchange) -> Awaitable[None]:
    return session.access.declare_exchange(
        command.exchange, command.kind, command.alternate, command.passive, arguments=command.arguments
    )


def delete_exchange(session: NativeSession, command: DeleteExchange) -> Awaitable[None]:
    return session.access.delete_exchange(command.exchange, if_unused=command.if_unused)


def bind(session: NativeSession, command: Bind) -> Awaitable[None]:
    return session.access.bind(command.exchange, command.target, command.key, command.arguments)


async def unbind(session: NativeSession, command: Unbind) -> None:
    await session.access.unbind(command.exchange, command.target, command.key, command.arguments)


def list_routing(session: NativeSession, command: ListRouting) -> RoutingInfo:
    return session.access.list_routing()


def route(session: NativeSession, command: Route) -> list[str]:
    return session.access.route(command.exchange, command.message, command.routing_key)


def reply(session: NativeSession, command: Reply) -> bool:
    return session.access.inboxes.reply(command.to, command.message)


# -- transactions ------------------------------------------------------------------------------------------------------


async def begin(session: NativeSession, command: Begin) -> int:
    if not 0 < len(command.transactional_id) <= MAX_TRANSACTIONAL_ID:
        raise Invalid(f"transactional_id: must have 1 to {MAX_TRANSACTIONAL_ID} characters")
    transaction = await session.access.begin_named(command.transactional_id, command.timeout_ms)
    number = session.next_number()
    session.transactions[number] = transaction
    if session.closed:
        await transaction.end(False)
    return number


def commit_offsets(session: NativeSession, command: CommitOffsets) -> Awaitable[None] | object:
    if command.consumer:
        return records.commit_as_member(session, command)
    commit = session.access.subscriptions.commit_offsets
    if not command.tx:
        return commit(command.group, command.offsets)
    transaction = session.transaction(command.tx)
    session.in_turn(("tx", command.tx), command.id, lambda: commit(command.group, command.offsets, transaction))
    return UNANSWERED


def end(session: NativeSession, command: End) -> object:
    transaction = session.transaction(command.tx)

    async def work() -> None:
        try:
            await transaction.end(command.commit)
        finally:
            session.transactions.pop(command.tx, None)

    session.in_turn(("tx", command.tx), command.id, work)
    return UNANSWERED


# -- looking at the broker, and running it -----------------------------------------------------------------------------


async def view(session: NativeSession, command: View) -> Any:
    query = _asked(session, "view", command)
    return msgspec.to_builtins(await session.access.views.view(command.what, query))


async def act(session: NativeSession, command: Act) -> Any:
    query = _asked(session, "action", command)
    return msgspec.to_builtins(await session.access.views.act(command.what, query))


def _asked(session: NativeSession, kind: str, command: View | Act) -> dict[str, Any] | msgspec.Struct:
    """With full names, if the session is in a namespace."""
    if session.spoken is None:
        return command.query
    from waystation.broker.access.administration.view_rows import find, read

    query: msgspec.Struct = session.spoken.asked(read(command.query, find(kind, command.what).query))
    return query


def end_connection(session: NativeSession, command: EndConnection) -> None:
    session.access.views.end_connection(command.connection, command.reason)


def alter_settings(session: NativeSession, command: AlterSettings) -> Awaitable[None]:
    return session.access.views.alter_settings(command.settings)


def _between(name: str, value: int, highest: int) -> int:
    if not 1 <= value <= highest:
        raise Invalid(f"{name}: {value} is not between 1 and {highest}")
    return value


Handler = Callable[["NativeSession", Any], Any]

HANDLERS: dict[type, Handler] = {
    Hello: hello,
    Authenticate: authenticate,
    Ping: ping,
    AskNode: ask_node,
    Stats: stats,
    DeclareQueue: declare_queue,
    DeleteQueue: delete_queue,
    PurgeQueue: purge_queue,
    DescribeQueue: describe_queue,
    ListQueues: list_queues,
    Get: consuming.get,
    Peek: peek,
    Find: find,
    Cancel: cancel,
    Redrive: redrive,
    Consume: consuming.consume,
    Subscribe: consuming.subscribe,
    Credit: consuming.credit,
    Touch: consuming.touch,
    Cease: consuming.cease,
    OpenReader: reading.open_reader,
    ClaimEntries: reading.claim_entries,
    ReadEntries: reading.read_entries,
    ReadBatches: records.read_batches,
    AwaitRecords: records.await_records,
    JoinGroup: records.join_group,
    GroupAssignment: records.group_assignment,
    CreateTopic: create_topic,
    DeleteTopic: delete_topic,
    DescribeTopic: describe_topic,
    ListTopics: list_topics,
    DeclareExchange: declare_exchange,
    DeleteExchange: delete_exchange,
    Bind: bind,
    Unbind: unbind,
    ListRouting: list_routing,
    Route: route,
    OpenInbox: consuming.open_inbox,
    Reply: reply,
    Begin: begin,
    CommitOffsets: commit_offsets,
    End: end,
    PublishBatches: staging.publish_batches,
    Stage: staging.stage,
    CommitStaged: staging.commit_staged,
    AbortStaged: staging.abort_staged,
    StagedPosition: staging.staged_position,
    View: view,
    Act: act,
    EndConnection: end_connection,
    AlterSettings: alter_settings,
}
