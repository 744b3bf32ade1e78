"""Virtual hosts: a namespace as RabbitMQ's clients know it, with RabbitMQ's rules and its words of refusal.

What is declared, bound, emptied, deleted and shown as a queue or an exchange, whichever protocol asks: AMQP, or the
management API. Queues, topics and exchanges themselves know nothing of this.
"""
