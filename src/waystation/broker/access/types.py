"""What the verbs of `Access` take and give, by name. Protocols import these here: where the core keeps them is its own
affair."""

from waystation.admin.policy_rules import Policy as Policy
from waystation.admin.policy_rules import anywhere as anywhere
from waystation.broker.access.access import KnownQueue as KnownQueue
from waystation.broker.access.access import RouteTable as RouteTable
from waystation.broker.access.administration.placement import Reassignment as Reassignment
from waystation.broker.access.messaging.queue_figures import QueueFigures as QueueFigures
from waystation.broker.access.messaging.transactions import NamedPartition as NamedPartition
from waystation.cluster.decisions.state import NOBODY as NOBODY
from waystation.cluster.replica_placement import WantedReplicas as WantedReplicas
from waystation.cluster.view import ClusterView as ClusterView
from waystation.cluster.view import KnownNode as KnownNode
from waystation.cluster.view import PartitionReplicas as PartitionReplicas
from waystation.cluster.view import closest as closest
from waystation.groups.machines.calls import ConsumerBeat as ConsumerBeat
from waystation.groups.machines.calls import ConsumerGroupView as ConsumerGroupView
from waystation.groups.machines.calls import ConsumerMemberView as ConsumerMemberView
from waystation.groups.machines.calls import FetchedOffset as FetchedOffset
from waystation.groups.machines.calls import GroupView as GroupView
from waystation.groups.machines.calls import JoinRequest as JoinRequest
from waystation.groups.machines.calls import LeavingMember as LeavingMember
from waystation.groups.machines.calls import OffsetToCommit as OffsetToCommit
from waystation.groups.machines.calls import SyncRequest as SyncRequest
from waystation.groups.machines.calls import TopicPartition as TopicPartition
from waystation.groups.machines.errors import IllegalGeneration as IllegalGeneration
from waystation.groups.machines.errors import MemberIdRequired as MemberIdRequired
from waystation.groups.machines.errors import NotCoordinator as NotCoordinator
from waystation.groups.machines.errors import UnknownGroup as UnknownGroup
from waystation.groups.machines.settings import CONSUMER_SETTINGS as CONSUMER_SETTINGS
from waystation.health.lags import GroupLag as GroupLag
from waystation.health.sampling import Point as Point
from waystation.log.batches.batch import Header as Header
from waystation.queues.failure_history import EXCHANGE_TARGET as EXCHANGE_TARGET
from waystation.queues.feed import Deliver as Deliver
from waystation.queues.feed import Feed as Feed
from waystation.queues.feed import Settled as Settled
from waystation.queues.feed import Verdict as Verdict
from waystation.queues.inspection import PEEKED_BYTES as PEEKED_BYTES
from waystation.queues.ledger.ledger import Grant as Grant
from waystation.queues.ledger.runs import add_run as add_run
from waystation.queues.names import INTERNAL_PREFIX as INTERNAL_PREFIX
from waystation.queues.putting import alike as alike
from waystation.queues.redriving import Redrive as Redrive
from waystation.queues.settings import DEFAULT_VISIBILITY_TIMEOUT_MS as DEFAULT_VISIBILITY_TIMEOUT_MS
from waystation.queues.settings import Overflow as Overflow
from waystation.queues.settings import QueueSettings as QueueSettings
from waystation.queues.settings import declared as declared
from waystation.queues.shard.commands import count_of as count_of
from waystation.queues.shard.queue_feed import Getter as Getter
from waystation.queues.shard.queue_feed import OnEnd as OnEnd
from waystation.queues.shard.queue_feed import QueueFeed as QueueFeed
from waystation.queues.shard.queue_reader import MAX_RUNS as MAX_RUNS
from waystation.queues.shard.queue_reader import QueueReader as QueueReader
from waystation.queues.shard.shard import PutEach as PutEach
from waystation.queues.shard.shard import PutOutcome as PutOutcome
from waystation.queues.shard.shard import PutResult as PutResult
from waystation.routing import table
from waystation.routing.exchanges.binding import EXCHANGE as EXCHANGE
from waystation.routing.exchanges.binding import QUEUE as QUEUE
from waystation.routing.exchanges.binding import TOPIC as TOPIC
from waystation.routing.exchanges.binding import Binding as Binding
from waystation.routing.exchanges.exchange import ExchangeSettings as ExchangeSettings
from waystation.routing.matching.patterns import regex_behind as regex_behind
from waystation.routing.matching.regex import Regex as Regex
from waystation.routing.namespace_names import DEFAULT as DEFAULT
from waystation.routing.namespace_names import NamespaceNames as NamespaceNames
from waystation.security import credentials, kafka_acls, rabbitmq_permissions
from waystation.security.authenticator import EXPIRED as EXPIRED
from waystation.security.authenticator import NODE_MECHANISM as NODE_MECHANISM
from waystation.security.authenticator import Authenticator as Authenticator
from waystation.security.authenticator import LoginPeer as LoginPeer
from waystation.security.credentials import RabbitHash as RabbitHash
from waystation.security.entrance import Entrance as Entrance
from waystation.security.entrance import ListenerTerms as ListenerTerms
from waystation.security.kafka_acls import AclFilter as AclFilter
from waystation.security.kafka_acls import KafkaAcl as KafkaAcl
from waystation.security.kafka_acls import acl_of as acl_of
from waystation.security.kafka_acls import check_filter as check_filter
from waystation.security.kafka_acls import rule_of as rule_of
from waystation.security.kafka_acls import selects as selects
from waystation.security.principals import ANONYMOUS as ANONYMOUS
from waystation.security.principals import HTTP_TOKEN as HTTP_TOKEN
from waystation.security.principals import LOCAL as LOCAL
from waystation.security.principals import Principal as Principal
from waystation.security.quotas.entities import QuotaEntity as QuotaEntity
from waystation.security.rabbitmq_permissions import VhostPermission as VhostPermission
from waystation.security.rabbitmq_permissions import permission_of as permission_of
from waystation.security.rules import Resource as Resource
from waystation.security.rules import Rule as Rule
from waystation.security.sasl.exchange import Challenge as Challenge
from waystation.security.sasl.exchange import Failed as Failed
from waystation.security.sasl.exchange import LoggedIn as LoggedIn
from waystation.security.sasl.exchange import Outcome as Outcome
from waystation.security.sasl.exchange import SaslExchange as SaslExchange
from waystation.security.topic_permissions import TopicPermission as TopicPermission
from waystation.security.users import USER_LIMITS as USER_LIMITS
from waystation.security.users import User as User
from waystation.share.feed import SharedFeed as SharedFeed
from waystation.share.group import SharedGroup as SharedGroup
from waystation.share.machines.calls import ShareBeat as ShareBeat
from waystation.share.machines.calls import ShareGroupView as ShareGroupView
from waystation.share.machines.calls import ShareMemberView as ShareMemberView
from waystation.share.machines.calls import ShareOffset as ShareOffset
from waystation.share.machines.errors import InvalidRecordState as InvalidRecordState
from waystation.share.machines.errors import InvalidShareRequest as InvalidShareRequest
from waystation.share.machines.errors import InvalidShareSessionEpoch as InvalidShareSessionEpoch
from waystation.share.machines.errors import UnknownShareSession as UnknownShareSession
from waystation.share.machines.sessions import FINAL_EPOCH as FINAL_EPOCH
from waystation.share.machines.sessions import INITIAL_EPOCH as INITIAL_EPOCH
from waystation.share.machines.sessions import ShareSession as ShareSession
from waystation.share.machines.settings import SHARE_SETTINGS as SHARE_SETTINGS
from waystation.share.other_coordinators import GivenRecords as GivenRecords
from waystation.share.other_coordinators import OtherShareGroup as OtherShareGroup
from waystation.share.partition import SharedPartition as SharedPartition
from waystation.share.peer_calls import RENEW_LOCKS as RENEW_LOCKS
from waystation.share.peer_calls import Settling as Settling
from waystation.share.topic_queue_settings import TopicQueueSettings as TopicQueueSettings
from waystation.share.topic_queues import TopicQueue as TopicQueue
from waystation.subscriptions import inboxes
from waystation.subscriptions.group_member import GroupMember as GroupMember
from waystation.subscriptions.tailing import TailFeed as TailFeed
from waystation.subscriptions.tailing import TailStart as TailStart
from waystation.topics.partitions.durability import Failures as Failures
from waystation.topics.partitions.partition import Partition as Partition
from waystation.topics.partitions.partition import Receipt as Receipt
from waystation.topics.publishing import may_be_slow as may_be_slow
from waystation.topics.records.record_tracing import traced_from as traced_from
from waystation.topics.topics import Topic as Topic
from waystation.topics.topics import check_partitions as check_partitions
from waystation.transactions import transacting
from waystation.transactions.errors import ConcurrentTransactions as ConcurrentTransactions
from waystation.transactions.errors import CoordinatorAway as CoordinatorAway
from waystation.transactions.errors import InvalidTransactionState as InvalidTransactionState
from waystation.transactions.errors import TransactionAbortable as TransactionAbortable
from waystation.transactions.listing import TransactionFilter as TransactionFilter
from waystation.transactions.machine import NO_EPOCH as NO_EPOCH
from waystation.transactions.machine import NO_PRODUCER_ID as NO_PRODUCER_ID
from waystation.transactions.machine import Producer as Producer
from waystation.transactions.transacting import Tx as Tx
from waystation.transactions.writers import CheckProduce as CheckProduce

EXCHANGE_KINDS = table.KINDS
INBOX_PREFIX = inboxes.PREFIX
OWN_TRANSACTIONS = transacting.OWN_PREFIX
operation_bits = kafka_acls.bits
read_verifier = credentials.read
rules_of_permission = rabbitmq_permissions.rules_of
belongs_to_permission = rabbitmq_permissions.belongs
written_verifier = credentials.written
