"""The part of the walk along every route that is about running a broker. Used by test_openapi.py alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.protocols.http.kit import Answer, Http, name
from tests.support.names import unique

PIPELINE = 'name = "{name}"\n\n[source.ticks]\nrate = 5\n\n[sink.out]\nfrom = "ticks"\nconsole = true\n'

Steps = Iterator[tuple[str, str, Callable[[], Answer]]]


def operating(http: Http, topic: str, pipelines: Path) -> Steps:
    """`topic` is there; `pipelines` is the folder of those that the broker runs."""
    group = f"/v1/groups/{unique('tour')}"
    wanted = {"to": "earliest", "topic": topic}
    yield "POST", "/v1/groups/{group}/reset", lambda: http("POST", f"{group}/reset", wanted)
    yield "GET", "/v1/groups", lambda: http("GET", "/v1/groups")
    yield "GET", "/v1/groups/{group}", lambda: http("GET", group)
    yield "DELETE", "/v1/groups/{group}", lambda: http("DELETE", group)
    yield "GET", "/v1/settings", lambda: http("GET", "/v1/settings")
    change = {"log.cleaner.backoff.ms": None}
    yield "PATCH", "/v1/settings", lambda: http("PATCH", "/v1/settings", change)
    yield "GET", "/v1/connections", lambda: http("GET", "/v1/connections")
    idle = http.connect()
    idle.connect()
    address = idle.sock.getsockname()
    own = f"/v1/connections/{name(f'http:{address[0]}:{address[1]}')}"
    yield "GET", "/v1/connections/{connection}", lambda: http("GET", own)
    yield "DELETE", "/v1/connections/{connection}", lambda: http("DELETE", own)
    idle.close()
    yield from _cluster(http)
    yield from _namespaces(http)
    yield from _pipelines(http, pipelines)


def _cluster(http: Http) -> Steps:
    """Of a broker that is alone."""
    same = {"replication_factor": 1}
    yield "GET", "/v1/cluster", lambda: http("GET", "/v1/cluster")
    yield "GET", "/v1/cluster/partitions", lambda: http("GET", "/v1/cluster/partitions")
    yield "POST", "/v1/cluster/reassign", lambda: http("POST", "/v1/cluster/reassign", same)
    yield "POST", "/v1/cluster/elect", lambda: http("POST", "/v1/cluster/elect", {})
    yield "POST", "/v1/cluster/nodes/{node}/drain", lambda: http("POST", "/v1/cluster/nodes/1/drain", {}, ok=False)
    yield "DELETE", "/v1/cluster/nodes/{node}", lambda: http("DELETE", "/v1/cluster/nodes/9", ok=False)


def _namespaces(http: Http) -> Steps:
    made = unique("tour")
    path, policy = f"/v1/namespaces/{made}", f"/v1/policies/{made}/short"
    rule = {"pattern": "^jobs", "definition": {"message-ttl": 1000}, "apply_to": "queues"}
    yield "PUT", "/v1/namespaces/{namespace}", lambda: http("PUT", path, {"description": "a tour", "max_queues": 9})
    yield "GET", "/v1/namespaces", lambda: http("GET", "/v1/namespaces")
    yield "GET", "/v1/namespaces/{namespace}", lambda: http("GET", f"/v1/namespaces/{name('/')}")
    yield "PUT", "/v1/policies/{namespace}/{policy}", lambda: http("PUT", policy, rule)
    yield "GET", "/v1/policies", lambda: http("GET", "/v1/policies", namespace=made)
    yield "GET", "/v1/policies/{namespace}/{policy}", lambda: http("GET", policy)
    yield "DELETE", "/v1/policies/{namespace}/{policy}", lambda: http("DELETE", policy)
    yield "DELETE", "/v1/namespaces/{namespace}", lambda: http("DELETE", path)


def _pipelines(http: Http, folder: Path) -> Steps:
    title = unique("tour")
    (folder / f"{title}.toml").write_text(PIPELINE.format(name=title))
    path = f"/v1/pipelines/{title}"
    yield "GET", "/v1/pipelines", lambda: http("GET", "/v1/pipelines")
    yield "POST", "/v1/pipelines/{pipeline}/start", lambda: http("POST", f"{path}/start")
    yield "POST", "/v1/pipelines/{pipeline}/stop", lambda: http("POST", f"{path}/stop")
    yield "GET", "/v1/pipelines/{pipeline}", lambda: http("GET", path)
