"""What the broker shows of itself and what can be done to it, by name: the native protocol's `view` and `act`.

The HTTP door has a route for each of them with the same query and the same answer; both only hand them on. A row names
the struct that the query is read as, and the function that answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from waystation.admin import (
    group_resetting,
    jobs,
    search_terms,
    searching,
    view_connections,
    view_dead_letters,
    view_delayed,
    view_groups,
    view_overview,
    view_pipelines,
    view_queues,
    view_routing,
    view_settings,
    view_topic_settings,
    view_topics,
)
from waystation.broker.access.queries import convert, unknown
from waystation.errors import NotFound, near_matches
from waystation.queues import redriving

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

Q = TypeVar("Q", bound=msgspec.Struct)


class Nothing(msgspec.Struct):
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


@dataclass(frozen=True, slots=True)
class Row(Generic[Q]):
    """One view or action."""

    query: type[Q]
    answer: Callable[[ManagedBroker, Q], Awaitable[Any] | Any]


AnyRow = Row[Any]

VIEWS: dict[str, AnyRow] = {
    "overview": Row(view_overview.OverviewQuery, view_overview.overview_view),
    "history": Row(view_overview.HistoryQuery, view_overview.history_view),
    "connections": Row(view_connections.ConnectionsQuery, view_connections.connections_view),
    "connection": Row(view_connections.ConnectionQuery, view_connections.connection_view),
    "consumers": Row(view_queues.ConsumersQuery, view_queues.consumers_page),
    "dead-letters": Row(view_dead_letters.PlacesQuery, view_dead_letters.dead_letter_places),
    "dead-letter-messages": Row(view_dead_letters.DeadLettersQuery, view_dead_letters.dead_letters),
    "dead-letter-summary": Row(view_dead_letters.SummaryQuery, view_dead_letters.dead_letter_summary),
    "delayed": Row(view_delayed.DelayedQuery, view_delayed.delayed_view),
    "groups": Row(view_groups.GroupsQuery, view_groups.groups_view),
    "group": Row(view_groups.GroupQuery, view_groups.group_view),
    "jobs": Row(Nothing, lambda broker, _: jobs.jobs_view(broker)),
    "job": Row(jobs.JobQuery, jobs.job_view),
    "pipelines": Row(view_pipelines.PipelinesQuery, view_pipelines.pipelines_view),
    "pipeline": Row(view_pipelines.PipelineQuery, view_pipelines.pipeline_view),
    "queues": Row(view_queues.QueuesQuery, view_queues.queues_page),
    "queue": Row(QueueQuery, lambda broker, query: view_queues.queue_view(broker, query.queue)),
    "exchanges": Row(view_routing.ExchangesQuery, view_routing.exchanges_page),
    "bindings": Row(view_routing.BindingsQuery, view_routing.bindings_page),
    "routing": Row(view_routing.RoutingQuery, view_routing.routing_page),
    "search": Row(search_terms.SearchQuery, searching.search),
    "settings": Row(view_settings.SettingsQuery, view_settings.settings_view),
    "topics": Row(view_topics.TopicsQuery, view_topics.topics_page),
    "topic": Row(TopicQuery, lambda broker, query: view_topics.topic_view(broker, query.topic)),
    "topic-offsets": Row(view_topics.TopicOffsetsQuery, view_topics.topic_offsets),
    "topic-settings": Row(view_topic_settings.TopicSettingsQuery, view_topic_settings.topic_settings_view),
}

ACTIONS: dict[str, AnyRow] = {
    "alter-topic": Row(view_topics.AlterTopic, view_topics.alter_topic),
    "cancel-delayed": Row(
        CancelDelayed, lambda broker, query: view_delayed.cancel_delayed(broker, query.topic, query.id)
    ),
    "cancel-job": Row(jobs.JobQuery, jobs.cancel_job),
    "delete-records": Row(view_topics.DeleteRecords, view_topics.delete_records),
    "redrive": Row(
        RedriveQueue, lambda broker, query: view_dead_letters.redrive_in_background(broker, query.queue, query)
    ),
    "reset-group": Row(group_resetting.ResetGroup, group_resetting.reset_group),
    "delete-group": Row(group_resetting.DeleteGroup, group_resetting.delete_group),
    "start-pipeline": Row(view_pipelines.PipelineQuery, view_pipelines.start_pipeline),
    "stop-pipeline": Row(view_pipelines.PipelineQuery, view_pipelines.stop_pipeline),
}


async def see(broker: ManagedBroker, what: str, query: Mapping[str, Any]) -> Any:
    """A view by its name; NotFound says which there are."""
    return await _answer(broker, VIEWS, "view", what, query)


async def act(broker: ManagedBroker, what: str, query: Mapping[str, Any]) -> Any:
    """An action by its name."""
    return await _answer(broker, ACTIONS, "action", what, query)


async def _answer(
    broker: ManagedBroker, rows: Mapping[str, AnyRow], kind: str, what: str, query: Mapping[str, Any]
) -> Any:
    row = rows.get(what)
    if row is None:
        hint = near_matches(what, rows) or f"; there are {', '.join(sorted(rows))}"
        raise NotFound(f"there is no {kind} {what[:60]!r}{hint}")
    answer = row.answer(broker, read(query, row.query))
    return await answer if isinstance(answer, Awaitable) else answer


def read(query: Mapping[str, Any], wanted: type[Q]) -> Q:
    """The query as its struct; what it does not have is refused by name."""
    fields = [field.encode_name for field in msgspec.structs.fields(wanted)]
    for name in query:
        if name not in fields:
            raise unknown(name, "field", fields)
    return convert(query, wanted, whole="query", strict=False)
