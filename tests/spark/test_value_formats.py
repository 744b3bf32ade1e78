"""Values in Avro and Protobuf: read and written by Spark and by pipelines, as other clients of those formats do."""

from __future__ import annotations

import base64
import datetime
import io
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
pytest.importorskip("fastavro", reason="the extra `avro` is not installed")
pytest.importorskip("google.protobuf", reason="the extra `protobuf` is not installed")

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

import waystation
from tests.spark.pipeline_kit import START, Kit
from tests.spark.topic_reading import read_topic
from tests.support.names import unique
from tests.support.server import Server
from waystation.errors import Invalid, NotFound
from waystation.spark.pipelines.checking import check_pipeline
from waystation.spark.values.value_formats import Malformed, ValueFormat, codec_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}]}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "paid", "type": ["null", "boolean"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "weight", "type": ["int", "long"]},
    ],
}
VALUE = {
    "id": 7,
    "paid": True,
    "state": "DONE",
    "before": None,
    "at": START,
    "price": Decimal("12.50"),
    "lines": [{"sku": "a", "n": 2}],
    "tags": {"k": "v"},
    "uid": "9f1c1f9e-0000-4000-8000-000000000000",
    "weight": 3,
}


def avro(value: dict[str, Any], schema: dict[str, Any] = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def descriptor() -> bytes:
    """What `protoc --include_imports --descriptor_set_out` writes for a file of two messages."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kinds = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "GOOD")):
        kinds.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    total = file.message_type.add(name="Total")
    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    total.field.add(name="id", number=1, type=field.TYPE_INT64, label=one)
    total.field.add(name="amount", number=2, type=field.TYPE_DOUBLE, label=one)
    total.field.add(name="kind", number=3, type=field.TYPE_ENUM, type_name=".shop.Kind", label=one)
    total.field.add(name="at", number=4, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=one)
    total.field.add(name="lines", number=5, type=field.TYPE_MESSAGE, type_name=".shop.Line", label=many)
    total.field.add(name="big", number=6, type=field.TYPE_UINT64, label=one)
    total.field.add(name="best", number=7, type=field.TYPE_MESSAGE, type_name=".shop.Line", label=one)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString()


def total_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Total"))


# -- codecs ------------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_avro_is_decoded_and_encoded_with_all_its_types() -> None:
    codec = codec_of(ValueFormat("avro", json.dumps(ORDER)))
    assert codec.decode(avro(VALUE)) == VALUE
    assert codec.encode(VALUE) == avro(VALUE)
    for bad in (avro(VALUE)[:-1], avro(VALUE) + b"\0", b"", b"\xff" * 20):
        with pytest.raises(Malformed):
            codec.decode(bad)
    with pytest.raises(Invalid, match="cannot be written as Avro"):
        codec.encode({**VALUE, "id": None})


@pytest.mark.quick
@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("{", "is not JSON"),
        ('{"type": "recrd"}', "is not one"),
        ('"string"', "has to be a record"),
        (json.dumps({**LINE, "fields": [{"name": "x", "type": ["int", "string"]}]}), "'x' is a union of several"),
        (json.dumps({**LINE, "fields": [{"name": "x", "type": ["null", "Line"]}]}), "'x' contains itself"),
    ],
)
def test_an_avro_schema_that_has_no_columns_is_refused(schema: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        codec_of(ValueFormat("avro", schema))


@pytest.mark.quick
def test_protobuf_is_decoded_and_encoded_with_all_its_types() -> None:
    wanted = ValueFormat("protobuf", base64.b64encode(descriptor()).decode(), "shop.Total")
    codec, kind = codec_of(wanted), total_class()
    message = kind(id=5, amount=1.5, kind=1, big=2**64 - 1)
    message.at.FromDatetime(START)
    message.lines.add(sku="a")
    fields = {
        "id": 5,
        "amount": 1.5,
        "kind": "GOOD",
        "at": START,
        "lines": [{"sku": "a"}],
        "big": Decimal(2**64 - 1),
        "best": None,
    }
    assert codec.decode(message.SerializeToString()) == fields
    assert codec.encode(fields) == message.SerializeToString()
    framed = codec_of(ValueFormat("protobuf", wanted.schema, "shop.Total", "http://127.0.0.1:1"))
    for indexes in (b"\0", b"\2\2"):
        assert framed.decode(b"\0\0\0\0\1" + indexes + message.SerializeToString()) == fields
    with pytest.raises(Malformed):
        codec.decode(b"\xff\xff\xff")
    with pytest.raises(Invalid, match=r"has no message 'shop.Totl'; did you mean 'shop.Total'"):
        codec_of(ValueFormat("protobuf", wanted.schema, "shop.Totl"))
    with pytest.raises(Invalid, match="protoc --include_imports"):
        codec_of(ValueFormat("protobuf", base64.b64encode(b"nothing").decode(), "shop.Total"))


# -- pipelines ---------------------------------------------------------------------------------------------------------


OLD = {**ORDER, "fields": [one for one in ORDER["fields"] if one["name"] != "paid"]}
"""An earlier version of the schema."""


@pytest.fixture
def registry() -> Iterator[str]:
    """A schema registry that has two versions, and says so as Confluent's does."""
    schemas = {"/schemas/ids/1": OLD, "/schemas/ids/2": ORDER}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = schemas.get(self.path)
            body = json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403}).encode()
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def framed(number: int, value: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + value


PIPELINE = """servers = "{server}"
[source.orders]
topics = "{orders}"
format = "avro"
schema_file = "order.avsc"
registry = "{registry}"
[step.totals]
from = "orders"
filter = "value IS NOT NULL"
select = [
  "value.id", "CAST(value.price AS DOUBLE) * value.lines[0].n AS amount", "value.at",
  "IF(value.paid, 'GOOD', 'UNKNOWN') AS kind", "transform(value.lines, l -> named_struct('sku', l.sku)) AS lines"
]
[step.bad]
from = "orders"
filter = "value IS NULL"
select = ["_corrupt AS value"]
[sink.totals]
from = "totals"
topic = "{totals}"
key = "id"
format = "protobuf"
descriptor = "shop.desc"
message = "shop.Total"
[sink.bad]
from = "bad"
topic = "{bad}"
[sink.again]
from = "totals"
topic = "{again}"
format = "avro"
schema_file = "total.avsc"
"""


def test_a_pipeline_reads_avro_of_a_registry_and_writes_protobuf_and_avro(
    kit: Kit, server: Server, mq: waystation.Client, registry: str
) -> None:
    names = {name: unique(name) for name in ("orders", "totals", "bad", "again")}
    for topic in names.values():
        mq.create_topic(topic, 1)
    (kit.folder / "order.avsc").write_text(json.dumps(ORDER))
    (kit.folder / "shop.desc").write_bytes(descriptor())
    total = {
        "type": "record",
        "name": "Total",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "amount", "type": ["null", "float"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "kind", "type": "string"},
            {"name": "lines", "type": {"type": "array", "items": {**LINE, "fields": LINE["fields"][:1]}}},
            {"name": "note", "type": "string", "default": "-"},
        ],
    }
    (kit.folder / "total.avsc").write_text(json.dumps(total))
    text = PIPELINE.format(server=server.bootstrap, registry=registry, **names)
    assert check_pipeline(kit.write(text)) == []
    old = {name: value for name, value in VALUE.items() if name != "paid"}
    mq.publish(names["orders"], framed(2, avro(VALUE)))
    mq.publish(names["orders"], framed(1, avro({**old, "id": 8}, OLD)))
    mq.publish(names["orders"], avro(VALUE))
    mq.publish(names["orders"], framed(2, b"nonsense"))
    kit.run(text, progress=False)
    found = {int(key): total_class().FromString(value) for key, value in read_topic(server, names["totals"], 1)}
    assert sorted(found) == [7, 8]
    assert (found[7].amount, found[7].kind, found[8].kind) == (25.0, 1, 0)
    assert found[7].at.ToDatetime(datetime.UTC) == START
    assert [line.sku for line in found[7].lines] == ["a"]
    assert sorted(value for _, value in read_topic(server, names["bad"], 1)) == sorted(
        [avro(VALUE), framed(2, b"nonsense")]
    ), "what is malformed is in _corrupt, as with JSON"
    values = [value for _, value in read_topic(server, names["again"], 1)]
    again: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value), total) for value in values]
    assert {one["id"]: (one["at"], one["note"]) for one in again} == {7: (START, "-"), 8: (START, "-")}

    mq.publish(names["orders"], framed(9, avro(VALUE)))
    with pytest.raises(waystation.errors.WaystationError, match=f"{registry} has no schema 9"):
        kit.run(text)


def test_mistakes_in_formats_are_told_with_their_lines(
    kit: Kit, server: Server, mq: waystation.Client, spark: SparkSession
) -> None:
    topic = unique("orders")
    mq.create_topic(topic, 1)
    mq.publish(topic, framed(1, avro(VALUE)))
    (kit.folder / "order.avsc").write_text(json.dumps(ORDER))
    (kit.folder / "line.avsc").write_text(json.dumps(LINE))
    text = f"""servers = "{server.bootstrap}"
[source.orders]
topics = "{topic}"
format = "avro"
schema_file = "order.avsc"
[step.lines]
sql = "SELECT value.id AS sku, 1 AS n FROM orders"
[sink.out]
from = "lines"
topic = "{topic}"
format = "avro"
schema_file = "line.avsc"
"""

    def told(old: str, new: str, line: str) -> str:
        file = kit.write(text.replace(old, new, 1))
        (problem,) = check_pipeline(file)
        assert file.read_text().splitlines()[problem.line - 1].startswith(line)
        return problem.text

    assert check_pipeline(kit.write(text)) == []
    assert "did you mean 'order.avsc'" in told("order.avsc", "ordr.avsc", "schema_file")
    assert "needs `schema_file`" in told('schema_file = "order.avsc"\n', "", "[source")
    assert 'add format = "avro"' in told('format = "avro"\n', "", "schema_file")
    assert "the avro schema has no field 'm'; it has sku, n" in told("1 AS n", "1 AS m", "from")
    options = {"servers": server.bootstrap, "topics": topic, "valueFormat": "avro", "avroSchema": json.dumps(ORDER)}
    frame = spark.read.format("waystation").options(**options, mode="failfast").load()
    with pytest.raises(Exception, match="name it with the option schemaRegistry"):
        frame.collect()


def test_avro_messages_of_a_queue_are_read(server: Server, mq: waystation.Client, spark: SparkSession) -> None:
    queue = mq.queue(unique("jobs"))
    queue.put(avro(VALUE))
    options = {"servers": server.bootstrap, "queue": queue.name, "valueFormat": "avro", "avroSchema": json.dumps(ORDER)}
    (row,) = spark.read.format("waystation").options(**options).load().select("value.*").collect()
    assert (row.id, row.state, row.price, row.tags) == (7, "DONE", Decimal("12.50"), {"k": "v"})


def test_a_schema_that_a_registry_has_not_is_not_malformed(registry: str) -> None:
    codec = codec_of(ValueFormat("avro", json.dumps(ORDER), registry=registry))
    assert codec.decode(framed(2, avro(VALUE))) == VALUE
    with pytest.raises(NotFound):
        codec.decode(framed(9, avro(VALUE)))
