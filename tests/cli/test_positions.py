"""Where to begin: the ways to say it."""

from __future__ import annotations

from datetime import datetime

import pytest

from waystation.errors import Invalid
from waystation.topics.partitions.start_position import StartPosition, parse_start

NOW_MS = 1_772_366_400_000


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", StartPosition("earliest")),
        ("latest", StartPosition("latest")),
        ("0", StartPosition("offset", 0)),
        ("1234", StartPosition("offset", 1234)),
        ("-10", StartPosition("last", 10)),
        ("@1772366400123", StartPosition("time", 1772366400123)),
        ("90s", StartPosition("time", NOW_MS - 90_000)),
        ("15m", StartPosition("time", NOW_MS - 900_000)),
        ("2h", StartPosition("time", NOW_MS - 7_200_000)),
        ("7d", StartPosition("time", NOW_MS - 604_800_000)),
        ("2026-03-01T12:00:00Z", StartPosition("time", 1_772_366_400_000)),
        ("2026-03-01T13:00:00.5+01:00", StartPosition("time", 1_772_366_400_500)),
    ],
)
def test_a_start_is_understood(text: str, start: StartPosition) -> None:
    assert parse_start(text, NOW_MS) == start


def test_a_time_without_a_zone_is_local() -> None:
    local_ms = round(datetime(2026, 3, 1, 12).timestamp() * 1000)
    assert parse_start("2026-03-01T12:00", NOW_MS) == StartPosition("time", local_ms)


@pytest.mark.parametrize("text", ["", "sometime", "-", "--5", "15x", "@now", "2026-13-01", "1.5"])
def test_a_start_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="earliest, latest"):
        parse_start(text, NOW_MS)
