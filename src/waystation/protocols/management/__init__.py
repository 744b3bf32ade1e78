"""RabbitMQ's management API, spoken over HTTP: what its tools ask and change, on the same queues as everybody else."""
