"""A process that runs out of file handles in the middle of its commits: nothing is condemned, and all of it goes on.

Each run counts the opens of commit rounds and refuses some of them, from the n-th on, with n from the first to beyond
the last. Clients repeat what they are refused. When the handles are back, everything must be acknowledged without a
restart; then the power is cut, and every promise is checked.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from tests.simulation.broker_machine import TRANSACTIONS_MS, BrokerClients, BrokerMachine, TransactionalClient
from tests.simulation.disk import Fault
from tests.simulation.test_faults import Story
from waystation.config import BrokerSettings
from waystation.errors import WaystationError
from waystation.log import log as log_module
from waystation.log.commit import PATIENCE_S
from waystation.log.sync import SyncJob

ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
PLACES = 24
TIMES = (1, 4, 2_000)
"""Once, for a moment, and for longer than anybody waits."""


@dataclass(slots=True)
class RoundFault(Fault):
    """Strikes opens that a commit round makes, and no others."""

    thread: int = 0
    struck: int = 0

    def strikes(self, kind: str, path: str) -> bool:
        if threading.get_ident() != self.thread or not Fault.strikes(self, kind, path):
            return False
        self.struck += 1
        return True


class ManySegments(BrokerClients):
    """Every few batches a log begins a new file, so that many rounds have something to open."""

    def settings(self) -> BrokerSettings:
        return BrokerSettings({**super().settings().given, "log.segment.bytes": "1200"})


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)


async def _insist(work: Callable[[], Awaitable[None]]) -> None:
    for _ in range(200):
        try:
            return await work()
        except WaystationError:
            await asyncio.sleep(0.5)
    raise AssertionError("still refused, though there are handles")


async def _transact(machine: BrokerMachine, client: TransactionalClient) -> None:
    """As a client does it that starts over after an error: its producer id is initialised again."""
    client.becomes(await machine.broker.transactions.init_producer_id(client.name, TRANSACTIONS_MS))
    await machine.transact(client)


async def _work_through(machine: BrokerMachine, fault: Fault) -> None:
    clients = machine.clients
    kinds = [machine.produce] * 18 + [machine.commit_offset] * 6 + [machine.change_table] * 6
    work = [_insist(kind) for kind in kinds]
    work += [_insist(lambda c=c: _transact(machine, c)) for c in clients.transactional]  # type: ignore[misc]
    before = clients.acknowledged
    tasks = [asyncio.ensure_future(one) for one in work]
    await asyncio.sleep(2 * PATIENCE_S)
    fault.times = 0
    await asyncio.gather(*tasks)
    assert clients.acknowledged - before == len(tasks)
    failed = [log.folder for _, log in machine.broker.topics.logs() if log.failure is not None]
    assert not failed, f"condemned: {failed}"
    await asyncio.gather(*(kind() for kind in kinds))  # as if nothing had been


@pytest.mark.parametrize("place", range(PLACES))
def test_no_handles_in_a_commit_round_condemns_nothing(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(place)
    story.clients = ManySegments(random.Random(place))
    times = TIMES[place // len(ERRORS) % len(TIMES)]
    fault = RoundFault("open", "", ERRORS[place % len(ERRORS)], after=place, times=times)
    run = SyncJob.run

    def run_in_round(job: SyncJob) -> None:
        fault.thread = threading.get_ident()
        try:
            run(job)
        finally:
            fault.thread = 0

    monkeypatch.setattr(SyncJob, "run", run_in_round)

    async def life(machine: BrokerMachine) -> None:
        await machine.work(0.05)
        machine.disk.inject(fault)
        await _work_through(machine, fault)

    story.live(life)
    assert fault.struck > 0
    story.live_after_power_cut()
