"""Kafka's APIs: which the broker answers, in which versions, and by which function.

ApiVersions tells clients what is in this table, so nothing is advertised that does not work. Names are those of kio.
Produce and Fetch are here to be advertised; the connection answers them itself.
"""

from __future__ import annotations

from waystation.protocols.kafka.admin import (
    acls,
    client_quotas,
    cluster,
    configs,
    delegation_tokens,
    metadata,
    placement,
    scram_credentials,
    topics,
)
from waystation.protocols.kafka.coordinators import consumer_groups, groups, offsets, transactions
from waystation.protocols.kafka.records import fetch_codec, offsets_listing, produce_codec
from waystation.protocols.kafka.requests import api_versions, login
from waystation.protocols.kafka.requests.codec import API_KEYS
from waystation.protocols.kafka.requests.registry import Api, Call, Handler
from waystation.protocols.kafka.share import share_acknowledge, share_fetch, share_groups, share_offsets


def _by_hand(_: Call) -> object:
    raise NotImplementedError("the connection answers produce and fetch itself")


_TABLE: tuple[tuple[str, int, int, Handler], ...] = (
    ("produce", produce_codec.MIN_VERSION, produce_codec.MAX_VERSION, _by_hand),
    ("fetch", fetch_codec.MIN_VERSION, fetch_codec.MAX_VERSION, _by_hand),
    ("api_versions", 0, 4, api_versions.api_versions),
    ("sasl_handshake", 0, 1, login.sasl_handshake),
    ("sasl_authenticate", 0, 2, login.sasl_authenticate),
    ("describe_log_dirs", 1, 5, cluster.describe_log_dirs),
    ("alter_replica_log_dirs", 1, 2, cluster.alter_replica_log_dirs),
    ("describe_quorum", 0, 2, cluster.describe_quorum),
    ("offset_for_leader_epoch", 2, 4, cluster.offset_for_leader_epoch),
    ("update_features", 0, 2, cluster.update_features),
    ("describe_acls", 1, 3, acls.describe_acls),
    ("create_acls", 1, 3, acls.create_acls),
    ("delete_acls", 1, 3, acls.delete_acls),
    ("describe_client_quotas", 0, 1, client_quotas.describe_client_quotas),
    ("alter_client_quotas", 0, 1, client_quotas.alter_client_quotas),
    ("describe_user_scram_credentials", 0, 0, scram_credentials.describe_user_scram_credentials),
    ("alter_user_scram_credentials", 0, 0, scram_credentials.alter_user_scram_credentials),
    ("create_delegation_token", 1, 3, delegation_tokens.create_delegation_token),
    ("renew_delegation_token", 1, 2, delegation_tokens.renew_delegation_token),
    ("expire_delegation_token", 1, 2, delegation_tokens.expire_delegation_token),
    ("describe_delegation_token", 1, 3, delegation_tokens.describe_delegation_token),
    ("describe_configs", 1, 4, configs.describe_configs),
    ("alter_configs", 0, 2, configs.alter_configs),
    ("incremental_alter_configs", 0, 1, configs.incremental_alter_configs),
    ("list_config_resources", 0, 1, configs.list_config_resources),
    ("consumer_group_heartbeat", 0, 1, consumer_groups.consumer_group_heartbeat),
    ("consumer_group_describe", 0, 1, consumer_groups.consumer_group_describe),
    ("find_coordinator", 0, 6, groups.find_coordinator),
    ("join_group", 0, 9, groups.join_group),
    ("sync_group", 0, 5, groups.sync_group),
    ("heartbeat", 0, 4, groups.heartbeat),
    ("leave_group", 0, 5, groups.leave_group),
    ("describe_groups", 0, 6, groups.describe_groups),
    ("list_groups", 0, 5, groups.list_groups),
    ("delete_groups", 0, 2, groups.delete_groups),
    ("metadata", 0, 13, metadata.metadata),
    ("describe_topic_partitions", 0, 0, metadata.describe_topic_partitions),
    ("describe_cluster", 0, 2, metadata.describe_cluster),
    ("offset_commit", 2, 10, offsets.offset_commit),
    ("offset_fetch", 1, 10, offsets.offset_fetch),
    ("offset_delete", 0, 0, offsets.offset_delete),
    ("list_offsets", 1, 11, offsets_listing.list_offsets),
    ("elect_leaders", 0, 2, placement.elect_leaders),
    ("alter_partition_reassignments", 0, 1, placement.alter_partition_reassignments),
    ("list_partition_reassignments", 0, 0, placement.list_partition_reassignments),
    ("unregister_broker", 0, 0, placement.unregister_broker),
    ("share_acknowledge", 1, 2, share_acknowledge.share_acknowledge),
    ("share_fetch", 1, 2, share_fetch.share_fetch),
    ("share_group_heartbeat", 1, 1, share_groups.share_group_heartbeat),
    ("share_group_describe", 1, 1, share_groups.share_group_describe),
    ("describe_share_group_offsets", 0, 1, share_offsets.describe_share_group_offsets),
    ("alter_share_group_offsets", 0, 0, share_offsets.alter_share_group_offsets),
    ("delete_share_group_offsets", 0, 0, share_offsets.delete_share_group_offsets),
    ("create_topics", 2, 7, topics.create_topics),
    ("delete_topics", 1, 6, topics.delete_topics),
    ("create_partitions", 0, 3, topics.create_partitions),
    ("delete_records", 0, 2, topics.delete_records),
    ("init_producer_id", 0, 6, transactions.init_producer_id),
    ("add_partitions_to_txn", 0, 5, transactions.add_partitions_to_txn),
    ("add_offsets_to_txn", 0, 4, transactions.add_offsets_to_txn),
    ("txn_offset_commit", 0, 5, transactions.txn_offset_commit),
    ("end_txn", 0, 5, transactions.end_txn),
    ("write_txn_markers", 1, 2, transactions.write_txn_markers),
    ("describe_transactions", 0, 0, transactions.describe_transactions),
    ("list_transactions", 0, 2, transactions.list_transactions),
    ("describe_producers", 0, 0, transactions.describe_producers),
)

APIS = {
    API_KEYS[name]: Api(API_KEYS[name], name, lowest, highest, handler) for name, lowest, highest, handler in _TABLE
}
"""By their numbers."""
