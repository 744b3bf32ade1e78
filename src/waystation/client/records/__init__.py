"""Topics record by record, byte for byte: what a Kafka client would write and read, over the native protocol.

Messages (`mq.publish`, `mq.subscribe`) are for programs. Whoever copies, shows or measures what is stored needs the
records as they are: a header name twice, a value that is missing, the batches in their compression. `publishing.py`
builds batches, `reading.py` opens them, `group_reading.py` reads as a member of a consumer group, `offsets.py` looks
positions up. Synchronous; used by the command line and by Spark's pipelines.
"""
