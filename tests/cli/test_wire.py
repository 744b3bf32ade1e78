"""The small Kafka client under the command line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchRequest
from kio.schema.metadata.v12.request import MetadataRequest
from kio.static.constants import EntityType

from waystation import errors
from waystation.client.address import Address
from waystation.client.refusals import _TABLE, Refused, refusal
from waystation.client.wire import VERSIONS, Connection, NotKafka, _entity, build


def test_a_request_is_built_from_plain_values() -> None:
    made = build(FetchRequest, {"max_wait": 250, "topics": [{"topic": "t", "partitions": [{"partition": 3}]}]})
    assert made.max_wait == timedelta(milliseconds=250)
    assert made.topics[0].partitions[0].partition == 3
    assert made.topics[0].partitions[0].fetch_offset == 0
    assert made.session_epoch == -1, "the schema's own default"
    assert made.rack_id == ""
    assert build(MetadataRequest, {}).topics is None


def test_a_field_that_does_not_exist_is_a_bug_that_shows() -> None:
    with pytest.raises(TypeError, match="topic_names"):
        build(MetadataRequest, {"topic_names": []})


@pytest.mark.parametrize("name", VERSIONS)
def test_every_request_that_we_send_can_be_built(name: str) -> None:
    assert build(_entity(name, VERSIONS[name], EntityType.request), {}) is not None


@contextmanager
def peer(answer: bytes) -> Iterator[Address]:
    """A server that says the same to everybody and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address("127.0.0.1", server.getsockname()[1])
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\0\0\0\x63\0\0\0\0", b"\0\0\0\x01x", b"\xff\xff\xff\xff",
     b"\0\0\0\x20\0\0\0\x01"],
)  # fmt: skip
def test_a_peer_that_does_not_speak_kafka_is_told_apart(answer: bytes) -> None:
    with peer(answer) as address, pytest.raises(NotKafka, match=str(address.port)):
        Connection(address)


def test_refusals_have_a_class_and_a_sentence_that_names_the_thing() -> None:
    for name in _TABLE:
        error = refusal(ErrorCode[name], "topic 'orders'")
        assert isinstance(error, errors.WaystationError)
        assert "topic 'orders'" in str(error)
    unknown = refusal(ErrorCode.unknown_server_error, "topic 'orders'", "because")
    assert isinstance(unknown, Refused)
    assert "UNKNOWN_SERVER_ERROR: because" in str(unknown)
