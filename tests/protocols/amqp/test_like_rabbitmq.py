"""The same steps on RabbitMQ and here, and clients see the same: answers, errors, their texts, messages, their order.

`same_recorded.json` has what RabbitMQ 3.10 answered to some sequences; it is compared everywhere. Where RabbitMQ is
installed, a soak test runs random sequences on both (`same_steps.py` says what is left out of them and why); the number
of sequences and the first seed can be chosen:

    WAYSTATION_SAME_SEEDS=500 WAYSTATION_SAME_FIRST=1 pytest -m soak tests/protocols/amqp/test_like_rabbitmq.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.protocols.amqp.same_rabbit import SERVER, rabbitmq
from tests.protocols.amqp.same_running import comparable, find_difference, has, play_as_recorded, shrunk
from tests.protocols.amqp.same_side import Side, Step
from tests.protocols.amqp.same_steps import sequence
from tests.support.names import unique
from tests.support.server import Server


class Case(msgspec.Struct):
    """A sequence, and what RabbitMQ said to each of its steps."""

    name: str
    steps: list[tuple[str, int, int, dict[str, Any]]]
    seen: list[Any]


RECORDED = msgspec.json.decode((Path(__file__).parent / "same_recorded.json").read_bytes(), type=list[Case])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("same")) as server:
        yield server


@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_clients_see_what_rabbitmq_showed_them(server: Server, case: Case) -> None:
    steps = [Step(*step) for step in case.steps]
    quorum = has(steps, "x-queue-type")
    side = Side(server.addresses["amqp"], f"{unique('case')}-")
    try:
        for at, (step, recorded) in enumerate(zip(steps, case.seen, strict=True)):
            seen = play_as_recorded(side, step, recorded, quorum=quorum)
            told = f"step {at}, {step}\n RabbitMQ: {recorded}\n here:     {seen}"
            assert comparable(seen, quorum=quorum) == comparable(recorded, quorum=quorum), told
    finally:
        side.close()


@pytest.mark.soak
@pytest.mark.skipif(not SERVER.exists(), reason="rabbitmq-server is not installed; it is what is compared with")
def test_random_sequences_agree_with_rabbitmq(server: Server, tmp_path: Path) -> None:
    first = int(os.environ.get("WAYSTATION_SAME_FIRST", "1"))
    count = int(os.environ.get("WAYSTATION_SAME_SEEDS", "150"))
    with rabbitmq(tmp_path) as other:
        addresses = (other, server.addresses["amqp"])
        for seed in range(first, first + count):
            steps = sequence(seed)
            if find_difference(addresses, steps, unique("random")) is not None:
                fewer, found = shrunk(addresses, steps, unique("random"))
                told = "\n".join(f"  {step}" for step in fewer)
                pytest.fail(f"seed {seed}:\n{told}\n RabbitMQ: {found.seen[0]}\n here:     {found.seen[1]}")
