"""Partitions: the only handles of logs, alone or replicated, and waiting until what they have is durable."""
