"""Writes `docs/reference/settings.md` from the tables in `config.py`: `python -m tests.broker.settings_page`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from waystation import config_kafka
from waystation.cli.terminal.setting_units import spelled
from waystation.config import BROKER_SETTINGS, FOREVER, TOPIC_SETTINGS, Setting, Value, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"

HEAD = """\
# Settings

<!-- Made from src/waystation/config.py by `python -m tests.broker.settings_page`; a test fails when the two differ. -->

Names are Kafka's where Kafka has the setting, so that scripts and tools work unchanged; Waystation's own settings
start with `waystation.`. Values are written as in Kafka: `true`, `604800000`, `delete,compact`. An unknown name or an
invalid value is refused, and the error has the nearest name or the allowed values.

A value comes from the first of these sources that has it:

1. **topic settings**: the topic's own (`waystation topics create --set`, `waystation topics alter --set`, a Kafka admin
   client), then the broker's default for topics, then the default in the table;
2. **broker settings**: changes at run time (`waystation config set`, the dashboard, a Kafka admin client; stored
   in the catalog, so they survive a restart), then the command line of `waystation serve`, then the environment
   (`WAYSTATION_SET_LOG_RETENTION_MS`), then the config file, then the default in the table.
   [Configuration](../operations/configuration.md) has the details.

A change takes effect immediately, also for open logs, except where the table says *at start*.
"""

AT_START = """\
## Settings that clients cannot change

Any client that can reach a port may change settings at run time. So settings that guarantee something to other clients,
or that limit what one client may use, are read only at the start: from the config file, the environment and the flags
of `waystation serve`. A change is refused on every protocol (Kafka: `INVALID_CONFIG`, and `DescribeConfigs` shows them
as read-only; HTTP: 400), and the error says where to set it:

| setting | why |
| --- | --- |
"""

AFTER = """\
Changing one of the other settings gives a client no power that it does not have anyway (defaults for topics, which any
client may override or whose topics it may delete), or costs others no message and no memory:
`auto.create.topics.enable`, `num.partitions`, `group.initial.rebalance.delay.ms`, `log.retention.check.interval.ms`,
`log.cleaner.backoff.ms`, `waystation.checkpoint.interval.ms`.

Earlier versions let clients change some of these and stored the value in the catalog. Such a value is **ignored now**:
the broker warns of each one by name when it starts, uses the value of the config file (or the default), and
`waystation config set --unset NAME` removes the stored one.
"""

UNUSED = """\
## Settings of Kafka without effect

Tools read a broker's settings, and configuration that was written for Kafka sets some that tune parts which this
broker does not have. These are accepted, at start and at run time, stored and shown to Kafka clients, and have no
effect:
"""

FIXED = """\
These are shown with the value that is true here, and refused with any other, since a value without effect would be a
false promise:
"""

TOLD = """\
These are shown to Kafka clients, and set in another way:
"""

LIMITS = f"""\
## Limits

- "Accepted for compatibility" means that the value is stored and shown, and has no effect.
- `{FOREVER}` (2^63 − 1) is Kafka's way to write "no limit" in a 64-bit setting; the tables say *no limit*.
- `segment.bytes` and `max.message.bytes` end at 2 GiB − 1, since positions and lengths have 32 bits in the file format.
- With one broker there is one replica: a topic with `min.insync.replicas` above 1 refuses publishes with `acks=all`,
  and those of other protocols that are answered when they are durable.
- Settings are per topic, per group or per broker, not per client; [quotas](../operations/quotas.md) limit single
  clients.
- While there are no users, everyone who can connect may change settings at run time. With users, it needs the
  permission `alter-configs` on the cluster or the topic ([permissions](../operations/permissions.md)).
"""


def page() -> str:
    return "\n".join(
        (
            HEAD,
            "## Topic settings",
            "",
            "| setting | default | allowed | broker's default for topics | what it does |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| `{row.name}` | {_default(row)} | {_allowed(row)} | {_code(row.broker_name)} | {row.doc} |"
                for row in _by_name(TOPIC_SETTINGS)
            ),
            "",
            "## Broker settings",
            "",
            "| setting | default | allowed | changes | what it does |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| `{row.name}` | {_default(row)} | {_allowed(row)} |"
                f" {'at run time' if row.dynamic else 'at start'} | {row.doc} |"
                for row in _by_name(BROKER_SETTINGS)
            ),
            "",
            AT_START
            + "\n".join(f"| `{row.name}` | {row.protects} |" for row in _by_name(BROKER_SETTINGS) if row.protects),
            "",
            AFTER,
            UNUSED,
            _names("", (name for name, _, _ in config_kafka.ACCEPTED)),
            "",
            FIXED,
            *(_names(f"- {why}: ", (name for name, _, _ in rows)) for why, rows in config_kafka.FIXED.items()),
            "",
            TOLD,
            *(f"- `{name}`: {where}" for name, where in sorted(config_kafka.TOLD.items())),
            "",
            LIMITS,
        )
    )


def _names(before: str, names: Iterable[str]) -> str:
    text = before + ", ".join(f"`{name}`" for name in sorted(names))
    return textwrap.fill(text, 125, subsequent_indent="  " if before else "", break_on_hyphens=False)


def _by_name(table: dict[str, Setting]) -> list[Setting]:
    return sorted(table.values(), key=lambda row: (row.name.startswith("waystation."), row.name))


def _code(text: str | None) -> str:
    return "none" if text is None else f"`{text}`"


def _default(row: Setting) -> str:
    """With what a number of ms or bytes means."""
    text = render(row.default)
    meaning = "" if row.default == FOREVER else spelled(row.name, text).removeprefix(text)
    return f"{_shown(row.default)}{meaning}"


def _shown(value: Value) -> str:
    return "no limit" if value == FOREVER else f"`{render(value)}`"


def _allowed(row: Setting) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices) + (
            " (several, or none)" if row.kind == "list" else ""
        )
    if row.example:
        return row.example
    if row.only:
        return f"`{render(row.default)}`"
    if row.kind == "bool":
        return "`true`, `false`"
    if row.kind not in ("int", "float"):
        return "text"
    low = None if row.low <= -FOREVER else f"{row.low:,.15g}"
    high = None if row.high >= FOREVER else f"{row.high:,.15g}"
    if low is not None and high is not None:
        return f"{low} to {high}"
    return "any number" if low is None and high is None else f"{low} or more" if high is None else f"up to {high}"


if __name__ == "__main__":
    PAGE.write_text(page())
