"""What goes wrong, as AMQP says it: a reply code, whether the channel or the whole connection ends, and the text.

Texts are the ones that clients and their users know from RabbitMQ, since some of them are read by programs. The
broker's own errors (`waystation.errors`) are translated by `of_error`; who knows more about the situation than the
type of the error says raises an `AmqpError` itself.
"""

from __future__ import annotations

from waystation.errors import (
    AlreadyExists,
    Conflict,
    Full,
    Invalid,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    StorageFailed,
    TooLarge,
    Unavailable,
    WaystationError,
)

CONNECTION_FORCED = 320
INVALID_PATH = 402
ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
FRAME_ERROR = 501
SYNTAX_ERROR = 502
COMMAND_INVALID = 503
CHANNEL_ERROR = 504
UNEXPECTED_FRAME = 505
RESOURCE_ERROR = 506
NOT_ALLOWED = 530
NOT_IMPLEMENTED = 540
INTERNAL_ERROR = 541

NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
"""As the first word of a reply text."""

_HARD = frozenset({320, 402, 501, 502, 503, 504, 505, 530, 540, 541})
MAX_TEXT_BYTES = 255


class AmqpError(Exception):
    """Ends the channel, or (a hard one) the connection. `text` comes without the name of the code."""

    def __init__(self, code: int, text: str, *, hard: bool | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.hard = code in _HARD if hard is None else hard

    @property
    def reply_text(self) -> str:
        """What the client reads; as much of it as a short string holds."""
        text = f"{NAMES[self.code]} - {self.text}"
        return text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")


def of_error(error: WaystationError, text: str | None = None) -> AmqpError:
    """The broker's error as AMQP's: always one of the channel, since nobody else is affected. `text`: what is said
    instead of the error's own."""
    text = str(error) if text is None else text
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return AmqpError(code, text, hard=False)
    return AmqpError(INTERNAL_ERROR, text, hard=False)


_CODES: dict[type[WaystationError], int] = {
    NotFound: NOT_FOUND,
    NotAllowed: ACCESS_REFUSED,
    Full: RESOURCE_ERROR,
    TooLarge: PRECONDITION_FAILED,
    AlreadyExists: PRECONDITION_FAILED,
    Conflict: PRECONDITION_FAILED,
    Invalid: PRECONDITION_FAILED,
    StorageFailed: INTERNAL_ERROR,
    QuotaExceeded: RESOURCE_ERROR,
    Unavailable: INTERNAL_ERROR,
}
