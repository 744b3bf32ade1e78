"""Which requests a browser may have been tricked into."""

from __future__ import annotations

import pytest

from waystation.doors.http.guard import Guard
from waystation.doors.http.problems import Foreign

HONEST = [
    {},
    {"host": "127.0.0.1:8080"},
    {"host": "[::1]:8080"},
    {"host": "localhost:8080"},
    {"host": "app.localhost:8080"},
    {"host": "waystation:8080"},
    {"host": "10.1.2.3:8080"},
    {"host": "broker.example.org:8080"},
    {"host": "own.example.org:8080"},
    {"host": "LOCALHOST:8080", "origin": "http://localhost:8080"},
    {"host": "localhost:8080", "sec-fetch-site": "same-origin", "origin": "http://localhost:8080"},
    {"host": "localhost:8080", "sec-fetch-site": "none"},
]

FOREIGN = [
    {"host": "evil.example.com:8080"},
    {"host": "evil.example.com:8080", "origin": "http://evil.example.com:8080"},
    {"host": "127.0.0.1.evil.example.com"},
    {"host": "localhost:8080", "origin": "http://evil.example.com"},
    {"host": "localhost:8080", "origin": "http://localhost:3000"},
    {"host": "localhost:8080", "origin": "null"},
    {"host": "localhost:8080", "sec-fetch-site": "cross-site"},
    {"host": "localhost:8080", "sec-fetch-site": "same-site"},
    {"host": "localhost:8080, evil.example.com"},
]


@pytest.mark.parametrize("headers", HONEST)
def test_an_honest_request_passes(headers: dict[str, str]) -> None:
    guard = Guard("own.example.org")
    for _ in range(2):
        guard.check(headers, "other.example.org, broker.example.org", changes=True)


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_request_of_a_foreign_page_is_refused(headers: dict[str, str]) -> None:
    guard = Guard("127.0.0.1")
    for _ in range(2):
        with pytest.raises(Foreign):
            guard.check(headers, "", changes=True)


def test_another_site_may_cause_a_plain_read_whose_answer_it_cannot_see() -> None:
    Guard("127.0.0.1").check({"host": "localhost", "sec-fetch-site": "cross-site"}, "", changes=False)


def test_ever_other_hosts_do_not_fill_the_memory() -> None:
    guard = Guard("127.0.0.1")
    for number in range(1000):
        guard.check({"host": f"10.0.0.1:{number}"}, "", changes=True)
    assert len(guard._known) <= 100
