"""The requests that are asked now and then, one function each; both faces call them. On the client's loop.

`resend=True` is for what may be done twice: a link that is lost in between is not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from waystation.client.consuming.feeding import Unsettled
from waystation.client.consuming.looked import Looked
from waystation.client.consuming.settler import Settler
from waystation.client.core import Core
from waystation.client.links.connection import Consumer
from waystation.client.options.queue_options import QueueOptions, changed_settings, queue_settings
from waystation.client.options.values import whole_number
from waystation.client.sending.producing import Guarantee
from waystation.errors import Conflict, Invalid, NotFound
from waystation.message import Message
from waystation.protocol import (
    AbortStaged,
    Act,
    AlterSettings,
    AwaitRecords,
    Bind,
    Cancel,
    Cease,
    CommitOffsets,
    CommitStaged,
    CommitStagedAnswer,
    CreateTopic,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteTopic,
    DescribeQueue,
    DescribeTopic,
    EndConnection,
    Find,
    Found,
    GroupAssignment,
    JoinGroup,
    ListQueues,
    ListRouting,
    ListTopics,
    PartitionBatches,
    Peek,
    Peeked,
    Ping,
    Position,
    PublishAnswer,
    PublishBatches,
    PurgeQueue,
    QueueInfo,
    ReadBatches,
    Redrive,
    RedriveAnswer,
    Route,
    RoutingInfo,
    StagedPosition,
    StagedTransaction,
    Stats,
    TopicInfo,
    Unbind,
    View,
)
from waystation.queues.settings import QueueSettings

State = Literal["any", "ready", "parked", "held"]
NOTHING: Any = None
"""The kind of an answer that says nothing."""

PAGE = 1_000
MAX_SIZE = "waystation.retention.messages"
DEDUP_WINDOW_S = 600
"""Of a queue that is made for exactly-once: much longer than any connection is tried again for."""
ACT_S = 300.0
"""What is done by name may look through a whole topic."""
REDRIVE_S = 24 * 3600.0
"""A redrive with a rate takes as long as it takes."""


async def ping(core: Core) -> None:
    await core.ask(Ping(), NOTHING, resend=True)


async def stats(core: Core) -> dict[str, Any]:
    return await core.ask(Stats(), dict[str, Any], resend=True)


# -- queues ------------------------------------------------------------------------------------------------------------


async def declare(core: Core, queue: str, settings: QueueSettings | None, *, passive: bool = False) -> QueueInfo:
    return await core.declare(DeclareQueue(queue=queue, settings=settings, passive=passive))


async def alter_queue(core: Core, queue: str, options: QueueOptions) -> QueueInfo:
    """Changes what the options say, and nothing else."""
    settings, only = changed_settings(options)
    return await core.alter(DeclareQueue(queue=queue, settings=settings, passive=True, alter=True, only=only))


async def declare_for(
    core: Core, queue: str, options: QueueOptions, guarantee: Guarantee, *, passive: bool
) -> QueueInfo:
    """Declares a queue for a guarantee: exactly once needs a queue that knows ids, for a while."""
    settings = queue_settings(options)
    if guarantee != "exactly-once":
        return await declare(core, queue, settings, passive=passive)
    if settings is None:
        try:
            info = await declare(core, queue, None, passive=True)
        except NotFound:
            if passive:
                raise
            info = await declare(core, queue, queue_settings({"dedup_window": DEDUP_WINDOW_S}))
    else:
        if "dedup_window" not in options:
            settings = msgspec.structs.replace(settings, dedup_window_ms=DEDUP_WINDOW_S * 1000)
        info = await declare(core, queue, settings, passive=passive)
    if not info.settings.dedup_window_ms:
        raise Conflict(f"queue {queue!r} has no deduplication window, so exactly-once cannot be kept; alter it")
    return info


async def delete_queue(core: Core, queue: str, *, if_empty: bool, if_unused: bool) -> int:
    core.forget(queue)
    return await core.ask(DeleteQueue(queue=queue, if_empty=if_empty, if_unused=if_unused), int)


async def purge(core: Core, queue: str) -> int:
    return await core.ask(PurgeQueue(queue=queue), int, resend=True)


async def describe_queue(core: Core, queue: str) -> QueueInfo:
    return await core.ask(DescribeQueue(queue=queue), QueueInfo, resend=True)


async def list_queues(core: Core, prefix: str) -> list[QueueInfo]:
    found: list[QueueInfo] = []
    after = ""
    while True:
        page = await core.ask(ListQueues(prefix=prefix, after=after, limit=PAGE), list[QueueInfo], resend=True)
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1].queue


async def peek(core: Core, queue: str, count: int, after: int, state: State) -> list[Looked]:
    """`count` of them, or all there are. The broker may give less at once, so only an empty page is the end."""
    nobody = Settler(core.main, 0, soon=core.soon, queue=queue, settles=False)
    whole_number("count", count)
    looked: list[Looked] = []
    while True:
        command = Peek(queue=queue, count=count - len(looked), after=after, state=state)
        page = await core.ask(command, list[Peeked], resend=True)
        looked += [
            Looked(Unsettled(peeked.delivered, nobody), f"queue:{queue}", peeked.state, peeked.ready_at_ms)
            for peeked in page
        ]
        if not page or len(looked) == count:
            return looked
        after = page[-1].delivered.tag


async def find(core: Core, message_id: str, *, queue: str | None = None, topic: str | None = None) -> Looked | None:
    command = Find(message_id=message_id, queue=queue, topic=topic)
    found = await core.ask(command, Found | None, resend=True)  # type: ignore[arg-type]
    if found is None:
        return None
    kind, _, name = found.place.partition(":")
    nobody = Settler(core.main, 0, soon=core.soon, queue=name if kind == "queue" else "", settles=False)
    return Looked(Unsettled(found.delivered, nobody), found.place, found.state, found.ready_at_ms)


async def cancel(core: Core, queue: str, message_id: str) -> bool:
    return await core.ask(Cancel(queue=queue, message_id=message_id), bool)


async def redrive(
    core: Core,
    queue: str,
    *,
    to: str | None,
    filter: str | None,
    rate: float,
    limit: int,
    dry_run: bool,
    ids: Sequence[str],
) -> RedriveAnswer:
    command = Redrive(queue=queue, to=to, filter=filter, rate=rate, limit=limit, dry_run=dry_run, message_ids=list(ids))
    return await core.ask(command, RedriveAnswer, timeout_s=REDRIVE_S)


# -- topics ------------------------------------------------------------------------------------------------------------


async def create_topic(
    core: Core,
    topic: str,
    partitions: int | None,
    settings: Mapping[str, Any],
    max_size: int | None = None,
    replication_factor: int | None = None,
) -> TopicInfo:
    if not isinstance(settings, Mapping):
        raise Invalid(f"settings: {settings!r:.60} is not a mapping of names to values")
    if max_size is not None:
        if isinstance(max_size, bool) or not isinstance(max_size, int) or max_size < 1:
            raise Invalid(f"max_size: must be a whole number from 1 on, not {max_size!r}")
        if MAX_SIZE in settings:
            raise Invalid(f"max_size: is the setting {MAX_SIZE}, which is given, too; give one of them")
        settings = {**settings, MAX_SIZE: max_size}
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    asked = CreateTopic(topic=topic, partitions=partitions, settings=texts, replication_factor=replication_factor)
    return await core.ask(asked, TopicInfo)


async def delete_topic(core: Core, topic: str) -> None:
    await core.ask(DeleteTopic(topic=topic), NOTHING)


async def describe_topic(core: Core, topic: str, *, create: bool = False) -> TopicInfo:
    return await core.ask(DescribeTopic(topic=topic, create=create), TopicInfo, resend=True)


async def list_topics(core: Core, pattern: str) -> list[TopicInfo]:
    return await core.ask(ListTopics(pattern=pattern), list[TopicInfo], resend=True)


async def commit_offsets(core: Core, group: str, offsets: Sequence[Position], *, consumer: int = 0) -> None:
    """`consumer`: as that member of the group."""
    await core.ask(CommitOffsets(group=group, offsets=list(offsets), consumer=consumer), NOTHING, resend=not consumer)


# -- topics by offsets -------------------------------------------------------------------------------------------------


async def read_batches(
    core: Core, positions: list[Position], *, uncommitted: bool, resend: bool = True
) -> list[PartitionBatches]:
    command = ReadBatches(positions=positions, uncommitted=uncommitted)
    return await core.ask(command, list[PartitionBatches], resend=resend)


async def await_records(
    core: Core, positions: list[Position], wait_ms: int, *, uncommitted: bool, resend: bool = True
) -> bool:
    command = AwaitRecords(positions=positions, wait_ms=wait_ms, uncommitted=uncommitted)
    return await core.ask(command, bool, resend=resend, timeout_s=wait_ms / 1000 + core.timeout_s)


async def join_group(core: Core, member: Consumer, group: str, topics: Sequence[str]) -> int:
    """The member's number on the connection. It is not joined again after a lost link: `member` hears of it."""
    number = core.main.add_consumer(member)
    try:
        await core.ask(JoinGroup(consumer=number, group=group, topics=list(topics)), NOTHING)
    except BaseException:
        core.main.drop_consumer(number)
        raise
    return number


async def group_assignment(core: Core, number: int, owned: list[tuple[str, int]], wait_ms: int) -> list[Position]:
    command = GroupAssignment(consumer=number, owned=owned, wait_ms=wait_ms)
    return await core.ask(command, list[Position], timeout_s=wait_ms / 1000 + core.timeout_s)


async def cease(core: Core, number: int) -> None:
    core.main.drop_consumer(number)
    await core.ask(Cease(consumer=number), NOTHING)


# -- routing -----------------------------------------------------------------------------------------------------------


async def declare_exchange(
    core: Core, name: str, kind: str, alternate: str | None, *, passive: bool, arguments: dict[str, Any] | None
) -> None:
    command = DeclareExchange(
        exchange=name, kind=kind, alternate=alternate, passive=passive, arguments=dict(arguments or {})
    )
    await core.ask(command, NOTHING, resend=True)


async def delete_exchange(core: Core, name: str, *, if_unused: bool) -> None:
    await core.ask(DeleteExchange(exchange=name, if_unused=if_unused), NOTHING)


async def bind(core: Core, exchange: str, target: str, key: str, arguments: dict[str, Any]) -> None:
    await core.ask(Bind(exchange=exchange, target=target, key=key, arguments=arguments), NOTHING, resend=True)


async def unbind(core: Core, exchange: str, target: str, key: str, arguments: dict[str, Any]) -> None:
    await core.ask(Unbind(exchange=exchange, target=target, key=key, arguments=arguments), NOTHING)


async def list_routing(core: Core) -> RoutingInfo:
    return await core.ask(ListRouting(), RoutingInfo, resend=True)


async def route(core: Core, exchange: str, message: Message, routing_key: str) -> list[str]:
    command = Route(exchange=exchange, message=message, routing_key=routing_key)
    return await core.ask(command, list[str], resend=True)


def target_name(target: str) -> str:
    """`queue:NAME`, `topic:NAME` or `exchange:NAME`; a bare name is a queue's."""
    if not isinstance(target, str):
        raise Invalid(
            f"target: {target!r:.60} is not text: give a queue's name, queue:NAME, topic:NAME or exchange:NAME"
        )
    return target if target.startswith(("queue:", "topic:", "exchange:")) else f"queue:{target}"


def check_conditions(exchange: str, kind: str | None, headers: Mapping[str, Any] | None, filter: str | None) -> None:
    """Raises Invalid for a filter that would be ignored, or looked for as a header. Only for new bindings: those of
    before can be taken back. `kind`: None where the caller does not know it."""
    if headers is not None and filter is not None:
        raise Invalid("filter: give headers or a filter, not both: no exchange looks at both of them")
    if filter is not None and kind == "headers":
        raise Invalid(
            f"filter: exchange {exchange!r} is of the kind 'headers' and would look for a header of that name;"
            " give headers, or bind to a filter exchange"
        )


def binding_arguments(
    headers: Mapping[str, Any] | None, match: Literal["all", "any"], filter: str | None
) -> dict[str, Any]:
    """What a binding to a headers or filter exchange says."""
    arguments: dict[str, Any] = dict(headers or {})
    if headers is not None:
        arguments["x-match"] = match
    if filter is not None:
        arguments["filter"] = filter
    return arguments


# -- staged transactions -----------------------------------------------------------------------------------------------


async def commit_staged(
    core: Core, name: str, sequence: int, staged: Sequence[StagedTransaction], abandon: str
) -> bool:
    command = CommitStaged(name=name, sequence=sequence, staged=list(staged), abandon=abandon)
    return (await core.ask(command, CommitStagedAnswer, resend=True)).committed


async def abort_staged(core: Core, staged: Sequence[StagedTransaction], prefix: str, fence: bool) -> int:
    return await core.ask(AbortStaged(staged=list(staged), prefix=prefix, fence=fence), int, resend=True)


async def staged_position(core: Core, name: str) -> int | None:
    kind: Any = int | None
    last: int | None = await core.ask(StagedPosition(name=name), kind, resend=True)
    return last


async def publish_batches(
    core: Core, topic: str, batches: list[tuple[int, bytearray]], *, resend: bool = True
) -> PublishAnswer:
    """At least once: after a lost link they are sent again, unless somebody would rather know."""
    return await core.ask(PublishBatches(topic=topic, batches=batches), PublishAnswer, resend=resend)


# -- looking at the broker, and running it -----------------------------------------------------------------------------


async def view(core: Core, what: str, query: Mapping[str, Any]) -> dict[str, Any]:
    return await core.ask(View(what=what, query=dict(query)), dict[str, Any], resend=True)


async def act(core: Core, what: str, query: Mapping[str, Any]) -> dict[str, Any] | None:
    kind: Any = dict[str, Any] | None
    answer: dict[str, Any] | None = await core.ask(Act(what=what, query=dict(query)), kind, timeout_s=ACT_S)
    return answer


async def end_connection(core: Core, name: str, reason: str) -> None:
    await core.ask(EndConnection(connection=name, reason=reason), NOTHING)


async def alter_settings(core: Core, settings: Mapping[str, Any]) -> None:
    await core.ask(AlterSettings(settings=dict(settings)), NOTHING, resend=True)
