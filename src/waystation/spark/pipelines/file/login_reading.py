"""Who a pipeline logs in as: the table `[login]` of its file, and what the command line or the environment say besides.

Everything becomes options of the Spark source and sink (`../login_options.py`), which are handed to every source and
sink of the pipeline. A file never has a secret in it, only where one is found. What is named by `--server` or
`--context` wins over the file, and the file over the environment: once for who logs in, once for TLS. Pure, but for the
address, which may name a variable. For `reading.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from waystation.client.links.servers import parse_servers
from waystation.errors import Invalid
from waystation.spark.links.login_options import IN_PLAIN_TEXT, LOGIN_OPTIONS, TLS_OPTIONS, read_servers
from waystation.spark.links.servers import Servers
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.table_reading import TableReader

_OPTIONS = {
    "user": "user",
    "password_file": "passwordFile",
    "password_env": "passwordEnv",
    "token_file": "tokenFile",
    "token_env": "tokenEnv",
    "mechanism": "mechanism",
    "ca": "ca",
    "certificate": "certificate",
    "key": "certificateKey",
}
_FILES = ("password_file", "token_file", "ca", "certificate", "key")


def read_login(top: TableReader, place: Callable[[str], str]) -> dict[str, str]:
    """The options that the file's table stands for. `place` makes a path of one in the file."""
    table = top.table("login", "[login]")
    if table is None:
        return {}
    for name in IN_PLAIN_TEXT:
        if table.value(name) is not None:
            table.problem(name, _no_secret(name))
    table.refuse_others({**keys.LOGIN, **dict.fromkeys(IN_PLAIN_TEXT, "")})
    found = {}
    for key, option in _OPTIONS.items():
        value = table.text(key)
        if value is not None:
            found[option] = place(value) if key in _FILES else value
    if (tls := table.flag("tls")) is not None:
        found["tls"] = str(tls).lower()
    return found


def without_secrets(table: TableReader, options: Mapping[str, str]) -> dict[str, str]:
    """`options` is what a source's or sink's table of further options says; a secret in it is a mistake."""
    for name in options:
        if name.lower() in IN_PLAIN_TEXT:
            table.problem(("options", name), f"{_no_secret(name)}, in [login]")
    return {name: value for name, value in options.items() if name.lower() not in IN_PLAIN_TEXT}


def _no_secret(name: str) -> str:
    return (
        f"a pipeline file has no {name} in it: write it to a file of its own and name that as {name}_file, or name a"
        f" variable as {name}_env"
    )


def choose_broker(
    top: TableReader, said: str | None, login: Mapping[str, str], named: str | None, otherwise: str
) -> dict[str, str]:
    """The options of every source and sink: `named` is what was typed, `said` what the file says, `otherwise` what is
    left; the first of them that is there says where the broker is."""
    if said is not None and _has_login(said):
        top.problem("servers", "servers: write addresses alone, HOST:PORT; who logs in is said in [login]")
        said = None
    if named is not None:
        return _joined(login, _options_of(named))
    if said is not None:
        return {"servers": said, **login}
    return _joined(_options_of(otherwise), login)


def checked_servers(top: TableReader, broker: Mapping[str, str]) -> Servers:
    """As the source and the sink read them; a mistake is noted."""
    try:
        return read_servers({name.lower(): value for name, value in broker.items()})
    except Invalid as error:
        top.problem("servers" if str(error).startswith("servers") else "login", _in_words_of_files(str(error)))
        return Servers((("127.0.0.1", 9092),))


def _in_words_of_files(text: str) -> str:
    for key, option in _OPTIONS.items():
        if key != option:
            text = text.replace(option, key)
    return text


def _has_login(text: str) -> bool:
    return "@" in text or "?" in text


def _options_of(text: str) -> dict[str, str]:
    """An address of the client's kind, `waystations://USER:PASSWORD@HOST?ca=…`, as options; one without a login and
    TLS stays as it is."""
    if not _has_login(text) and "://" not in text:
        return {"servers": text}
    servers = parse_servers(text)
    found = {"servers": ",".join(str(one.address) for one in servers)}
    credentials, tls = servers[0].credentials, servers[0].tls
    if credentials is not None:
        token = credentials.mechanism == "OAUTHBEARER"
        found |= {"user": credentials.user, "token" if token else "password": credentials.password}
        found["mechanism"] = credentials.mechanism
    if tls is not None:
        found |= {"tls": "true", "ca": tls.ca, "certificate": tls.certificate, "certificateKey": tls.key}
    return {name: value for name, value in found.items() if value}


def _joined(weaker: Mapping[str, str], stronger: Mapping[str, str]) -> dict[str, str]:
    """Of those that say who logs in the stronger's, if it says so at all; of those about TLS the same."""
    groups = (TLS_OPTIONS, tuple(name for name in LOGIN_OPTIONS if name not in TLS_OPTIONS))
    left = dict(weaker)
    for group in groups:
        if any(name in stronger for name in group):
            left = {name: value for name, value in left.items() if name not in group}
    return {**left, **stronger}
