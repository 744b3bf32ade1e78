"""Opening a data folder: lock it, open its catalog, start a broker on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from waystation.broker.broker import LOCK_FILE, Broker
from waystation.catalog.sqlite import SqliteCatalog
from waystation.config import BrokerSettings
from waystation.errors import DataInUse, Invalid, InvalidSetting
from waystation.observe.tracing import Tracing
from waystation.world import World, real_world


async def open_broker(path: str, settings: BrokerSettings, world: World | None = None) -> Broker:
    """A started broker on the folder `path`, which is created if it is not there.

    DataInUse if another broker has it, NewerFormat if a newer version wrote it; then nothing was touched.
    """
    world = world or real_world()
    root = _lock(world, path)
    with ExitStack() as undo:
        undo.callback(world.disk.unlock, f"{root}/{LOCK_FILE}")
        catalog = SqliteCatalog(root, world.random)
        undo.callback(catalog.close)
        tracing = open_tracing(world, settings)
        if tracing is not None:
            undo.callback(tracing.close)
        broker = Broker(world, root, settings, catalog, tracing)
        await broker.start()
        broker.sampling.start()
        undo.pop_all()
    return broker


def open_tracing(world: World, settings: BrokerSettings) -> Tracing | None:
    """What `waystation.tracing` asks for. InvalidSetting if it is not installed."""
    if settings.text("waystation.tracing") == "off":
        return None
    try:
        from waystation.observe.otel import OtelSpans
    except ImportError as error:
        raise InvalidSetting(
            f"waystation.tracing=otlp: {error.name or error} is not installed; pip install 'waystation[otel]', or"
            " set it to off"
        ) from error
    return Tracing(world.clock, OtelSpans(world.clock))


@contextmanager
def locked_folder(world: World, path: str) -> Iterator[str]:
    """Keeps brokers off a data folder while somebody works on its files; gives its absolute path."""
    root = _lock(world, path)
    try:
        yield root
    finally:
        world.disk.unlock(f"{root}/{LOCK_FILE}")


def _lock(world: World, path: str) -> str:
    root = str(Path(path).absolute())
    try:
        world.disk.make_folder(root)
        holder = world.disk.lock(f"{root}/{LOCK_FILE}", str(os.getpid()).encode())
    except (FileExistsError, NotADirectoryError):
        file = next((each for each in (Path(root), *Path(root).parents) if each.is_file()), root)
        raise Invalid(f"{file} is a file: it cannot be, or have, a data folder; choose a folder") from None
    if holder is not None:
        raise DataInUse(
            f"{root} is in use by another broker (pid {holder.decode(errors='replace').strip() or 'unknown'});"
            " stop it first, or choose another folder with --data"
        )
    return root
