"""`df.write…save()` without a mode appends, as it does with Spark's Kafka connector.

Spark's default mode is to fail if the target exists. Python data sources cannot be asked that, so Spark refuses the
mode for all of them before it calls one. `register` puts this around `save`: where Spark has refused the default mode,
and the source is this one, it is called again with mode append. Nothing else is changed; what succeeds does so by Spark
alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

REFUSED = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
DEFAULT_MODE = "ErrorIfExists"

_DONE = "_waystation_appends"


def append_by_default(writers: Any, source: str) -> None:
    """Changes `save` of a class of DataFrame writers, classic or Connect; again does no harm."""
    if not hasattr(writers.save, _DONE):
        writers.save = _appending(writers.save, source)


def _appending(save: Callable[..., None], source: str) -> Callable[..., None]:
    from pyspark.errors import PySparkException

    @wraps(save)
    def appending(writer: Any, *args: Any, **kwargs: Any) -> None:
        try:
            return save(writer, *args, **kwargs)
        except PySparkException as error:
            if not _refuses_default(error, source):
                raise
        return save(writer.mode("append"), *args, **kwargs)

    setattr(appending, _DONE, True)
    return appending


def _refuses_default(error: Any, source: str) -> bool:
    if error.getCondition() != REFUSED:
        return False
    said = [str(value).strip('"') for value in (error.getMessageParameters() or {}).values()]
    return source in said and DEFAULT_MODE in said
