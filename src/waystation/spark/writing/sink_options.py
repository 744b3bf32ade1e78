"""The options of the sink: their names, how they are read, and what is said of a wrong one.

As `options.py` for the source: text in, one checked `SinkOptions` out, and Invalid with one sentence otherwise. Pure;
knows nothing of pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from waystation.errors import Invalid, near_matches
from waystation.spark.links.login_options import LOGIN_OPTIONS, lowered, read_servers
from waystation.spark.links.servers import Servers
from waystation.spark.options import DEFAULT_RETRY_S, check_names, read_seconds

SINK_OPTIONS = (
    "servers",
    "topic",
    "queue",
    "guarantee",
    "txnId",
    "txnVersion",
    "stageTimeout",
    "retryTimeout",
    *LOGIN_OPTIONS,
)

GUARANTEES = ("exactly-once", "at-least-once")
DEFAULT_STAGE_S = 900.0
"""How long what a task has staged waits for its job to commit: what the broker allows unless it is told otherwise."""
MAX_TXN_ID = 150
"""Characters: the names of the staged transactions are made of it."""
TXN_NAMES = "spark/txn/"
"""What a `txnId` is decided under begins so."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a writer is told."""

    servers: Servers
    topic: str | None = None
    queue: str | None = None
    exactly_once: bool = True
    txn_id: str | None = None
    txn_version: int = 0
    stage_timeout_s: float = DEFAULT_STAGE_S
    retry_s: float = DEFAULT_RETRY_S
    checkpoint: str | None = None
    """Of a stream, where its option says it."""


def read_sink_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Checked options; raises Invalid."""
    check_names(given, SINK_OPTIONS, "sink")
    options = lowered(given)
    topic, queue = options.get("topic") or None, options.get("queue") or None
    if topic and queue:
        raise Invalid("the options topic and queue were both given: a row goes to one of them; leave one out")
    guarantee = options.get("guarantee", "").lower() or GUARANTEES[0]
    if guarantee not in GUARANTEES:
        raise Invalid(
            f"guarantee: {guarantee!r} is none of {', '.join(GUARANTEES)}{near_matches(guarantee, GUARANTEES)}"
        )
    return SinkOptions(
        servers=read_servers(options),
        topic=topic,
        queue=queue,
        exactly_once=guarantee == GUARANTEES[0],
        txn_id=_read_txn_id(options, streaming, guarantee),
        txn_version=_read_version(options),
        stage_timeout_s=_read_stage_timeout(options),
        retry_s=read_seconds(options, "retryTimeout", DEFAULT_RETRY_S),
        checkpoint=(options.get("checkpointlocation") or None) if streaming else None,
    )


def _read_txn_id(options: Mapping[str, str], streaming: bool, guarantee: str) -> str | None:
    txn_id = options.get("txnid") or None
    if txn_id is None:
        if options.get("txnversion"):
            raise Invalid("txnVersion counts the writes of one txnId: give that too, or leave txnVersion out")
        return None
    if streaming:
        raise Invalid("txnId is for batch writes (df.write); a stream's batches are numbered by Spark, so leave it out")
    if guarantee != GUARANTEES[0]:
        raise Invalid("txnId makes a batch write happen exactly once: leave out guarantee=at-least-once, or the txnId")
    if len(txn_id) > MAX_TXN_ID:
        raise Invalid(f"txnId: it has {len(txn_id)} characters, and at most {MAX_TXN_ID} are taken")
    return txn_id


def _read_version(options: Mapping[str, str]) -> int:
    text = options.get("txnversion") or "0"
    if not text.isdigit() or int(text) >= 2**63:
        raise Invalid(f"txnVersion: {text!r} is not a whole number from 0 on, such as a batch's number")
    return int(text)


def _read_stage_timeout(options: Mapping[str, str]) -> float:
    seconds = read_seconds(options, "stageTimeout", DEFAULT_STAGE_S)
    if not 1 <= seconds <= 2_000_000:
        raise Invalid(f"stageTimeout: {seconds:g} seconds; write at least 1, for instance {DEFAULT_STAGE_S:g}")
    return seconds
