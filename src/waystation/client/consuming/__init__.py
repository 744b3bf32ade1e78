"""Messages on their way from the broker: pushed, held, handed out, and their verdicts."""
