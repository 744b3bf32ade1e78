"""What the kernel knows about a process tree: CPU time, resident memory, and how busy the rest of the machine is.

All figures cover a process *and its descendants*, reaped ones included, because a broker may fork helpers and its
users pay for those too. CPU time is that of the kernel's clock of each process, in nanoseconds; only that of children
that were reaped is in ticks of 10 ms. Pure reads; Linux only. Called by the scenarios.
"""

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    parent: int
    cpu_s: float


def _read_stat(pid: str) -> _Stat | None:
    try:
        text = Path("/proc", pid, "stat").read_text()
    except OSError:  # it ended while we were looking
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may itself hold spaces and brackets
    reaped = sum(map(int, fields[13:15])) / TICKS_PER_SECOND
    return _Stat(int(fields[1]), reaped + _own_cpu_s(int(pid)))


def _own_cpu_s(pid: int) -> float:
    """Of all its threads, those that have ended included: what clock_getcpuclockid(3) stands for."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:  # it ended while we were looking
        return 0.0


def _tree(root: int) -> dict[int, _Stat]:
    stats = {int(name): stat for name in os.listdir("/proc") if name.isdigit() and (stat := _read_stat(name))}
    found = {root} & stats.keys()
    while more := {pid for pid, stat in stats.items() if stat.parent in found} - found:
        found |= more
    return {pid: stats[pid] for pid in found}


def cpu_seconds(root: int) -> float:
    """User plus system time of the tree, with that of children it has already reaped."""
    return sum(stat.cpu_s for stat in _tree(root).values())


def resident_mib(root: int) -> float:
    """Resident set of the tree in MiB; pages shared between two of its processes count twice."""
    kib = 0
    for pid in _tree(root):
        with contextlib.suppress(OSError):
            for line in Path("/proc", str(pid), "status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    kib += int(line.split()[1])
    return kib / 1024


def machine_busy_seconds() -> float:
    """CPU seconds that all processes of this machine together have used since boot."""
    user, nice, system, _idle, _iowait, irq, softirq = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def peak_mib(pid: int) -> float:
    """The most that this one process has had in memory."""
    for line in Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def forget_peak(pid: int) -> None:
    """The most from now on."""
    with contextlib.suppress(OSError):  # a kernel that does not let us: then it is the most ever
        Path("/proc", str(pid), "clear_refs").write_text("5")
