"""Upserts into a compacted topic: one record for each key that changed, the newest; tombstones where asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import waystation
from tests.spark.pipeline_kit import Kit
from tests.spark.topic_reading import read_topic
from tests.support.names import unique
from tests.support.server import Server
from waystation.cli.main import main
from waystation.spark.pipelines.checking import check_pipeline
from waystation.spark.pipelines.file.problems import PipelineFailed, PipelineInvalid

if TYPE_CHECKING:
    pass

STOCK = """servers = "{server}"
[source.moves]
topics = "{moves}"
schema = "item STRING, count INT"
[step.stock]
from = "moves"
group = "value.item"
aggregate = {{ stock = "sum(value.count)" }}
[sink.out]
from = "stock"
topic = "{out}"
mode = "upsert"
key = "item"
delete_when = "stock = 0"
"""


@pytest.fixture
def names(server: Server, mq: waystation.Client) -> dict[str, str]:
    found = {"server": server.bootstrap, "moves": unique("moves"), "out": unique("stock")}
    mq.create_topic(found["moves"], 1)
    return found


def test_an_aggregate_is_upserted_and_a_key_is_deleted(
    kit: Kit, server: Server, mq: waystation.Client, names: dict[str, str]
) -> None:
    text = STOCK.format(**names)

    def move(*moves: tuple[str, int]) -> list[tuple[bytes, bytes]]:
        before = len(read_topic(server, names["out"], 1)) if names["out"] in [t.topic for t in mq.topics()] else 0
        for item, count in moves:
            mq.publish(names["moves"], {"item": item, "count": count})
        kit.run(text)
        return sorted(read_topic(server, names["out"], 1)[before:])

    first = move(("nut", 5), ("bolt", 3), ("nut", 2))
    assert mq.describe_topic(names["out"]).settings == {"cleanup.policy": "compact"}, "it was created for this"
    assert [(key, json.loads(value)) for key, value in first] == [
        (b"bolt", {"item": "bolt", "stock": 3}),
        (b"nut", {"item": "nut", "stock": 7}),
    ], "one record for each key"
    second = move(("nut", -7), ("screw", 1))
    assert second == [(b"nut", b""), (b"screw", b'{"item":"screw","stock":1}')], "only what changed; a tombstone"
    third = move(("nut", 4))
    assert [(key, json.loads(value)["stock"]) for key, value in third] == [(b"nut", 4)], "it is back"
    assert check_pipeline(kit.write(text)) == []


def test_what_cannot_be_upserted_is_refused(
    kit: Kit, server: Server, mq: waystation.Client, names: dict[str, str]
) -> None:
    mq.create_topic(names["out"], 1)
    text = STOCK.format(**names)

    def told(text: str, line: str) -> str:
        file = kit.write(text)
        return next(
            problem.text
            for problem in check_pipeline(file)
            if file.read_text().splitlines()[problem.line - 1].startswith(line)
        )

    alter = f"`waystation topics alter {names['out']} --set cleanup.policy=compact`"
    assert alter in told(text, "mode")
    with pytest.raises(PipelineInvalid, match="is not compacted"):
        kit.run(text)
    assert read_topic(server, names["out"], 1) == []
    assert main([*alter.strip("`").split()[1:], "--server", server.bootstrap]) == 0, "what it says works"
    assert check_pipeline(kit.write(text)) == []
    keyless = text.replace('key = "item"\n', "")
    assert 'add key = "…"' in told(keyless, "mode")
    with pytest.raises((PipelineInvalid, PipelineFailed), match="add key"):
        kit.run(keyless)
    assert "there is no column `stok`" in told(text.replace("stock = 0", "stok = 0"), "delete_when")
    assert 'needs mode = "upsert"' in told(text.replace('"upsert"', '"update"'), "delete_when")
    assert "upsert is for compacted topics" in told(text.replace(f'topic = "{names["out"]}"', "console = true"), "mode")
