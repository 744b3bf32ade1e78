"""What is in a value: JSON, Avro, Protobuf, as Arrow columns."""
