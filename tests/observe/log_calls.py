"""Every log call of `src`, as the syntax tree has it. For the test of log calls, and for the page of log events."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter

from tests.support.server import ROOT

SOURCES = ROOT / "src" / "waystation"
METHODS = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
NOT_LOGGING = {"math.log", "struct.error", "self.error"}  # the last is argparse's
"""What is called like a log call and is none."""


@dataclass(frozen=True, slots=True)
class LogCall:
    """A call of a method that Python's loggers have."""

    place: str
    ours: bool  # the receiver is an `event_logger` of the module
    method: str
    event: str | None  # None: it is not a constant
    text: str | None
    fields: tuple[str, ...]
    others: int  # positional arguments besides, and ** of a dict

    @property
    def named_in_text(self) -> set[str]:
        return {name for _, name, _, _ in Formatter().parse(self.text or "") if name is not None}

    @property
    def levels(self) -> tuple[str, ...]:
        return {"exception": ("error",), "log": ("warning", "error")}.get(self.method, (self.method,))


def log_calls() -> Iterator[LogCall]:
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        loggers = {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Name) and ast.unparse(node.value.func) == "event_logger"
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            said = node.args or node.keywords  # `task.exception()` has nothing to say
            if node.func.attr in METHODS and said and ast.unparse(node.func) not in NOT_LOGGING:
                yield _read(f"{path.relative_to(ROOT)}:{node.lineno}", node, node.func, loggers)


def _read(place: str, call: ast.Call, method: ast.Attribute, loggers: set[str]) -> LogCall:
    positional = call.args[1:] if method.attr == "log" else call.args
    named = [word.arg for word in call.keywords if word.arg is not None]
    event, text = (_constant(positional[i]) if len(positional) > i else None for i in (0, 1))
    return LogCall(
        place,
        isinstance(method.value, ast.Name) and method.value.id in loggers,
        method.attr,
        event,
        text,
        (*(name for name in named if name != "cause"), *(("error",) if method.attr == "exception" else ())),
        max(0, len(positional) - 2) + len(call.keywords) - len(named),
    )


def _constant(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
