"""Ctrl-C and SIGTERM for commands that run until they are stopped."""

from __future__ import annotations

import signal


class Interrupt:
    """Ctrl-C or SIGTERM: noted once, so that an exchange with the broker is finished and everything is left in order.

    The second one is not waited for: whoever reads our output may have stopped reading.
    """

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
