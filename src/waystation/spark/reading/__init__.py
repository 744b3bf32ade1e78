"""Topics and queues as DataFrames: what there is to read, which task reads what, and bytes made into Arrow columns."""
