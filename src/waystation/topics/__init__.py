"""Topics and their partitions: their files, messages into them and out of them, and when those are durable."""
