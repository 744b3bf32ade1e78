"""The Python client of a broker: the native protocol, and nothing else.

`core.py` is its heart, on an event loop; `sync/` and `aio/` are its two faces; `links/link.py` says what it needs of a
connection, which is a socket (`socket_link.py`) or the broker in this process (`local_link.py`). Messages go out by
`sending/` and come in by `consuming/`. `records/` reads and writes topics record by record, byte for byte, for the
command line and for Spark's pipelines.
"""
