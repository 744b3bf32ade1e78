"""The commands that show what a running broker does, and how fast it is."""
