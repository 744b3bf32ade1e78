"""Makes messages of a type, and reads them: for programs that keep what a message is apart from where it goes. Pure."""

from __future__ import annotations

from typing import Any, cast

from waystation.client.consuming.received import Received, type_said
from waystation.client.options.payloads import TYPE_HEADER, MessageType, Value, message_type, value_of
from waystation.client.options.values import MessageOptions, make_message
from waystation.errors import Invalid
from waystation.message import Message


class MessageBuilder:
    """Makes messages of a type, with the options of `MessageOptions` that all of them have. `publish`, `put`,
    `put_many` and the others send them as they are.

        events = MessageBuilder("event", priority=5, headers={"src": "web"})
        mq.publish("orders", events.create_message({"id": 7}, key="u1"))

    The type is in `type`, and in the header `message_type` for receivers that read only headers.
    """

    def __init__(self, type: MessageType | str = MessageType.JSON, **options: Any) -> None:
        self.type = _checked(type)
        self._options = options
        make_message(b"", cast(MessageOptions, options))  # what is wrong in them is Invalid now

    def create_message(self, value: Value, type: MessageType | str | None = None, **options: Any) -> Message:
        """A message of that type, or else the builder's; raises Invalid for a value that is not of it."""
        kind = self.type if type is None else _checked(type)
        headers = {**(self._options.get("headers") or {}), **(options.get("headers") or {}), TYPE_HEADER: kind.value}
        said = {**self._options, **options, "headers": headers, "type": kind}
        return make_message(value, cast(MessageOptions, said))

    @staticmethod
    def decode_message(message: Message | Received) -> Value:
        """The value of a message, whoever sent it: by its content type, or else by its type."""
        inner = message.delivered.message if isinstance(message, Received) else message
        return value_of(inner.payload, inner.content_type, type_said(inner))


def _checked(name: MessageType | str) -> MessageType:
    kind = message_type(name)
    if kind is None:
        raise Invalid(f"type: {name!r:.60} is not one of {', '.join(MessageType)}")
    return kind
