"""A broker as its virtual hosts see it."""

from __future__ import annotations

from typing import Protocol

from waystation.core import Core
from waystation.subscriptions.tailing import Tailing


class HostingBroker(Core, Protocol):
    """With those who read topics as streams."""

    tailing: Tailing
