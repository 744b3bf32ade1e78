"""The framings of the native protocol, sans I/O: msgpack and JSON lines."""
