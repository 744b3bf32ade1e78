"""The plain actions of JSON lines: publish, subscribe, consume, ack and the like, without our commands."""
