"""Clients of a broker.

The Python client: `core.py` is its heart, on an event loop; `sync/` and `aio/` are its two faces; `link.py` says what
it needs of a connection, which is a socket (`socket_link.py`) or the broker in this process (`local_link.py`).

The command line's small synchronous client of the Kafka door: `wire.py`, `publisher.py`, `reader.py`, `topics.py`,
`groups.py` and their helpers.
"""
