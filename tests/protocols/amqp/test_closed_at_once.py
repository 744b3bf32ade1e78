"""A client that closes its connection right behind a method leaves nothing begun: no coroutine that nobody awaits, of
which Python warns on standard error."""

from __future__ import annotations

import asyncio
import gc
import warnings
from pathlib import Path

from benchmarks.amqp_wire import method, short
from tests.protocols.amqp.test_long_gets import Client, with_listener
from tests.protocols.test_long_work import ByHand
from waystation.protocols.amqp.server import AmqpListener

DECLARE = method(50, 10, b"\x00\x00" + short("new") + b"\x02" + bytes(4))


def test_a_method_of_a_connection_that_closes_in_the_same_turn_leaves_no_warning(tmp_path: Path) -> None:
    async def story(listener: AmqpListener, line: ByHand) -> None:
        client = Client(listener)
        await line.turns()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            client.send(DECLARE)
            client.connection.connection_lost(None)
            await asyncio.sleep(0.01)
            del client
            gc.collect()
        assert [str(one.message) for one in told] == []

    with_listener(tmp_path, story)
