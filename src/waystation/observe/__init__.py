"""What the broker measures of itself, and what pipelines tell of themselves: pure data, no knowledge of the broker."""
