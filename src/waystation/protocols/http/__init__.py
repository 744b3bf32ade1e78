"""The HTTP door: REST, WebSocket and server-sent events over the same few calls of the broker as every other door."""
