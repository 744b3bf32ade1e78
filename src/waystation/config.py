"""Settings: one table for topics, one for the broker, and the typed values that the code reads.

The tables are the truth: parsing, validation, defaults, `DescribeConfigs`, the config file and the documentation all
come from them. Names are Kafka's where Kafka has the setting, so that existing scripts work; what is ours alone starts
with `waystation.`. A topic's setting falls back to the broker's default for it (`log.*` names), as in Kafka.

`BrokerSettings` is mutable on purpose: a setting marked `dynamic` may change while the broker runs, and everything
reads it at the moment of use. A setting that `protects` something, a promise to other clients or a bound on what one
client may take, is for whoever starts the broker alone: no protocol can change it. `TopicSettings` is an immutable
snapshot, re-created when a topic is altered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Literal

import msgspec

from waystation import config_kafka
from waystation.errors import InvalidSetting

Kind = Literal["int", "bool", "string", "float", "list"]
Value = int | bool | str | float

FOREVER = 2**63 - 1
"""Kafka's way to write "no limit" in a 64-bit setting."""

MAX_VALUE_CHARACTERS = 65_536
"""Of one value, as text. Values are stored in the catalog and held in memory, and any client may set some: room for a
list of ten thousand replicas, and for nothing absurd."""


class Setting(msgspec.Struct, frozen=True):
    """One row: what it is called, what it may be, and what it does."""

    name: str
    kind: Kind
    default: Value
    doc: str
    low: float = -FOREVER
    high: float = FOREVER
    choices: tuple[str, ...] = ()
    broker_name: str | None = None  # topics: the broker setting that is this one's default
    dynamic: bool = True  # broker: may change while it runs
    protects: str = ""  # broker: what a client would break for others if it could change this; then not dynamic
    secret: bool = False  # never shown
    only: str = ""  # why no other value than the default is taken
    parts: str = ""  # of a list: the regular expression of each part
    example: str = ""  # of what `parts` means, for the error

    @property
    def field(self) -> str:
        return self.name.removeprefix("waystation.").replace(".", "_")

    def parse(self, text: str) -> Value:
        """The typed value, or InvalidSetting that names the setting, the value and what would do."""
        if len(text) > MAX_VALUE_CHARACTERS:
            raise InvalidSetting(f"{self.name}: a value of {len(text)} characters; {MAX_VALUE_CHARACTERS} are taken")
        try:
            value = self._convert(text.strip())
        except ValueError:
            raise InvalidSetting(f"{self.name}={text!r}: expected {self._expected()}") from None
        if isinstance(value, int | float) and not isinstance(value, bool) and not self.low <= value <= self.high:
            raise InvalidSetting(f"{self.name}={text!r}: expected {self._expected()}")
        if self.only and value != self.default:
            raise InvalidSetting(f"{self.name}={text[:100]} is not offered: {self.only}")
        if self.parts and any(not re.fullmatch(self.parts, part) for part in str(value).split(",") if part):
            raise InvalidSetting(f"{self.name}={text[:100]!r}: expected {self._expected()}")
        if self.choices and isinstance(value, str):
            parts = [value]
            if self.kind == "list":
                parts = value.split(",") if value else []
            if not all(part in self.choices for part in parts):
                raise InvalidSetting(f"{self.name}={text!r}: expected {self._expected()}")
        return value

    def _convert(self, text: str) -> Value:
        if self.kind == "int":
            return int(text)
        if self.kind == "float":
            return float(text)
        if self.kind == "bool":
            return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else _bad(text)
        if self.kind == "list":
            return ",".join(part.strip() for part in text.split(",") if part.strip())
        return text

    def _expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}" + (" (comma-separated)" if self.kind == "list" else "")
        if self.kind == "bool":
            return "true or false"
        if self.parts:
            return f"{self.example} (comma-separated)"
        bounds = [f"at least {self.low:g}"] if self.low > -FOREVER else []
        bounds += [f"at most {self.high:g}"] if self.high < FOREVER else []
        kind = {"int": "a whole number", "float": "a number"}.get(self.kind, f"a value of type {self.kind}")
        return ", ".join([kind, *bounds])


def _bad(text: str) -> Value:
    raise ValueError(text)


def render(value: Value) -> str:
    """As Kafka writes it in answers: true/false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


MIN_IN_SYNC = "min.insync.replicas"


def default_min_in_sync(replicas: int) -> int:
    """Of a topic with so many, where nobody has set it. Two of three lets any one node fail, and nothing that was
    acknowledged is lost."""
    return 2 if replicas >= 3 else 1


_DAY_MS = 86_400_000
_MIB = 1024 * 1024
_REPLICAS = r"\*|\d{1,10}:\d{1,10}"

TOPIC_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "cleanup.policy",
            "list",
            "delete",
            "Cleanup of old segments: delete them, compact them by key, or both; empty: neither, everything stays.",
            choices=("delete", "compact"),
            broker_name="log.cleanup.policy",
        ),
        Setting(
            "compression.gzip.level",
            "int",
            -1,
            "Accepted for compatibility; the broker compresses at the codec's default level.",
            low=-1,
            high=9,
            broker_name="compression.gzip.level",
        ),
        Setting(
            "compression.lz4.level",
            "int",
            9,
            "Accepted for compatibility; the broker compresses at the codec's default level.",
            low=1,
            high=17,
            broker_name="compression.lz4.level",
        ),
        Setting(
            "compression.zstd.level",
            "int",
            3,
            "Accepted for compatibility; the broker compresses at the codec's default level.",
            low=-131_072,
            high=22,
            broker_name="compression.zstd.level",
        ),
        Setting(
            "compression.type",
            "string",
            "producer",
            "Compression codec of stored batches; `producer` stores them as they were sent.",
            choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            broker_name="compression.type",
        ),
        Setting(
            "delete.retention.ms",
            "int",
            _DAY_MS,
            "How long tombstones stay readable after compaction.",
            low=0,
            broker_name="log.cleaner.delete.retention.ms",
        ),
        Setting(
            "file.delete.delay.ms",
            "int",
            60_000,
            "Accepted for compatibility; removed files are deleted at once.",
            low=0,
            broker_name="log.segment.delete.delay.ms",
        ),
        Setting(
            "flush.messages",
            "int",
            FOREVER,
            "Accepted for compatibility; see the broker's `waystation.flush`.",
            low=1,
            broker_name="log.flush.interval.messages",
        ),
        Setting(
            "flush.ms",
            "int",
            FOREVER,
            "Accepted for compatibility; see the broker's `waystation.flush`.",
            low=0,
            broker_name="log.flush.interval.ms",
        ),
        Setting(
            "follower.replication.throttled.replicas",
            "list",
            "",
            "Accepted for compatibility; there is nothing to throttle, with one replica.",
            parts=_REPLICAS,
            example="`*`, or partition:broker pairs",
        ),
        Setting(
            "index.interval.bytes",
            "int",
            4096,
            "Bytes of log between two entries of the offset index.",
            low=0,
            high=2**31 - 1,
            broker_name="log.index.interval.bytes",
        ),
        Setting(
            "leader.replication.throttled.replicas",
            "list",
            "",
            "Accepted for compatibility; there is nothing to throttle, with one replica.",
            parts=_REPLICAS,
            example="`*`, or partition:broker pairs",
        ),
        Setting(
            "local.retention.bytes",
            "int",
            -2,
            "Accepted for compatibility; all segments are local, and `retention.bytes` holds for them.",
            low=-2,
            broker_name="log.local.retention.bytes",
        ),
        Setting(
            "local.retention.ms",
            "int",
            -2,
            "Accepted for compatibility; all segments are local, and `retention.ms` holds for them.",
            low=-2,
            broker_name="log.local.retention.ms",
        ),
        Setting(
            "max.compaction.lag.ms",
            "int",
            FOREVER,
            "Maximum time before a record is compacted.",
            low=1,
            broker_name="log.cleaner.max.compaction.lag.ms",
        ),
        Setting(
            "max.message.bytes",
            "int",
            1_048_588,
            "Maximum size of a record batch, as stored.",
            low=0,
            high=2**31 - 1,
            broker_name="message.max.bytes",
        ),
        Setting(
            "message.timestamp.after.max.ms",
            "int",
            3_600_000,
            "How far ahead of the broker's clock a timestamp may be.",
            low=0,
            broker_name="log.message.timestamp.after.max.ms",
        ),
        Setting(
            "message.timestamp.before.max.ms",
            "int",
            FOREVER,
            "How far behind the broker's clock a timestamp may be.",
            low=0,
            broker_name="log.message.timestamp.before.max.ms",
        ),
        Setting(
            "message.timestamp.type",
            "string",
            "CreateTime",
            "Whether records have the producer's timestamp or the broker's.",
            choices=("CreateTime", "LogAppendTime"),
            broker_name="log.message.timestamp.type",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            "float",
            0.5,
            "Compaction starts when this share of the log is uncompacted.",
            low=0,
            high=1,
            broker_name="log.cleaner.min.cleanable.ratio",
        ),
        Setting(
            "min.compaction.lag.ms",
            "int",
            0,
            "Minimum time before a record may be compacted.",
            low=0,
            broker_name="log.cleaner.min.compaction.lag.ms",
        ),
        Setting(
            "min.insync.replicas",
            "int",
            1,
            "Replicas that must have a record before the broker acknowledges it with acks=all. A topic with three"
            " or more replicas has 2, where nobody sets it.",
            low=1,
            high=2**31 - 1,
            broker_name="min.insync.replicas",
        ),
        Setting(
            "preallocate",
            "bool",
            False,
            "Accepted for compatibility; files always grow in steps ahead of the data.",
            broker_name="log.preallocate",
        ),
        Setting(
            "remote.log.copy.disable",
            "bool",
            False,
            "Accepted for compatibility; there is no remote storage.",
        ),
        Setting(
            "remote.log.delete.on.disable",
            "bool",
            False,
            "Accepted for compatibility; there is no remote storage.",
        ),
        Setting(
            "remote.storage.enable",
            "bool",
            False,
            "Accepted as false only: there is no remote storage.",
            only="there is no remote storage",
        ),
        Setting(
            "retention.bytes",
            "int",
            -1,
            "Maximum size of a partition; above it, the oldest segments are deleted; -1: no limit.",
            low=-1,
            broker_name="log.retention.bytes",
        ),
        Setting(
            "retention.ms",
            "int",
            7 * _DAY_MS,
            "Maximum age of segments; older ones are deleted; -1: never.",
            low=-1,
            broker_name="log.retention.ms",
        ),
        Setting(
            "segment.bytes",
            "int",
            1024 * _MIB,
            "Size of a segment file at which the next one is started.",
            low=1024,
            high=2**31 - 1,
            broker_name="log.segment.bytes",
        ),
        Setting(
            "segment.index.bytes",
            "int",
            10 * _MIB,
            "Accepted for compatibility; indexes grow as needed.",
            low=4,
            high=2**31 - 1,
            broker_name="log.index.size.max.bytes",
        ),
        Setting(
            "segment.jitter.ms",
            "int",
            0,
            "Random jitter of segment.ms, so that segments do not all roll at once.",
            low=0,
            broker_name="log.roll.jitter.ms",
        ),
        Setting(
            "segment.ms",
            "int",
            7 * _DAY_MS,
            "Age of a segment at which the next one is started.",
            low=1,
            broker_name="log.roll.ms",
        ),
        Setting(
            "unclean.leader.election.enable",
            "bool",
            False,
            "Accepted as false only: an unclean election loses data.",
            broker_name="unclean.leader.election.enable",
            only="it loses acknowledged records",
        ),
        Setting(
            "waystation.dedup.window.ms",
            "int",
            0,
            "Deduplication window: a record whose x-message-id header was seen within it is dropped; 0: off.",
            low=0,
            high=30 * _DAY_MS,
            broker_name=None,
        ),
        Setting(
            "waystation.retention.messages",
            "int",
            -1,
            "Maximum number of messages in a partition, counted by offsets: the newest stay; -1: no limit.",
            low=-1,
            broker_name=None,
        ),
        Setting(
            "waystation.stream",
            "bool",
            False,
            "Set when an AMQP client declares the topic as a stream; AMQP clients cannot use its name for a queue.",
            broker_name=None,
        ),
        Setting(
            "waystation.validate.records",
            "string",
            "full",
            "How the broker validates a producer's batch: `full` decompresses it and checks its records; `crc` checks"
            " only its header and checksum, which is faster, but accepts batches that no consumer can read.",
            choices=("full", "crc"),
            broker_name=None,
        ),
    )
}


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings, resolved."""

    cleanup_policy: str = "delete"
    compression_type: str = "producer"
    delete_retention_ms: int = _DAY_MS
    dedup_window_ms: int = 0
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = FOREVER
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = FOREVER
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    retention_bytes: int = -1
    retention_messages: int = -1
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1024 * _MIB
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS
    stream: bool = False
    validate_records: str = "full"

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def opens_batches(self) -> bool:
        """Whether the records of what producers send are looked at."""
        return self.validate_records == "full" or self.compacts

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"


def parse_topic_overrides(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Typed values of a topic's own settings; InvalidSetting for an unknown name or a bad value."""
    parsed: dict[str, Value] = {}
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            # Kafka's words: tools and their tests look for them.
            raise InvalidSetting(f"Unknown topic config name: {name[:100]}{_nearest(name, TOPIC_SETTINGS)}")
        parsed[name] = setting.parse(text)
    return parsed


def resolve_topic(overrides: Mapping[str, str], broker: BrokerSettings) -> TopicSettings:
    """The topic's own settings over the broker's defaults over the table's."""
    values: dict[str, Value] = {}
    own = parse_topic_overrides(overrides)
    for name, setting in TOPIC_SETTINGS.items():
        if setting.field in TopicSettings.__struct_fields__:
            values[setting.field] = own.get(name, broker.topic_default(setting))
    return msgspec.convert(values, TopicSettings)


def _nearest(name: str, names: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:100], names, n=1)  # a client may send megabytes
    return f"; did you mean {near[0]!r}?" if near else ""


BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("auto.create.topics.enable", "bool", True, "Create a topic when a client requests its metadata."),
        Setting(
            "node.id",
            "int",
            1,
            "The broker's id, as Kafka clients and tools see it. `broker.id` is another name for it.",
            low=0,
            high=2**31 - 1,
            dynamic=False,
        ),
        Setting(
            "follower.replication.throttled.rate",
            "int",
            2**63 - 1,
            "Bytes per second that a node copies, at most, of all replicas that are being moved to it.",
            low=1,
        ),
        Setting(
            "leader.replication.throttled.rate",
            "int",
            2**63 - 1,
            "Bytes per second that a node sends, at most, to all replicas that are being moved to other nodes.",
            low=1,
        ),
        Setting("num.partitions", "int", 1, "Default number of partitions of a new topic.", low=1, high=100_000),
        Setting(
            "delete.topic.enable",
            "bool",
            True,
            "Whether topics can be deleted, by any protocol.",
            dynamic=False,
            protects="`false` protects topics from deletion",
        ),
        Setting(
            "fetch.max.bytes",
            "int",
            55 * _MIB,
            "Maximum size of the answer to a fetch.",
            low=1024,
            high=2**31 - 1,
            dynamic=False,
            protects="a limit on the memory that one client can use",
        ),
        Setting(
            "max.connections",
            "int",
            10_000,
            "Maximum number of connections, all ports together; further ones are closed at once. Never more than half"
            " of the open file limit of the process (`ulimit -n`), and three quarters of that on one of several ports.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value shuts other clients out, a large one uses up file handles",
        ),
        Setting(
            "auth.required",
            "string",
            "auto",
            "Whether every client has to log in. auto: as soon as there is a user.",
            choices=("auto", "true", "false"),
            dynamic=False,
            protects="the protection of all ports",
        ),
        Setting(
            "auth.superusers",
            "list",
            "",
            "Users who may do everything, besides those that were added with --superuser.",
            dynamic=False,
            protects="who may do everything",
        ),
        Setting(
            "connection.failed.authentication.delay.ms",
            "int",
            100,
            "Pause before a failed login is answered; it doubles with each further failure from the same address, up to"
            " 32 times as much.",
            low=0,
            high=60_000,
            dynamic=False,
            protects="0 lets passwords be guessed quickly",
        ),
        Setting(
            "connections.max.reauth.ms",
            "int",
            0,
            "Time after which a Kafka client that has logged in by SASL has to log in again (KIP-368), on the same"
            " connection; 0: only when its token expires.",
            low=0,
            dynamic=False,
            protects="how long a stolen connection can be used",
        ),
        Setting(
            "delegation.token.secret.key",
            "string",
            "",
            "What the secrets of delegation tokens (KIP-48) are made from; the same on all nodes of a cluster. Empty:"
            " there are no delegation tokens. Another one ends all tokens.",
            dynamic=False,
            secret=True,
            protects="the secrets of delegation tokens",
        ),
        Setting(
            "delegation.token.max.lifetime.ms",
            "int",
            604_800_000,
            "Time after which a delegation token ends, however often it is renewed.",
            low=1,
            dynamic=False,
            protects="how long a stolen token can be used",
        ),
        Setting(
            "delegation.token.expiry.time.ms",
            "int",
            86_400_000,
            "Time for which a delegation token is valid until it is renewed.",
            low=1,
            dynamic=False,
            protects="how long a stolen token can be used",
        ),
        Setting(
            "sasl.enabled.mechanisms",
            "list",
            "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN,OAUTHBEARER,GSSAPI",
            "Mechanisms that are offered. OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url, GSSAPI needs"
            " waystation.kerberos.keytab.",
            choices=("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "GSSAPI"),
            dynamic=False,
            protects="how clients log in",
        ),
        Setting(
            "waystation.kerberos.keytab",
            "string",
            "",
            "The keytab with the key of the broker's Kerberos principal, SERVICE/HOST@REALM; empty: no GSSAPI.",
            dynamic=False,
            protects="whose tickets are accepted",
        ),
        Setting(
            "sasl.kerberos.service.name",
            "string",
            "kafka",
            "The first part of the broker's Kerberos principal, which clients are told as well.",
            dynamic=False,
            protects="whose tickets are accepted",
        ),
        Setting(
            "sasl.kerberos.principal.to.local.rules",
            "string",
            "DEFAULT",
            "Which user a Kerberos principal stands for: `RULE:[N:FORMAT](PATTERN)s/FROM/TO/`, or DEFAULT for its first"
            " part where it is of the broker's realm; separated by commas.",
            dynamic=False,
            protects="whom a ticket stands for",
        ),
        Setting(
            "sasl.oauthbearer.jwks.endpoint.url",
            "string",
            "",
            "The keys of the identity provider whose tokens are accepted: the URL, or the path, of a JWKS.",
            dynamic=False,
            protects="whose tokens are accepted",
        ),
        Setting(
            "sasl.oauthbearer.expected.audience",
            "list",
            "",
            "Audiences of which a token has to name one; empty: any.",
            dynamic=False,
            protects="which tokens are accepted",
        ),
        Setting(
            "sasl.oauthbearer.expected.issuer",
            "string",
            "",
            "Issuer that a token has to name; empty: any.",
            dynamic=False,
            protects="which tokens are accepted",
        ),
        Setting(
            "sasl.oauthbearer.sub.claim.name",
            "string",
            "sub",
            "Claim of a token that has the user's name.",
            dynamic=False,
            protects="whom a token names",
        ),
        Setting(
            "sasl.oauthbearer.clock.skew.seconds",
            "int",
            30,
            "How far the clocks of the identity provider and the broker may differ.",
            low=0,
            high=3600,
            dynamic=False,
            protects="how long expired tokens are accepted",
        ),
        Setting(
            "waystation.oauth.groups.claim",
            "string",
            "",
            "Claim of a token that lists the user's groups; empty: none.",
            dynamic=False,
            protects="which groups a user has",
        ),
        Setting(
            "ssl.principal.mapping.rules",
            "string",
            "DEFAULT",
            "Which user a client certificate stands for: RULE:PATTERN/REPLACEMENT/[LU] on its distinguished name, or"
            " DEFAULT for that name itself; separated by commas.",
            dynamic=False,
            protects="whom a certificate stands for",
        ),
        Setting(
            "encryption.key",
            "string",
            "",
            "Where the master key comes from that encrypts the data folder: file:PATH, env:NAME or command:… Empty: it"
            " is not encrypted.",
            dynamic=False,
            protects="the encryption of the data folder",
        ),
        Setting(
            "tls.certificate",
            "string",
            "",
            "The certificate (and its chain) of every listener that has none of its own, a PEM file. With it, listeners"
            " speak TLS. Files in [tls] are relative to the config file.",
            dynamic=False,
            protects="the encryption of all ports",
        ),
        Setting(
            "tls.key",
            "string",
            "",
            "The certificate's private key, a PEM file; empty: it is in the file of the certificate.",
            dynamic=False,
            protects="the encryption of all ports",
        ),
        Setting(
            "tls.client-ca",
            "string",
            "",
            "Certificate authorities whose client certificates are accepted, a PEM file.",
            dynamic=False,
            protects="whose certificates are accepted",
        ),
        Setting(
            "tls.client-certificates",
            "string",
            "auto",
            "Whether clients show a certificate that tls.client-ca has signed. auto: optional, if there is a"
            " tls.client-ca.",
            choices=("auto", "off", "optional", "required"),
            dynamic=False,
            protects="whether a certificate is needed",
        ),
        Setting(
            "tls.plain",
            "bool",
            False,
            "With TLS: also accept connections without it, on the same ports; the first byte tells which it is.",
            dynamic=False,
            protects="whether encryption is needed",
        ),
        Setting(
            "connections.max.idle.ms",
            "int",
            600_000,
            "Idle time after which a connection is closed.",
            low=1,
            dynamic=False,
            protects="a small value closes other clients' connections",
        ),
        Setting(
            "waystation.login.timeout.ms",
            "int",
            30_000,
            "Time in which a Kafka or native client has to log in, while everybody has to; else its connection ends.",
            low=100,
            dynamic=False,
            protects="connections are not used up by clients that never log in",
        ),
        Setting(
            "queued.max.request.bytes",
            "int",
            256 * _MIB,
            "Memory for requests above 64 KiB that are still arriving, all clients together; further ones wait unread.",
            low=_MIB,
            dynamic=False,
            protects="a limit on the memory that clients can use",
        ),
        Setting(
            "socket.request.max.bytes",
            "int",
            100 * _MIB,
            "Maximum size of a request; a larger one closes the connection.",
            low=1024,
            high=2**31 - 1,
            dynamic=False,
            protects="a limit on the memory that one client can use",
        ),
        Setting(
            "group.initial.rebalance.delay.ms",
            "int",
            100,
            "How long a new group waits for more members to join.",
            low=0,
            high=2**31 - 1,
        ),
        Setting(
            "group.min.session.timeout.ms",
            "int",
            6_000,
            "Minimum session timeout that a member may request.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="what other groups' members may request",
        ),
        Setting(
            "group.max.session.timeout.ms",
            "int",
            1_800_000,
            "Maximum session timeout that a member may request.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="how long a dead member may keep partitions from the others",
        ),
        Setting(
            "group.max.size",
            "int",
            10_000,
            "Maximum number of members of a group.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a limit on a group's members; a small value shuts members out",
        ),
        Setting(
            "group.consumer.session.timeout.ms",
            "int",
            45_000,
            "Session timeout of the new group protocol (KIP-848).",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value removes the members of every group",
        ),
        Setting(
            "group.consumer.heartbeat.interval.ms",
            "int",
            5_000,
            "Heartbeat interval of the new group protocol (KIP-848).",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="members would heartbeat too late for their session, or flood the broker",
        ),
        Setting(
            "group.consumer.min.session.timeout.ms",
            "int",
            45_000,
            "Minimum of a group's own `consumer.session.timeout.ms`.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value lets one client have a group's members removed",
        ),
        Setting(
            "group.consumer.max.session.timeout.ms",
            "int",
            60_000,
            "Maximum of a group's own `consumer.session.timeout.ms`.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="how long a dead member may keep partitions from the others",
        ),
        Setting(
            "group.consumer.min.heartbeat.interval.ms",
            "int",
            5_000,
            "Minimum of a group's own `consumer.heartbeat.interval.ms`.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value lets the members of one group flood the broker",
        ),
        Setting(
            "group.consumer.max.heartbeat.interval.ms",
            "int",
            15_000,
            "Maximum of a group's own `consumer.heartbeat.interval.ms`.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="how late members hear of a rebalance",
        ),
        Setting(
            "group.share.delivery.count.limit",
            "int",
            5,
            "Maximum delivery attempts of a record in a share group; after that it is archived or dead-lettered.",
            low=1,
            high=32_766,
            dynamic=False,
            protects="a small value archives or dead-letters other groups' records after fewer deliveries",
        ),
        Setting(
            "group.share.record.lock.duration.ms",
            "int",
            30_000,
            "Share groups: acquisition lock (visibility timeout) of a record; after it, the record is redelivered.",
            low=1,
            high=86_400_000,
            dynamic=False,
            protects="a small value redelivers records that other groups' members are still processing",
        ),
        Setting(
            "group.share.partition.max.record.locks",
            "int",
            2_000,
            "Share groups: maximum number of unsettled records of a partition; above it, no more are delivered.",
            low=1,
            high=100_000,
            dynamic=False,
            protects="a limit on the memory of each share group's partition",
        ),
        Setting(
            "group.share.session.timeout.ms",
            "int",
            45_000,
            "Share groups: session timeout; a member without a heartbeat for this long is removed.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value removes the members of every share group",
        ),
        Setting(
            "group.share.heartbeat.interval.ms",
            "int",
            5_000,
            "Share groups: heartbeat interval of a stable group.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="members would heartbeat too late for their session, or flood the broker",
        ),
        Setting(
            "group.share.max.size",
            "int",
            1_000,
            "Maximum number of members of a share group.",
            low=1,
            high=100_000,
            dynamic=False,
            protects="a limit on a share group's members; a small value shuts members out",
        ),
        Setting(
            "group.share.max.share.sessions",
            "int",
            2_000,
            "Maximum number of Kafka share consumers that fetch at the same time.",
            low=1,
            high=1_000_000,
            dynamic=False,
            protects="a limit on memory; a small value shuts consumers out",
        ),
        Setting(
            "share.coordinator.state.topic.num.partitions",
            "int",
            4,
            "Partitions of __share_group_state.",
            low=1,
            high=1_000,
            dynamic=False,
        ),
        Setting(
            "offset.metadata.max.bytes",
            "int",
            4_096,
            "Maximum size of the metadata stored with an offset.",
            low=0,
            high=2**31 - 1,
            dynamic=False,
            protects="a limit on what is stored with each committed offset",
        ),
        Setting(
            "offsets.retention.minutes",
            "int",
            10_080,
            "Retention of the offsets of a group without members.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a small value deletes other groups' committed offsets",
        ),
        Setting(
            "offsets.topic.num.partitions",
            "int",
            4,
            "Partitions of __consumer_offsets.",
            low=1,
            high=1_000,
            dynamic=False,
        ),
        Setting(
            "transaction.state.log.num.partitions",
            "int",
            4,
            "Partitions of __transaction_state.",
            low=1,
            high=1_000,
            dynamic=False,
        ),
        Setting(
            "transaction.max.timeout.ms",
            "int",
            900_000,
            "Maximum transaction timeout that a producer may request.",
            low=1,
            high=2**31 - 1,
            dynamic=False,
            protects="a large value lets one producer block read-committed consumers",
        ),
        Setting(
            "transactional.id.expiration.ms",
            "int",
            7 * _DAY_MS,
            "Idle time after which a transactional id expires.",
            low=1,
            dynamic=False,
            protects="a small value forgets the transactions that fence other producers' zombies",
        ),
        Setting(
            "producer.id.expiration.ms",
            "int",
            _DAY_MS,
            "Idle time after which a producer's sequence numbers expire.",
            low=1,
            dynamic=False,
            protects="a small value stores other producers' retries twice",
        ),
        Setting("log.retention.check.interval.ms", "int", 300_000, "Interval between two retention checks.", low=1),
        Setting("log.cleaner.backoff.ms", "int", 15_000, "Interval between two checks for logs to compact.", low=1),
        Setting(
            "waystation.http.hosts",
            "list",
            "",
            "Host names, besides IP addresses and localhost, that the HTTP port accepts in requests.",
            dynamic=False,
            protects="the protection against DNS rebinding",
        ),
        Setting(
            "waystation.http.token",
            "string",
            "",
            "Token that HTTP clients must send (`Authorization: Bearer TOKEN`); empty: none. The other protocols do not"
            " require it.",
            dynamic=False,
            secret=True,
            protects="the protection of the HTTP port",
        ),
        Setting(
            "waystation.queue.shards",
            "int",
            4,
            "Number of logs that all queues share; fixed at the first start.",
            low=1,
            high=1_000,
            dynamic=False,
        ),
        Setting(
            "waystation.queue.cache.bytes",
            "int",
            64 * 1024 * 1024,
            "Size of the cache of recently used queue messages.",
            low=0,
            dynamic=False,
        ),
        Setting(
            "waystation.queue.message.max.bytes",
            "int",
            16 * 1024 * 1024,
            "Maximum payload of a message in a queue. Topics have `max.message.bytes`.",
            low=1,
            high=512 * 1024 * 1024,
            dynamic=False,
            protects="a limit on the memory that one message can use",
        ),
        Setting(
            "waystation.queue.segment.bytes",
            "int",
            64 * 1024 * 1024,
            "Segment size of the queues' logs; disk space is freed by whole segments, and all of it when nothing is"
            " left in an idle shard. Fixed at the first start.",
            low=1024,
            dynamic=False,
        ),
        Setting(
            "waystation.flush",
            "string",
            "commit",
            "When records are durable. `commit`: acks=all waits for fsync; `interval`: fsync every interval; `os`: the"
            " kernel decides. Committed offsets and transactions wait for fsync in every mode.",
            choices=("commit", "interval", "os"),
            dynamic=False,
            protects="whether an acknowledged message survives a power cut",
        ),
        Setting(
            "waystation.flush.interval.ms",
            "int",
            1_000,
            "Interval between two fsyncs with `waystation.flush=interval`.",
            low=1,
            high=3_600_000,
            dynamic=False,
            protects="how much data a power cut can lose",
        ),
        Setting(
            "waystation.tracing",
            "string",
            "off",
            "`otlp`: trace messages with a sampled `traceparent` header, and send the spans by OTLP over HTTP.",
            choices=("off", "otlp"),
            dynamic=False,
        ),
        Setting(
            "waystation.audit",
            "string",
            "auto",
            "Record logins, refusals and changes in the topic `__audit`; `auto`: while clients have to log in.",
            choices=("auto", "on", "off"),
            dynamic=False,
            protects="who changes something could keep it from being recorded",
        ),
        Setting(
            "waystation.audit.retention.ms",
            "int",
            90 * _DAY_MS,
            "How long audit entries are kept; -1: forever. Of the topic when it is created.",
            low=-1,
            dynamic=False,
            protects="who changes something could have the record of it deleted",
        ),
        Setting(
            "waystation.audit.retention.bytes",
            "int",
            256 * _MIB,
            "How many bytes of audit entries are kept, in each partition. Of the topic when it is created.",
            low=_MIB,
            dynamic=False,
            protects="a large value lets clients fill the disk with refusals",
        ),
        Setting(
            "waystation.memory.data.max.bytes",
            "int",
            512 * _MIB,
            "Memory for data of a broker without a data folder (`serve --memory`, `:memory:`); it is its disk.",
            low=_MIB,
            dynamic=False,
            protects="a large value lets clients fill the machine's memory",
        ),
        Setting(
            "waystation.disk.free.min.bytes",
            "int",
            64 * _MIB,
            "Disk alarm: with less free space, publishers of the namespaces that store most are blocked; 0: off.",
            low=0,
            dynamic=False,
            protects="a small value lets the disk fill up, a large one blocks all publishers",
        ),
        Setting(
            "waystation.unsent.max.bytes",
            "int",
            256 * _MIB,
            "Memory for answers and deliveries that clients have not read, all clients together; further ones wait.",
            low=_MIB,
            dynamic=False,
            protects="a limit on the memory that clients can use",
        ),
        Setting(
            "waystation.memory.max.bytes",
            "int",
            0,
            "Memory alarm: with more memory in use, publishers of the namespaces that store most are blocked; 0: off.",
            low=0,
            dynamic=False,
            protects="a large value lets memory run out, a small one blocks all publishers",
        ),
        Setting(
            "waystation.amqp.uncommitted.max.bytes",
            "int",
            256 * _MIB,
            "Memory for publishes of open AMQP transactions, all connections together; one connection may use a"
            " quarter. A client that exceeds it loses the channel (406).",
            low=_MIB,
            dynamic=False,
            protects="a limit on the memory that clients can use",
        ),
        Setting(
            "waystation.checkpoint.interval.ms",
            "int",
            5_000,
            "Interval between two checkpoints of the recovery points, from which a crash recovery starts.",
            low=100,
            high=3_600_000,
        ),
        *(
            Setting(
                setting.broker_name,
                setting.kind,
                setting.default,
                f"Default for topics: {setting.doc}",
                setting.low,
                setting.high,
                setting.choices,
                only=setting.only,
            )
            for setting in TOPIC_SETTINGS.values()
            if setting.broker_name is not None
        ),
    )
}


BROKER_ID = "broker.id"
"""Another name of `node.id`, from Kafka's older days."""

UNUSED_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(BROKER_ID, "int", 1, "Another name of `node.id`.", low=0, high=2**31 - 1, dynamic=False),
        *(
            Setting(name, kind, default, "Accepted for compatibility; it has no effect.")
            for name, kind, default in config_kafka.ACCEPTED
        ),
        *(
            Setting(name, kind, default, f"Shown for compatibility; {why}.", high=inf, dynamic=False, only=why)
            for why, rows in config_kafka.FIXED.items()
            for name, kind, default in rows
        ),
        *(
            Setting(name, "string", "", f"Shown for compatibility; {where}.", dynamic=False, only=where)
            for name, where in config_kafka.TOLD.items()
        ),
    )
}
"""Kafka's settings that the broker does not read. Tools do, and some set them."""


def broker_setting(name: str) -> Setting | None:
    """The row of a setting of the broker, used or not."""
    return BROKER_SETTINGS.get(name) or UNUSED_SETTINGS.get(name)


def check_dynamic(name: str) -> None:
    """Raises InvalidSetting if the setting cannot change while the broker runs; an unknown name is not looked at."""
    setting = broker_setting(name)
    if setting is None or setting.dynamic:
        return
    if setting.only:
        raise InvalidSetting(f"{name} cannot be changed: {setting.only}")
    why = f" ({setting.protects})" if setting.protects else ""
    raise InvalidSetting(
        f"{name} can only be set before the broker starts{why}: put it into the config file, set the variable"
        f" {variable_of(name)}, or start with --set {name}=…"
    )


def variable_of(name: str) -> str:
    """The variable of the environment that sets a setting at the start."""
    return "WAYSTATION_SET_" + name.upper().replace(".", "_").replace("-", "_")


Source = Literal["file", "environment", "flag"]
"""Where a given value comes from."""


class BrokerSettings:
    """The broker's settings: the table's defaults under what the file, the flags and run-time changes say.

    `sources` says where each of `overrides` comes from; what is not in it was given by whoever constructed this.
    """

    def __init__(self, overrides: Mapping[str, str] | None = None, sources: Mapping[str, Source] | None = None) -> None:
        self._values: dict[str, Value] = {
            name: setting.default for name, setting in (UNUSED_SETTINGS | BROKER_SETTINGS).items()
        }
        self.given: dict[str, str] = {}  # from the file, the environment and the flags
        self._sources = dict(sources or {})
        self.changed: dict[str, str] = {}  # at run time, kept in the catalog
        self.ignored: dict[str, str] = {}  # in the catalog from a version that let clients change them; without effect
        for name, text in self._of_one_name(overrides or {}).items():
            self._values[name] = self.check(name, text)
            self.given[name] = text

    def above(self, defaults: Mapping[str, str]) -> BrokerSettings:
        """The same over other defaults."""
        return BrokerSettings({**defaults, **self.given}, self._sources)

    def _of_one_name(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """What was given as `broker.id` is `node.id`; both are fine if they say the same."""
        given = dict(overrides)
        old = given.pop(BROKER_ID, None)
        if old is None:
            return given
        if self.check("node.id", given.setdefault("node.id", old)) != self.check(BROKER_ID, old):
            raise InvalidSetting(
                f"broker.id={old!r} and node.id={given['node.id']!r} name the same thing: leave one out"
            )
        if BROKER_ID in self._sources:
            self._sources.setdefault("node.id", self._sources[BROKER_ID])
        return given

    @staticmethod
    def check(name: str, text: str) -> Value:
        """The typed value, or InvalidSetting."""
        setting = broker_setting(name)
        if setting is None:
            near = _nearest(name, BROKER_SETTINGS) or "; `waystation config example` lists all settings"
            raise InvalidSetting(f"there is no broker setting {name[:100]!r}{near}")
        return setting.parse(text)

    def change(self, name: str, text: str | None) -> None:
        """Sets (or with None takes back) a dynamic setting at run time. Taking back what is ignored only forgets it."""
        self.check_change(name, text)
        if text is not None:
            self._values[name] = self.check(name, text)
            self.changed[name] = text
        elif name in self.ignored:
            del self.ignored[name]
        else:
            self.changed.pop(name, None)
            given = self.given.get(name)
            self._values[name] = self._default(name) if given is None else self.check(name, given)

    @staticmethod
    def _default(name: str) -> Value:
        return (BROKER_SETTINGS.get(name) or UNUSED_SETTINGS[name]).default

    def check_change(self, name: str, text: str | None) -> None:
        """Raises what `change` would raise."""
        if text is None and name in self.ignored:
            return
        check_dynamic(name)
        if text is not None or broker_setting(name) is None:
            self.check(name, text or "")

    def load(self, stored: Mapping[str, str]) -> None:
        """Takes over what earlier runs kept in the catalog, but not what clients may not change: see `ignored`."""
        for name, text in stored.items():
            setting = broker_setting(name)
            if setting is not None and not setting.dynamic:
                self.ignored[name] = text
            else:
                self.change(name, text)

    def source(self, name: str) -> Literal["default", "file", "environment", "flag", "changed"]:
        """Where the value that holds comes from."""
        if name in self.changed:
            return "changed"
        return self._sources.get(name, "flag") if name in self.given else "default"

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def integer(self, name: str) -> int:
        return int(self._values[name])

    def text(self, name: str) -> str:
        return str(self._values[name])

    def flag(self, name: str) -> bool:
        return bool(self._values[name])

    def topic_default(self, setting: Setting) -> Value:
        return setting.default if setting.broker_name is None else self._values[setting.broker_name]
