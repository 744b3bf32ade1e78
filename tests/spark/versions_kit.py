"""For tests that run on PySpark 4.0 and 4.1, too (`make spark-versions`): no limits of a micro-batch, no queues as
streams."""

from __future__ import annotations

from typing import Any

import pytest

try:
    from waystation.spark.spark_versions import TELLS_START as LIMITS_ARE_KEPT
except ImportError:  # no PySpark: such tests are skipped anyway
    LIMITS_ARE_KEPT = True

since_42 = pytest.mark.skipif(not LIMITS_ARE_KEPT, reason="Spark tells a stream where its batch begins since 4.2")


def kept(**limits: Any) -> dict[str, Any]:
    """The limits, where they are kept: elsewhere such a test has larger batches."""
    return limits if LIMITS_ARE_KEPT else {}
