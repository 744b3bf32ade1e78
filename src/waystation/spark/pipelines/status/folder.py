"""The checkpoint folder of a pipeline: whose it is, who runs it now, its log, and Spark's checkpoints, one a sink.

    pipeline.json     the pipeline's name, and an identity that changes with every reset
    schedule.json     when a pipeline with a schedule last ran
    lock              held (flock) by the process that runs it; has its pid
    pipeline.log      Spark's log, with Java's traces
    sinks/NAME/       what Spark remembers

Two processes never run on one folder, and no pipeline on the folder of another. A folder that is not on this machine's
disk (hdfs:, s3:) has only Spark's part: `local` is False then. Imports no Spark.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from waystation.errors import Conflict, Invalid
from waystation.spark.pipelines.file.declared import Pipeline

OWNER = "pipeline.json"
LOCK = "lock"
LOG = "pipeline.log"
SINKS = "sinks"
SCHEDULE = "schedule.json"
LARGEST_LOG_BYTES = 64 * 1024 * 1024


class CheckpointFolder:
    """One pipeline's folder. Open it (`with`) to run the pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._place = pipeline.checkpoint.removeprefix("file:")
        self.local = re.match(r"[a-z0-9+.-]+:/", self._place) is None
        self._lock: int | None = None
        self.identity = pipeline.name

    def __str__(self) -> str:
        return self._place

    @property
    def path(self) -> Path:
        return Path(self._place)

    @property
    def log(self) -> Path:
        """Where Spark's log goes; in the system's folder for temporary files where the checkpoint is not local."""
        if self.local:
            return self.path / LOG
        return Path(tempfile.gettempdir()) / f"waystation-{self._pipeline.name}-{os.getuid()}.log"

    def sink(self, name: str) -> str:
        """Where Spark remembers how far a sink is."""
        return f"{self._place}/{SINKS}/{name}"

    # -- running -------------------------------------------------------------------------------------------------------

    def __enter__(self) -> CheckpointFolder:
        if self.local:
            self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    def _take(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(
                f"the checkpoint folder {self.path} cannot be made ({error.strerror}); set `checkpoint` to another one"
            ) from None
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = self.running_pid()
            self._release()
            raise Conflict(
                f"pipeline {self._pipeline.name!r} is running already, as process {pid or '?'} on this machine; stop it"
                f" with `waystation pipeline stop {self._pipeline.name}`, or give this one another `checkpoint`"
            ) from None
        try:
            self.identity = self._own()
        except BaseException:
            self._release()
            raise
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        if self.log.exists() and self.log.stat().st_size > LARGEST_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.old"))

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _own(self) -> str:
        """The identity of the folder; made, if it is new. Conflict if it is another pipeline's."""
        self.check_owner()
        owner = self._owner()
        if owner is None:
            if any((self.path / name).exists() for name in ("offsets", "commits", "metadata")):
                raise Conflict(
                    f"{self.path} is a checkpoint of a Spark query that is no pipeline; set `checkpoint` to a folder of"
                    " its own"
                )
            owner = {"pipeline": self._pipeline.name, "identity": uuid.uuid4().hex}
            self._write(OWNER, owner)
        return owner.get("identity", self._pipeline.name)

    def _write(self, name: str, content: Mapping[str, object]) -> None:
        aside = self.path / f".{name}.{os.getpid()}"
        aside.write_text(json.dumps(content) + "\n")
        aside.replace(self.path / name)

    def _owner(self) -> dict[str, str] | None:
        try:
            owner = json.loads((self.path / OWNER).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            owner = None
        if not isinstance(owner, dict) or "pipeline" not in owner:
            raise Conflict(
                f"{self.path / OWNER} cannot be read; set `checkpoint` to another folder, or remove this one"
            )
        return owner

    def check_owner(self) -> None:
        """Conflict if the folder is another pipeline's."""
        owner = self._owner() if self.local else None
        if owner is not None and owner["pipeline"] != self._pipeline.name:
            raise Conflict(
                f"the checkpoint {self.path} belongs to pipeline {owner['pipeline']!r}, not to {self._pipeline.name!r}:"
                " set `checkpoint` to a folder of its own"
            )

    # -- looking -------------------------------------------------------------------------------------------------------

    def running_pid(self) -> int | None:
        """The process that runs the pipeline on this folder now; None if there is none."""
        try:
            descriptor = os.open(self.path / LOCK, os.O_RDWR)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode(errors="replace")
            return int(text) if text.isdecimal() else 0
        finally:
            os.close(descriptor)
        return None

    def last_run(self) -> float | None:
        """When its schedule was last followed, in seconds since 1970; None if that is not known."""
        try:
            found = json.loads((self.path / SCHEDULE).read_text())["last_run"] if self.local else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return float(found) if isinstance(found, int | float) else None

    def note_run(self, at: float) -> None:
        if self.local:
            self._write(SCHEDULE, {"last_run": at})

    def remembers(self) -> bool:
        """Whether there is anything to reset."""
        return (self.path / SINKS).is_dir()

    def reset(self) -> None:
        """Forgets how far every sink is. The caller holds the folder (`with`)."""
        shutil.rmtree(self.path / SINKS, ignore_errors=True)
        (self.path / OWNER).unlink(missing_ok=True)
        self.identity = self._own()
