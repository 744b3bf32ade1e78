"""Jobs: bounded in number, ended only where they can be, remembered for a while, and none outlives the broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Machine, on_a_machine
from waystation.admin.jobs import MAX_REMEMBERED, MAX_RUNNING, Job, JobQuery, cancel_job, job_view, jobs_view
from waystation.errors import Conflict, Full, NotFound


async def _for_ever(job: Job) -> None:
    while True:
        job.report(done=job.info.done + 1)
        await job.pause(3600)


async def _at_once(job: Job) -> None:
    job.report(done=1, matched=1, moved=1)


@on_a_machine
async def test_so_many_run_at_a_time_and_no_more(machine: Machine) -> None:
    jobs = machine.broker.jobs
    names = [jobs.start("test", "waits", _for_ever).job for _ in range(MAX_RUNNING)]
    with pytest.raises(Full, match="cancel it"):
        jobs.start("test", "waits", _for_ever)
    await asyncio.sleep(1)
    ended = await jobs.cancel(names[3])
    assert ended.state == "cancelled"
    jobs.start("test", "waits", _for_ever)
    assert [info.state for info in jobs.latest()].count("running") == MAX_RUNNING


@on_a_machine
async def test_one_that_has_ended_is_forgotten_after_ten_minutes(machine: Machine) -> None:
    broker = machine.broker
    first = broker.jobs.start("test", "quick", _at_once, total=1)
    await asyncio.sleep(300)
    second = broker.jobs.start("test", "quick", _at_once, total=1)
    await asyncio.sleep(1)
    assert [info.job for info in jobs_view(broker).jobs] == [second.job, first.job]
    assert (first.state, first.done, first.moved) == ("done", 1, 1)
    await asyncio.sleep(400)
    assert [info.job for info in jobs_view(broker).jobs] == [second.job]
    with pytest.raises(NotFound, match="ten minutes"):
        job_view(broker, JobQuery(first.job))
    with pytest.raises(Conflict, match="done already"):
        await cancel_job(broker, JobQuery(second.job))


@on_a_machine
async def test_only_so_many_are_remembered(machine: Machine) -> None:
    jobs = machine.broker.jobs
    for _ in range(MAX_REMEMBERED + 20):
        last = jobs.start("test", "quick", _at_once)
        await asyncio.sleep(0.01)
    found = jobs.latest()
    assert len(found) == MAX_REMEMBERED
    assert found[0] is last


@on_a_machine
async def test_a_mistake_of_ours_is_a_failed_job_and_harms_no_other(machine: Machine) -> None:
    async def fails(job: Job) -> None:
        raise KeyError("secret detail")

    broker = machine.broker
    info = broker.jobs.start("test", "fails", fails)
    other = broker.jobs.start("test", "quick", _at_once)
    await asyncio.sleep(1)
    assert info.state == "failed"
    assert info.error is not None
    assert "secret" not in info.error
    assert other.state == "done"


@on_a_machine
async def test_one_that_is_in_the_middle_is_let_come_to_an_end_before_the_broker_stops(machine: Machine) -> None:
    steps: list[str] = []

    async def works(job: Job) -> None:
        while True:
            steps.append("begins")
            await asyncio.sleep(2)  # as a transaction does: nobody may cut it off
            steps.append("ends")
            job.report()

    async def deaf(job: Job) -> None:
        await asyncio.sleep(10**6)

    broker = machine.broker
    infos = [broker.jobs.start("test", "works", works), broker.jobs.start("test", "deaf", deaf)]
    await asyncio.sleep(1)
    await machine.again()
    assert [info.state for info in infos] == ["cancelled", "cancelled"]
    assert steps == ["begins", "ends"]
    assert machine.broker.jobs.latest() == []
