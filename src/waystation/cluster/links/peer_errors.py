"""What another node has refused, raised here as what it was there: a client hears the same wherever it asks."""

from __future__ import annotations

from types import ModuleType

from waystation import errors
from waystation.cluster.links.peer import PeerRefusal
from waystation.errors import Unavailable, WaystationError
from waystation.groups.machines import errors as group_errors
from waystation.share.machines import errors as share_errors
from waystation.transactions import errors as transaction_errors

_MODULES: tuple[ModuleType, ...] = (errors, group_errors, share_errors, transaction_errors)

KNOWN: dict[str, type[WaystationError]] = {
    name: value
    for module in _MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, WaystationError)
}
"""By name."""


def error_named(name: str, text: str) -> WaystationError:
    """One that this version does not know says that it was not done."""
    return KNOWN.get(name, Unavailable)(text)


def error_of(refused: PeerRefusal) -> WaystationError:
    return error_named(refused.error, refused.text)
