"""Work queues: the state machine of per-message delivery. Shards, scheduling and dead letters are built on it."""
