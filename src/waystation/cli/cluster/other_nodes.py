"""How a command that has asked one node of a cluster reaches the others: as it was told to reach that one (TLS, login),
by the listener of the same name. Used by the commands of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from waystation.client.links.servers import at_address, parse_urls

USUAL = "kafka"


class OtherNodes:
    """`server`: what the command was told. `nodes`: of the view `cluster`."""

    def __init__(self, server: str, nodes: Sequence[dict[str, Any]]) -> None:
        self._server = server
        asked = {str(address) for address in parse_urls(server)}
        names = (name for node in nodes for name, address in node["listeners"].items() if address in asked)
        self.listener = next(names, USUAL)

    def address(self, node: dict[str, Any]) -> str | None:
        """Where to connect to; None: that node does not say."""
        address = node["listeners"].get(self.listener)
        return None if address is None else at_address(self._server, address)
