"""RabbitMQ's management API: a call reaches what is in the virtual host of its path, however a name is spelled.

To the broker, the queue `q` of the virtual host `shop` is `shop/q`. In `/`, which has no prefix, that is a name like
any other, and nothing has it: so it is at a RabbitMQ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.protocols.http.kit import name
from tests.protocols.management.kit import Api, ours_only
from tests.support.names import unique


@dataclass(frozen=True)
class Other:
    """A virtual host with an exchange `e` that is bound to a queue `q` with one message, and a stream `s`."""

    vhost: str

    def spelled(self, local: str) -> str:
        """What is in it, as the broker knows it, in a path."""
        return name(f"{self.vhost}/{local}")


@pytest.fixture
def other(api: Api) -> Iterator[Other]:
    vhost = unique("shop")
    api("PUT", f"/vhosts/{vhost}")
    api("PUT", f"/queues/{vhost}/q", {"durable": True})
    api("PUT", f"/queues/{vhost}/s", {"durable": True, "arguments": {"x-queue-type": "stream"}})
    api("PUT", f"/exchanges/{vhost}/e", {"type": "direct", "durable": True})
    api("POST", f"/bindings/{vhost}/e/e/q/q", {"routing_key": "k"})
    assert api.publish("e", "k", vhost=vhost)
    yield Other(vhost)
    assert len(api.get(f"/bindings/{vhost}/e/e/q/q")) == 1, "it is bound as it was"
    body = {"count": 5, "ackmode": "ack_requeue_true", "encoding": "auto"}
    assert len(api("POST", f"/queues/{vhost}/q/get", body).json) == 1, "nothing was added or taken"
    api("DELETE", f"/vhosts/{vhost}")


def test_a_publish_does_not_reach_a_queue_of_another_virtual_host(api: Api, other: Other) -> None:
    assert api.publish("amq.default", f"{other.vhost}/q") is False
    assert api.publish("amq.default", "nobody", headers={"CC": [f"{other.vhost}/q"]}) is False


def test_a_publish_does_not_reach_a_stream_of_another_virtual_host(api: Api, other: Other) -> None:
    assert api.publish("amq.default", f"{other.vhost}.s") is False


def test_a_publish_does_not_reach_an_exchange_of_another_virtual_host(api: Api, other: Other) -> None:
    body = {"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"}
    assert api.refused("POST", f"/exchanges/%2F/{other.spelled('e')}/publish", body)[0] == 400


def test_a_queue_of_another_virtual_host_is_not_found(api: Api, other: Other) -> None:
    path = f"/queues/%2F/{other.spelled('q')}"
    assert api.refused("GET", path)[0] == 404
    assert api.refused("GET", f"{path}/bindings")[0] == 404
    assert api.refused("DELETE", path)[0] == 404
    assert api.refused("DELETE", f"{path}/contents")[0] == 404
    body = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert api.refused("POST", f"{path}/get", body)[0] == 404


def test_an_exchange_of_another_virtual_host_is_not_found(api: Api, other: Other) -> None:
    path = f"/exchanges/%2F/{other.spelled('e')}"
    assert api.refused("GET", path)[0] == 404
    assert api.refused("GET", f"{path}/bindings/source")[0] == 404
    assert api.refused("DELETE", path)[0] == 404


def test_a_binding_of_another_virtual_host_is_not_found(api: Api, other: Other) -> None:
    between = f"/bindings/%2F/e/{other.spelled('e')}/q/{other.spelled('q')}"
    assert api.get(between) == []
    assert api.get(f"/bindings/%2F/e/amq.default/q/{other.spelled('q')}") == []
    assert api.refused("GET", f"{between}/k")[0] == 404
    assert api.refused("DELETE", f"{between}/k")[0] == 404


@ours_only
@pytest.mark.parametrize(("kind", "local"), [("queues", "q"), ("exchanges", "e")])
def test_an_import_does_not_pass_over_what_another_virtual_host_has(
    api: Api, other: Other, kind: str, local: str
) -> None:
    """What is there already stays as it is; what is another's is not there, and cannot be made."""
    thing = {"name": f"{other.vhost}/{local}", "vhost": "/", "type": "direct", "durable": True, "arguments": {}}
    status, reason = api.refused("POST", "/definitions", {kind: [thing]})
    assert (status, reason) == (401, f"'{other.vhost}/{local}' is not in vhost '/'")
