"""Schemas by their numbers, from a schema registry that speaks Confluent's HTTP API. Asked once for each number.

Used by the codecs, in Spark's workers.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import lru_cache

from waystation.errors import Invalid, NotFound, Unavailable

TIMEOUT_S = 10.0


@lru_cache(maxsize=1024)
def schema_by_id(registry: str, number: int) -> str:
    """The text of a schema. NotFound, Unavailable or Invalid: what cannot be read without it is not malformed."""
    address = f"{registry.rstrip('/')}/schemas/ids/{number}"
    if not address.startswith(("http://", "https://")):
        raise Invalid(f"the schema registry {registry!r} is not an address; write for instance http://127.0.0.1:8081")
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["schema"])
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise NotFound(
                f"the schema registry {registry} has no schema {number}, which a value is written in"
            ) from None
        raise Unavailable(f"the schema registry answers {error.code} to {address}") from None
    except OSError as error:
        raise Unavailable(f"the schema registry {registry} cannot be reached: {error}") from None
    except (ValueError, KeyError, TypeError):
        raise Invalid(f"what answers at {address} is not a schema registry") from None
