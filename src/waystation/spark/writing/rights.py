"""Whether the user that a sink logs in as may write there: asked before a query starts, and nothing is written.

Spark calls a sink when there are rows, perhaps hours later, and then a missing permission fails the first batch. Topics
are asked about by Kafka's Metadata, which tells a client what it may do; a queue by a put of no messages, which is
refused in either case, but first for want of the permission; transactions by an abort of none. A broker that does not
tell is believed to allow it. For `stream_starts` and pipelines.
"""

from __future__ import annotations

from waystation.client.sync.client import Client
from waystation.errors import Invalid, NotAllowed
from waystation.protocol import Put, PutAnswer
from waystation.spark.links.native_link import link_to_any
from waystation.spark.links.retrying import advised
from waystation.spark.links.servers import Servers
from waystation.spark.reading.fetching import Cluster

STAGES = "spark/"
"""What the names of all transactions of the sink begin with."""
_NONE = f"{STAGES}check/"
"""No transaction has such a name."""


def check_writes(servers: Servers, client: Client, kind: str, name: str, *, exactly_once: bool) -> None:
    """Raises NotAllowed, with the command that allows it, if a right is missing. `kind`: topic or queue."""
    if servers.anonymous:
        return
    try:
        if kind == "topic":
            _check_topic(servers, name)
        else:
            _check_queue(servers, name)
        if exactly_once:
            client.abort_staged(prefix=_NONE)
    except NotAllowed as error:
        raise advised(error) from None


def _check_topic(servers: Servers, name: str) -> None:
    cluster = Cluster(servers, retry_s=0)
    try:
        if cluster.may_write(name) is False:
            raise NotAllowed(f"{servers.whom} may not write topic {name!r}")
    finally:
        cluster.forget()


def _check_queue(servers: Servers, name: str) -> None:
    link = link_to_any(servers, "spark")
    try:
        link.ask(Put(queue=name, messages=[]), PutAnswer)
    except Invalid:
        pass  # there is no message: it was not refused before that
    finally:
        link.close()
