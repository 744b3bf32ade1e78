"""Where to begin in a topic, as people say it (`topics/start_position.py`), and the offsets that this means in each
partition of a broker elsewhere. Used by `consume --from` and `groups reset --to`.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.client.topics import EARLIEST, LATEST, NO_OFFSET, Found, Place, find_offsets
from waystation.client.wire import Connection
from waystation.topics.start_position import Start, parse_start

__all__ = ["Start", "parse_start", "resolve"]


def resolve(connection: Connection, start: Start, places: Sequence[Place]) -> dict[Place, int]:
    """The offset in each partition."""
    if not places:
        return {}
    if start.kind == "earliest":
        return _offsets(_find(connection, places, EARLIEST))
    ends = _offsets(_find(connection, places, LATEST))
    if start.kind == "latest":
        return ends
    if start.kind == "time":
        found = _offsets(_find(connection, places, start.value))
        return {place: ends[place] if offset == NO_OFFSET else offset for place, offset in found.items()}
    begins = _offsets(_find(connection, places, EARLIEST))
    wanted = {place: start.value if start.kind == "offset" else ends[place] - start.value for place in places}
    return {place: min(max(offset, begins[place]), ends[place]) for place, offset in wanted.items()}


def _find(connection: Connection, places: Sequence[Place], timestamp: int) -> dict[Place, Found]:
    return find_offsets(connection, dict.fromkeys(places, timestamp))


def _offsets(found: dict[Place, Found]) -> dict[Place, int]:
    return {place: one.offset for place, one in found.items()}
