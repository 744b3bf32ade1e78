"""How a request is answered: into the inbox of the one who asked, or into the queue that it named."""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.client.received import Received
from waystation.message import Message
from waystation.protocol import Command, Put, PutAnswer, Reply

INBOX = "inbox:"


def reply_command(request: Received, message: Message) -> tuple[Command, Any]:
    """The command that sends the reply, and what it is answered with."""
    to = request._reply_address()
    if message.correlation_id is None:
        message = msgspec.structs.replace(message, correlation_id=request.correlation_id)
    if to.startswith(INBOX):
        return Reply(to=to, message=message), bool
    return Put(queue=to, messages=[message]), PutAnswer
