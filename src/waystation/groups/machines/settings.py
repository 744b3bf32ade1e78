"""The numbers that groups live by, each with its reason.

A snapshot: the coordinator holds one and reads it at the moment of use; when a dynamic setting of the broker changes,
it is handed a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from waystation.config import BrokerSettings, Setting
from waystation.errors import InvalidSetting, near_matches

SESSION_TIMEOUT = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"

CONSUMER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            SESSION_TIMEOUT,
            "int",
            45_000,
            "KIP-848: a member silent for this long is removed, and its partitions are assigned to others.",
            low=1,
            high=2**31 - 1,
            broker_name="group.consumer.session.timeout.ms",
        ),
        Setting(
            HEARTBEAT_INTERVAL,
            "int",
            5_000,
            "KIP-848: how often members of a group at rest are told to heartbeat.",
            low=1,
            high=2**31 - 1,
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
    )
}
"""What a KIP-848 group may have of its own, over the broker's."""


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What may vary between installations. Kafka's name stands behind each field that has one."""

    initial_rebalance_delay_ms: int = 100
    """group.initial.rebalance.delay.ms. A new group waits until this long passes without a new member, so that
    processes that start together share the first generation. Kafka's 3 s is what makes its groups feel slow; members
    that do come later only cost one more rebalance. A client needs two round trips to join (it is given a member id
    first), so a member that has its id and is about to use it prolongs the wait as well."""

    initial_rebalance_limit_ms: int = 3_000
    """The wait above is prolonged by each newcomer, but never beyond this: no slower than Kafka at its fastest."""

    min_session_timeout_ms: int = 6_000
    """group.min.session.timeout.ms. Shorter ones turn a garbage collection into a rebalance."""

    max_session_timeout_ms: int = 1_800_000
    """group.max.session.timeout.ms. Longer ones leave the partitions of the dead unread."""

    max_group_size: int = 10_000
    """group.max.size. Bounds the memory one group id can take and the size of its record in the log."""

    new_member_join_timeout_ms: int = 300_000
    """A new member that waits for the first answer to its join cannot heartbeat yet; if its client went away meanwhile,
    this is when it is forgotten. Kafka's number: the longest rebalance a default Java consumer waits for."""

    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms: a KIP-848 member silent for this long is removed."""

    consumer_heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms: what members of a group at rest are told."""

    consumer_session_timeout_bounds_ms: tuple[int, int] = (45_000, 60_000)
    """group.consumer.min.session.timeout.ms and …max…: of what a group sets for itself."""

    consumer_heartbeat_interval_bounds_ms: tuple[int, int] = (5_000, 15_000)
    """group.consumer.min.heartbeat.interval.ms and …max…: the same."""

    consumer_settling_interval_ms: int = 250
    """What KIP-848 members are told while the group is not settled; from there it grows to the interval above. A
    partition moves in three heartbeats (its old owner hears of it, gives it up, the new one is given it), so at 5 s
    each a rebalance would take 10–15 s."""

    offset_metadata_max_bytes: int = 4_096
    """offset.metadata.max.bytes: the text goes into every commit's record and stays in memory."""

    offsets_retention_ms: int = 7 * 86_400_000
    """offsets.retention.minutes: how long the offsets of a group without members are kept."""

    retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms: how often expired offsets are looked for."""

    max_groups: int = 200_000
    """Anyone may invent group ids; this is where inventing them stops taking memory."""

    max_name_bytes: int = 1_024
    """Group, member and instance ids, client ids, assignor and protocol names: they are repeated in records, and a
    record's key has 16 bits for a length."""

    max_member_bytes: int = 1_048_576
    """What one member may hand in to be kept (its protocols' metadata, or its assignment): roomy for a subscription
    to 20,000 topics, and together with `max_group_size` a bound on a group's memory."""

    max_group_bytes: int = 64 * 1_048_576
    """A classic group is one record; a batch must fit into 31 bits and into memory, several times over."""

    @classmethod
    def of(cls, broker: BrokerSettings) -> GroupSettings:
        """The settings of a running broker."""
        return cls(
            initial_rebalance_delay_ms=broker.integer("group.initial.rebalance.delay.ms"),
            min_session_timeout_ms=broker.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=broker.integer("group.max.session.timeout.ms"),
            max_group_size=broker.integer("group.max.size"),
            consumer_session_timeout_ms=broker.integer("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=broker.integer("group.consumer.heartbeat.interval.ms"),
            consumer_session_timeout_bounds_ms=_bounds(broker, "session.timeout.ms"),
            consumer_heartbeat_interval_bounds_ms=_bounds(broker, "heartbeat.interval.ms"),
            offset_metadata_max_bytes=broker.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=broker.integer("offsets.retention.minutes") * 60_000,
        )

    def with_own(self, own: Mapping[str, str]) -> GroupSettings:
        """For a group that has these settings of its own."""
        if not own:
            return self
        return replace(
            self,
            consumer_session_timeout_ms=int(own.get(SESSION_TIMEOUT, self.consumer_session_timeout_ms)),
            consumer_heartbeat_interval_ms=int(own.get(HEARTBEAT_INTERVAL, self.consumer_heartbeat_interval_ms)),
        )

    def check_own(self, own: Mapping[str, str]) -> None:
        """Raises InvalidSetting unless a group can have these."""
        bounds = {
            SESSION_TIMEOUT: self.consumer_session_timeout_bounds_ms,
            HEARTBEAT_INTERVAL: self.consumer_heartbeat_interval_bounds_ms,
        }
        for name, text in own.items():
            setting = CONSUMER_SETTINGS.get(name)
            if setting is None:
                raise InvalidSetting(f"there is no group setting {name[:100]!r}{near_matches(name, CONSUMER_SETTINGS)}")
            low, high = bounds[name]
            if not low <= int(setting.parse(text)) <= high:
                raise InvalidSetting(f"{name}={text}: this broker takes {low} to {high} (group.{_limit(name)})")
        made = self.with_own(own)
        if own and made.consumer_session_timeout_ms <= made.consumer_heartbeat_interval_ms:
            raise InvalidSetting(f"{SESSION_TIMEOUT} has to be above {HEARTBEAT_INTERVAL}")


def _limit(name: str) -> str:
    kind, _, what = name.partition(".")
    return f"{kind}.min.{what} and {kind}.max.{what}"


def _bounds(broker: BrokerSettings, what: str) -> tuple[int, int]:
    return broker.integer(f"group.consumer.min.{what}"), broker.integer(f"group.consumer.max.{what}")
