"""Dead letters by HTTP: summed up, filtered, and sent back in the background by jobs that can be watched and ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocols.http.kit import JSON, Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

ENDED = ("done", "failed", "cancelled")


def kill(http: Http, queue: str, dead: str, count: int, error: str, **fields: Any) -> None:
    """Puts messages and rejects them for good."""
    before = http.queue(dead)["ready"]
    http.put(queue, *({"payload": f"{error} {n}", **fields} for n in range(count)))
    taken = http.take(queue, count=count)
    http(
        "POST",
        f"/v1/queues/{queue}/reject",
        {"ack_ids": [each["ack_id"] for each in taken], "dead": True, "error": error},
    )
    wait_for(lambda: http.queue(dead)["ready"] == before + count, "they are dead letters")


def declared(http: Http, dead: str) -> str:
    queue = unique("work")
    http("PUT", f"/v1/queues/{queue}", {"dead_letter": dead})
    return queue


@pytest.fixture
def dead(http: Http) -> str:
    name = unique("dead")
    http("PUT", f"/v1/queues/{name}")
    return name


def start(http: Http, dead: str, **asked: Any) -> str:
    answer = http("POST", f"/v1/dead-letters/{dead}/redrive", asked, background="true")
    assert answer.status == 202
    return str(answer.json["job"])


def job(http: Http, name: str) -> dict[str, Any]:
    return dict(http("GET", f"/v1/jobs/{name}").json)


def ended(http: Http, name: str) -> dict[str, Any]:
    wait_for(lambda: job(http, name)["state"] in ENDED, f"job {name} has ended")
    return job(http, name)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_summary_counts_reasons_sources_and_errors(http: Http, dead: str) -> None:
    one, other = declared(http, dead), declared(http, dead)
    kill(http, one, dead, 3, "no such customer\nat line 7")
    kill(http, other, dead, 2, "too late")
    http.put(dead, "put by hand")
    summary = http("GET", f"/v1/dead-letters/{dead}/summary").json
    assert (summary["total"], summary["looked_at"]) == (6, 6)
    assert summary["by_reason"] == {"rejected": 5, "unknown": 1}
    assert summary["by_source"] == {one: 3, other: 2, "unknown": 1}
    assert summary["by_error"] == {"no such customer": 3, "too late": 2}
    assert 0 < summary["oldest_ms"] <= summary["newest_ms"]
    for field in ("reason", "source"):  # what the summary offers is found
        (found,) = http("GET", f"/v1/dead-letters/{dead}?{field}=unknown").json["messages"]
        assert found["payload"] == "put by hand"
    empty = unique("empty")
    http("PUT", f"/v1/queues/{empty}")
    nothing = http("GET", f"/v1/dead-letters/{empty}/summary").json
    assert (nothing["total"], nothing["by_reason"], nothing["oldest_ms"]) == (0, {}, None)


def test_a_summary_counts_all_of_them_however_long_they_take_to_read(tmp_path: Path) -> None:
    """3,000 dead letters of 10 kB, of which none is in memory; each look says the same."""
    with Server(tmp_path) as server:
        http = Http(server.addresses["http"])
        name = unique("dead")
        http("PUT", f"/v1/queues/{name}")
        body = "x" * 10_000
        death = [{"reason": "rejected", "queue": "jobs", "count": 1, "error": "no printer"}]
        for _ in range(30):
            http.put(name, *[{"payload": body, "headers": {"x-death": death}}] * 100)
    with Server(tmp_path) as server:
        http = Http(server.addresses["http"])
        for _ in range(3):
            summary = http("GET", f"/v1/dead-letters/{name}/summary").json
            assert (summary["total"], summary["looked_at"]) == (3000, 3000)
            assert (summary["by_reason"], summary["by_error"]) == ({"rejected": 3000}, {"no printer": 3000})


def test_a_summary_is_of_so_many_bytes_at_most(http: Http, dead: str) -> None:
    """Known from the index, so it is the same at each look."""
    for _ in range(9):
        http.put(dead, {"payload": "x" * 4_000_000})
    looked = [http("GET", f"/v1/dead-letters/{dead}/summary").json["looked_at"] for _ in range(3)]
    assert looked == [8] * 3


def test_dead_letters_are_found_by_filter_reason_source_and_error(http: Http, dead: str) -> None:
    one, other = declared(http, dead), declared(http, dead)
    kill(http, one, dead, 5, "boom", headers={"region": "eu"})
    kill(http, other, dead, 5, "bang", headers={"region": "us"})
    path = f"/v1/dead-letters/{dead}"

    def found(**query: Any) -> list[str]:
        texts: list[str] = []
        while True:
            answer = http("GET", path, **query).json
            texts += [each["payload"] for each in answer["messages"]]
            if answer["next"] is None:
                return texts
            query["after"] = answer["next"]

    assert found(count=3) == [f"boom {n}" for n in range(5)] + [f"bang {n}" for n in range(5)]
    bang = [f"bang {n}" for n in range(5)]
    for query in ({"filter": "headers.region = 'us'"}, {"source": other}, {"error": "ang"}):
        assert found(**query, count=2) == bang
    assert found(reason="rejected", source=one, error="boom") == [f"boom {n}" for n in range(5)]
    assert found(reason="expired") == found(filter="headers.region = 'asia'") == []
    assert http("GET", path, filter="headers.region = 'asia'").json["looked_at"] == 10
    assert http.refused("GET", path, filter="headers.region =")[0] == 400
    assert http.refused("GET", path, count=0) == (400, "Invalid")
    assert http.refused("GET", path, fliter="x") == (400, "Invalid")
    for missing in ("/v1/dead-letters/none", "/v1/dead-letters/none/summary"):
        assert http.refused("GET", missing) == (404, "NotFound")


def test_places_come_in_pages_with_how_many_sources(http: Http) -> None:
    prefix = unique("Pit")
    for n in range(5):
        for _ in range(n + 1):
            http("PUT", f"/v1/queues/{unique('source')}", {"dead_letter": f"{prefix}-{n}"})
    places: list[dict[str, Any]] = []
    query: dict[str, Any] = {"search": prefix.lower(), "limit": 2}
    while True:
        answer = http("GET", "/v1/dead-letters", **query).json
        assert answer["total"] == 5
        places += answer["dead_letters"]
        if answer["next"] is None:
            break
        query["after"] = answer["next"]
    assert [(place["target"], place["source_count"], len(place["sources"])) for place in places] == [
        (f"{prefix}-{n}", n + 1, n + 1) for n in range(5)
    ]


# -- in the background -------------------------------------------------------------------------------------------------


def test_a_redrive_in_the_background_says_how_far_it_is_and_ends(http: Http, dead: str) -> None:
    queue = declared(http, dead)
    kill(http, queue, dead, 30, "boom")
    http.put(dead, "from nowhere")
    name = start(http, dead)
    info = ended(http, name)
    assert (info["state"], info["kind"], info["error"]) == ("done", "redrive", None)
    assert (info["done"], info["total"], info["matched"], info["moved"], info["skipped"]) == (31, 31, 31, 30, 1)
    assert info["started_ms"] <= info["ended_ms"]
    assert (info["target"], dead in info["what"]) == (dead, True)
    assert name in [each["job"] for each in http("GET", "/v1/jobs").json["jobs"]]
    assert http.queue(queue)["ready"] == 30
    assert http.refused("DELETE", f"/v1/jobs/{name}") == (409, "Conflict")


def test_a_cancelled_job_ends_between_two_transactions(http: Http, dead: str) -> None:
    queue = declared(http, dead)
    kill(http, queue, dead, 10, "boom")
    name = start(http, dead, rate=0.02)
    wait_for(lambda: job(http, name)["moved"] >= 1, "the first is on its way")
    assert http.refused("POST", f"/v1/dead-letters/{dead}/redrive", {}) == (409, "Conflict")
    assert http.refused("POST", f"/v1/dead-letters/{dead}/redrive", {}, background="true") == (409, "Conflict")
    info = http("DELETE", f"/v1/jobs/{name}").json
    assert (info["state"], info["cancelling"], info["error"]) == ("cancelled", False, None)
    assert http.queue(queue)["ready"] == info["moved"]
    assert http.queue(dead)["ready"] == 10 - info["moved"], "nothing is lost, nothing is held, nothing is doubled"
    assert ended(http, start(http, dead))["moved"] == 10 - info["moved"]


def test_a_job_that_only_counts_moves_nothing(http: Http, dead: str) -> None:
    queue = declared(http, dead)
    kill(http, queue, dead, 4, "boom")
    info = ended(http, start(http, dead, dry_run=True, filter="text = 'boom 1'"))
    assert (info["state"], info["matched"], info["moved"], info["done"]) == ("done", 1, 0, 4)
    assert (info["kind"], info["target"]) == ("count", dead)
    assert http.queue(dead)["ready"] == 4


def test_a_job_whose_target_is_full_fails_and_says_why(http: Http, dead: str) -> None:
    full = unique("full")
    http("PUT", f"/v1/queues/{full}", {"max_length": 1})
    queue = declared(http, dead)
    kill(http, queue, dead, 4, "boom")
    http.put(full, "there")
    info = ended(http, start(http, dead, to=full))
    assert info["state"] == "failed"
    assert full in info["error"]
    assert http.queue(dead)["ready"] == 4


def test_what_is_wrong_is_said_before_a_job_begins(http: Http, dead: str) -> None:
    path = f"/v1/dead-letters/{dead}/redrive"
    assert http.refused("POST", path, {"filter": "x ="}, background="true")[0] == 400
    assert http.refused("POST", path, {"to": "not-there"}, background="true") == (404, "NotFound")
    assert http.refused("POST", path, {"rate": -1}, background="true") == (400, "Invalid")
    assert http.refused("POST", path, {"too": "x"}, background="true") == (400, "Invalid")
    assert http.refused("POST", path, {}, background="maybe") == (400, "Invalid")
    assert http.refused("POST", "/v1/dead-letters/none/redrive", {}, background="true") == (404, "NotFound")
    for method in ("GET", "DELETE"):
        assert http.refused(method, "/v1/jobs/no-such-job") == (404, "NotFound")


def test_a_slow_redrive_ends_soon_after_its_client_has_gone(http: Http, dead: str) -> None:
    queue = declared(http, dead)
    kill(http, queue, dead, 3, "boom")
    connection = http.connect()
    connection.request("POST", f"/v1/dead-letters/{dead}/redrive", b'{"rate": 0.0001}', JSON)
    wait_for(lambda: http.queue(queue)["ready"] == 1, "the first is on its way")
    assert http.refused("POST", f"/v1/dead-letters/{dead}/redrive", {}) == (409, "Conflict")
    connection.close()

    def free() -> bool:
        return http("POST", f"/v1/dead-letters/{dead}/redrive", {}, ok=False).status == 200

    wait_for(free, "the queue can be redriven by others")
    assert (http.queue(queue)["ready"], http.queue(dead)["ready"]) == (3, 0)
