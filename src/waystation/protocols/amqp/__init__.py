"""AMQP 0-9-1: RabbitMQ's clients, unchanged, on the same queues, topics and exchanges as everybody else."""
