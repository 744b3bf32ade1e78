"""HTTP: Basic, Bearer, a session's cookie, a certificate; RabbitMQ's management API; what is free; what is refused."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.request import HTTPBasicAuthHandler, HTTPPasswordMgrWithDefaultRealm, build_opener

import pytest
import requests
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.security.tls_kit import make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.names import unique
from tests.support.server import Server

ALICE: Any = ("alice", PASSWORDS["alice"].encode())
PAGE = {"user-agent": "Mozilla/5.0"}


def url(server: Server, path: str) -> str:
    return f"http://{server.addresses['http']}{path}"


@pytest.mark.parametrize("path", ["/v1/overview", "/v1/topics", "/v1/users", "/metrics", "/api/overview", "/api/users"])
def test_without_a_login_nothing_is_told(closed: Server, path: str) -> None:
    answer = requests.get(url(closed, path), timeout=20)
    assert answer.status_code == 401
    assert "www-authenticate" in answer.headers


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/ui/app.js", "/v1/whoami"])
def test_the_dashboards_files_and_health_are_for_anybody(closed: Server, path: str) -> None:
    answer = requests.get(url(closed, path), timeout=20)
    assert answer.status_code == 200
    assert not (path == "/healthz" and answer.json()["reasons"])


@pytest.mark.parametrize("path", ["/v1/overview", "/api/overview"])
def test_basic_authentication_enters_with_the_password(closed: Server, path: str) -> None:
    assert requests.get(url(closed, path), auth=ALICE, timeout=20).status_code == 200
    for wrong in (("alice", "no"), ("nobody", "no"), ("guest", "guest")):
        answer = requests.get(url(closed, path), auth=wrong, timeout=20)
        assert answer.status_code == 401
        assert "alice" not in answer.text


def test_a_client_that_waits_to_be_asked_for_a_password_is_asked(closed: Server) -> None:
    passwords = HTTPPasswordMgrWithDefaultRealm()
    passwords.add_password(None, url(closed, "/"), "alice", PASSWORDS["alice"])
    with build_opener(HTTPBasicAuthHandler(passwords)).open(url(closed, "/v1/overview"), timeout=20) as answer:
        assert answer.status == 200
    refused = requests.get(url(closed, "/v1/overview"), auth=("alice", "wrong"), timeout=20)
    assert refused.headers["www-authenticate"] == 'Basic realm="Waystation", Bearer'


@pytest.mark.parametrize("said", [{"x-requested-with": "dashboard"}, {"sec-fetch-mode": "cors"}])
def test_what_a_page_fetches_makes_no_browser_ask_for_a_password(closed: Server, said: dict[str, str]) -> None:
    answer = requests.get(url(closed, "/v1/overview"), headers={**PAGE, **said}, timeout=20)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    typed = {**PAGE, "sec-fetch-mode": "navigate"}
    answer = requests.get(url(closed, "/v1/overview"), headers=typed, timeout=20)
    assert answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize(
    "said", ["Basic", "Basic !!!", "Basic " + base64.b64encode(b"\xff:x").decode(), "Bearer x", "Digest x"]
)
def test_what_is_no_login_is_refused(closed: Server, said: str) -> None:
    answer = requests.get(url(closed, "/v1/overview"), headers={"authorization": said}, timeout=20)
    assert answer.status_code == 401


def test_whoami_says_who_sends_the_request(closed: Server) -> None:
    assert requests.get(url(closed, "/v1/whoami"), timeout=20).json() == {
        "user": "",
        "superuser": False,
        "required": True,
    }
    mine = requests.get(url(closed, "/v1/whoami"), auth=("admin", PASSWORDS["admin"]), timeout=20).json()
    assert mine == {"user": "admin", "superuser": True, "required": True}
    assert requests.get(url(closed, "/api/whoami"), auth=ALICE, timeout=20).json()["name"] == "alice"


def test_a_message_goes_there_and_back_as_a_user(closed: Server) -> None:
    queue = unique("queue")
    session = requests.Session()
    session.auth = ALICE
    assert session.put(url(closed, f"/v1/queues/{queue}"), json={}, timeout=20).ok
    assert session.post(url(closed, f"/v1/queues/{queue}/messages"), json={"payload": "hello"}, timeout=20).ok
    taken = session.post(url(closed, f"/v1/queues/{queue}/take"), json={}, timeout=20)
    assert "hello" in taken.text
    body = {"ack_ids": [taken.json()["messages"][0]["ack_id"]]}
    path = url(closed, f"/v1/queues/{queue}/ack")
    others = requests.post(path, json=body, auth=("bob", PASSWORDS["bob"]), timeout=20)
    mine = session.post(path, json=body, timeout=20)
    assert others.json() != mine.json(), "another user settles nothing of mine"
    assert mine.ok


def test_a_session_begins_with_a_password_and_ends_when_it_is_told_to(closed: Server) -> None:
    browser = requests.Session()
    browser.headers.update(PAGE)
    wrong = browser.post(url(closed, "/v1/login"), json={"user": "alice", "password": "no"}, timeout=20)
    unknown = browser.post(url(closed, "/v1/login"), json={"user": "nobody", "password": "no"}, timeout=20)
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()
    login = browser.post(url(closed, "/v1/login"), json={"user": "alice", "password": PASSWORDS["alice"]}, timeout=20)
    assert login.status_code == 204
    cookie = login.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert browser.get(url(closed, "/v1/overview"), timeout=20).status_code == 200
    assert browser.get(url(closed, "/v1/whoami"), timeout=20).json()["user"] == "alice"
    own = {"origin": f"http://{closed.addresses['http']}"}
    assert browser.post(url(closed, "/v1/logout"), headers=own, timeout=20).status_code == 204
    browser.cookies.set("waystation_session", cookie.partition("=")[2].partition(";")[0])
    assert browser.get(url(closed, "/v1/overview"), timeout=20).status_code == 401


def test_a_page_of_another_site_changes_nothing_by_the_cookie(closed: Server) -> None:
    browser = requests.Session()
    browser.headers.update(PAGE)
    browser.post(url(closed, "/v1/login"), json={"user": "alice", "password": PASSWORDS["alice"]}, timeout=20)
    queue = unique("queue")

    def change(**headers: str) -> int:
        return browser.put(url(closed, f"/v1/queues/{queue}"), json={}, headers=headers, timeout=20).status_code

    assert change() == 403
    assert change(origin="http://evil.example") == 403
    assert change(**{"sec-fetch-site": "cross-site"}) == 403
    assert change(origin=f"http://{closed.addresses['http']}") in (200, 201)
    assert change(**{"x-requested-with": "fetch"}) in (200, 201)


def test_a_new_password_ends_sessions(own_closed: Any) -> None:
    server = own_closed()
    browser = requests.Session()
    body = {"user": "alice", "password": PASSWORDS["alice"]}
    assert browser.post(url(server, "/v1/login"), json=body, timeout=20).ok
    admin = ("admin", PASSWORDS["admin"])
    new = requests.put(url(server, "/v1/users/alice/password"), json={"password": "other"}, auth=admin, timeout=20)
    assert new.ok
    assert browser.get(url(server, "/v1/overview"), timeout=20).status_code == 401
    assert requests.get(url(server, "/v1/overview"), auth=("alice", PASSWORDS["alice"]), timeout=20).status_code == 401
    assert requests.get(url(server, "/v1/overview"), auth=("alice", "other"), timeout=20).status_code == 200


def test_users_are_added_listed_and_removed_and_never_shown_with_their_verifiers(own_closed: Any) -> None:
    server = own_closed()
    admin = ("admin", PASSWORDS["admin"])
    added = requests.post(url(server, "/v1/users"), json={"user": "eve", "password": "pw"}, auth=admin, timeout=20)
    assert added.json() == {"user": "eve", "closed": False}
    shown = requests.get(url(server, "/v1/users"), auth=("eve", "pw"), timeout=20)
    assert [one["user"] for one in shown.json()["users"]] == ["admin", "alice", "bob", "eve"]
    assert "$" not in shown.text
    assert requests.delete(url(server, "/v1/users/eve"), auth=admin, timeout=20).ok
    assert requests.get(url(server, "/v1/users"), auth=("eve", "pw"), timeout=20).status_code == 401


def test_the_token_of_the_settings_works_beside_users(own_closed: Any) -> None:
    server = own_closed(**{"waystation.http.token": "t0ken"})
    bearer = {"authorization": "Bearer t0ken"}
    assert requests.get(url(server, "/v1/overview"), headers=bearer, timeout=20).status_code == 200
    assert requests.get(url(server, "/api/overview"), auth=("x", "t0ken"), timeout=20).status_code == 200
    assert requests.get(url(server, "/v1/overview"), auth=ALICE, timeout=20).status_code == 200
    assert requests.get(url(server, "/v1/overview"), timeout=20).status_code == 401


def test_a_websocket_needs_a_login(closed: Server) -> None:
    path = f"ws://{closed.addresses['http']}/v1/topics/{unique('topic')}/subscribe"
    with pytest.raises(InvalidStatus) as caught:
        connect(path)
    assert caught.value.response.status_code == 401


def test_a_certificate_is_a_login(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "alice")
    add_users(tmp_path / "broker" / "data", PASSWORDS)
    told = write_config(
        certificates,
        """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
""",
    )
    with Server(tmp_path / "broker", arguments=told) as server:
        https = f"https://{server.addresses['http']}/v1/whoami"
        ca = str(certificates / "ca.crt")
        own = (str(certificates / "alice.crt"), str(certificates / "alice.key"))
        assert requests.get(https, verify=ca, cert=own, timeout=20).json()["user"] == "alice"
        assert requests.get(https, verify=ca, timeout=20).json()["user"] == ""
        login = requests.post(
            f"https://{server.addresses['http']}/v1/login",
            json={"user": "bob", "password": PASSWORDS["bob"]},
            verify=ca,
            timeout=20,
        )
        assert "Secure" in login.headers["set-cookie"]
