"""Writes `docs/reference/settings.md` from the tables in `config.py`: `python -m tests.broker.settings_page`."""

from __future__ import annotations

from pathlib import Path

from waystation.config import BROKER_SETTINGS, FOREVER, TOPIC_SETTINGS, Setting, Value, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"

HEAD = """\
# Settings

<!-- Made from src/waystation/config.py by `python -m tests.broker.settings_page`; a test fails when the two differ. -->

Names are Kafka's where Kafka has the setting, so that scripts and tools work as they are; what is Waystation's alone
starts with `waystation.`. Values are written as Kafka writes them: `true`, `604800000`, `delete,compact`. A name that
does not exist or a value that cannot be is refused, with the nearest name or the allowed values.

Where a setting comes from, the first that has it:

1. **topic settings**: the topic's own (`waystation topics create --set`, `waystation topics alter --set`, a Kafka admin
   client), then the broker's default for topics, then the default in the table;
2. **broker settings**: what was changed at run time (`waystation config set`, the dashboard, a Kafka admin client; kept
   in the catalog, so it survives a restart), then the command line of `waystation serve`, then the environment
   (`WAYSTATION_SET_LOG_RETENTION_MS`), then the config file, then the default in the table.
   [Configuration](../operations/configuration.md) says more.

A change takes effect at once, also for logs that are open, except where the table says *at start*.
"""

AT_START = """\
## What no client can change

Any client that reaches a port may change settings at run time. So the settings that hold up a promise to other clients,
or a bound on what one client may take, are read at the start only: from the config file, the environment and the flags
of `waystation serve`. A change is refused on every protocol (Kafka: `INVALID_CONFIG`, and `DescribeConfigs` says that
they are read-only; HTTP: 400), with a sentence that says where to set it. They are these, and why:

| setting | why |
| --- | --- |
"""

AFTER = """\
What the other settings do, a client could do anyway (the defaults for topics, which any client may override or whose
topics it may delete), or it costs others no message and no memory: `auto.create.topics.enable`, `num.partitions`,
`group.initial.rebalance.delay.ms`, `log.retention.check.interval.ms`, `log.cleaner.backoff.ms`,
`waystation.checkpoint.interval.ms`.

Earlier versions let clients change some of these and stored the value in the catalog. It is **not honoured any more**:
the start warns of each such value with its name, the value of the config file (or the default) holds, and
`waystation config set --unset NAME` removes the stored one.
"""

LIMITS = f"""\
## Limits

- "Accepted for compatibility" means what it says: the value is kept and shown, and does nothing.
- `{FOREVER}` (2^63 − 1) is Kafka's way to write "no limit" in a 64-bit setting; the tables say *no limit*.
- `segment.bytes` and `max.message.bytes` end at 2 GiB − 1, since positions and lengths have 32 bits in the file format.
- With one broker there is one replica: a topic with `min.insync.replicas` above 1 refuses publishes with `acks=all`.
- Settings are per topic or per broker; there are none per client yet.
- There is no role of an administrator: who may change a setting at run time is everybody or nobody.
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
                f"| `{row.name}` | {_shown(row.default)} | {_allowed(row)} | {_code(row.broker_name)} | {row.doc} |"
                for row in _by_name(TOPIC_SETTINGS)
            ),
            "",
            "## Broker settings",
            "",
            "| setting | default | allowed | changes | what it does |",
            "| --- | --- | --- | --- | --- |",
            *(
                f"| `{row.name}` | {_shown(row.default)} | {_allowed(row)} |"
                f" {'at run time' if row.dynamic else 'at start'} | {row.doc} |"
                for row in _by_name(BROKER_SETTINGS)
            ),
            "",
            AT_START
            + "\n".join(f"| `{row.name}` | {row.protects} |" for row in _by_name(BROKER_SETTINGS) if row.protects),
            "",
            AFTER,
            LIMITS,
        )
    )


def _by_name(table: dict[str, Setting]) -> list[Setting]:
    return sorted(table.values(), key=lambda row: (row.name.startswith("waystation."), row.name))


def _code(text: str | None) -> str:
    return "none" if text is None else f"`{text}`"


def _shown(value: Value) -> str:
    return "no limit" if value == FOREVER else f"`{render(value)}`"


def _allowed(row: Setting) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices) + (" (several)" if row.kind == "list" else "")
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
