"""Asking a broker that may be away: again and again, with a word in the log, until it answers or the time is over.

What is asked may be done twice. The one loop for everything in this package that waits for a broker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from waystation.errors import ConnectionLost, NotAllowed, NotAuthenticated
from waystation.observe.events import event_logger
from waystation.spark.links.servers import Servers

T = TypeVar("T")

log = event_logger("waystation.spark")

_REFUSAL = re.compile(r"may not (\S+) (topic|queue|group|transactional-id) '(.*?)'")
"""How the broker spells what somebody may not do."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
SAY_AGAIN_S = 10.0
"""How often a wait for the broker is mentioned in the log."""


def patiently(
    ask: Callable[[], T],
    servers: Servers,
    retry_s: float,
    *,
    away: tuple[type[Exception], ...] = (OSError,),
    forget: Callable[[], None] = lambda: None,
    quiet_s: float = 0.0,
) -> T:
    """Does it again while it raises one of `away`, with a call of `forget` in between; ConnectionLost when the time is
    over. A wait that is shorter than `quiet_s` is not mentioned."""
    began = time.monotonic()
    said, pause = -SAY_AGAIN_S, FIRST_PAUSE_S
    name = str(servers)
    while True:
        try:
            result = ask()
        except NotAllowed as error:
            raise advised(error) from None
        except away as error:
            forget()
            elapsed_s = time.monotonic() - began
            trouble = f"the broker at {name} {_trouble(error)}"
            if elapsed_s >= retry_s:
                raise ConnectionLost(
                    f"{trouble}, and {retry_s:.0f} s of trying are over; start it, or check the option servers (the"
                    " option retryTimeout says how long to try)"
                ) from None
            if elapsed_s >= quiet_s and elapsed_s - said >= SAY_AGAIN_S:
                said = elapsed_s
                log.warning(
                    "broker.away",
                    "{trouble}; trying again for {left_s:.0f} s",
                    server=name,
                    trouble=trouble,
                    left_s=retry_s - elapsed_s,
                )
            time.sleep(min(pause, max(0.0, retry_s - elapsed_s)))
            pause = min(pause * 2, LONGEST_PAUSE_S)
            continue
        if said >= 0:
            log.warning(
                "broker.back",
                "the broker at {server} answers again after {after_s:.1f} s",
                server=name,
                after_s=time.monotonic() - began,
            )
        return result


def advised(error: NotAllowed) -> NotAllowed:
    """A refusal of the broker's with the command that would allow it, where it says what was refused."""
    found = _REFUSAL.search(str(error))
    if found is None or isinstance(error, NotAuthenticated) or "waystation acls" in str(error):
        return error
    operation, resource, name = found.groups()
    how = f"--{resource} spark/ --prefix" if resource == "transactional-id" else f"--{resource} {name}"
    return NotAllowed(
        f"{error}; an administrator allows it: `waystation acls add --user NAME --allow {operation} {how}`",
        error.resource,
    )


def _trouble(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    if isinstance(error, OSError | ConnectionLost):
        return f"cannot be reached ({reason})"
    return f"cannot answer now ({reason})"
