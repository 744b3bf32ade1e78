"""Schedules of pipelines: when they come, and what is said of mistakes. No Spark is needed for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Invalid
from waystation.spark.pipelines.file.cron import FIELDS, parse

pytestmark = pytest.mark.quick


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(cron: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    schedule, when, found = parse(cron, zone), at(start), []
    for _ in range(count):
        when = schedule.next_after(when)
        found.append(when.strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("cron", "start", "wanted"),
    [
        ("0 3 * * *", "2026-03-01 02:59:59", ["2026-03-01 03:00", "2026-03-02 03:00"]),
        ("0 3 * * *", "2026-03-01 03:00", ["2026-03-02 03:00"]),
        ("*/20 * * * *", "2026-03-01 23:30", ["2026-03-01 23:40", "2026-03-02 00:00", "2026-03-02 00:20"]),
        ("5/25 1 * * *", "2026-03-01", ["2026-03-01 01:05", "2026-03-01 01:30", "2026-03-01 01:55"]),
        ("0 9-17/4 * * mon-fri", "2026-03-06 13:00", ["2026-03-06 17:00", "2026-03-09 09:00"]),  # a Friday
        ("0 0 * * SUN", "2026-03-01", ["2026-03-08 00:00"]),
        ("0 0 * * 7", "2026-03-01", ["2026-03-08 00:00"]),
        ("0 0 * * 5-7", "2026-03-01", ["2026-03-06 00:00", "2026-03-07 00:00", "2026-03-08 00:00"]),
        ("0 0 31 * *", "2026-03-01", ["2026-03-31 00:00", "2026-05-31 00:00"]),
        ("0 0 29 2 *", "2026-03-01", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        ("0 0 29 feb *", "2096-03-01", ["2104-02-29 00:00"]),  # 2100 has none
        ("0 0 1,15 * *", "2026-03-01", ["2026-03-15 00:00", "2026-04-01 00:00"]),
        ("0 0 13 * fri", "2026-03-01", ["2026-03-06 00:00", "2026-03-13 00:00", "2026-03-20 00:00"]),  # either day
        ("0 0 13 jan,jun-aug *", "2026-03-01", ["2026-06-13 00:00", "2026-07-13 00:00"]),
        ("0 0 */2 * mon", "2026-03-01", ["2026-03-09 00:00"]),  # `*/2` does not count as restricted: both have to hold
        ("@daily", "2026-12-31 12:00", ["2027-01-01 00:00"]),
        ("  @Hourly ", "2026-12-31 12:30", ["2026-12-31 13:00"]),
    ],
)
def test_a_schedule_comes_when_cron_says(cron: str, start: str, wanted: list[str]) -> None:
    assert times(cron, start, len(wanted)) == wanted


def test_a_time_zone_moves_it() -> None:
    assert times("0 3 * * *", "2026-01-15", 1, "Europe/Berlin") == ["2026-01-15 02:00"]
    assert times("0 3 * * *", "2026-07-15", 1, "Europe/Berlin") == ["2026-07-15 01:00"]
    assert times("0 0 * * mon", "2026-03-01 00:00", 1, "Asia/Tokyo") == ["2026-03-01 15:00"]  # Monday there


def test_where_the_clock_is_put_forward_a_daily_run_is_not_lost() -> None:
    """Berlin has no 02:30 on 29 March 2026."""
    wanted = ["2026-03-28 01:30", "2026-03-29 01:30", "2026-03-30 00:30"]
    assert times("30 2 * * *", "2026-03-28", 3, "Europe/Berlin") == wanted
    assert times("30 * * * *", "2026-03-29", 3, "Europe/Berlin") == [
        "2026-03-29 00:30",
        "2026-03-29 01:30",
        "2026-03-29 02:30",
    ]


def test_where_the_clock_is_put_back_a_daily_run_comes_once_and_an_hourly_one_each_hour() -> None:
    """Berlin has 02:30 twice on 25 October 2026."""
    assert times("30 2 * * *", "2026-10-25", 2, "Europe/Berlin") == ["2026-10-25 00:30", "2026-10-26 01:30"]
    assert times("30 * * * *", "2026-10-25", 3, "Europe/Berlin") == [
        "2026-10-25 00:30",
        "2026-10-25 01:30",
        "2026-10-25 02:30",
    ]


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("", "five fields"),
        ("0 3 * *", "five fields"),
        ("0 0 3 * * *", "five fields"),
        ("* " * 200, "five fields"),
        ("@noon", "@daily"),
        ("60 3 * * *", "the minute '60' is wrong: it has to be 0 to 59"),
        ("0 24 * * *", "the hour '24'"),
        ("0 3 0 * *", "the day of the month '0'"),
        ("0 3 * 13 *", "the month '13' is wrong: it has to be 1 to 12, or jan to dec"),
        ("0 3 * * funday", "the day of the week 'funday' is wrong: it has to be 0 to 7, or sun to sat"),
        ("0 3 * * mon-", "the day of the week 'mon-'"),
        ("*/0 3 * * *", "a step is a number from 1"),
        ("*/x 3 * * *", "a step is a number from 1"),
        ("*-5 3 * * *", "the minute '*-5'"),
        ("1,,2 3 * * *", "the minute '1,,2'"),
        ("-1 3 * * *", "the minute '-1'"),
        ("0 17-9 * * *", "the range '17-9' ends before it begins"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,jun *", "never comes"),
    ],
)
def test_a_mistake_names_its_field(cron: str, said: str) -> None:
    with pytest.raises(Invalid) as error:
        parse(cron)
    assert said in str(error.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime"])
def test_an_unknown_time_zone_is_named(zone: str) -> None:
    with pytest.raises(Invalid, match="no time zone"):
        parse("0 3 * * *", zone)


def test_times_that_passed_are_counted() -> None:
    schedule = parse("0 * * * *")
    assert schedule.count(at("2026-03-01 00:00"), at("2026-03-01 00:59")) == 0
    assert schedule.count(at("2026-03-01 00:00"), at("2026-03-01 03:00")) == 3
    assert schedule.count(at("2026-03-01 00:00"), at("2036-03-01 00:00"), most=50) == 50


@given(
    st.integers(0, 59),
    st.integers(1, 23),
    st.integers(1, 28),
    st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1)),
)
def test_the_next_time_is_the_first_that_fits(minute: int, step: int, day: int, start: datetime) -> None:
    schedule = parse(f"{minute} */{step} {day} * *")
    found = schedule.next_after(start.replace(tzinfo=UTC))
    assert found > start.replace(tzinfo=UTC)
    assert (found.minute, found.hour % step, found.day, found.second) == (minute, 0, day, 0)
    before = found - timedelta(minutes=1)
    assert before < start.replace(tzinfo=UTC) or schedule.next_after(before) == found


def test_all_fields_are_there() -> None:
    assert [field.name for field in FIELDS] == ["minute", "hour", "day of the month", "month", "day of the week"]
