"""The API of what the broker shows of itself and what can be done to it: one row for each view and each action.

A row names what `broker/access/administration/view_rows.py` has: query, answer and permission are there. What the path
names of the query comes from the path; the rest is the struct that the query's extends, read from the query string, or
from the body of a POST, a PUT or a PATCH. There is nothing to do here but to hand it on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.broker.access.administration.view_rows import find
from waystation.paging import Next, Total
from waystation.protocols.http.transport.bodies import MessageOut, QueueOut
from waystation.protocols.http.transport.calls import AnyRoute, Call, Method, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher


class QueueList(msgspec.Struct):
    queues: list[QueueOut]
    next: Next
    total: Total


class DeadLetter(MessageOut, omit_defaults=True):
    """A message with its failure history, the latest first."""

    deaths: list[dict[str, Any]] = msgspec.field(default_factory=list)


class DeadLetterList(msgspec.Struct):
    messages: list[DeadLetter]
    looked_at: int
    next: Annotated[int, Meta(description="`after` to continue with; null: all were read")] | None


class SearchOut(msgspec.Struct):
    """What was found so far. A message without a value (a tombstone) has the type `tombstone`."""

    messages: list[MessageOut]
    scanned: Annotated[int, Meta(description="messages that this call looked at")]
    cursor: Annotated[str, Meta(description="to continue with; null: everything was searched")] | None
    done: bool


def _view(path: str, what: str, summary: str, **options: Any) -> AnyRoute:
    return _row("GET", path, "view", what, summary, **options)


def _act(method: Method, path: str, what: str, summary: str, **options: Any) -> AnyRoute:
    return _row(method, path, "action", what, summary, **options)


def _row(method: Method, path: str, kind: str, what: str, summary: str, **options: Any) -> AnyRoute:
    """`answer`: where the view's own type does not say what is in it, as for messages."""
    row = find(kind, what)
    terms = rest_of(row.query, re.findall(r"{(\w+)}", path))

    async def hand_on(dispatcher: RequestDispatcher, call: Call[Any, Any]) -> Outcome:
        given = msgspec.structs.asdict(call.query)
        if call.body is not None:
            given |= msgspec.structs.asdict(call.body)
        views = dispatcher.access.views
        answer = views.view if kind == "view" else views.act
        outcome: Outcome = await answer(what, row.query(**call.path, **given))
        return outcome

    options.setdefault("answer", row.shown)
    options["body" if method in ("POST", "PUT", "PATCH") else "query"] = terms
    if row.shown is None:
        options["status"] = 204
    return Route(method, path, hand_on, summary, **options)


def rest_of(query: type[msgspec.Struct], named: list[str]) -> type[msgspec.Struct]:
    """What of a query is not named by the path: the nearest struct that it extends and that has none of those."""
    for kind in query.__mro__:
        fields = getattr(kind, "__struct_fields__", ())
        if not fields:
            break
        if not set(fields) & set(named):
            return kind
    return Nothing


ROUTES: tuple[AnyRoute, ...] = (
    # -- queues -------------------------------------------------------------------------------------------------------
    _view("/v1/queues", "queues", "List queues in the order of their names", tag="queues", answer=QueueList),
    _view("/v1/queues/{queue}", "queue", "Describe a queue", tag="queues", answer=QueueOut),
    _view(
        "/v1/queues/{queue}/consumers",
        "consumers",
        "The consumers of a queue, and those that have messages of it in flight",
        tag="queues",
    ),
    _view(
        "/v1/delayed",
        "delayed",
        "Messages that wait for their time, in the order of their times",
        tag="queues",
        description="With `queue`, those of a queue: delayed ones, and those that back off. With `topic` or"
        " `topics=true`, those that will be published to topics. Else the queues in which some wait.",
    ),
    _act(
        "DELETE",
        "/v1/delayed/topics/{topic}/{id}",
        "cancel-delayed",
        "Cancel a message that was to be published to a topic later",
        tag="queues",
    ),
    # -- dead letters -------------------------------------------------------------------------------------------------
    _view(
        "/v1/dead-letters",
        "dead-letters",
        "Dead-letter queues and topics, their source queues, and how many messages they have",
        tag="dead letters",
    ),
    _view(
        "/v1/dead-letters/{queue}",
        "dead-letter-messages",
        "List dead letters with their failure history, oldest first",
        tag="dead letters",
        description="A call reads a limited number; with a filter it may find none and still have a `next`.",
        answer=DeadLetterList,
    ),
    _view(
        "/v1/dead-letters/{queue}/summary",
        "dead-letter-summary",
        "What the latest dead letters died of, and where",
        tag="dead letters",
    ),
    # -- cluster ------------------------------------------------------------------------------------------------------
    _view("/v1/cluster", "cluster", "The nodes of the cluster", tag="cluster"),
    _view(
        "/v1/cluster/partitions",
        "partitions",
        "Where partitions are: leaders, replicas, those in sync",
        tag="cluster",
        description="Offsets are those of the replicas that the node has that answers.",
    ),
    _act(
        "POST",
        "/v1/cluster/reassign",
        "reassign",
        "Move replicas to other nodes, or cancel that",
        tag="cluster",
        description="It begins; `/v1/cluster/partitions?which=moving` shows what is not done yet.",
    ),
    _act("POST", "/v1/cluster/elect", "elect-leaders", "Make preferred replicas leaders", tag="cluster"),
    _act(
        "POST",
        "/v1/cluster/nodes/{node}/drain",
        "drain-node",
        "Have the node hand over what it leads",
        tag="cluster",
        description="Ask the node itself.",
    ),
    _act("DELETE", "/v1/cluster/nodes/{node}", "remove-node", "Remove a node that has stopped", tag="cluster"),
    # -- jobs ---------------------------------------------------------------------------------------------------------
    _view(
        "/v1/jobs",
        "jobs",
        "Work in the background, the latest first",
        tag="jobs",
        description="What has ended is forgotten after ten minutes.",
    ),
    _view("/v1/jobs/{job}", "job", "How far a job is", tag="jobs"),
    _act(
        "DELETE",
        "/v1/jobs/{job}",
        "cancel-job",
        "Cancel a job",
        tag="jobs",
        description="It ends between two transactions, so that nothing is left half-way. If it has not ended within"
        " two seconds, the answer says `cancelling`.",
    ),
    # -- topics -------------------------------------------------------------------------------------------------------
    _view("/v1/topics", "topics", "List topics in the order of their names", tag="topics"),
    _view("/v1/topics/{topic}", "topic", "Describe a topic", tag="topics"),
    _act("PATCH", "/v1/topics/{topic}", "alter-topic", "Alter a topic", tag="topics"),
    _view("/v1/topics/{topic}/settings", "topic-settings", "A topic's settings", tag="topics"),
    _view(
        "/v1/topics/{topic}/offsets",
        "topic-offsets",
        "Where a start position is in each partition of a topic",
        tag="topics",
    ),
    _act(
        "POST",
        "/v1/topics/{topic}/delete-records",
        "delete-records",
        "Delete the messages of a partition that are before an offset",
        tag="topics",
    ),
    _view(
        "/v1/topics/{topic}/search",
        "search",
        "Search a topic by key, id, text, header and time",
        tag="topics",
        description="All conditions have to match; without any, every message is found. A call reads a"
        " limited number of messages and may find none: ask again with its `cursor`, until it is `done`.",
        answer=SearchOut,
        waits=True,
    ),
    # -- routing ------------------------------------------------------------------------------------------------------
    _view("/v1/exchanges", "exchanges", "List exchanges in the order of their names", tag="routing"),
    _view(
        "/v1/exchanges/{exchange}/bindings",
        "bindings",
        "List bindings in the order in which they were made",
        tag="routing",
    ),
    _view(
        "/v1/routing",
        "routing",
        "Exchanges and their bindings, page by page",
        tag="routing",
        description="A page has `limit` bindings (an exchange without any counts as one). The default exchange has"
        " no bindings of its own: it leads to queues and topics by their names.",
    ),
    # -- groups -------------------------------------------------------------------------------------------------------
    _view("/v1/groups", "groups", "List consumer groups, share groups and shared subscriptions", tag="groups"),
    _view(
        "/v1/groups/{group}",
        "group",
        "Describe a group: members, lag of each partition, what happened to it",
        tag="groups",
    ),
    _act(
        "POST",
        "/v1/groups/{group}/reset",
        "reset-group",
        "Reset the offsets of a group",
        tag="groups",
        description="Refused (409) while it has members. `dry_run` says what would change and changes nothing.",
    ),
    _act(
        "DELETE",
        "/v1/groups/{group}",
        "delete-group",
        "Delete a group that has no members, or its offsets of one topic",
        tag="groups",
    ),
    # -- namespaces and their policies --------------------------------------------------------------------------------
    _view("/v1/namespaces", "namespaces", "List namespaces (virtual hosts)", tag="namespaces"),
    _view(
        "/v1/namespaces/{namespace}",
        "namespace",
        "Describe a namespace",
        tag="namespaces",
        description="In the path, `/` is written `%2F`.",
    ),
    _act(
        "PUT",
        "/v1/namespaces/{namespace}",
        "set-namespace",
        "Create a namespace, or change its description and limits",
        tag="namespaces",
    ),
    _act(
        "DELETE",
        "/v1/namespaces/{namespace}",
        "delete-namespace",
        "Delete a namespace with its queues, exchanges, bindings, policies and streams",
        tag="namespaces",
        description="Its connections are closed.",
    ),
    _view("/v1/policies", "policies", "List policies, of all namespaces or of one", tag="namespaces"),
    _view("/v1/policies/{namespace}/{policy}", "policy", "Describe a policy", tag="namespaces"),
    _act(
        "PUT",
        "/v1/policies/{namespace}/{policy}",
        "set-policy",
        "Create or replace a policy, which changes settings of the queues and exchanges that it matches",
        tag="namespaces",
        description="Answers when it is in force.",
    ),
    _act(
        "DELETE",
        "/v1/policies/{namespace}/{policy}",
        "delete-policy",
        "Delete a policy: what it changed is again as it was declared",
        tag="namespaces",
    ),
    # -- users --------------------------------------------------------------------------------------------------------
    _view("/v1/users", "users", "List users", tag="users"),
    _act(
        "POST",
        "/v1/users",
        "add-user",
        "Add a user; the first one closes the broker to everybody else",
        tag="users",
        description="Send the password, or verifiers that were computed from it. Neither is shown again.",
    ),
    _act("PUT", "/v1/users/{user}/password", "set-password", "Change a user's password", tag="users"),
    _act("DELETE", "/v1/users/{user}", "remove-user", "Remove a user; its connections are closed", tag="users"),
    _view("/v1/keys", "keys", "List API keys, without their secrets", tag="keys"),
    _act(
        "POST",
        "/v1/keys",
        "add-key",
        "Add an API key of a user",
        tag="keys",
        description="The answer has the key (`secret`); it is not shown again.",
    ),
    _act("DELETE", "/v1/keys/{key}", "remove-key", "Revoke an API key; connections that use it are closed", tag="keys"),
    _view("/v1/audit", "audit", "Show the newest entries of the audit log", tag="audit"),
    # -- rules --------------------------------------------------------------------------------------------------------
    _view("/v1/acls", "acls", "List the rules: who may do what to what", tag="acls"),
    _act("POST", "/v1/acls", "add-acls", "Add rules; those that are there already stay", tag="acls"),
    _act("POST", "/v1/acls/remove", "remove-acls", "Remove rules: those with exactly these fields", tag="acls"),
    # -- quotas -------------------------------------------------------------------------------------------------------
    _view("/v1/quotas", "quotas", "List client quotas: how fast users, clients and namespaces may be", tag="quotas"),
    _act("PUT", "/v1/quotas", "set-quotas", "Set quotas of an entity; others that it has stay", tag="quotas"),
    _act("POST", "/v1/quotas/remove", "remove-quotas", "Remove quotas of an entity", tag="quotas"),
    # -- connections, pipelines, settings, the broker -----------------------------------------------------------------
    _view("/v1/connections", "connections", "List who is connected, and what they do", tag="connections"),
    _view("/v1/connections/{connection}", "connection", "Describe a connection", tag="connections"),
    _view(
        "/v1/pipelines",
        "pipelines",
        "List the pipelines that run or ran on this broker, or could",
        tag="pipelines",
    ),
    _view(
        "/v1/pipelines/{pipeline}",
        "pipeline",
        "Describe a pipeline, with a timeline of its batches",
        tag="pipelines",
    ),
    _act(
        "POST",
        "/v1/pipelines/{pipeline}/start",
        "start-pipeline",
        "Start a pipeline of the broker's folder",
        tag="pipelines",
        description="Only for files in the folder that `waystation serve --pipelines DIR` names.",
    ),
    _act(
        "POST", "/v1/pipelines/{pipeline}/stop", "stop-pipeline", "Stop a pipeline, wherever it runs", tag="pipelines"
    ),
    _view("/v1/settings", "settings", "The broker's settings, and where each comes from", tag="settings"),
    _view(
        "/v1/overview",
        "overview",
        "The broker at a glance",
        tag="watching",
        description="Health with reasons, totals, connections, rates, resources, the busiest topics and queues. Rates"
        " and sums are those of the last sample, at most five seconds ago.",
    ),
    _view("/v1/history", "history", "The last hour, in points of five seconds", tag="watching"),
)
