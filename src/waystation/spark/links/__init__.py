"""The connections of Spark's processes to the broker: where it is, who logs in, and what is asked again."""
