"""A broker as those see it who look after it: views, health checks, jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waystation.core import Core

if TYPE_CHECKING:
    from waystation.admin.jobs import Jobs
    from waystation.admin.pipelines_seen import PipelinesSeen
    from waystation.admin.policies import Policies
    from waystation.admin.sealed_places import SealedPlaces
    from waystation.admin.views.view_pipelines import Runner
    from waystation.cluster.member import ClusterMember
    from waystation.cluster.operations import Operations
    from waystation.cluster.view import ClusterView
    from waystation.groups.history import GroupHistory
    from waystation.health.admission import Admission
    from waystation.health.lags import Lags
    from waystation.health.resource_alarms import ResourceAlarms
    from waystation.health.sampling import Sampling
    from waystation.queues.dead_letters import DeadLetters
    from waystation.security.api_keys import ApiKeys
    from waystation.security.audit import Audit
    from waystation.security.authenticator import Authenticator
    from waystation.security.permissions import Permissions
    from waystation.security.quotas.client_quotas import ClientQuotas
    from waystation.security.users import Users
    from waystation.share.admin import SharedAdmin
    from waystation.share.other_coordinators import ShareCoordinators
    from waystation.subscriptions.subscriptions import Subscriptions
    from waystation.topics.partitions.durability import Durability
    from waystation.topics.reading import Readers


class ManagedBroker(Core, Protocol):
    """With what it has for its administrators."""

    node_id: int
    cluster_id: str
    root: str
    view: ClusterView
    operations: Operations
    member: ClusterMember | None
    started_ms: int
    readers: Readers
    durability: Durability
    dead_letters: DeadLetters
    shared_admin: SharedAdmin
    share_coordinators: ShareCoordinators
    subscriptions: Subscriptions
    group_history: GroupHistory
    admission: Admission
    resource_alarms: ResourceAlarms
    sampling: Sampling
    lags: Lags
    jobs: Jobs
    sealed_places: SealedPlaces
    policies: Policies
    audit: Audit
    users: Users
    api_keys: ApiKeys
    authenticator: Authenticator
    permissions: Permissions
    quotas: ClientQuotas
    pipelines_seen: PipelinesSeen
    pipeline_runner: Runner | None

    async def alter_settings(self, changes: dict[str, str | None]) -> None: ...
