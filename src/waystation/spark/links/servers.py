"""Which brokers a reader or writer talks to, as whom, and by what it knows that they are the right ones.

Made from options (`login_options`), pickled with them to wherever Spark works, and used there to connect. A secret that
was given as a file or a variable travels as that name, and is read when a connection is opened: a process that lives
for weeks logs in with what the file has then. A secret that was given as text travels, and is in no text of ours: the
representation of all this shows no secret, and no error repeats one.

A wrong login or certificate does not become right by trying again, so it is no OSError but NotAuthenticated, which
nobody in this package retries. Opens sockets; for the links of this package. Knows nothing of pyspark.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
from dataclasses import dataclass, field
from pathlib import Path

from waystation.client.links.address import Address as ClientAddress
from waystation.client.links.login import Credentials, Login
from waystation.client.links.servers import Server, TlsTerms
from waystation.errors import Invalid, NotAuthenticated

Address = tuple[str, int]

CONNECT_S = 10.0
ANSWER_S = 60.0
LISTEN_S = 2.0
"""How long a broker may take to say that it refuses a certificate."""
MAX_SECRET_BYTES = 64 * 1024
"""Of a file: what is larger is no password and no token, and brokers take no more before a login."""


_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""The one question that a Kafka listener answers to anybody."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A password or a token. `option` is how it was given, in the user's words."""

    option: str
    text: str = field(default="", repr=False)
    file: str = ""
    variable: str = ""

    def read(self) -> str:
        """The secret as it is now; Invalid says what this process is missing."""
        if self.file:
            return self._of_file()
        if self.variable:
            found = os.environ.get(self.variable, "")
            if not found:
                raise Invalid(
                    f"{self.option}: the variable {self.variable} is not set {_here()}; driver and executors each read"
                    " it themselves (spark.executorEnv.NAME sets it for executors), or give the secret as a file"
                )
            return found
        return self.text

    def _of_file(self) -> str:
        try:
            with Path(self.file).open("rb") as file:
                found = file.read(MAX_SECRET_BYTES + 1)
        except OSError as error:
            raise Invalid(
                f"{self.option}: {self.file} cannot be read {_here()} ({error.strerror}); driver and executors each"
                " read it themselves, so it has to be on all their machines"
            ) from None
        if len(found) > MAX_SECRET_BYTES:
            raise Invalid(f"{self.option}: {self.file} has more than {MAX_SECRET_BYTES} bytes; is it the right file?")
        try:
            text = found.decode().strip("\r\n")
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise Invalid(f"{self.option}: {self.file} has no text in it; write the secret into it, as one line")
        return text


@dataclass(frozen=True, slots=True)
class LoginTerms:
    """Whom to log in as. Each `exchange` is one login, with the secret as it is then."""

    user: str
    secret: Secret
    mechanism: str

    def exchange(self) -> Login:
        return Credentials(self.user, self.secret.read(), self.mechanism).exchange()

    def __str__(self) -> str:
        return f"user {self.user!r}" if self.user else "the token"


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses that are asked in turn, and how all of them are spoken to."""

    addresses: tuple[Address, ...]
    login: LoginTerms | None = None
    tls: TlsTerms | None = None

    def __str__(self) -> str:
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)

    @property
    def anonymous(self) -> bool:
        """Whether nothing tells the broker who is there."""
        return self.login is None and (self.tls is None or not self.tls.certificate)

    @property
    def whom(self) -> str:
        return "the holder of the certificate" if self.login is None else str(self.login)

    @property
    def for_client(self) -> list[Server]:
        """As the native client takes them; it is given the login by itself."""
        return [Server(ClientAddress(host, port), self.tls) for host, port in self.addresses]

    def check(self) -> None:
        """Raises Invalid for a secret, a CA or a certificate that this process cannot read."""
        if self.tls is not None:
            self.tls.context()
        if self.login is not None:
            self.login.secret.read()

    def open(self, address: Address) -> socket.socket:
        """A connected socket, encrypted where it has to be. OSError: nobody answers there; NotAuthenticated: the broker
        and this client do not trust each other."""
        context = None if self.tls is None else self.tls.context()
        plain = socket.create_connection(address, timeout=CONNECT_S)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened = plain if context is None else context.wrap_socket(plain, server_hostname=address[0])
            opened.settimeout(ANSWER_S)
        except (ssl.SSLError, ConnectionError) as error:
            plain.close()
            raise self.tls_failure(address, error) from None
        except BaseException:
            plain.close()
            raise
        return opened

    def tls_failure(self, address: Address, error: OSError) -> Exception:
        """What is to be raised for an error of TLS: one that stays, or the error itself, which may go away."""
        where = f"no TLS connection to {_spelled(address)} could be made"
        if isinstance(error, ssl.SSLCertVerificationError):
            return NotAuthenticated(
                f"{where}: the broker's certificate is not accepted ({error.verify_message}). Give the certificate"
                " authority that has signed it as the option ca, and the address by a name that is in it; one that has"
                " expired has to be replaced on the broker"
            )
        reason = _reason(error)
        if "ALERT" in reason:
            return self._not_accepted(address, reason.lower().replace("_", " "))
        # By chance one or the other: it depends on how much of the handshake was sent when the broker hung up.
        hung_up = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionError)
        if reason == "WRONG_VERSION_NUMBER" or (hung_up and _speaks_plainly(address) and not _speaks_tls(address)):
            return NotAuthenticated(
                f"{where}: that port does not speak TLS. Name the broker's TLS port, or leave out tls, ca and"
                " certificate (kafka.security.protocol=SSL or SASL_SSL)"
            )
        return error

    def _not_accepted(self, address: Address, said: str) -> NotAuthenticated:
        return NotAuthenticated(
            f"the broker at {_spelled(address)} refuses this client's certificate ({said}). Give one that its client-ca"
            " has signed, and that has not expired, as the options certificate and certificateKey"
        )

    def refused(self, address: Address, said: str = "") -> NotAuthenticated:
        """What a login that failed is told."""
        if self.login is None:
            return NotAuthenticated(
                f"the broker at {_spelled(address)} asks for a login: give the options user and passwordFile (or"
                " passwordEnv, tokenFile, or certificate and certificateKey)"
            )
        login = self.login
        whose = f"the options user and {login.secret.option}" if login.user else f"the option {login.secret.option}"
        exists = ", and whether the user exists there (`waystation users list`)" if login.user else ""
        return NotAuthenticated(
            f"the broker at {_spelled(address)} refused the login of {login} by {login.mechanism}: check"
            f" {whose}{exists}{f'; it says: {said}' if said else ''}"
        )

    def unanswered(self, address: Address, error: OSError) -> Exception:
        """What is to be raised for a connection that failed before the broker had answered anything: NotAuthenticated
        if TLS is the reason, else the error itself."""
        found: Exception = self.tls_failure(address, error) if isinstance(error, ssl.SSLError) else error
        if isinstance(found, NotAuthenticated):
            return found
        if self.tls is None and _speaks_tls(address):
            return NotAuthenticated(
                f"the broker at {_spelled(address)} speaks TLS alone: give the option ca, the certificate authority"
                " that has signed its certificate (or tls=true, if that is one of the system's)"
            )
        if self.tls is not None and self.tls.certificate:
            return self._certificate_refused(address) or found
        return found

    def _certificate_refused(self, address: Address) -> NotAuthenticated | None:
        """A broker looks at a client's certificate when the handshake is over for the client, and says what it does not
        like, or hangs up. Who has sent something by then may not hear it, so here nothing is sent."""
        try:
            with self.open(address) as opened:
                opened.settimeout(LISTEN_S)
                return None if opened.recv(1) else self._not_accepted(address, "it hangs up after the handshake")
        except ssl.SSLError as error:
            found = self.tls_failure(address, error)
            return found if isinstance(found, NotAuthenticated) else None
        except OSError:
            pass
        return None


def _speaks_tls(address: Address) -> bool:
    """Whether a TLS handshake can be made, with whomever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, timeout=CONNECT_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in _reason(error)  # it wants a certificate
    except OSError:
        return False


def _speaks_plainly(address: Address) -> bool:
    """Whether a Kafka client that does not encrypt is answered: by a broker that closes connections with TLS."""
    try:
        with socket.create_connection(address, timeout=CONNECT_S) as plain:
            plain.sendall(_API_VERSIONS)
            return len(plain.recv(4)) == 4
    except OSError:
        return False


def _spelled(address: Address) -> str:
    return str(Servers((address,)))


def _here() -> str:
    return f"on {socket.gethostname()}"


def _reason(error: OSError) -> str:
    """OpenSSL's name of what went wrong; empty: it has none."""
    return getattr(error, "reason", None) or ""
