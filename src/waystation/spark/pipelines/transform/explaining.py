"""Errors of Spark in one sentence. The trace is for the log.

What Spark raises has, somewhere in pages of Java, what happened: a sentence of ours from a Python worker, an error
class of Spark with its text, or a Python exception of a function of the user. Pure, and imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from waystation.errors import near_matches

LONGEST = 600

_PYTHON = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)): (.+)$", re.MULTILINE)
_TRACE = re.compile(r"Traceback \(most recent call last\):")
_CLASS = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.+)$", re.MULTILINE)
_BEHIND = re.compile(r"^=== Streaming Query ===|^JVM stacktrace:", re.MULTILINE)
"""What follows says where, not what."""
_STATE = re.compile(r"\s*SQLSTATE: \w+.*$")
_AT = re.compile(r"\bline (\d+),? pos(?:ition)? \d+")
_TABLE = re.compile(r"table or view `(\w+)` cannot be found")
_COLUMN = re.compile(r"with name (`.+?`) cannot be resolved\.(?: Did you mean one of the following\? \[(.*)\])?")
_WRAPPERS = ("STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE", "PYTHON_DATA_SOURCE", "FOREACH_")
"""Classes that only say that something else went wrong."""
_SPARK_MISTAKES = ("AnalysisException", "ParseException")
_LASTING = re.compile(
    r"^\s*waystation\.(?:\w+\.)*(?:Invalid|Expired|NotAllowed|NotAuthenticated|PipelineInvalid): "
    r"|^\s*(?:SyntaxError|IndentationError|NameError|ImportError|ModuleNotFoundError): "
    r"|\[(?:STATE_STORE_\w*SCHEMA\w*|STREAMING_STATEFUL_OPERATOR\w*|INCOMPATIBLE_\w+|UNRESOLVED_\w+|DATATYPE_MISMATCH)",
    re.MULTILINE,
)
"""Refused by us, a mistake in a function, or a query that does not fit its checkpoint or its columns."""


def explain(error: BaseException, tables: Iterable[str] = ()) -> str:
    """What happened, without where in Spark. `tables` are the names that a query may use."""
    text = _BEHIND.split(str(error))[0]
    said = _python_words(text) or _spark_words(text) or _plain(error, text)
    said = " ".join(said.split())
    if (table := _TABLE.search(said)) is not None:
        near = near_matches(table[1], tables) or f"; there are: {', '.join(tables)}"
        return f"there is no source or step called {table[1]!r}{near}"
    if (column := _COLUMN.search(said)) is not None:
        return f"there is no column {column[1]} here" + (f"; there are {column[2]}" if column[2] else "")
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}…"


def is_lasting(error: BaseException) -> bool:
    """Whether it would happen again, however often it is tried: what is wrong is the pipeline, or was deleted."""
    text = _BEHIND.split(str(error))[0]
    return type(error).__name__ in _SPARK_MISTAKES or _LASTING.search(text) is not None


def line_in_sql(error: BaseException, sql: str = "") -> int:
    """The line of a query that Spark complains about, from 1; 1 if it does not say."""
    said = _AT.search(str(error))
    if said is not None:
        return int(said[1])
    context = getattr(error, "getQueryContext", None)
    try:
        places = [int(one.startIndex()) for one in context()] if callable(context) else []
    except Exception:  # what a foreign object does when it is asked
        places = []
    return sql.count("\n", 0, places[0]) + 1 if places and places[0] > 0 else 1


def _python_words(text: str) -> str | None:
    """The last line of the last Python traceback: of ours only what it says, of others what it is as well."""
    traces = list(_TRACE.finditer(text))
    if not traces:
        return None
    for found in reversed(list(_PYTHON.finditer(text, traces[-1].end()))):
        full, name, said = found.groups()
        if full.startswith(("org.", "java.", "scala.", "py4j.")) or name in ("SQLSTATE", "File"):
            continue
        return said if full.startswith("waystation.") else f"{name}: {said}"
    return None


def _spark_words(text: str) -> str | None:
    """The text of Spark's own error class, the innermost that says something."""
    for found in reversed(list(_CLASS.finditer(text))):
        if not found[1].startswith(_WRAPPERS):
            return _STATE.sub("", found[2]).strip()
    return None


def _plain(error: BaseException, text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first or type(error).__name__
