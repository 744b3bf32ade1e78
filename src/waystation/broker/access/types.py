"""What the verbs of `Access` take and give, by name. Protocols import these here: where the core keeps them is its own
affair."""

from waystation.health.lags import GroupLag as GroupLag
from waystation.health.sampling import Point as Point
from waystation.queues.feed import Feed as Feed
from waystation.queues.feed import Verdict as Verdict
from waystation.queues.looking import PEEKED_BYTES as PEEKED_BYTES
from waystation.queues.redriving import Redrive as Redrive
from waystation.queues.settings import DEFAULT_HOLD_MS as DEFAULT_HOLD_MS
from waystation.queues.settings import QueueSettings as QueueSettings
from waystation.queues.shard.commands import count_of as count_of
from waystation.queues.shard.queue_feed import Getter as Getter
from waystation.queues.shard.queue_feed import QueueFeed as QueueFeed
from waystation.queues.shard.queue_reader import MAX_RUNS as MAX_RUNS
from waystation.queues.shard.queue_reader import QueueReader as QueueReader
from waystation.queues.shard.shard import PutResult as PutResult
from waystation.routing.namespace_names import DEFAULT as DEFAULT
from waystation.security.principals import ANONYMOUS as ANONYMOUS
from waystation.security.principals import Principal as Principal
from waystation.subscriptions.group_member import GroupMember as GroupMember
from waystation.topics.partition import Receipt as Receipt
from waystation.topics.topics import Topic as Topic
from waystation.transactions.transacting import Tx as Tx
