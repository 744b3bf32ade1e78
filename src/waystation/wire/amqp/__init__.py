"""AMQP 0-9-1: what its bytes and its reply codes mean. Pure; for the AMQP protocol and the management API."""
