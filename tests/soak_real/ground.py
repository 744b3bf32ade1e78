"""What all loads share: where the broker is, where broken promises go, how fast to go, and a thread that endures.

A `Steady` load does its turn again and again. An error that the client may meet while the broker is away means a new
session; any other one is a finding of its own, so that a load never ends silently before the run does.
"""

from __future__ import annotations

import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.clients.crash_load import Load
from tests.soak_real.audit import Findings
from tests.support.ports import split_address
from tests.support.server import Server

PAUSE_S = 0.1
"""Between a lost session and the next one."""


@dataclass
class Ground:
    """One run's broker and its findings."""

    server: Server
    findings: Findings
    rate: float = 1.0
    """1 is about 450 messages a second over all loads."""
    unwell: dict[str, int] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return self.server.addresses["kafka"]

    @property
    def url(self) -> str:
        return f"waystation://{self.bootstrap}"

    @property
    def amqp(self) -> tuple[str, int]:
        return split_address(self.server.addresses["amqp"])

    @property
    def http(self) -> tuple[str, int]:
        return split_address(self.server.addresses["http"])


class Pace:
    """So many things a second, without catching up after a pause."""

    def __init__(self, per_s: float) -> None:
        self._every_s = 1.0 / per_s
        self._next = time.monotonic()

    def wait(self, stopped: threading.Event) -> None:
        now = time.monotonic()
        self._next = max(self._next + self._every_s, now)
        if self._next > now:
            stopped.wait(self._next - now)


class Steady(Load):
    """A load that does `session` until it is stopped, whatever happens to the broker."""

    expected: tuple[type[BaseException], ...] = ()
    """What a client raises when the broker went away."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self.ground = ground
        self.findings = ground.findings
        self.sessions = 0
        self.ended = threading.Event()

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def session(self) -> None:
        """Connect, work until `_stopped`, and let errors of a broker that went away pass."""

    def work(self) -> None:
        try:
            while not self._stopped.is_set():
                self.sessions += 1
                try:
                    self.session()
                except self.expected as error:
                    kind = f"{self.name}: {type(error).__name__}"
                    self.ground.unwell[kind] = self.ground.unwell.get(kind, 0) + 1
                    self._stopped.wait(PAUSE_S)
        except BaseException as error:
            trace = "".join(traceback.format_exception(error)[-6:])
            self.findings.broken("clients meet only errors that they should", f"{self.name}: {error!r}\n{trace}")
        finally:
            self.ended.set()

    def ask_to_stop(self) -> None:
        self._stopped.set()


class Side(Protocol):
    """The loads of one protocol, with their accounts."""

    @property
    def writers(self) -> Sequence[Steady]: ...

    @property
    def readers(self) -> Sequence[Steady]: ...

    def drained(self) -> bool:
        """Whether everything that was acknowledged has been read and settled."""

    def finish(self) -> None:
        """Closes the accounts: what is missing now is lost."""

    def figures(self) -> dict[str, object]:
        """How much was done, for the report."""
