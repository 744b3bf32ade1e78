"""The pipelines of a folder as processes: started when asked, stopped by SIGTERM, none left when the broker stops."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.support.waiting import DEADLINE_S
from waystation import pipeline_runner
from waystation.admin.views.view_pipelines import RunnablePipeline
from waystation.errors import Conflict, Invalid, NotFound, Unavailable
from waystation.pipeline_runner import FolderRunner

PIPELINE = """\
name = "{name}"

[source.ticks]
rate = 5

[sink.out]
from = "ticks"
console = true
"""

PROGRAM = """\
import signal, sys, time
print("runs", sys.argv[1:], flush=True)
if "fails" in sys.argv[1]:
    sys.exit(3)
if "stubborn" in sys.argv[1]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: (print("stops", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(600)
"""


class Stage:
    """A folder with pipelines, and a runner with a program that does as its file's name says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pipelines"
        self.data = folder / "data"
        self.folder.mkdir()
        program = folder / "program.py"
        program.write_text(PROGRAM)
        self.server: str | None = "127.0.0.1:9"
        self.runner = FolderRunner(
            str(self.folder), str(self.data), lambda: self.server, program=(sys.executable, str(program))
        )

    def add(self, name: str, text: str = PIPELINE) -> Path:
        file = self.folder / f"{name}.toml"
        file.write_text(text.format(name=name))
        return file

    async def one(self, name: str) -> RunnablePipeline:
        return (await self.runner.pipelines())[name]

    async def said(self, name: str, word: str) -> str:
        log = self.data / "pipelines" / f"{name}.log"
        await until(lambda: log.exists() and word in log.read_text(), f"{name} says {word}")
        return log.read_text()

    async def ended(self, name: str) -> RunnablePipeline:
        async def over() -> bool:
            return (await self.one(name)).exit_code is not None

        await until(over, f"{name} has ended")
        return await self.one(name)


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = condition()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_files_are_listed_by_the_names_in_them_and_read_again_when_they_change(stage: Stage) -> None:
    async def work() -> None:
        assert await stage.runner.pipelines() == {}
        file = stage.add("orders")
        stage.add("broken", "name = [")
        stage.add("lost", 'name = "lost"\n[sink.out]\nfrom = "nothing"\nconsole = true\n')
        (stage.folder / "notes.txt").write_text("not a pipeline")
        stage.add("orders.test", "[test.none]\nexpect.ticks = []\n")
        found = await stage.runner.pipelines()
        assert sorted(found) == ["broken", "lost", "orders"]
        assert found["orders"] == RunnablePipeline("orders", str(file))
        assert "broken.toml" in found["broken"].problem
        assert "nothing" in found["lost"].problem
        file.write_text(PIPELINE.format(name="orders-of-today"))
        assert "orders-of-today" in await stage.runner.pipelines()
        file.unlink()
        assert sorted(await stage.runner.pipelines()) == ["broken", "lost"]
        with pytest.raises(Invalid, match="cannot be started"):
            await stage.runner.start("broken")
        with pytest.raises(NotFound):
            await stage.runner.start("orders")

    run(work())


def test_the_second_of_two_files_with_one_name_is_passed_over(stage: Stage) -> None:
    async def work() -> None:
        first = stage.add("a", PIPELINE.replace("{name}", "same"))
        stage.add("b", PIPELINE.replace("{name}", "same"))
        assert {name: one.file for name, one in (await stage.runner.pipelines()).items()} == {"same": str(first)}

    run(work())


def test_a_pipeline_is_started_once_and_stopped_as_it_wants_to_be(stage: Stage) -> None:
    async def work() -> None:
        file = stage.add("orders")
        started = await stage.runner.start("orders")
        assert started.alive
        text = await stage.said("orders", "ready")
        assert f"runs {[str(file), '--server', '127.0.0.1:9']}" in text
        with pytest.raises(Conflict, match=str(started.pid)):
            await stage.runner.start("orders")
        assert await stage.runner.stop("orders")
        ended = await stage.ended("orders")
        assert (ended.alive, ended.pid, ended.exit_code) == (False, started.pid, 0)
        assert "stops" in await stage.said("orders", "stops")
        assert not await stage.runner.stop("orders")
        again = await stage.runner.start("orders")
        assert again.alive
        await stage.said("orders", "ready")
        await stage.runner.stop("orders")
        again = await stage.runner.start("orders", ending=True)
        assert again.alive
        assert again.pid != started.pid
        await stage.runner.close()
        assert not (await stage.one("orders")).alive

    run(work())


def test_one_that_fails_says_how_and_is_not_started_again(stage: Stage) -> None:
    async def work() -> None:
        stage.add("fails")
        await stage.runner.start("fails")
        ended = await stage.ended("fails")
        assert (ended.exit_code, ended.alive) == (3, False)
        assert ended.log.endswith("fails.log")
        await stage.runner.close()

    run(work())


def test_none_is_left_when_the_broker_stops_not_even_a_stubborn_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_runner, "STOP_S", 0.5)

    async def work() -> list[int]:
        pids = []
        for name in ("stubborn", "willing"):
            stage.add(name)
            started = await stage.runner.start(name)
            await stage.said(name, "ready")
            pids.append(started.pid)
        await stage.runner.close()
        with pytest.raises(Unavailable):
            await stage.runner.start("willing")
        return pids

    for pid in run(work()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_nothing_is_started_without_a_listener_to_come_to(stage: Stage) -> None:
    async def work() -> None:
        stage.add("orders")
        stage.server = None
        with pytest.raises(Unavailable, match="Kafka listener"):
            await stage.runner.start("orders")

    run(work())


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="does not exist"):
        FolderRunner(str(tmp_path / "none"), str(tmp_path), lambda: None)
