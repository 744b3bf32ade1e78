"""Makes the client for threads of the one for asyncio: `python -m tests.client.sync_client`.

What is written twice is what differs; everything else is rewritten by these rules:

- `async` goes, and `__aenter__` is `__enter__`, and so on (`NAMES`);
- awaiting a call of the client's core (`CORE`) is running it on the client's loop: `self._bridge.run(…)`; awaiting any
  other call is calling what was made of it by these same rules; awaiting a name is taking a future's result;
- `Opening[T]` and `Awaitable[T]` are `T`, and `Opening(x)` is `x`;
- a statement that begins with a line with `# asyncio only` is left out, a line after `# threads: ` is code;
- docstrings lose `async` and `await` in their examples, and say what differs in other words (`PHRASES`).

Ruff puts lines and imports in order at the end. A rule that finds nothing to do any more is an error.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ROOT / "src" / "waystation" / "client"
MADE = ("client", "exchange", "handling", "message", "queue", "subscription", "transaction")
CORE = ("admin.", "self._core.", "self._feed.", "self._tx.")
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "Subscribing": "Subscription",
}
TEXTS = (
    ("waystation.client.aio.", "waystation.client.sync."),
    ("import annotations\n", "import annotations\n\nfrom concurrent.futures import Future\n"),
    ("import asyncio\n", ""),
    ("asyncio.Future", "Future"),
)
PHRASES = (
    (r"\basync (?=with|for|def)|\bawait (?=\w+\.)", ""),
    (r"waystation\.aio\.", "waystation."),
    (r"for asyncio", "for threads"),
    (r"several tasks|another task|Several\n    tasks", lambda found: found[0].replace("task", "thread")),
    (
        r"Any number of tasks may use it at once; what they send together travels together\.",
        "Any number of threads may use it at once; what they send together travels together. It has a thread of its own"
        " for\n    the network, on which none of your code runs, but for the callbacks of futures.",
    ),
    (r"(?<=pushed to): await it, enter it, or iterate over it|(?<=messages\.) Await it, enter it,.*:$", ""),
    (r"Raises Full when too much", "Blocks only while too much"),
    (r"`concurrency` at a time", "on `concurrency` threads"),
)
HEAD = "# Generated from {} by `python -m tests.client.sync_client`; do not edit.\n"

Edit = tuple[int, int, str]
"""From, to, and what is there instead."""


def generated() -> dict[Path, str]:
    """Every file of the client for threads that is not written by hand."""
    unused = {rule for rule, _ in (*TEXTS, *PHRASES)} | set(NAMES) | set(CORE)
    made = {CLIENT / "sync" / f"{name}.py": _made(CLIENT / "aio" / f"{name}.py", unused) for name in MADE}
    if unused:
        raise ValueError(f"rules that nothing needs any more: {sorted(unused)}")
    return made


def _made(source: Path, unused: set[str]) -> str:
    text = _edited(re.sub(r"^( *)# threads: ", r"\1", source.read_text(), flags=re.MULTILINE), unused)
    for old, new in TEXTS:
        if old in text:
            unused.discard(old)
            text = text.replace(old, new)
    text = _retold(text, unused)
    if left := re.search(r"\b(async|await|asyncio)\b.*", text):
        raise ValueError(f"{source.name}: no rule says what this is for threads: {left[0]}")
    return _in_order(HEAD.format(source.relative_to(ROOT)) + text)


def _edited(text: str, unused: set[str]) -> str:
    """The rules about statements and expressions."""
    data = text.encode()
    starts = [0, *(found.end() for found in re.finditer(rb"\n", data))]
    edits = [edit for node in ast.walk(ast.parse(data)) for edit in _edits(node, data, starts, unused)]
    dropped = [edit for edit in edits if not edit[2] and data[edit[0] : edit[1]].count(b"\n")]
    for start, end, new in sorted(set(edits), reverse=True):
        if (start, end, new) in dropped or not any(first <= start < last for first, last, _ in dropped):
            data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _edits(node: ast.AST, data: bytes, starts: list[int], unused: set[str]) -> Iterator[Edit]:
    if not isinstance(node, ast.stmt | ast.expr):
        return
    start, end = _span(node, starts)
    if isinstance(node, ast.stmt) and b"# asyncio only" in data[start : data.index(b"\n", start)]:
        yield starts[node.lineno - 1], data.index(b"\n", end) + 1, ""
    elif isinstance(node, ast.AsyncFunctionDef | ast.AsyncWith | ast.AsyncFor):
        yield start, start + len("async "), ""
    elif isinstance(node, ast.Await):
        first, last = _span(node.value, starts)
        awaited = data[first:last].decode()
        core = next((prefix for prefix in CORE if awaited.startswith(prefix)), None)
        if core is not None:
            unused.discard(core)
            yield from ((start, first, "self._bridge.run("), (last, last, ")"))
        else:
            yield from ((start, first, ""), (last, last, ".result()" if isinstance(node.value, ast.Name) else ""))
    elif isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Opening", "Awaitable"):
        first, last = _span(node.slice, starts)
        yield from ((start, first, ""), (last, end, ""))
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Opening":
        first, last = _span(node.args[0], starts)
        yield from ((start, first, ""), (last, end, ""))


def _span(node: ast.stmt | ast.expr, starts: list[int]) -> tuple[int, int]:
    if node.end_lineno is None or node.end_col_offset is None:
        raise ValueError(f"no end: {ast.dump(node)}")
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


def _retold(text: str, unused: set[str]) -> str:
    """Names and strings, token by token."""
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        new = token.string
        if token.type == tokenize.NAME and new in NAMES:
            unused.discard(new)
            new = NAMES[new]
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            for phrase, words in PHRASES:
                new, count = re.subn(phrase, words, new, flags=re.MULTILINE)
                if count:
                    unused.discard(phrase)
        if new != token.string:
            (row, column), (last_row, last_column) = token.start, token.end
            lines[row - 1 : last_row] = [lines[row - 1][:column] + new + lines[last_row - 1][last_column:]]
    return "".join(lines)


def _in_order(text: str) -> str:
    """As ruff wants it: imports sorted, those that are not used any more left out, lines joined that fit."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(CLIENT / "sync" / "made.py"), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select", "F401,I,SIM117"], ["format", "--quiet"]):
        text = subprocess.run([*ruff, *command, *name], input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    for path, content in generated().items():
        path.write_text(content)
