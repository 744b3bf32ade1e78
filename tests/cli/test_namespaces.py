"""`waystation namespaces` and `waystation policies` against a running broker."""

from __future__ import annotations

import waystation
from tests.cli.kit import QuickCli
from tests.support.names import unique


def test_a_namespace_is_made_changed_and_deleted_with_what_is_in_it(quick: QuickCli) -> None:
    name = unique("tenant")
    words = ("--description", "one of many", "--max-queues", "3", "--max-bytes", "1MiB")
    assert quick("namespaces", "create", name, *words).text == f"created namespace {name}\n"
    assert "namespaces alter" in quick("namespaces", "create", name, code=1).err
    (again,) = quick("namespaces", "create", name, "--if-not-exists", "--json").objects
    assert (again["created"], again["max_queues"], again["max_bytes"]) == (False, 3, 1 << 20)
    with waystation.connect(quick.server) as mq:
        mq.queue(f"{name}/jobs").put(b"x")
    (described,) = quick("namespaces", "describe", name, "--json").objects
    assert (described["description"], described["queues"], described["connections"]) == ("one of many", 1, 0)
    assert "1.0 MiB" in quick("namespaces", "describe", name).text
    altered = quick("namespaces", "alter", name, "--max-connections", "7", "--unset", "max-queues", "--json").json
    assert (altered["max_topics"], altered["max_partitions"]) == (None, None)
    assert (altered["max_queues"], altered["max_bytes"], altered["max_connections"]) == (None, 1 << 20, 7)
    assert "nothing to change" in quick("namespaces", "alter", name, code=1).err
    assert f"did you mean '{name}'" in quick("namespaces", "describe", f"x{name}", code=1).err
    assert "--yes" in quick("namespaces", "delete", name, code=1).err
    assert "cannot be deleted" in quick("namespaces", "delete", "/", "--yes", code=1).err
    quick("namespaces", "delete", name, "--yes")
    assert f"{name}/jobs" not in quick("queues", "list").text


def test_a_policy_is_in_force_until_it_is_deleted(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    rule = ("max-length=1", "overflow=reject-publish", "--priority", "3")
    done = quick("policies", "set", f"{queue}-p", f"^{queue}", *rule)
    assert done.text == f"policy {queue}-p is in force\n"
    assert settings(quick, queue)["max_length"] == 1
    (described,) = quick("policies", "describe", f"{queue}-p", "--json").objects
    assert (described["definition"], described["priority"]) == ({"max-length": 1, "overflow": "reject-publish"}, 3)
    assert "max-length" in quick("policies", "describe", f"{queue}-p").text
    assert f"did you mean '{queue}-p'" in quick("policies", "describe", f"x{queue}-p", code=1).err
    assert "not a recognised policy setting" in quick("policies", "set", "p", "x", "max-lenght=1", code=1).err
    assert "there is no namespace" in quick("policies", "list", "--namespace", "nowhere", code=1).err
    assert "--yes" in quick("policies", "delete", f"{queue}-p", code=1).err
    quick("policies", "delete", f"{queue}-p", "--yes")
    assert settings(quick, queue)["max_length"] is None


def settings(quick: QuickCli, queue: str) -> dict[str, object]:
    (described,) = quick("queues", "describe", queue, "--json").objects
    return dict(described["settings"])


def test_what_is_remembered_of_namespaces_and_policies_has_a_bound(quick: QuickCli) -> None:
    name, much = unique("tenant"), "x" * 20_000
    assert "the most is 16384" in quick("namespaces", "create", name, "--description", much, code=1).err
    assert "the most is 16384" in quick("policies", "set", name, "^x", f"ha-params={much}", code=1).err
    assert name not in quick("namespaces", "list").text
    assert name not in quick("policies", "list").text
