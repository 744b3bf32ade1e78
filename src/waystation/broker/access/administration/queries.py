"""What somebody asks for as the struct that it is read as; what is wrong is said in our words, the field first.

Pure; for the views of the broker, and for protocols that read requests into structs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from waystation.errors import Invalid, nearest_field

T = TypeVar("T")

LONGEST_NAME = 60
"""Of what a client calls a field, this much is shown and compared: it may be megabytes."""


def convert(value: Any, wanted: type[T], *, whole: str, strict: bool = True) -> T:
    """`msgspec.convert`, with its errors as ours. `whole`: what the value is called where no field of it is wrong."""
    try:
        return msgspec.convert(value, wanted, strict=strict)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at `$")
        field = where.rstrip("`").lstrip(".")
        missing = said.removeprefix("Object missing required field `")
        if missing != said:
            raise Invalid(f"{field}{'.' if field else ''}{missing.rstrip('`')}: is missing") from None
        raise Invalid(f"{field or whole}: {said}") from None


def unknown(name: str, kind: str, known: Iterable[str]) -> Invalid:
    """The error for a field, or what `kind` calls it, that there is not: with the nearest that there is."""
    shown = name[:LONGEST_NAME]
    return Invalid(f"{shown}: there is no such {kind}{nearest_field(shown, known)}")
