"""The options that say who logs in: ours, Kafka's, and those of a pipeline file; and that no error repeats a secret."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.spark.pipeline_kit import ORDERS
from waystation.client.links.login import Credentials
from waystation.client.links.servers import TlsTerms
from waystation.errors import Invalid
from waystation.spark.kafka_options import in_our_words
from waystation.spark.links.servers import Secret, Servers
from waystation.spark.options import read_options
from waystation.spark.pipelines.file.reading import read_with_problems
from waystation.spark.ready import READY, write_ready
from waystation.spark.writing.sink_options import read_sink_options

SECRET = "gänse-füßchen=;geheim"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512"}
TOKENS = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}


def read(**options: str) -> Servers:
    return read_options({"servers": "h:1", "topics": "t", **in_our_words(options)}, streaming=True).servers


def jaas(module: str, terms: str) -> dict[str, str]:
    return {"kafka.sasl.jaas.config": f"{module} {terms};"}


@pytest.mark.parametrize(
    ("options", "user", "secret", "mechanism"),
    [
        ({"user": "a", "password": f" {SECRET} "}, "a", Secret("password", f" {SECRET} "), "SCRAM-SHA-256"),
        ({"user": "a", "passwordFile": "/p"}, "a", Secret("passwordFile", file="/p"), "SCRAM-SHA-256"),
        ({"user": "a", "passwordEnv": "P"}, "a", Secret("passwordEnv", variable="P"), "SCRAM-SHA-256"),
        ({"user": "a"}, "a", Secret("passwordEnv", variable="WAYSTATION_PASSWORD"), "SCRAM-SHA-256"),
        ({"user": "a", "password": "p", "mechanism": "plain"}, "a", Secret("password", "p"), "PLAIN"),
        ({"token": SECRET}, "", Secret("token", SECRET), "OAUTHBEARER"),
        ({"tokenFile": "/t"}, "", Secret("tokenFile", file="/t"), "OAUTHBEARER"),
        (
            {**SASL, **jaas(SCRAM, f'username="al\\"ice" password="{SECRET}"')},
            'al"ice',
            Secret("password", SECRET),
            "SCRAM-SHA-512",
        ),
        (
            {**SASL, "kafka.sasl.mechanism": "PLAIN", **jaas(PLAIN, f"password='{SECRET}' username=alice")},
            "alice",
            Secret("password", SECRET),
            "PLAIN",
        ),
        ({**SASL, "user": "a", "passwordFile": "/p"}, "a", Secret("passwordFile", file="/p"), "SCRAM-SHA-512"),
        (
            {**SASL, "kafka.sasl.username": "a", "kafka.sasl.password": SECRET},
            "a",
            Secret("password", SECRET),
            "SCRAM-SHA-512",
        ),
        (
            {**TOKENS, **jaas(BEARER, ""), "kafka.sasl.oauthbearer.token.endpoint.url": "file:///run/to%20ken"},
            "",
            Secret("tokenFile", file="/run/to ken"),
            "OAUTHBEARER",
        ),
    ],
)
def test_who_logs_in(options: dict[str, str], user: str, secret: Secret, mechanism: str) -> None:
    found = read(**options)
    login = found.login
    assert login is not None
    assert (login.user, login.secret, login.mechanism) == (user, secret, mechanism)
    assert SECRET not in repr(found)
    assert SECRET not in str(found)
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("options", "tls"),
    [
        ({}, None),
        ({"tls": "false"}, None),
        ({"kafka.security.protocol": "plaintext"}, None),
        ({"tls": "true"}, TlsTerms()),
        ({"servers": "waystations://h:1,waystations://k"}, TlsTerms()),
        ({"ca": "/ca"}, TlsTerms("/ca")),
        ({"ca": "/ca", "certificate": "/c", "certificateKey": "/k"}, TlsTerms("/ca", "/c", "/k")),
        ({"kafka.security.protocol": "SSL"}, TlsTerms()),
        (
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.truststore.type": "PEM",
                "kafka.ssl.truststore.location": "/ca.jks",
                "kafka.ssl.keystore.location": "/own.pem",
            },
            TlsTerms("/ca.jks", "/own.pem"),
        ),
        (
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.ca.location": "/ca",
                "kafka.ssl.certificate.location": "/c",
                "kafka.ssl.key.location": "/k",
                "kafka.ssl.endpoint.identification.algorithm": "https",
                "kafka.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
            },
            TlsTerms("/ca", "/c", "/k"),
        ),
    ],
)
def test_how_the_broker_is_known(options: dict[str, str], tls: TlsTerms | None) -> None:
    assert read(**options).tls == tls


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"servers": f"waystation://alice:{SECRET}@h:1"}, "servers: write addresses alone"),
        ({"servers": f"alice:{SECRET}://x@h:1"}, "servers: write addresses alone"),
        ({"servers": "http://h:8080"}, "is not the broker's Kafka port"),
        ({"servers": "waystations://h:1,k:1"}, "write all of them alike"),
        ({"password": SECRET}, "password: say whose it is by the option user"),
        ({"user": "a", "password": SECRET, "passwordFile": "/p"}, "password and passwordFile say the same"),
        ({"user": "a", "password": SECRET, "token": SECRET}, "password and token were both given"),
        ({"user": "a", "passwordEnv": SECRET}, "no name of a variable"),
        ({"user": "a", "password": SECRET, "mechanism": "DIGEST"}, "mechanism: 'DIGEST' is not known"),
        ({"mechanism": "OAUTHBEARER"}, "needs a token; give the option tokenFile"),
        ({"token": SECRET, "mechanism": "PLAIN"}, "a token is for the mechanism OAUTHBEARER"),
        ({"mechanism": "EXTERNAL"}, "give the options certificate and certificateKey"),
        ({"tls": "maybe"}, "neither true nor false"),
        ({"tls": "false", "ca": "/ca"}, "ca is for TLS; leave one of them out"),
        ({"certificateKey": "/k"}, "give the option certificate, too"),
        ({"passwortFile": SECRET}, "did you mean 'passwordFile'"),
        ({"kafka.security.protocol": "TLS"}, "is none of PLAINTEXT, SSL"),
        ({"kafka.security.protocol": "SASL_SSL"}, "Kafka's default, GSSAPI, is not offered"),
        ({**SASL, "kafka.sasl.mechanism": "GSSAPI"}, "GSSAPI is not offered to Spark; give SCRAM-SHA-512"),
        ({**SASL, "kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos .* use SCRAM"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "has no effect with kafka.security.protocol=PLAINTEXT.* set it to SASL_SSL",
        ),
        (jaas(SCRAM, f"password={SECRET}"), "has no effect with kafka.security.protocol=PLAINTEXT"),
        ({"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.ssl.ca.location": "/ca"}, "set it to SASL_SSL"),
        ({**SASL, **jaas(PLAIN, f'password="{SECRET}"')}, "PlainLoginModule is not for .* needs ScramLoginModule"),
        ({**SASL, "kafka.sasl.jaas.config": f'username="a" password="{SECRET}"'}, "with the semicolon"),
        ({**SASL, **jaas(SCRAM, f'username="a" password="{SECRET}')}, "write CLASS required"),
        ({**SASL, **jaas(SCRAM, f'username="a" secret="{SECRET}"')}, "'secret' has no effect here"),
        ({**SASL, **jaas(SCRAM, 'username="a"'), "user": "b"}, "say the same: leave one of them out"),
        ({**TOKENS, **jaas(BEARER, f'clientId="a" clientSecret="{SECRET}"')}, "give one by the option tokenFile"),
        ({**TOKENS, "kafka.sasl.oauthbearer.token.endpoint.url": "https://id"}, "name that by the option tokenFile"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/ca.jks"}, "Python reads PEM"),
        (
            {
                "kafka.security.protocol": "SSL",
                "kafka.ssl.keystore.location": "/own",
                "kafka.ssl.keystore.type": "PKCS12",
            },
            "name that, by this option with the type PEM or by certificate",
        ),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.truststore.password": SECRET}, "has no password; leave it out"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.key.password": SECRET}, "openssl pkey"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": SECRET}, "by the option certificateKey"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.endpoint.identification.algorithm": ""}, "always compared"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.enabled.protocols": "TLSv1"}, "TLS 1.2 and 1.3"),
        ({"kafka.security.protocol": "SSL", "kafka.ssl.cipher.suites": "X"}, "cannot be chosen here"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(options: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        read(**options)
    assert SECRET not in str(caught.value)


def test_sinks_have_the_same_options() -> None:
    given = {**SASL, **jaas(SCRAM, 'username="a" password="p"'), "kafka.bootstrap.servers": "h:1", "topic": "t"}
    found = read_sink_options(in_our_words(given), streaming=True).servers
    assert found == Servers((("h", 1),), read(**SASL, user="a", password="p").login, TlsTerms())


def test_a_secret_is_read_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    secret = Secret("passwordFile", file=str(file))
    with pytest.raises(Invalid, match=r"passwordFile: .* cannot be read on .* has to be on all their machines"):
        secret.read()
    file.write_text("first\n")
    assert secret.read() == "first"
    file.write_text(" second ")
    assert secret.read() == " second "
    file.write_text("\n")
    with pytest.raises(Invalid, match="has no text in it"):
        secret.read()
    file.write_bytes(b"x" * 70_000)
    with pytest.raises(Invalid, match="is it the right file"):
        secret.read()
    variable = Secret("passwordEnv", variable="SHOP_PASSWORD")
    with pytest.raises(Invalid, match="SHOP_PASSWORD is not set"):
        variable.read()
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    assert variable.read() == SECRET
    assert Credentials("a", variable.read()).exchange().first()


# -- pipeline files ----------------------------------------------------------------------------------------------------

SINK = '[sink.all]\nfrom = "orders"\nmemory = "t"\n'


def pipeline(folder: Path, text: str, **said: Any) -> tuple[dict[str, str], list[str]]:
    """The options of its sources and sinks, and what is wrong."""
    file = folder / "one.toml"
    file.write_text(f"{text}\n{ORDERS}{SINK}")
    read = read_with_problems(file, **said)
    assert SECRET not in repr(read.pipeline)
    return dict(read.pipeline.broker), [problem.text for problem in read.problems]


def test_a_pipeline_file_says_who_logs_in(tmp_path: Path) -> None:
    login = 'servers = "h:1"\n[login]\nuser = "etl"\npassword_file = "secret"\nca = "/ca.crt"\n'
    told = {"user": "etl", "passwordFile": str(tmp_path / "secret"), "ca": "/ca.crt"}
    assert pipeline(tmp_path, login) == ({"servers": "h:1", **told}, [])
    assert pipeline(tmp_path, login, servers="k:2") == ({"servers": "k:2", **told}, [])
    typed = {"servers": "k:2", "user": "me", "password": SECRET, "mechanism": "SCRAM-SHA-256", "ca": "/ca.crt"}
    assert pipeline(tmp_path, login, servers=f"waystation://me:{SECRET.replace('=', '%3D')}@k:2") == (typed, [])
    left = login.partition("\n")[2]
    assert pipeline(tmp_path, left, otherwise="waystation://me:pw@k:2") == ({"servers": "k:2", **told}, [])
    found = pipeline(tmp_path, "", otherwise="waystations://me:pw@k:2?ca=x")
    assert found[0] == {
        "servers": "k:2",
        "user": "me",
        "password": "pw",
        "mechanism": "SCRAM-SHA-256",
        "tls": "true",
        "ca": "x",
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f'[login]\nuser = "etl"\npassword = "{SECRET}"', "a pipeline file has no password in it"),
        (f'[login]\ntoken = "{SECRET}"', "name that as token_file"),
        ('[login]\nusr = "etl"', "did you mean 'user'"),
        ('[login]\npassword_file = "x"', "password_file: say whose it is"),
        ('[login]\nkey = "x"', "key: it is the key of a certificate"),
        (f'servers = "etl:{SECRET}@h:1"', "who logs in is said in [login]"),
        ('servers = "h:port"', "is not host:port"),
        (f'[source.more]\ntopics = "t"\noptions = {{password = "{SECRET}"}}', "has no password in it"),
    ],
)
def test_what_is_wrong_with_a_login_in_a_file(tmp_path: Path, text: str, says: str) -> None:
    _, problems = pipeline(tmp_path, text)
    assert [problem for problem in problems if says in problem], problems
    assert SECRET not in str(problems)


def test_a_ready_made_pipeline_has_no_password_in_its_file(tmp_path: Path) -> None:
    values = {"topics": ["orders"], "to": str(tmp_path / "archive")}
    ready = READY["archive"]
    given = {argument.name: values.get(argument.name) for argument in ready.arguments}
    file = write_ready(ready, given, tmp_path, "kept", f"waystation://etl:{SECRET.replace('=', '%3D')}@h:1")
    assert 'servers = "h:1"' in file.read_text()
    assert "geheim" not in file.read_text()
