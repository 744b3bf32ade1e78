"""What may be asked of share groups, checked before anything is made: each mistake is refused by the field's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from waystation.errors import Conflict, Invalid, InvalidSetting
from waystation.groups.machines.errors import InvalidGroupId, InvalidGroupRequest
from waystation.queues.failure_history import EXCHANGE_TARGET, TOPIC_TARGET
from waystation.queues.settings import check_queue_name
from waystation.routing.filtering.filters import Filter
from waystation.routing.table import check_exchange_name
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareBeat
from waystation.share.machines.members import JOIN_EPOCH, LEAVE_EPOCH
from waystation.share.machines.settings import (
    DEAD_LETTER,
    DEAD_LETTER_TOPIC,
    DELIVERIES,
    MOST_DELIVERIES,
    check_setting,
)
from waystation.topics.topics import check_name

MAX_NAME_BYTES = 1_024
MAX_PATTERNS = 1_000
MAX_TOPICS = 100_000
MAX_MEMBER_BYTES = 1_048_576
"""Of the names that a member subscribes to, as in a consumer group."""
MAX_VISIBILITY_TIMEOUT_MS = 86_400_000


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("the group id is empty")
    try:
        size = len(group_id.encode())
    except UnicodeEncodeError:
        raise InvalidGroupId("the group id has half a surrogate pair, which is no character") from None
    if size > MAX_NAME_BYTES:
        raise InvalidGroupId(f"the group id is longer than {MAX_NAME_BYTES} bytes")


def check_own(own: Mapping[str, str]) -> None:
    """Raises InvalidSetting unless these can be the settings of a group."""
    for name, text in own.items():
        check_setting(name, text)
    for name in (DEAD_LETTER, DEAD_LETTER_TOPIC):
        target = own.get(name, "").removeprefix("queue:")
        if not target or (name == DEAD_LETTER and _is_exchange(target)):
            continue
        topic = target.removeprefix(TOPIC_TARGET)
        try:
            check_name(topic) if name == DEAD_LETTER_TOPIC or topic != target else check_queue_name(target)
        except Invalid as error:
            raise InvalidSetting(f"{name}: {error}") from None
        if topic.startswith("__"):
            raise InvalidSetting(f"{name}: {topic!r} is the broker's own")


def _is_exchange(target: str) -> bool:
    """Whether it names an exchange, which need not be there; raises InvalidSetting if none can be called that."""
    if not target.startswith(EXCHANGE_TARGET):
        return False
    try:
        check_exchange_name(target.removeprefix(EXCHANGE_TARGET))
    except Invalid as error:
        raise InvalidSetting(f"{DEAD_LETTER}: {error}") from None
    return True


def wanted_settings(max_deliveries: int | None, dead_letter: str | None) -> dict[str, str]:
    """The settings that a subscriber wants its group to have; None: as they are."""
    given = {DELIVERIES: str(max_deliveries)} if max_deliveries is not None else {}
    if dead_letter is not None:
        given[DEAD_LETTER] = dead_letter
    check_own(given)
    return given


def check_member_id(member_id: str) -> None:
    if not member_id or len(member_id) > MAX_NAME_BYTES:
        raise InvalidGroupRequest(f"the member id is empty, or longer than {MAX_NAME_BYTES} characters")


def check_beat(beat: ShareBeat) -> None:
    check_group_id(beat.group_id)
    check_member_id(beat.member_id)
    if beat.rack_id is not None and len(beat.rack_id) > MAX_NAME_BYTES:
        raise InvalidGroupRequest(f"the rack id is longer than {MAX_NAME_BYTES} characters")
    if beat.member_epoch < LEAVE_EPOCH:
        raise Invalid(f"member_epoch: {beat.member_epoch} means nothing")
    if beat.topics is not None and len(beat.topics) > MAX_TOPICS:
        raise Invalid(f"{len(beat.topics)} topics are more than a member may subscribe to ({MAX_TOPICS})")
    if sum(map(len, beat.topics or ())) > MAX_MEMBER_BYTES:
        raise InvalidGroupRequest(f"the subscription is larger than {MAX_MEMBER_BYTES} bytes")
    if beat.topics is None and beat.member_epoch == JOIN_EPOCH:
        raise InvalidGroupRequest("the first heartbeat has to say which topics the member subscribes to")


def check_open(
    patterns: Sequence[str], start: str, prefetch: int, visibility_timeout_ms: int | None, max_deliveries: int | None
) -> None:
    if not 1 <= len(patterns) <= MAX_PATTERNS:
        raise Invalid(f"topics: 1 to {MAX_PATTERNS} names and patterns, not {len(patterns)}")
    if start not in ("earliest", "latest"):
        raise Invalid(f"start: {start!r} is neither 'earliest' nor 'latest'")
    if prefetch < 0:
        raise Invalid(f"prefetch: {prefetch} is below zero")
    if visibility_timeout_ms is not None and not 0 < visibility_timeout_ms <= MAX_VISIBILITY_TIMEOUT_MS:
        raise Invalid(f"hold_ms: {visibility_timeout_ms} is not between 1 and {MAX_VISIBILITY_TIMEOUT_MS}")
    if max_deliveries is not None and not 0 <= max_deliveries <= MOST_DELIVERIES:
        raise Invalid(f"max_deliveries: {max_deliveries} is not between 0 (no limit) and {MOST_DELIVERIES}")


def check_filters(group: SharedGroup, accepts: Filter | None) -> None:
    """What one member's filter refuses is done for all: members with other filters would lose it unseen."""
    text = None if accepts is None else accepts.text
    for feed in group.feeds.values():
        other = None if feed.filter is None else feed.filter.text
        if other != text:
            raise Conflict(
                f"filter: group {group.id!r} has members with the filter {other!r}; all of a group have the same one"
            )
