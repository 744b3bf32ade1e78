"""CRC-32C, the checksum of Kafka's batches and of files of our own: `crc32c(data)`, by the package `crc32c`.

The package asks for its own version when it is imported, and so loads `importlib.metadata`, `email`, `zipfile` and 35
other modules: 17 ms and 1.6 MiB of each broker. Here its compiled module is loaded without the package around it. It is
the same function; a package of another layout is imported as usual.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c as crc32c


def _load() -> Any:
    package = find_spec("crc32c")
    inner = None if package is None else PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if inner is None or inner.loader is None:
        from crc32c import crc32c as packaged

        return packaged
    module = module_from_spec(inner)
    inner.loader.exec_module(module)
    return module.crc32c


if not TYPE_CHECKING:
    crc32c = _load()
