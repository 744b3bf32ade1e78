"""A standalone Spark cluster on loopback, from the PySpark package alone: a master and workers, each a process.

Every process has its own folder and a port that the system chose. A worker is killed with the executors that it
started, as a machine that loses power; whatever happens to the test, `close()` leaves none of them behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.ports import free_port
from tests.support.server import ROOT
from tests.support.waiting import wait_for
from waystation.spark.java import use_java

LOOPBACK = "127.0.0.1"
START_S = 120.0
STOP_S = 20.0
PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""Where executors find `waystation` and `pyspark_waystation`, as they would if those were installed on each machine."""

QUICK_TO_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For Java processes that live for a minute: most of their time would go into compiling what they hardly run."""


class Cluster:
    """A master and its workers, with one core and 1 GB each."""

    def __init__(self, folder: Path, workers: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = cluster_environment() if environment is None else environment
        self.workers: list[subprocess.Popen[bytes]] = []
        self._wanted = workers
        self._port, self._page = free_port(), free_port()
        self._master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    def start(self) -> None:
        ports = ("--port", str(self._port), "--webui-port", str(self._page))
        self._master = self._spawn("master", "deploy.master.Master", *ports)
        wait_for(
            lambda: self.state() is not None, "the master answers", within_s=START_S, every_s=0.2, retry_on=(OSError,)
        )
        for number in range(self._wanted):
            work = self.folder / f"worker-{number}" / "work"
            size = ("--cores", "1", "--memory", "1g", "--work-dir", str(work))
            command = ("deploy.worker.Worker", "--webui-port", "0", *size, self.url)
            self.workers.append(self._spawn(f"worker-{number}", *command))
        wait_for(lambda: self.alive() == self._wanted, "all workers are there", within_s=START_S, every_s=0.2)

    def state(self) -> dict[str, Any]:
        """What the master says of workers and applications."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self._page}/json/", timeout=10) as answer:
            said: dict[str, Any] = json.load(answer)
            return said

    def alive(self) -> int:
        return int(self.state()["aliveworkers"])

    def finished(self) -> list[str]:
        """The names of the applications that have ended."""
        return [str(app["name"]) for app in self.state()["completedapps"]]

    def descendants(self, number: int) -> set[int]:
        """The process ids of this worker's executors, and of the Python processes that work for them."""
        return {process.pid for process in psutil.Process(self.workers[number].pid).children(recursive=True)}

    def executors(self) -> list[psutil.Process]:
        """The executors that run now, of whatever worker, without what works for them."""
        found = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                        found.append(child)
        return found

    def kill_worker(self, number: int) -> None:
        """kill -9 for the worker and all that it has started."""
        kill_tree(self.workers[number])

    def close(self) -> None:
        for process in (*self.workers, *([self._master] if self._master else [])):
            kill_tree(process)

    def _spawn(self, name: str, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        import pyspark

        home, folder = Path(pyspark.__file__).parent, self.folder / name
        folder.mkdir(parents=True)
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.{kind}", "--host", LOOPBACK, *arguments]
        environment = {**self.environment, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder)}
        environment |= {"SPARK_LOCAL_DIRS": str(folder / "local"), "SPARK_DAEMON_MEMORY": "256m"}
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder
            )


def cluster_environment() -> dict[str, str]:
    """For the cluster's processes and for drivers: the same Java, and nothing that another machine could reach."""
    environment = {**os.environ, "SPARK_LOCAL_IP": LOOPBACK, "PYTHONPATH": PATH, "PYSPARK_PYTHON": sys.executable}
    use_java(environment)
    return environment


def spark_settings() -> Mapping[str, str]:
    """What a job needs on this cluster; one for ordinary machines would need none of it."""
    return {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_TO_START,
        "spark.executor.extraJavaOptions": QUICK_TO_START,
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "1",
        "spark.executorEnv.PYTHONPATH": PATH,
        "spark.sql.shuffle.partitions": "2",
        # A lost executor's files are asked for again and again before they are made again: three times in three
        # seconds.
        "spark.shuffle.io.retryWait": "1s",
    }


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a child of this process and its descendants by force."""
    kill_all_of(process.pid)
    process.wait(timeout=STOP_S)


def kill_all_of(pid: int) -> None:
    """Ends it and its descendants by force. They are found first: those of a dead process are nobody's children."""
    with contextlib.suppress(psutil.NoSuchProcess):
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        for one in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(tree, timeout=STOP_S)


@contextlib.contextmanager
def pipeline_run(file: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`waystation pipeline run` in a process of its own, which is the driver; its words are in `run.log` beside it."""
    command = [sys.executable, "-m", "waystation.cli.main", "pipeline", "run", str(file), *arguments]
    with (file.parent / "run.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=cluster_environment(), cwd=file.parent
        )
    try:
        yield process
    finally:
        kill_tree(process)
