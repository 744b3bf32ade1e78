"""A broker process whose disk can be made short of room: a fault that a test cannot make on the machine's own disk.

Free room is what the file named by `WAYSTATION_TEST_FREE_BYTES` says, while it is there; else what the disk says. All
else is the real command line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.server import ROOT, Server
from waystation.cli.main import main
from waystation.world.disk import OsDisk

VARIABLE = "WAYSTATION_TEST_FREE_BYTES"


class ShortDiskServer(Server):
    """A `Server` with a disk that has as much free room as the test says."""

    module = "tests.support.short_disk"

    def set_free_bytes(self, free: int | None) -> None:
        """From now on the disk has this much free room; None: what it really has."""
        if free is None:
            self._file().unlink()
            return
        new = self._file().with_suffix(".new")
        new.write_text(str(free))
        new.rename(self._file())

    def _file(self) -> Path:
        return self.folder / "free-bytes"

    def _environment(self) -> dict[str, str]:
        inherited = super()._environment()
        path = os.pathsep.join((inherited["PYTHONPATH"], str(ROOT)))  # this module is among the tests
        return {**inherited, "PYTHONPATH": path, VARIABLE: str(self._file())}


_really_free = OsDisk.free_bytes


def _free_bytes(disk: OsDisk, path: str) -> int:
    try:
        return int(Path(os.environ[VARIABLE]).read_text())
    except FileNotFoundError:
        return _really_free(disk, path)


if __name__ == "__main__":
    OsDisk.free_bytes = _free_bytes  # type: ignore[method-assign,assignment]
    sys.exit(main())
