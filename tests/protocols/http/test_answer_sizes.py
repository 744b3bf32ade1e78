"""Answers that show messages are bounded by what the messages weigh, headers too; over pages nothing is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocols.http.kit import Http

COUNT = 12
HEADERS = {"text": "y" * 500_000, "list": ["z" * 500_000]}
MOST_BYTES = 12 * 1024 * 1024
Page = tuple[list[dict[str, Any]], dict[str, Any] | None]
"""Messages, and the query of the next page; None: this was the last."""


def dead_letters(http: Http, queue: str, query: dict[str, Any]) -> Page:
    answer = http("GET", f"/v1/dead-letters/{queue}", count=1000, **query).json
    return answer["messages"], None if answer["next"] is None else {"after": answer["next"]}


def peeked(http: Http, queue: str, query: dict[str, Any]) -> Page:
    messages = http("GET", f"/v1/queues/{queue}/peek", count=1000, **query).json["messages"]
    return messages, {"after": messages[-1]["tag"]} if messages else None


def read(http: Http, topic: str, query: dict[str, Any]) -> Page:
    answer = http("GET", f"/v1/topics/{topic}/messages", count=1000, **{"offset": 0, **query}).json
    done = answer["next_offset"] >= answer["end_offset"]
    return answer["messages"], None if done else {"offset": answer["next_offset"]}


def searched(http: Http, topic: str, query: dict[str, Any]) -> Page:
    answer = http("GET", f"/v1/topics/{topic}/search", limit=1000, **query).json
    return answer["messages"], None if answer["done"] else {"cursor": answer["cursor"]}


@pytest.mark.parametrize("look", [dead_letters, peeked, read, searched])
def test_messages_with_large_headers_come_in_pages(
    http: Http, queue: str, look: Callable[[Http, str, dict[str, Any]], Page]
) -> None:
    if look in (read, searched):
        http("PUT", f"/v1/topics/{queue}", {"partitions": 1, "settings": {"max.message.bytes": "8000000"}})
    kind = "topics" if look in (read, searched) else "queues"
    for number in range(COUNT):
        http("POST", f"/v1/{kind}/{queue}/messages", {"payload": str(number), "headers": HEADERS})
    found: list[str] = []
    sizes: list[int] = []
    query: dict[str, Any] | None = {}
    while query is not None:
        messages, query = look(http, queue, query)
        found += [message["payload"] for message in messages]
        sizes.append(sum(len(str(message)) for message in messages))
    assert found == [str(number) for number in range(COUNT)]
    assert len(sizes) > 1
    assert max(sizes) < MOST_BYTES
