"""ApiVersions: what this broker speaks. An unknown version is answered in the oldest form, as clients rely on."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from waystation.protocols.kafka.requests.registry import Call

# Clients look here for transaction.version 2 (KIP-890: an epoch per transaction), group.version 1 (KIP-848) and
# share.version 1 (KIP-932).
FEATURES = {"transaction.version": (0, 2, 2), "group.version": (0, 1, 1), "share.version": (0, 1, 1)}


def api_versions(call: Call) -> object:
    return answer(call, ErrorCode.none)


def answer(call: Call, error: ErrorCode) -> object:
    """Used as well for the reply to a version that we do not know, with UNSUPPORTED_VERSION in v0 form."""
    make = call.make
    supported = [
        make("SupportedFeatureKey", name=name, min_version=low, max_version=high)
        for name, (low, high, _) in FEATURES.items()
        if low > 0 or call.version >= 4  # before v4 a client would choke on a minimum of 0 (KIP-1022)
    ]
    finalized = [
        make("FinalizedFeatureKey", name=name, max_version_level=level, min_version_level=level)
        for name, (_, _, level) in FEATURES.items()
    ]
    return make(
        "ApiVersionsResponse",
        error_code=error,
        api_keys=tuple(
            make("ApiVersion", api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for _, api in sorted(call.apis.items())
        ),
        throttle_time=0,
        supported_features=tuple(supported),
        finalized_features_epoch=1,
        finalized_features=tuple(finalized),
        zk_migration_ready=False,
    )
