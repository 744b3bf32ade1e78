"""What can go wrong with a share group, named by the situation, with the code that Kafka's share consumers act upon."""

from __future__ import annotations

from typing import ClassVar

from waystation.errors import Conflict, Full, Invalid, NotFound


class InvalidRecordState(Conflict):
    """The record is not in flight to the member: it was settled already, its lock ran out, or another member has it."""

    kafka_code: ClassVar[str | None] = "INVALID_RECORD_STATE"


class UnknownShareSession(NotFound):
    """The broker has no such share session (it was closed, or the broker was restarted); begin a new one."""

    kafka_code: ClassVar[str | None] = "SHARE_SESSION_NOT_FOUND"


class InvalidShareSessionEpoch(Conflict):
    """The request is not the next one of its share session; begin a new session."""

    kafka_code: ClassVar[str | None] = "INVALID_SHARE_SESSION_EPOCH"


class TooManyShareSessions(Full):
    """The broker has as many share sessions as it may (`group.share.max.share.sessions`)."""

    kafka_code: ClassVar[str | None] = "SHARE_SESSION_LIMIT_REACHED"


class InvalidShareRequest(Invalid):
    """A field of the request makes no sense; nothing was changed."""

    kafka_code: ClassVar[str | None] = "INVALID_REQUEST"
