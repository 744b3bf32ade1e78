"""Who is there: one for all protocols of a broker. What a listener offers, whether a login is right, and what a wrong
one costs.

Invariants: an answer does not tell whether a user exists, neither by what it says nor by how long it takes; a failed
login is counted, and told only after a pause that grows with failures from the same address; passwords are compared by
verifiers alone, on threads, two at a time, so that a flood of logins does not stop the loop or the disk.

While `auth.required` is `auto`, a broker without users asks nobody (it listens on loopback alone), and the first user
closes it: from then on everybody has to log in. On the loop's thread only, but for `_Directory`, which reads.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from waystation.observe.events import event_logger
from waystation.security import credentials
from waystation.security.api_keys import looks_like_key
from waystation.security.failures import LoginFailures
from waystation.security.mapping_rules import MappingRule, parse_rules, user_of
from waystation.security.principals import Principal, key_credential, token_credential
from waystation.security.sasl.exchange import MAX_MESSAGE_BYTES, Challenge, Failed, LoggedIn, Outcome, SaslExchange

if TYPE_CHECKING:
    from waystation.config import BrokerSettings
    from waystation.observe.meters import Meters
    from waystation.security.api_keys import ApiKeys
    from waystation.security.delegation_tokens import DelegationTokens
    from waystation.security.kerberos import Kerberos
    from waystation.security.sasl.gssapi import GssContext
    from waystation.security.tokens import Tokens
    from waystation.security.users import Users
    from waystation.wire.scram import ScramKeys
    from waystation.world import World

logger = event_logger("waystation.login")

NODE_MECHANISM = "WAYSTATION-NODE"
"""By which nodes of a cluster log in at each other; not told to clients."""
KEY_MECHANISM = "API-KEY"
"""As the audit log calls a key that is sent with a request."""
EXPIRED = "the token or key that this client has logged in by has expired"
"""Why a connection ends."""
MAX_NAME = 255
"""Characters of a name that somebody wanted to log in by that are remembered."""
AT_ONCE = 2
"""Passwords that are checked at the same time: the disk uses the same four threads."""
REMEMBERED_PASSWORDS = 1_000
"""Of HTTP's basic authentication, which sends the password with every request."""


class LoginPeer(msgspec.Struct, frozen=True):
    """Where a login comes from. `certificate`: the principal that a client certificate has shown."""

    protocol: str
    host: str
    certificate: Principal | None = None


class Login(msgspec.Struct, frozen=True):
    """A login, or one that failed, for who keeps account of them."""

    user: str
    host: str
    protocol: str
    mechanism: str
    failure: str = ""


class Authenticator:
    """One per broker."""

    def __init__(
        self,
        users: Users,
        keys: ApiKeys,
        delegation_tokens: DelegationTokens,
        settings: BrokerSettings,
        world: World,
        meters: Meters,
    ) -> None:
        self._users = users
        self._keys = keys
        self._delegation_tokens = delegation_tokens
        self._settings = settings
        self._world = world
        self._meters = meters
        self._superusers = frozenset(part for part in settings.text("auth.superusers").split(",") if part)
        self._rules = parse_rules(settings.text("ssl.principal.mapping.rules"))
        self._failures = LoginFailures()
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._token_turn = asyncio.Semaphore(1)
        self._remembered: OrderedDict[bytes, tuple[str, int]] = OrderedDict()
        self._memory_key = b""  # drawn when the first password comes
        self._directory = _Directory(
            users, self.principal, self._key_outcome, delegation_tokens.scram_keys, self._token_login
        )
        self._sealed = False
        self._on_change: list[Callable[[], None]] = []
        self._on_login: list[Callable[[Login], None]] = []
        self._tokens = _tokens(settings, world)
        self._kerberos = _kerberos(settings)

    # -- what is offered --------------------------------------------------------------------------------------------

    @property
    def required(self) -> bool:
        """Whether a client has to show who it is."""
        said = self._settings.text("auth.required")
        return said == "true" or (said == "auto" and (self._sealed or len(self._users) > 0))

    @property
    def offered(self) -> bool:
        """Whether a client can show who it is."""
        return self.required or len(self._users) > 0 or self._tokens is not None or self._kerberos is not None

    @property
    def guests(self) -> bool:
        """Whether AMQP's `guest` may enter, with the password that everybody knows: only while there are no users."""
        return not self.required and len(self._users) == 0

    def seal(self) -> None:
        """The broker can be reached from other machines: removing the last user does not open it."""
        self._sealed = True
        for callback in self._on_change:
            callback()

    def subscribe_changes(self, callback: Callable[[], None]) -> None:
        """`callback` is called when `required` may be another than before, and no user has changed."""
        self._on_change.append(callback)

    def mechanisms(self, protocol: str) -> tuple[str, ...]:
        """In the order of preference."""
        enabled = self._settings.text("sasl.enabled.mechanisms").split(",")
        found: list[str] = [one for one in ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN") if one in enabled]
        if protocol == "amqp":
            found = ["PLAIN", "AMQPLAIN"] if "PLAIN" in enabled else []
            return (*found, "EXTERNAL")
        if self._tokens is not None and "OAUTHBEARER" in enabled:
            found.append("OAUTHBEARER")
        if self._kerberos is not None and "GSSAPI" in enabled:
            found.append("GSSAPI")
        return (*found, "EXTERNAL") if protocol == "native" else tuple(found)

    def principal(self, name: str) -> Principal | None:
        """The user of this name, with what is known of it now. `USER@NAMESPACE` is the user in another namespace than
        its home, if no user is called so."""
        login, namespace = self._users.split(name)
        user = self._users.find(login)
        if user is None:
            return None
        superuser = user.superuser or login in self._superusers
        return Principal(login, groups=user.groups, superuser=superuser, namespace=namespace or user.namespace)

    def revision(self, name: str) -> int:
        """Of a user: another one whenever it was changed."""
        return self._users.revision(self._users.split(name)[0])

    def certificate(self, ssl_object: Any, rules: tuple[MappingRule, ...] = ()) -> Principal | None:
        """Whom the client certificate of a TLS connection stands for; None: it has none, or stands for nobody. `rules`:
        instead of those for all listeners."""
        ask = getattr(ssl_object, "getpeercert", None)
        found = None if ask is None else ask()
        name = user_of(rules or self._rules, found) if found else None
        return None if name is None else self._named(name)

    def _named(self, name: str, groups: tuple[str, ...] = ()) -> Principal:
        """Somebody whom another authority vouches for: a user of this name need not exist. The name is the whole name:
        that of `alice@example.com` is not Alice in a namespace, as it would be if she logged in by her password."""
        known = self.principal(name) if name in self._users else None
        if known is None:
            return Principal(name, groups=groups, superuser=name in self._superusers)
        return Principal(name, "User", (*known.groups, *groups), known.superuser, known.namespace)

    # -- logins -----------------------------------------------------------------------------------------------------

    def begin(self, mechanism: str, peer: LoginPeer) -> SaslExchange | None:
        """None: it is not offered here."""
        if mechanism == NODE_MECHANISM and peer.protocol == "native":
            from waystation.security.node_links import NodeExchange

            return NodeExchange(self._users.secret, self._world.random.token)
        if mechanism not in self.mechanisms(peer.protocol):
            return None
        # Imported when the first client logs in: a broker that nobody logs in to starts faster.
        if mechanism in ("PLAIN", "AMQPLAIN"):
            from waystation.security.sasl.plain import AmqplainExchange, PlainExchange

            directory = _TokensToo(self._directory, self._token_outcome) if peer.protocol == "amqp" else self._directory
            return PlainExchange(directory) if mechanism == "PLAIN" else AmqplainExchange(directory)
        if mechanism == "EXTERNAL":
            from waystation.security.sasl.external import ExternalExchange

            return ExternalExchange(peer.certificate)
        if mechanism == "OAUTHBEARER":
            from waystation.security.sasl.oauthbearer import OAuthBearerExchange

            return OAuthBearerExchange(self._token_outcome)
        if mechanism == "GSSAPI" and self._kerberos is not None:
            from waystation.security.sasl.gssapi import GssapiExchange

            return GssapiExchange(self._kerberos.begin, self._kerberos_login)
        from waystation.security.sasl.scram import ScramExchange

        return ScramExchange(mechanism, self._directory, self._world.random.token)

    def _kerberos_login(self, context: GssContext) -> LoggedIn | Failed:
        """Whom a Kerberos ticket stands for. Any thread: nothing here writes."""
        found = "" if self._kerberos is None else self._kerberos.user(context)
        return LoggedIn(self._named(found)) if isinstance(found, str) else Failed(str(found), context.initiator)

    def _token_login(self, token_id: str) -> LoggedIn | None:
        """Whom a delegation token stands for."""
        token = self._delegation_tokens.valid(token_id)
        if token is None:
            return None
        principal = self._named(token.owner).by(token_credential(token_id))
        return LoggedIn(principal, expires_ms=token.expires_ms)

    async def step(self, exchange: SaslExchange, data: bytes, peer: LoginPeer) -> Outcome:
        """The next step of a login. A failure is returned after its pause."""
        if len(data) > MAX_MESSAGE_BYTES:
            outcome: Outcome = Failed(f"a message of {len(data)} bytes")
        elif exchange.blocking:
            async with self._token_turn if exchange.mechanism == "OAUTHBEARER" else self._turn:
                outcome = await self._world.offload(exchange.step, data)
        else:
            outcome = exchange.step(data)
        return await self._settled(outcome, exchange.mechanism, peer)

    async def password(self, name: str, password: bytes, peer: LoginPeer) -> Outcome:
        """A name and a password, as HTTP sends them with every request: those that were right are remembered."""
        if password.startswith(credentials.KEY_BEGIN):
            return await self._settled(self._directory.check(name, password), KEY_MECHANISM, peer)
        self._memory_key = self._memory_key or self._world.random.token(32)
        mark = hmac.digest(self._memory_key, name.encode("utf-8", "surrogateescape") + b"\0" + password, "sha256")
        revision = self.revision(name)
        principal = self.principal(name)
        if principal is not None and self._remembered.get(mark) == (name, revision):
            return _from(LoggedIn(principal), peer)
        async with self._turn:
            outcome = await self._world.offload(self._directory.check, name, password)
        if isinstance(outcome, LoggedIn):
            self._remember(mark, name, revision)
        return await self._settled(outcome, "PLAIN", peer)

    async def bearer(self, token: str, peer: LoginPeer) -> Outcome:
        """An API key, or a token as HTTP sends it, and AMQP's clients as their password."""
        if looks_like_key(token):
            return await self._settled(self._key_outcome(token), KEY_MECHANISM, peer)
        async with self._token_turn:
            outcome: Outcome = await self._world.offload(self._token_outcome, token)
        return await self._settled(outcome, "OAUTHBEARER", peer)

    def _key_outcome(self, text: str) -> LoggedIn | Failed:
        """Whom an API key shows. Any thread: nothing here writes."""
        found = self._keys.check(text)
        if isinstance(found, str):
            return Failed(found)
        key_id, key = found
        principal = self.principal(key.owner)
        if principal is None:
            return Failed("the owner of the API key does not exist any more", key.owner)
        return LoggedIn(principal.by(key_credential(key_id), key.role), expires_ms=key.expires_ms)

    async def _settled(self, outcome: Outcome, mechanism: str, peer: LoginPeer) -> Outcome:
        """The outcome, when it is counted and may be told, with the address that its principal is at."""
        if isinstance(outcome, LoggedIn) and not self.holds(outcome.principal.credential):
            outcome = Failed("it was revoked while the client logged in", outcome.principal.name)
        await self._settle(outcome, mechanism, peer)
        return _from(outcome, peer)

    def holds(self, credential: str) -> bool:
        """Whether what somebody has logged in by is still there."""
        kind, _, found = credential.partition(":")
        if kind == "token":
            return self._delegation_tokens.valid(found) is not None
        return kind != "key" or self._keys.find(found) is not None

    def _token_outcome(self, token: str) -> LoggedIn | Failed:
        if self._tokens is None:
            return Failed("no identity provider is configured (sasl.oauthbearer.jwks.endpoint.url)")

        owner = self._tokens.check(token)
        if isinstance(owner, Failed):
            return owner
        return LoggedIn(self._named(owner.name, owner.groups), expires_ms=owner.expires_ms)

    async def _settle(self, outcome: Outcome, mechanism: str, peer: LoginPeer) -> None:
        if isinstance(outcome, Challenge):
            return
        if isinstance(outcome, LoggedIn):
            self._failures.succeeded(peer.host, outcome.principal.name)
            self._meters.logins.succeeded(peer.protocol)
            by = outcome.principal.credential
            if mechanism != KEY_MECHANISM or self._first_use(by, outcome.principal.name, peer):
                said = f"{mechanism} {by}" if by else mechanism
                self._tell(Login(str(outcome.principal), peer.host, peer.protocol, said))
            return
        await self.refuse(outcome, mechanism, peer)

    def _first_use(self, credential: str, name: str, peer: LoginPeer) -> bool:
        """Of a key that HTTP sends with every request: only the first from an address is told, as with passwords."""
        mark = f"{credential}\0{peer.host}".encode()
        if mark in self._remembered:
            return False
        self._remember(mark, name, 0)
        return True

    def _remember(self, mark: bytes, name: str, revision: int) -> None:
        self._remembered[mark] = (name, revision)
        if len(self._remembered) > REMEMBERED_PASSWORDS:
            self._remembered.popitem(last=False)

    async def refuse(self, failure: Failed, mechanism: str, peer: LoginPeer) -> None:
        """Counts and logs a failed login, and returns when it may be told."""
        self._meters.logins.failed(peer.protocol)
        base_s = self._settings.integer("connection.failed.authentication.delay.ms") / 1000
        wanted = self._users.split(failure.user)[0][:MAX_NAME]
        pause_s = self._failures.failed(peer.host, wanted, self._world.clock.monotonic(), base_s)
        logger.warning(
            "login.refused",
            "login of {user!r} from {client} refused: {reason}",
            protocol=peer.protocol,
            mechanism=mechanism[:20],
            user=failure.user[:60],
            client=peer.host,
            reason=failure.reason,
        )
        user = failure.user or "?"
        self._tell(Login(f"User:{user[:60]}", peer.host, peer.protocol, mechanism[:20], failure.reason))
        if pause_s:
            await asyncio.sleep(pause_s)

    def certified(self, principal: Principal, peer: LoginPeer) -> Principal:
        """A connection's client certificate is its login: the principal, at its address."""
        self._tell(Login(str(principal), peer.host, peer.protocol, "certificate"))
        return principal.at(peer.host, peer.protocol)

    def subscribe_logins(self, callback: Callable[[Login], None]) -> None:
        """`callback` is told of every login, and of those that failed; not of repeated ones by HTTP."""
        self._on_login.append(callback)

    def _tell(self, login: Login) -> None:
        for callback in self._on_login:
            callback(login)

    def session_ms(self, done: LoggedIn) -> int:
        """How long a Kafka client may go on before it has to log in again (KIP-368); 0: as long as it likes."""
        limit = self._settings.integer("connections.max.reauth.ms")
        if done.expires_ms is None:
            return limit
        left = max(1, done.expires_ms - self._world.clock.now_ms())
        return min(limit, left) if limit else left


def _from(outcome: Outcome, peer: LoginPeer) -> Outcome:
    """With the address that the principal is at: rules may ask for it."""
    if not isinstance(outcome, LoggedIn):
        return outcome
    return replace(outcome, principal=outcome.principal.at(peer.host, peer.protocol))


class _Directory:
    """What mechanisms ask about users, on any thread: nothing here writes."""

    def __init__(
        self,
        users: Users,
        principal: Callable[[str], Principal | None],
        check_key: Callable[[str], LoggedIn | Failed],
        token_keys: Callable[[str, str], ScramKeys | None],
        token_login: Callable[[str], LoggedIn | None],
    ) -> None:
        self._users = users
        self.principal = principal
        self._check_key = check_key
        self._token_keys = token_keys
        self._token_login = token_login

    def is_password(self, name: str, password: bytes) -> bool:
        verifiers = self._users.verifiers(self._users.split(name)[0])
        if not verifiers or isinstance(verifiers[0], credentials.RabbitHash):
            # As slow as for others: nobody shall see by the time whether there is such a user.
            usual = "SCRAM-SHA-256"
            decoy = credentials.decoy(usual, self._users.unknown(name), self._users.secret, self._users.rounds(usual))
            credentials.matches((decoy,), password)
        return credentials.matches(verifiers, password)

    def check(self, name: str, password: bytes) -> LoggedIn | Failed:
        if password.startswith(credentials.KEY_BEGIN):
            found = self._check_key(password.decode("utf-8", "surrogateescape"))
            if isinstance(found, Failed):
                return Failed(found.reason, name)
            login, namespace = self._users.split(name)
            if found.principal.name != login:
                return Failed("the API key is another user's", name)
            home = found.principal.namespace
            return replace(found, principal=replace(found.principal, namespace=namespace or home))
        right = self.is_password(name, password)
        principal = self.principal(name)
        if not right or principal is None:
            return Failed("wrong password, or no such user", name)
        return LoggedIn(principal)

    def scram_keys(self, name: str, mechanism: str, *, token: bool = False) -> ScramKeys:
        if token:
            found = self._token_keys(name, mechanism)
            return found or credentials.decoy(mechanism, name, self._users.secret)
        found = credentials.scram_keys(self._users.verifiers(self._users.split(name)[0]), mechanism)
        rounds = self._users.rounds(mechanism)
        return found or credentials.decoy(mechanism, self._users.unknown(name), self._users.secret, rounds)

    def proved(self, name: str, *, token: bool) -> LoggedIn | None:
        if token:
            return self._token_login(name)
        principal = self.principal(name)
        return None if principal is None else LoggedIn(principal)


class _TokensToo:
    """RabbitMQ's way to carry a token: as the password, with any name."""

    def __init__(self, directory: _Directory, check_token: Callable[[str], LoggedIn | Failed]) -> None:
        self._directory = directory
        self._check_token = check_token

    def check(self, name: str, password: bytes) -> LoggedIn | Failed:
        if password.startswith(b"ey") and password.count(b".") == 2 and password.isascii():
            found = self._check_token(password.decode())
            if isinstance(found, LoggedIn):
                return found
        return self._directory.check(name, password)


def _kerberos(settings: BrokerSettings) -> Kerberos | None:
    keytab = settings.text("waystation.kerberos.keytab")
    if not keytab:
        return None
    from waystation.security.kerberos import Kerberos, KerberosTerms
    from waystation.security.kerberos_names import parse_kerberos_rules

    rules = parse_kerberos_rules(settings.text("sasl.kerberos.principal.to.local.rules"))
    return Kerberos(KerberosTerms(keytab, settings.text("sasl.kerberos.service.name"), rules))


def _tokens(settings: BrokerSettings, world: World) -> Tokens | None:
    jwks = settings.text("sasl.oauthbearer.jwks.endpoint.url")
    if not jwks:
        return None
    from waystation.security.tokens import Tokens, TokenTerms

    audience = settings.text("sasl.oauthbearer.expected.audience")
    terms = TokenTerms(
        jwks,
        settings.text("sasl.oauthbearer.expected.issuer"),
        tuple(part for part in audience.split(",") if part),
        settings.text("sasl.oauthbearer.sub.claim.name"),
        settings.text("waystation.oauth.groups.claim"),
        settings.integer("sasl.oauthbearer.clock.skew.seconds"),
    )
    return Tokens(terms, world.clock.monotonic)
