"""What a pipeline writes: its sinks, Delta and Iceberg tables, and rows that were rejected."""
