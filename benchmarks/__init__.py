"""Benchmarks: Waystation beside Apache Kafka (topics), NATS JetStream and Redis Streams (queues) and RabbitMQ (AMQP).

Run as `python -m benchmarks` (or `make bench`); `docs/reference/benchmarks.md` says what every figure means.
Nothing under `src/` imports this package, and it reaches the brokers only as their users do: through a command line,
a socket and `/proc`.
"""
