"""`format`, `schema_file`, `descriptor`, `message` and `registry` of sources and sinks, read. Imports no Spark."""

from __future__ import annotations

import base64
from pathlib import Path

from waystation.errors import near_matches
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.table_reading import TableReader
from waystation.spark.values.value_formats import ValueFormat

FORMAT_WORDS = ("json", "avro", "protobuf")
_OWN = {"avro": ("schema_file",), "protobuf": ("descriptor", "message")}


def read_format(file: Path, table: TableReader) -> ValueFormat | None:
    """The format of the values, if it is one that has a schema of its own; mistakes are noted with their lines."""
    kind = table.word("format", FORMAT_WORDS)
    needed = _OWN.get(kind or "", ())
    for key in table.given(keys.FORMAT):
        if key == "format" or key in needed or (key == "registry" and needed):
            continue
        wanted = next((one for one, own in _OWN.items() if key in own), "avro")
        table.problem(key, f'{key} is for values in {wanted}: add format = "{wanted}"')
    if kind not in ("avro", "protobuf"):
        return None
    texts = {key: table.text(key, needed=True) for key in needed}
    data = _content(file, table, needed[0], texts[needed[0]])
    registry = table.text("registry")
    if registry is not None and not registry.startswith(("http://", "https://")):
        table.problem("registry", f"registry has to be an address, like http://127.0.0.1:8081, and is {registry!r}")
    if data is None or None in texts.values():
        return None
    if kind == "avro":
        return ValueFormat("avro", data.decode("utf-8", "replace"), registry=registry)
    return ValueFormat("protobuf", base64.b64encode(data).decode(), texts["message"] or "", registry)


def format_options(wanted: ValueFormat) -> dict[str, str]:
    """What a source of Spark is told of it."""
    options: dict[str, str] = {"valueFormat": wanted.kind}
    if wanted.kind == "avro":
        options["avroSchema"] = wanted.schema
    else:
        options |= {"protobufDescriptor": wanted.schema, "protobufMessage": wanted.message}
    return options | ({"schemaRegistry": wanted.registry} if wanted.registry is not None else {})


def _content(file: Path, table: TableReader, key: str, name: str | None) -> bytes | None:
    if name is None:
        return None
    place = file.parent / name
    try:
        return place.read_bytes()
    except OSError as error:
        near = near_matches(
            place.name, (other.name for other in place.parent.glob("*")) if place.parent.is_dir() else ()
        )
        table.problem(key, f"{place} cannot be read: {error.strerror}{near}")
        return None
