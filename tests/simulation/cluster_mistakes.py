"""Mistakes made on purpose in a cluster: each of them breaks a promise, and the simulation has to notice.

Each is a context manager that puts the mistake into the product's own code and takes it out again, and a row of
`MISTAKES`: which faults and which work lead to where it matters, and within how many seeds it has to be caught. (What
`cluster_checker.py` finds by trying every order of events, and chance hardly meets, is left to it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulation.cluster_machine import LIFE_S
from tests.simulation.cluster_world import Life, current_life
from waystation.broker.homes import Homes
from waystation.cluster.decisions import elections, following, in_sync, promises, starting
from waystation.cluster.decisions.following import Append, BeginAgain, Drop, Truncate
from waystation.cluster.decisions.promises import Joiner, LeaderState
from waystation.cluster.decisions.replica_fetch import EpochHistory, FetchAnswer, ReplicaFetch
from waystation.cluster.decisions.state import PartitionState, changed
from waystation.cluster.decisions.writes import Identity, Write
from waystation.cluster.leadership import Leadership
from waystation.cluster.links.peer import Marker
from waystation.cluster.membership import ClusterMembership
from waystation.cluster.replication import led as led_module
from waystation.cluster.replication.fetching import Fetcher
from waystation.cluster.replication.led import Led
from waystation.errors import OffsetOutOfRange
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.consumer_member import ConsumerMember
from waystation.groups.machines.offsets import OffsetStore
from waystation.log.batches.batch import Header, scan
from waystation.log.log import Log
from waystation.log.points import RecoveryPoints
from waystation.log.producers import Producers, StoredBatch
from waystation.message import Message, Terms, terms_of
from waystation.protocols.amqp.channel import Channel
from waystation.protocols.kafka.records.fetch_codec import FetchPartition, PartitionAnswer
from waystation.protocols.kafka.records.fetch_reading import Reading
from waystation.queues.shard import queue as queue_module
from waystation.queues.shard.shards import FollowedShard
from waystation.share.machines.delivery import Saved, SharePartition, saved_at
from waystation.share.partition import SharedPartition
from waystation.share.peer_calls import Offered
from waystation.topics.markers import Markers
from waystation.topics.partitions.durability import Durability, Failures, Told
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.partitions.warm_state import WarmState
from waystation.topics.topics import OFFSETS_TOPIC, QUEUES_TOPIC, SHARE_TOPIC, TRANSACTIONS_TOPIC
from waystation.transactions import records
from waystation.transactions.machine import Producer, Transaction

Made = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Mistake:
    made: Made
    faults: list[str]
    work: list[str]
    seeds: int
    """Within so many it is caught; where that is more than `FEW`, `make soak` shows it."""
    seconds: float = LIFE_S
    nodes: int = 3


# -- what is acknowledged and shown -----------------------------------------------------------------------------------


@contextmanager
def acknowledge_from_the_leader_alone() -> Iterator[None]:
    def advance(self: LeaderState) -> None:
        self.high_watermark = max(self.high_watermark, self.durable)

    with patch.object(LeaderState, "_advance", advance):
        yield


@contextmanager
def fetch_before_fsync() -> Iterator[None]:
    real = following.next_fetch

    def next_fetch(
        me: Identity, state: PartitionState, log: EpochHistory, durable: int, number: int
    ) -> ReplicaFetch | None:
        return real(me, state, log, log.end, number)

    async def sync(self: Fetcher) -> None:
        """Some other time."""

    with patch.object(following, "next_fetch", next_fetch), patch.object(Fetcher, "_sync", sync):
        yield


@contextmanager
def show_what_is_above_the_high_watermark() -> Iterator[None]:
    with patch.object(ReplicatedPartition, "visible_offset", property(lambda self: self._log.written_offset)):
        yield


@contextmanager
def write_down_a_high_watermark_that_is_too_high() -> Iterator[None]:
    def high_watermarks(self: Leadership) -> dict[str, int]:
        return {f"{key[0]}/{key[1]}": one.partition.end_offset for key, one in self._replicas.items()}

    with patch.object(Leadership, "high_watermarks", high_watermarks):
        yield


def _durable_here(topic: str) -> AbstractContextManager[Any]:
    """What is written to this topic is acknowledged when it is on the leader's own disk."""

    def durable_offset(self: ReplicatedPartition) -> int:
        return self._log.durable_offset if self.topic.name == topic else self._high_watermark

    async def until_durable(self: ReplicatedPartition, offset: int) -> None:
        while self.durable_offset < offset:
            self._log.check_usable()
            await self._commit.join(self._log)

    real = ReplicatedPartition.until_durable

    async def until(self: ReplicatedPartition, offset: int) -> None:
        await (until_durable if self.topic.name == topic else real)(self, offset)

    return patch.multiple(ReplicatedPartition, durable_offset=property(durable_offset), until_durable=until)


@contextmanager
def acknowledge_acks_of_queues_from_the_leader_alone() -> Iterator[None]:
    with _durable_here(QUEUES_TOPIC):
        yield


@contextmanager
def acknowledge_offsets_from_the_leader_alone() -> Iterator[None]:
    with _durable_here(OFFSETS_TOPIC):
        yield


@contextmanager
def show_offsets_that_other_replicas_lack() -> Iterator[None]:
    with (
        patch.object(OffsetStore, "shown", OffsetStore.get),
        patch.object(OffsetStore, "is_changing", lambda *_: False),
    ):
        yield


@contextmanager
def acknowledge_transactions_from_the_leader_alone() -> Iterator[None]:
    with _durable_here(TRANSACTIONS_TOPIC):
        yield


@contextmanager
def confirm_share_groups_from_the_leader_alone() -> Iterator[None]:
    with _durable_here(SHARE_TOPIC):
        yield


# -- who leads --------------------------------------------------------------------------------------------------------


@contextmanager
def truncate_to_the_high_watermark() -> Iterator[None]:
    real = following.received

    def received(
        state: PartitionState, answer: FetchAnswer, log: EpochHistory, high_watermark: int
    ) -> Append | Truncate | BeginAgain | Drop:
        decision = real(state, answer, log, high_watermark)
        if isinstance(decision, Append) and log.last_epoch < state.epoch and high_watermark < log.end:
            return Truncate(high_watermark, below_high_watermark=False)
        return decision

    with patch.object(following, "received", received):
        yield


@contextmanager
def a_restarted_leader_goes_on_in_its_epoch() -> Iterator[None]:
    async def claim(self: ClusterMembership, log_epochs: Mapping[str, int]) -> None:
        """It goes on as if nothing had happened."""

    def may_lead(me: Identity, state: PartitionState, barred: int, log_epoch: int, *, truncating: bool = False) -> bool:
        return state.leader == me.node_id and not me.leaving

    with patch.object(ClusterMembership, "claim", claim), patch.object(elections, "may_lead", may_lead):
        yield


@contextmanager
def take_over_from_outside_the_in_sync_set() -> Iterator[None]:
    real = elections.takeover

    def takeover(me: Identity, partition: Any, living: Any, min_in_sync: int, log_epoch: int, *, silent: bool) -> Any:
        state = partition.state
        if me.node_id not in state.in_sync and me.node_id in state.replicas:
            pretended = changed(state, in_sync={*state.in_sync, me.node_id})
            partition = type(partition)(partition.key, pretended, partition.revision)
        return real(me, partition, living, min_in_sync, log_epoch, silent=silent)

    with patch.object(elections, "takeover", takeover):
        yield


@contextmanager
def take_over_without_comparing() -> Iterator[None]:
    real = elections.takeover

    def takeover(me: Identity, partition: Any, *args: Any, **named: Any) -> Write | None:
        write = real(me, partition, *args, **named)
        if write is None:
            return None
        return Write(write.changes, {key: it for key, it in write.expected.items() if key != partition.key})

    with patch.object(elections, "takeover", takeover):
        yield


@contextmanager
def a_deposed_coordinator_keeps_what_it_knew() -> Iterator[None]:
    def drop(self: Homes, partition: Partition) -> None:
        """It will be asked again some time."""

    with patch.object(Homes, "drop", drop):
        yield


@contextmanager
def apply_what_is_above_the_high_watermark() -> Iterator[None]:
    """A follower's queues know what its log says, though another leader's may say something else."""
    real = FollowedShard.apply

    def apply(self: FollowedShard, before: int, most_bytes: int) -> None:
        real(self, self.shard.log.partition.written_offset, most_bytes)

    with patch.object(FollowedShard, "apply", apply):
        yield


@contextmanager
def keep_what_was_applied_of_a_log_that_began_again() -> Iterator[None]:
    """What a log was cut to, or that it was emptied, changes nothing in what was made of it."""
    with patch.object(WarmState, "_is_stale", lambda self, machine: False):
        yield


# -- the in-sync set --------------------------------------------------------------------------------------------------


@contextmanager
def stop_counting_a_replica_before_the_store_has_removed_it() -> Iterator[None]:
    def counted(self: LeaderState) -> frozenset[int]:
        members = frozenset(self.view.state.in_sync)
        return members if self.pending is None else members & self.pending.members

    with patch.object(LeaderState, "counted", property(counted)):
        yield


@contextmanager
def join_before_it_has_anything() -> Iterator[None]:
    def may_join(self: LeaderState) -> list[Joiner]:
        return [
            Joiner(node_id, follower.folder)
            for node_id, follower in sorted(self.followers.items())
            if node_id not in self.counted
        ]

    with patch.object(LeaderState, "may_join", may_join):
        yield


@contextmanager
def go_on_below_the_floor() -> Iterator[None]:
    def floor(state: PartitionState, min_in_sync: int) -> int:
        return 1

    with (
        patch.object(promises, "floor", floor),
        patch.object(in_sync, "floor", floor),
        patch.object(elections, "floor", floor),
        patch.object(led_module, "floor", floor),
    ):
        yield


@contextmanager
def count_a_diverging_fetch() -> Iterator[None]:
    real = LeaderState._heard

    def heard(self: LeaderState, fetch: ReplicaFetch, known: Any, now: float, *, counts: bool) -> Any:
        return real(self, fetch, known, now, counts=True)

    with patch.object(LeaderState, "_heard", heard):
        yield


@contextmanager
def remember_promises_of_an_earlier_epoch() -> Iterator[None]:
    remembered: dict[int, Any] = {}
    begin, close = Led.__init__, Led.close

    def init(self: Led, key: Any, partition: ReplicatedPartition, *args: Any) -> None:
        begin(self, key, partition, *args)
        self.state.followers |= remembered.get(id(partition), {})

    def ended(self: Led) -> None:
        remembered[id(self.partition)] = dict(self.state.followers)
        close(self)

    with patch.object(Led, "__init__", init), patch.object(Led, "close", ended):
        yield


# -- disks ------------------------------------------------------------------------------------------------------------


@contextmanager
def a_node_with_another_disk_stays_in_the_in_sync_set() -> Iterator[None]:
    with patch.object(starting, "trusted", lambda folder, disk: disk is not None):
        yield


# -- what clients of Kafka's protocol and of AMQP are told -------------------------------------------------------------


@contextmanager
def answer_a_produce_request_before_it_is_durable() -> Iterator[None]:
    def when_each_durable(self: Durability, receipts: Sequence[Receipt], told: Callable[[Failures], None]) -> None:
        told({})

    with patch.object(Durability, "when_each_durable", when_each_durable):
        yield


@contextmanager
def confirm_a_publish_before_it_is_durable() -> Iterator[None]:
    def when_durable(self: Durability, receipts: Sequence[Receipt | None], told: Told) -> None:
        told(None)

    with patch.object(Durability, "when_durable", when_durable):
        yield


@contextmanager
def tell_consumers_of_no_aborted_transactions() -> Iterator[None]:
    real = Reading._read

    def read(self: Reading, wanted: FetchPartition, answer: PartitionAnswer, *args: Any, **named: Any) -> bool:
        more = real(self, wanted, answer, *args, **named)
        answer.aborted = answer.aborted and []
        return more

    with patch.object(Reading, "_read", read):
        yield


@contextmanager
def refuse_an_offset_that_a_new_leader_cannot_show_yet() -> Iterator[None]:
    """Its high watermark is behind what its predecessor has shown, and a consumer goes on from there (KIP-207)."""
    real = Reading._begin

    def begin(self: Reading, wanted: FetchPartition, answer: PartitionAnswer) -> bool:
        partition = self._find(wanted.topic, wanted.index)
        if partition.leads and wanted.offset > partition.visible_offset:
            raise OffsetOutOfRange(f"{wanted.offset} is outside {partition.start_offset}..{partition.visible_offset}")
        return real(self, wanted, answer)

    with patch.object(Reading, "_begin", begin):
        yield


# -- producers, transactions, queues ----------------------------------------------------------------------------------


@contextmanager
def forget_producers_on_followers() -> Iterator[None]:
    """What a producer has written is known to the leader that took it, and to nobody after it."""
    real = Log.append_as_is

    def append_as_is(self: Log, data: bytes | bytearray | memoryview, *, gaps: bool = False) -> Any:
        with patch.object(self, "apply", lambda batch, header, now: None):
            return real(self, data, gaps=gaps)

    with patch.object(Log, "append_as_is", append_as_is):
        yield


@contextmanager
def take_an_old_epoch_for_the_present_one() -> Iterator[None]:
    """Nobody is fenced: whoever has the producer id is the producer."""
    real = Producers.check

    def check(self: Transaction, producer: Producer) -> None:
        """Whoever it is."""

    def check_batch(self: Producers, header: Header) -> StoredBatch | None:
        state = self.by_id.get(header.producer_id)
        return None if state is not None and header.producer_epoch < state.epoch else real(self, header)

    with patch.object(Transaction, "check", check), patch.object(Producers, "check", check_batch):
        yield


@contextmanager
def end_a_transaction_by_a_late_marker() -> Iterator[None]:
    """What a coordinator has asked for counts whenever it arrives: also when the next transaction is open."""

    def check_asked(target: Partition, marker: Marker) -> None:
        """Whatever it means."""

    with patch.object(Markers, "_check_asked", staticmethod(check_asked)):
        yield


@contextmanager
def let_a_member_commit_that_was_replaced() -> Iterator[None]:
    """Whoever says that it is a member of the group is one, in whatever epoch."""

    def check_commit(self: ConsumerGroup, *args: Any, **named: Any) -> None:
        """Whoever it is."""

    with patch.object(ConsumerGroup, "check_commit", check_commit):
        yield


@contextmanager
def forget_which_partitions_members_have() -> Iterator[None]:
    """A new coordinator gives away what a member still has."""
    real = ConsumerGroup.restore_member

    def restore_member(self: ConsumerGroup, member: ConsumerMember) -> None:
        real(self, member)
        self._release(member)

    with patch.object(ConsumerGroup, "restore_member", restore_member):
        yield


@contextmanager
def lose_what_share_groups_have_not_accepted() -> Iterator[None]:
    """What was in flight when a coordinator died is taken for done by the next one."""

    def saved(self: SharePartition) -> Saved:
        return saved_at(self.end, self.epoch)

    with patch.object(SharePartition, "saved", saved):
        yield


@contextmanager
def take_a_late_offer_for_a_log_that_has_lost_its_tail() -> Iterator[None]:
    """What a partition's leader told a share coordinator counts whenever it arrives."""
    real = SharedPartition.take_in

    def take_in(self: SharedPartition, offered: Offered, wanted: int) -> None:
        if offered.log_end < self.core.end:
            self._refit(offered.log_end)
        real(self, offered, wanted)

    with patch.object(SharedPartition, "take_in", take_in):
        yield


@contextmanager
def remember_files_of_a_replica_that_was_removed() -> Iterator[None]:
    """Of a partition that has moved away, and back, what was noted of its former log is believed of the new one."""

    def drop(self: RecoveryPoints, name: str) -> None:
        """It is left to the next checkpoint."""

    with patch.object(RecoveryPoints, "drop", drop):
        yield


@contextmanager
def forget_delays() -> Iterator[None]:
    with patch.object(Message, "ready_at_ms", lambda self, taken_ms: None):
        yield


@contextmanager
def forget_priorities_on_followers() -> Iterator[None]:
    """To whoever leads a queue's shard next, all messages that it had are alike."""
    real = FollowedShard.apply

    def alike(message: Message) -> Terms:
        return (0, *terms_of(message)[1:])

    def apply(self: FollowedShard, before: int, most_bytes: int) -> None:
        with patch.object(queue_module, "terms_of", alike):
            real(self, before, most_bytes)

    with patch.object(FollowedShard, "apply", apply):
        yield


@contextmanager
def forget_to_fence_an_old_epoch_after_a_failover() -> Iterator[None]:
    """Who has learned of a producer by following does not refuse its former epochs: neither the next coordinator of its
    transactions nor the next leader of what it writes to."""
    learned: set[tuple[Life | None, str | int]] = set()
    decode, append_as_is = records._decode_value, Log.append_as_is
    check, check_batch = Transaction.check, Producers.check

    def decoded(transactional_id: str, value: bytes) -> Transaction:
        learned.add((current_life.get(), transactional_id))
        return decode(transactional_id, value)

    def appended(self: Log, data: bytes | bytearray | memoryview, *, gaps: bool = False) -> Any:
        learned.update((current_life.get(), header.producer_id) for _, header in scan(data))
        return append_as_is(self, data, gaps=gaps)

    def checked(self: Transaction, producer: Producer) -> None:
        old = producer.producer_id == self.producer.producer_id and producer.epoch < self.producer.epoch
        if not old or (current_life.get(), self.transactional_id) not in learned:
            check(self, producer)

    def checked_batch(self: Producers, header: Header) -> StoredBatch | None:
        state = self.by_id.get(header.producer_id)
        old = state is not None and header.producer_epoch < state.epoch
        return None if old and (current_life.get(), header.producer_id) in learned else check_batch(self, header)

    with (
        patch.object(records, "_decode_value", decoded),
        patch.object(Log, "append_as_is", appended),
        patch.object(Transaction, "check", checked),
        patch.object(Producers, "check", checked_batch),
    ):
        yield


@contextmanager
def refuse_an_ack_of_what_was_delivered() -> Iterator[None]:
    """As if its delivery tag were unknown."""
    real = Channel.acknowledge

    def acknowledge(self: Channel, tag: int, multiple: bool) -> bool:
        return tag % 3 != 0 and real(self, tag, multiple)

    with patch.object(Channel, "acknowledge", acknowledge):
        yield


FEW = 20
KILLS = ["crash", "crash_leaders"]
CUTS = ["cut_off", "cut_link", "pause"]
LEADERS = ["crash_leader", "crash_leaders"]
TOPICS = ["publish", "publish_idempotent"]
QUEUES = ["queues", "publish", "move"]

MISTAKES: dict[str, Mistake] = {
    mistake.made.__name__: mistake
    for mistake in (
        Mistake(acknowledge_from_the_leader_alone, KILLS, TOPICS, 5),
        Mistake(fetch_before_fsync, ["crash", "crash_all", "crash_leaders"], TOPICS, 5),
        Mistake(show_what_is_above_the_high_watermark, KILLS, TOPICS, 5),
        Mistake(
            write_down_a_high_watermark_that_is_too_high,
            ["crash", "crash_leaders", "cut_off", "cut_link"],
            TOPICS,
            10,
            seconds=25,
        ),
        Mistake(acknowledge_acks_of_queues_from_the_leader_alone, KILLS, ["queues"], 10),
        Mistake(acknowledge_offsets_from_the_leader_alone, KILLS, ["publish", "consume_group"], 10),
        Mistake(show_offsets_that_other_replicas_lack, ["cut_off"], ["publish", "consume_group"], 10),
        Mistake(acknowledge_transactions_from_the_leader_alone, KILLS, ["publish", "process"], 200),
        Mistake(confirm_share_groups_from_the_leader_alone, LEADERS, ["publish", "share"], 5),
        Mistake(let_a_member_commit_that_was_replaced, ["disconnect", "late_watch"], ["publish", "members"], 5),
        Mistake(forget_which_partitions_members_have, LEADERS, ["publish", "members"], 12),
        Mistake(answer_a_produce_request_before_it_is_durable, LEADERS, ["publish", "kafka"], 6),
        Mistake(confirm_a_publish_before_it_is_durable, LEADERS, ["queues", "amqp"], 10),
        Mistake(refuse_an_ack_of_what_was_delivered, LEADERS, ["queues", "amqp"], 10),
        Mistake(tell_consumers_of_no_aborted_transactions, ["pause"], ["publish", "process", "kafka"], 5),
        Mistake(refuse_an_offset_that_a_new_leader_cannot_show_yet, LEADERS, ["publish", "kafka"], 5),
        Mistake(lose_what_share_groups_have_not_accepted, LEADERS, ["publish", "share"], 5),
        Mistake(
            take_a_late_offer_for_a_log_that_has_lost_its_tail,
            ["connect_twice", "slow_link", "move_replicas"],
            ["publish", "share"],
            10,
        ),
        Mistake(truncate_to_the_high_watermark, ["crash_leaders"], TOPICS, 10),
        Mistake(a_restarted_leader_goes_on_in_its_epoch, KILLS, TOPICS, 5),
        Mistake(take_over_from_outside_the_in_sync_set, ["leave_behind", "crash_leader"], TOPICS, 15, seconds=25),
        Mistake(take_over_without_comparing, ["late_watch", "cut_off"], TOPICS, 20),
        Mistake(a_deposed_coordinator_keeps_what_it_knew, CUTS, ["publish", "consume_group", "queues"], 10),
        Mistake(
            apply_what_is_above_the_high_watermark,
            [*LEADERS, "crash", "cut_off", "cut_link"],
            QUEUES,
            10,
            seconds=25,
        ),
        Mistake(
            keep_what_was_applied_of_a_log_that_began_again,
            [*LEADERS, "cut_off", "crash", "replace_disk"],
            QUEUES,
            12,
            seconds=25,
        ),
        Mistake(stop_counting_a_replica_before_the_store_has_removed_it, ["cut_off", "cut_store"], TOPICS, 20),
        Mistake(join_before_it_has_anything, ["crash", "crash_leaders", "cut_off"], TOPICS, 40, seconds=20),
        Mistake(go_on_below_the_floor, ["replace_disk", "cut_off", "crash"], TOPICS, 60, seconds=25),
        Mistake(count_a_diverging_fetch, [*KILLS, *CUTS], TOPICS, 60),
        Mistake(remember_promises_of_an_earlier_epoch, [*KILLS, *CUTS], TOPICS, 60),
        Mistake(a_node_with_another_disk_stays_in_the_in_sync_set, ["replace_disk", "crash_leaders"], TOPICS, 20),
        Mistake(forget_producers_on_followers, KILLS, ["publish_idempotent"], 5),
        Mistake(take_an_old_epoch_for_the_present_one, ["pause"], ["publish", "process"], 10),
        Mistake(end_a_transaction_by_a_late_marker, ["connect_twice"], ["publish", "process"], 10),
        Mistake(
            remember_files_of_a_replica_that_was_removed,
            ["move_replicas", "crash_all", "crash_all"],
            TOPICS,
            20,
            seconds=30,
            nodes=4,
        ),
        Mistake(forget_to_fence_an_old_epoch_after_a_failover, LEADERS, ["publish", "process"], 10),
        Mistake(forget_priorities_on_followers, LEADERS, ["queues"], 5),
        Mistake(forget_delays, ["pause"], ["queues"], 5),
    )
}
