"""Makes the topics that a ready-made pipeline writes to, with the settings that they should have. Imports no Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from waystation.errors import AlreadyExists, NotFound, Unavailable
from waystation.spark.pipelines.status.registry import connect_any
from waystation.spark.ready.parts import Ready

AGAIN_S = 0.5


def ensure_topics(servers: str, ready: Ready, values: Mapping[str, Any], wait_s: float = 0.0) -> None:
    """A topic that is there stays as it is. A broker that is away is waited for."""
    filled = {argument.name: argument.default for argument in ready.arguments}
    wanted = ready.topics(filled | {name: value for name, value in values.items() if value is not None})
    if not wanted:
        return
    deadline = time.monotonic() + wait_s
    while True:
        try:
            _ensure(servers, wanted)
            return
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
        time.sleep(AGAIN_S)


def _ensure(servers: str, wanted: Mapping[str, dict[str, str]]) -> None:
    with connect_any(servers) as mq:
        for topic, settings in wanted.items():
            try:
                mq.describe_topic(topic)
            except NotFound:
                try:
                    mq.create_topic(topic, settings=settings)
                except AlreadyExists:
                    continue  # another one was faster
