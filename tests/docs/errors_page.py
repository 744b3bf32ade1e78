"""Rewrites the tables of `docs/reference/errors.md` from what the protocols answer: `python -m tests.docs.errors_page`.

The page is written by hand, but for the cells under the headings of `COLUMNS`: those are asked of each protocol's own
function. For a new error add a row with its name, what it means and whether to retry; the other cells may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module

import msgspec

from tests.support.server import ROOT
from waystation import errors
from waystation.errors import WaystationError
from waystation.protocols.http.transport.problems import MethodNotAllowed
from waystation.protocols.http.transport.replies import error_reply as http_reply
from waystation.protocols.kafka.requests.errors_map import NOT_AUTHORIZED, code_of
from waystation.protocols.management.calls import error_reply as management_reply
from waystation.protocols.native.session import error_name
from waystation.wire.amqp.errors import NAMES, of_error

PAGE = ROOT / "docs" / "reference" / "errors.md"
FIRST = "| error | is a | "
"""How the head of a table of errors begins."""
MODULES = (
    "waystation.errors",
    "waystation.queues.errors",
    "waystation.groups.machines.errors",
    "waystation.transactions.errors",
    "waystation.share.machines.errors",
    "waystation.protocols.kafka.admin.topics",
    "waystation.protocols.kafka.admin.cluster",
    "waystation.protocols.http.transport.problems",
    "waystation.station",
)
"""Where the errors on the page are defined."""


@cache
def classes() -> dict[str, type[WaystationError]]:
    """The errors that may be on the page, by name."""
    found = [value for module in MODULES for value in vars(import_module(module)).values()]
    return {one.__name__: one for one in found if isinstance(one, type) and issubclass(one, WaystationError)}


def page(text: str) -> str:
    """The page, with the cells that are not written by hand as they should be."""
    columns: list[str] | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(FIRST):
            columns = cells(line)
        elif not line.startswith("|"):
            columns = None
        elif columns is not None and line.startswith("| `"):
            line = _rewritten(columns, cells(line))
        lines.append(line)
    return "\n".join(lines) + "\n"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def names(text: str) -> list[str]:
    """The errors of the tables, in their order."""
    heads = re.split(rf"(?m)^{re.escape(FIRST)}", text)[1:]
    return [name for head in heads for name in re.findall(r"^\| `(\w+)`", head.partition("\n\n")[0], re.MULTILINE)]


def _rewritten(columns: list[str], row: list[str]) -> str:
    kind = classes()[row[0].strip("`")]
    error = MethodNotAllowed("GET", "/", ["PUT"]) if kind is MethodNotAllowed else kind("why")
    made = [COLUMNS[column](error) if column in COLUMNS else cell for column, cell in zip(columns, row, strict=True)]
    return f"| {' | '.join(made)} |"


def _parent(error: WaystationError) -> str:
    base = type(error).__bases__[0]
    return "–" if base is WaystationError else f"`{base.__name__}`"


def _kafka(error: WaystationError) -> str:
    if type(error) is errors.NotAllowed:
        return ", ".join(_code(errors.NotAllowed("why", resource)) for resource in NOT_AUTHORIZED)
    return _code(error)


def _code(error: WaystationError) -> str:
    code = code_of(error)
    return f"{code.name.upper()} ({int(code)}){', retriable' if code.retriable else ''}"


def _amqp(error: WaystationError) -> str:
    if isinstance(error, errors.ResourceAlarm):
        return "`connection.blocked`"  # sessions wait instead: `tests/protocols/test_every_publishing_verb.py`
    said = of_error(error)
    if said.hard:
        raise ValueError(f"{error!r} closes the connection, and the page says that no error of the broker does")
    return f"{said.code} {NAMES[said.code]}"


def _http(error: WaystationError) -> str:
    reply = http_reply(error)
    return f"{reply.status}{', `retry-after`' if 'retry-after' in reply.headers else ''}"


def _management(error: WaystationError) -> str:
    reply = management_reply(error)
    word = msgspec.json.decode(reply.body)["error"] if reply.body else ""
    return f"{reply.status} {word}".strip()


COLUMNS: dict[str, Callable[[WaystationError], str]] = {
    "is a": _parent,
    "Kafka": _kafka,
    "AMQP": _amqp,
    "HTTP": _http,
    "RabbitMQ's API": _management,
    "native, Python": lambda error: f"`{error_name(error)}`",
}

if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
