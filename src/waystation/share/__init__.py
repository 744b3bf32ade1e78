"""Share groups: many consumers of a topic share its records, and each record is acknowledged by itself."""
