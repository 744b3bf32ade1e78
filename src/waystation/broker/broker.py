"""The composition root: a broker and all its parts, constructed and wired here and nowhere else.

A broker knows no protocol and opens no port; protocols are given the broker. It is started and stopped once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from waystation.admin.jobs import Jobs
from waystation.admin.pipelines_seen import PipelinesSeen
from waystation.admin.policies import Policies
from waystation.admin.sealed_places import SealedPlaces
from waystation.broker.access import Access
from waystation.broker.access.messaging.open_consumers import OpenConsumers
from waystation.broker.runtime_settings import RuntimeSettings
from waystation.catalog import Catalog
from waystation.catalog.follower import CatalogFollower
from waystation.cluster.alone import Alone, OperationsAlone, PlacementAlone
from waystation.cluster.internal_topics import InternalTopic
from waystation.cluster.view import whereabouts
from waystation.config import BrokerSettings
from waystation.errors import NotAllowed, NotFound, StorageFailed
from waystation.groups.coordinator import GroupCoordinator
from waystation.groups.history import GroupHistory
from waystation.groups.machines.settings import GroupSettings
from waystation.health.admission import Admission
from waystation.health.lags import Lags
from waystation.health.resource_alarms import ResourceAlarms
from waystation.health.sampling import Sampling
from waystation.log.commit import GroupCommit
from waystation.log.points import RecoveryPoints
from waystation.log.state import StateLog
from waystation.observe.connections import Connected, Connections
from waystation.observe.events import event_logger
from waystation.observe.meters import Meters, ProtocolMeter
from waystation.observe.tracing import Tracing
from waystation.queues.dead_letters import DeadLetters
from waystation.queues.delayed import Delayed
from waystation.queues.queues import Queues
from waystation.queues.shard.shards import Shards
from waystation.routing.namespaces import Namespaces
from waystation.routing.routing import Routing
from waystation.security.api_keys import ApiKeys
from waystation.security.audit import Audit
from waystation.security.authenticator import Authenticator, Login
from waystation.security.delegation_tokens import DelegationTokens
from waystation.security.permissions import Permissions
from waystation.security.principals import Principal, key_credential, token_credential
from waystation.security.quotas.client_quotas import ClientQuotas
from waystation.security.topic_permissions import TopicPermissions
from waystation.security.users import User, Users
from waystation.security.whereabouts import Whereabouts
from waystation.share.admin import SharedAdmin
from waystation.share.other_coordinators import ShareCoordinators
from waystation.share.peer_service import SharePeerService
from waystation.share.share_groups import SharedGroups
from waystation.share.topic_queues import TopicQueues
from waystation.subscriptions.inboxes import Inboxes
from waystation.subscriptions.live import LiveFeeds
from waystation.subscriptions.streams import Streams
from waystation.subscriptions.subscriptions import Subscriptions
from waystation.subscriptions.tailing import TailReaders
from waystation.topics.housekeeping import Housekeeping
from waystation.topics.markers import Markers
from waystation.topics.messages import Messages
from waystation.topics.partitions.durability import Durability
from waystation.topics.partitions.state_log import PartitionStateLog
from waystation.topics.publishing import Publishing
from waystation.topics.reading import Readers
from waystation.topics.topics import (
    COMPACTED,
    OFFSETS_TOPIC,
    QUEUES_TOPIC,
    SHARE_TOPIC,
    TRANSACTIONS_TOPIC,
    Topic,
    Topics,
)
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.settings import PRODUCER_ID_BLOCK, TransactionSettings
from waystation.transactions.transacting import Transacting
from waystation.transactions.writers import CoordinatorLink, Writers
from waystation.world import World

if TYPE_CHECKING:
    from waystation.admin.views.view_pipelines import Runner
    from waystation.cluster.decisions.state import Address
    from waystation.cluster.links.link import Links
    from waystation.cluster.member import ClusterMember
    from waystation.cluster.node import NodeOptions
    from waystation.cluster.operations import Operations
    from waystation.cluster.producer_ids import StoreProducerIds
    from waystation.cluster.replica_placement import ReplicaPlacement
    from waystation.cluster.replica_places import ReplicaPlaces
    from waystation.cluster.replication.high_watermarks import HighWatermarks
    from waystation.cluster.store_view import StoreView
    from waystation.cluster.view import ClusterView

logger = event_logger("waystation.broker")

LOCK_FILE = "waystation.lock"
LAST_ANSWER_S = 0.5
"""Between a change of users and the end of connections that it takes the right from."""


class Broker:
    """Everything that a protocol may call hangs off this."""

    def __init__(
        self,
        world: World,
        root: str,
        settings: BrokerSettings,
        catalog: Catalog,
        tracing: Tracing | None = None,
        view: StoreView | None = None,
        node: NodeOptions | None = None,
        coordinators: CoordinatorLink | None = None,
    ) -> None:
        """`node`: what makes it a node of a cluster, whose store is its catalog; None: it is alone. `view`,
        `coordinators`: of a cluster that a test makes without one."""
        self.world = world
        self.root = root
        self.settings = settings
        self.node_id = settings.integer("node.id")
        self.catalog = catalog
        self.cluster_id = catalog.cluster_id()
        self.meters = Meters()
        self.tracing = tracing  # None: nothing is traced
        self.commit = GroupCommit(world, self.meters.commit)
        self._points = RecoveryPoints(world.disk, root)
        self.follower = CatalogFollower(catalog, world)
        alone = PlacementAlone(self.node_id)
        placement: ReplicaPlacement = alone
        replicas: ReplicaPlaces | None = None
        if node is not None or view is not None:
            # Here and in `_become_member`: a broker alone starts without the cluster's 26 modules.
            from waystation.cluster.operations import ClusterOperations
            from waystation.cluster.replica_placement import ClusterPlacement
            from waystation.cluster.replica_places import ReplicaPlaces
            from waystation.cluster.replication.high_watermarks import HighWatermarks
            from waystation.cluster.store_view import StoreView

            view = StoreView(self.node_id) if view is None else view
            placement = ClusterPlacement(view, world.random)
            high_watermarks = HighWatermarks(world.disk, root)
            replicas = None if node is None else ReplicaPlaces(view, high_watermarks)
        self.topics = Topics(
            world, root, catalog, self.follower, settings, self.commit, self._points, placement, replicas
        )
        self.view: ClusterView
        self.operations: Operations
        if view is None:
            self.view = Alone(self.node_id, self.topics.epoch_of)
            self.operations = OperationsAlone(self.node_id, alone)
        else:
            self.view = view
            self.operations = ClusterOperations(view, self.follower, self.topics, settings)
            self.follower.follow(view)
        self.follower.follow(self.topics)
        self.runtime_settings = RuntimeSettings(settings, self.follower, self._settings_changed)
        self.follower.follow(self.runtime_settings)
        self.publishing = Publishing(world)
        self.publishing.tracing = tracing
        self.markers = Markers(self.topics, world.clock)
        self.housekeeping = Housekeeping(world, self.topics, settings, self._points, self.commit)
        self.users = Users(catalog, self.follower, world)
        self.follower.follow(self.users)
        self.users.subscribe_changes(self._user_changed)
        self.api_keys = ApiKeys(catalog, self.follower, self.users, world)
        self.follower.follow(self.api_keys)
        self.api_keys.subscribe_removed(self._key_removed)
        self.delegation_tokens = DelegationTokens(catalog, self.follower, self.users, settings, world)
        self.follower.follow(self.delegation_tokens)
        self.delegation_tokens.subscribe_removed(self._token_removed)
        self.authenticator = Authenticator(
            self.users, self.api_keys, self.delegation_tokens, settings, world, self.meters
        )
        self.durability = Durability(self.commit)
        self.durable = self.durability.wait
        self.when_durable = self.durability.when_durable
        self.messages = Messages(world, settings, self.topics, self.publishing)
        self.inboxes = Inboxes(world)
        self.connections = Connections()
        self.quotas = ClientQuotas(catalog, self.follower, world.clock.monotonic)
        self.follower.follow(self.quotas)
        self.admission = Admission(settings, world.handles, world.clock, self.quotas.connection_wait_s)
        self.jobs = Jobs(world)
        self.sealed_places = SealedPlaces(world.random)
        self.group_history = GroupHistory(world.clock)
        self.namespaces: Namespaces = Namespaces(self)
        self.follower.follow(self.namespaces)
        self.permissions: Permissions = Permissions(
            catalog,
            self.follower,
            self.users,
            superusers=settings.text("auth.superusers").split(","),
            enforced=lambda: self.authenticator.required,
            whereabouts=Whereabouts(self.namespaces),
        )
        self.follower.follow(self.permissions)
        self.authenticator.subscribe_changes(self.permissions.refresh)
        self.namespaces.subscribe_changes(self.permissions.refresh)
        self._logins_required = self.authenticator.required
        self.authenticator.subscribe_changes(self._note_logins)
        self.topic_permissions = TopicPermissions(catalog, self.follower)
        self.follower.follow(self.topic_permissions)
        self.audit = Audit(
            world,
            settings,
            self.topics,
            self.messages,
            enforced=lambda: self.permissions.enforced,
            elsewhere=None if node is None else self._send_audit,
        )
        self.permissions.subscribe_refusals(self.audit.refused)
        self.authenticator.subscribe_logins(self._logged_in)
        self.open_consumers = OpenConsumers(self.permissions)
        self.permissions.subscribe_changes(self._ask_entries_again)
        self.resource_alarms: ResourceAlarms = ResourceAlarms(self)
        self.readers = Readers(self.world.offload)
        self.tailing = TailReaders(self.topics, self.readers, world.clock, tracing)
        self.pipelines_seen = PipelinesSeen(self)
        self.sampling = Sampling(self)
        self.lags = Lags(self)
        self.pipeline_runner: Runner | None = None  # set by whoever can start processes
        self.streams: Streams
        self.subscriptions: Subscriptions
        self.transacting = Transacting(self)
        self.dead_letters = DeadLetters(self)
        self.delayed = Delayed(self)
        self.messages.delay_to_topic = self.delayed.put
        self.shards: Shards
        self.queues: Queues
        self.routing: Routing
        self.policies: Policies
        self.groups: GroupCoordinator
        self.shared: SharedGroups
        self.shared_admin: SharedAdmin
        self.share_service: SharePeerService
        self.share_coordinators: ShareCoordinators
        self.topic_queues: TopicQueues
        self.transactions: TransactionCoordinator
        self.writers: Writers
        self._coordinators = coordinators
        self._producer_ids: StoreProducerIds | None = None
        self._links: Links | None = None
        self.member = None if node is None or view is None else self._become_member(node, view, high_watermarks)
        self.started_ms = world.clock.now_ms()
        if tracing is not None:
            tracing.waits = lambda: self.commit.waits
            tracing.syncs = lambda: self.commit.mode != "os"
            self.commit.on_round = tracing.synced

    def _become_member(self, node: NodeOptions, view: StoreView, high_watermarks: HighWatermarks) -> ClusterMember:
        from waystation.broker.homes import Homes
        from waystation.cluster.deletions import Deletions
        from waystation.cluster.leadership import Leadership
        from waystation.cluster.links.coordinators import LinkedCoordinators
        from waystation.cluster.links.peers import Peers
        from waystation.cluster.member import ClusterMember
        from waystation.cluster.membership import ClusterMembership
        from waystation.cluster.producer_ids import StoreProducerIds
        from waystation.cluster.replication.serving import FetchServer
        from waystation.cluster.replication.snapshots import SnapshotServer
        from waystation.cluster.replication.throttle import Throttle

        self._producer_ids = StoreProducerIds(node.store, self.world, PRODUCER_ID_BLOCK)
        membership = ClusterMembership(
            self.world,
            self.root,
            node.store,
            self.node_id,
            rack=node.rack,
            lease_s=node.lease_s,
            restored=node.restored,
            answers=node.answers,
        )
        links = node.links(view)
        self._coordinators = LinkedCoordinators(view, self.topics, links)
        sending = Throttle(self.world.clock, lambda: self.settings.integer("leader.replication.throttled.rate"))
        server = FetchServer(self.world, self.node_id, sending)
        leadership = Leadership(
            self.world,
            node.store,
            self.follower,
            view,
            membership,
            self.topics,
            self.commit,
            links,
            server,
            Homes(self),
            self.settings,
            self.meters.cluster,
        )
        peers = Peers(
            server,
            leadership.leaving,
            leadership.disconnected,
            SnapshotServer(self.world, server.led.get),
            self.markers.write_all,
            lambda asked: self.writers.answer(asked),
            lambda asked: self.share_service.answer(asked),
            lambda asked: self.audit.take(asked.records),
        )
        self._links = links
        deletions = Deletions(self.world, node.store, view, self.follower, self.topics)
        return ClusterMember(
            self.world, node, view, membership, leadership, links, peers, self.topics, high_watermarks, deletions
        )

    async def _send_audit(self, topic: Topic, records: Sequence[tuple[bytes, bytes]]) -> None:
        from waystation.cluster.links.audit_entries import send

        if self._links is not None:
            await send(self._links, self.view, topic, records)

    def access(self, principal: Principal, namespace: str, meter: ProtocolMeter, *, waits: bool = False) -> Access:
        """What a session of a protocol holds. `waits`: it blocks publishers itself while an alarm is on."""
        return Access(self, principal, namespace, meter, waits=waits)

    async def start(self) -> None:
        """Recovers everything; when it returns, listeners may open. In a cluster, `join` follows."""
        if self.member is not None:
            await self.member.begin(self._own_topics())
        self.follower.begin()
        if self.member is not None:
            await self.world.offload_store(self.member.load)
        self.runtime_settings.load(self.catalog)
        self.users.load()
        self.api_keys.load()
        self.delegation_tokens.load()
        self._note_logins()
        self.permissions.load()
        self.topic_permissions.load()
        self.quotas.load()
        for name, text in self.settings.ignored.items():
            logger.warning(
                "setting.ignored",
                "the setting {setting} was changed to {value!r} by a client of an earlier version, which is not"
                " honoured any more: put it into the config file if you want it;"
                " `waystation config set --unset {setting}` ends this warning",
                setting=name,
                value=text,
            )
        self._apply_flush()
        self._points.load()
        self.topics.open_all()
        offsets, states, shares, queue_logs = [
            self.topics.get(one.name)
            if self.member is not None
            else self.topics.ensure_internal(one.name, one.partitions, dict(one.overrides))
            for one in self._own_topics()
        ]
        if self.member is not None:
            await self.member.claim()
        try:
            self._save_points(clean=False)
        except OSError as error:
            # A full disk: readers shall be served all the same. Without the file, a crash is recovered with more care.
            logger.warning(
                "recovery_points.unwritable",
                "recovery points cannot be written, starting without: {error}",
                error=error,
            )
            self._points.discard()
        self.commit.start()
        clock = self.world.clock
        offset_logs = [PartitionStateLog(partition, self.commit, clock) for partition in offsets.partitions]
        state_logs = [PartitionStateLog(partition, self.commit, clock) for partition in states.partitions]
        self._state_logs = state_logs
        self.groups = GroupCoordinator(
            clock,
            self.world.random,
            GroupSettings.of(self.settings),
            self.topics,
            offset_logs.__getitem__,
            len(offset_logs),
            self.group_history,
        )
        self.namespaces.subscribe_changes(self.groups.topics_changed)
        self.groups.tell_whereabouts(lambda index: whereabouts(self.view, offsets.id, index))
        self.transactions = TransactionCoordinator(
            clock,
            self.world.random,
            TransactionSettings(self.settings),
            state_logs.__getitem__,
            len(state_logs),
            self.markers if self.member is None else self.member.spread_markers(self.markers),
            lambda group_id: (OFFSETS_TOPIC, self.groups.partition_for(group_id)),
            self._producer_ids,
        )
        self.writers = Writers(self.transactions, self.topics.partition, self._coordinators)
        self.shards = Shards(
            len(queue_logs.partitions),
            self.world,
            cache_bytes=self.settings.integer("waystation.queue.cache.bytes"),
            on_dead=self.dead_letters.on_dead,
            deaths=self.meters.deaths,
            tracing=self.tracing,
            whereabouts=lambda index: whereabouts(self.view, queue_logs.id, index),
        )
        self.shards.limit_messages(self.max_queue_message_bytes())
        self.markers.owners = {OFFSETS_TOPIC: self.groups, QUEUES_TOPIC: self.shards}
        self.topics.subscribe_deletions(self.groups.on_topics_deleted)
        self.topics.subscribe_deletions(self.transactions.on_topics_deleted)
        if self.member is None:
            self.groups.recover(offset_logs)
            self.shards.recover(queue_logs.partitions)
        self.queues = Queues(self.shards, self.durability, self.dead_letters)
        self.routing = Routing(self.catalog, self.follower, self.queues, self.messages, self.topics, self.durable)
        self.follower.follow(self.routing)
        self.topics.subscribe_deletions(self.routing.on_topics_deleted)
        self.topics.subscribe_changes(self.routing.on_names_changed)
        self.queues.subscribe_creations(self.routing.on_names_changed)
        self.queues.subscribe_deletions(self.routing.on_queue_deleted)
        self.queues.subscribe_leads(self.routing.on_names_changed)
        self.permissions.subscribe_changes(self.routing.on_names_changed)  # publishers remember what they may
        self.topic_permissions.subscribe_changes(self.routing.on_names_changed)
        if self.member is None:
            self.transactions.recover()
        self.shared = SharedGroups(
            self.world,
            self.settings,
            self.topics,
            self.publishing,
            self.commit,
            len(shares.partitions),
            ensure_topic=self.messages.ensure,
            queues=lambda: self.queues,
            exchanges=lambda: self.routing,
            taken=self.groups.exists,
            history=self.group_history,
        )
        self.shared.dead_letters.deaths = self.meters.deaths
        self.shared.tracing = self.tracing
        self.shared_admin = SharedAdmin(self.shared)
        self.share_service = SharePeerService(self.shared, self.shared_admin, self.topics)
        self.share_coordinators = ShareCoordinators(self.shared.journal, self.topics, self.view, self._links, clock)
        if self.member is None:
            self.shared.recover(shares.partitions)
        self.groups.reserve_names(self.shared.__contains__)
        self.shared.start()
        self.topic_queues = TopicQueues(
            self.catalog, self.follower, self.topics, self.shared, self.queues, self.messages.ensure, self.node_id
        )
        self.follower.follow(self.topic_queues)
        self.topic_queues.load()
        self.topic_queues.subscribe_changes(self.routing.on_names_changed)
        live = LiveFeeds(self.topics, self.messages, self.readers, self.world.clock, self.meters)
        self.streams = Streams(
            self.world, self.topics, self.groups, self.readers, self.messages, self.queues, self.durability
        )
        self.subscriptions = Subscriptions(self.topics, live, self.streams, self.shared, self.tracing)
        self.groups.start(restarted=self.member is None)
        await self.transactions.start()
        await self._undo_left_over()
        self.shards.start(lambda: self.settings.integer("waystation.checkpoint.interval.ms") / 1000)
        self.namespaces.load()
        self.routing.load()
        self.policies = Policies(
            self.catalog,
            self.follower,
            self.world,
            self.queues,
            self.topics,
            self.routing,
            self.namespaces,
            self.durable,
        )
        self.follower.follow(self.policies)
        self.policies.load()
        self.follower.start()
        if self.member is not None:
            self.member.start()
        self.namespaces.subscribe_deletions(self.policies.delete_all)
        self.policies.start()
        self.dead_letters.start()
        self.delayed.start()
        self.housekeeping.start()
        self.audit.start()
        self.resource_alarms.start()

    def _own_topics(self) -> list[InternalTopic]:
        integer = self.settings.integer
        return [
            InternalTopic(OFFSETS_TOPIC, integer("offsets.topic.num.partitions"), COMPACTED),
            InternalTopic(TRANSACTIONS_TOPIC, integer("transaction.state.log.num.partitions"), COMPACTED),
            InternalTopic(SHARE_TOPIC, integer("share.coordinator.state.topic.num.partitions"), COMPACTED),
            InternalTopic(
                QUEUES_TOPIC,
                integer("waystation.queue.shards"),
                {
                    "cleanup.policy": "delete",
                    "retention.ms": "-1",
                    "retention.bytes": "-1",
                    "segment.bytes": str(integer("waystation.queue.segment.bytes")),
                },
            ),
        ]

    async def join(self, listeners: Mapping[str, Address]) -> None:
        """Other nodes of the cluster see that this one lives, and where it listens. For a broker alone, nothing."""
        if self.member is not None:
            await self.member.join(listeners)

    def transaction_log(self, index: int) -> StateLog:
        """Of the transactions' coordinator: the same one each time, by which it knows what is whose."""
        return self._state_logs[index]

    def _user_changed(self, name: str, user: User | None) -> None:
        """Connections of a user that is removed end; so do those of nobody, when the first user makes everybody log in,
        but for listeners that say themselves who has to. Not at once: whoever added the user is answered first."""
        removed = name if user is None else None
        theirs: set[Connected] = set()
        if removed is not None:
            self.users.leaving.add(removed)
            theirs = {connection for connection in self.connections if connection.login == removed}
        # Later ones without a login are on their way to one.
        before = self._logins_required
        self._note_logins()
        strangers: set[Connected] = set()
        if self._logins_required and not before:
            strangers = {one for one in self.connections if not one.login and one.asked_with_users}
        asyncio.get_running_loop().call_later(LAST_ANSWER_S, self._end_connections, removed, theirs, strangers)

    def _note_logins(self) -> None:
        self._logins_required = self.authenticator.required

    def _key_removed(self, key_id: str) -> None:
        """Connections that have logged in by it end."""
        self._end_logged_in_by(key_credential(key_id))

    def _token_removed(self, token_id: str) -> None:
        self._end_logged_in_by(token_credential(token_id))

    def _end_logged_in_by(self, credential: str) -> None:
        for connection in self.connections:
            if connection.credential == credential:
                connection.end("what it has logged in by is revoked")

    def _logged_in(self, login: Login) -> None:
        self.audit.login(login.user, login.host, login.protocol, login.mechanism, failure=login.failure)

    def _ask_entries_again(self) -> None:
        """Rules, users or namespaces have changed: connections that may no longer be in their namespace end. Those of a
        user that is removed, and those that have to log in since there are users, end by themselves, a moment later."""
        for connection in self.connections:
            leaves = connection.login in self.users.leaving if connection.login else connection.asked_with_users
            if leaves:
                continue
            try:
                connection.check_entry()
            except (NotAllowed, NotFound) as error:
                connection.end(str(error))

    def _end_connections(self, removed: str | None, theirs: Set[Connected], strangers: Set[Connected]) -> None:
        """`theirs`: of the user that was removed, at that moment. There may be another one of the name by now.
        `strangers`: of nobody, when that was still allowed."""
        if removed is not None:
            self.users.leaving.discard(removed)
        for connection in self.connections:
            if not connection.login and connection in strangers:
                connection.end("clients have to log in now: there are users")
            elif connection.login == removed and (connection in theirs or removed not in self.users):
                connection.end(f"user {removed!r} is removed")

    async def _undo_left_over(self) -> None:
        try:
            await self.transacting.undo_left_over()
        except StorageFailed as error:  # a full disk; their timeouts will end them
            logger.warning(
                "transactions.open_at_stop", "transactions of the broker's own are still open: {error}", error=error
            )

    async def stop(self) -> None:
        """Ends cleanly: the next start reads nothing again."""
        if self.member is not None:
            await self.member.hand_over()
            self.member.step_down()
        await self.audit.stop()
        await self.sampling.stop()
        await self.lags.stop()
        await self.jobs.stop()
        await self.resource_alarms.stop()
        await self.namespaces.settle()
        await self.users.settle()
        await self.api_keys.settle()
        await self.delegation_tokens.settle()
        await self.permissions.settle()
        await self.topic_permissions.settle()
        await self.quotas.settle()
        await self.policies.stop()
        await self.runtime_settings.settle()
        await self.topics.settle()
        await self.routing.settle()
        await self.topic_queues.close()
        await self.housekeeping.stop()
        await self.streams.close()
        await self.delayed.stop()
        await self.dead_letters.stop()
        await self.share_coordinators.close()
        await self.shared.close()
        await self.shards.close()
        await self.groups.close()
        await self.transactions.close()
        if self.member is not None:
            await self.member.stop()
        await self.follower.stop()
        await self.commit.stop()
        if self.tracing is not None:
            await self.world.offload(self.tracing.close)
        for _, log in self.topics.logs():
            log.close(clean=True)
        failed = any(log.failure is not None for _, log in self.topics.logs())
        try:
            self._save_points(clean=not failed)
        except OSError as error:
            logger.warning(
                "recovery_points.not_saved",
                "recovery points cannot be written; the next start checks all logs: {error}",
                error=error,
            )
        self.catalog.close()
        self.world.disk.unlock(f"{self.root}/{LOCK_FILE}")
        self.world.offload.close()
        if self.world.store_threads is not None:
            self.world.store_threads.close()

    def _save_points(self, *, clean: bool) -> None:
        self._points.save({name: log.recovery_point for name, log in self.topics.logs()}, clean=clean)
        for _, log in self.topics.logs():
            log.point_saved(log.recovery_point)

    def max_queue_message_bytes(self) -> int:
        return self.settings.integer("waystation.queue.message.max.bytes")

    async def alter_settings(self, changes: dict[str, str | None]) -> None:
        """Changes broker settings at run time; all of them or none. They survive a restart."""
        await self.runtime_settings.alter(changes)

    def _settings_changed(self) -> None:
        self._apply_flush()
        self.permissions.refresh()
        self.shards.limit_messages(self.max_queue_message_bytes())
        self.groups.settings = GroupSettings.of(self.settings)
        self.shared.settings_changed()
        for topic in self.topics:
            self.topics.refresh(topic)

    def _apply_flush(self) -> None:
        mode = "commit" if self.member is not None else self.settings.text("waystation.flush")
        self.commit.configure(mode, self.settings.integer("waystation.flush.interval.ms"))  # type: ignore[arg-type]
