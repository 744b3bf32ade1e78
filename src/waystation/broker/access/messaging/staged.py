"""`StagedAccess`: decides on staged transactions, which are complete and open and belong to no connection.

Every verb asks for each transaction that it names, and for the name that decisions are made under. None of them may be
one of the broker's own. On the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.broker.access.messaging.family import Family
from waystation.errors import Invalid
from waystation.protocol import CommitStagedAnswer, StagedTransaction
from waystation.transactions.decision_records import Staged
from waystation.transactions.transacting import OWN_PREFIX, check_not_own


class StagedAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    async def commit(
        self, name: str, sequence: int, staged: Sequence[StagedTransaction], *, abandon: str = ""
    ) -> CommitStagedAnswer:
        """Commits all of them by one decision, or none; then aborts what is open under the prefix `abandon`."""
        self._may_write(name)
        if abandon:
            self._check_prefix("abandon", abandon)
        checked = self._checked(staged)
        transactions = self._broker.transactions
        committed = await transactions.commit_all(name, sequence, checked, abandon=abandon)
        last = transactions.decided(name)
        return CommitStagedAnswer(committed, sequence if last is None else last.sequence)

    async def abort(self, staged: Sequence[StagedTransaction], *, prefix: str = "", fence: bool = False) -> int:
        """Aborts these and what is open under the prefix, unless it is decided; returns how many. `fence`: nothing can
        begin under the prefix any more, which is `NAME/RUN.`."""
        if fence and not prefix:
            raise Invalid("fence: say which prefix")
        if prefix:
            self._check_prefix("prefix", prefix)
        checked = self._checked(staged)
        transactions = self._broker.transactions
        aborted = await transactions.abort_all(checked)
        return aborted + (await transactions.abort_prefix(prefix, fence=fence) if prefix else 0)

    async def position(self, name: str) -> int | None:
        """The number of the last decision under this name, which is durable; None: there is none."""
        self._ask("describe", "transactional-id", name)
        last = await self._broker.transactions.durably_decided(name)
        return None if last is None else last.sequence

    def _may_write(self, transactional_id: str) -> None:
        self._ask("write", "transactional-id", transactional_id)

    def _checked(self, staged: Sequence[StagedTransaction]) -> list[Staged]:
        for one in staged:
            self._may_write(one.transactional_id)
            check_not_own(one.transactional_id)
        return [Staged(one.transactional_id, one.producer_id, one.epoch) for one in staged]

    def _check_prefix(self, field: str, prefix: str) -> None:
        self._broker.permissions.check_under(self._principal, "write", "transactional-id", prefix)
        if OWN_PREFIX.startswith(prefix) or prefix.startswith(OWN_PREFIX):
            raise Invalid(f"{field}: {prefix!r} would name transactions of the broker's own")
