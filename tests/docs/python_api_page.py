"""Writes `docs/reference/python-api.md` from signatures and docstrings: `python -m tests.docs.python_api_page`."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import waystation
from waystation import aio, outbox
from waystation.client.consuming import subscribing
from waystation.client.consuming.looked import Looked
from waystation.client.options import queue_options, values
from waystation.client.sending.results import Published, Stored
from waystation.client.sync.exchange import Exchange
from waystation.inprocess import EmbeddedBroker
from waystation.message import Priority

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python-api.md"

HEAD = """\
# The Python API

<!-- Made from the docstrings by `python -m tests.docs.python_api_page`; a test fails when the two differ. -->

Every public name of the package, with its docstring. [The Python client](../guide/python-client.md) explains how to use
them. `waystation.aio` has the same classes for asyncio: methods that block here are awaited there.
"""

LIMITS = """\
## Limits

- A name that is not on this page is not public: it may change with every version.
- Names under `waystation.spark` are in the guides of Spark ([reading](../guide/spark-source.md),
  [writing](../guide/spark-sink.md), [queues](../guide/spark-queues.md)); pytest's fixtures in
  [testing with pytest](../guide/testing-with-pytest.md).
- Types such as `Seconds` (a number or a `timedelta`), `Moment` (a `datetime` or seconds since 1970) and `Value` (bytes,
  text, or any JSON value) are names for signatures; you cannot import them.
"""

FUNCTIONS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("waystation.connect", waystation.connect),
    ("waystation.open", waystation.open),
)
CLASSES: tuple[tuple[str, type], ...] = (
    ("Client", waystation.Client),
    ("EmbeddedBroker", EmbeddedBroker),
    ("Queue", waystation.Queue),
    ("Message", waystation.Message),
    ("Subscription", waystation.Subscription),
    ("Transaction", waystation.Transaction),
    ("Exchange", Exchange),
    ("MessageBuilder", waystation.MessageBuilder),
    ("Resequencer", waystation.Resequencer),
    ("Retry", waystation.Retry),
    ("Looked", Looked),
    ("Published", Published),
    ("Stored", Stored),
    ("Outbox", outbox.Outbox),
    ("Relay", outbox.Relay),
)
OPTIONS: tuple[tuple[str, type], ...] = (
    ("MessageOptions", values.MessageOptions),
    ("QueueOptions", queue_options.QueueOptions),
    ("ConsumeOptions", subscribing.ConsumeOptions),
    ("SubscribeOptions", subscribing.SubscribeOptions),
)
CODE = re.compile(r"(?:async )?(?:with|for|def|import|from) \S.*(?::|#|\))")
"""How a paragraph of a docstring begins that is an example, where nothing but the example is indented."""


def page() -> str:
    lines = [HEAD, "## Functions", ""]
    for name, function in FUNCTIONS:
        lines += [f"### {name}", "", *_call(name.rpartition(".")[2], function), *_prose(function)]
    for name, kind in CLASSES:
        lines += _class(name, kind)
    lines += ["## Options", "", "What the methods above take as `**options`.", ""]
    for name, kind in OPTIONS:
        lines += [f"### {name}", "", *_prose(kind), "| option | type |", "| --- | --- |"]
        lines += [f"| `{option}` | {_type(hint)} |" for option, hint in _hints(kind).items()] + [""]
    lines += [*_names(Priority), *_names(waystation.MessageType), *_errors(), *_asyncio(), LIMITS]
    return "\n".join(lines)


def _class(name: str, kind: type) -> Iterator[str]:
    yield from (f"## {name}", "", *_prose(kind))
    known = dict(_public(kind))
    properties = {key: value for key, value in known.items() if isinstance(value, property)}
    if properties:
        yield from ("| attribute | type | |", "| --- | --- | --- |")
        for key, value in sorted(properties.items()):
            hint = inspect.signature(value.fget).return_annotation if value.fget else ""
            yield f"| `{key}` | {_type(hint)} | {' '.join(_doc(value))} |"
        yield ""
    for key, method in known.items():
        if inspect.isfunction(method):
            yield from (f"### {name}.{key}", "", *_call(key, method), *_prose(method))


def _public(kind: type) -> Iterator[tuple[str, object]]:
    """What a class and those it is made of define, each name once, in the order of the sources."""
    seen: set[str] = set()
    for part in kind.__mro__[:-1]:
        if part.__module__.partition(".")[0] != "waystation" or (part is waystation.Client and kind is not part):
            continue
        for key, value in vars(part).items():
            if not key.startswith("_") and key not in seen and not isinstance(value, classmethod):
                seen.add(key)
                yield key, value


def _call(name: str, function: Callable[..., Any]) -> list[str]:
    """The signature, one parameter a line where it is long."""
    signature = inspect.signature(function)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    shown = [_plain(parameter) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = signature.return_annotation
    end = "" if back in (inspect.Signature.empty, "None") else f" -> {_plain(back)}"
    line = f"{name}({', '.join(shown)}){end}"
    if len(line) > 100:
        line = "\n".join((f"{name}(", *(f"    {part}," for part in shown), f"){end}"))
    return ["```text", line, "```", ""]


def _plain(text: object) -> str:
    """A parameter or an annotation as one would write it: annotations are texts here, and come in quotes."""
    bare = re.sub(r"^(\**\w+): (['\"])(.*?)\2(?= = |$)", r"\1: \3", str(text))
    return re.sub(r"Unpack\[(\w+)\]", r"\1", bare).replace("'", '"')


def _type(hint: object) -> str:
    text = _plain(hint if isinstance(hint, str) else inspect.formatannotation(hint)).replace("|", "\\|")
    return f"`{text}`" if text else ""


def _hints(kind: type) -> dict[str, object]:
    return {key: getattr(hint, "__forward_arg__", hint) for key, hint in inspect.get_annotations(kind).items()}


def _doc(thing: object) -> list[str]:
    text = thing.__doc__ if isinstance(thing, property | type) else inspect.getdoc(thing)
    return inspect.cleandoc(text or "").splitlines()


def _prose(thing: object) -> list[str]:
    """The docstring as paragraphs; examples in it as blocks of code."""
    lines: list[str] = []
    for part in re.split(r"\n\s*\n", "\n".join(_doc(thing))):
        if part.startswith("    ") or CODE.match(part):
            lines += ["```text", textwrap.dedent(part), "```", ""]
        elif part:
            lines += [part, ""]
    return lines


def _names(kind: type[Enum]) -> list[str]:
    names = [f"| `{kind.__name__}.{name}` | {member.value} |" for name, member in kind.__members__.items()]
    return [f"## {kind.__name__}", "", *_prose(kind), "| name | value |", "| --- | --- |", *names, ""]


def _errors() -> list[str]:
    text = "All errors are in `waystation.errors`, and are `WaystationError`. [Errors](errors.md) says what each means."
    return ["## Errors", "", text, ""]


def _asyncio() -> list[str]:
    names = ", ".join(f"`{name}`" for name in aio.__all__)
    text = f"`waystation.aio` has {names}. Methods are coroutines by the same names; `async with` and `async for` stand"
    return ["## asyncio", "", textwrap.fill(f"{text} where `with` and `for` do.", 118, break_on_hyphens=False), ""]


if __name__ == "__main__":
    PAGE.write_text(page())
