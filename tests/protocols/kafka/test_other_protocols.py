"""A client of another protocol at Kafka's port: the log says what it speaks, and where it should connect."""

from __future__ import annotations

import pytest

from waystation.protocols.kafka.engine import Engine
from waystation.wire.kafka_types import Malformed

LARGEST = 100 * 1024 * 1024


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost:9092\r\n\r\n", "speaks HTTP.*connect to the HTTP listener"),
        (b"POST /v1/queues/jobs/take HTTP/1.1\r\n\r\n", "speaks HTTP.*connect to the HTTP listener"),
        (b"AMQP\x00\x00\x09\x01", "speaks AMQP.*connect to the AMQP listener"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "speaks TLS.*security.protocol=PLAINTEXT"),
        (b"\x7f\xff\xff\xff", r"a request of 2147483647 bytes.*socket\.request\.max\.bytes"),
        (b"\x00\x00\x00\x01", "a request of 1 bytes"),
    ],
)
def test_a_client_of_another_protocol_is_told_apart(sent: bytes, said: str) -> None:
    engine = Engine(LARGEST)
    engine.buffer()[: len(sent)] = sent
    engine.received(len(sent))
    with pytest.raises(Malformed, match=said):
        engine.next_request()
