"""Consuming by WebSocket and by server-sent events."""

from __future__ import annotations

import socket as sockets
import threading
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.protocols.http.kit import Http, name
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for


def stream(queue: str) -> str:
    return f"/v1/queues/{name(queue)}/stream"


def test_a_websocket_gets_messages_and_acknowledges_them(http: Http, queue: str) -> None:
    http.put(queue, "before")
    with http.socket(stream(queue)) as socket:
        (before,) = socket.messages(1)
        http.put(queue, "during")
        (during,) = socket.messages(1)
        assert (before["payload"], during["payload"], before["deliveries"]) == ("before", "during", 1)
        answer = socket.ask(action="ack", ack_ids=[before["ack_id"], during["ack_id"]])
        assert answer == {"kind": "answer", "id": 7, "settled": 2, "unknown": []}
        assert http.queue(queue)["held"] == 0
    assert http.queue(queue)["acked"] == 2


def test_closing_the_websocket_gives_back_what_it_held(http: Http, queue: str) -> None:
    http.put(queue, *"abc")
    with http.socket(stream(queue)) as socket:
        taken = socket.messages(3)
        socket.ask(action="ack", ack_ids=[taken[0]["ack_id"]])
    wait_for(lambda: http.queue(queue)["ready"] == 2, "two are back")
    assert http.queue(queue)["consumers"] == 0
    assert [message["deliveries"] for message in http.take(queue, count=3)] == [2, 2]
    assert http.refused("POST", "/v1/ack", {"ack_ids": [taken[1]["ack_id"]]}) == (409, "Conflict")


def test_a_websocket_that_breaks_gives_back_what_it_held(http: Http, queue: str) -> None:
    http.put(queue, "a")
    socket = http.socket(stream(queue))
    socket.messages(1)
    socket.connection.socket.shutdown(sockets.SHUT_RDWR)
    wait_for(lambda: http.queue(queue)["ready"] == 1, "it is back")


def test_reject_release_and_touch_by_websocket(http: Http) -> None:
    queue, dead = unique("q"), unique("dead")
    http("PUT", f"/v1/queues/{dead}")
    http("PUT", f"/v1/queues/{queue}", {"dead_letter": dead, "retry_base_ms": 1})
    with http.socket(stream(queue)) as socket:
        http.put(queue, "x")
        (first,) = socket.messages(1)
        socket.send(action="reject", ack_ids=[first["ack_id"]], delay_ms=1)
        (second,) = socket.messages(1)
        assert second["deliveries"] == 2
        assert socket.ask(action="touch", ack_ids=[second["ack_id"]], hold_ms=60_000)["settled"] == 1
        socket.send(action="release", ack_ids=[second["ack_id"]])
        (third,) = socket.messages(1)
        assert socket.ask(action="reject", ack_ids=[third["ack_id"]], dead=True, error="no")["settled"] == 1
    assert http.one(dead)["headers"]["x-death"][0]["error"] == "no"


def test_prefetch_bounds_what_a_websocket_holds(http: Http, queue: str) -> None:
    http.put(queue, *[str(number) for number in range(10)])
    with http.socket(stream(queue), prefetch=3) as socket:
        taken = socket.messages(3)
        assert http.queue(queue)["held"] == 3
        socket.send(action="ack", ack_ids=[message["ack_id"] for message in taken])
        assert [message["payload"] for message in socket.messages(3)] == ["3", "4", "5"]


def test_a_client_may_give_credit_itself(http: Http, queue: str) -> None:
    http.put(queue, *[str(number) for number in range(200)])
    with http.socket(stream(queue), credit=0, prefetch=0) as socket:
        assert socket.ask(action="nonsense")["kind"] == "failure"
        assert http.queue(queue)["held"] == 0
        socket.send(action="credit", count=150)
        assert len(socket.messages(150)) == 150
        assert socket.ask(action="credit", count=0)["problem"]["field"] == "count"
        assert http.queue(queue)["held"] == 150
    with http.socket(stream(queue)) as socket:
        assert socket.ask(action="credit", count=5)["kind"] == "failure"


def test_auto_ack_by_websocket(http: Http, queue: str) -> None:
    http.put(queue, *"abc")
    with http.socket(stream(queue), auto_ack=True) as socket:
        assert all("ack_id" not in message for message in socket.messages(3))
        assert socket.ask(action="ack", ack_ids=["x"])["kind"] == "failure"
    assert http.queue(queue)["acked"] == 3


@pytest.mark.parametrize("text", ["{", "[]", "7", '"ack"', '{"action": "ack"}', '{"action": "fly"}', "{}", '{"id": 1}'])
def test_a_message_that_makes_no_sense_gets_an_error_and_the_websocket_stays(http: Http, queue: str, text: str) -> None:
    with http.socket(stream(queue)) as socket:
        socket.connection.send(text)
        answer = socket.receive()
        assert (answer["kind"], answer["problem"]["status"]) == ("failure", 400)
        http.put(queue, "still here")
        assert socket.messages(1)[0]["payload"] == "still here"


def test_an_ack_of_what_is_not_held_is_a_conflict(http: Http, queue: str) -> None:
    http.put(queue, "a")
    other = http.one(queue)
    with http.socket(stream(queue)) as socket:
        answer = socket.ask(action="ack", ack_ids=[other["ack_id"]])
        assert (answer["kind"], answer["problem"]["error"]) == ("failure", "Conflict")
    assert http.queue(queue)["held"] == 1


def test_a_deleted_queue_ends_its_consumers_with_a_word(http: Http, queue: str) -> None:
    with http.socket(stream(queue)) as socket, http.events(stream(queue)) as events:
        http("DELETE", f"/v1/queues/{queue}")
        ceased = socket.receive()
        assert (ceased["kind"], ceased["problem"]["error"]) == ("ceased", "NotFound")
        with pytest.raises(ConnectionClosed):
            socket.receive()
        assert events.next()[0] == "ceased"


def test_a_queue_that_is_not_there_is_told_before_the_websocket_opens(http: Http) -> None:
    with pytest.raises(InvalidStatus) as refused:
        http.socket(stream("not-there"))
    assert refused.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as refused:
        http.socket("/v1/queues")
    assert refused.value.response.status_code == 400


def test_a_page_of_another_origin_gets_no_websocket(http: Http, queue: str) -> None:
    from websockets.sync.client import connect
    from websockets.typing import Origin

    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://{http.address}{stream(queue)}", origin=Origin("http://evil.example.com")).__enter__()
    assert refused.value.response.status_code == 403


def test_a_client_that_does_not_read_is_sent_a_bounded_amount(http: Http, queue: str) -> None:
    """Without acks nothing but the socket limits it: what is not read must stay in the queue."""
    payload = "x" * 100_000
    total = 400
    for _ in range(total // 50):
        http.put(queue, *[payload] * 50)
    with http.socket(stream(queue), auto_ack=True) as socket:
        # The client's receive buffer fills, then the broker's; then it must stop. It is seen to have stopped when two
        # looks in a row find the same.
        seen: list[int] = []

        def stopped() -> bool:
            seen.append(http.queue(queue)["ready"])
            return len(seen) > 3 and seen[-1] == seen[-4] < total

        wait_for(stopped, "it stopped", every_s=0.1)
        assert seen[-1] > total // 2
        got = 0
        while got < total:
            got += len(socket.receive()["messages"])
    assert http.queue(queue)["ready"] == 0


def test_server_sent_events_carry_messages_and_posts_acknowledge_them(http: Http, queue: str) -> None:
    http.put(queue, "a", "line\nbreak")
    with http.events(stream(queue)) as events:
        first, second = events.messages(2)
        assert (first["payload"], second["payload"]) == ("a", "line\nbreak")
        answer = http("POST", "/v1/ack", {"ack_ids": [first["ack_id"]]})
        assert answer.json["settled"] == 1
        assert http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [second["ack_id"]]}).json["settled"] == 1
        http.put(queue, "b")
        events.messages(1)
    wait_for(lambda: http.queue(queue)["ready"] == 1, "what was not acknowledged is back")


def test_an_exclusive_consumer_is_alone(http: Http, queue: str) -> None:
    with http.socket(stream(queue), exclusive=True), pytest.raises(InvalidStatus) as refused:
        http.socket(stream(queue))
    assert refused.value.response.status_code == 409


# -- topics ------------------------------------------------------------------------------------------------------------

SUBSCRIBE = "/v1/subscriptions/stream"


def test_a_live_subscription_by_pattern_picks_up_later_topics(http: Http) -> None:
    prefix = unique("live")
    with http.socket(SUBSCRIBE, topic=f"{prefix}.*") as socket, http.events(SUBSCRIBE, topic=f"{prefix}.#") as events:
        http("POST", f"/v1/topics/{prefix}.a/messages", {"payload": "x", "key": "k"})
        (message,) = socket.messages(1)
        assert (message["source"], message["payload"], message["key"]) == (f"{prefix}.a", "x", "k")
        assert "ack_id" not in message
        assert events.messages(1)[0]["payload"] == "x"
        assert http("GET", "/v1/subscriptions").json["topics"][f"{prefix}.a"] == 2


def test_history_and_a_filter(http: Http, topic: str) -> None:
    messages = [{"payload": str(number), "headers": {"odd": str(number % 2)}} for number in range(8)]
    http("POST", f"/v1/topics/{topic}/messages", messages)
    with http.socket(SUBSCRIBE, topic=topic, history=2, filter="headers.odd = '1'") as socket:
        assert [message["payload"] for message in socket.messages(2)] == ["5", "7"]


@pytest.mark.parametrize("mode", ["shared", "stream"])
def test_a_group_goes_on_where_it_was(http: Http, topic: str, mode: str) -> None:
    http("POST", f"/v1/topics/{topic}/messages", [{"payload": str(number)} for number in range(4)])
    query = {"topic": topic, "mode": mode, "group": unique("g"), "start": "earliest"}
    with http.socket(SUBSCRIBE, **query) as socket:
        first = socket.messages(4)
        assert [message["payload"] for message in first] == ["0", "1", "2", "3"]
        assert socket.ask(action="ack", ack_ids=[message["ack_id"] for message in first[:2]])["settled"] == 2
    with http.socket(SUBSCRIBE, **query) as socket:
        assert [message["payload"] for message in socket.messages(2)] == ["2", "3"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "topic"),
        ({"topic": "t", "mode": "shared"}, "group"),
        ({"topic": "t", "mode": "odd"}, "mode"),
        ({"topic": "t", "filter": "a ="}, None),
        ({"topic": "(", "syntax": "regex"}, None),
        ({"topic": "t", "history": -1}, "history"),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(http: Http, query: dict[str, Any], field: str | None) -> None:
    answer = http("POST", SUBSCRIBE, ok=False, **query)
    assert answer.status == 400, answer
    assert answer.json["detail"]
    assert field is None or answer.json["field"] == field


# -- request and reply -------------------------------------------------------------------------------------------------


def test_a_request_gets_its_reply(http: Http, queue: str) -> None:
    def respond() -> None:
        request = http.one(queue)
        body = {"json": sum(map(int, request["payload"].split())), "correlation_id": request["correlation_id"]}
        http("POST", "/v1/replies", body, to=request["reply_to"])

    responder = threading.Thread(target=respond)
    responder.start()
    answer = http("POST", "/v1/requests", {"payload": "1 2 3"}, queue=queue, timeout_ms=int(DEADLINE_S * 1000)).json
    responder.join()
    assert answer["payload"] == "6"
    assert answer["correlation_id"]


def test_a_request_over_a_topic(http: Http, topic: str) -> None:
    with http.socket(SUBSCRIBE, topic=topic) as socket:

        def respond() -> None:
            (request,) = socket.messages(1)
            http("POST", "/v1/replies", {"payload": "pong"}, to=request["reply_to"])

        responder = threading.Thread(target=respond)
        responder.start()
        assert (
            http("POST", "/v1/requests", {"payload": "ping"}, topic=topic, timeout_ms=30_000).json["payload"] == "pong"
        )
        responder.join()


def test_a_request_without_a_reply_times_out(http: Http, queue: str) -> None:
    assert http.refused("POST", "/v1/requests", {"payload": "?"}, queue=queue, timeout_ms=20) == (504, "TimedOut")
    reply_to = http.one(queue)["reply_to"]
    assert http.refused("POST", "/v1/replies", {"payload": "late"}, to=reply_to) == (404, "NotFound")
    assert http.refused("POST", "/v1/requests", {"payload": "?"}) == (400, "Invalid")


# -- the end -----------------------------------------------------------------------------------------------------------


def test_a_broker_that_stops_tells_its_clients_and_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Server(tmp_path_factory.mktemp("stopping")) as server:
        http = Http(server.addresses["http"])
        http("PUT", "/v1/queues/q")
        http("PUT", "/v1/queues/empty")
        http.put("q", "held", "kept")
        held = http.one("q")
        waiting = http.connect()
        waiting.request("POST", "/v1/queues/empty/take?wait_ms=100000")
        wait_for(lambda: http.queue("empty")["consumers"], "somebody waits")
        idle = sockets.create_connection(split_address(http.address))
        with http.socket(stream("q"), credit=0) as socket, http.events(stream("q"), credit=0) as events:
            assert server.stop() == 0
            assert socket.receive()["problem"]["error"] == "Unavailable"
            assert events.next()[0] == "ceased"
        assert waiting.getresponse().status == 503
        idle.close()
        waiting.close()
        assert "Traceback" not in server.tail(200)
        server.restart()
        http = Http(server.addresses["http"])
        assert http.refused("POST", "/v1/ack", {"ack_ids": [held["ack_id"]]}) == (409, "Conflict")
        assert {message["payload"] for message in http.take("q", count=5)} == {"kept", "held"}
