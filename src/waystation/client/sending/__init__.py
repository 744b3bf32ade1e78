"""Messages on their way to the broker: gathered into frames, within a budget, and what was answered."""
