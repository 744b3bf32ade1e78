"""`waystation pipeline`: pipelines on Spark."""
