"""Share groups through Kafka's protocol (KIP-932)."""
