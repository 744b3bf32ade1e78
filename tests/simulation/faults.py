"""Faults that a test asks a simulated disk for: an error from chosen operations, so many times.

A fault names the kind of operation (`read`, `write`, `sync`, `create`, `rename`, …), part of the path, how many
matching operations to let pass first and how many to fail. Only `disk.py` and tests use this.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass


class PowerCut(BaseException):
    """The power is gone: no operation returns any more. No broker code may catch this, hence BaseException."""


@dataclass(slots=True)
class Fault:
    """Fails `times` operations of a kind after letting `after` of them pass."""

    kind: str
    path_part: str = ""
    error: int = errno.EIO
    after: int = 0
    times: int = 1

    def strikes(self, kind: str, path: str) -> bool:
        if kind != self.kind or self.path_part not in path or self.times == 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True
