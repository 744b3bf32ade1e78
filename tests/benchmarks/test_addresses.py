"""An address says how to log in, and survives being written and read."""

import pytest

from benchmarks.addresses import Address, kafka_settings, parse_address


@pytest.mark.parametrize(
    "address",
    [
        Address("127.0.0.1", 9092),
        Address("127.0.0.1", 9092, ca="/tmp/a folder/ca.crt"),
        Address("127.0.0.1", 9092, "bench", "pass@word:/?"),
        Address("127.0.0.1", 9092, "bench", "secret", "/tmp/ca.crt"),
    ],
)
def test_an_address_is_read_as_it_was_written(address: Address) -> None:
    assert parse_address(str(address)) == address


def test_a_broker_that_asks_nobody_has_the_usual_address() -> None:
    assert str(Address("127.0.0.1", 9092)) == "127.0.0.1:9092"
    assert kafka_settings("127.0.0.1:9092") == {"bootstrap.servers": "127.0.0.1:9092"}


def test_a_kafka_client_is_told_of_login_and_authority() -> None:
    found = kafka_settings(str(Address("127.0.0.1", 9092, "bench", "secret", "/tmp/ca.crt")))
    assert found["security.protocol"] == "SASL_SSL"
    assert (found["sasl.username"], found["sasl.password"]) == ("bench", "secret")
    assert found["ssl.ca.location"] == "/tmp/ca.crt"
