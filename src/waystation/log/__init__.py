"""The log engine: record batches in segments, indexes, recovery, group commit, retention and compaction.

Everything durable in Waystation is a `Log`. Nothing here knows of protocols or of the network.
"""
