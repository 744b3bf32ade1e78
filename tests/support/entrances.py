"""Entrances of listeners with nothing but a name, for tests that construct a part of a broker's listeners."""

from __future__ import annotations

from waystation.broker.access.node import Node
from waystation.security.entrance import Entrance, ListenerTerms


def entrance_of(broker: Node, name: str = "kafka") -> Entrance:
    return Entrance(broker.authenticator, ListenerTerms(name))
