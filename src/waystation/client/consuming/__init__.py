"""Messages on their way from the broker: pushed, prefetched, handed out, and their verdicts."""
