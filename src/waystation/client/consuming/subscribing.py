"""What a caller says when it subscribes, as the command that the broker gets. Pure; both faces use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Literal, TypedDict

from waystation.client.consuming.feeding import DEFAULT_WINDOW, ConsumerRequest
from waystation.client.options.command_check import check
from waystation.client.options.values import Moment, Seconds, milliseconds, moment_ms, whole_number
from waystation.client.sending.producing import Guarantee, chosen
from waystation.errors import Invalid
from waystation.protocol import Consume, DeclareQueue, Subscribe
from waystation.queues.settings import QueueSettings

Mode = Literal["shared", "stream", "live"]
Start = Literal["earliest", "latest"] | Moment


class ConsumeOptions(TypedDict, total=False):
    """How a queue is consumed.

    `prefetch`: the maximum number of messages in flight here. `hold`: their visibility timeout, in
    seconds; it is extended automatically for messages that wait in this client. `guarantee`: `"at-most-once"` acks each
    message before you get it, `"exactly-once"` acks in transactions only. `exclusive`: nobody else may consume
    meanwhile. `manual`: iterating acks nothing by itself.
    """

    prefetch: int
    hold: Seconds | None
    guarantee: Guarantee
    exclusive: bool
    manual: bool


class SubscribeOptions(TypedDict, total=False):
    """How topics are subscribed to.

    `group`: the name under which the broker stores the position; without one it is live, from now on. `mode`:
    `"shared"` (messages are divided, each with an ack of its own; the default with a group), `"stream"` (partitions are
    divided, offsets are committed in order) or `"live"`. `regex`: patterns are regular expressions. `filter`: an
    expression over headers, key and JSON fields. `history`: live: the number of past messages to deliver first.
    `start`: where a new group begins: `"latest"` (the default), `"earliest"` or a time. `slow`: live: what happens to
    messages while this side is too slow, `"block"` (the default) or `"drop"`. `prefetch`, `guarantee`, `manual`: as for
    a queue; `hold` too, if shared. `max_deliveries` and `dead_letter`: with a group: after this number of failures (0:
    no limit) a message is moved to that queue or `"topic:NAME"`, by default to the queue `TOPIC.GROUP.dead`; with
    `dead_letter=""` it is dropped."""

    group: str | None
    mode: Mode | None
    regex: bool
    filter: str | None
    history: int
    start: Start
    slow: Literal["drop", "block"]
    prefetch: int
    hold: Seconds | None
    guarantee: Guarantee
    manual: bool
    max_deliveries: int | None
    dead_letter: str | None


def consume_wanted(queue: str, options: ConsumeOptions, guarantee: Guarantee) -> ConsumerRequest:
    _check(options, ConsumeOptions, "consume")
    guarantee = _receiving(options.get("guarantee"), guarantee)
    once = guarantee == "exactly-once"
    command = Consume(
        consumer=0,
        queue=queue,
        prefetch=_prefetch(options.get("prefetch", 0)),
        hold_ms=milliseconds("hold", options.get("hold")),
        exclusive=options.get("exclusive", False),
    )
    check(command)
    window = command.prefetch or DEFAULT_WINDOW
    most_once = guarantee == "at-most-once"
    return ConsumerRequest(command, window, not most_once, once, options.get("manual", once), most_once)


def subscribe_wanted(patterns: str | Sequence[str], options: SubscribeOptions, guarantee: Guarantee) -> ConsumerRequest:
    _check(options, SubscribeOptions, "subscribe")
    group = options.get("group")
    guarantee = _receiving(options.get("guarantee"), guarantee)
    once = guarantee == "exactly-once"
    mode = options.get("mode") or ("stream" if once else "live" if group is None else "shared")
    _check_mode(mode, group, once)
    start, start_ms = _start(options.get("start", "latest"))
    command = Subscribe(
        consumer=0,
        topics=_topics(patterns),
        syntax="regex" if options.get("regex") else "wildcard",
        mode=mode,
        group=group,
        filter=options.get("filter"),
        history=options.get("history", 0),
        start=start,
        start_ms=start_ms,
        slow=options.get("slow", "block"),
        prefetch=_prefetch(options.get("prefetch", 0)),
        hold_ms=milliseconds("hold", options.get("hold")),
        max_deliveries=options.get("max_deliveries"),
        dead_letter=options.get("dead_letter"),
    )
    check(command)
    _check_effects(mode, options)
    most_once = guarantee == "at-most-once" and mode != "live"
    settles = mode != "live" and not most_once
    manual = options.get("manual", once)
    return ConsumerRequest(command, command.prefetch or DEFAULT_WINDOW, settles, once, manual, most_once)


def responder_queue(name: str) -> DeclareQueue:
    """Where requests wait for those who respond; it goes with the last of them, unless it was there before."""
    return DeclareQueue(queue=name, settings=QueueSettings(auto_delete=True))


def split_on(patterns: object, queue: object) -> None:
    """A handler is for topics or for a queue."""
    if (patterns is None) == (queue is None):
        raise Invalid('on: say which topics, on("orders.*"), or which queue, on(queue="jobs")')


def check_concurrency(count: object) -> None:
    if whole_number("concurrency", count) < 1:
        raise Invalid(f"concurrency: {count} is below 1")


def _check(options: ConsumeOptions | SubscribeOptions, kind: type, verb: str) -> None:
    unknown = options.keys() - kind.__annotations__.keys()
    if unknown:
        raise TypeError(f"{verb} has no option {min(unknown)!r}; there are {', '.join(kind.__annotations__)}")


def _check_mode(mode: str, group: str | None, once: bool) -> None:
    if mode not in ("shared", "stream", "live"):
        raise Invalid(f"mode: {mode!r} is not one of shared, stream, live")
    if mode == "live" and group is not None:
        raise Invalid("mode: a live subscription has no position to keep: leave out the group, or choose another mode")
    if mode != "live" and group is None:
        raise Invalid(f"group: a {mode} subscription needs a group, the name under which its position is kept")
    if once and mode != "stream" and group is not None:
        raise Invalid("guarantee: exactly-once needs mode 'stream', whose offsets a transaction can carry")


def _check_effects(mode: str, options: SubscribeOptions) -> None:
    """Refuses what the mode has no use for, by the names that the caller knows; the broker refuses the rest."""
    if mode == "live" and options.get("guarantee") == "exactly-once":
        raise Invalid("guarantee: a live subscription has no position to keep, so exactly-once cannot be kept")
    if mode == "live" and options.get("start", "latest") != "latest":
        raise Invalid("start: a live subscription begins now; give it a group, or history=N for the last N messages")
    if mode != "live" and options.get("slow", "block") != "block":
        raise Invalid("slow: is for live subscriptions; a group's messages wait for it")
    if mode != "shared" and options.get("hold") is not None:
        raise Invalid(f"hold: a {mode} subscription has no visibility timeout; a shared one has")


def _receiving(said: Guarantee | None, otherwise: Guarantee) -> Guarantee:
    """Exactly once asks for transactions, so it is never a default: who receives has to say it."""
    return chosen(said, "at-least-once" if otherwise == "exactly-once" else otherwise)


def _topics(patterns: str | Sequence[str]) -> list[str]:
    if isinstance(patterns, str):
        return [patterns]
    if not isinstance(patterns, Iterable):
        raise Invalid(f"topics: {patterns!r:.60} is neither a name or pattern, nor a list of them")
    return list(patterns)


def _prefetch(count: int) -> int:
    if whole_number("prefetch", count) < 0:
        raise Invalid(f"prefetch: {count} is below zero")
    return count


def _start(start: Start) -> tuple[Literal["earliest", "latest"], int | None]:
    if start == "earliest":
        return "earliest", None
    if start == "latest":
        return "latest", None
    if not isinstance(start, datetime | int | float):
        raise Invalid(f"start: {start!r} is not earliest, latest or a time")
    return "latest", moment_ms("start", start)
