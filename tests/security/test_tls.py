"""TLS on every listener: plain only where that was asked for, client certificates, and a reload without a stop."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from kafka import KafkaConsumer, KafkaProducer

from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation import station as station_module
from waystation.client.links.address import Address
from waystation.config import BrokerSettings
from waystation.errors import Invalid
from waystation.security import tls as tls_module
from waystation.security.entrance import ListenerTerms
from waystation.security.tls import Tls, load
from waystation.security.tls_files import ClientCertificates, OwnFiles, TlsFiles, files_of
from waystation.station import ListenerPlan, Station
from waystation.world.memory_disk import MEMORY

BOTH = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
client-certificates = "optional"
plain = true
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
"connection.failed.authentication.delay.ms" = 1
[auth]
required = true
superusers = ["admin"]
"""

ONLY = """
[tls]
certificate = "server.crt"
key = "server.key"
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "alice", "stranger")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    """TLS and plain on the same ports, with users and optional client certificates."""
    folder = tmp_path_factory.mktemp("both")
    add_users(folder / "data", PASSWORDS)
    with Server(folder, arguments=write_config(certificates, BOTH)) as server:
        yield server


@pytest.fixture
def only(tmp_path: Path, certificates: Path) -> Iterator[Server]:
    """TLS alone, without users, with certificates of its own."""
    own = tmp_path / "own"
    shutil.copytree(certificates, own)
    with Server(tmp_path / "broker", arguments=write_config(own, ONLY)) as server:
        yield server


def confluent(server: Server, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "ca.crt"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
        "log_level": 0,
        **more,
    }


def there_and_back(terms: dict[str, Any]) -> None:
    topic = unique("tls")
    producer = Producer(terms)
    for _ in range(100):
        producer.produce(topic, b"x" * 50_000)
    assert producer.flush(30) == 0
    consumer = Consumer({**terms, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = 0
    while found < 100:
        messages = consumer.consume(100, 20)
        assert messages
        assert not any(message.error() for message in messages)
        found += len(messages)
    consumer.close()


def test_confluent_kafka_over_tls_with_scram(both: Server, certificates: Path) -> None:
    there_and_back(confluent(both, certificates))


def test_the_same_port_serves_clients_without_tls(both: Server, certificates: Path) -> None:
    there_and_back(confluent(both, certificates, **{"security.protocol": "SASL_PLAINTEXT"}))


def test_kafka_python_over_tls_with_scram(both: Server, certificates: Path) -> None:
    terms: dict[str, Any] = {
        "bootstrap_servers": both.bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(certificates / "ca.crt"),
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "bob",
        "sasl_plain_password": PASSWORDS["bob"],
    }
    topic = unique("tls")
    producer = KafkaProducer(**terms)
    producer.send(topic, b"hello").get(20)
    producer.close()
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **terms)
    assert next(iter(consumer)).value == b"hello"
    consumer.close()


def test_aiokafka_over_tls_with_plain(both: Server, certificates: Path) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=both.bootstrap,
            security_protocol="SASL_SSL",
            ssl_context=client_context(certificates),
            sasl_mechanism="PLAIN",
            sasl_plain_username="bob",
            sasl_plain_password=PASSWORDS["bob"],
        )
        async with producer:
            await producer.send_and_wait(unique("tls"), b"hello")

    asyncio.run(run())


def test_a_client_certificate_is_a_login_and_the_rules_map_its_name(both: Server, certificates: Path) -> None:
    terms = confluent(
        both,
        certificates,
        **{
            "security.protocol": "SSL",
            "ssl.certificate.location": str(certificates / "alice.crt"),
            "ssl.key.location": str(certificates / "alice.key"),
            "client.id": "by-certificate",
        },
    )
    for name in ("sasl.mechanism", "sasl.username", "sasl.password"):
        del terms[name]
    there_and_back(terms)


def test_a_client_without_a_certificate_has_to_log_in(both: Server, certificates: Path) -> None:
    terms: dict[str, Any] = {
        "bootstrap.servers": both.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "ca.crt"),
        "log_level": 0,
    }
    with pytest.raises(KafkaException):
        AdminClient(terms).list_topics(timeout=2)


def test_without_plain_nothing_but_tls_is_served(only: Server, certificates: Path) -> None:
    terms: dict[str, Any] = {"bootstrap.servers": only.bootstrap, "log_level": 0}
    with pytest.raises(KafkaException):
        AdminClient(terms).list_topics(timeout=2)
    for listener in ("kafka", "amqp", "http"):
        host, _, port = only.addresses[listener].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=20) as link:
            link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b""
            try:
                while more := link.recv(4096):
                    said += more
            except ConnectionResetError:
                pass
        assert b"HTTP/1.1" not in said
        assert b"AMQP" not in said


@pytest.mark.parametrize("listener", ["kafka", "amqp", "http"])
def test_every_listener_speaks_tls_1_2_and_1_3_and_nothing_older(
    only: Server, certificates: Path, listener: str
) -> None:
    host, _, port = only.addresses[listener].rpartition(":")

    def version(newest: ssl.TLSVersion) -> str | None:
        context = client_context(certificates)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = newest
        context.set_ciphers("ALL:@SECLEVEL=0")
        with socket.create_connection((host, int(port)), timeout=20) as link:
            return context.wrap_socket(link, server_hostname="localhost").version()

    assert version(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    assert version(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises((ssl.SSLError, ConnectionError)):
        version(ssl.TLSVersion.TLSv1_1)


WEAK = ("NULL", "aNULL", "ADH", "3DES", "kRSA", "PSK", "SHA1", "CAMELLIA", "AESCCM8", "DHE+AES")
"""Ciphers in OpenSSL's words: without encryption, without a certificate, without forward secrecy, old ones."""


@pytest.mark.parametrize("listener", ["kafka", "amqp", "http"])
def test_no_listener_agrees_to_a_weak_cipher_or_to_compression(
    only: Server, tmp_path: Path, certificates: Path, listener: str
) -> None:
    host, _, port = only.addresses[listener].rpartition(":")

    def agreed(ciphers: str) -> tuple[str, str | None]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2  # 1.3 has no others
        context.set_ciphers(ciphers)
        with (
            socket.create_connection((host, int(port)), timeout=20) as link,
            context.wrap_socket(link, server_hostname="localhost") as secure,
        ):
            found = secure.cipher()
            assert found is not None
            return found[0], secure.compression()

    offered = 0
    for weak in WEAK:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(f"{weak}:@SECLEVEL=0")
        except ssl.SSLError:
            continue  # this OpenSSL cannot even ask for it
        offered += 1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            agreed(f"{weak}:@SECLEVEL=0")
    assert offered >= 4
    name, compression = agreed("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    assert name.startswith("ECDHE-")
    assert "GCM" in name or "CHACHA20" in name
    assert compression is None


def test_a_key_exchange_without_forward_secrecy_is_never_offered_whatever_the_certificate(certificates: Path) -> None:
    context = load(TlsFiles(str(certificates / "server.crt"), str(certificates / "server.key")))
    ready = {str(one["name"]) for one in context.get_ciphers()}
    assert len(ready) > 4
    assert {name for name in ready if not name.startswith(("TLS_", "ECDHE-"))} == set()
    assert {name for name in ready if "GCM" not in name and "CHACHA20" not in name} == set()


def test_http_over_tls(both: Server, certificates: Path) -> None:
    url = f"https://{both.addresses['http']}/healthz"
    with urllib.request.urlopen(url, context=client_context(certificates), timeout=20) as answer:
        assert answer.status == 200


def test_a_reload_changes_the_certificate_and_no_connection_notices(
    only: Server, tmp_path: Path, certificates: Path
) -> None:
    own = tmp_path / "own"
    terms = {
        "bootstrap.servers": only.bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(own / "ca.crt"),
        "log_level": 0,
    }
    failed: list[object] = []
    done = threading.Event()
    sent = 0

    def load_it() -> None:
        nonlocal sent
        producer = Producer({**terms, "error_cb": failed.append, "retries": 0})
        while not done.is_set():
            producer.produce("load", b"x" * 1000, on_delivery=lambda error, _: failed.append(error) if error else None)
            sent += 1
            producer.poll(0.001)
        assert producer.flush(20) == 0

    loader = threading.Thread(target=load_it)
    loader.start()
    try:
        wait_for(lambda: sent > 100, "the load has begun")
        before = _serial(only, own)
        for name in ("server.crt", "server.key"):
            (own / name).unlink()
        waystation("tls", "create", "--out", str(own), "--for", "localhost", "--for", "127.0.0.1")
        assert only.process is not None
        only.process.send_signal(signal.SIGHUP)
        wait_for(lambda: _serial(only, own) != before, "new connections get the new certificate")
        after = _serial(only, own)
        (own / "server.crt").write_text("no certificate")
        only.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the certificates in use stay" in only.log.read_text(), "the log says that it stays")
        assert _serial(only, own) == after
        reached = sent
        wait_for(lambda: sent > reached + 100, "the load goes on")
    finally:
        done.set()
        loader.join()
    assert failed == []


def test_a_signal_loads_certificates_that_no_listener_uses_and_ends_nothing(tmp_path: Path, certificates: Path) -> None:
    told = write_config(certificates, ONLY)
    plain = [f"--{name}=127.0.0.1:0?tls=off" for name in ("kafka", "amqp", "http")]
    with Server(tmp_path, arguments=[*told, *plain]) as server:
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "certificates are loaded again" in server.log.read_text(), "the signal is heard")
        with urllib.request.urlopen(f"http://{server.addresses['http']}/healthz", timeout=20) as answer:
            assert answer.status == 200


def test_files_that_change_are_loaded_without_being_told(only: Server, tmp_path: Path) -> None:
    own = tmp_path / "own"
    before = _serial(only, own)
    new = make_certificates(tmp_path / "new")
    for name in ("ca.crt", "server.key", "server.crt"):
        shutil.copy(new / name, own / name)
    wait_for(lambda: _serial(only, own) not in (None, before), "the new certificate is used")


def test_a_renewal_at_a_bad_moment_ends_no_later_reload(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong with one certificate, the other is loaded at once, and this one when its files are right."""
    monkeypatch.setattr(station_module, "TLS_CHECK_S", 0.01)
    common, own = (Path(shutil.copytree(certificates, tmp_path / name)) for name in ("common", "own"))

    def broken() -> bool:
        raise RuntimeError("what nobody has thought of")

    def renewed(station: Station, step: str) -> None:
        first, second = station._certificates.values()
        caplog.clear()
        with monkeypatch.context() as patched:
            patched.setattr(first, step, broken)
            before = second.context()
            for folder in (common, own):
                os.utime(folder / "server.crt")
            wait_for(lambda: "nobody has thought of" in caplog.text, "the log says so")
            wait_for(lambda: second.context() is not before, "the other one is loaded")
        os.utime(common / "server.crt")
        before = first.context()
        wait_for(lambda: first.context() is not before, "this one is loaded the next time")

    async def run() -> None:
        pair = {"tls.certificate": str(common / "server.crt"), "tls.key": str(common / "server.key")}
        files = OwnFiles(str(own / "server.crt"), str(own / "server.key"))
        web = ListenerPlan("http", Address("127.0.0.1", 0), terms=ListenerTerms("http"), own=files)
        station = Station(MEMORY, BrokerSettings(pair), [web])
        await station.start()
        try:
            for step in ("changed", "reload"):
                await asyncio.to_thread(renewed, station, step)
            assert await station.reload_tls()
        finally:
            await station.stop()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
@pytest.mark.parametrize("moment", ["_check_validity", "load_cert_chain", "load_verify_locations"])
def test_a_file_that_is_removed_while_it_is_read_is_a_reload_that_failed(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch, name: str, moment: str
) -> None:
    own = Path(shutil.copytree(certificates, tmp_path / "own"))
    tls = Tls(TlsFiles(str(own / "server.crt"), str(own / "server.key"), str(own / "ca.crt"), "optional"))
    before = tls.context()

    def late(real: Callable[..., object]) -> Callable[..., object]:
        def removed(*args: Any, **more: Any) -> object:
            (own / name).unlink(missing_ok=True)
            return real(*args, **more)

        return removed

    with monkeypatch.context() as patched:
        where = tls_module if moment.startswith("_") else ssl.SSLContext
        patched.setattr(where, moment, late(getattr(where, moment)))
        in_time = moment == "load_verify_locations" and name != "ca.crt"  # the others are in use by then
        assert tls.reload() == in_time
    assert (tls.context() is before) != in_time
    assert tls.changed(), "the file is missing now"
    shutil.copy(certificates / name, own / name)
    assert tls.changed()
    assert tls.reload()


def _serial(server: Server, folder: Path) -> str | None:
    host, _, port = server.bootstrap.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=20) as link:
            certificate = client_context(folder).wrap_socket(link, server_hostname="localhost").getpeercert()
    except (ssl.SSLError, OSError):
        return None
    return str((certificate or {}).get("serialNumber"))


def test_what_cannot_be_used_is_refused_at_the_start_with_the_file_named(tmp_path: Path, certificates: Path) -> None:
    other = make_certificates(tmp_path / "other")
    with pytest.raises(Invalid, match="do not belong together"):
        load(TlsFiles(str(certificates / "server.crt"), str(other / "server.key")))
    with pytest.raises(Invalid, match=r"missing.crt: No such file"):
        load(TlsFiles(str(tmp_path / "missing.crt"), str(other / "server.key")))
    with pytest.raises(Invalid, match=r"server.key has no certificate"):
        load(TlsFiles(str(other / "server.key")))
    (tmp_path / "ca.txt").write_text("nothing")
    with pytest.raises(Invalid, match=r"ca.txt is no file of certificates"):
        load(TlsFiles(str(other / "server.crt"), str(other / "server.key"), str(tmp_path / "ca.txt")))
    done = waystation(
        *("serve", "--data", str(tmp_path / "data"), "--kafka", "127.0.0.1:0", "--amqp", "off", "--http", "off"),
        *("--set", f"tls.certificate={certificates / 'server.crt'}", "--set", f"tls.key={other / 'server.key'}"),
        check=False,
    )
    assert done.returncode == 1
    assert "do not belong together" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("common", "own", "mode"),
    [
        ("required", "", "required"),
        ("optional", "", "optional"),
        ("auto", "", "optional"),
        ("off", "", "optional"),
        ("required", "optional", "optional"),
        ("required", "off", "off"),
        ("auto", "required", "required"),
    ],
)
def test_a_listener_with_an_authority_of_its_own_asks_no_less_than_is_asked_everywhere(
    common: str, own: ClientCertificates | Literal[""], mode: str
) -> None:
    settings = {"tls.certificate": "a.crt", "tls.client-ca": "ca.crt", "tls.client-certificates": common}
    files = files_of(BrokerSettings(settings), OwnFiles(client_ca="own.crt", client_certificates=own))
    assert files is not None
    assert (files.client_ca, files.client_certificates) == ("own.crt", mode)


def test_an_expired_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old")])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(7).not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2020, 2, 1))
    file = tmp_path / "old.pem"
    file.write_bytes(
        made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    with pytest.raises(Invalid, match=r"old.pem: the certificate has expired, on 2020-02-01"):
        load(TlsFiles(str(file)))


def test_amqps_is_a_port_of_its_own_that_speaks_nothing_but_tls(tmp_path: Path, certificates: Path) -> None:
    with ExitStack() as stack:
        told = write_config(certificates, BOTH.replace("required = true", ""))
        server = stack.enter_context(Server(tmp_path, arguments=[*told, "--amqps", "127.0.0.1:0"]))
        host, _, port = server.addresses["amqps"].rpartition(":")
        link = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
        secure = client_context(certificates).wrap_socket(link, server_hostname="localhost")
        secure.sendall(b"AMQP\x00\x00\x09\x01")
        assert b"RabbitMQ" in secure.recv(4096)
        plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
        plain.sendall(b"AMQP\x00\x00\x09\x01")
        try:
            assert b"RabbitMQ" not in plain.recv(4096)
        except ConnectionResetError:
            pass
