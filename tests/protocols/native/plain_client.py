"""A small client of the plain actions, as people have written it: one socket, one answer per request.

The broker must not change what it sends and reads. What cannot be sent is raised.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty, Queue
from typing import Any


class MessageQueueClient:
    def __init__(self, broker_host: str, broker_port: int) -> None:
        self.socket = socket.create_connection((broker_host, broker_port), 30)
        self.connected = True
        self.lock = threading.RLock()

    def disconnect(self) -> None:
        with self.lock:
            self.socket.close()
            self.connected = False

    def send_command(self, command: dict[str, Any]) -> dict[str, Any] | None:
        with self.lock:
            self.socket.send((json.dumps(command) + "\n").encode())
            response_data = b""
            while b"\n" not in response_data:
                chunk = self.socket.recv(1024)
                if not chunk:
                    return None
                response_data += chunk
            found: dict[str, Any] = json.loads(response_data.decode().strip())
            return found


class MessageProducer(MessageQueueClient):
    def publish(
        self,
        topic: str,
        payload: bytes,
        headers: dict[str, str] | None = None,
        priority: int = 2,
        expiry_seconds: int | None = None,
    ) -> str | None:
        message_id = str(uuid.uuid4())
        command = {
            "action": "publish",
            "message": {
                "id": message_id,
                "topic": topic,
                "payload": payload.decode("utf-8", errors="ignore"),
                "headers": headers or {},
                "priority": priority,
                "expiry": time.time() + expiry_seconds if expiry_seconds else None,
            },
        }
        response = self.send_command(command)
        if response and response.get("status") == "success":
            return message_id
        return None

    def publish_json(self, topic: str, data: dict[str, Any], **kwargs: Any) -> str | None:
        return self.publish(topic, json.dumps(data).encode(), **kwargs)

    def publish_text(self, topic: str, text: str, **kwargs: Any) -> str | None:
        return self.publish(topic, text.encode(), **kwargs)


class MessageConsumer(MessageQueueClient):
    def __init__(self, consumer_id: str, broker_host: str, broker_port: int) -> None:
        super().__init__(broker_host, broker_port)
        self.consumer_id = consumer_id
        self.subscriptions: dict[str, str] = {}
        self.message_handlers: dict[str, Callable[[dict[str, Any]], bool]] = {}
        self.running = False
        self.consumer_thread: threading.Thread | None = None
        self.message_queue: Queue[dict[str, Any]] = Queue()
        self.errors: list[BaseException] = []

    def subscribe(
        self,
        topic_pattern: str,
        delivery_mode: str = "at_least_once",
        message_handler: Callable[[dict[str, Any]], bool] | None = None,
    ) -> bool:
        subscription_id = str(uuid.uuid4())
        command = {
            "action": "subscribe",
            "subscription": {
                "id": subscription_id,
                "topic_pattern": topic_pattern,
                "consumer_id": self.consumer_id,
                "delivery_mode": delivery_mode,
            },
        }
        response = self.send_command(command)
        if response and response.get("status") == "success":
            self.subscriptions[topic_pattern] = subscription_id
            if message_handler:
                self.message_handlers[topic_pattern] = message_handler
            return True
        return False

    def unsubscribe(self, topic_pattern: str) -> bool:
        if topic_pattern not in self.subscriptions:
            return False
        command = {"action": "unsubscribe", "subscription_id": self.subscriptions[topic_pattern]}
        response = self.send_command(command)
        if response and response.get("status") == "success":
            del self.subscriptions[topic_pattern]
            self.message_handlers.pop(topic_pattern, None)
            return True
        return False

    def start_consuming(self) -> None:
        self.running = True
        self.consumer_thread = threading.Thread(target=self._consume_loop, daemon=True)
        self.consumer_thread.start()

    def stop_consuming(self) -> None:
        self.running = False
        if self.consumer_thread:
            self.consumer_thread.join(timeout=30.0)
        assert self.errors == []

    def consume(self, max_messages: int = 10) -> list[dict[str, Any]]:
        response = self.send_command(
            {"action": "consume", "consumer_id": self.consumer_id, "max_messages": max_messages}
        )
        assert response is not None
        assert response["status"] == "success", response
        messages: list[dict[str, Any]] = response["messages"]
        return messages

    def _consume_loop(self) -> None:
        try:
            while self.running and self.connected:
                for message_data in self.consume():
                    self._handle_message(from_dict(message_data))
                time.sleep(0.1)
        except BaseException as error:
            self.errors.append(error)

    def _handle_message(self, message: dict[str, Any]) -> None:
        handler = None
        for pattern, pattern_handler in self.message_handlers.items():
            if pattern == message["topic"] or ("*" in pattern):
                handler = pattern_handler
                break
        if handler is None:
            self.message_queue.put(message)
            return
        try:
            success = handler(message)
        except Exception:
            success = False
        if success:
            self.acknowledge_message(message["id"])
        else:
            self.reject_message(message["id"])

    def acknowledge_message(self, message_id: str) -> bool:
        command = {"action": "ack", "message_id": message_id, "consumer_id": self.consumer_id}
        response = self.send_command(command)
        return bool(response and response.get("status") == "success")

    def reject_message(self, message_id: str) -> bool:
        command = {"action": "reject", "message_id": message_id, "consumer_id": self.consumer_id}
        response = self.send_command(command)
        return bool(response and response.get("status") == "success")

    def get_message(self, timeout: float = 1.0) -> dict[str, Any] | None:
        try:
            return self.message_queue.get(timeout=timeout)
        except Empty:
            return None


def from_dict(data: dict[str, Any]) -> dict[str, Any]:
    """`Message.from_dict`: it needs these, and its priority is one of four."""
    assert data.get("priority", 2) in (1, 2, 3, 4)
    return {
        "id": data["id"],
        "topic": data["topic"],
        "payload": data["payload"].encode("utf-8"),
        "headers": data.get("headers", {}),
        "timestamp": data.get("timestamp", time.time()),
        "priority": data.get("priority", 2),
        "expiry": data.get("expiry"),
        "retry_count": data.get("retry_count", 0),
        "max_retries": data.get("max_retries", 3),
    }
