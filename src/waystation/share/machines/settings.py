"""The settings of a share group: its own (kept with the group) over the broker's defaults.

The table is the truth: parsing, validation, DescribeConfigs and the documentation come from it. Names are Kafka's; what
is ours alone starts with `waystation.`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from waystation.config import BrokerSettings, Setting, Value
from waystation.errors import InvalidSetting, near_matches

Isolation = Literal["read_uncommitted", "read_committed"]

RESET = "share.auto.offset.reset"
DELIVERIES = "share.delivery.count.limit"
DEAD_LETTER = "waystation.dead.letter"
DEAD_LETTER_KEY = "waystation.dead.letter.key"
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"

SHARE_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            RESET,
            "string",
            "latest",
            "Where the group begins in a partition that is new to it: `earliest`, `latest`, or `by_duration:PT1H`.",
        ),
        Setting(
            "share.isolation.level",
            "string",
            "read_uncommitted",
            "`read_committed`: records of open transactions wait, those of aborted ones are left out.",
            choices=("read_uncommitted", "read_committed"),
        ),
        Setting(
            "share.record.lock.duration.ms",
            "int",
            30_000,
            "How long a record stays acquired by a member before it is delivered to another.",
            low=1,
            high=86_400_000,
            broker_name="group.share.record.lock.duration.ms",
        ),
        Setting(
            DELIVERIES,
            "int",
            5,
            "Maximum delivery attempts of a record; after that it is archived or dead-lettered. 0: no limit.",
            low=0,
            high=32_766,
            broker_name="group.share.delivery.count.limit",
        ),
        Setting(
            "share.partition.max.record.locks",
            "int",
            2_000,
            "Records of one partition that are not done, above which no further ones are delivered.",
            low=1,
            high=100_000,
            broker_name="group.share.partition.max.record.locks",
        ),
        Setting(
            "share.session.timeout.ms",
            "int",
            45_000,
            "A member silent for this long is removed, and its records in flight are redelivered to others.",
            low=1,
            high=2**31 - 1,
            broker_name="group.share.session.timeout.ms",
        ),
        Setting(
            "share.heartbeat.interval.ms",
            "int",
            5_000,
            "How often members of a group at rest are told to heartbeat.",
            low=1,
            high=2**31 - 1,
            broker_name="group.share.heartbeat.interval.ms",
        ),
        Setting(
            "share.renew.acknowledge.enable",
            "bool",
            True,
            "Whether members may prolong the lock of a record (`renew`).",
        ),
        Setting(
            DEAD_LETTER_TOPIC,
            "string",
            "",
            "The topic for dead letters; empty: dead records are archived only."
            " The whole record is copied, with its failure history.",
        ),
        Setting(
            "errors.deadletterqueue.copy.record.enable",
            "bool",
            True,
            "Accepted for compatibility; a dead letter always has the record in it.",
        ),
        Setting(
            DEAD_LETTER,
            "string",
            "",
            "Destination of dead letters: a queue's name, `topic:NAME`, or `exchange:NAME`."
            " Wins over `errors.deadletterqueue.topic.name`. If neither is set: the queue `TOPIC.GROUP.dead` for groups"
            " that members of other protocols than Kafka's have been in.",
        ),
        Setting(
            DEAD_LETTER_KEY,
            "string",
            "",
            "The routing key of dead letters for an exchange; empty: their own, or else their topic's name.",
        ),
    )
}

MOST_DELIVERIES = int(SHARE_SETTINGS[DELIVERIES].high)

_DURATION = re.compile(
    r"by_duration:P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12})(?:\.(\d{1,9}))?S)?)?",
    re.IGNORECASE,
)


def check_setting(name: str, text: str) -> Value:
    """The typed value; InvalidSetting for an unknown name or a value that it cannot take."""
    setting = SHARE_SETTINGS.get(name)
    if setting is None:
        raise InvalidSetting(f"there is no group setting {name!r}{near_matches(name, SHARE_SETTINGS)}")
    value = setting.parse(text)
    if name == RESET:
        reset_of(text.strip())
    return value


def reset_of(text: str) -> tuple[Literal["earliest", "latest", "ago"], int]:
    """What `share.auto.offset.reset` means: a strategy, and for `ago` how many milliseconds."""
    lowered = text.lower()
    if lowered == "earliest":
        return "earliest", 0
    if lowered == "latest":
        return "latest", 0
    found = _DURATION.fullmatch(text)
    if found is None or not any(found.groups()):
        raise InvalidSetting(f"{RESET}={text!r}: expected earliest, latest, or a duration such as by_duration:PT1H30M")
    days, hours, minutes, seconds, fraction = (found[i] or "0" for i in range(1, 6))
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return "ago", whole * 1000 + int((fraction + "00")[:3])


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings, resolved: a snapshot, made again when the group's or the broker's change."""

    reset: str = "latest"
    isolation: Isolation = "read_uncommitted"
    lock_ms: int = 30_000
    max_deliveries: int = 5
    max_locks: int = 2_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    renews: bool = True
    dead_letter: str | None = None
    """A queue's name, `topic:NAME`, or `exchange:NAME`."""
    dead_letter_said: bool = False
    """Somebody has chosen a target, or that there is none."""
    dead_letter_key: str | None = None
    """For an exchange: instead of the record's own."""
    max_members: int = 1_000

    @classmethod
    def of(cls, own: Mapping[str, str], broker: BrokerSettings) -> ShareSettings:
        def value(name: str) -> Value:
            setting = SHARE_SETTINGS[name]
            return setting.parse(own[name]) if name in own else broker.topic_default(setting)

        committed = value("share.isolation.level") == "read_committed"
        return cls(
            reset=str(value(RESET)),
            isolation="read_committed" if committed else "read_uncommitted",
            lock_ms=int(value("share.record.lock.duration.ms")),
            max_deliveries=int(value(DELIVERIES)),
            max_locks=int(value("share.partition.max.record.locks")),
            session_timeout_ms=int(value("share.session.timeout.ms")),
            heartbeat_interval_ms=int(value("share.heartbeat.interval.ms")),
            renews=bool(value("share.renew.acknowledge.enable")),
            dead_letter=_target(str(value(DEAD_LETTER)), str(value(DEAD_LETTER_TOPIC))),
            dead_letter_said=DEAD_LETTER in own or DEAD_LETTER_TOPIC in own,
            dead_letter_key=str(value(DEAD_LETTER_KEY)) or None,
            max_members=broker.integer("group.share.max.size"),
        )


def _target(any_target: str, topic: str) -> str | None:
    if any_target:
        return any_target.removeprefix("queue:")
    return f"topic:{topic}" if topic else None
