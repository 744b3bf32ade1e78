"""Dead letters as every protocol shows them: where they go, what they died of, one by one, and the way back.

`dead_letter_places(broker, PlacesQuery) -> DeadLetterPlaces`, `dead_letter_summary(broker, SummaryQuery) ->
DeadLetterSummary`, `dead_letters(broker, DeadLettersQuery) -> DeadLetterPage`,
`redrive_in_background(broker, Redrive) -> JobStarted`.

However many queues and dead letters there are, a call looks at so many, in slices, and says how many that were.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from waystation.admin.jobs import Job
from waystation.admin.sight import EVERYTHING, Sight
from waystation.errors import Corrupt, StorageFailed
from waystation.message import Message, size_of
from waystation.message_json import to_json_object
from waystation.paging import STEP, After, Limit, Next, Pace, Search, Total, matching, page_of, sort_in_steps
from waystation.protocol import Peeked, RedriveAnswer
from waystation.queues.dead_letter_names import topics_and_groups
from waystation.queues.failure_history import EXCHANGE_TARGET, TOPIC_TARGET, failure_history_of
from waystation.queues.inspection import peeked_at
from waystation.queues.ledger.ledger import CHUNK, Ledger
from waystation.queues.redriving import GROUP_TARGET, Redrive
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard
from waystation.routing.filtering.filters import compile_filter
from waystation.security.rules import Resource

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

SOURCES_SHOWN = 100
SUMMED_UP = 5_000
SUMMED_BYTES = 32 * 1024 * 1024
"""Dead letters that a summary looks at: the latest, so many, and of so many bytes of payload. Work is bounded, not
time: it says the same again until something changes."""
SLICE = 64
SLICE_BYTES = 256 * 1024
"""Of them that are read before others have their turn."""
MOST_COMMON = 20
ERROR_CHARS = 200
LOOKED_AT = 20_000
MAX_WORK_S = 0.1
ANSWER_BYTES = 8 * 1024 * 1024
UNKNOWN = "unknown"


# -- where they go -----------------------------------------------------------------------------------------------------


class DeadLetterPlace(msgspec.Struct):
    """Where dead letters go."""

    target: Annotated[str, Meta(description="a queue's name, or `topic:` and a topic's")]
    sources: Annotated[
        list[str],
        Meta(description="the queues, and as `group:NAME` the groups, that dead-letter to it; the first hundred"),
    ]
    source_count: Annotated[int, Meta(description="how many queues and groups")]
    messages: Annotated[int, Meta(description="how many are there now; null for a topic")] | None


class DeadLetterPlaces(msgspec.Struct):
    dead_letters: list[DeadLetterPlace]
    next: Next
    total: Total


class PlacesQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


async def dead_letter_places(broker: ManagedBroker, query: PlacesQuery, sight: Sight = EVERYTHING) -> DeadLetterPlaces:
    """The targets of dead letters, in the order of their names."""
    found = _Sources(sight)
    pace = Pace(broker.world.clock)
    names = await broker.queues.listed()
    for at in range(0, len(names), STEP):
        for queue in broker.queues.those(names[at : at + STEP]):
            if queue.settings.dead_letter is not None:
                found.add(queue.settings.dead_letter, "queue", queue.name)
            for group in _default_of(broker, queue.name):
                found.add(queue.name, "group", group)
            if pace.due:
                await pace.breathe()
        await asyncio.sleep(0)
    groups = broker.shared.names()
    for at in range(0, len(groups), STEP):
        for name in groups[at : at + STEP]:
            target = broker.shared.get(name).settings.dead_letter if name in broker.shared else None
            if target is not None and not target.startswith(EXCHANGE_TARGET):
                found.add(target, "group", name)
            if pace.due:
                await pace.breathe()
        await asyncio.sleep(0)
    targets: Sequence[str] = await sort_in_steps(list(found.names))
    if not sight.sees_all("queue", "topic"):
        targets = await sight.sifted(targets, sight.sees_dead_letter_target)
    targets = await matching(targets, query.search, sight.local_target if sight.within else None)
    page = await page_of(targets, "", query.after or None, query.limit)
    places = [
        DeadLetterPlace(name, found.names[name], found.counts[name], _waiting(broker, name)) for name in page.names
    ]
    return DeadLetterPlaces(places, page.next, page.total)


class _Sources:
    """From targets to those who send there, of those that are seen."""

    def __init__(self, sight: Sight) -> None:
        self._sight = None if sight.sees_all("queue", "group") else sight
        self.names: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()

    def add(self, target: str, kind: Resource, source: str) -> None:
        names = self.names.setdefault(target, [])
        if self._sight is not None and not self._sight.sees(kind, source):
            return
        self.counts[target] += 1
        if self.counts[target] <= SOURCES_SHOWN:
            names.append(GROUP_TARGET + source if kind == "group" else source)


def _default_of(broker: ManagedBroker, queue: str) -> list[str]:
    """The groups of subscribers whose dead go to this queue because nobody said otherwise."""
    return [
        group
        for topic, group in topics_and_groups(queue)
        if topic in broker.topics and (group in broker.shared or broker.groups.exists(group))
    ]


def _waiting(broker: ManagedBroker, target: str) -> int | None:
    if target.startswith(TOPIC_TARGET):
        return None
    place = broker.queues.known(target)
    return 0 if place is None else len(place[1])


# -- what they died of -------------------------------------------------------------------------------------------------


class DeadLetterSummary(msgspec.Struct):
    """What the latest dead letters of a queue died of, and where; the most common first."""

    total: int
    looked_at: int
    by_reason: dict[str, int]
    by_source: Annotated[dict[str, int], Meta(description="by the queue in which it died; the 20 most common")]
    by_error: Annotated[dict[str, int], Meta(description="by the consumer's error; the 20 most common")]
    oldest_ms: Annotated[int, Meta(description="when the oldest was dead-lettered")] | None
    newest_ms: int | None


class SummaryQuery(msgspec.Struct):
    queue: str


async def dead_letter_summary(broker: ManagedBroker, query: SummaryQuery) -> DeadLetterSummary:
    """Of the latest: `SUMMED_UP` of them, or `SUMMED_BYTES` of payload."""
    shard, queue = broker.queues.of_users(query.queue)
    reasons: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    pace = Pace(broker.world.clock)
    looked = 0
    for entries in _slices(queue):
        for _, _, message in shard.look_at(queue, entries):
            looked += 1
            history = failure_history_of(message)
            death = history[0] if history else {}
            reasons[_text(death.get("reason"))] += 1
            sources[_text(death.get("queue"))] += 1
            if death.get("error") is not None:
                errors[_text(death["error"])] += 1
        await pace.breathe()
    ends = _ends(queue)
    times = [_taken_ms(shard, queue, entry) for entry in ends] if ends is not None else [None, None]
    common = [dict(counted.most_common(MOST_COMMON)) for counted in (reasons, sources, errors)]
    return DeadLetterSummary(len(queue), looked, common[0], common[1], common[2], times[0], times[1])


def _text(value: object) -> str:
    """The first line of what a death says; whoever sent the message may have made it up."""
    if not isinstance(value, str):
        return UNKNOWN
    lines = value[: 10 * ERROR_CHARS].splitlines()
    return lines[0][:ERROR_CHARS] if lines and lines[0] else UNKNOWN


def _slices(queue: Queue) -> Iterator[list[int]]:
    """The entries that a summary is of, in parts that can be read in one go. What is asked for is known from the index,
    so what it costs is, too."""
    total = size = 0
    part: list[int] = []
    for entry in _latest(queue, SUMMED_UP):
        places = queue.places
        if places is None or not queue.open_ledger().state_of(entry):
            continue  # it was redriven a moment ago
        length = places.bytes_of(entry, 1)
        if total and total + length > SUMMED_BYTES:
            break
        if part and (len(part) >= SLICE or size + length > SLICE_BYTES):
            yield part
            part, size = [], 0
        part.append(entry)
        total, size = total + length, size + length
    if part:
        yield part


def _latest(queue: Queue, count: int) -> Iterator[int]:
    """The latest living entries, the very latest first. The queue may change meanwhile."""
    ledger = queue.ledger
    if ledger is None:
        return
    for number in reversed(list(ledger.lowest_chunks())):
        alive = _alive_in(ledger, number)
        yield from alive[: -count - 1 : -1]
        count -= len(alive)
        if count <= 0:
            return


def _alive_in(ledger: Ledger, number: int) -> list[int]:
    found: list[int] = []
    for _, first, length in ledger.alive_runs(after=number * CHUNK - 1):
        if first >= (number + 1) * CHUNK:
            break
        found += range(first, first + length)
    return found


def _ends(queue: Queue) -> tuple[int, int] | None:
    """The oldest living entry and the newest."""
    ledger = queue.ledger
    chunks = [] if ledger is None else list(ledger.lowest_chunks())
    if ledger is None or not chunks:
        return None
    return _alive_in(ledger, chunks[0])[0], _alive_in(ledger, chunks[-1])[-1]


def _taken_ms(shard: Shard, queue: Queue, entry: int) -> int | None:
    try:
        return shard.taken_ms(queue, entry)
    except (Corrupt, StorageFailed):
        return None


def _message(shard: Shard, queue: Queue, entry: int) -> Message | None:
    if not queue.open_ledger().state_of(entry):
        return None
    try:
        return shard.message_at(queue, entry)[1]
    except (Corrupt, StorageFailed):
        return None


# -- one by one --------------------------------------------------------------------------------------------------------


class DeadLettersTerms(msgspec.Struct):
    count: Limit = 10
    after: Annotated[int, Meta(description="tag to continue after")] = -1
    filter: Annotated[str, Meta(description="only those that this filter expression matches")] = ""
    reason: Annotated[str, Meta(description="only those that died of this, the last time")] = ""
    source: Annotated[str, Meta(description="only those that died in this queue, the last time")] = ""
    error: Annotated[str, Meta(description="only those whose error has this in it")] = ""


class DeadLettersQuery(DeadLettersTerms, kw_only=True):
    queue: str


class DeadLetterPage(msgspec.Struct):
    messages: list[dict[str, Any]]
    looked_at: int
    next: int | None


async def dead_letters(broker: ManagedBroker, query: DeadLettersQuery) -> DeadLetterPage:
    """Dead letters with their failure histories, oldest first. `next` goes on where this call ended, found or not."""
    shard, queue = broker.queues.of_users(query.queue)
    wanted = _Wanted(query)
    pace = Pace(broker.world.clock)
    found: list[dict[str, Any]] = []
    looked, size, after = 0, 0, query.after
    last = queue.newest
    while after < last and shard.queues.get(queue.id) is queue:
        entries = list(islice(_living(queue, after), 64))
        if not entries:
            return DeadLetterPage(found, looked, None)
        for entry in entries:
            after = entry
            looked += 1
            message = _message(shard, queue, entry)
            peeked = peeked_at(shard, queue, entry) if message is not None and wanted.matches(message) else None
            if peeked is not None:
                found.append(_shown(peeked, queue.name))
                size += size_of(peeked.delivered.message)
            await pace.breathe()
            if len(found) >= query.count or looked >= LOOKED_AT or size >= ANSWER_BYTES or pace.elapsed_s > MAX_WORK_S:
                return DeadLetterPage(found, looked, after if next(_living(queue, after), None) is not None else None)
    return DeadLetterPage(found, looked, None)


class _Wanted:
    """Which dead letters are asked for."""

    def __init__(self, query: DeadLettersQuery) -> None:
        self._filter = compile_filter(query.filter) if query.filter else None
        self._same = [(field, text) for field, text in (("reason", query.reason), ("queue", query.source)) if text]
        self._error = query.error

    def matches(self, message: Message) -> bool:
        if self._same or self._error:
            history = failure_history_of(message)
            death = history[0] if history else {}
            # As they are, or as the summary shows them: it has a word for those that say nothing, and cuts long ones.
            if any(text not in (death.get(field), _text(death.get(field))) for field, text in self._same):
                return False
            if self._error and not _has_error(death, self._error):
                return False
        return self._filter is None or self._filter.matches(message)


def _has_error(death: dict[str, Any], wanted: str) -> bool:
    error = death.get("error")
    return error is not None and (wanted in str(error) or wanted == _text(error))


def _living(queue: Queue, after: int) -> Iterator[int]:
    if queue.ledger is not None:
        for _, first, length in queue.ledger.alive_runs(after=after):
            yield from range(first, first + length)


def _shown(peeked: Peeked, queue: str) -> dict[str, Any]:
    shown = to_json_object(peeked.delivered, queue)
    shown["state"] = peeked.state
    if peeked.ready_at_ms is not None:
        shown["ready_at_ms"] = peeked.ready_at_ms
    shown["deaths"] = failure_history_of(peeked.delivered.message)
    return shown


# -- the way back ------------------------------------------------------------------------------------------------------


class JobStarted(msgspec.Struct):
    """What is done in the background; `/v1/jobs/{job}` says how far it is."""

    job: str


def redrive_in_background(broker: ManagedBroker, queue: str, asked: Redrive, sight: Sight = EVERYTHING) -> JobStarted:
    """What is wrong with it is raised here; what comes of it is the job's affair."""
    redriving = broker.dead_letters.redriving
    plan = redriving.plan(queue, asked, sight.may_redrive_to)
    ledger = plan.chooser.queue.ledger

    async def work(job: Job) -> None:
        def progress(answer: RedriveAnswer) -> None:
            job.report(done=plan.chooser.looked, matched=answer.matched, moved=answer.moved, skipped=answer.skipped)

        await redriving.run(plan, progress, job.pause)

    kind, doing = ("count", "counting") if asked.dry_run else ("redrive", "redriving")
    what = f"{doing} dead letters of {queue}"
    if asked.to is not None:
        what += f" to {asked.to}"
    return JobStarted(broker.jobs.start(kind, what, work, 0 if ledger is None else ledger.ready, target=queue).job)
