"""Subscriptions to topics: stream, shared and live. Messages are pushed as far as the subscriber can take them."""
