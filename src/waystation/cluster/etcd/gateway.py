"""The client of etcd's JSON gateway: kept connections, several endpoints, a user's token, TLS.

What must hold: a request that is not `repeatable` is sent at most once, so that a write without an answer is in doubt
and never doubled. A repeatable one is sent to the next endpoint when one gives no answer. Calls block. Any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from waystation.cluster.address import EtcdAddress, shown
from waystation.cluster.decisions.state import Address
from waystation.cluster.etcd.connection import Connection
from waystation.cluster.etcd.messages import Authenticate, EtcdMessage, Refusal, Token, decode, encode
from waystation.errors import Invalid, NotAllowed, StoreUnavailable

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_IDLE_MOST = 4
"""Connections to an endpoint that are kept open while nobody needs them."""

# gRPC's codes.
DEADLINE_EXCEEDED = 4
INVALID_ARGUMENT = 3
NOT_FOUND = 5
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
OUT_OF_RANGE = 11
UNAUTHENTICATED = 16

_CALLERS_FAULT = frozenset({INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, OUT_OF_RANGE})


class EtcdRefused(Exception):
    """etcd has answered that it does not do this, for a reason that its caller may understand. Nothing was done."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Gateway:
    """One per store. Connects when something is asked."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        self._password = _password(address)
        self._tls = _tls_context(address) if address.tls else None
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = {endpoint: [] for endpoint in address.endpoints}
        self._first = 0  # of the endpoints: the one that answered last
        self._token = ""
        self._closed = False

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, path: str, request: EtcdMessage, kind: type[T], *, repeatable: bool) -> T:
        """Raises Refused, StoreUnavailable, NotAllowed."""
        body = encode(request)
        failures: list[str] = []
        for endpoint in self.endpoints():
            try:
                return self._ask(endpoint, path, body, kind, repeatable=repeatable)
            except _NoAnswer as failure:
                failures.append(f"{shown(endpoint)}: {failure}")
                self._avoid(endpoint)
                if failure.sent and not repeatable:
                    break
        raise _unavailable("; ".join(failures))

    def ask_at(self, endpoint: Address, path: str, request: EtcdMessage, kind: type[T]) -> T:
        """The same of one endpoint, repeatable."""
        try:
            return self._ask(endpoint, path, encode(request), kind, repeatable=True)
        except _NoAnswer as failure:
            self._avoid(endpoint)
            raise _unavailable(f"{shown(endpoint)}: {failure}") from failure

    def endpoints(self) -> list[Address]:
        """In the order in which they are to be tried."""
        first, all_of_them = self._first, self._address.endpoints
        return [*all_of_them[first:], *all_of_them[:first]]

    def _avoid(self, endpoint: Address) -> None:
        """It gave no answer: the next one comes first from now on. Its other connections are likely to be dead too."""
        with self._lock:
            if self._address.endpoints[self._first] == endpoint:
                self._first = (self._first + 1) % len(self._address.endpoints)
            idle, self._idle[endpoint] = self._idle[endpoint], []
        for connection in idle:
            connection.close()

    def _ask(self, endpoint: Address, path: str, body: bytes, kind: type[T], *, repeatable: bool) -> T:
        token = self._token or self._log_in(endpoint)
        try:
            answer = self._exchange(endpoint, path, body, token, repeatable=repeatable)
        except _TokenRefused:  # so nothing was done
            self._token = ""
            try:
                answer = self._exchange(endpoint, path, body, self._log_in(endpoint), repeatable=repeatable)
            except _TokenRefused as error:
                raise NotAllowed(f"etcd at {shown(endpoint)} refuses user {self._address.user!r}: {error}") from error
        try:
            return decode(answer, kind)
        except msgspec.DecodeError as error:
            raise _NoAnswer(f"an answer that cannot be read ({error})", sent=True) from error

    def _log_in(self, endpoint: Address) -> str:
        if not self._address.user:
            return ""
        body = encode(Authenticate(self._address.user, self._password))
        try:
            answer = self._exchange(endpoint, "/v3/auth/authenticate", body, "", repeatable=True)
        except EtcdRefused as refused:
            if "authentication is not enabled" in refused.text:
                return ""
            raise NotAllowed(
                f"etcd at {shown(endpoint)} does not let user {self._address.user!r} in: {refused.text}; check user and"
                " password in the cluster's address"
            ) from refused
        self._token = decode(answer, Token).token
        return self._token

    def _exchange(self, endpoint: Address, path: str, body: bytes, token: str, *, repeatable: bool) -> bytes:
        connection = self._kept(endpoint)
        if connection is not None:
            try:
                return self._on(connection, endpoint, path, body, token)
            except _NoAnswer as failure:
                if not repeatable or failure.slow:
                    raise
        return self._on(self._connected(endpoint), endpoint, path, body, token)

    def _on(self, connection: Connection, endpoint: Address, path: str, body: bytes, token: str) -> bytes:
        try:
            status, answer = connection.ask(path, body, token, self._address.timeout_s)
        except OSError as error:
            connection.close()
            slow = isinstance(error, TimeoutError)
            text = f"nothing within {self._address.timeout_s:g} s" if slow else _said(error)
            raise _NoAnswer(text, sent=True, slow=slow) from error
        self._keep(endpoint, connection)
        if status == 200:
            return answer
        raise _refusal(status, answer)

    # -- streams ----------------------------------------------------------------------------------------------------

    @contextmanager
    def stream(self, endpoint: Address) -> Iterator[Connection]:
        """A connection of its own, for `lines`. Raises StoreUnavailable."""
        try:
            connection = self._connected(endpoint)
        except _NoAnswer as failure:
            self._avoid(endpoint)
            raise _unavailable(f"{shown(endpoint)}: {failure}") from failure
        try:
            yield connection
        finally:
            connection.close()

    def lines(self, connection: Connection, path: str, request: EtcdMessage, idle_s: float) -> Iterator[bytes | None]:
        """As `Connection.lines`, with the token of the last request."""
        return connection.lines(path, encode(request), self._token, self._address.timeout_s, idle_s)

    # -- connections ------------------------------------------------------------------------------------------------

    def _connected(self, endpoint: Address) -> Connection:
        if self._closed:
            raise StoreUnavailable("the cluster's store is closed")
        try:
            return Connection(endpoint, self._tls, self._address.timeout_s)
        except OSError as error:
            raise _NoAnswer(_said(error), sent=False) from error

    def _kept(self, endpoint: Address) -> Connection | None:
        while True:
            with self._lock:
                idle = self._idle[endpoint]
                if not idle:
                    return None
                connection = idle.pop()
            if connection.is_usable():
                return connection
            connection.close()

    def _keep(self, endpoint: Address, connection: Connection) -> None:
        with self._lock:
            idle = self._idle[endpoint]
            if not self._closed and len(idle) < _IDLE_MOST:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [connection for kept in self._idle.values() for connection in kept]
            self._idle = {endpoint: [] for endpoint in self._idle}
        for connection in idle:
            connection.close()


class _NoAnswer(Exception):
    """`sent`: the request may have arrived. `slow`: the time was over, so that another connection is no better."""

    def __init__(self, text: str, *, sent: bool, slow: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.slow = slow


class _TokenRefused(Exception):
    pass


def _refusal(status: int, body: bytes) -> Exception:
    try:
        said = decode(body, Refusal)
    except msgspec.DecodeError:
        return _NoAnswer(f"HTTP {status}, which is not an answer of etcd's JSON gateway", sent=True)
    text = said.message or said.error
    if said.code == UNAUTHENTICATED or "revision of auth store is old" in text:
        return _TokenRefused(text)
    if said.code == PERMISSION_DENIED or "user name is empty" in text:
        return NotAllowed(
            f"etcd does not allow this: {text}; the cluster's address (etcd://USER:PASSWORD@HOST/PREFIX) needs a user"
            " who may read and write everything under its prefix"
        )
    if said.code in _CALLERS_FAULT:
        return EtcdRefused(said.code, text)
    return _NoAnswer(text, sent=True)


def _unavailable(why: str) -> StoreUnavailable:
    return StoreUnavailable(f"etcd does not answer: {why}")


def _said(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _password(address: EtcdAddress) -> str:
    if not address.password_file:
        return address.password
    try:
        return Path(address.password_file).read_text().rstrip("\n")
    except OSError as error:
        raise Invalid(f"the password file {address.password_file} of the cluster's address: {_said(error)}") from error


def _tls_context(address: EtcdAddress) -> ssl.SSLContext:
    import ssl

    try:
        context = ssl.create_default_context(cafile=address.ca or None)
        if address.cert:
            context.load_cert_chain(address.cert, address.key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"ca, cert or key of the cluster's address cannot be used: {_said(error)}") from error
    return context
