"""A client that closes its connection right behind a request leaves nothing begun: no coroutine that nobody awaits, of
which Python warns on standard error."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

import pytest

from tests.broker.kit import broker_on
from tests.protocols.kafka import frames
from tests.protocols.kafka.test_fetch_steps import Client
from tests.support.entrances import entrance_of
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.server import KafkaListener


@pytest.mark.parametrize("name", ["find_coordinator", "heartbeat", "offset_fetch"])
def test_a_request_of_a_connection_that_closes_in_the_same_turn_leaves_no_warning(tmp_path: Path, name: str) -> None:
    (api,) = [one for one in frames.apis() if one.name == name]

    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            listener = KafkaListener(broker, Budgets(broker.settings, broker.world.clock), entrance_of(broker))
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                client = Client(listener, reads=True)
                client.send(frames.frame(api, api.min_version))
                client.connection.connection_lost(None)
                await asyncio.sleep(0.01)
                gc.collect()
            assert [str(one.message) for one in told] == []

    asyncio.run(main())
