"""A shard: the log of many queues, what it says to each of them, and how their messages reach consumers."""
