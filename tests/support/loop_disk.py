"""A real ext4 file system in a file, whose power can be cut.

The cut is ext4's own: an ioctl shuts the file system down without writing its journal out, so that what was not
fsynced is lost, as by a power cut, and nothing that runs on it can write any more. Needs root and loop devices;
`why_not()` says what is missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN"""
WITHOUT_FLUSHING_THE_JOURNAL = 2
SIZE_BYTES = 64 * 1024 * 1024


def why_not() -> str | None:
    """Why no such file system can be made here; None if it can."""
    if os.geteuid() != 0:
        return "mounting a loop device needs root"
    missing = [tool for tool in ("mkfs.ext4", "mount", "umount") if shutil.which(tool) is None]
    if missing:
        return f"there is no {missing[0]}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            with LoopDisk(Path(folder)) as disk:
                disk.power_cut()
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", None) or ""
            return f"loop mounts are not allowed here: {output.strip() or error}"
    return None


class LoopDisk:
    """Mounted on `folder / "disk"` while it is entered."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.path = folder / "disk"

    def __enter__(self) -> LoopDisk:
        self.path.mkdir()
        with self._image.open("wb") as file:
            file.truncate(SIZE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self._mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.path.ismount(self.path):
            _run("umount", "--lazy", str(self.path))

    def power_cut(self) -> None:
        """Whoever uses the disk gets errors from here on."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_JOURNAL))
        finally:
            os.close(handle)

    def reboot(self) -> None:
        """After a power cut, when nobody has a file of it open any more."""
        _run("umount", str(self.path))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.path))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
