"""Direct reply-to: replies reach whoever asked, or are told that nobody waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.feeds import Consumer
from tests.broker.kit import NOW_MS, broker_on, run
from waystation.errors import Full, Invalid
from waystation.message import Delivered, Message
from waystation.security.principals import Principal
from waystation.subscriptions import inboxes


def test_a_reply_reaches_the_inbox_it_names_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            one, two = Consumer(), Consumer()
            names = [broker.inboxes.open(consumer.deliver, "User:alice") for consumer in (one, two)]
            assert len(set(names)) == 2
            assert broker.inboxes.reply(names[0], Message(b"42", correlation_id="c"))
            assert one.texts == ["42"]
            assert one.got[0].taken_ms == NOW_MS
            assert one.got[0].message.correlation_id == "c"
            assert two.got == []
            broker.inboxes.close(names[0])
            broker.inboxes.close(names[0])
            assert not broker.inboxes.reply(names[0], Message(b"late"))
            assert not broker.inboxes.reply("inbox:guess", Message(b""))
            assert len(broker.inboxes) == 1

    run(main())


@pytest.mark.parametrize("message", [Message(b"", priority=256), Message(b"", delay_ms=5)])
def test_a_reply_that_makes_no_sense_is_refused(tmp_path: Path, message: Message) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            name = broker.inboxes.open(Consumer().deliver, "User:alice")
            with pytest.raises(Invalid, match=r"^(priority|delay_ms): "):
                broker.inboxes.reply(name, message)

    run(main())


def test_an_inbox_that_fails_harms_nobody_who_replies(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:

            def explode(messages: list[Delivered]) -> None:
                raise ValueError("gone")

            name = broker.inboxes.open(explode, "User:alice")
            assert not broker.inboxes.reply(name, Message(b""))
            assert name not in broker.inboxes

    run(main())


def test_inboxes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "MAX_INBOXES", 4)

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            names = [broker.inboxes.open(Consumer().deliver, "User:alice") for _ in range(2)]
            with pytest.raises(Full):
                broker.inboxes.open(Consumer().deliver, "User:alice")
            broker.inboxes.close(names[0])
            broker.inboxes.open(Consumer().deliver, "User:alice")

    run(main())


def test_one_who_has_all_that_it_may_leaves_some_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "MAX_INBOXES", 100)

    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:

            def opened(principal: Principal) -> list[str]:
                access = broker.access(principal, "/", broker.meters.native)
                names: list[str] = []
                try:
                    while len(names) <= 100:
                        names.append(access.inboxes.open(Consumer().deliver))
                except Full:
                    pass
                return names

            greedy = opened(Principal("bob"))
            assert len(greedy) == 50
            assert len(opened(Principal("alice"))) == 25
            for name in greedy:
                broker.inboxes.close(name)
                broker.inboxes.close(name)
            assert len(opened(Principal("bob"))) == 38
            assert len(broker.inboxes) == 63

    run(main())
