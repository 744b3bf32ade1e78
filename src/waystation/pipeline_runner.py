"""Runs the pipelines of a folder (`serve --pipelines DIR`), each as a process: `waystation pipeline run FILE`.

The broker's heart starts no processes; it is handed this. Nothing is started that nobody asked for, and nothing that
ends is started again. A process is told to stop by SIGTERM, so that it ends its batch first; `close` does so to all of
them, and ends those that take too long. What they print goes to a log file each, in the broker's data folder. Their
state is what they say themselves, on the topic `waystation.pipelines`.

Made by the `Station`; its calls are for the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from waystation.admin.views.view_pipelines import RunnablePipeline
from waystation.errors import Conflict, Invalid, NotFound, Unavailable, WaystationError
from waystation.observe.events import event_logger

logger = event_logger("waystation.pipelines")

MAX_FILES = 1_000
TESTS = ".test.toml"
"""How files of tests end, which stand beside the pipelines (`waystation pipeline test`)."""
STOP_S = 15.0
"""How long pipelines may take to end when the broker stops. Then they are killed; a later run goes on from there."""
LAST_S = 10.0
"""How long a process may take to go after it has said its last word."""
LOGS = "pipelines"
LARGEST_LOG_BYTES = 16 * 1024 * 1024


class _Run:
    """A process that was started here."""

    def __init__(self, process: subprocess.Popen[bytes], log: str, started_ms: int) -> None:
        self.process = process
        self.log = log
        self.started_ms = started_ms
        # Somebody has to take notice of its end at once, or it would look alive.
        threading.Thread(target=process.wait, name="pipeline-end", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        return self.process.returncode

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    def stop(self) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()

    def kill(self) -> None:
        """With all that it started: it leads a session of its own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class FolderRunner:
    """See the module. `server`: where a pipeline finds the broker, known when its listeners are open. `program`: what
    is run with a file's name and `--server`."""

    def __init__(
        self,
        folder: str,
        data: str,
        server: Callable[[], str | None],
        program: Sequence[str] = (sys.executable, "-m", "waystation", "pipeline", "run"),
    ) -> None:
        if not os.path.isdir(folder):
            raise Invalid(f"the folder of pipelines {folder!r} does not exist; make it, or name another one")
        self._folder = Path(folder).resolve()
        self._logs = Path(data).resolve() / LOGS
        self._server = server
        self._program = list(program)
        self._runs: dict[str, _Run] = {}
        self._read: dict[Path, tuple[tuple[int, int], str, str]] = {}  # a file's stamp, name and problem
        self._starting: set[str] = set()
        self._closed = False

    async def pipelines(self) -> dict[str, RunnablePipeline]:
        """Looks at the folder again; a file that has not changed is not read again."""
        files = await asyncio.to_thread(self._look)
        found: dict[str, RunnablePipeline] = {}
        for file, (_, name, problem) in sorted(files.items()):
            if name in found:
                logger.warning(
                    "pipeline.duplicate",
                    "two pipelines are called {pipeline!r}, the second is passed over: {file}",
                    pipeline=name,
                    file=file,
                )
                continue
            run = self._runs.get(name)
            found[name] = RunnablePipeline(
                name,
                str(file),
                0 if run is None else run.process.pid,
                0 if run is None else run.started_ms,
                None if run is None else run.exit_code,
                "" if run is None else run.log,
                problem,
            )
        return found

    async def start(self, name: str, *, ending: bool = False) -> RunnablePipeline:
        """Raises NotFound, Conflict (it runs), Invalid (its file has mistakes) or Unavailable. `ending`: the one that
        runs has said its last word, and will have ended in a moment."""
        if ending and name in self._runs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._runs[name].process.wait, LAST_S)
        wanted = (await self.pipelines()).get(name)
        if wanted is None:
            raise NotFound(f"the folder {self._folder} has no pipeline {name!r}")
        if wanted.problem:
            raise Invalid(f"pipeline {name!r} cannot be started: {wanted.problem}")
        if wanted.alive or name in self._starting:
            raise Conflict(f"pipeline {name!r} is running already, as process {wanted.pid or '(starting)'}")
        server = self._server()
        if server is None or self._closed:
            raise Unavailable("pipelines need the broker's Kafka listener, and it is not open")
        log = self._logs / f"{_file_name(name)}.log"
        started_ms = time.time_ns() // 1_000_000
        self._starting.add(name)
        try:
            process = await asyncio.to_thread(_spawn, [*self._program, wanted.file, "--server", server], log)
        except OSError as error:
            raise Unavailable(f"pipeline {name!r} cannot be started: {error.strerror}") from None
        finally:
            self._starting.discard(name)
        run = self._runs[name] = _Run(process, str(log), started_ms)
        if self._closed:
            run.kill()  # the broker has stopped meanwhile
        logger.info("pipeline.started", "pipeline {pipeline} started", pipeline=name, pid=process.pid, log=log)
        return (await self.pipelines())[name]

    async def stop(self, name: str) -> bool:
        run = self._runs.get(name)
        if run is None or not run.alive:
            return False
        run.stop()
        return True

    async def close(self) -> None:
        """The broker stops: so do they."""
        self._closed = True
        runs = [run for run in self._runs.values() if run.alive]
        for run in runs:
            run.stop()
        await asyncio.to_thread(_wait_for, runs)

    # -- the folder, on a thread of its own ----------------------------------------------------------------------------

    def _look(self) -> dict[Path, tuple[tuple[int, int], str, str]]:
        found: dict[Path, tuple[tuple[int, int], str, str]] = {}
        try:
            files = sorted(file for file in self._folder.glob("*.toml") if not file.name.endswith(TESTS))[:MAX_FILES]
        except OSError as error:
            logger.warning(
                "pipelines.folder_unreadable", "the folder of pipelines cannot be read: {error}", error=error
            )
            return found
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue  # removed a moment ago
            stamp = (status.st_mtime_ns, status.st_size)
            known = self._read.get(file)
            found[file] = known if known is not None and known[0] == stamp else (stamp, *_name_of(file))
        self._read = found
        return found


def _name_of(file: Path) -> tuple[str, str]:
    """The name of the pipeline in a file, and what is wrong with it."""
    from waystation.spark.pipelines.file.reading import read_with_problems

    try:
        read = read_with_problems(file)
    except (WaystationError, OSError) as error:
        return file.stem, str(error)
    problems = "; ".join(problem.spelled(file) for problem in sorted(set(read.problems))[:3])
    return read.pipeline.name or file.stem, problems


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
    with log.open("ab") as out:
        # In a session of its own: a Ctrl-C at the broker's terminal is the broker's, which then tells it to stop.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )


def _wait_for(runs: list[_Run]) -> None:
    deadline = STOP_S
    for run in runs:
        try:
            run.process.wait(deadline)
        except subprocess.TimeoutExpired:
            deadline = 0.1
            logger.warning(
                "pipeline.killed", "a pipeline did not stop in time and is killed", pid=run.process.pid, log=run.log
            )
            run.kill()
            run.process.wait()


def _file_name(name: str) -> str:
    """A name as a file's: letters, digits, dots, dashes and underscores stay."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)[:100] or "pipeline"
