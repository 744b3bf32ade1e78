"""DataFrames into topics and queues: exactly once, a batch or a stream."""
