"""RabbitMQ's management API: policies and definitions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.protocols.http.kit import JSON, name
from tests.protocols.management.kit import Api, basic, ours_only
from tests.support.names import unique
from tests.support.waiting import wait_for


def put_policy(api: Api, pattern: str, definition: dict[str, Any], **more: Any) -> str:
    policy = unique("p")
    more.setdefault("apply-to", "all")
    api("PUT", f"/policies/%2F/{policy}", {"pattern": pattern, "definition": definition, **more})
    return policy


def test_a_policy_is_made_shown_and_deleted(api: Api) -> None:
    policy, queue = unique("p"), api.queue(arguments={"x-message-ttl": 60_000})
    said = {"pattern": f"^{queue}$", "definition": {"max-length": 50, "message-ttl": 5}, "priority": 1}
    said |= {"apply-to": "queues"}
    assert api("PUT", f"/policies/%2F/{policy}", said).status == 201
    assert api("PUT", f"/policies/%2F/{policy}", said).status == 204
    wanted = {"vhost": "/", "name": policy, **said}
    assert api.get(f"/policies/%2F/{policy}") == wanted
    assert wanted in api.get("/policies")
    assert wanted in api.get("/policies/%2F")
    shown = api.shown(queue, policy=policy, effective_policy_definition=said["definition"])
    assert shown["arguments"] == {"x-message-ttl": 60_000}, "what was declared"
    again = {"durable": True, "arguments": {"x-message-ttl": 60_000}}
    assert api("PUT", f"/queues/%2F/{queue}", again).status == 204, "what was declared is compared"
    assert api("DELETE", f"/policies/%2F/{policy}").status == 204
    api.shown(queue, policy=None)
    assert api.refused("GET", f"/policies/%2F/{policy}")[0] == 404
    assert api.refused("DELETE", f"/policies/%2F/{policy}")[0] == 404


def test_a_policys_limit_is_kept(api: Api) -> None:
    queue = api.queue()
    policy = put_policy(api, f"^{queue}$", {"max-length": 2})
    for text in "abc":
        api.publish("amq.default", queue, text)
    assert [message["payload"] for message in api.take(queue, count=5)] == ["b", "c"]
    api("DELETE", f"/policies/%2F/{policy}")


def test_dead_letters_go_where_the_policy_says(api: Api) -> None:
    queue, dead, exchange = api.queue(), api.queue(), api.exchange("fanout")
    api("POST", f"/bindings/%2F/e/{exchange}/q/{dead}", {})
    policy = put_policy(api, f"^{queue}$", {"dead-letter-exchange": exchange, "dead-letter-routing-key": "died"})
    api.publish("amq.default", queue)
    api.take(queue, mode="reject_requeue_false")
    message = wait_for(lambda: api.take(dead), "the dead letter comes")[0]
    assert (message["exchange"], message["routing_key"]) == (exchange, "died")
    api("DELETE", f"/policies/%2F/{policy}")


def test_an_alternate_exchange_comes_from_a_policy(api: Api) -> None:
    queue, exchange, alternate = api.queue(), api.exchange("direct"), api.exchange("fanout")
    api("POST", f"/bindings/%2F/e/{alternate}/q/{queue}", {})
    policy = put_policy(api, f"^{exchange}$", {"alternate-exchange": alternate}, **{"apply-to": "exchanges"})
    assert api.publish(exchange, "nowhere")
    assert api.get(f"/exchanges/%2F/{exchange}")["policy"] == policy
    api("DELETE", f"/policies/%2F/{policy}")
    assert not api.publish(exchange, "nowhere")


@pytest.mark.parametrize(
    "said",
    [
        {"pattern": "(", "definition": {"max-length": 50}},
        {"pattern": "a", "definition": {"max-length": "x"}},
        {"pattern": "a", "definition": {"max-length": -1}},
        {"pattern": "a", "definition": {"nonsense": 1}},
        {"pattern": "a", "definition": {"max-priority": 1}},
        {"pattern": "a", "definition": {}},
        {"pattern": "a"},
        {"definition": {"max-length": 1}},
        {"pattern": "a", "definition": {"max-length": 1}, "apply-to": "everything"},
        {"pattern": "a", "definition": {"max-length": 1}, "priority": "x"},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(api: Api, said: dict[str, Any]) -> None:
    policy = unique("p")
    assert api.refused("PUT", f"/policies/%2F/{policy}", said)[0] == 400
    assert api.refused("GET", f"/policies/%2F/{policy}")[0] == 404


# -- definitions -------------------------------------------------------------------------------------------------------


def test_what_was_exported_can_be_imported(api: Api) -> None:
    vhost = unique("v")
    api("PUT", f"/vhosts/{vhost}")
    queue = api.queue(vhost, arguments={"x-max-length": 5, "x-dead-letter-exchange": "dlx"})
    source, target = api.exchange("topic", vhost), api.exchange("fanout", vhost, arguments={"alternate-exchange": "x"})
    api("POST", f"/bindings/{vhost}/e/{source}/q/{queue}", {"routing_key": "k.#", "arguments": {"x-note": 1}})
    api("POST", f"/bindings/{vhost}/e/{source}/e/{target}", {"routing_key": "onward"})
    policy = {"pattern": "^q", "definition": {"max-length": 3}, "priority": 2, "apply-to": "queues"}
    api("PUT", f"/policies/{vhost}/p", policy)
    whole, exported = api.get("/definitions"), api.get(f"/definitions/{vhost}")
    assert {"name": vhost} in whole["vhosts"]
    for kind in ("queues", "exchanges", "bindings", "policies"):
        of_vhost = [one for one in whole[kind] if one["vhost"] == vhost]
        without = [{field: value for field, value in one.items() if field != "vhost"} for one in of_vhost]
        assert sorted(map(str, without if kind != "policies" else of_vhost)) == sorted(map(str, exported[kind]))
    api("DELETE", f"/vhosts/{vhost}")
    mine = {kind: [one for one in whole[kind] if one["vhost"] == vhost] for kind in ("queues", "exchanges", "bindings")}
    mine["policies"] = [one for one in whole["policies"] if one["vhost"] == vhost]
    assert api("POST", "/definitions", {**whole, **mine, "vhosts": [{"name": vhost}], "users": []}).status == 204
    again = api.get(f"/definitions/{vhost}")
    assert {kind: sorted(map(str, again[kind])) for kind in mine} == {
        kind: sorted(map(str, exported[kind])) for kind in mine
    }
    api("DELETE", f"/vhosts/{vhost}")
    api("PUT", f"/vhosts/{vhost}")
    assert api("POST", f"/definitions/{vhost}", exported).status == 204
    assert sorted(map(str, api.get(f"/definitions/{vhost}")["bindings"])) == sorted(map(str, exported["bindings"]))
    api("DELETE", f"/vhosts/{vhost}")


@ours_only
def test_what_is_known_of_a_virtual_host_is_exported_and_imported(api: Api) -> None:
    vhost = unique("v")
    known = {"description": "the shop's", "tags": ["a", "b"], "default_queue_type": "quorum"}
    api("PUT", f"/vhosts/{vhost}", known)
    usual = api.queue(vhost, durable=True)
    other = api.queue(vhost, durable=True, arguments={"x-queue-type": "classic"})
    whole = api.get("/definitions")
    mine = {
        kind: [one for one in whole[kind] if one.get("vhost", one["name"]) == vhost] for kind in ("vhosts", "queues")
    }
    api("DELETE", f"/vhosts/{vhost}")
    assert api("POST", "/definitions", mine).status == 204
    shown = api.get(f"/vhosts/{vhost}")
    assert {field: shown[field] for field in known} == known
    assert [api.get(f"/queues/{vhost}/{queue}")["type"] for queue in (usual, other)] == ["quorum", "classic"]
    api("DELETE", f"/vhosts/{vhost}")
    # RabbitMQ's later versions write it in two places, and earlier ones in one.
    assert api("POST", "/definitions", {"vhosts": [{"name": vhost, "metadata": known}]}).status == 204
    assert api.get(f"/vhosts/{vhost}")["default_queue_type"] == "quorum"
    assert api("POST", "/definitions", {"vhosts": [{"name": vhost}]}).status == 204
    assert api.get(f"/vhosts/{vhost}")["default_queue_type"] == "quorum", "nothing was said of it"
    api("DELETE", f"/vhosts/{vhost}")


def test_what_is_there_already_stays_as_it_is(api: Api) -> None:
    queue = api.queue(arguments={"x-max-length": 5})
    other = {"name": queue, "vhost": "/", "durable": False, "auto_delete": False, "arguments": {}}
    assert api("POST", "/definitions", {"queues": [other]}).status == 204
    assert api.get(f"/queues/%2F/{queue}")["arguments"] == {"x-max-length": 5}


def test_an_import_that_makes_no_sense_is_refused(api: Api) -> None:
    lost = {"name": "q", "vhost": unique("nowhere"), "durable": True, "auto_delete": False, "arguments": {}}
    assert api.refused("POST", "/definitions", {"queues": [lost]})[0] == 400
    assert api.http("POST", "/api/definitions", b"{", headers=JSON | basic(), ok=False).status == 400


@ours_only
def test_definitions_of_a_rabbitmq_can_be_imported(api: Api) -> None:
    """As one of version 3.10 writes them, with all that means nothing here."""
    vhost, queue = unique("v"), unique("q")
    said = {
        "rabbit_version": "3.10.8",
        "users": [],  # which would close the broker: see tests/security/test_rabbitmq_users.py
        "vhosts": [{"name": vhost}, {"name": "/"}],
        "permissions": [],
        "topic_permissions": [],
        "parameters": [],
        "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
        "policies": [
            {
                "vhost": vhost,
                "name": "ha",
                "pattern": ".*",
                "apply-to": "all",
                "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"},
                "priority": 0,
            }
        ],
        "queues": [
            {
                "name": queue,
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-mode": "lazy", "x-queue-type": "classic"},
            }
        ],
        "exchanges": [],
        "bindings": [],
    }
    assert api("POST", "/definitions", said).status == 204
    assert api.get(f"/queues/{vhost}/{queue}")["policy"] == "ha"
    policy = {"name": "p", "vhost": "/"}
    senseless: tuple[dict[str, Any], ...] = ({"queues": {}}, {"queues": [3]}, {"policies": [policy]}, {"vhosts": [{}]})
    for wrong in senseless:
        assert api.refused("POST", "/definitions", wrong)[0] == 400
    bad = {"bindings": [{"source": "none", "vhost": vhost, "destination": queue, "destination_type": "queue"}]}
    assert api.refused("POST", "/definitions", bad)[0] == 404
    api("DELETE", f"/vhosts/{name(vhost)}")


@ours_only
def test_definitions_of_a_rabbitmq_4_can_be_imported(api: Api) -> None:
    """With policies for streams, for quorum queues and for what plugins do."""
    vhost = unique("v")

    def policy(title: str, kind: str, pattern: str, **definition: Any) -> dict[str, Any]:
        said = {key.replace("_", "-"): value for key, value in definition.items()}
        return {
            "vhost": vhost,
            "name": title,
            "pattern": pattern,
            "apply-to": kind,
            "definition": said,
            "priority": 0,
        }

    def queue(title: str, kind: str, **arguments: Any) -> dict[str, Any]:
        said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return {
            "name": title,
            "vhost": vhost,
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": kind, **said},
        }

    keeping = policy("streams", "streams", "^s", max_age="7D", stream_max_segment_size_bytes=50_000_000)
    policies = [
        keeping,
        policy("filters", "streams", "^filtered", stream_filter_size_bytes=32, initial_cluster_size=3),
        policy(
            "quorum", "quorum_queues", "^q", delivery_limit=-1, target_group_size=3, dead_letter_strategy="at-most-once"
        ),
        policy("classic", "classic_queues", "^c", queue_version=2, max_length=10),
        policy("federated", "all", "^federated", federation_upstream_set="all"),
        policy("sharded", "exchanges", "^sharded", shards_per_node=2, routing_key="1234"),
    ]
    said = {
        "rabbit_version": "4.1.4",
        "rabbitmq_version": "4.1.4",
        "product_name": "RabbitMQ",
        "product_version": "4.1.4",
        "rabbitmq_definition_format": "cluster",
        "original_cluster_name": "rabbit@old",
        "explanation": "Definitions of cluster 'rabbit@old'",
        "users": [],
        "vhosts": [
            {
                "name": vhost,
                "description": "",
                "tags": [],
                "default_queue_type": "classic",
                "metadata": {"description": "", "tags": [], "default_queue_type": "classic"},
            }
        ],
        "permissions": [],
        "topic_permissions": [],
        "parameters": [
            {"value": {"uri": "amqp://x"}, "vhost": vhost, "component": "federation-upstream", "name": "up"}
        ],
        "global_parameters": [{"name": "cluster_tags", "value": []}],
        "policies": policies,
        "queues": [
            queue("s1", "stream", max_age="30D", queue_leader_locator="balanced"),
            queue("s2", "stream"),
            queue("q1", "quorum", quorum_initial_group_size=3, delivery_limit=20),
            queue("c1", "classic"),
        ],
        "exchanges": [],
        "bindings": [],
    }
    assert api("POST", "/definitions", said).status == 204
    assert sorted(api.get(f"/policies/{vhost}"), key=str) == sorted(policies, key=str), "all of them, as they came"
    shown = {one["name"]: one for one in api.get(f"/queues/{vhost}")}
    assert {title: one["policy"] for title, one in shown.items()} == {
        "s1": "streams",
        "s2": "streams",
        "q1": "quorum",
        "c1": "classic",
    }
    assert shown["s1"]["effective_policy_definition"] == keeping["definition"]
    assert shown["s1"]["arguments"] == {"x-queue-type": "stream", "x-max-age": "30D"}, "what was declared"
    settings = {
        one["name"]: (one["value"], one["source"])
        for one in api.http("GET", f"/v1/topics/{vhost}.s1/settings").json["settings"]
        if one["source"] == "policy"
    }
    week_ms = 7 * 24 * 3600 * 1000
    assert settings == {"retention.ms": (str(week_ms), "policy"), "segment.bytes": ("50000000", "policy")}
    exported = api.get(f"/definitions/{vhost}")
    assert sorted(exported["policies"], key=str) == sorted(policies, key=str)
    for wrong in ({"max_age": "7 days"}, {"stream_max_segment_size_bytes": -1}, {"target_group_size": "x"}):
        bad = {"policies": [policy("bad", "all", "^x", **wrong)]}
        assert api.refused("POST", "/definitions", bad)[0] == 400
    assert api.refused("GET", f"/policies/{vhost}/bad")[0] == 404
    api("DELETE", f"/vhosts/{name(vhost)}")
