"""The API of the broker's settings: show them with where each comes from, change them while the broker runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin import view_settings
from waystation.admin.view_settings import Given, SettingsOut, SettingsQuery
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "settings"


async def show(desk: Desk, call: Call[SettingsQuery, Nothing]) -> Outcome:
    return view_settings.settings_view(desk.broker, call.query)


async def alter(desk: Desk, call: Call[Nothing, dict[str, Given]]) -> Outcome:
    await view_settings.alter(desk.broker, call.body)
    return view_settings.settings_view(desk.broker, SettingsQuery())


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/settings",
        show,
        "The broker's settings, and where each comes from",
        tag=TAG,
        query=SettingsQuery,
        answer=SettingsOut,
    ),
    Route(
        "PATCH",
        "/v1/settings",
        alter,
        "Change settings while the broker runs",
        tag=TAG,
        description="The body has settings by name; null takes one back. All of them are changed or none. They survive"
        " a restart.",
        body=dict[str, Given],
        answer=SettingsOut,
    ),
)
