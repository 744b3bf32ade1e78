"""What the broker shows of itself and what can be done to it, by name: the rows that `ViewAccess` answers by.

A row names the struct that the query is read as, the function that answers, what it answers, and what has to be allowed
for it. Protocols only hand them on: the native protocol by name (`view` and `act`), HTTP by a path for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from waystation.admin import jobs
from waystation.admin.operations import cluster_operations, group_resetting, search_terms, searching
from waystation.admin.sight import Sight
from waystation.admin.views import (
    view_acls,
    view_audit,
    view_cluster,
    view_connections,
    view_dead_letters,
    view_delayed,
    view_groups,
    view_keys,
    view_namespaces,
    view_overview,
    view_pipelines,
    view_queues,
    view_quotas,
    view_routing,
    view_settings,
    view_topic_settings,
    view_topics,
    view_users,
)
from waystation.admin.views.figures import Figures as Figures
from waystation.admin.views.view_dead_letters import JobStarted as JobStarted
from waystation.admin.views.view_routing import Binding as Binding
from waystation.admin.views.view_routing import BindingsQuery as BindingsQuery
from waystation.admin.views.view_settings import Given as Given
from waystation.admin.views.view_settings import SettingsOut as SettingsOut
from waystation.admin.views.view_settings import SettingsQuery as SettingsQuery
from waystation.admin.views.view_topics import TopicOut as TopicOut
from waystation.broker.access.administration.queries import convert, unknown
from waystation.broker.access.messaging.open_consumers import Question
from waystation.errors import NotFound, near_matches
from waystation.health.health import Reason as Reason
from waystation.observe.connections import ConnectionInfo
from waystation.queues import redriving
from waystation.security.permissions import Operation, Resource
from waystation.security.whereabouts import dead_letter_target_of, target_of

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

Q = TypeVar("Q", bound=msgspec.Struct)


class NoQuery(msgspec.Struct):
    """No query."""


class TopicQuery(msgspec.Struct):
    topic: str


class QueueQuery(msgspec.Struct):
    queue: str


class CancelDelayed(msgspec.Struct):
    """A message that is delayed to a topic."""

    topic: str
    id: str


class RedriveQueue(redriving.Redrive, kw_only=True):
    """Dead letters of a queue, in the background."""

    queue: str


class Asks(NamedTuple):
    """What has to be allowed. `field`: of the query, which names the thing; if that is empty, all of them are meant."""

    operation: Operation
    resource: Resource
    field: str = ""
    name: str = ""  # of the one thing that it is about, whatever the query says

    def is_about_one(self, query: msgspec.Struct) -> bool:
        return bool(self.name or getattr(query, self.field, None))

    def name_in(self, query: msgspec.Struct) -> str:
        return self.name or getattr(query, self.field, None) or "*"


class Listed(NamedTuple):
    """Rows of a view's answer, each of which names what it is about: who may not see that gets the answer without the
    row."""

    field: str
    about: Callable[[Any], tuple[tuple[Resource, str], ...]]
    total: str = "total"


def _named(resource: Resource, field: str) -> Callable[[Any], tuple[tuple[Resource, str], ...]]:
    return lambda row: ((resource, getattr(row, field)),)


def _dead_letter_target(row: view_dead_letters.DeadLetterPlace) -> tuple[tuple[Resource, str], ...]:
    return (dead_letter_target_of(row.target),)


def _binding(row: view_routing.BindingView) -> tuple[tuple[Resource, str], ...]:
    return (("exchange", row.exchange), target_of(row.target))


def _to_a_topic(row: view_delayed.DelayedOut) -> tuple[tuple[Resource, str], ...]:
    return (("topic", row.topic),) if row.topic is not None and row.queue is None else ()


def _to_see_delayed(query: view_delayed.DelayedQuery) -> tuple[Question, ...]:
    """Beside the queue, if one is named. What is of a prefix is a list: it has what the principal may see."""
    if query.queue is not None:
        return ()
    if query.topic is not None:
        return (Question("read", "topic", query.topic),)
    if query.topics and query.topic_prefix:
        return (Question("read", "topic", query.topic_prefix, under=True, beneath=False),)
    return () if query.prefix and not query.topics else (Question("read", "queue", "*"),)


LOOK = Asks("describe", "cluster")
OPERATE = Asks("alter", "cluster")


class Listing(NamedTuple, Generic[Q]):
    """A view that lists things: its function is told what may be seen, and makes its page of that alone."""

    page: Callable[[ManagedBroker, Q, Sight], Awaitable[Any]]
    rows: tuple[Listed, ...]


class Reaching(NamedTuple, Generic[Q]):
    """An action on what only its function finds: it is told what may be reached."""

    act: Callable[[ManagedBroker, Q, Sight], Awaitable[Any] | Any]


class Row(msgspec.Struct, Generic[Q], frozen=True):
    """One view or action."""

    query: type[Q]
    answer: Callable[[ManagedBroker, Q], Awaitable[Any] | Any] | Listing[Q] | Reaching[Q]
    shown: Any  # what it answers, as a type; None: nothing
    asks: Asks = LOOK
    also: Callable[[Q], tuple[Question, ...]] = lambda _: ()
    """What else has to be allowed for this query."""
    named: str = ""
    """Of an action on the cluster: the field of the query that says what it is about, for the audit log."""
    details: Callable[[Q], str] | None = None
    """More for the audit log."""
    mutates: Callable[[ManagedBroker, Q], int] | None = None
    """Of an action: how many partitions it would create, which a quota may limit."""

    @property
    def lists(self) -> tuple[Listed, ...]:
        return self.answer.rows if isinstance(self.answer, Listing) else ()

    def answered(self, broker: ManagedBroker, query: Q, sight: Sight) -> Awaitable[Any] | Any:
        if isinstance(self.answer, Listing):
            return self.answer.page(broker, query, sight)
        if isinstance(self.answer, Reaching):
            return self.answer.act(broker, query, sight)
        return self.answer(broker, query)

    def about(self, query: Q) -> str:
        return str(getattr(query, self.named)) if self.named else self.asks.name_in(query)

    def detail(self, query: Q) -> str:
        return "" if self.details is None else self.details(query)


AnyRow = Row[Any]

VIEWS: dict[str, AnyRow] = {
    "audit": Row(
        view_audit.AuditQuery, view_audit.audit_page, view_audit.AuditPage, Asks("read", "topic", name=view_audit.TOPIC)
    ),
    "acls": Row(view_acls.AclsQuery, view_acls.acls_page, view_acls.AclList),
    "overview": Row(view_overview.OverviewQuery, view_overview.overview_view, view_overview.Overview),
    "history": Row(view_overview.HistoryQuery, view_overview.history_view, view_overview.HistoryOut),
    "cluster": Row(NoQuery, view_cluster.cluster_view, view_cluster.ClusterOut),
    "partitions": Row(view_cluster.PartitionsQuery, view_cluster.partitions_page, view_cluster.PlacedPage),
    "connections": Row(
        view_connections.ConnectionsQuery, view_connections.connections_view, view_connections.ConnectionsOut
    ),
    "connection": Row(view_connections.ConnectionQuery, view_connections.connection_view, ConnectionInfo),
    "consumers": Row(
        view_queues.ConsumersQuery,
        view_queues.consumers_page,
        view_queues.ConsumerPage,
        Asks("describe", "queue", "queue"),
    ),
    "dead-letters": Row(
        view_dead_letters.PlacesQuery,
        Listing(view_dead_letters.dead_letter_places, (Listed("dead_letters", _dead_letter_target),)),
        view_dead_letters.DeadLetterPlaces,
        Asks("describe", "queue"),
    ),
    "dead-letter-messages": Row(
        view_dead_letters.DeadLettersQuery,
        view_dead_letters.dead_letters,
        view_dead_letters.DeadLetterPage,
        Asks("read", "queue", "queue"),
    ),
    "dead-letter-summary": Row(
        view_dead_letters.SummaryQuery,
        view_dead_letters.dead_letter_summary,
        view_dead_letters.DeadLetterSummary,
        Asks("read", "queue", "queue"),
    ),
    "delayed": Row(
        view_delayed.DelayedQuery,
        Listing(
            view_delayed.delayed_view,
            (
                Listed("queues", _named("queue", "queue")),
                Listed("messages", _to_a_topic),
            ),
        ),
        view_delayed.DelayedList,
        Asks("read", "queue", "queue"),
        also=_to_see_delayed,
    ),
    "groups": Row(
        view_groups.GroupsQuery,
        Listing(view_groups.groups_view, (Listed("groups", _named("group", "group")),)),
        view_groups.GroupsOut,
        Asks("describe", "group"),
    ),
    "group": Row(
        view_groups.GroupQuery, view_groups.group_view, view_groups.GroupDetail, Asks("describe", "group", "group")
    ),
    "jobs": Row(NoQuery, lambda broker, _: jobs.jobs_view(broker), jobs.JobList),
    "job": Row(jobs.JobQuery, jobs.job_view, jobs.JobInfo),
    "namespaces": Row(
        view_namespaces.NamespacesQuery,
        Listing(view_namespaces.namespaces_page, (Listed("namespaces", _named("namespace", "namespace")),)),
        view_namespaces.NamespaceList,
        Asks("describe", "namespace"),
    ),
    "namespace": Row(
        view_namespaces.NamespaceQuery,
        view_namespaces.namespace_view,
        view_namespaces.NamespaceOut,
        Asks("describe", "namespace", "namespace"),
    ),
    "policies": Row(
        view_namespaces.PoliciesQuery,
        Listing(view_namespaces.policies_page, (Listed("policies", _named("namespace", "namespace")),)),
        view_namespaces.PolicyList,
        Asks("describe", "namespace", "namespace"),
    ),
    "policy": Row(
        view_namespaces.PolicyQuery,
        view_namespaces.policy_view,
        view_namespaces.PolicyOut,
        Asks("describe", "namespace", "namespace"),
    ),
    "pipelines": Row(view_pipelines.PipelinesQuery, view_pipelines.pipelines_view, view_pipelines.PipelinesOut),
    "pipeline": Row(view_pipelines.PipelineQuery, view_pipelines.pipeline_view, view_pipelines.PipelineDetail),
    "queues": Row(
        view_queues.QueuesQuery,
        Listing(view_queues.queues_page, (Listed("queues", _named("queue", "queue")),)),
        view_queues.QueuePage,
        Asks("describe", "queue"),
    ),
    "queue": Row(
        QueueQuery,
        lambda broker, query: view_queues.queue_view(broker, query.queue),
        view_queues.QueueView,
        Asks("describe", "queue", "queue"),
    ),
    "quotas": Row(
        view_quotas.QuotasQuery, view_quotas.quotas_page, view_quotas.QuotaList, Asks("describe-configs", "cluster")
    ),
    "exchanges": Row(
        view_routing.ExchangesQuery,
        Listing(view_routing.exchanges_page, (Listed("exchanges", _named("exchange", "exchange")),)),
        view_routing.ExchangeList,
        Asks("describe", "exchange"),
    ),
    "bindings": Row(
        view_routing.BindingsQuery,
        Listing(view_routing.bindings_page, (Listed("bindings", lambda row: (target_of(row.target),)),)),
        view_routing.BindingList,
        Asks("describe", "exchange", "exchange"),
    ),
    "routing": Row(
        view_routing.RoutingQuery,
        Listing(
            view_routing.routing_page,
            (
                Listed("exchanges", _named("exchange", "name"), "total_exchanges"),
                Listed("bindings", _binding),
            ),
        ),
        view_routing.RoutingPage,
        Asks("describe", "exchange", "exchange"),
    ),
    "search": Row(search_terms.SearchQuery, searching.search, searching.SearchAnswer, Asks("read", "topic", "topic")),
    "settings": Row(
        view_settings.SettingsQuery,
        view_settings.settings_view,
        view_settings.SettingsOut,
        Asks("describe-configs", "cluster"),
    ),
    "topics": Row(
        view_topics.TopicsQuery,
        Listing(view_topics.topics_page, (Listed("topics", _named("topic", "topic")),)),
        view_topics.TopicList,
        Asks("describe", "topic"),
    ),
    "topic": Row(
        TopicQuery,
        lambda broker, query: view_topics.topic_view(broker, query.topic),
        view_topics.TopicOut,
        Asks("describe", "topic", "topic"),
    ),
    "topic-offsets": Row(
        view_topics.TopicOffsetsQuery,
        view_topics.topic_offsets,
        view_topics.TopicOffsets,
        Asks("describe", "topic", "topic"),
    ),
    "topic-settings": Row(
        view_topic_settings.TopicSettingsQuery,
        view_topic_settings.topic_settings_view,
        view_settings.SettingsOut,
        Asks("describe-configs", "topic", "topic"),
    ),
    "keys": Row(view_keys.KeysQuery, view_keys.keys_page, view_keys.KeyList),
    "users": Row(view_users.UsersQuery, view_users.users_page, view_users.UserList),
}

ACTIONS: dict[str, AnyRow] = {
    "add-acls": Row(
        view_acls.ChangeAcls, view_acls.add_acls, view_acls.AclsChanged, OPERATE, details=view_acls.described
    ),
    "remove-acls": Row(
        view_acls.ChangeAcls, view_acls.remove_acls, view_acls.AclsChanged, OPERATE, details=view_acls.described
    ),
    "add-key": Row(
        view_keys.AddKey, view_keys.add_key, view_keys.KeyAdded, OPERATE, named="user", details=view_keys.described
    ),
    "remove-key": Row(view_keys.KeyQuery, view_keys.remove_key, None, OPERATE, details=view_keys.beginning),
    "add-user": Row(view_users.AddUser, view_users.add_user, view_users.UserAdded, OPERATE, named="user"),
    "remove-user": Row(view_users.UserQuery, view_users.remove_user, view_users.UserRemoved, OPERATE, named="user"),
    "set-password": Row(view_users.SetPassword, view_users.set_password, None, OPERATE, named="user"),
    "alter-topic": Row(
        view_topics.AlterTopic,
        view_topics.alter_topic,
        view_topics.TopicOut,
        Asks("alter-configs", "topic", "topic"),
        also=lambda query: () if query.partitions is None else (Question("alter", "topic", query.topic),),
        mutates=view_topics.partitions_to_add,
    ),
    "cancel-delayed": Row(
        CancelDelayed,
        lambda broker, query: view_delayed.cancel_delayed(broker, query.topic, query.id),
        None,
        Asks("alter", "topic", "topic"),
    ),
    "cancel-job": Row(jobs.JobQuery, jobs.cancel_job, jobs.JobInfo, OPERATE, named="job"),
    "delete-records": Row(
        view_topics.DeleteRecords,
        view_topics.delete_records,
        view_topics.DeletedRecords,
        Asks("delete", "topic", "topic"),
    ),
    "drain-node": Row(cluster_operations.DrainNode, cluster_operations.drain_node, None, OPERATE, named="node"),
    "elect-leaders": Row(cluster_operations.Elect, cluster_operations.elect, cluster_operations.ElectOut, OPERATE),
    "reassign": Row(cluster_operations.Reassign, cluster_operations.reassign, cluster_operations.ReassignOut, OPERATE),
    "remove-node": Row(cluster_operations.RemoveNode, cluster_operations.remove_node, None, OPERATE, named="node"),
    "redrive": Row(
        RedriveQueue,
        Reaching(
            lambda broker, query, sight: view_dead_letters.redrive_in_background(broker, query.queue, query, sight)
        ),
        view_dead_letters.JobStarted,
        Asks("read", "queue", "queue"),
        also=lambda query: () if query.to is None else (Question("write", *dead_letter_target_of(query.to)),),
    ),
    "reset-group": Row(
        group_resetting.ResetGroup,
        group_resetting.reset_group,
        group_resetting.ResetOut,
        Asks("alter", "group", "group"),
    ),
    "delete-group": Row(
        group_resetting.DeleteGroup, group_resetting.delete_group, None, Asks("delete", "group", "group")
    ),
    "set-namespace": Row(
        view_namespaces.SetNamespace,
        view_namespaces.set_namespace,
        view_namespaces.NamespaceOut,
        Asks("create", "namespace", "namespace"),
    ),
    "delete-namespace": Row(
        view_namespaces.NamespaceQuery,
        view_namespaces.delete_namespace,
        None,
        Asks("delete", "namespace", "namespace"),
    ),
    "set-policy": Row(
        view_namespaces.SetPolicy,
        view_namespaces.set_policy,
        view_namespaces.PolicyOut,
        Asks("alter", "namespace", "namespace"),
    ),
    "delete-policy": Row(
        view_namespaces.PolicyQuery,
        view_namespaces.delete_policy,
        None,
        Asks("alter", "namespace", "namespace"),
    ),
    "set-quotas": Row(
        view_quotas.SetQuotas,
        view_quotas.set_quotas,
        view_quotas.QuotaOut,
        Asks("alter-configs", "cluster"),
        details=view_quotas.described,
    ),
    "remove-quotas": Row(
        view_quotas.RemoveQuotas,
        view_quotas.remove_quotas,
        view_quotas.QuotasRemoved,
        Asks("alter-configs", "cluster"),
        details=view_quotas.described,
    ),
    "start-pipeline": Row(
        view_pipelines.PipelineQuery,
        view_pipelines.start_pipeline,
        view_pipelines.PipelineDetail,
        OPERATE,
        named="pipeline",
    ),
    "stop-pipeline": Row(
        view_pipelines.PipelineQuery,
        view_pipelines.stop_pipeline,
        view_pipelines.PipelineDetail,
        OPERATE,
        named="pipeline",
    ),
}


def find(kind: str, what: str) -> AnyRow:
    """A view or an action by its name; NotFound says which there are."""
    rows = VIEWS if kind == "view" else ACTIONS
    row = rows.get(what)
    if row is None:
        hint = near_matches(what, rows) or f"; there are {', '.join(sorted(rows))}"
        raise NotFound(f"there is no {kind} {what[:60]!r}{hint}")
    return row


def read(query: Mapping[str, Any], wanted: type[Q]) -> Q:
    """The query as its struct; what it does not have is refused by name."""
    fields = [field.encode_name for field in msgspec.structs.fields(wanted)]
    for name in query:
        if name not in fields:
            raise unknown(name, "field", fields)
    return convert(query, wanted, whole="query", strict=False)
