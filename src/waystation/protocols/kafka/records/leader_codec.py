"""Who leads a partition, as tagged fields of Produce and Fetch answers (KIP-951): a client that asked the wrong node
goes to the right one, and need not ask for metadata first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from waystation.protocols.kafka.requests.nodes import Endpoint, Leader, distinct
from waystation.wire.kafka_types import write_array, write_nullable_string, write_string, write_uvarint

_LEADER = struct.Struct(">iib")  # node, epoch, no tagged fields
_I32 = struct.Struct(">i")


def leader_field(leader: Leader) -> bytes:
    """The value of a tagged field `CurrentLeader`."""
    return _LEADER.pack(leader.node_id, leader.epoch, 0)


def write_tagged(out: bytearray, fields: Sequence[tuple[int, bytes | bytearray]]) -> None:
    """Tagged fields, in the order of their tags."""
    write_uvarint(out, len(fields))
    for tag, value in fields:
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value


def write_endpoints(out: bytearray, leaders: Sequence[Leader]) -> None:
    """The tagged fields at the end of an answer: `NodeEndpoints`, if there is a leader to be told."""
    endpoints = distinct(leaders) if leaders else ()
    if endpoints:
        write_tagged(out, [(0, _endpoints(endpoints))])
    else:
        out.append(0)


def _endpoints(endpoints: Sequence[Endpoint]) -> bytearray:
    out = bytearray()
    write_array(out, len(endpoints), True)
    for endpoint in endpoints:
        out += _I32.pack(endpoint.node_id)
        write_string(out, endpoint.host, True)
        out += _I32.pack(endpoint.port)
        write_nullable_string(out, endpoint.rack, True)
        out.append(0)
    return out
