"""The version of this package, and of RabbitMQ to its clients, in one place."""

from __future__ import annotations

__version__ = "0.1.0"

RABBITMQ_VERSION = "3.13.7"
"""The version of RabbitMQ whose behaviour clients may count on: several choose theirs by it.

From 4.0 on kombu thinks that a channel has no prefetch of its own any more, and Celery's workers cannot ask for more
while they hold tasks with an ETA. Here a channel has one.
"""
