"""Many small requests that come together are looked at in several turns, and others are answered in between."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.protocols.kafka.test_fetch_steps import Client, Lab, with_lab
from waystation.protocols.kafka.connection import OTHERS_AT_ONCE, PRODUCES_AT_ONCE

API_VERSIONS, LIST_OFFSETS, PRODUCE = 18, 2, 0
BODIES = {
    API_VERSIONS: (0, b""),
    LIST_OFFSETS: (1, struct.pack(">ii", -1, 0)),  # of no topic
    PRODUCE: (3, struct.pack(">hhii", -1, 1, 1000, 0)),  # to no topic
}


def request(api: int, number: int) -> bytes:
    version, body = BODIES[api]
    return struct.pack(">ihhih", 10 + len(body), api, version, number, -1) + body


def answered(client: Client) -> list[int]:
    """The numbers of all requests that were answered since the last call."""
    found, at, sent = [], 0, client.wire.sent
    while at < len(sent):
        size, number = struct.unpack_from(">ii", sent, at)
        found.append(number)
        at += 4 + size
    sent.clear()
    return found


@pytest.mark.parametrize(
    ("api", "most"), [(API_VERSIONS, OTHERS_AT_ONCE), (LIST_OFFSETS, OTHERS_AT_ONCE), (PRODUCE, PRODUCES_AT_ONCE)]
)
def test_many_requests_in_one_read_are_for_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: int, most: int
) -> None:
    async def story(lab: Lab) -> None:
        count = 8 * OTHERS_AT_ONCE
        greedy, ordinary = (Client(lab.listener, reads=True) for _ in range(2))
        greedy.send(b"".join(request(api, number) for number in range(count)))
        found = answered(greedy)
        assert len(found) <= most
        steps = 0
        while len(found) < count:
            ordinary.send(request(LIST_OFFSETS, steps))
            await lab.line.turns()
            assert answered(ordinary) == [steps]
            more = answered(greedy)
            assert len(more) <= most
            found += more
            await lab.line.rested()
            steps += 1
            assert steps < 100
        assert found == list(range(count))
        assert steps >= count // most - 1
        greedy.send(request(api, count))
        await lab.line.rested()
        assert answered(greedy) == [count]

    with_lab(tmp_path, monkeypatch, story)


def test_a_few_requests_together_are_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(lab: Lab) -> None:
        client = Client(lab.listener, reads=True)
        client.send(b"".join(request(API_VERSIONS, number) for number in range(OTHERS_AT_ONCE)))
        assert answered(client) == list(range(OTHERS_AT_ONCE))
        assert len(lab.line) == 0

    with_lab(tmp_path, monkeypatch, story)
