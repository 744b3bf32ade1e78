"""The native protocol's command set: what a client asks, what the broker answers and pushes.

One set of structs for every way in: msgpack frames (a four-byte big-endian length, then one command), JSON lines, and
a client in the broker's own process, which hands them over as they are. A frame that is a request carries an `id` that
the answer repeats; `id` 0 asks for no answer. Requests may be pipelined; answers come as they are ready. Messages
come as `Deliver` pushes, as far as the consumer's credit goes.

A msgpack connection begins with the four bytes of `MAGIC`; a JSON-lines connection begins with `{`; everything else on
that port is Kafka.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from waystation.message import Delivered, Message, Run
from waystation.queues.settings import QueueSettings

MAGIC = b"\xd7WS1"
VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024


class Command(msgspec.Struct, tag_field="action", kw_only=True, omit_defaults=True, gc=False):
    """A request. The tag (`action`) is the class's name in lower case with underscores."""

    id: int = 0


# -- the connection ----------------------------------------------------------------------------------------------------


class Hello(Command, tag="hello"):
    """The first request of a client that wants to be known by name, or has to log in → HelloAnswer.

    A login: the mechanism (of SASL) and its first message; or a user and a password, for who cannot do more. If the
    answer has a challenge, the login goes on with `Authenticate`. After a failure the connection is closed."""

    client: str = ""
    version: int = VERSION
    mechanism: str = ""
    data: bytes = b""
    user: str = ""
    password: str = ""


class Authenticate(Command, tag="authenticate"):
    """The answer to a challenge → HelloAnswer."""

    data: bytes


class Ping(Command, tag="ping"):
    """→ None. Also what keeps an idle connection open."""


class AskNode(Command, tag="ask_node"):
    """→ bytes: an answer of the cluster's own protocol. Another node of the cluster asks; clients have no use for
    it."""

    request: bytes


class Stats(Command, tag="stats"):
    """→ dict: counters and what there is, by the names that the plain actions have, and more."""


# -- queues ------------------------------------------------------------------------------------------------------------


class DeclareQueue(Command, tag="declare_queue"):
    """→ QueueInfo. With settings that differ from the present ones: Conflict. `settings` None: any are fine."""

    queue: str
    settings: QueueSettings | None = None
    passive: bool = False  # NotFound instead of making it
    alter: bool = False  # change the settings of one that is there
    only: list[str] | None = (
        None  # with `alter`: the fields of `settings` that change; the others stay. None: all of them
    )


class DeleteQueue(Command, tag="delete_queue"):
    """→ how many messages went with it."""

    queue: str
    if_empty: bool = False
    if_unused: bool = False


class PurgeQueue(Command, tag="purge_queue"):
    """→ how many messages went; those in flight stay."""

    queue: str


class DescribeQueue(Command, tag="describe_queue"):
    """→ QueueInfo."""

    queue: str


class ListQueues(Command, tag="list_queues"):
    """→ list[QueueInfo] in the order of names."""

    prefix: str = ""
    after: str = ""
    limit: int = 1000


class Put(Command, tag="put"):
    """→ PutAnswer, when the messages are durable. All of them or none (Full, Invalid…); duplicates are left out."""

    queue: str
    messages: list[Message]
    wait_ms: int = 0  # how long to wait for room in a full queue before Full is answered
    tx: int = 0
    series: int = 0  # above 0: when one put of a series is refused, so are those behind it


class Get(Command, tag="get"):
    """→ Got, with at least one message, or none after `wait_ms`. They are in flight to this connection."""

    queue: str
    count: int = 1
    wait_ms: int = 0
    hold_ms: int | None = None
    auto_ack: bool = False


class Peek(Command, tag="peek"):
    """→ list[Peeked]: messages as they are, without taking them. `after`: tag to go on behind."""

    queue: str
    count: int = 10
    after: int = -1
    state: Literal["any", "ready", "parked", "held"] = "any"


class Find(Command, tag="find"):
    """→ Found or None. Neither queue nor topic: all queues, and topics by TOPIC-PARTITION@OFFSET."""

    message_id: str
    queue: str | None = None
    topic: str | None = None


class Cancel(Command, tag="cancel"):
    """→ bool: whether it was there, not in flight, and is now gone."""

    queue: str
    message_id: str


class Redrive(Command, tag="redrive"):
    """→ RedriveAnswer. Sends dead letters back to where they died (or to `to`), oldest first."""

    queue: str
    to: str | None = None
    filter: str | None = None
    rate: float = 0.0  # messages per second; 0: as fast as can be
    limit: int = 0
    dry_run: bool = False
    message_ids: list[str] = []


# -- consuming ---------------------------------------------------------------------------------------------------------


class Consume(Command, tag="consume_queue"):
    """→ None; then `Deliver` pushes for `consumer`, a number that the client chooses (above zero, its own per
    connection), as far as credit goes."""

    consumer: int
    queue: str
    credit: int = 0
    prefetch: int = 0  # the most in flight to it at once; 0: no limit but credit
    hold_ms: int | None = None
    auto_ack: bool = False
    exclusive: bool = False


class Subscribe(Command, tag="subscribe_topics"):
    """→ SubscribeAnswer; then `Deliver` pushes. Patterns: `*` is one word, `#` any number, words between dots.

    shared: per-message acks, the position is the group's, members compete. stream: offsets of a consumer group, in
    order, acks commit. live: from now on (and the last `history`), no state, no acks.
    """

    consumer: int
    topics: list[str]
    syntax: Literal["wildcard", "regex"] = "wildcard"
    mode: Literal["shared", "stream", "live"] = "live"
    group: str | None = None
    filter: str | None = None
    history: int = 0
    start: Literal["earliest", "latest"] = "latest"  # where a new group begins
    start_ms: int | None = None  # or at this time
    slow: Literal["drop", "block"] = "block"  # live: what happens to messages while there is no credit
    credit: int = 0
    prefetch: int = 0
    hold_ms: int | None = None
    max_deliveries: int | None = None  # 0: no limit; None: the group's setting (shared), no limit (stream)
    dead_letter: str | None = None  # a queue, `topic:NAME`; empty: the dead are dropped; None: TOPIC.GROUP.dead
    auto_ack: bool = False


class Credit(Command, tag="credit"):
    """No answer: `consumer` can take `count` more messages."""

    consumer: int
    count: int


class Settle(Command, tag="settle"):
    """→ SettleAnswer, when it is durable. `runs`: (first tag, how many) pairs. `deliveries`: which delivery of the
    messages of a queue is meant, as `Delivered` counted it: a later one is unknown. 0: whichever the consumer has."""

    consumer: int
    runs: list[Run]
    verdict: Literal["ack", "reject", "release", "kill"] = "ack"
    delay_ms: int | None = None
    error: str | None = None
    tx: int = 0
    deliveries: int = 0
    durable: bool = True  # False: answered when it is in force; a power cut may undo it


class Touch(Command, tag="touch"):
    """→ SettleAnswer: more time for messages in flight. `deliveries`: as in `Settle`."""

    consumer: int
    runs: list[Run]
    hold_ms: int | None = None
    deliveries: int = 0


class Cease(Command, tag="cease"):
    """→ None: the consumer goes; what is in flight to it is redelivered to others."""

    consumer: int


# -- reading a queue by entry numbers ----------------------------------------------------------------------------------


class OpenReader(Command, tag="open_reader"):
    """→ ReaderAnswer. `consumer`, a number that the client chooses, reads the queue alone and by tags. What it claims
    is nobody else's until it is settled (ack or release) or the consumer goes; claims count as no deliveries."""

    consumer: int
    queue: str


class ClaimEntries(Command, tag="claim_entries"):
    """→ list[Run]: the next messages by their tags, none after `wait_ms`; or, of `runs`, those that are the reader's
    now."""

    consumer: int
    count: int = 1000
    max_bytes: int = 0  # of payloads; 0: any
    wait_ms: int = 0
    runs: list[Run] = []


class ReadEntries(Command, tag="read_entries"):
    """→ EntriesAnswer: living messages by their tags, whoever has claimed them. For any connection."""

    queue: str
    runs: list[Run]


# -- reading topics by offsets, alone or as a member of a consumer group -----------------------------------------------

Position = tuple[str, int, int]
"""(topic, partition, offset to read from)."""


class ReadBatches(Command, tag="read_batches"):
    """→ list[PartitionBatches], one for each position: what is stored from there on, as record batches (Kafka's version
    2), at once. The bytes of one answer are bounded: who wants more asks again."""

    positions: list[Position]
    uncommitted: bool = False  # also what open and aborted transactions wrote


class AwaitRecords(Command, tag="await_records"):
    """→ bool: whether there is something to read at one of the positions; waits up to `wait_ms` for it."""

    positions: list[Position]
    wait_ms: int = 0
    uncommitted: bool = False


class JoinGroup(Command, tag="join_group"):
    """→ None. `consumer`, a number that the client chooses, is a member of the consumer group until it is ceased. It is
    sent nothing: it asks for its partitions, reads them by offsets, and commits with `consumer`."""

    consumer: int
    group: str
    topics: list[str]


class GroupAssignment(Command, tag="group_assignment"):
    """→ list[Position]: the partitions that are the member's now, each with the offset that the group has committed
    there, or -1. `owned` says which of them it reads: one that was taken from it is given to others when the member no
    longer names it here, so it commits first. Answers at once if that differs from `owned`, else after `wait_ms`."""

    consumer: int
    owned: list[tuple[str, int]] = []
    wait_ms: int = 0


# -- topics and routing ------------------------------------------------------------------------------------------------


class Publish(Command, tag="publish_messages"):
    """→ PublishAnswer. To a topic, or through an exchange by `routing_key`."""

    messages: list[Message]
    topic: str | None = None
    exchange: str | None = None
    routing_key: str = ""
    partition: int | None = None  # None: by the key, or one for the whole batch
    acks: Literal["none", "written", "durable"] = "durable"
    mandatory: bool = False  # NotFound if no binding matches
    once: bool = False  # Conflict if the topic has no deduplication window; one that is created now has
    tx: int = 0
    series: int = 0  # above 0: when one publish of a series is refused, so are those behind it


class CreateTopic(Command, tag="create_topic"):
    """→ TopicInfo."""

    topic: str
    partitions: int | None = None
    settings: dict[str, str] = {}
    replication_factor: int | None = None  # of a cluster: three, or as many as there are nodes, where it is not said


class DeleteTopic(Command, tag="delete_topic"):
    """→ None."""

    topic: str


class DescribeTopic(Command, tag="describe_topic"):
    """→ TopicInfo."""

    topic: str
    create: bool = False  # first make it as a publisher would: if it is not there and the broker makes topics by itself


class ListTopics(Command, tag="list_topics"):
    """→ list[TopicInfo]."""

    pattern: str = "#"


class DeclareExchange(Command, tag="declare_exchange"):
    """→ None. Kinds: direct, fanout, topic, headers, filter, x-consistent-hash, x-delayed-message."""

    exchange: str
    kind: str = "direct"
    alternate: str | None = None
    passive: bool = False
    arguments: dict[str, Any] = {}


class DeleteExchange(Command, tag="delete_exchange"):
    """→ None."""

    exchange: str
    if_unused: bool = False


class Bind(Command, tag="bind"):
    """→ None. `target`: `queue:NAME`, `topic:NAME` or `exchange:NAME`."""

    exchange: str
    target: str
    key: str = ""
    arguments: dict[str, Any] = {}  # headers exchanges: x-match and the headers; filter exchanges: filter


class Unbind(Command, tag="unbind"):
    """→ None."""

    exchange: str
    target: str
    key: str = ""
    arguments: dict[str, Any] = {}


class ListRouting(Command, tag="list_routing"):
    """→ RoutingInfo."""


class Route(Command, tag="route"):
    """→ list[str]: where such a message would go; nothing is sent."""

    exchange: str
    message: Message
    routing_key: str = ""


# -- request and reply -------------------------------------------------------------------------------------------------


class OpenInbox(Command, tag="open_inbox"):
    """→ str: a name for `reply_to`. Replies come as `Deliver` pushes for `consumer`; it goes with the connection."""

    consumer: int


class Reply(Command, tag="reply"):
    """→ bool: whether the inbox was there."""

    to: str
    message: Message


# -- transactions ------------------------------------------------------------------------------------------------------


class Begin(Command, tag="begin"):
    """→ int: the transaction's number for `tx`. An older holder of the same transactional id is fenced."""

    transactional_id: str
    timeout_ms: int = 60_000


class CommitOffsets(Command, tag="commit_offsets"):
    """→ None. Offsets of a group, in a transaction or alone: [topic, partition, offset]."""

    group: str
    offsets: list[Position]
    tx: int = 0
    consumer: int = 0  # as this member of the group (`JoinGroup`): refused where the partition is not its own any more


class End(Command, tag="end"):
    """→ None, when all of it is durable (commit) or undone (abort)."""

    tx: int
    commit: bool = True


# -- staged transactions, and batches built by the client --------------------------------------------------------------


class PublishBatches(Command, tag="publish_batches"):
    """→ PublishAnswer, when they are durable or, in a transaction, taken. Record batches (Kafka's version 2) with
    neither producer id nor transactional bit: the broker writes those."""

    topic: str
    batches: list[tuple[int, bytearray]]  # (partition, one record batch)
    tx: int = 0


class StagedTransaction(msgspec.Struct, array_like=True, frozen=True):
    """A transaction that is complete and open, and belongs to no connection."""

    transactional_id: str
    producer_id: int
    epoch: int


class Stage(Command, tag="stage"):
    """→ StagedTransaction, when all of it is durable; None if nothing is in it. From then on it is not this
    connection's: it is committed by `CommitStaged`, aborted by `AbortStaged`, or by its timeout."""

    tx: int


class CommitStaged(Command, tag="commit_staged"):
    """→ CommitStagedAnswer. All of them are committed by one durable record, or none is. A sequence that is not above
    the last one committed under this name is not committed again: then what was staged for it is aborted."""

    name: str
    sequence: int
    staged: list[StagedTransaction]
    abandon: str = ""  # afterwards, whatever else is open with a transactional id that begins so is aborted


class AbortStaged(Command, tag="abort_staged"):
    """→ int: how many were open, not committed, and are now undone."""

    staged: list[StagedTransaction] = []
    prefix: str = ""  # and all whose transactional id begins so
    fence: bool = False  # and nothing can begin under the prefix any more, which is NAME/RUN. then


class StagedPosition(Command, tag="staged_position"):
    """→ int | None: the last sequence that was committed under this name."""

    name: str


# -- looking at the broker, and running it -----------------------------------------------------------------------------


class View(Command, tag="view"):
    """→ a map: what HTTP answers under the same name (overview, connections, groups, settings…). `query` has
    the route's query parameters and the names in its path."""

    what: str
    query: dict[str, Any] = {}


class Act(Command, tag="act"):
    """→ a map or None: what HTTP does under the same name (reset-group, start-pipeline…), with the route's
    body, query parameters and the names in its path as `query`."""

    what: str
    query: dict[str, Any] = {}


class EndConnection(Command, tag="end_connection"):
    """→ None: the broker closes a connection, by the name that `view` of connections lists it by."""

    connection: str
    reason: str = ""


class AlterSettings(Command, tag="alter_settings"):
    """→ None, when it is durable. Settings of the broker by name; null goes back to what it was started with. All of
    them are changed or none is."""

    settings: dict[str, str | int | float | bool | None]


AnyCommand = (
    Hello
    | Authenticate
    | Ping
    | AskNode
    | Stats
    | DeclareQueue
    | DeleteQueue
    | PurgeQueue
    | DescribeQueue
    | ListQueues
    | Put
    | Get
    | Peek
    | Find
    | Cancel
    | Redrive
    | Consume
    | Subscribe
    | Credit
    | Settle
    | Touch
    | Cease
    | OpenReader
    | ClaimEntries
    | ReadEntries
    | ReadBatches
    | AwaitRecords
    | JoinGroup
    | GroupAssignment
    | Publish
    | CreateTopic
    | DeleteTopic
    | DescribeTopic
    | ListTopics
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | ListRouting
    | Route
    | OpenInbox
    | Reply
    | Begin
    | CommitOffsets
    | End
    | PublishBatches
    | Stage
    | CommitStaged
    | AbortStaged
    | StagedPosition
    | View
    | Act
    | EndConnection
    | AlterSettings
)


# -- answers and pushes ------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, tag_field="kind", tag="answer", omit_defaults=True, gc=False):
    """`value` is what the command's docstring names (convert it with `msgspec.convert`)."""

    id: int
    value: Any = None


class Failure(msgspec.Struct, tag_field="kind", tag="failure", omit_defaults=True, gc=False):
    """`error` is a class of `waystation.errors` by name; `id` 0: the connection's own, nobody's request."""

    id: int
    error: str
    text: str


class Deliver(msgspec.Struct, tag_field="kind", tag="deliver", gc=False):
    """Messages for a consumer."""

    consumer: int
    messages: list[Delivered]


class Ceased(msgspec.Struct, tag_field="kind", tag="ceased", gc=False):
    """The broker ends a consumer: its queue was deleted, it was too slow, its group was deleted."""

    consumer: int
    error: str
    text: str


Outgoing = Answer | Failure | Deliver | Ceased


class HelloAnswer(msgspec.Struct, omit_defaults=True):
    connection: str  # what this connection is called in lists and logs
    version: int
    broker: str  # the product's version
    challenge: bytes | None = None  # the login goes on: answer this
    data: bytes = b""  # the broker's last message of the login


class QueueInfo(msgspec.Struct, omit_defaults=True):
    queue: str
    settings: QueueSettings
    ready: int = 0
    parked: int = 0
    held: int = 0
    bytes: int = 0
    consumers: int = 0
    oldest_ms: int | None = None  # when its oldest message was taken in
    put: int = 0  # counters since the start of the broker
    delivered: int = 0
    acked: int = 0
    dead: int = 0


class PutAnswer(msgspec.Struct, omit_defaults=True, gc=False):
    first: int  # the tag of the first message; an id is QUEUE#TAG where the sender gave none
    count: int  # how many were stored
    duplicates: list[int] = []  # indexes that were left out: their ids were used within the window


class Got(msgspec.Struct, omit_defaults=True):
    consumer: int  # below zero: what Settle and Touch name
    messages: list[Delivered] = []
    more: bool = False  # the answer is short because other clients wait: ask again for the rest


class Peeked(msgspec.Struct, array_like=True):
    state: str
    ready_at_ms: int | None
    delivered: Delivered


class Found(msgspec.Struct, omit_defaults=True):
    place: str  # queue:NAME or topic:NAME
    state: str
    delivered: Delivered
    ready_at_ms: int | None = None


class RedriveAnswer(msgspec.Struct, omit_defaults=True):
    matched: int
    moved: int
    skipped: int = 0  # they had nowhere to go back to
    targets: dict[str, int] = {}  # of a dry run: how many would go where


class SubscribeAnswer(msgspec.Struct, omit_defaults=True):
    topics: list[str]  # those that match now
    subscribers: int = 1


class SettleAnswer(msgspec.Struct, omit_defaults=True):
    unknown: list[Run] = []  # not in flight to this consumer: nothing was done to them


class ReaderAnswer(msgspec.Struct, omit_defaults=True):
    number: int  # the queue's own: one that is deleted and re-created has another
    newest: int  # the last tag that was given


class EntriesAnswer(msgspec.Struct, omit_defaults=True):
    messages: list[Delivered] = []
    next: int | None = None  # the answer was full: ask again from this tag on; None: that is all


class PartitionBatches(msgspec.Struct, array_like=True):
    """Where the partition begins and ends for this reader, and whole batches from the one on that holds the offset. A
    position outside of the partition gets none, and reads on where it begins."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    next_offset: int  # where to read on
    batches: bytes = b""
    aborted: list[tuple[int, int, int]] = []
    """(producer id, first offset, last offset): transactional batches of this producer in that range do not count."""


class PublishAnswer(msgspec.Struct, omit_defaults=True):
    places: list[tuple[str, int, int]] = []  # (topic, partition, first offset) per partition written
    queues: list[str] = []
    subscribers: int = 0
    unroutable: int = 0  # how many messages matched no binding of the exchange: nobody got them
    duplicates: list[int] = []  # positions of messages that the topic has by their ids: they were not stored again


class CommitStagedAnswer(msgspec.Struct, omit_defaults=True):
    committed: bool  # now, or by the same request before; False: the sequence came too late
    last: int  # the last sequence that was committed under this name


class TopicInfo(msgspec.Struct, omit_defaults=True):
    topic: str
    partitions: list[tuple[int, int, int]]  # (start offset, end offset, bytes)
    settings: dict[str, str] = {}
    subscribers: int = 0


class RoutingInfo(msgspec.Struct, omit_defaults=True):
    exchanges: list[tuple[str, str, str | None]]  # (name, kind, alternate)
    bindings: list[tuple[str, str, str, dict[str, Any]]]  # (exchange, target, key, arguments)
