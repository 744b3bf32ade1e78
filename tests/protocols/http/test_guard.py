"""Which requests a browser may have been tricked into."""

from __future__ import annotations

import pytest

from waystation.protocols.http.auth.guard import Guard
from waystation.protocols.http.transport.problems import Foreign

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


A_BROWSER = {"host": "broker:8080", "user-agent": "Mozilla/5.0 (X11; Linux) Firefox/140.0", "accept": "image/png"}
A_PROGRAM = {"host": "broker:8080", "user-agent": "curl/8.5.0", "accept": "*/*"}


@pytest.mark.parametrize(
    "headers", [A_BROWSER, A_PROGRAM, {}, {**A_BROWSER, "referer": "http://evil.example.com/"}, {"authorization": "x"}]
)
def test_a_read_that_changes_something_needs_what_a_page_cannot_send(headers: dict[str, str]) -> None:
    Guard.check_read({**headers, "x-requested-with": ""}, "GET /x", "POST /y", lenient=False)
    with pytest.raises(Foreign, match="POST /y"):
        Guard.check_read(headers, "GET /x", "POST /y", lenient=False)


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": "own"}])
def test_a_page_of_ours_may_read_what_changes_something(headers: dict[str, str]) -> None:
    Guard.check_read({**A_BROWSER, **headers}, "GET /x", "POST /y", lenient=False)
    Guard.check_post({**A_BROWSER, **headers})


def test_where_others_made_the_contract_a_program_needs_no_header_and_a_browser_does() -> None:
    Guard.check_read(A_PROGRAM, "GET /x", "POST /y", lenient=True)
    Guard.check_read({}, "GET /x", "POST /y", lenient=True)
    for headers in (A_BROWSER, {"referer": "http://evil.example.com/"}, {"cookie": "a=b"}):
        with pytest.raises(Foreign):
            Guard.check_read(headers, "GET /x", "POST /y", lenient=True)


@pytest.mark.parametrize(
    "kind", ["text/plain", "text/plain; charset=utf-8", "application/x-www-form-urlencoded", "Multipart/Form-Data; b=1"]
)
def test_a_form_post_of_a_browser_that_hides_its_origin_is_refused(kind: str) -> None:
    with pytest.raises(Foreign, match="form"):
        Guard.check_post({**A_BROWSER, "content-type": kind})
    with pytest.raises(Foreign):
        Guard.check_post(A_BROWSER)
    Guard.check_post({**A_PROGRAM, "content-type": kind})
    Guard.check_post({**A_BROWSER, "content-type": "application/json"})
    Guard.check_post({**A_BROWSER, "content-type": kind, "x-requested-with": "a script"})


def test_another_site_may_cause_a_plain_read_whose_answer_it_cannot_see() -> None:
    Guard("127.0.0.1").check({"host": "localhost", "sec-fetch-site": "cross-site"}, "", changes=False)


def test_ever_other_hosts_do_not_fill_the_memory() -> None:
    guard = Guard("127.0.0.1")
    for number in range(1000):
        guard.check({"host": f"10.0.0.1:{number}"}, "", changes=True)
    assert len(guard._known) <= 100
