"""Series of puts or publishes that belong together: once one of a series is refused, so are those behind it.

Who sends many messages in several commands without waiting for the answers leaves no hole in them. A session has one of
these; a client numbers its series as it likes, puts and publishes together.
"""

from __future__ import annotations

from copy import copy

from waystation.errors import WaystationError

MAX_REFUSED_SERIES = 1_000
"""Series of one session that are remembered as refused, the latest: a client goes on with one only until it is told."""


class RefusedSeries:
    """By number; 0 is no series."""

    __slots__ = ("_errors",)

    def __init__(self) -> None:
        self._errors: dict[int, WaystationError] = {}

    def __contains__(self, series: int) -> bool:
        return series in self._errors

    def __len__(self) -> int:
        return len(self._errors)

    def check(self, series: int) -> None:
        """Raises what an earlier one of the same series was refused for."""
        refused = self._errors.get(series)
        if refused is not None:
            raise copy(refused)  # what is raised holds on to those whom it goes through, and their messages

    def note(self, series: int, error: WaystationError) -> None:
        """One of the series was refused."""
        if series:
            self._errors.setdefault(series, copy(error))
            if len(self._errors) > MAX_REFUSED_SERIES:
                del self._errors[next(iter(self._errors))]
