"""What a classic group decides: the shell carries these out, in this order.

Requests that wait are named by their member: there is at most one join and one sync of a member under way.
"""

from __future__ import annotations

import msgspec

from waystation.errors import WaystationError
from waystation.groups.machines.calls import JoinAnswer, SyncAnswer


class Save(msgspec.Struct, frozen=True):
    """Write the group as it is now; the answers that follow wait for it to be durable."""


class AnswerJoin(msgspec.Struct, frozen=True):
    member_id: str
    answer: JoinAnswer | WaystationError


class AnswerSync(msgspec.Struct, frozen=True):
    member_id: str
    answer: SyncAnswer | WaystationError


Decision = Save | AnswerJoin | AnswerSync
