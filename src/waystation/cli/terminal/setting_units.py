"""Settings in ms and bytes as people write and read them: `retention.ms=7d`, `604800000 (7d)`.

The unit is the last part of a setting's name. What is written with a unit becomes the plain number here: the broker,
its catalog and Kafka's tools see numbers only. Every command that takes or prints a setting uses this.
"""

from __future__ import annotations

from waystation.cli.terminal.output import spell_bytes
from waystation.cli.terminal.units import parse_size
from waystation.durations import parse_ms, spell_ms
from waystation.errors import Invalid, InvalidSetting

_LENGTH_MS = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def plain(name: str, text: str) -> str:
    """The value as the broker takes it: `604800000` for `7d`. What has no unit, or is no number, is left as it is."""
    unit = name.rpartition(".")[2]
    if _is_integer(text) or (unit not in _LENGTH_MS and unit != "bytes"):
        return text
    try:
        if unit == "bytes":
            return str(parse_size(text.strip()))
        count, rest = divmod(parse_ms(text), _LENGTH_MS[unit])
    except Invalid:
        likely = "bytes, or a size like 64KiB, 10MB, 1.5GiB" if unit == "bytes" else f"{unit}, or a time like 5m, 7d"
        raise InvalidSetting(f"{name}={text[:100]!r}: expected a number of {likely}") from None
    if rest:
        raise InvalidSetting(f"{name}={text[:100]!r} is no whole number of {unit}")
    return str(count)


def spelled(name: str, text: str) -> str:
    """The value with what it means: `604800000 (7d)`, `67108864 (64MiB)`. Others as they are."""
    from waystation.config import FOREVER  # parsers are built without it

    unit = name.rpartition(".")[2]
    if not _is_integer(text) or (unit not in _LENGTH_MS and unit != "bytes"):
        return text
    count = int(text)
    if count == FOREVER:
        return f"{text} (no limit)"
    meaning = _spell_size(count) if unit == "bytes" else _spell_length(count, unit)
    return f"{text} ({meaning})" if meaning else text


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _spell_length(count: int, unit: str) -> str:
    ms = count * _LENGTH_MS[unit]
    return spell_ms(ms) if ms >= 1_000 else ""


def _spell_size(count: int) -> str:
    """Exactly, as it may be written; roughly where no unit fits."""
    if count < 1_024:
        return ""
    exact = [f"{count // length}{unit}" for unit, length in _SIZES if count % length == 0]
    return exact[0] if exact else spell_bytes(count)
