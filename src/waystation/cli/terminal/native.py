"""The native client that all commands share, and what they ask of it alike.

Everything is imported when it is called: the parser is built without the client.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from waystation.errors import NotFound, UnknownTopic, WaystationError

if TYPE_CHECKING:
    from waystation.client.consuming.looked import Looked
    from waystation.client.sync.client import Client
    from waystation.client.sync.queue import Queue
    from waystation.protocol import TopicInfo

CLIENT_NAME = "waystation-cli"
PEEKED_AT_ONCE = 500
LARGEST_PAGE = 1_000
"""Rows that the broker gives in one answer."""

State = Literal["any", "ready", "parked", "held"]


def open_client(arguments: argparse.Namespace) -> Client:
    """A client of the broker that `--server` names; close it at the end."""
    import waystation

    return waystation.connect(arguments.server, name=CLIENT_NAME)


def queue_of(mq: Client, name: str) -> Queue:
    """A queue that is there; NotFound says what to do."""
    try:
        return mq.queue(name, passive=True)
    except NotFound as error:
        raise NotFound(advised(error, "`waystation queues list` shows what there is")) from None


def dead_letters_in(mq: Client, name: str) -> Queue:
    """A queue of dead letters, which may come with its first one; NotFound says so."""
    try:
        return mq.queue(name, passive=True)
    except NotFound as error:
        advice = "a dead-letter queue is created with its first message, `waystation dead-letters list` shows for whom"
        raise NotFound(advised(error, advice)) from None


def advised(error: WaystationError, advice: str) -> str:
    """What happened, and what to do next; behind a question (did you mean …?), what to do if not."""
    said = str(error)
    return f"{said} If not, {advice}" if said.endswith("?") else f"{said}; {advice}"


def topic_of(mq: Client, name: str, *, create: bool = False) -> TopicInfo:
    """A topic that is there; NotFound says what to do."""
    with topic_hint(name, create=create):
        return mq.describe_topic(name)


@contextmanager
def topic_hint(name: str, *, create: bool = False) -> Iterator[None]:
    """A topic that is not there is an error that says where to look, or how to create it."""
    try:
        yield
    except NotFound as error:
        if not str(error).startswith("there is no topic"):
            raise
        hint = (
            f"`waystation topics create {name}` creates it"
            if create
            else "`waystation topics list` shows what there is"
        )
        raise UnknownTopic(advised(error, hint)) from None


def peek_on(queue: Queue, count: int | None, after: int = -1, state: State = "any") -> Iterator[Looked]:
    """Messages of a queue without taking them, page by page; `count` None: all there are.

    The broker may give less than a page where messages are large, so only an empty one is the end.
    """
    left = count
    while left is None or left > 0:
        page = queue.peek(PEEKED_AT_ONCE if left is None else min(PEEKED_AT_ONCE, left), after=after, state=state)
        if not page:
            return
        yield from page
        after = page[-1].tag
        left = None if left is None else left - len(page)


def view_pages(mq: Client, what: str, rows: str, limit: int, **query: object) -> dict[str, Any]:
    """A view that comes in pages, as one: the first `limit` of its `rows`. A page may have none and still not be the
    last, where the broker has to search for them."""
    found: list[Any] = []
    after: dict[str, object] = {}
    while True:
        page = mq.view(what, **query, **after, limit=min(LARGEST_PAGE, limit - len(found)))
        found += page[rows]
        if page["next"] is None or len(found) >= limit:
            return {**page, rows: found}
        after = {"after": page["next"]}


def all_of(mq: Client, what: str, **query: object) -> list[Any]:
    """All rows of a view that has its own name for them."""
    rows: list[Any] = view_pages(mq, what, what, sys.maxsize, **query)[what]
    return rows
