"""Addresses as people write them."""

from __future__ import annotations

import pytest

from waystation.client.links.address import Address, parse_address
from waystation.errors import Invalid


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("localhost", "localhost", 7),
        (":0", "127.0.0.1", 0),
        ("9093", "127.0.0.1", 9093),
        ("[::1]:9092", "::1", 9092),
        ("[fe80::1]", "fe80::1", 7),
        (" 10.0.0.1:1 ", "10.0.0.1", 1),
    ],
)
def test_an_address_is_read_as_written(text: str, host: str, port: int) -> None:
    assert parse_address(text, default_port=7) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "::1",
        "host:port",
        "host:70000",
        "host:-1",
        "[::1",
        "[::1]9092",
        "[]:1",
        "a:1:2",
        "70000",
        "http://a:1",
        "a:1,b:2",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="address"):
        parse_address(text, default_port=7)


@pytest.mark.parametrize("text", ["127.0.0.1:9092", "[::1]:0", "example.org:5"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(parse_address(text, default_port=7)) == text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "localhost", "::1"])
def test_loopback_is_known(host: str) -> None:
    assert Address(host, 1).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "127.example.org", "1270.0.0.1"])
def test_what_others_may_reach_is_not_loopback(host: str) -> None:
    assert not Address(host, 1).loopback
