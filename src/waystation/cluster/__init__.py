"""Several brokers that look like one: what they agree on, who leads which partition, and how data is copied."""
