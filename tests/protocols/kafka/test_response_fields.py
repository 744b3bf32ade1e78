"""A handler gives a response's fields by name, and those that a version lacks are dropped: so no name may be a typo."""

from __future__ import annotations

import ast
import dataclasses
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType

import waystation.protocols.kafka

FOLDER = Path(waystation.protocols.kafka.__file__).parent
SOURCES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py"))


@cache
def response_classes() -> dict[str, set[str]]:
    """Every response class of every API and version, with all the fields that any version has."""
    found: dict[str, set[str]] = {}
    for versions in schema_name_map.values():
        for kinds in versions.values():
            path = kinds.get(EntityType.response)
            if path is None:
                continue
            for name, value in vars(import_module(path.partition(":")[0])).items():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    entity: Any = value
                    found.setdefault(name, set()).update(field.name for field in dataclasses.fields(entity))
    return found


def made(source: str) -> list[tuple[int, str, list[str]]]:
    """(line, class, fields) of every `make("Class", field=…)`."""
    calls = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        first = node.args[0]
        if name == "make" and isinstance(first, ast.Constant) and isinstance(first.value, str):
            calls.append((node.lineno, first.value, [keyword.arg for keyword in node.keywords if keyword.arg]))
    return calls


@pytest.mark.parametrize("source", SOURCES)
def test_every_field_that_a_handler_gives_exists_in_some_version(source: str) -> None:
    classes = response_classes()
    wrong = [
        f"{source}:{line}: {cls}.{field}" if cls in classes else f"{source}:{line}: no class {cls}"
        for line, cls, fields in made((FOLDER / source).read_text())
        for field in (fields if cls in classes else [""])
        if cls not in classes or field not in classes[cls]
    ]
    assert wrong == []
