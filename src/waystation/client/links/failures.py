"""From the broker's words to our errors: a `Failure` names a class of `errors.py`, and that is what is raised."""

from __future__ import annotations

from functools import cache

from waystation import errors
from waystation.errors import WaystationError


def failure(name: str, text: str) -> WaystationError:
    """The error that the broker meant. A class that this version does not know is the base of all."""
    return _class_of(name)(text)


@cache
def _class_of(name: str) -> type[WaystationError]:
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, WaystationError):
        return found
    return WaystationError
