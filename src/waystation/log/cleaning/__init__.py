"""What takes records away from a log: retention, compaction, truncation."""
