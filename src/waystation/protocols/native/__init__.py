"""The native door: one command set (`waystation.protocol`) as msgpack frames and as JSON lines, on the Kafka port."""
