"""Many JSON lines that come together are dealt with in several turns, whatever they are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.protocols.test_long_work import ByHand
from waystation.broker.open import open_broker
from waystation.config import BrokerSettings
from waystation.protocols.native.connection import Out
from waystation.protocols.native.framing.json_lines import LINES_AT_ONCE
from waystation.protocols.native.lines import LinesTalk


class Client:
    """A talk without a socket."""

    def __init__(self, broker: Any, line: ByHand) -> None:
        self.out = Out(lambda: None)
        nothing: Any = SimpleNamespace()
        self.talk = LinesTalk(broker, "client", nothing, line, self.out, self.work)
        self.answers: list[dict[str, Any]] = []

    def send(self, data: bytes) -> None:
        self.talk.intake.feed(data)
        self.work()

    def work(self) -> None:
        """As a connection does."""
        while not self.talk.busy and self.talk.work():
            self._written()
        self._written()

    def _written(self) -> None:
        self.answers += [json.loads(line) for line in bytes(self.out.take()).splitlines()]


@pytest.mark.parametrize("said", [b"{}", b'{"action": "ping"}', b"junk"])
def test_many_lines_are_for_several_turns(tmp_path: Path, said: bytes) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            line = ByHand()
            client = Client(broker, line)
            count = 5 * LINES_AT_ONCE
            client.send((said + b"\n") * count + b'{"action": "pi')
            turns, last = 0, 0
            while len(client.answers) < count:
                assert len(client.answers) - last <= LINES_AT_ONCE
                last = len(client.answers)
                await (line.rested() if turns else line.turns())
                turns += 1
                assert turns < 50
            assert turns >= 4
            client.send(b'ng"}\n')
            assert len(client.answers) == count + 1, "at once"
            assert client.answers[-1]["status"] == "success"
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())


def test_blank_lines_count_too(tmp_path: Path) -> None:
    async def story() -> None:
        broker = await open_broker(str(tmp_path), BrokerSettings({"waystation.flush": "os"}))
        try:
            line = ByHand()
            client = Client(broker, line)
            client.send(b"\n" * 5 * LINES_AT_ONCE + b'{"action": "ping"}\n')
            turns = 0
            while not client.answers:
                await (line.rested() if turns else line.turns())
                turns += 1
                assert turns < 50
            assert turns >= 4
            client.talk.close()
        finally:
            await broker.stop()

    asyncio.run(story())
