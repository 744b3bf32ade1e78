"""One run: a broker works, one chosen disk operation fails once, it works on, ends, and is audited after two starts.

`trace` tells which disk calls a seed makes in the life that is to be hurt; `run` repeats that life exactly until the
chosen call, and fails it. What must hold: every promise of the machines (`broker_machine.py`, `queue_machine.py`,
`follower_machine.py`) after the next start and the one after that, whatever the end was; and unless a sync has failed,
everything works again before that end, without a restart.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.simulation.broker_machine import ROOT, BrokerClients, BrokerMachine
from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.disk_calls import DiskCall, callers, lasting
from tests.simulation.encryption import encrypting, some_keys
from tests.simulation.follower_machine import Cluster, FollowerMachine
from tests.simulation.loop import VirtualTime
from tests.simulation.offload import SimOffload
from tests.simulation.promises import expect
from tests.simulation.queue_machine import QueueMachine
from tests.simulation.queue_promises import QueueClients
from tests.simulation.queue_trouble import Trouble, rot_newest_snapshot
from tests.simulation.world import Simulation
from waystation.errors import WaystationError
from waystation.log.log import Log
from waystation.world import World

Kind = Literal["broker", "queues", "follower"]
Ending = Literal["crash", "power cut", "stop"]
ENDINGS: tuple[Ending, ...] = ("crash", "power cut", "stop")
KINDS: tuple[Kind, ...] = ("broker", "queues", "follower")

LIFE_LONGEST_S = 600.0
"""In virtual time. Who waits longer than this for an answer waits for ever."""
STRAY, EARLIER_STRAY = "stray.12345678", "stray.87654321"
HURT = 1
"""The number of the life in which the disk fails: there is something to recover, and something behind it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fails the `nth` occurrence of a call with `error`."""

    call: DiskCall
    nth: int
    error: int


@dataclass
class Watch:
    """Sees every disk operation of a life while it is `armed`, and fails one."""

    fault: Fault | None = None
    seen: Counter[DiskCall] = field(default_factory=Counter)
    armed: bool = False
    struck: bool = False

    def attach(self, disk: SimDisk, simulation: Simulation) -> None:
        offload = simulation.world.offload
        if not isinstance(offload, SimOffload):
            raise TypeError("not a simulated thread pool")

        def operation(kind: str) -> int:
            return self._operation(kind, offload) if self.armed else 0

        disk.on_operation = operation

    def _operation(self, kind: str, offload: SimOffload) -> int:
        ways = callers(sys._getframe(3)) + offload.origin
        if not ways:
            return 0  # a test's own
        call = DiskCall(kind, ways[:5])
        self.seen[call] += 1
        fault = self.fault
        if fault is None or self.struck or call != fault.call or self.seen[call] != fault.nth:
            return 0
        self.struck = True
        return fault.error


class QuietTrouble(Trouble):
    """Makes a queue machine expect errors, and makes none."""

    async def make(self) -> None:
        await asyncio.sleep(1)


class Story:
    """Some lives of one broker, from one seed."""

    def __init__(self, kind: Kind, seed: int, watch: Watch, ending: Ending) -> None:
        self._kind = kind
        self._seed = seed
        self._watch = watch
        self._ending = ending
        self._rng = random.Random(seed)
        self._disk = SimDisk(seed)
        self._time = VirtualTime()
        clients = {"broker": BrokerClients, "queues": QueueClients, "follower": Cluster}
        self._clients: Any = clients[kind](self._rng)
        self._keys = some_keys(seed)
        self._life = 0

    def tell(self, *, only_the_hurt_life: bool = False) -> None:
        first_end = self._rng.choice(ENDINGS)
        if first_end != "stop":
            self._disk.fail_at(1 + int(self._rng.choice((400, 1_500, 4_000)) * (0.3 + self._rng.random())))
        self._next_life(lambda machine: self._live(machine, 0.3, stop=first_end == "stop"), first_end)
        if self._seed % 3 == 2 and first_end != "stop" and self._kind != "follower":
            self._leave_things_over()
            self._leave_logs_over(power_was_cut=first_end == "power cut")
        self._next_life(self._hurt_life, self._ending)
        if not only_the_hurt_life:
            # What a start took from the page cache has to be on the disk, so the other kind of end follows.
            other: Ending = "crash" if self._ending == "power cut" else "power cut"
            self._next_life(lambda machine: self._live(machine, 0.05), other)
            self._next_life(lambda machine: self._live(machine, 0.05, stop=True), "crash")

    def _leave_things_over(self) -> None:
        """What earlier failures leave, which the next start has to settle: files half made, a folder nobody knows."""
        disk, rng = self._disk, self._rng
        folders = sorted({path.rpartition("/")[0] for path in disk.content() if path.endswith(".log")})
        if not folders:
            return
        left = [
            f"{rng.choice(folders)}/0-0.cleaned",
            f"{rng.choice(folders).rpartition('/')[0]}/topic.json.new",
            f"{ROOT}/topics/{STRAY}/0/{'0' * 20}.log",
            f"{ROOT}/lost+found/{EARLIER_STRAY}/0/{'0' * 20}.log",
            f"{rng.choice(folders)}/{'0' * 19}1.snapshot",
            f"{rng.choice(folders)}/{'9' * 20}.snapshot",
            *[f"{folder}/{'9' * 20}.queues.new" for folder in folders if "/__queues." in folder][:1],
        ]
        for path in left:
            disk.make_folder(path.rpartition("/")[0])
            disk.replace_file(path, b"left over")
        if self._kind == "queues":
            rot_newest_snapshot(disk, rng)
        else:
            self._clients.names.strays |= {STRAY, EARLIER_STRAY}
        for folder in folders:
            bases = sorted(
                int(path[-24:-4]) for path in disk.content() if path.startswith(folder) and path[-4:] == ".log"
            )
            if len(bases) > 1 and bases[1] - bases[0] > 1:
                # As earlier versions left them: of a roll that failed, and of swaps that were not begun or did not fit.
                disk.replace_file(f"{folder}/{bases[0] + 1:020d}.log", b"")
                disk.replace_file(f"{folder}/{bases[0]}-{bases[0]}.swap", b"left over")
                disk.replace_file(f"{folder}/{bases[1]}-{bases[1] + 10_000}.swap", b"left over")
                break

    def _leave_logs_over(self, *, power_was_cut: bool) -> None:
        """What a crash leaves of a log now and then, and not in every few seeds: a swap after its third step, a segment
        that came to the disk without what was before it."""
        disk = self._disk
        bases: dict[str, list[int]] = {}
        for path in sorted(disk.content()):
            folder, _, name = path.rpartition("/")
            if name.endswith(".log") and "/topics/" in path and STRAY not in path:
                bases.setdefault(folder, []).append(int(name[:-4]))
        # What compaction writes has no aborted records, so a swap takes the list of them along: not of these files.
        aborted = {path for path in disk.content() if path.endswith(".txnindex")}
        several = [
            folder
            for folder, found in bases.items()
            if len(found) > 1 and f"{folder}/{found[0]:020d}.txnindex" not in aborted
        ]
        if not several:
            return
        folder = several[-1]
        first, last = bases[folder][0], bases[folder][-1]
        if not any(name.endswith(".swap") for name in disk.list(folder)):
            disk.rename(f"{folder}/{first:020d}.log", f"{folder}/{first}-{first}.swap")
            disk.sync_folder(folder)
        if power_was_cut:
            disk.replace_file(f"{folder}/{last + 1_000_000:020d}.log", b"left over")

    def _next_life(self, life: Callable[[Any], Coroutine[Any, Any, None]], ending: Ending) -> None:
        simulation = Simulation(self._seed * 100 + self._life, self._disk, time=self._time)
        hurt = self._life == HURT
        if hurt:
            self._watch.attach(self._disk, simulation)

        async def main() -> None:
            machine = self._machine(encrypting(self._keys, simulation.world), faults=hurt)
            if hurt:
                machine.trouble = QuietTrouble(self._disk, random.Random(0))
                machine.check = self._disarmed(machine.check)
            await life(machine)

        cut = False
        try:
            simulation.run(asyncio.wait_for(main(), LIFE_LONGEST_S))
        except PowerCut:
            cut = True
        if isinstance(self._clients, QueueClients):
            self._clients.life_ended(kept=ending != "power cut", cut=cut)
        self._disk = self._disk.power_cut(self._rng) if ending == "power cut" else self._disk.process_crash()
        self._life += 1

    def _machine(self, world: World, *, faults: bool) -> Any:
        if self._kind == "follower":
            return FollowerMachine(world, self._disk, self._clients, faults=faults)
        make = BrokerMachine if self._kind == "broker" else QueueMachine
        return make(world, self._disk, DiskCatalog(self._disk, ROOT), self._clients, faults=faults)

    def _disarmed(self, check: Callable[..., None]) -> Callable[..., None]:
        """An audit looks at everything, and nobody but the audit may be hurt by what it cannot see."""

        def disarmed(*args: Any) -> None:
            self._watch.armed = False
            check(*args)
            self._watch.armed = True

        return disarmed

    async def _stop(self, machine: Any) -> None:
        await (machine.stop() if self._kind == "follower" else machine.broker.stop())

    def _logs(self, machine: Any) -> list[Log]:
        if self._kind == "follower":
            return list(machine.logs.values())
        return [log for _, log in machine.broker.topics.logs()]

    async def _live(self, machine: Any, seconds: float, *, stop: bool = False) -> None:
        await machine.start()
        await machine.work(seconds)
        if stop:
            await self._stop(machine)
            expect(not self._disk.open_files, f"still open after a clean stop: {[*self._disk.open_files.values()]}")

    async def _hurt_life(self, machine: Any) -> None:
        watch = self._watch
        watch.armed = True
        try:
            await machine.start()
        except (WaystationError, OSError):
            if not watch.struck:
                raise
            return  # a broker that cannot start says so and ends; the next start is another matter
        await machine.work(0.4)
        if watch.struck:
            await machine.work(0.4)
        if self._ending == "stop":
            await self._stop(machine)
        watch.armed = False
        fault = watch.fault
        passed = watch.struck and fault is not None and not lasting(fault.call)
        if passed and self._ending != "stop":
            self._expect_no_log_condemned(machine)
            await machine.heal()

    def _expect_no_log_condemned(self, machine: Any) -> None:
        for log in self._logs(machine):
            expect(log.failure is None, f"an error that passed has ended a log: {log.failure}")


def trace(kind: Kind, seed: int, ending: Ending = "stop") -> Counter[DiskCall]:
    """The disk calls of a seed's second life, nothing failing."""
    watch = Watch()
    Story(kind, seed, watch, ending).tell(only_the_hurt_life=True)
    return watch.seen


def run(kind: Kind, seed: int, fault: Fault, ending: Ending) -> bool:
    """Raises Broken if a promise is not kept. False if the fault did not happen."""
    watch = Watch(fault)
    story = Story(kind, seed, watch, ending)
    try:
        story.tell()
    except BaseException as error:
        error.add_note(f"run({kind!r}, {seed}, {fault}, {ending!r})")
        raise
    return watch.struck
