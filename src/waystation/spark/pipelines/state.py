"""The state of a pipeline, as its runner writes it: the names of `waystation.observe.pipeline_state`, where the broker
finds them too. Imports no Spark."""

from __future__ import annotations

from waystation.observe.pipeline_state import (
    CONTROL,
    ENDED,
    HEARTBEAT_S,
    SILENT_S,
    TOPIC,
    TOPIC_SETTINGS,
    Control,
    Phase,
    PipelineState,
    SinkState,
    alive,
)

__all__ = [
    "CONTROL",
    "ENDED",
    "HEARTBEAT_S",
    "SILENT_S",
    "TOPIC",
    "TOPIC_SETTINGS",
    "Control",
    "Phase",
    "PipelineState",
    "SinkState",
    "alive",
]
