"""docs/reference/kafka-apis.md says exactly what the protocol answers: no more, no less, in the same versions."""

from __future__ import annotations

import re
from pathlib import Path

from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.records import fetch_codec, produce_codec
from waystation.protocols.kafka.requests.codec import versions_known

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "kafka-apis.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\d+)(?:–(\d+))? \|", re.MULTILINE)

Row = tuple[int, str, int, int]


def promised() -> list[Row]:
    return [(int(key), name, int(low), int(high or low)) for key, name, low, high in ROW.findall(PAGE.read_text())]


def registered() -> list[Row]:
    """What the registry holds, and the two hot APIs, which have codecs of their own."""
    rows = {
        api.key: (api.key, api.name.title().replace("_", ""), api.min_version, api.max_version) for api in APIS.values()
    }
    rows[0] = (0, "Produce", produce_codec.MIN_VERSION, produce_codec.MAX_VERSION)
    rows[1] = (1, "Fetch", fetch_codec.MIN_VERSION, fetch_codec.MAX_VERSION)
    return [rows[key] for key in sorted(rows)]


def test_page_lists_every_api_with_its_versions_in_order() -> None:
    assert promised() == registered()


def test_every_advertised_version_can_be_read_and_written() -> None:
    for api in APIS.values():
        if api.key > 1:  # produce and fetch are read by hand
            known = versions_known(api.name)
            assert known.start <= api.min_version <= api.max_version < known.stop, api.name


def test_page_ends_with_its_limits() -> None:
    headings = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)
    assert headings[-1] == "Limits"
