"""The API of a topic's settings: what holds, and where it comes from. PATCH of the topic changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin.view_settings import SettingsOut
from waystation.admin.view_topic_settings import TopicSettingsQuery, topic_settings_view
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "topics"


async def settings(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return topic_settings_view(desk.broker, TopicSettingsQuery(call.path["topic"]))


ROUTES: tuple[AnyRoute, ...] = (
    Route("GET", "/v1/topics/{topic}/settings", settings, "A topic's settings", answer=SettingsOut, tag=TAG),
)
