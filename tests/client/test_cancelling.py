"""Tasks that are cancelled at a bad moment: nothing stays in flight to somebody who has gone."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.names import unique
from tests.support.waiting import DEADLINE_S
from waystation import aio


def test_a_get_cancelled_as_its_message_arrives_gives_it_back(url: str) -> None:
    """The answer is here, and the task that asked for it has not run yet."""

    async def main() -> None:
        async with aio.connect(url) as mq:
            jobs = await mq.queue(unique("jobs"), hold=3600)
            asking = asyncio.ensure_future(jobs.get_many(1, DEADLINE_S))
            connection = mq._core.main
            answered = connection.answered

            def cancelled_then(id: int, value: Any) -> None:
                waiting_for_it = connection._pending[id].command.__struct_config__.tag == "get"
                answered(id, value)
                if waiting_for_it:
                    asking.cancel()

            connection.answered = cancelled_then  # type: ignore[method-assign]
            await asyncio.sleep(0)  # it is sent
            await jobs.put("x")
            await asyncio.wait([asking])
            assert asking.cancelled()
            connection.answered = answered  # type: ignore[method-assign]
            async with jobs.get(DEADLINE_S) as message:
                assert message.text() == "x"

    asyncio.run(main())
