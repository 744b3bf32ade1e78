"""`serve --config` and the flags over it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from waystation.cli.main import build_parser
from waystation.cli.server.config_file import check_config, read_config
from waystation.cli.server.configuration import variable_of
from waystation.cli.server.options import OPTIONS
from waystation.cli.server.serve import ServePlan, make_plan
from waystation.client.links.address import Address
from waystation.config import BROKER_SETTINGS
from waystation.errors import Invalid, InvalidSetting
from waystation.security.entrance import ListenerTerms
from waystation.security.tls_files import OwnFiles
from waystation.station import ListenerPlan


def plan(*words: str, **environment: str) -> ServePlan:
    return make_plan(build_parser(["serve"]).parse_args(["serve", *words]), environment)


def written(folder: Path, text: str) -> str:
    path = folder / "w.toml"
    path.write_text(text)
    return str(path)


def test_settings_may_be_quoted_dotted_or_under_a_heading(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            """
            data = "/var/lib/w"
            kafka = "127.0.0.1:1"
            insecure = true
            "num.partitions" = 3
            log.retention.ms = 5
            [broker]
            waystation.flush = "os"
            log.cleanup.policy = ["delete", "compact"]
            "auto.create.topics.enable" = false
            """,
        )
    )
    assert {name: given.text for name, given in config.options.items()} == {
        "data": "/var/lib/w",
        "kafka": "127.0.0.1:1",
        "insecure": "true",
    }
    assert {name: given.text for name, given in config.settings.items()} == {
        "num.partitions": "3",
        "log.retention.ms": "5",
        "waystation.flush": "os",
        "log.cleanup.policy": "delete,compact",
        "auto.create.topics.enable": "false",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("num.partition = 3", "num.partitions"),
        ("num.partitions = 'many'", "num.partitions"),
        ("num.partitions = 0", "num.partitions"),
        ("data = 3", "data"),
        ("insecure = 'yes'", "insecure"),
        ("num.partitions = [1]", "num.partitions"),
        ("num.partitions = 2026-01-01", "num.partitions"),
        ("x = \ny = 1", "not valid TOML"),
        ("log-level = 'loud'", "log-level"),
        ("kafka = 'nowhere:port'", "kafka"),
        ("retention.ms = 5", r"log\.retention\.ms"),
        ("waystation.dedup.window.ms = 5", "topics alter"),
        ("brokr = {}", "brokr"),
        ("[[broker]]\nnum.partitions = 3", "broker"),
        ("num.partitions = 3\n[broker]\nnum.partitions = 4", "line 1"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Invalid, match=named) as raised:
        read_config(written(tmp_path, text))
    assert re.search(r"w\.toml:\d+:\d+: ", str(raised.value))


def test_all_mistakes_are_found_each_at_its_place(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """# a file with mistakes
kafak = "127.0.0.1:1"
data = 3

  [broker]
  num.partition = 3
  "log.retention.ms" = "long"
  log.segment.bytes = 5_000
  message . "max" .bytes = [
    1
  ]
""",
    )
    found = check_config(path).mistakes
    assert [(mistake.line, mistake.column) for mistake in found] == [(2, 1), (3, 1), (6, 3), (7, 3), (9, 3)]
    assert "'kafka'" in found[0].text
    assert "'num.partitions'" in found[2].text
    with pytest.raises(Invalid, match=r"w\.toml:2:1: .*and 4 more.*config check"):
        read_config(path)


@pytest.mark.parametrize(
    ("content", "line", "column"),
    [(b"a = 1\nb = ?", 2, 5), (b"a = 1\r\nb = [", 2, 6), (b"a = 1\n\nb = '\xff'", 3, 1)],
)
def test_what_is_not_toml_is_told_with_its_place(tmp_path: Path, content: bytes, line: int, column: int) -> None:
    path = tmp_path / "w.toml"
    path.write_bytes(content)
    (mistake,) = check_config(str(path)).mistakes
    assert (mistake.line, mistake.column) == (line, column)
    assert "not valid TOML" in mistake.text


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"gone\.toml"):
        read_config(str(tmp_path / "gone.toml"))


def test_the_defaults_are_loopback_and_a_folder_here() -> None:
    made = plan()
    assert made.address("kafka") == Address("127.0.0.1", 9092)
    assert made.data == "./waystation-data"
    assert made.log_level == "info"


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    text = 'kafka = "127.0.0.1:1"\nlog-level = "error"\n[broker]\nnum.partitions = 3\nlog.retention.ms = 4'
    path = written(tmp_path, text)
    made = plan("--config", path, "--kafka", "localhost:2", "--set", "num.partitions=5")
    assert made.address("kafka") == Address("localhost", 2)
    assert made.settings.integer("num.partitions") == 5
    assert made.settings.integer("log.retention.ms") == 4
    assert made.log_level == "error"


def test_a_listener_can_be_off() -> None:
    made = plan("--kafka", "off", "--amqp", "off", "--http", "off")
    assert (made.address("kafka"), made.address("amqp"), made.address("http")) == (None, None, None)


def test_the_http_listener_has_its_port_and_may_have_another(tmp_path: Path) -> None:
    assert plan().address("http") == Address("127.0.0.1", 8080)
    path = written(tmp_path, 'http = "localhost:8081"')
    assert plan("--config", path).address("http") == Address("localhost", 8081)
    assert plan("--config", path, "--http", "localhost").address("http") == Address("localhost", 8080)


def test_the_amqp_listener_has_its_port_and_may_have_another(tmp_path: Path) -> None:
    assert plan().address("amqp") == Address("127.0.0.1", 5672)
    path = written(tmp_path, 'amqp = "localhost:5673"')
    assert plan("--config", path).address("amqp") == Address("localhost", 5673)
    assert plan("--config", path, "--amqp", "localhost").address("amqp") == Address("localhost", 5672)


def test_an_address_of_the_file_may_be_allowed_or_replaced_from_elsewhere(tmp_path: Path) -> None:
    path = written(tmp_path, 'http = "0.0.0.0:8080"')
    with pytest.raises(Invalid, match=r"w\.toml:1: http = .*--insecure"):
        plan("--config", path)
    (mistake,) = check_config(path).mistakes
    assert (mistake.line, "insecure = true" in mistake.text) == (1, True)
    everywhere = Address("0.0.0.0", 8080)
    assert plan("--config", path, "--insecure").address("http") == everywhere
    assert plan("--config", path, WAYSTATION_INSECURE="yes").address("http") == everywhere
    assert plan("--config", path, WAYSTATION_HTTP="127.0.0.1:1").address("http") == Address("127.0.0.1", 1)
    assert plan("--config", path, "--http", "off").address("http") is None


def test_an_empty_variable_does_not_turn_off_what_the_file_asks_for(tmp_path: Path) -> None:
    path = written(tmp_path, 'waystation.http.token = "secret"\nnum.partitions = 4')
    made = plan("--config", path, WAYSTATION_SET_WAYSTATION_HTTP_TOKEN="", WAYSTATION_SET_NUM_PARTITIONS="")
    assert (made.settings.text("waystation.http.token"), made.settings.integer("num.partitions")) == ("secret", 4)
    assert plan("--config", path, "--set", "waystation.http.token=").settings.text("waystation.http.token") == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "example.org"])
def test_other_machines_are_kept_out_unless_told_otherwise(host: str) -> None:
    for listener in ("kafka", "http"):
        with pytest.raises(Invalid, match=f"--{listener} .*--insecure"):
            plan(f"--{listener}", f"{host}:9095")
        assert plan(f"--{listener}", f"{host}:9095", "--insecure").address(listener) is not None


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'num\.partitions'"):
        plan("--set", "num.partition=1")
    with pytest.raises(Invalid, match="NAME=VALUE"):
        plan("--set", "num.partitions")


def test_the_environment_wins_over_the_file_and_flags_over_the_environment(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'data = "a"\nkafka = "127.0.0.1:1"\nlog-format = "json"\n[broker]\nnum.partitions = 3\nlog.retention.ms = 4',
    )
    made = plan(
        "--config",
        path,
        "--kafka",
        "localhost:2",
        "--set",
        "num.partitions=5",
        WAYSTATION_DATA="b",
        WAYSTATION_KAFKA="127.0.0.1:3",
        WAYSTATION_LOG_LEVEL="error",
        WAYSTATION_SET_NUM_PARTITIONS="7",
        WAYSTATION_SET_WAYSTATION_FLUSH="os",
        WAYSTATION_SERVER="127.0.0.1:9",
        PATH="/bin",
    )
    assert (made.data, made.address("kafka"), made.log_level, made.log_format) == (
        "b",
        Address("localhost", 2),
        "error",
        "json",
    )
    names = ("num.partitions", "log.retention.ms", "waystation.flush", "log.retention.bytes")
    assert [(str(made.settings[name]), made.settings.source(name)) for name in names] == [
        ("5", "flag"),
        ("4", "file"),
        ("os", "environment"),
        ("-1", "default"),
    ]
    assert made.doubts == ()


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    path = written(tmp_path, 'data = "a"')
    assert plan(WAYSTATION_CONFIG=path).data == "a"
    assert plan(WAYSTATION_CONFIG="").data == "./waystation-data"
    with pytest.raises(Invalid, match=r"gone\.toml"):
        plan(WAYSTATION_CONFIG=str(tmp_path / "gone.toml"))


@pytest.mark.parametrize(("text", "means"), [("true", True), ("1", True), ("Yes", True), ("off", False), ("0", False)])
def test_insecure_by_the_environment(text: str, means: bool) -> None:
    if means:
        assert plan(WAYSTATION_INSECURE=text, WAYSTATION_HTTP="0.0.0.0:1").address("http") == Address("0.0.0.0", 1)
        return
    with pytest.raises(Invalid, match=r"WAYSTATION_HTTP=0\.0\.0\.0:1 .*--insecure"):
        plan(WAYSTATION_INSECURE=text, WAYSTATION_HTTP="0.0.0.0:1")


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("WAYSTATION_SET_NUM_PARTITION", "1", "WAYSTATION_SET_NUM_PARTITIONS"),
        ("WAYSTATION_SET__NUM_PARTITIONS", "1", "WAYSTATION_SET_NUM_PARTITIONS"),
        ("WAYSTATION_SET_NUM_PARTITIONS", "none", "WAYSTATION_SET_NUM_PARTITIONS"),
        ("WAYSTATION_KAFKA", "nowhere:port", "WAYSTATION_KAFKA"),
        ("WAYSTATION_LOG_LEVEL", "infoo", "did you mean 'info'"),
        ("WAYSTATION_INSECURE", "perhaps", "WAYSTATION_INSECURE"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(variable: str, text: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        plan(**{variable: text})


def test_a_variable_that_looks_like_ours_is_doubted_and_others_are_let_be() -> None:
    assert plan(WAYSTATION_KAFAK="127.0.0.1:1").doubts == (
        "WAYSTATION_KAFAK means nothing here; did you mean WAYSTATION_KAFKA?",
    )
    assert plan(WAYSTATION_PORT="tcp://10.0.0.1:9092", WAYSTATION_SERVICE_HOST="10.0.0.1").doubts == ()


def test_every_setting_has_one_variable_of_its_own() -> None:
    assert len({variable_of(name) for name in BROKER_SETTINGS}) == len(BROKER_SETTINGS)
    assert not any("_" in name for name in BROKER_SETTINGS)


def test_every_option_is_a_flag_a_variable_and_a_key() -> None:
    words = vars(build_parser(["serve"]).parse_args(["serve"]))
    assert all(name.replace("-", "_") in words for name in OPTIONS)
    assert {option.variable for option in OPTIONS.values()} >= {"WAYSTATION_DATA", "WAYSTATION_LOG_FORMAT"}


# -- listeners ---------------------------------------------------------------------------------------------------------


def listeners_of(made: ServePlan) -> dict[str, ListenerPlan]:
    return {one.terms.name: one for one in made.listeners}


def test_further_listeners_are_tables_of_the_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
kafka = "127.0.0.1:9092"
[listeners.external]
protocol = "kafka"
address = "127.0.0.1:9093"
advertised = "broker.example.com:19093"
tls = "on"
auth-required = true
mechanisms = ["SCRAM-SHA-512", "PLAIN"]
[listeners.http]
address = "[::1]:8081"
advertised = "[2001:db8::1]"
""",
    )
    assert check_config(path).mistakes == []
    found = listeners_of(plan("--config", path))
    assert list(found) == ["kafka", "amqp", "http", "external"]
    assert found["external"] == ListenerPlan(
        "kafka",
        Address("127.0.0.1", 9093),
        "on",
        ListenerTerms("external", "broker.example.com", 19093, True, ("SCRAM-SHA-512", "PLAIN")),
    )
    assert found["http"] == ListenerPlan("http", Address("::1", 8081), terms=ListenerTerms("http", "2001:db8::1", 0))


def test_files_of_a_listener_are_looked_for_beside_the_config_file_and_elsewhere_as_they_are(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
amqp = "127.0.0.1:5672?certificate=amqp.crt&key=amqp.key"
[listeners.external]
protocol = "kafka"
address = "127.0.0.1:9093"
certificate = "with a space & more.crt"
key = "/etc/external.key"
client-ca = "clients/ca.crt"
client-certificates = "required"
[listeners.http]
address = "127.0.0.1:8081"
tls = "on"
""",
    )
    assert check_config(path).mistakes == []
    found = listeners_of(plan("--config", path, "--listeners", "other=kafka://127.0.0.1:1?certificate=here.crt"))
    there = str(tmp_path)
    assert found["external"].own == OwnFiles(
        f"{there}/with a space & more.crt", "/etc/external.key", f"{there}/clients/ca.crt", "required"
    )
    assert found["amqp"].own == OwnFiles(f"{there}/amqp.crt", f"{there}/amqp.key")
    assert found["http"].own == OwnFiles()
    assert found["other"].own == OwnFiles("here.crt")
    (tmp_path / "one.toml").write_text(
        'listeners = "one=kafka://127.0.0.1:2?certificate=a.crt two=kafka://127.0.0.1:3"'
    )
    found = listeners_of(plan("--config", str(tmp_path / "one.toml")))
    assert (found["one"].own, found["two"].own) == (OwnFiles(f"{there}/a.crt"), OwnFiles())


@pytest.mark.parametrize("rules", [r"RULE:^CN=([^,]+?)( \+ x)*,OU=(?:a&b|50%)#.*$/partner $1?/L , DEFAULT", "DEFAULT"])
def test_mapping_rules_of_a_listener_are_taken_as_they_are_written(tmp_path: Path, rules: str) -> None:
    table = f"[listeners.a]\nprotocol = 'kafka'\naddress = '127.0.0.1:1'\nmapping-rules = '{rules}'"
    path = written(tmp_path, table)
    assert check_config(path).mistakes == []
    found = listeners_of(plan("--config", path))
    assert found["a"].terms.mapping_rules == rules
    assert found["kafka"].terms.mapping_rules == ""


def test_a_listener_can_be_told_in_one_line_everywhere_and_flags_win_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, 'listeners = "one=kafka://127.0.0.1:1 two=kafka://127.0.0.1:2 three=http://127.0.0.1:3"')
    made = plan(
        "--config", path, "--listeners", "two=off", "--kafka", "127.0.0.1:9?advertised=example.org",
        WAYSTATION_LISTENERS="one=amqp://localhost:4?tls=off  two=http://127.0.0.1:5",
    )  # fmt: skip
    found = listeners_of(made)
    assert {name: (one.protocol, one.address.port) for name, one in found.items() if name not in ("amqp", "http")} == {
        "kafka": ("kafka", 9),
        "one": ("amqp", 4),
        "three": ("http", 3),
    }
    assert (found["kafka"].terms.advertised_host, found["one"].tls) == ("example.org", "off")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("external", "write NAME=PROTOCOL"),
        ("external=127.0.0.1:1", "say what it speaks, like kafka://127.0.0.1:1"),
        ("external=kafak://127.0.0.1:1", "no protocol 'kafak'; did you mean kafka?"),
        ("9=kafka://127.0.0.1:1", "a name begins with a-z"),
        ("a=kafka://127.0.0.1:1 a=kafka://127.0.0.1:2", "listener 'a' is there twice"),
        ("a=kafka://127.0.0.1:1 b=http://127.0.0.1:1", "'a' and 'b' would both listen at port 1"),
        ("a=http://127.0.0.1:9092", "'kafka' and 'a' would both listen at port 9092"),
        ("a=kafka://0.0.0.0:8080?auth-required=true", "'http' and 'a' would both listen"),
        ("a=kafka://127.0.0.1:1?advertise=x", "no 'advertise'; .*did you mean advertised"),
        ("a=kafka://127.0.0.1:1?advertised=0.0.0.0", "clients cannot connect to that"),
        ("a=kafka://127.0.0.1:1?advertised=x&advertised=y", "advertised is there twice"),
        ("a=kafka://127.0.0.1:1?tls=maybe", "expected on, off or both"),
        ("a=kafka://127.0.0.1:1?auth-required=perhaps", "expected true or false"),
        ("a=kafka://127.0.0.1:1?mechanisms=SCRAM", "there is no 'SCRAM' here"),
        ("a=kafka://127.0.0.1:1?mechanisms=", "mechanisms is empty"),
        ("a=http://127.0.0.1:1?mechanisms=PLAIN", "HTTP has none"),
        ("a=amqp://127.0.0.1:1?auth-required=false", "an AMQP client always logs in"),
        ("a=amqp://127.0.0.1:1?namespace=shop", "an AMQP client names its virtual host itself"),
        ("a=kafka://127.0.0.1:1?namespace=a/b", "a name has no slash"),
        ("a=kafka://127.0.0.1:1?key=x.key", "key: name the certificate that it belongs to"),
        ("a=kafka://127.0.0.1:1?certificate=", "certificate is empty"),
        ("a=kafka://127.0.0.1:1?tls=off&certificate=x.crt", "certificate: this listener speaks no TLS"),
        ("a=kafka://127.0.0.1:1?client-certificates=maybe", "expected off, optional or required"),
        ("a=kafka://127.0.0.1:1?mapping-rules=", "mapping-rules is empty"),
        ("a=kafka://127.0.0.1:1?mapping-rules=RULE:x", "mapping-rules: 'RULE:x' is neither DEFAULT nor RULE:PATTERN"),
        ("a=kafka://127.0.0.1:1?tls=off&mapping-rules=DEFAULT", "mapping-rules: this listener speaks no TLS"),
        ("a=kafka://0.0.0.0:1", "can be reached from other machines"),
        ("a=kafka://0.0.0.0:1?auth-required=false", "can be reached from other machines"),
    ],
)
def test_a_listener_that_cannot_be_is_refused_before_anything_starts(text: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        plan("--listeners", text)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[listeners.a]\nprotocol = "kafka"\nadvertised = "example.org"', "'a': address is missing"),
        ('[listeners.a]\naddress = "127.0.0.1:1"', "protocol is missing"),
        ('[listeners.a]\nprotocol = "kafka"\naddress = "127.0.0.1:1"\nadvertise = "x"', "did you mean advertised"),
        ('[listeners.a]\nprotocol = "kafka"\naddress = "127.0.0.1:1?tls=on"', "keys of its own"),
        ('[listeners.a]\nprotocol = "kafka"\naddress = "127.0.0.1:1"\nauth-required = "no"', "without quotes"),
        ('[listeners]\na = "kafka://127.0.0.1:1"', "it is a table"),
        (
            'kafka = "127.0.0.1:1"\n[listeners.kafka]\naddress = "127.0.0.1:2"',
            "'kafka': it is there already, in line 1",
        ),
    ],
)
def test_a_wrong_table_is_a_mistake_with_its_line(tmp_path: Path, table: str, said: str) -> None:
    (mistake,) = check_config(written(tmp_path, table)).mistakes
    assert re.search(said, mistake.text)
    assert mistake.line >= 1


def test_a_listener_may_be_reached_by_others_if_it_asks_who_they_are(tmp_path: Path) -> None:
    listener = "a=kafka://0.0.0.0:1"
    assert plan("--listeners", f"{listener}?auth-required=true").address("a") == Address("0.0.0.0", 1)
    assert plan("--listeners", listener, "--set", "auth.required=true").address("a") == Address("0.0.0.0", 1)
    with pytest.raises(Invalid, match="can be reached from other machines"):
        plan("--listeners", f"{listener}?auth-required=false", "--set", "auth.required=true")
    assert plan("--listeners", f"{listener}?auth-required=false", "--insecure").address("a") is not None


def test_a_mechanism_that_the_broker_does_not_offer_is_refused() -> None:
    with pytest.raises(
        Invalid, match=r"PLAIN is not enabled on this broker: sasl\.enabled\.mechanisms has SCRAM-SHA-256"
    ):
        plan("--listeners", "a=kafka://127.0.0.1:1?mechanisms=PLAIN", "--set", "sasl.enabled.mechanisms=SCRAM-SHA-256")


def test_a_node_of_a_cluster_has_addresses_that_others_can_connect_to(tmp_path: Path) -> None:
    cluster = ("--cluster", "etcd://127.0.0.1:1/x", "--node", "1", "--insecure")
    with pytest.raises(Invalid, match="no address to connect to: say which one"):
        plan(*cluster, "--kafka", "0.0.0.0:9092")
    made = plan(
        *cluster, "--kafka", "0.0.0.0:9092?advertised=10.0.0.1", "--listeners", "in=kafka://127.0.0.1:1?tls=off"
    )
    assert made.cluster is not None
    assert made.cluster.link.listener == "kafka"
    for name in ("nobody", "http"):
        with pytest.raises(Invalid, match=f"--node-listener {name}: there is no listener of Kafka"):
            plan(*cluster, "--node-listener", name)
