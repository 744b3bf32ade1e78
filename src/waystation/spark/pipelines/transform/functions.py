"""The Python functions that a pipeline file names: `FILE.py:NAME` beside it, or `MODULE:NAME` that is installed.

Code of files beside the pipeline travels to Spark's workers by value, since they cannot import it: nothing has to be
installed on a cluster for a function of ten lines. Used by `frames.py`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from waystation.errors import Invalid, NotFound, near_matches


def load_reference(folder: Path, reference: str) -> Any:
    """What a reference means; Invalid or NotFound with one sentence."""
    place, _, name = reference.rpartition(":")
    module = _load(folder, place)
    try:
        return getattr(module, name)
    except AttributeError:
        near = near_matches(name, (other for other in vars(module) if not other.startswith("_")))
        raise NotFound(f"{place} has no {name!r}{near}") from None


def _load(folder: Path, place: str) -> ModuleType:
    file = folder / (place if place.endswith(".py") else f"{place.replace('.', '/')}.py")
    if file.exists():
        return _load_file(file)
    if place.endswith(".py"):
        near = near_matches(place, (other.name for other in folder.glob("*.py")))
        raise NotFound(f"there is no file {file}{near}")
    try:
        return importlib.import_module(place)
    except ImportError as error:
        raise NotFound(f"there is no file {file}, and no module {place!r} can be imported ({error})") from None


def _load_file(file: Path) -> ModuleType:
    file = file.resolve()
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    name = f"pipeline_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # it may import its neighbours
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise Invalid(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = set(sys.modules)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise Invalid(f"{_where(file, error)}: {type(error).__name__}: {error}") from error
    _travel_by_value(module)
    for other in set(sys.modules) - before:
        origin = getattr(sys.modules[other], "__file__", None)
        if origin is not None and Path(origin).resolve().parent == file.parent:
            _travel_by_value(sys.modules[other])
    return module


def _where(file: Path, error: Exception) -> str:
    """The line of the file that the error came through."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _travel_by_value(module: ModuleType) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
