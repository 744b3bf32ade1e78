"""Codecs that both sides of a protocol use: the broker's engine, and a client that is in this package too (Spark's)."""
