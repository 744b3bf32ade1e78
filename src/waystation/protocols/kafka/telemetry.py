"""Client telemetry (KIP-714), answered politely: clients that offer their metrics are told that none are wanted.

A client is given its instance id, an empty list of metrics, and a long time until it should ask again. Anything it
pushes all the same is accepted and forgotten. Called through the registry only.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from waystation.protocols.kafka.registry import Call

SUBSCRIPTION_ID = 1
"""Of the one subscription there is, which asks for nothing."""

ASK_AGAIN_MS = 300_000
"""Kafka's default. Not more: librdkafka counts microseconds in 32 bits, and an hour made it ask without a pause."""

MAX_PUSH_BYTES = 1024 * 1024
"""Kafka's default."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def get_telemetry_subscriptions(call: Call) -> object:
    return call.make(
        "GetTelemetrySubscriptionsResponse",
        throttle_time=0,
        error_code=ErrorCode.none,
        client_instance_id=call.request.client_instance_id or call.broker.world.random.uuid(),
        subscription_id=SUBSCRIPTION_ID,
        accepted_compression_types=(ZSTD, LZ4, GZIP, SNAPPY),
        push_interval=ASK_AGAIN_MS,
        telemetry_max_bytes=MAX_PUSH_BYTES,
        delta_temporality=True,
        requested_metrics=(),
    )


def push_telemetry(call: Call) -> object:
    request = call.request
    error = ErrorCode.none
    if request.client_instance_id is None:
        error = ErrorCode.invalid_request
    elif request.subscription_id != SUBSCRIPTION_ID:
        error = ErrorCode.unknown_subscription_id  # the client then asks for its subscription anew
    elif len(request.metrics) > MAX_PUSH_BYTES:
        error = ErrorCode.telemetry_too_large
    return call.make("PushTelemetryResponse", throttle_time=0, error_code=error)
