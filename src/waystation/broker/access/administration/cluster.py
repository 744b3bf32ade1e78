"""The broker itself, as operators see and change it: its settings, its disk, its loggers. `Access.cluster`.

Only loggers of this package are touched: the process may be somebody else's program with a broker inside.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import msgspec

from waystation.broker.access.messaging.family import Family, spelled
from waystation.cluster.view import ClusterView
from waystation.config import BrokerSettings
from waystation.errors import Invalid
from waystation.health.health import disk_room
from waystation.security.credentials import written
from waystation.security.users import User
from waystation.wire.scram import ScramKeys

LOGGER = "waystation"
"""The logger above all others of the broker."""
UNKNOWN = -1


class ClusterAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    def view(self) -> ClusterView:
        """Which nodes there are, and who has and leads which partition."""
        self._ask_cluster("describe")
        return self._broker.view

    async def answer_node(self, request: bytes, connection: str) -> bytes:
        """Another node of the cluster asks, by the connection of this name."""
        self._ask_cluster("alter")
        member = self._broker.member
        if member is None:
            raise Invalid("this broker is not a node of a cluster")
        return await member.peers.answer_encoded(request, connection)

    def disconnected(self, connection: str) -> None:
        """A connection has ended that another node may have asked by. Not asked: it may always end."""
        if self._broker.member is not None:
            self._broker.member.peers.disconnected(connection)

    def settings(self) -> BrokerSettings:
        """As they are now; topics and groups have their own over these."""
        self._ask_cluster("describe-configs")
        return self._broker.settings

    async def alter_settings(self, changes: dict[str, str | None]) -> None:
        """Changes settings at run time, all of them or none; they survive a restart. None: back to the default."""
        self._ask_cluster("alter-configs")
        await self._changing("alter-configs", "cluster", "*", self._broker.alter_settings(changes), spelled(changes))

    def check_describe(self) -> None:
        """Raises if the principal may not look at the broker itself: for what is made of all that is in it."""
        self._ask_cluster("describe")

    def may_describe(self) -> bool:
        """Whether the principal may look at the broker itself; it is not refused anything by being asked."""
        return self._broker.permissions.allows(self._principal, "describe", "cluster", "*")

    def check_alter(self) -> None:
        """Raises if the principal may not change the broker: for changes that are validated only, or refused."""
        self._ask_cluster("alter")

    def check_action(self) -> None:
        """Raises if the principal may not do what the brokers of a cluster do among themselves."""
        self._ask_cluster("cluster-action")

    def settings_to_alter(self) -> BrokerSettings:
        """`settings`, for one who is about to change them, or would."""
        self._ask_cluster("alter-configs")
        return self._broker.settings

    async def disk_room(self) -> tuple[int, int]:
        """Total and free bytes of the disk with the data; -1 where it does not say."""
        self._ask_cluster("describe")
        free, total = await self._broker.world.offload(disk_room, self._broker)
        return (total, free) if total else (UNKNOWN, UNKNOWN)

    def catalog_revision(self) -> int:
        """Of names and settings: up to where the broker follows its catalog."""
        self._ask_cluster("describe")
        return self._broker.follower.revision

    def scram_credentials(self) -> dict[str, dict[str, int]]:
        """Users whose passwords can be checked by SCRAM: the rounds of each mechanism."""
        self._ask_cluster("describe")
        users = self._broker.users
        found = {name: [one for one in users.verifiers(name) if isinstance(one, ScramKeys)] for name in users.names()}
        return {name: {one.mechanism: one.iterations for one in keys} for name, keys in found.items() if keys}

    async def alter_scram(self, user: str, verifiers: Mapping[str, ScramKeys | None]) -> None:
        """Replaces a user's verifiers by mechanism, None deletes one; what is not named stays. A user that is not there
        is added, and one without verifiers removed. PLAIN is checked by the verifier that was set last."""
        self._ask_cluster("alter")
        users = self._broker.users
        known = users.find(user) or User(created_ms=self._broker.world.clock.now_ms())
        kept = [text for text in known.verifiers if text.partition("$")[0] not in verifiers]
        new = [written(one) for one in verifiers.values() if one is not None]
        if new or kept:
            saved = users.save(user, msgspec.structs.replace(known, verifiers=(*new, *kept)))
            await self._changing("alter", "user", user, saved, f"passwords by {', '.join(verifiers)}")
        else:
            await self._changing("delete", "user", user, users.remove(user))

    def log_levels(self) -> dict[str, int]:
        """The loggers that exist by now, and the level that holds for each: its own or an ancestor's."""
        self._ask_cluster("describe-configs")
        names = [name for name in logging.root.manager.loggerDict if name.startswith(f"{LOGGER}.")]
        return {name: logging.getLogger(name).getEffectiveLevel() for name in (LOGGER, *sorted(names))}

    def alter_log_levels(self, levels: Iterable[tuple[str, int]]) -> None:
        """Until the process ends. `logging.NOTSET`: as its ancestor's."""
        self._ask_cluster("alter-configs")
        for name, level in levels:
            logging.getLogger(name).setLevel(level)
            self._changed("alter-configs", "cluster", "*", f"level of {name}: {level}")
