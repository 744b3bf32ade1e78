"""Ways from one tenant's things to another's that go by what a client wrote: a failure history, a name, a pattern."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.security.test_permissions import access, with_users
from waystation.broker.access.types import Principal
from waystation.broker.broker import Broker
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.security.rules import RESOURCES, Rule

ADMIN, ALICE = Principal("admin"), Principal("alice")
INSIDE = [
    *(
        Rule("User:alice", "all", kind, "*", namespace="shop")
        for kind in RESOURCES
        if kind not in ("cluster", "namespace")
    ),
    Rule("User:alice", "read", "namespace", "shop"),
]


# -- redriving ---------------------------------------------------------------------------------------------------------


def test_a_made_up_failure_history_leads_to_no_place_that_its_redriver_may_not_write_to(tmp_path: Path) -> None:
    """`x-death` is a header: whoever puts a message into a dead-letter queue can say that it died anywhere."""

    async def story(broker: Broker) -> None:
        await broker.namespaces.create("shop")
        await broker.permissions.add(INSIDE)
        await broker.topics.create("theirs", 1)
        for queue in ("theirs", "shop/own", "shop/dead"):
            await broker.queues.declare(queue, QueueSettings())
        alice = access(broker, ALICE.inside("shop"), "shop")
        deaths: list[dict[str, Any]] = [
            {"queue": "theirs"},
            {"queue": "topic:theirs"},
            {"queue": "topic:theirs", "group": "theirs", "partition": 0, "offset": 0},
            {"queue": "shop/own"},
            {"queue": "not-there"},
        ]
        await alice.put_durable("shop/dead", [Message(b"x", headers={"x-death": [death]}) for death in deaths])
        foreseen = await alice.redrive("shop/dead", dry_run=True)
        assert foreseen.targets == {"shop/own": 1}, "what is there elsewhere is not told"
        assert foreseen.skipped == 4
        answer = await alice.redrive("shop/dead")
        assert (answer.moved, answer.skipped) == (1, 4)
        job = await alice.views.act("redrive", {"queue": "shop/dead"})
        for _ in range(1_000):
            if broker.jobs.get(job.job).state != "running":
                break
            await asyncio.sleep(0.001)
        assert broker.jobs.get(job.job).state == "done"
        assert broker.queues.describe("theirs").ready == 0
        assert broker.topics.partition("theirs", 0).end_offset == 0
        assert broker.queues.describe("shop/own").ready == 1
        assert (await access(broker, ADMIN).redrive("shop/dead")).moved == 2, "a superuser may"

    with_users(tmp_path, story)
