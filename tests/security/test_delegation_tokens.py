"""Delegation tokens (KIP-48): who gets one, who may renew and end it, what it opens, and that it ends."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.kit import broker_on, run
from tests.cluster.in_process import until
from tests.protocols.kafka.admin_kit import Desk, each_version
from tests.security.test_kafka_logins import METADATA, authenticate, handshake, request
from tests.security.test_kafka_logins import _answer as answer_of
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.broker.access import Access
from waystation.broker.access.types import DEFAULT
from waystation.broker.broker import Broker
from waystation.errors import Conflict, Full
from waystation.security.delegation_tokens import MOST_OF_ONE
from waystation.security.principals import ANONYMOUS, Principal, key_credential, token_credential
from waystation.security.rules import Rule
from waystation.security.users import User
from waystation.wire import scram

KEY = "the cluster's secret"
SHA_256 = "SCRAM-SHA-256"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
USUAL = timedelta(milliseconds=-1)


class TokenDesk(Desk):
    """Asks as one of several principals."""

    who = Principal("alice")

    @property
    def access(self) -> Access:
        return self.broker.access(self.who, DEFAULT, self.broker.meters.kafka)

    def as_(self, name: str | Principal) -> TokenDesk:
        self.who = name if isinstance(name, Principal) else Principal(name)
        return self

    def create(self, version: int = 3, **fields: Any) -> Any:  # type: ignore[override]
        return self.ask("create_delegation_token", version, **{"renewers": (), "max_lifetime": USUAL, **fields})

    def renew(self, hmac: bytes, period: timedelta = USUAL, version: int = 2) -> Any:
        return self.ask("renew_delegation_token", version, hmac=hmac, renew_period=period)

    def expire(self, hmac: bytes, period: timedelta = USUAL, version: int = 2) -> Any:
        return self.ask("expire_delegation_token", version, hmac=hmac, expiry_time_period=period)

    def describe(self, owners: Any = None, version: int = 3) -> Any:
        return self.ask("describe_delegation_token", version, owners=owners)


def user(name: str) -> dict[str, str]:
    return {"principal_type": "User", "principal_name": name}


@pytest.fixture
def open_desk(tmp_path: Path) -> Iterator[Callable[..., TokenDesk]]:
    made: list[TokenDesk] = []

    def make(**settings: str) -> TokenDesk:
        told = {"auth.required": "true", "delegation.token.secret.key": KEY}
        told |= {name.replace("_", "."): value for name, value in settings.items()}
        made.append(TokenDesk(tmp_path / str(len(made)), told))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def desk(open_desk: Callable[..., TokenDesk]) -> TokenDesk:
    found = open_desk()
    for name in ("alice", "bob"):
        found.run(found.broker.users.add(name, User()))
    return found


def ms(when: datetime | int) -> int:
    return when if isinstance(when, int) else int(when.timestamp() * 1000)


# -- the four APIs, in every version -----------------------------------------------------------------------------------


@each_version("create_delegation_token")
def test_a_token_is_the_askers_and_lasts_as_long_as_the_settings_say(desk: TokenDesk, version: int) -> None:
    made = desk.create(version, renewers=[user("bob"), user("bob")])
    assert made.error_code == ErrorCode.none
    assert (made.principal_type, made.principal_name) == ("User", "alice")
    if version >= 3:
        assert made.token_requester_principal_name == "alice"
    now = datetime.now(UTC)
    assert abs(made.issue_timestamp - now) < timedelta(minutes=1)
    assert made.expiry_timestamp - made.issue_timestamp == DAY
    assert made.max_timestamp - made.issue_timestamp == timedelta(days=7)
    assert len(made.hmac) == 64
    (seen,) = desk.describe().tokens
    assert [one.principal_name for one in seen.renewers] == ["bob"]
    short = desk.create(version, max_lifetime=HOUR)
    assert short.expiry_timestamp == short.max_timestamp == short.issue_timestamp + HOUR
    long = desk.create(version, max_lifetime=timedelta(days=30))
    assert long.max_timestamp == long.issue_timestamp + timedelta(days=7)


@each_version("renew_delegation_token")
def test_owner_and_renewers_renew_a_token_up_to_its_lifetime(desk: TokenDesk, version: int) -> None:
    made = desk.create(renewers=[user("bob")])
    for who in ("alice", "bob"):
        moved = desk.as_(who).renew(made.hmac, timedelta(days=2), version)
        assert moved.error_code == ErrorCode.none
        assert abs(ms(moved.expiry_timestamp) - ms(made.issue_timestamp) - 2 * 86_400_000) < 60_000
    assert ms(desk.renew(made.hmac, timedelta(days=30), version).expiry_timestamp) == ms(made.max_timestamp)
    assert abs(ms(desk.renew(made.hmac, version=version).expiry_timestamp) - ms(made.expiry_timestamp)) < 60_000
    assert desk.as_("eve").renew(made.hmac, version=version).error_code == ErrorCode.delegation_token_owner_mismatch
    assert desk.renew(b"x" * 64, version=version).error_code == ErrorCode.delegation_token_not_found


@each_version("expire_delegation_token")
def test_owner_and_renewers_end_a_token_now_or_later(desk: TokenDesk, version: int) -> None:
    made = desk.create(renewers=[user("bob")])
    assert desk.as_("eve").expire(made.hmac, version=version).error_code == ErrorCode.delegation_token_owner_mismatch
    later = desk.as_("bob").expire(made.hmac, HOUR, version)
    assert abs(ms(later.expiry_timestamp) - ms(made.issue_timestamp) - 3_600_000) < 60_000
    assert desk.as_("alice").expire(made.hmac, version=version).error_code == ErrorCode.none
    assert desk.describe().tokens == ()
    assert desk.expire(made.hmac, version=version).error_code == ErrorCode.delegation_token_not_found


@each_version("describe_delegation_token")
def test_everybody_sees_the_tokens_that_concern_it(desk: TokenDesk, version: int) -> None:
    mine = desk.create(renewers=[user("bob")])
    bobs = desk.as_("bob").create()

    def seen(who: str, owners: Any = None) -> list[str]:
        found = desk.as_(who).describe(owners, version)
        assert found.error_code == ErrorCode.none
        return [one.token_id for one in found.tokens]

    assert seen("alice") == [mine.token_id]
    assert sorted(seen("bob")) == sorted([mine.token_id, bobs.token_id])
    assert seen("bob", [user("bob")]) == [bobs.token_id]
    assert seen("bob", []) == []
    assert seen("eve") == []
    desk.run(desk.broker.permissions.add([Rule("User:eve", "describe", "user", "bob")]))
    assert seen("eve") == [bobs.token_id]
    found = desk.as_("alice").describe(None, version).tokens[0]
    assert found.hmac == mine.hmac
    assert (found.principal_name, ms(found.max_timestamp)) == ("alice", ms(mine.max_timestamp))


def test_who_may_look_at_everything_does_not_see_what_logs_in_as_others(desk: TokenDesk) -> None:
    desk.run(desk.broker.users.add("watcher", User(tags=("monitoring", "management"))))
    assert desk.create().error_code == ErrorCode.none
    assert desk.as_("watcher").describe().tokens == ()


def test_a_token_for_another_user_needs_the_right_to_alter_it(desk: TokenDesk) -> None:
    other: Any = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    assert desk.create(**other).error_code == ErrorCode.delegation_token_authorization_failed
    assert desk.as_("bob").describe().tokens == ()
    desk.run(desk.broker.permissions.add([Rule("User:alice", "alter", "user", "bob")]))
    made = desk.as_("alice").create(**other)
    assert (made.principal_name, made.token_requester_principal_name) == ("bob", "alice")
    assert [one.token_id for one in desk.as_("bob").describe().tokens] == [made.token_id]


@pytest.mark.parametrize(
    "who",
    [
        ANONYMOUS,
        Principal("alice").by(token_credential("x")),
        Principal("alice").by(key_credential("x")),
        Principal("alice").by(key_credential("x"), "read-only"),
        Principal("http-token", "Token", superuser=True),
    ],
)
def test_who_has_not_logged_in_by_itself_gets_no_token(desk: TokenDesk, who: Principal) -> None:
    made = desk.create()
    desk.as_(who)
    for answer in (desk.create(), desk.renew(made.hmac), desk.expire(made.hmac), desk.describe()):
        assert answer.error_code == ErrorCode.delegation_token_request_not_allowed


def test_without_a_secret_key_there_are_no_tokens(open_desk: Callable[..., TokenDesk]) -> None:
    desk = open_desk(delegation_token_secret_key="")
    for answer in (desk.create(), desk.renew(b"x"), desk.expire(b"x"), desk.describe()):
        assert answer.error_code == ErrorCode.delegation_token_auth_disabled


def test_what_cannot_be_is_refused(desk: TokenDesk) -> None:
    group = {"principal_type": "Group", "principal_name": "ops"}
    assert desk.create(renewers=[group]).error_code == ErrorCode.invalid_principal_type
    assert desk.create(renewers=[user(f"u{n}") for n in range(21)]).error_code == ErrorCode.invalid_request
    assert desk.create(renewers=[user("")]).error_code == ErrorCode.invalid_request
    owner: Any = {"owner_principal_type": "Group", "owner_principal_name": "ops"}
    assert desk.create(**owner).error_code == ErrorCode.invalid_principal_type


def test_an_owner_has_no_more_tokens_than_the_most(desk: TokenDesk) -> None:
    for _ in range(MOST_OF_ONE):
        assert desk.create(max_lifetime=timedelta(milliseconds=1_500)).error_code == ErrorCode.none
    if len(desk.describe().tokens) == MOST_OF_ONE:  # else the machine is slow, and the first have expired
        assert desk.create().error_code == ErrorCode.policy_violation
    assert desk.as_("bob").create().error_code == ErrorCode.none
    wait_for(lambda: desk.as_("alice").describe().tokens == (), "they have expired")
    made = desk.create()
    assert made.error_code == ErrorCode.none, "expired ones make room"
    assert desk.renew(made.hmac).error_code == ErrorCode.none


def test_an_expired_token_cannot_be_renewed(desk: TokenDesk) -> None:
    made = desk.create(max_lifetime=timedelta(milliseconds=300))
    wait_for(lambda: desk.describe().tokens == (), "it has expired")
    assert desk.renew(made.hmac).error_code == ErrorCode.delegation_token_expired
    assert desk.expire(made.hmac, HOUR).error_code == ErrorCode.delegation_token_expired


def test_tokens_go_with_their_owner(desk: TokenDesk) -> None:
    made = desk.as_("bob").create(renewers=[user("alice")])
    desk.run(desk.broker.users.remove("bob"))
    assert desk.as_("alice").renew(made.hmac).error_code == ErrorCode.delegation_token_not_found


def test_who_is_removed_makes_no_more_tokens(desk: TokenDesk) -> None:
    """A connection of its own may be there for half a second."""
    desk.run(desk.broker.users.remove("bob"))
    assert desk.as_("bob").create().error_code == ErrorCode.delegation_token_request_not_allowed
    assert desk.broker.delegation_tokens.listing() == []


def test_a_token_that_is_made_while_its_owner_is_removed_is_not_made(desk: TokenDesk) -> None:
    async def main() -> None:
        users, tokens = desk.broker.users, desk.broker.delegation_tokens
        turn = tokens._changes._turn
        async with turn:
            making = asyncio.ensure_future(tokens.create("bob", "alice", (), -1))
            await until(lambda: tokens._changes._under_way)
            await users.remove("bob")
        with pytest.raises(Conflict):
            await making

    desk.run(main())
    assert desk.broker.delegation_tokens.listing() == []


def test_a_token_that_comes_between_the_steps_of_its_owners_removal_goes_too(
    desk: TokenDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, tokens = desk.broker.users, desk.broker.delegation_tokens
    write = users._write

    async def later(*about: Any) -> None:
        monkeypatch.setattr(users, "_write", write)
        await tokens.create("bob", "bob", (), -1)
        await write(*about)

    monkeypatch.setattr(users, "_write", later)
    desk.run(users.remove("bob"))
    assert tokens.listing() == []


def test_expired_tokens_of_others_keep_nobody_from_making_one(desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.security.delegation_tokens.SWEPT_AT_ONCE", 1)
    monkeypatch.setattr("waystation.security.delegation_tokens.MOST_OF_ONE", 2)
    for who in ("alice", "alice", "bob", "bob"):
        assert desk.as_(who).create(max_lifetime=timedelta(milliseconds=300)).error_code == ErrorCode.none
    wait_for(lambda: desk.broker.delegation_tokens.listing() == [], "they have expired")
    assert desk.as_("bob").create().error_code == ErrorCode.none


@pytest.mark.parametrize("offline", [False, True])
def test_a_token_goes_with_its_owner_though_there_is_no_secret_key_at_the_time(tmp_path: Path, offline: bool) -> None:
    def broker(**more: str) -> AbstractAsyncContextManager[Broker]:
        return broker_on(tmp_path / "data", None, auth_required="true", **more)

    async def make() -> str:
        async with broker(delegation_token_secret_key=KEY) as found:
            await found.users.add("bob", User())
            return (await found.delegation_tokens.create("bob", "bob", (), -1)).id

    async def remove() -> None:
        async with broker() as found:
            await found.users.remove("bob")

    async def valid(token_id: str) -> bool:
        async with broker(delegation_token_secret_key=KEY) as found:
            return found.delegation_tokens.valid(token_id) is not None

    made = run(make())
    assert run(valid(made))
    if offline:
        command("users", "remove", "bob", "--data", str(tmp_path / "data"))
    else:
        run(remove())
    assert not run(valid(made))


def test_all_at_once_cannot_pass_the_bound(desk: TokenDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.security.delegation_tokens.MAX_TOKENS", 1)
    desk.create()
    with pytest.raises(Full):
        desk.run(desk.broker.delegation_tokens.create("bob", "bob", (), -1))


# -- logging in --------------------------------------------------------------------------------------------------------


def settings(**more: Any) -> dict[str, Any]:
    return {"connection.failed.authentication.delay.ms": 1, "delegation.token.secret.key": KEY, **more}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("delegation")
    add_users(folder / "data", PASSWORDS, superusers=("admin",))
    with Server(folder, settings=settings()) as found:
        yield found


class Wire:
    """A Kafka client that logs in by SCRAM, with or without `tokenauth`."""

    def __init__(
        self, server: Server, name: str, password: str, *, token: bool, mechanism: str = "SCRAM-SHA-256"
    ) -> None:
        host, _, port = server.bootstrap.rpartition(":")
        self.link = socket.create_connection((host, int(port)), timeout=20)
        self.code, self.lifetime_ms = self._log_in(mechanism, name, password, b",tokenauth=true" if token else b"")

    def send(self, data: bytes) -> bytes | None:
        self.link.sendall(data)
        return answer_of(self.link)

    def _log_in(self, mechanism: str, name: str, password: str, extension: bytes) -> tuple[int, int]:
        self.send(handshake(mechanism))
        bare = b"n=%b,r=abc" % scram.name_to_wire(name) + extension
        code, first = _authenticated(self.send(authenticate(b"n,," + bare)))[:2]
        if code:
            return code, 0
        said = dict(scram.attributes(first))
        final = b"c=biws,r=" + said["r"]
        message = b",".join((bare, first, final))
        salted = scram.salted_password(mechanism, password.encode(), base64.b64decode(said["s"]), int(said["i"]))
        proof = base64.b64encode(scram.proof_of(mechanism, salted, message))
        code, _, lifetime_ms = _authenticated(self.send(authenticate(final + b",p=" + proof)))
        return code, lifetime_ms

    @property
    def open(self) -> bool:
        return self.send(request(METADATA, 1, struct.pack(">i", 0))) is not None

    def create(self) -> tuple[int, str, bytes]:
        """(error, id, hmac) of CreateDelegationToken, version 1."""
        found = self.send(request(38, 1, struct.pack(">iq", 0, -1)))
        assert found is not None
        (code,) = struct.unpack_from(">h", found)
        at = 2
        for _ in range(2):
            at += 2 + struct.unpack_from(">h", found, at)[0]
        at += 24
        (size,) = struct.unpack_from(">h", found, at)
        token_id = found[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (size,) = struct.unpack_from(">i", found, at)
        return code, token_id, found[at + 4 : at + 4 + size]

    def move(self, api: int, hmac: bytes, period_ms: int) -> int:
        found = self.send(request(api, 1, struct.pack(">i", len(hmac)) + hmac + struct.pack(">q", period_ms)))
        assert found is not None
        return int(struct.unpack_from(">h", found)[0])

    def close(self) -> None:
        self.link.close()


RENEW, EXPIRE = 39, 40


def _authenticated(answer: bytes | None) -> tuple[int, bytes, int]:
    """(error, bytes, lifetime) of SaslAuthenticate, version 1."""
    assert answer is not None
    code, size = struct.unpack_from(">hh", answer)
    at = 4 + max(size, 0)
    (size,) = struct.unpack_from(">i", answer, at)
    return code, answer[at + 4 : at + 4 + size], struct.unpack_from(">q", answer, at + 4 + size)[0]


def secret(hmac: bytes) -> str:
    return base64.b64encode(hmac).decode()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_logs_in_as_its_owner_and_makes_no_other(server: Server, mechanism: str) -> None:
    alice = Wire(server, "alice", PASSWORDS["alice"], token=False)
    code, token_id, hmac = alice.create()
    assert code == 0
    worker = Wire(server, token_id, secret(hmac), token=True, mechanism=mechanism)
    assert worker.code == 0
    assert 0 < worker.lifetime_ms <= 86_400_000
    assert worker.open
    assert worker.create()[0] == ErrorCode.delegation_token_request_not_allowed.value
    assert Wire(server, token_id, secret(hmac), token=False).code == 58
    assert Wire(server, token_id, secret(hmac[:-1] + b"x"), token=True).code == 58
    assert Wire(server, "alice", PASSWORDS["alice"], token=True).code == 58, "a user is no token"
    assert alice.move(EXPIRE, hmac, 60_000) == 0
    assert not worker.open, "its session would have lasted for a day"
    worker = Wire(server, token_id, secret(hmac), token=True, mechanism=mechanism)
    assert worker.open
    assert 0 < worker.lifetime_ms <= 60_000
    assert alice.move(EXPIRE, hmac, -1) == 0
    assert not worker.open, "what has logged in by it ends with it"
    assert Wire(server, token_id, secret(hmac), token=True).code == 58
    alice.close()


def test_a_token_survives_a_restart_and_ends_with_another_secret_key(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",))
    with Server(tmp_path, settings=settings()) as server:
        _, token_id, hmac = Wire(server, "alice", PASSWORDS["alice"], token=False).create()
    with Server(tmp_path, settings=settings()) as server:
        assert Wire(server, token_id, secret(hmac), token=True).open
        assert Wire(server, "alice", PASSWORDS["alice"], token=False).move(RENEW, hmac, -1) == 0
    looked = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not [path for path in looked if hmac in path.read_bytes() or secret(hmac).encode() in path.read_bytes()]
    with Server(tmp_path, settings=settings(**{"delegation.token.secret.key": "another"})) as server:
        assert Wire(server, token_id, secret(hmac), token=True).code == 58
        assert Wire(server, "alice", PASSWORDS["alice"], token=False).move(RENEW, hmac, -1) == 62


# -- Kafka's own client ------------------------------------------------------------------------------------------------


def kafka_jars() -> Path | None:
    home = os.environ.get("KAFKA_HOME")
    places = (
        [Path(home) / "libs"] if home else sorted(Path("~/.cache/waystation-bench").expanduser().glob("kafka-*/libs"))
    )
    return next((one for one in places if list(one.glob("kafka-clients-*.jar"))), None)


def test_kafkas_java_client_makes_uses_renews_and_ends_tokens(server: Server) -> None:
    java, jars = shutil.which("java"), kafka_jars()
    if java is None or jars is None:
        pytest.skip("needs java, and Kafka's jars in $KAFKA_HOME/libs or where `make bench` keeps them")
    program = Path(__file__).parent / "data" / "DelegationTokens.java"
    done = subprocess.run(
        [java, "-Xmx128m", "-cp", f"{jars}/*", str(program), server.bootstrap, "alice", PASSWORDS["alice"]],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    steps = ["created", "described", "renewed", "published", "refused", "expired", "shut-out"]
    assert [line for line in done.stdout.splitlines() if line in steps] == steps, "and what the client logs"
