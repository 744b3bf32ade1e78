"""The reference of errors says what the protocols answer, and no error that a client can meet is missing."""

from __future__ import annotations

import ast
import re

from tests.docs.errors_page import PAGE, names, page
from tests.support.server import ROOT

SOURCES = ROOT / "src" / "waystation"
UNUSED = "Not in use."

ELSEWHERE = {
    "UnknownEntityType": "DescribeClientQuotas alone: what a filter of quotas names",
    "UnexpectedOffset": "between a follower and its leader; no client meets it",
    "LinkLost": "between nodes of a cluster; no client meets it",
    "PeerRefused": "between nodes of a cluster; no client meets it",
    "WrongCluster": "ends the start of a node",
    "NotOpened": "below a log, a snapshot and the catalog: said as what is corrupt there",
    "UnknownKey": "below a log, a snapshot and the catalog: said as what is corrupt there",
    "WaystationError": "the base of all",
    "Malformed": "ends a Kafka connection, without an answer",
    "TokenRefused": "carries any code of Kafka's about delegation tokens",
    "SessionError": "carries any code of a fetch session",
    "Refused": "carries any status of the management API; another one any code in the command line",
    "Cancelled": "the state of a job",
    "Gone": "between a queue and its log",
    "Moved": "Spark's fetcher",
    "JavaMissing": "Spark",
    "PipelineFailed": "pipelines",
    "PipelineInvalid": "pipelines",
    "TomlInvalid": "a file that a command reads",
}
"""Errors that are not on the page, and why."""


def error_classes() -> set[str]:
    """Names of all classes in `src` that are errors of ours, by their bases."""
    bases: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                named = {
                    base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in node.bases
                }
                bases.setdefault(node.name, set()).update(named)
    found = {"WaystationError"}
    while more := {name for name, named in bases.items() if named & found} - found:
        found |= more
    return found


def test_the_tables_say_what_the_protocols_answer() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `python -m tests.docs.errors_page`"


def test_a_wrong_answer_in_the_table_is_found() -> None:
    text = PAGE.read_text()
    assert "NOT_ENOUGH_REPLICAS (19)" in text
    assert page(text.replace("NOT_ENOUGH_REPLICAS (19)", "NOT_ENOUGH_REPLICAS (20)")) == text


def test_every_error_is_on_the_page_once_or_there_is_a_reason() -> None:
    shown = names(PAGE.read_text())
    assert len(shown) == len(set(shown))
    assert set(shown) | set(ELSEWHERE) == error_classes()
    assert not set(shown) & set(ELSEWHERE)


def test_what_the_page_calls_unused_is_made_nowhere_and_all_else_is() -> None:
    text, code = PAGE.read_text(), "\n".join(path.read_text() for path in SOURCES.rglob("*.py"))
    unused = {name for name in names(text) if not re.search(rf"(?<!class )\b{name}\(", code)}
    assert set(re.findall(rf"^\| `(\w+)`.*{re.escape(UNUSED)}", text, re.MULTILINE)) == unused
