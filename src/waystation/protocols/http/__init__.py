"""HTTP: REST, WebSocket and server-sent events over the same calls of the broker as every other protocol."""
