"""The long run: a real broker under mixed load on every protocol, killed every minute, audited all the time.

It ends by itself: the load runs for its minutes, writers stop, readers get everything, and what was promised is
compared with what was found. Called by `python -m tests.soak_real` and by the short test in this folder.
"""

from __future__ import annotations

import logging
import random
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak_real import amqp_loads, http_loads, kafka_loads, native_loads
from tests.soak_real.audit import Findings
from tests.soak_real.ground import Ground, Side, Steady
from tests.soak_real.sampling import Sampler, WatchedServer, by_life, growth, table, text_table

SETTINGS: dict[str, str | int | bool] = {
    "log.retention.check.interval.ms": 2_000,
    "log.cleaner.backoff.ms": 2_000,
    "waystation.checkpoint.interval.ms": 2_000,
    "waystation.queue.segment.bytes": 1_048_576,
    "producer.id.expiration.ms": 600_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.heartbeat.interval.ms": 1_000,
}
"""Small intervals, so that what a broker does once in minutes it does while it is killed."""
CHECK_EVERY_S = 20.0
STUCK_S = 60.0
LOW_PORTS = range(20_000, 30_000)
"""Below the range that the kernel takes for outgoing connections: no client can sit on the broker's port while it is
away, nor connect to itself."""


@dataclass
class Options:
    """How long, how hard, how often."""

    folder: Path
    minutes: float = 60.0
    kill_every_s: float = 60.0
    rate: float = 1.0
    seed: int = 0
    sample_every_s: float = 5.0
    python: Sequence[str] = ()
    window_suffix: str = "json"
    drain_s: float = 120.0
    """How long readers may take to get what is left at the end."""
    say: bool = True


@dataclass
class Report:
    """What the run found."""

    minutes: float
    kills: int
    findings: Findings
    grown: list[str]
    figures: dict[str, dict[str, object]]
    by_age: list[dict[str, float]]
    lives: list[dict[str, float]]
    starts_s: list[float]
    cpu_share: float
    unwell: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.findings and not self.grown

    def as_json(self) -> dict[str, Any]:
        return {
            "good": self.good,
            "minutes": self.minutes,
            "kills": self.kills,
            "broken": dict(self.findings.counts),
            "examples": dict(self.findings.examples),
            "grown": self.grown,
            "figures": self.figures,
            "by_age": self.by_age,
            "by_life": self.lives,
            "starts_s": self.starts_s,
            "cpu_share": self.cpu_share,
            "lost_sessions": self.unwell,
        }

    def as_text(self) -> str:
        lines = [f"{self.minutes:.1f} minutes, {self.kills} kills, {self.cpu_share:.0%} of a core", ""]
        for side, figures in self.figures.items():
            lines.append(side)
            lines += [f"  {name}: {value}" for name, value in figures.items()]
        if self.starts_s:
            lines.append(f"ready after a kill: median {sorted(self.starts_s)[len(self.starts_s) // 2]:.2f} s, "
                         f"longest {max(self.starts_s):.2f} s")  # fmt: skip
        lines += ["", "by age of the process (medians)", text_table(self.by_age)]
        if len(self.lives) > 1:
            lines += ["", "by life, in its second half (medians)", text_table(self.lives)]
        lines += ["", "flat" if not self.grown else "NOT FLAT: " + "; ".join(self.grown)]
        if self.findings:
            lines.append("BROKEN PROMISES")
            for promise, count in self.findings.counts.most_common():
                lines.append(f"  {count} x {promise}")
                lines += [f"      {example}" for example in self.findings.examples[promise]]
        else:
            lines.append("every promise held")
        return "\n".join(lines)


class Soak:
    """One run."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.findings = Findings(self._tell)
        self.server = WatchedServer(options.folder, settings=SETTINGS)
        self.server.python = options.python
        self.server.window_suffix = options.window_suffix
        names = ("kafka", "amqp", "http")
        self.server.addresses = {d: f"127.0.0.1:{port}" for d, port in zip(names, low_ports(3), strict=True)}
        self.ground = Ground(self.server, self.findings, options.rate)
        self.sampler = Sampler(self.server, options.sample_every_s)
        self.sides: dict[str, Side] = {}
        self.kills = 0
        self._random = random.Random(options.seed)
        self._starts_s: list[float] = []
        self._progress: dict[Steady, tuple[int, float]] = {}

    def run(self) -> Report:
        began = time.monotonic()
        # Clients say at length that the broker went away, as it should.
        loud = {name: logging.getLogger(name).level for name in ("pika", "waystation")}
        for name in loud:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self.server.start()
        try:
            for loads in (kafka_loads, amqp_loads, native_loads, http_loads):
                loads.prepare(self.ground)
            self.kafka = kafka_loads.KafkaSide(self.ground, self.findings)
            self.amqp = amqp_loads.AmqpSide(self.ground, self.findings)
            self.native = native_loads.NativeSide(self.ground, self.findings)
            self.http = http_loads.HttpSide(self.ground, self.findings)
            self.sides = {"kafka": self.kafka, "amqp": self.amqp, "native": self.native, "http": self.http}
            self._work()
        finally:
            if self.sampler.is_alive():
                self.sampler.stop()
            self.server.close()
            for name, level in loud.items():
                logging.getLogger(name).setLevel(level)
        return self._report((time.monotonic() - began) / 60)

    @property
    def loads(self) -> list[Steady]:
        return [load for side in self.sides.values() for load in (*side.writers, *side.readers)]

    def _work(self) -> None:
        for load in self.loads:
            load.start()
        self.sampler.start()
        end = time.monotonic() + self.options.minutes * 60
        next_check = time.monotonic() + CHECK_EVERY_S
        next_kill = self._after_a_while()
        while time.monotonic() < end:
            time.sleep(0.1)
            if time.monotonic() > next_kill:
                self._kill()
                next_kill = self._after_a_while()
                next_check = time.monotonic() + CHECK_EVERY_S
            elif time.monotonic() > next_check:
                self.kafka.check(self.kafka.promised())
                self._look_for_the_stuck()
                next_check = time.monotonic() + CHECK_EVERY_S
        self._drain()

    def _after_a_while(self) -> float:
        every = self.options.kill_every_s
        return time.monotonic() + self._random.uniform(0.8, 1.2) * every if every else float("inf")

    def _kill(self) -> None:
        promised = self.kafka.promised()
        self.server.kill()
        began = time.monotonic()
        self.server.restart()
        self._starts_s.append(round(time.monotonic() - began, 2))
        self.sampler.new_life()
        self.kills += 1
        self._tell(f"kill {self.kills}: ready after {self._starts_s[-1]:.2f} s")
        self.kafka.check(promised)

    def _look_for_the_stuck(self) -> None:
        """A load that does not get on is a finding too: a client that hangs hides what it would have found."""
        now = time.monotonic()
        for load in self.loads:
            before, since = self._progress.get(load, (-1, now))
            if load.progress != before:
                self._progress[load] = (load.progress, now)
            elif now - since > STUCK_S:
                self.findings.broken("every client gets on", f"{load.name} stands at {before} for {now - since:.0f} s")
                self._progress[load] = (before, now)
        self._tell(f"{len(self.findings.counts)} broken promises, " + ", ".join(
            f"{name} {sum(load.progress for load in side.writers)}" for name, side in self.sides.items()))  # fmt: skip

    def _drain(self) -> None:
        """Writers end, readers get what there is, then readers end and the accounts are closed."""
        for side in self.sides.values():
            for load in side.writers:
                load.ask_to_stop()
        for side in self.sides.values():
            for load in side.writers:
                load.ended.wait(300)
        deadline = time.monotonic() + self.options.drain_s
        waiting = dict(self.sides)
        while waiting and time.monotonic() < deadline:
            waiting = {name: side for name, side in waiting.items() if not side.drained()}
            time.sleep(0.5)
        for name in waiting:
            self.findings.broken("everything is delivered", f"{name} was not drained within {self.options.drain_s:g} s")
        for side in self.sides.values():
            for load in side.readers:
                load.ask_to_stop()
        for load in self.loads:
            if not load.ended.wait(30):
                self.findings.broken("every client comes to an end", load.name)
        for side in self.sides.values():
            side.finish()

    def _report(self, minutes: float) -> Report:
        samples = self.sampler.samples
        lives = {s.life for s in samples}
        worked = sum(
            max(s.cpu_s for s in samples if s.life == life) / max(s.age_s for s in samples if s.life == life)
            for life in lives
        )
        return Report(
            minutes=minutes,
            kills=self.kills,
            findings=self.findings,
            grown=growth(samples),
            figures={name: side.figures() for name, side in self.sides.items()},
            by_age=table(samples),
            lives=by_life(samples),
            starts_s=self._starts_s,
            cpu_share=round(worked / max(1, len(lives)), 3),
            unwell=self.ground.unwell,
        )

    def _tell(self, line: str) -> None:
        if self.options.say:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def low_ports(count: int) -> list[int]:
    """Free ports that no outgoing connection gets."""
    found: list[int] = []
    chance = random.Random()
    while len(found) < count:
        port = chance.choice(LOW_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
