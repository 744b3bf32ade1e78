"""The client for threads is what the one for asyncio becomes by the rules of `sync_client`."""

from __future__ import annotations

import inspect

import pytest

from tests.client.sync_client import CLIENT, generated
from waystation import aio
from waystation.client.sync import client, exchange, message, queue, subscription, transaction

ALIKE: tuple[tuple[type, type, set[str], set[str]], ...] = (
    (aio.Client, client.Client, {"ready"}, set()),
    (aio.Exchange, exchange.Exchange, set(), set()),
    (aio.Message, message.Message, set(), set()),
    (aio.Queue, queue.Queue, set(), set()),
    (aio.Subscription, subscription.Subscription, set(), set()),
    (aio.Transaction, transaction.Transaction, set(), {"publish_batches_nowait", "put_many_nowait"}),
)


def test_the_client_for_threads_is_what_is_generated() -> None:
    for path, content in generated().items():
        assert path.read_text() == content, f"write {path.name} again: python -m tests.client.sync_client"


def test_what_is_generated_says_so_and_what_is_not_does_not() -> None:
    marked = {path for path in (CLIENT / "sync").glob("*.py") if "do not edit" in path.read_text()}
    assert marked == set(generated())


@pytest.mark.parametrize(("awaited", "blocking", "asyncio_only", "threads_only"), ALIKE)
def test_both_clients_have_the_same_verbs_with_the_same_parameters(
    awaited: type, blocking: type, asyncio_only: set[str], threads_only: set[str]
) -> None:
    here, there = _verbs(awaited), _verbs(blocking)
    assert here.keys() - there.keys() == asyncio_only
    assert there.keys() - here.keys() == threads_only
    for name in here.keys() & there.keys():
        assert here[name] == there[name]


def _verbs(kind: type) -> dict[str, list[str]]:
    return {
        name: [str(parameter) for parameter in inspect.signature(method).parameters.values()]
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
