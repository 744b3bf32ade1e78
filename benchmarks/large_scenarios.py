"""The large queue scenarios, once each: very many queues, one very long queue, very many delayed messages.

Each loads a fresh broker, reads off its memory, restarts it by `kill -9` and then by a clean stop, and fails unless it
then holds everything that it had acknowledged. Every broker and client started here is gone when the function returns.
Called by `benchmarks.cli`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import figures, jobs, procfs
from benchmarks.lab import SETTLE_S, Lab
from benchmarks.peers import QueuePeer, Running, start
from benchmarks.plan import Plan
from benchmarks.queue_scenarios import IN_FLIGHT, declare

SIZE = 100
MIB = 1024 * 1024
SAMPLED_QUEUES = 1_000
TARGET = "large"


class _Site:
    """A broker that is restarted on the same folder."""

    def __init__(self, peer: QueuePeer, folder: Path) -> None:
        self.peer, self._folder = peer, folder
        self._knock = jobs.Knock(peer.wire, "first", timeout_s=1800)
        self.broker, _, _ = start(peer, folder, self._knock)

    def restart(self) -> float:
        self.broker, probed, began = start(self.peer, self._folder, self._knock)
        return probed.first_ack - began

    def memory(self) -> float:
        time.sleep(SETTLE_S)
        return procfs.resident_mib(self.broker.pid)

    def held(self, queues: tuple[str, ...]) -> int:
        return jobs.run(jobs.Count(self.peer.wire, self.broker.bootstrap, queues), jobs.Counted).messages


class Large:
    """Takes peers through the large scenarios and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report) -> None:
        self._plan, self._lab = plan, Lab(work, report, figures.LARGE)

    @contextmanager
    def _site(self, peer: QueuePeer) -> Iterator[_Site]:
        with self._lab.folder(peer) as folder:
            site = _Site(peer, folder)
            try:
                yield site
                site.broker.stop()
            finally:
                site.broker.kill()

    def many_queues(self, peer: QueuePeer) -> None:
        count = min(self._plan.queues, peer.most_queues or self._plan.queues)
        if count < self._plan.queues:
            self._lab.leave_out(peer, f"{self._plan.queues:,} queues", f"{count:,} of them were measured instead")
        name = f"{count:,} queues"
        with self._site(peer) as site:
            before = site.memory()
            declared, _ = self._lab.watched(
                peer, site.broker, jobs.Declare(peer.wire, site.broker.bootstrap, TARGET, count)
            )
            self._lab.add(peer, "memory per idle queue", figures.BYTES, (site.memory() - before) * MIB / count)
            self._lab.add(peer, f"declare {name}", "queues/s", count / declared.seconds)
            order = (count, SIZE, IN_FLIGHT["single"], count)
            scatter = jobs.Scatter(peer.wire, site.broker.bootstrap, TARGET, *order)
            self._lab.transfer(peer, site.broker, f"one message into each of {name}", scatter)
            self._lab.add(peer, f"memory with {name}, one message each", figures.MEMORY, site.memory())
            sample = tuple(f"{TARGET}{n * count // SAMPLED_QUEUES}" for n in range(min(count, SAMPLED_QUEUES)))
            self._restarts(site, f"{name}, one message each", sample, len(sample))

    def many_messages(self, peer: QueuePeer) -> None:
        """The first fifth fills the body cache; what every further message takes is the slope of the rest."""
        count, name = self._plan.ready, f"{self._plan.ready:,} ready messages"
        first, batch = count // 5, self._plan.batch
        with self._site(peer) as site:
            declare(peer, site.broker, TARGET)
            memory = []
            for part in (first, count - first):
                load = jobs.Put(peer.wire, site.broker.bootstrap, TARGET, part, SIZE, batch, IN_FLIGHT["batched"])
                self._lab.watched(peer, site.broker, load)
                memory.append(site.memory())
            slope = (memory[1] - memory[0]) * MIB / (count - first)
            self._lab.add(peer, "memory per ready message", figures.BYTES, slope)
            self._lab.add(peer, f"memory with {name}", figures.MEMORY, memory[1])
            self._restarts(site, name, (TARGET,), count)

    def single_messages(self, peer: QueuePeer) -> None:
        """A tenth of them, put one by one into two queues: messages that share nothing with a neighbour."""
        count, in_flight = self._plan.ready // 10, IN_FLIGHT["single"]
        first, memory = count // 5, []
        with self._site(peer) as site:
            declare(peer, site.broker, TARGET, 2)
            for part in (first, count - first):
                load = jobs.Scatter(peer.wire, site.broker.bootstrap, TARGET, part, SIZE, in_flight, queues=2)
                self._lab.watched(peer, site.broker, load)
                memory.append(site.memory())
        slope = (memory[1] - memory[0]) * MIB / (count - first)
        self._lab.add(peer, "memory per ready message, put singly", figures.BYTES, slope)

    def many_parked(self, peer: QueuePeer) -> None:
        count, name = self._plan.parked, f"{self._plan.parked:,} parked messages"
        if not peer.delays:
            self._lab.leave_out(peer, "parked messages", "it has no delayed messages")
            return
        with self._site(peer) as site:
            declare(peer, site.broker, TARGET)
            before = site.memory()
            order = (count, SIZE, self._plan.batch, IN_FLIGHT["batched"])
            load = jobs.Put(peer.wire, site.broker.bootstrap, TARGET, *order, delay=True)
            self._lab.transfer(peer, site.broker, f"put {name}", load)
            after = site.memory()
            self._lab.add(peer, "memory per parked message", figures.BYTES, (after - before) * MIB / count)
            self._lab.add(peer, f"memory with {name}", figures.MEMORY, after)
            self._restarts(site, name, (TARGET,), count)

    def _restarts(self, site: _Site, name: str, queues: tuple[str, ...], expected: int) -> None:
        for how, end in (("kill -9", Running.kill), ("stop", Running.stop)):
            end(site.broker)
            self._lab.add(site.peer, f"restart after {how}, {name}", figures.SECONDS, site.restart())
            if (held := site.held(queues)) != expected:
                raise RuntimeError(f"{held:,} messages after {how} and restart, {expected:,} were acknowledged")
        self._lab.add(site.peer, f"memory after restart, {name}", figures.MEMORY, site.memory())
