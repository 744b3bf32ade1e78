"""ack, nack, reject and recover: verdicts on what a channel was sent.

Acknowledgements of one turn are collected by the channel and told to the heart once for each consumer; whatever else
comes on the channel finds them told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pamqp import commands
from pamqp.base import Frame

from waystation.broker.access.types import Verdict, add_run
from waystation.message import Run
from waystation.wire.amqp.errors import NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError

if TYPE_CHECKING:
    from waystation.protocols.amqp.channel import Channel, Receiver
    from waystation.protocols.amqp.session import AmqpSession


def ack(channel: Channel, tag: int, multiple: bool) -> None:
    """Called for every ack, so it is short: what is to be done is done at the end of the turn."""
    if channel.tx is not None:
        channel.tx.settle(_taken(channel, tag, multiple), Verdict.ACK)
    elif not channel.acknowledge(tag, multiple):
        raise _unknown(tag)


def nack(session: AmqpSession, channel: Channel, method: commands.Basic.Nack) -> None:
    _refuse(channel, method.delivery_tag or 0, method.multiple, method.requeue)


def reject(session: AmqpSession, channel: Channel, method: commands.Basic.Reject) -> None:
    _refuse(channel, method.delivery_tag or 0, False, method.requeue)


def recover(session: AmqpSession, channel: Channel, method: commands.Basic.Recover) -> Frame:
    if not method.requeue:
        raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
    give_back(channel)
    return commands.Basic.RecoverOk()


def recover_async(session: AmqpSession, channel: Channel, method: commands.Basic.RecoverAsync) -> None:
    if not method.requeue:
        raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
    give_back(channel)


def give_back(channel: Channel) -> None:
    """Everything that is unacked is delivered again, to whomever."""
    settle_all(channel.take(0, True), requeue=True)


def _refuse(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    if channel.tx is not None:
        channel.tx.settle(_taken(channel, tag, multiple), Verdict.REJECT if requeue else Verdict.KILL)
        return
    if not channel.knows(tag, multiple):
        raise _unknown(tag)
    settle_all(channel.take(tag, multiple), requeue=requeue)


def settle_all(taken: Iterable[tuple[Receiver, int]], *, requeue: bool) -> None:
    for receiver, runs in grouped(taken).items():
        if requeue:
            receiver.settle(Verdict.REJECT, runs, 0)
        else:
            receiver.settle(Verdict.KILL, runs)


def grouped(taken: Iterable[tuple[Receiver, int]]) -> dict[Receiver, list[Run]]:
    """By who received them."""
    found: dict[Receiver, list[Run]] = {}
    for receiver, entry in taken:
        add_run(found.setdefault(receiver, []), entry, 1)
    return found


def _taken(channel: Channel, tag: int, multiple: bool) -> list[tuple[int, tuple[Receiver, int]]]:
    """What a verdict in a transaction is about, by delivery tag; it is unacked no more, unless that is rolled back."""
    if not channel.knows(tag, multiple):
        raise _unknown(tag)
    return channel.take_by_tag(tag, multiple)


def _unknown(tag: int) -> AmqpError:
    return AmqpError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
