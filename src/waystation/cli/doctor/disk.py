"""What `doctor` has to say of the folder where the data is, or would be: its file system, its room, its speed.

The measurements use a file without a name, which is deleted with this process however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from waystation.cli.doctor.findings import Figures, Finding, State
from waystation.cli.terminal.output import spell_bytes, spell_count

NETWORK = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3", "smbfs")
MEMORY = ("ramfs", "tmpfs")
LAYERS = ("aufs", "overlay")
"""File systems of a container itself."""

LITTLE_BYTES = 1024**3
CHUNK_BYTES = 1024 * 1024
WRITE_BYTES = 64 * CHUNK_BYTES
WRITE_S = 3.0
SYNCS = 200
SYNC_BYTES = 4096
SYNC_S = 6.0
"""However slow the disk is, the doctor is done after some seconds."""

SLOW_SYNC_MS = 20.0
SLOW_P99_MS = 200.0
UNREAL_SYNC_MS = 0.02
"""No disk that keeps anything is as fast as this."""
SLOW_WRITE = 50 * 1024 * 1024
LOCK_FILE = "waystation.lock"


def look_at_folder(data: str, least_bytes: int, *, measure: bool) -> Iterator[Finding]:
    """`least_bytes` is the broker's own bound on free space (waystation.disk.free.min.bytes)."""
    folder = Path(data).absolute()
    there = _nearest(folder)
    yield _access(folder, there)
    if not os.access(there, os.W_OK | os.X_OK):
        return
    if folder.is_dir():
        yield from _lock(folder)
        yield from _lost(folder)
    yield _file_system(there)
    yield _room(there, least_bytes)
    if measure:
        yield from _speed(there)


def _nearest(folder: Path) -> Path:
    """The folder, or the one above it that exists: it would be made in there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _access(folder: Path, there: Path) -> Finding:
    if not there.is_dir():
        return Finding(check="data", state="problem", says=f"{there} is not a folder", advice="choose another --data")
    if not os.access(there, os.W_OK | os.X_OK):
        advice = f"give {_user()} the right to write there, or choose another --data"
        return Finding(check="data", state="problem", says=f"{there} cannot be written to", advice=advice)
    if there != folder:
        return Finding(
            check="data", says=f"{folder} is not there yet; `serve` makes it", figures={"folder": str(folder)}
        )
    return Finding(check="data", says=f"{folder} exists and is writable", figures={"folder": str(folder)})


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _lock(folder: Path) -> Iterator[Finding]:
    """Whether a broker has it. Asked for with a shared lock that is given back at once."""
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield Finding(check="lock", says="no broker uses the folder now", figures={"pid": None})
    except BlockingIOError:
        pid = os.pread(file, 64, 0).decode(errors="replace").strip()
        yield Finding(
            check="lock",
            says=f"a broker uses the folder (pid {pid or 'unknown'}): another one cannot start on it",
            figures={"pid": int(pid) if pid.isdecimal() else None},
        )
    finally:
        os.close(file)


def _lost(folder: Path) -> Iterator[Finding]:
    from waystation.topics.lost import lost_folders
    from waystation.world.disk import OsDisk

    lost = lost_folders(OsDisk(), str(folder))
    if lost:
        yield Finding(
            check="lost topics",
            state="warning",
            says=f"{spell_count(len(lost), 'folder')} of topics that the catalog does not know in {folder}/lost+found",
            advice=f"see `waystation lost list {folder}`; `waystation lost restore` re-creates topics from them",
            figures={"folders": len(lost)},
        )


# -- the file system ---------------------------------------------------------------------------------------------------


def file_system_of(folder: Path, mounts: str) -> str | None:
    """The type of the file system that a folder is on, by the lines of /proc/self/mountinfo."""
    found: tuple[int, str] | None = None
    parts = folder.resolve().parts
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields or len(fields) < fields.index("-") + 2:
            continue
        point = Path(_unescaped(fields[4])).parts
        if parts[: len(point)] == point and (found is None or len(point) >= found[0]):
            found = (len(point), fields[fields.index("-") + 1])
    return None if found is None else found[1]


def _unescaped(text: str) -> str:
    """The kernel writes spaces and the like as octal numbers."""
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text


def _file_system(there: Path) -> Finding:
    try:
        kind = file_system_of(there, Path("/proc/self/mountinfo").read_text(errors="replace"))
    except OSError:
        kind = None
    figures: Figures = {"type": kind}
    if kind is None:
        return Finding(check="file system", says="its type is not known on this system", figures=figures)
    if kind in NETWORK:
        says = f"{kind}: the data would be on another machine"
        advice = "locks and fsync over a network are as good as the server; use a local disk"
        return Finding(check="file system", state="warning", says=says, advice=advice, figures=figures)
    if kind in MEMORY:
        says = f"{kind}: the data would be in memory"
        advice = "everything is lost when the machine restarts; use a folder on a disk"
        return Finding(check="file system", state="warning", says=says, advice=advice, figures=figures)
    if kind in LAYERS:
        says = f"{kind}: the data would be in the container itself"
        advice = "it is deleted with the container; mount a volume and put the data there"
        return Finding(check="file system", state="warning", says=says, advice=advice, figures=figures)
    return Finding(check="file system", says=kind, figures=figures)


def _room(there: Path, least_bytes: int) -> Finding:
    status = os.statvfs(there)
    free, total = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    figures: Figures = {"free_bytes": free, "total_bytes": total}
    says = f"{spell_bytes(free)} free of {spell_bytes(total)}"
    state: State = "ok"
    advice = ""
    if least_bytes and free < least_bytes:
        state = "problem"
        advice = "publishers would be blocked (waystation.disk.free.min.bytes): make room"
    elif free < LITTLE_BYTES or free < total * 0.03:
        state, advice = "warning", "make room, or bound topics with log.retention.bytes"
    elif status.f_files and status.f_favail < 10_000:
        state, advice = "warning", f"only {status.f_favail} more files can be created (inodes)"
    return Finding(check="free space", state=state, says=says, advice=advice, figures=figures)


# -- speed -------------------------------------------------------------------------------------------------------------


def _speed(there: Path) -> Iterator[Finding]:
    status = os.statvfs(there)
    if status.f_bavail * status.f_frsize < 4 * WRITE_BYTES:
        yield Finding(check="disk speed", state="warning", says="not measured: too little room", advice="make room")
        return
    try:
        with tempfile.TemporaryFile(dir=there, buffering=0) as file:
            yield _write_speed(file.fileno())
            yield _sync_time(file.fileno())
    except OSError as error:
        advice = "a broker could not write there either; look at the disk and the system's log"
        yield Finding(check="disk speed", state="problem", says=f"writing failed: {error.strerror}", advice=advice)


def _write_speed(file: int) -> Finding:
    """Random bytes, so that nothing on the way can make less of them."""
    chunk = os.urandom(CHUNK_BYTES)
    began = time.perf_counter()
    written = 0
    while written < WRITE_BYTES and time.perf_counter() - began < WRITE_S:
        written += os.pwrite(file, chunk, written)
    os.fdatasync(file)
    per_s = written / (time.perf_counter() - began)
    figures: Figures = {"bytes_per_s": round(per_s)}
    says = f"{spell_bytes(round(per_s))}/s written in sequence"
    if per_s < SLOW_WRITE:
        advice = "a busy broker writes more than this; use a faster disk"
        return Finding(check="disk speed", state="warning", says=says, advice=advice, figures=figures)
    return Finding(check="disk speed", says=says, figures=figures)


def _sync_time(file: int) -> Finding:
    times_ms: list[float] = []
    block = os.urandom(SYNC_BYTES)
    began = time.perf_counter()
    while len(times_ms) < SYNCS and time.perf_counter() - began < SYNC_S:
        os.pwrite(file, block, WRITE_BYTES + len(times_ms) * SYNC_BYTES)
        before = time.perf_counter()
        os.fsync(file)
        times_ms.append((time.perf_counter() - before) * 1000)
    return judge_sync(times_ms)


def judge_sync(times_ms: list[float]) -> Finding:
    """What times of fsync mean for somebody who waits for acks=all."""
    times_ms = sorted(times_ms)
    median, p99 = times_ms[len(times_ms) // 2], times_ms[min(len(times_ms) - 1, int(len(times_ms) * 0.99))]
    figures: Figures = {
        "median_ms": round(median, 3),
        "p99_ms": round(p99, 3),
        "count": len(times_ms),
    }
    says = f"median {median:.2f} ms, 99 % within {p99:.2f} ms ({len(times_ms)} writes)"
    state: State = "ok"
    advice = ""
    if median < UNREAL_SYNC_MS:
        state = "warning"
        advice = "too fast to be true: this disk does not keep what it says it has kept; a power cut loses messages"
    elif median > SLOW_SYNC_MS or p99 > SLOW_P99_MS:
        state = "warning"
        advice = (
            "every acks=all waits for it; use a faster disk, or waystation.flush=interval if losing a second is fine"
        )
    return Finding(check="fsync", state=state, says=says, advice=advice, figures=figures)
