"""Kafka requests, byte for byte, for probes and floods that use no client library. Sans-I/O.

Only what they need: fetches (version 4), produce requests of one batch (version 8), a login by PLAIN.
"""

import struct
from struct import Struct

from waystation.log.batches.batch import build_values

LENGTH = Struct(">I")
MIB = 1024 * 1024
LOGIN_ANSWERS = 2


def kafka_request(api: int, version: int, number: int, body: bytes) -> bytes:
    whole = struct.pack(">hhih", api, version, number, -1) + body
    return LENGTH.pack(len(whole)) + whole


def kafka_fetch(number: int, topic: str, wait_ms: int = 0, offset: int = 0) -> bytes:
    """Version 4: as much as there is, up to 100 MiB."""
    most = 100 * MIB
    partition = struct.pack(">iiqi", 1, 0, offset, most)
    return kafka_request(1, 4, number, struct.pack(">iiiibi", -1, wait_ms, 1, most, 0, 1) + _text(topic) + partition)


def kafka_produce(number: int, topic: str, payloads: list[bytes], now_ms: int) -> bytes:
    """Version 8: a batch of these, to be acknowledged by all replicas."""
    batch, _ = build_values([[payload] for payload in payloads], now_ms)
    body = struct.pack(">hhii", -1, -1, 30_000, 1) + _text(topic) + struct.pack(">iii", 1, 0, len(batch)) + batch
    return kafka_request(0, 8, number, body)


def kafka_login(user: str, password: str) -> bytes:
    """Both requests of it; they have `LOGIN_ANSWERS` answers."""
    secret = f"\0{user}\0{password}".encode()
    return kafka_request(17, 1, 1, _text("PLAIN")) + kafka_request(36, 0, 2, LENGTH.pack(len(secret)) + secret)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class KafkaAnswers:
    """Counts answers in bytes as they come, torn anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._missing = 0  # of the answer that has begun

    def count(self, data: bytes) -> int:
        """How many answers these bytes completed."""
        if self._missing > len(data):
            self._missing -= len(data)
            return 0
        done, at = 0, 0
        if self._missing:
            at, self._missing, done = self._missing, 0, 1
        data, at = self._rest + data[at:], 0
        while len(data) - at >= LENGTH.size:
            end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                self._missing, at = end - len(data), len(data)
                break
            at, done = end, done + 1
        self._rest = data[at:]
        return done
