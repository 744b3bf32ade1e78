"""The native protocol: one command set (`waystation.protocol`) as msgpack frames and as JSON lines, on Kafka's port."""
