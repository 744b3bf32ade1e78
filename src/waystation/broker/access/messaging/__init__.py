"""The verbs of those who send and receive: topics, queues, subscriptions, groups, transactions."""
