"""Messages as Kafka's records, and back: what a topic stores."""
