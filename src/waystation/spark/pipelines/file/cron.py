"""When a schedule comes next: cron's five fields, in a time zone. Pure; imports no Spark.

    minute (0-59)  hour (0-23)  day of the month (1-31)  month (1-12 or jan-dec)  day of the week (0-7 or sun-sat)

A field is `*`, a value, a range `1-5`, a step `*/15` or `8-18/2`, or a list of those. As with cron itself, a day is due
when either of the two day fields has it, if both are restricted; and where clocks change, a schedule for certain hours
runs once a day (a time that is left out is made up for an hour later, of one that comes twice the first counts), while
one for every hour keeps its pace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from waystation.errors import Invalid

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LONGEST = 200
FARTHEST_DAYS = 366 * 9
"""A 29 February may be eight years away; what does not come until then never does."""
_DAY = timedelta(days=1)
_PART = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\w+))?")


@dataclass(frozen=True, slots=True)
class CronField:
    """One of the five."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    names_from: int = 0

    def read(self, text: str) -> frozenset[int]:
        """The values that it has; Invalid says which part is wrong."""
        return frozenset(value for part in text.split(",") for value in self._part(part, text))

    def _part(self, part: str, text: str) -> Iterator[int]:
        found = _PART.fullmatch(part)
        if found is None or (found[1] == "*" and found[2] is not None):
            raise self._wrong(text, f"write a value, `*`, a range `{self.first}-{self.last}` or a step `*/2`")
        start, end, step_text = found.groups()
        step = 1
        if step_text is not None:
            if not step_text.isdecimal() or not 1 <= int(step_text) <= self.last:
                raise self._wrong(text, f"a step is a number from 1 to {self.last}, and {step_text!r} is not")
            step = int(step_text)
        if start == "*":
            first, last = self.first, self.last
        else:
            first = self._value(start, text)
            last = self._value(end, text) if end is not None else (self.last if step_text is not None else first)
        if first > last:
            raise self._wrong(text, f"the range {part!r} ends before it begins")
        yield from range(first, last + 1, step)

    def _value(self, word: str, text: str) -> int:
        if word.lower() in self.names:
            return self.names.index(word.lower()) + self.names_from
        if not word.isdecimal() or len(word) > 4 or not self.first <= int(word) <= self.last:
            also = f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
            raise self._wrong(text, f"it has to be {self.first} to {self.last}{also}, and {word!r} is not")
        return int(word)

    def _wrong(self, text: str, why: str) -> Invalid:
        return Invalid(f"the {self.name} {text!r} is wrong: {why}")


FIELDS = (
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    CronField("day of the month", 1, 31),
    CronField("month", 1, 12, MONTHS, 1),
    CronField("day of the week", 0, 7, DAYS),
)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The times of a cron expression. Made by `parse`."""

    text: str
    zone: ZoneInfo
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def __str__(self) -> str:
        return self.text if self.zone.key == "UTC" else f"{self.text} ({self.zone.key})"

    def next_after(self, when: datetime) -> datetime:
        """The first time later than `when`, in UTC."""
        found = self._find(when)
        if found is None:  # `parse` has seen one
            raise Invalid(f"the schedule {self.text!r} has no more times")
        return found

    def count(self, after: datetime, until: datetime, most: int = 10_000) -> int:
        """How many times there are after the one moment, up to and with the other; at most `most`."""
        found = 0
        while found < most and (after := self.next_after(after)) <= until:
            found += 1
        return found

    def _find(self, when: datetime) -> datetime | None:
        day = when.astimezone(self.zone).date()
        for _ in range(FARTHEST_DAYS):
            if self._has(day):
                due = min((at for at in self._times(day) if at > when), default=None)
                if due is not None:
                    return due
            day += _DAY
        return None

    def _has(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (by_month or by_week) if self.either_day else (by_month and by_week)

    def _times(self, day: date) -> Iterator[datetime]:
        every_hour = len(self.hours) == 24
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime.combine(day, time(hour, minute), self.zone)
                at = local.astimezone(UTC)
                if every_hour and at.astimezone(self.zone).replace(fold=0) != local:
                    continue  # the clock leaves it out
                yield at
                if every_hour:
                    yield local.replace(fold=1).astimezone(UTC)  # the same, but where the clock is put back


def parse(text: str, zone: str = "UTC") -> CronSchedule:
    """Invalid names the field that is wrong."""
    found = SHORTHANDS.get(text.strip().lower(), text.strip())
    if found.startswith("@"):
        raise Invalid(f"{text[:40]!r} is no schedule: write five fields, or one of {', '.join(SHORTHANDS)}")
    words = found.split() if len(found) <= LONGEST else []
    if len(words) != len(FIELDS):
        names = ", ".join(field.name for field in FIELDS)
        raise Invalid(f"{text[:40]!r} is no schedule: cron has five fields ({names}), for instance '0 3 * * *'")
    minutes, hours, days, months, weekdays = (field.read(word) for field, word in zip(FIELDS, words, strict=True))
    made = CronSchedule(
        text=text.strip(),
        zone=_zone(zone),
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        either_day=not words[2].startswith("*") and not words[4].startswith("*"),
    )
    if made._find(datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise Invalid(f"the schedule {text[:40]!r} never comes: no month of it has day {words[2]}")
    return made


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(f"there is no time zone {name[:40]!r} here: write one like UTC or Europe/Berlin") from None
