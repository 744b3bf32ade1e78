"""What `doctor` has to say of the machine: Python and its packages, limits, clock, memory, processors, Java."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from waystation.cli.doctor.findings import Figures, Finding
from waystation.cli.terminal.output import spell_bytes
from waystation.version import __version__

OLDEST_PYTHON = (3, 11)
FEW_FILES = 10_000
"""A connection and a partition in use hold a file each."""
LITTLE_MEMORY = 256 * 1024 * 1024
JUMP_S = 0.25
EARLIEST_S = 1_735_689_600  # 2025: a clock before that was never set
PACKAGES = ("msgspec", "kio", "pamqp", "httptools", "websockets", "cramjam", "crc32c", "prometheus-client")


def look_at_python() -> Iterator[Finding]:
    version = platform.python_version()
    fit = sys.version_info >= OLDEST_PYTHON
    yield Finding(
        check="python",
        state="ok" if fit else "problem",
        says=f"{platform.python_implementation()} {version} on {platform.system()} {platform.release()}",
        advice="" if fit else "Waystation needs Python 3.11 or newer",
        figures={"version": version, "executable": sys.executable},
    )
    yield Finding(check="waystation", says=__version__, figures={"version": __version__})
    found = {name: _version(name) for name in PACKAGES}
    missing = [name for name, one in found.items() if one is None]
    yield Finding(
        check="packages",
        state="problem" if missing else "ok",
        says=", ".join(f"{name} {one or 'MISSING'}" for name, one in found.items()),
        advice=f"`pip install {' '.join(missing)}`, or install Waystation again" if missing else "",
        figures={**found},
    )
    uvloop = _version("uvloop")
    yield Finding(
        check="uvloop",
        state="ok" if uvloop else "warning",
        says=uvloop or "not installed",
        advice="" if uvloop else "the broker works without it, slower: `pip install uvloop`",
        figures={"version": uvloop},
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


# -- limits ------------------------------------------------------------------------------------------------------------


def look_at_limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    yield Finding(
        check="open files",
        state="warning" if most < FEW_FILES else "ok",
        says=f"up to {_spell_limit(hard)} (`serve` takes all of it; {_spell_limit(soft)} now)",
        advice=(
            "a connection and a partition in use hold a file each: raise it in /etc/security/limits.conf, or with"
            " LimitNOFILE= in a unit"
            if most < FEW_FILES
            else ""
        ),
        figures={"soft": _figure(soft), "hard": _figure(hard)},
    )
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    says = "no core files are written after a crash" if core == 0 else f"core files up to {_spell_limit(core)} bytes"
    yield Finding(check="core files", says=says, figures={"soft": _figure(core)})


def _spell_limit(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _figure(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


# -- clock -------------------------------------------------------------------------------------------------------------


class ClockWatch:
    """Compares the two clocks while other things are done: the wall's must not jump."""

    def __init__(self) -> None:
        self._wall, self._steady = time.time(), time.monotonic()

    def finding(self) -> Finding:
        now = time.time()
        return judge_clock(now, (now - self._wall) - (time.monotonic() - self._steady))


def judge_clock(now_s: float, jump_s: float) -> Finding:
    figures: Figures = {"now_ms": round(now_s * 1000), "jump_ms": round(jump_s * 1000, 3)}
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    if now_s < EARLIEST_S:
        advice = "set the clock (NTP): retention and delays depend on it"
        return Finding(check="clock", state="problem", says=f"{moment} cannot be", advice=advice, figures=figures)
    if abs(jump_s) > JUMP_S:
        says = f"{moment}; it jumped by {jump_s:+.2f} s while we looked"
        advice = "let NTP slew it instead of setting it: delays, retention and timestamps depend on it"
        return Finding(check="clock", state="warning", says=says, advice=advice, figures=figures)
    return Finding(check="clock", says=f"{moment}, and runs steadily", figures=figures)


# -- memory and processors ---------------------------------------------------------------------------------------------


def look_at_memory() -> Finding:
    free, total = memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup"))
    figures: Figures = {"available_bytes": free, "total_bytes": total}
    if free is None or total is None:
        return Finding(check="memory", says="not known on this system", figures=figures)
    says = f"{spell_bytes(free)} available of {spell_bytes(total)}"
    if free < LITTLE_MEMORY:
        advice = "a broker needs 50 MiB, and more for queues, connections and the page cache"
        return Finding(check="memory", state="warning", says=says, advice=advice, figures=figures)
    return Finding(check="memory", says=says, figures=figures)


def memory(system: Path, group: Path) -> tuple[int | None, int | None]:
    """Available and total; where this process is in a group with a limit, that is what there is."""
    try:
        lines = dict(line.split(":", 1) for line in system.read_text().splitlines() if ":" in line)
        free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return None, None
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and limit < total:
        free, total = min(free, max(0, limit - (used or 0))), limit
    return free, total


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def look_at_processors() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = _quota(Path("/sys/fs/cgroup/cpu.max"))
    figures: Figures = {"count": count, "quota": share}
    says = f"{count}" + (f", of which this group may use {share:g}" if share is not None and share < count else "")
    if share is not None and share < 1:
        advice = "the broker is one busy thread: give it a whole processor"
        return Finding(check="processors", state="warning", says=says, advice=advice, figures=figures)
    return Finding(check="processors", says=says, figures=figures)


def _quota(path: Path) -> float | None:
    try:
        most, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return int(most) / int(period) if most.isdecimal() else None


# -- Spark -------------------------------------------------------------------------------------------------------------


def look_at_spark(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Only found, never imported; Java is asked for its version and nothing else."""
    pyspark = _version("pyspark") if find_spec("pyspark") is not None else None
    if pyspark is None:
        says = "not installed; only pipelines need it (`pip install 'waystation[spark]'`)"
        yield Finding(check="spark", says=says, figures={"version": None})
        return
    missing = [name for name in ("pyarrow", "pandas") if find_spec(name) is None]
    yield Finding(
        check="spark",
        state="warning" if missing else "ok",
        says=f"pyspark {pyspark}" + (f", without {' and '.join(missing)}" if missing else ""),
        advice="`pip install 'waystation[spark]'` brings what is missing" if missing else "",
        figures={"version": pyspark},
    )
    from waystation.spark.java import OLDEST, known_java

    found = list(known_java(environment))
    fit = next((one for one in found if one.version is not None and one.version >= OLDEST), None)
    if fit is None:
        reasons = "; ".join(one.says for one in found)
        advice = f"pipelines need Java {OLDEST} or newer: `pip install 'waystation[spark]'` brings one"
        yield Finding(check="java", state="warning", says=reasons, advice=advice, figures={"version": None})
        return
    yield Finding(check="java", says=f"Java {fit.version} from {fit.origin}", figures={"version": fit.version})
