"""Fixtures for tests of programs that use Waystation: a fresh broker in the test's own process, gone with the test.

    def test_orders_are_billed(waystation):
        waystation.publish("orders.eu", {"id": 7})
        ...

pytest finds this module by itself once the package is installed. It is loaded by every pytest run, so it loads nothing
before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from waystation.client.sync.client import Client
    from waystation.inprocess import EmbeddedBroker


@pytest.fixture
def waystation_settings() -> Mapping[str, str]:
    """Settings of the broker that `waystation` starts, by their dotted names. Override it in your own conftest."""
    return {}


@pytest.fixture
def waystation(waystation_settings: Mapping[str, str]) -> Iterator[EmbeddedBroker]:
    """A fresh broker in this process, with nothing in it and all listeners open, and a client of it in one.

    `waystation.url` is for `waystation.connect` in the program under test, `waystation.kafka` for Kafka clients,
    `waystation.http` for HTTP, `waystation.amqp` for AMQP clients. Everything is gone after the test.
    """
    import waystation

    with waystation.open(":memory:", settings=waystation_settings, http="127.0.0.1:0", amqp="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
def waystation_client(waystation: EmbeddedBroker) -> Iterator[Client]:
    """A client that reaches the broker of `waystation` over the network, as another process would."""
    # The fixture's name hides the package here.
    from importlib import import_module

    with import_module("waystation").connect(waystation.url) as client:
        yield client
