"""Listeners with certificates of their own, and with client authorities of their own: real clients trust one authority,
and reach the listener that has its certificate and no other."""

from __future__ import annotations

import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

import waystation as ws
from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotAllowed, WaystationError

CONFIG = """
[tls]
certificate = "../common/server.crt"
key = "../common/server.key"

[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"connection.failed.authentication.delay.ms" = 1

[listeners.external]
protocol = "kafka"
address = "127.0.0.1:0"
certificate = "server.crt"
key = "server.key"

[listeners.partners]
protocol = "kafka"
address = "127.0.0.1:0"
client-ca = "../clients/ca.crt"
client-certificates = "required"

[listeners.web]
protocol = "http"
address = "127.0.0.1:0"
tls = "both"
certificate = "server.crt"
key = "server.key"

[listeners.rabbits]
protocol = "amqp"
address = "127.0.0.1:0"
certificate = "server.crt"
key = "server.key"
client-ca = "../clients/ca.crt"

[listeners.plain]
protocol = "kafka"
address = "127.0.0.1:0"
tls = "off"
"""

OF_ITS_OWN = ("external", "web", "rabbits")
OF_ALL = ("kafka", "amqp", "http", "partners")


class Stage:
    """`common`, `own`, `clients`: folders of three authorities, each with what it has signed."""

    def __init__(self, folder: Path) -> None:
        self.common = make_certificates(folder / "common")
        self.own = make_certificates(folder / "own")
        self.clients = make_certificates(folder / "clients", "alice")
        self.server: Server

    def port(self, listener: str) -> int:
        return int(self.server.addresses[listener].rpartition(":")[2])

    def shown(self, listener: str, authority: Path) -> bytes | None:
        """The certificate that a client sees who trusts this authority alone; None: it trusts none that it sees."""
        context = client_context(authority)
        if listener in ("partners", "rabbits"):
            context.load_cert_chain(self.clients / "alice.crt", self.clients / "alice.key")
        with socket.create_connection(("127.0.0.1", self.port(listener)), timeout=20) as link:
            try:
                with context.wrap_socket(link, server_hostname="localhost") as secure:
                    return secure.getpeercert(binary_form=True)
            except ssl.SSLCertVerificationError:
                return None

    def is_shown(self, listener: str, folder: Path) -> bool:
        return self.shown(listener, folder) == ssl.PEM_cert_to_DER_cert((folder / "server.crt").read_text())

    def renew(self, folder: Path) -> None:
        """Another certificate by the same authority."""
        for name in ("server.crt", "server.key"):
            (folder / name).unlink()
        waystation("tls", "create", "--out", str(folder), "--for", "localhost", "--for", "127.0.0.1")

    def kafka(self, listener: str, **more: str) -> AdminClient:
        terms = {"bootstrap.servers": f"localhost:{self.port(listener)}", "security.protocol": "SASL_SSL"}
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
        return AdminClient({**terms, **login, "log_level": 0, **more})


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("listener-certificates")
    stage = Stage(folder)
    add_users(folder / "data", PASSWORDS, superusers=["admin"])
    with Server(folder, arguments=write_config(stage.own, CONFIG)) as stage.server:
        yield stage


def test_each_listener_shows_its_own_certificate_and_the_others_the_common_one(stage: Stage) -> None:
    for listener in OF_ITS_OWN:
        assert stage.is_shown(listener, stage.own), listener
        assert stage.shown(listener, stage.common) is None, listener
    for listener in OF_ALL:
        assert stage.is_shown(listener, stage.common), listener
        assert stage.shown(listener, stage.own) is None, listener


def test_clients_of_each_protocol_reach_the_listener_whose_authority_they_trust(stage: Stage) -> None:
    own, common = str(stage.own / "ca.crt"), str(stage.common / "ca.crt")
    topic = unique("topic")
    assert stage.kafka("external", **{"ssl.ca.location": own}).list_topics(timeout=20).brokers
    with pytest.raises(KafkaException):
        stage.kafka("external", **{"ssl.ca.location": common}).list_topics(timeout=2)
    address = f"waystations://bob:builder@localhost:{stage.port('external')}?ca="
    with ws.connect(address + own) as mq:
        assert mq.publish(topic, "hello").places[0][0] == topic
    with pytest.raises(WaystationError), ws.connect(address + common, timeout=5) as mq:
        mq.publish(topic, "hello")
    web = f"localhost:{stage.port('web')}/healthz"
    assert requests.get(f"https://{web}", verify=own, timeout=20).status_code == 200
    assert requests.get(f"http://{web}", timeout=20).status_code == 200, "tls is both"
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"https://{web}", verify=common, timeout=20)
    options = pika.SSLOptions(client_context(stage.own), "localhost")
    login = pika.PlainCredentials("bob", PASSWORDS["bob"])
    terms = pika.ConnectionParameters("127.0.0.1", stage.port("rabbits"), credentials=login, ssl_options=options)
    pika.BlockingConnection(terms).close()


def test_a_listener_accepts_the_client_certificates_of_its_own_authority(stage: Stage) -> None:
    pair = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(stage.clients / "alice.crt"),
        "ssl.key.location": str(stage.clients / "alice.key"),
    }
    common = {"ssl.ca.location": str(stage.common / "ca.crt")}
    assert stage.kafka("partners", **common, **pair).list_topics(timeout=20).brokers
    with pytest.raises(KafkaException):
        stage.kafka("partners", **common).list_topics(timeout=2)
    with pytest.raises(KafkaException):  # nobody asks for one there, so nobody is logged in by it
        stage.kafka("external", **{"ssl.ca.location": str(stage.own / "ca.crt")}, **pair).list_topics(timeout=2)
    context = client_context(stage.own)
    context.load_cert_chain(stage.clients / "alice.crt", stage.clients / "alice.key")
    options = pika.SSLOptions(context, "localhost")
    terms = pika.ConnectionParameters(
        "127.0.0.1", stage.port("rabbits"), credentials=pika.credentials.ExternalCredentials(), ssl_options=options
    )
    pika.BlockingConnection(terms).close()


PARTNERS = """
[tls]
certificate = "server.crt"
key = "server.key"

[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"""
PARTNER = """
[listeners.{name}-partners]
protocol = "{name}"
address = "127.0.0.1:0"
client-ca = "../partners/ca.crt"
client-certificates = "required"
"""
AS_PARTNERS = "mapping-rules = 'RULE:^CN=([^,]+).*$/partner.$1/L'\n"


@pytest.mark.parametrize(("own", "user"), [(AS_PARTNERS, "partner.admin"), ("", "admin")])
def test_an_authority_of_a_listener_names_whom_the_mapping_rules_of_that_listener_let_it_name(
    tmp_path: Path, own: str, user: str
) -> None:
    """Without rules of its own, that is everybody, superusers too, which the page about listeners says."""
    folder, partners = make_certificates(tmp_path / "own"), make_certificates(tmp_path / "partners", "admin")
    add_users(tmp_path / "data", PASSWORDS, superusers=["admin"], rules=())
    text = PARTNERS + "".join(PARTNER.format(name=name) + own for name in ("kafka", "amqp", "http"))
    certificate, key, ca = partners / "admin.crt", partners / "admin.key", folder / "ca.crt"
    with Server(tmp_path, arguments=write_config(folder, text)) as server:
        ports = {
            name.removesuffix("-partners"): int(address.rpartition(":")[2])
            for name, address in server.addresses.items()
            if name.endswith("-partners")
        }
        web = f"https://localhost:{ports['http']}/v1/whoami"
        said = requests.get(web, verify=str(ca), cert=(str(certificate), str(key)), timeout=20).json()
        assert (said["user"], said["superuser"]) == (user, user == "admin")
        terms = {"ssl.ca.location": ca, "ssl.certificate.location": certificate, "ssl.key.location": key}
        files = {name: str(path) for name, path in terms.items()}
        where = {"bootstrap.servers": f"localhost:{ports['kafka']}", "security.protocol": "SSL"}
        kafka = AdminClient({**where, **files, "log_level": 0})
        made = kafka.create_topics([NewTopic("theirs", 1)])["theirs"]
        assert (made.exception(20) is None) == (user == "admin")
        address = f"waystations://localhost:{ports['kafka']}?ca={ca}&certificate={certificate}&key={key}"
        with ws.connect(address) as mq:
            if user == "admin":
                mq.queue("mine").put("a superuser may")
            else:
                with pytest.raises(NotAllowed, match=r"partner\.admin"):
                    mq.queue("mine").put("nobody has allowed it")
        context = client_context(folder)
        context.load_cert_chain(certificate, key)
        way = pika.SSLOptions(context, "localhost")
        login = pika.credentials.ExternalCredentials()
        at = pika.ConnectionParameters("127.0.0.1", ports["amqp"], credentials=login, ssl_options=way)
        if user == "admin":
            pika.BlockingConnection(at).close()
        else:
            with pytest.raises(pika.exceptions.AMQPError):
                pika.BlockingConnection(at)
            assert "User:partner.admin" in server.log.read_text()


def test_each_certificate_is_loaded_again_by_itself_and_one_that_is_broken_keeps_no_other_back(stage: Stage) -> None:
    stage.renew(stage.own)
    wait_for(lambda: all(stage.is_shown(one, stage.own) for one in OF_ITS_OWN), "its files have changed")
    assert all(stage.is_shown(one, stage.common) for one in OF_ALL)
    file = stage.own / "server.crt"
    before, in_use = file.read_text(), {one: stage.shown(one, stage.own) for one in OF_ITS_OWN}
    file.write_text("no certificate")
    stage.renew(stage.common)
    mark = len(stage.server.log.read_text())
    assert stage.server.process is not None
    stage.server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: all(stage.is_shown(one, stage.common) for one in OF_ALL), "a signal loads all")
    said = f"the certificates in use stay: {file} has no certificate in it"
    wait_for(lambda: said in stage.server.log.read_text()[mark:], "the log says what stays")
    assert {one: stage.shown(one, stage.own) for one in OF_ITS_OWN} == in_use, "while its file is broken"
    file.write_text(before)
    wait_for(lambda: all(stage.is_shown(one, stage.own) for one in OF_ITS_OWN), "what was in use is right again")


def test_the_lines_that_are_printed_say_which_listeners_speak_tls(tmp_path: Path, stage: Stage) -> None:
    pair = f"certificate={stage.own / 'server.crt'}&key={stage.own / 'server.key'}"
    with Server(tmp_path, arguments=["--http", f"127.0.0.1:0?{pair}"]) as server:
        said = server.log.read_text()
        assert f"https://{server.addresses['http']}/" in said
        assert "waystations://" not in said
        url = f"https://localhost:{server.addresses['http'].rpartition(':')[2]}/healthz"
        assert requests.get(url, verify=str(stage.own / "ca.crt"), timeout=20).status_code == 200
        with ws.connect(f"waystation://{server.bootstrap}") as mq:
            mq.publish(unique("topic"), "without TLS, since nobody has asked for it")


@pytest.mark.parametrize(
    ("listener", "said"),
    [
        ("x=kafka://127.0.0.1:0?certificate={own}/server.crt&key={common}/server.key", "do not belong together"),
        ("x=kafka://127.0.0.1:0?certificate={own}/missing.crt", "missing.crt: No such file"),
        ("x=kafka://127.0.0.1:0?client-ca={clients}/ca.crt", "need a certificate of the listener"),
        ("x=kafka://127.0.0.1:0?tls=on", "needs a certificate for TLS"),
        (
            "x=kafka://127.0.0.1:0?certificate={own}/server.crt&key={own}/server.key&client-certificates=required",
            "client-certificates=required: set client-ca",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_at_the_start_with_the_listener_named(
    tmp_path: Path, stage: Stage, listener: str, said: str
) -> None:
    text = listener.format(own=stage.own, common=stage.common, clients=stage.clients)
    done = waystation("serve", "--data", str(tmp_path / "data"), "--listeners", text, check=False)
    assert done.returncode == 1
    assert "listener 'x'" in done.stderr
    assert said in done.stderr
    assert not (tmp_path / "data").exists()
