"""The address of a cluster's store, as users write it; and what they are told when they mistype it."""

from __future__ import annotations

import pytest

from waystation.cluster.address import EtcdAddress, parse
from waystation.cluster.decisions.state import Address
from waystation.errors import Invalid


def test_the_shortest_address_is_a_host() -> None:
    assert parse("etcd://here") == EtcdAddress((Address("here", 2379),), "waystation")


def test_an_address_has_several_endpoints_a_user_and_tls() -> None:
    found = parse("etcd://me%40x:s%3Acret%2F@h1:1,h2,[::1]:3/a/prod/?ca=/ca.pem&cert=/c.pem&key=/k.pem&timeout=0.5")
    assert found.endpoints == (Address("h1", 1), Address("h2", 2379), Address("::1", 3))
    assert (found.prefix, found.user, found.password) == ("a/prod", "me@x", "s:cret/")
    assert (found.tls, found.ca, found.cert, found.key, found.timeout_s) == (True, "/ca.pem", "/c.pem", "/k.pem", 0.5)
    assert parse("etcd://h/p?tls=on").tls
    assert not parse("etcd://h/p?tls=off").tls


def test_what_is_shown_of_an_address_has_no_password() -> None:
    found = parse("etcd://me:secret@h1:1,[::1]:3/prod?ca=/ca.pem")
    assert f"{found}" == "etcd://h1:1,[::1]:3/prod"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("127.0.0.1:2379", "begins with etcd://"),
        ("http://127.0.0.1:2379", "begins with etcd://"),
        ("etcd://", "begins with etcd://"),
        ("etcd://h1,/prod", "'' in a cluster's address is not HOST:PORT"),
        ("etcd://h1:0/prod", "is not HOST:PORT"),
        ("etcd://h1:99999/prod", "is not HOST:PORT"),
        ("etcd://h1:abc/prod", "is not HOST:PORT"),
        ("etcd://[::1/prod", "is not HOST:PORT"),
        ("etcd://h1,[::1]x:1/prod", "is not HOST:PORT"),
        ("etcd://u:secret@h1/prod?certs=x", "has no 'certs'; .*did you mean cert"),
        ("etcd://h1/prod?cert=x", "cert and key together"),
        ("etcd://u:secret@h1/prod?password-file=x", "not both"),
        ("etcd://u:secret@h1/prod?tls=yes", "on or off"),
        ("etcd://u:secret@h1/prod?timeout=soon", "in seconds"),
        ("etcd://u:secret@h1/prod?timeout=0", "in seconds"),
        ("etcd://u:secret@h1/prod#x", "%23"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_its_password(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as told:
        parse(text)
    assert "secret" not in str(told.value)
