"""What a change of settings would delete, and the question before it is made.

A shorter retention deletes old messages of topics; a smaller queue that drops its oldest messages deletes those. A
person is told what is stored and would be deleted, and asked; `--yes` skips it. Nothing stored, nothing asked. The
figures are of this moment: retention deletes whole segments, the next time that it looks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from waystation.cli.terminal.output import confirmed, note, spell_bytes, spell_count
from waystation.cli.terminal.setting_units import spelled

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.protocol import QueueInfo
    from waystation.queues.settings import QueueSettings

AGE, SIZE, POLICY = "retention.ms", "retention.bytes", "cleanup.policy"
OF_BROKER = {AGE: "log.retention.ms", SIZE: "log.retention.bytes", POLICY: "log.cleanup.policy"}
"""The broker's defaults for them."""
COUNTED_TOPICS = 100
"""Of more topics than these, their old messages are not counted one topic after the other."""


def agreed(dangers: Sequence[str], *, yes: bool) -> bool:
    """Whether to go on; without any danger, yes."""
    if yes or not dangers:
        return True
    for danger in dangers:
        note(danger)
    return confirmed("go on?", yes=False)


# -- topics ------------------------------------------------------------------------------------------------------------


def topic_dangers(mq: Client, topic: str, changes: Mapping[str, str | None]) -> list[str]:
    """Of a change of one topic's settings; None is back to the broker's default."""
    if not changes.keys() & OF_BROKER.keys():
        return []
    rows = {one["name"]: one for one in mq.view("topic-settings", topic=topic)["settings"]}
    after = _after(rows, {name: name for name in OF_BROKER}, changes)
    found = _shortened([mq.view("topic", topic=topic)], after, own=True)
    return [f"topic {topic}: {_told(rows, changes)}; {_stored(mq, found)}"] if found else []


def default_dangers(mq: Client, changes: Mapping[str, str | None]) -> list[str]:
    """Of a change of the broker's defaults for topics; None is back to what the broker was started with."""
    from waystation.cli.terminal.native import all_of

    if not changes.keys() & set(OF_BROKER.values()):
        return []
    rows = {one["name"]: one for one in mq.view("settings", search="log.")["settings"]}
    after = _after(rows, OF_BROKER, changes)
    found = _shortened(all_of(mq, "topics"), after, own=False)
    if not found:
        return []
    which = f"{spell_count(len(found), 'topic')} without {' or '.join(after)} of its own"
    return [f"{_told(rows, changes)}, for {which}; {_stored(mq, found)}"]


def _after(
    rows: Mapping[str, dict[str, Any]], names: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """What is changed, by the names that topics have for it. `rows` are the settings as the broker shows them."""
    wanted = {name: changes[called] for name, called in names.items() if called in changes}
    return {name: str(rows[names[name]]["fallback"]) if value is None else value for name, value in wanted.items()}


def _told(rows: Mapping[str, dict[str, Any]], changes: Mapping[str, str | None]) -> str:
    told = []
    for name, value in changes.items():
        if name in OF_BROKER or name in OF_BROKER.values():
            before, after = str(rows[name]["value"]), str(rows[name]["fallback"]) if value is None else value
            told.append(f"{name} goes from {spelled(name, before) or 'none'} to {spelled(name, after) or 'none'}")
    return ", ".join(told)


def _shortened(topics: list[dict[str, Any]], after: Mapping[str, str], *, own: bool) -> list[_Shorter]:
    """The topics with messages whose limits become lower. Unless the change is their `own`, what they have set
    themselves stays."""
    found = []
    for topic in topics:
        now = {AGE: topic["retention_ms"], SIZE: topic["retention_bytes"], POLICY: topic["cleanup_policy"]}
        then = now | {name: value for name, value in after.items() if own or name not in topic["settings"]}
        limits = {name: _limit(name, then) for name in (AGE, SIZE) if _limit(name, then) < _limit(name, now)}
        if limits and topic["messages"]:
            found.append(_Shorter(topic, limits))
    return found


class _Shorter(NamedTuple):
    """A topic, as the broker shows it, and those of its limits that become lower."""

    topic: dict[str, Any]
    limits: dict[str, float]


def _limit(name: str, values: Mapping[str, Any]) -> float:
    try:
        value = int(values[name])
    except ValueError:
        return math.inf  # the broker says what is wrong with it
    return value if value >= 0 and "delete" in values[POLICY] else math.inf


def _stored(mq: Client, found: list[_Shorter]) -> str:
    """What is there, and how much of it is beyond the new limits."""
    messages = sum(topic["messages"] for topic, _ in found)
    size = sum(topic["bytes"] for topic, _ in found)
    doomed = []
    aged = [(topic, int(limits[AGE])) for topic, limits in found if AGE in limits]
    if aged and len(aged) <= COUNTED_TOPICS:
        doomed.append(f"{sum(_older(mq, topic['topic'], age_ms) for topic, age_ms in aged)} are older")
    sized = [(topic, int(limits[SIZE])) for topic, limits in found if SIZE in limits]
    if sized:
        excess = sum(max(0, one["bytes"] - room) for topic, room in sized for one in topic["partitions"])
        doomed.append(f"{spell_bytes(excess)} are above the limit")
    of_them = f", of which {' and '.join(doomed)}" if doomed else ""
    stored = f"{spell_count(messages, 'message')} ({spell_bytes(size)}) stored{of_them}"
    return f"{stored}. Messages beyond the limit are deleted for good"


def _older(mq: Client, topic: str, age_ms: int) -> int:
    since_ms = max(0, time.time_ns() // 1_000_000 - age_ms)
    offsets = mq.view("topic-offsets", topic=topic, at=f"@{since_ms}")["offsets"]
    return sum(one["offset"] - one["start_offset"] for one in offsets)


# -- queues ------------------------------------------------------------------------------------------------------------


def queue_dangers(info: QueueInfo, after: QueueSettings) -> list[str]:
    """Of other settings for a queue. A new ttl holds for new messages alone, so it deletes nothing that is stored."""
    if after.refuses or after.buries_oldest:
        return []
    waiting = info.ready + info.parked
    over = []
    if after.max_length is not None and waiting > after.max_length:
        over.append(f"{waiting - after.max_length} of its {spell_count(waiting, 'message')}")
    if after.max_bytes is not None and info.bytes > after.max_bytes:
        over.append(f"{spell_bytes(info.bytes - after.max_bytes)} of its {spell_bytes(info.bytes)}")
    if not over:
        return []
    return [f"queue {info.queue} drops its oldest messages: the next publish deletes {' and '.join(over)} for good"]
