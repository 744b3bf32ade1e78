"""Writes the table of `docs/reference/log-events.md` from all log calls: `python -m tests.docs.log_events_page`.

All but the table is written by hand.
"""

from __future__ import annotations

from tests.observe.log_calls import LogCall, log_calls
from tests.support.server import ROOT

PAGE = ROOT / "docs" / "reference" / "log-events.md"
HEAD = "| event | level | text | fields |\n| --- | --- | --- | --- |\n"


def page(text: str) -> str:
    """The page with the table as it should be."""
    before, head, after = text.partition(HEAD)
    if not head:
        raise ValueError(f"{PAGE} has no table of events")
    rest = after.split("\n")
    while rest and rest[0].startswith("|"):
        del rest[0]
    return before + head + "".join(f"{row}\n" for row in rows()) + "\n".join(rest)


def rows() -> list[str]:
    events: dict[str, list[LogCall]] = {}
    for call in log_calls():
        if call.event is not None:
            events.setdefault(call.event, []).append(call)
    return [_row(event, calls) for event, calls in sorted(events.items())]


def _row(event: str, calls: list[LogCall]) -> str:
    levels = dict.fromkeys(level for call in calls for level in call.levels)
    texts = dict.fromkeys(_text(call) for call in calls)
    fields = dict.fromkeys(f"`{name}`" for call in calls for name in call.fields)
    return f"| `{event}` | {', '.join(levels)} | {'; '.join(texts)} | {', '.join(fields)} |"


def _text(call: LogCall) -> str:
    """As a cell: fields in capitals, as people write placeholders."""
    words = call.text or ""
    for name in sorted(call.named_in_text):
        for spelled in (name, f"{name}!r", f"{name}:.0f", f"{name}:.1f"):
            words = words.replace("{" + spelled + "}", name.upper())
    return words.replace("|", "\\|").replace("`", "")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
